"""A file of one kind given where another is meant: its name, and where it belongs."""

import json
from pathlib import Path

import pytest
from cli_runner import run

from kvplan.offline.cli.failures import BAD_INPUT, FITS
from kvplan.offline.cli.files import file_kind

LOGS = sorted((Path(__file__).parents[1] / "data" / "startup_logs").glob("*.log"))
LOG = "(EngineCore pid=1) INFO 12-01 10:00:00 [core.py:1] Available KV cache memory: 12.0 GiB\n"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A file of each kind."""
    folder = tmp_path_factory.mktemp("files")
    made = {kind: folder / f"{kind}.json" for kind in ("plan", "request", "bench", "model", "log")}
    args = ("plan", "gemma-3-27b", "--memory", "30GiB")
    made["plan"].write_text(run(*args, "--json").stdout)
    run(*args, "--write-request", made["request"])
    made["bench"].write_text('{"kvplan_bench": 1, "machine": {}, "notes": [], "rows": []}')
    made["model"].write_text(json.dumps({"model_type": "llama", "architectures": ["X"]}))
    made["log"].write_text(LOG)
    return made


def test_kinds(files, tmp_path):
    assert {kind: file_kind(path) for kind, path in files.items()} == {kind: kind for kind in files}
    (tmp_path / "other").write_text("{}")
    assert file_kind(tmp_path / "other") is None
    assert file_kind(tmp_path / "none") is None


@pytest.mark.parametrize("log", LOGS, ids=lambda path: path.stem)
def test_a_log_of_any_runtime(log):
    assert file_kind(log) == "log"


@pytest.mark.parametrize(
    ("wanted", "command"),
    [
        ("model", ("plan", "{}", "--memory", "1GiB")),
        ("model", ("sweep", "{}", "--memory", "1GiB")),
        ("request", ("plan", "--request", "{}")),
        ("plan", ("check", "{}")),
        ("bench", ("bench", "--compare", "{}")),
        ("log", ("log", "{}")),
    ],
)
@pytest.mark.parametrize("given", ["plan", "request", "bench", "model", "log"])
def test_every_kind_where_another_is_meant(wanted, command, given, files):
    if given == wanted:
        return
    result = run(*(part.format(files[given]) for part in command))
    assert result.exit_code == BAD_INPUT
    message = " ".join(result.stderr.split())
    assert message.startswith(f"kvplan: {files[given]} is a")
    uses = {
        "plan": "'kvplan check' takes it",
        "request": f"use --request {files['request']}",
        "bench": "'kvplan bench --compare' takes it",
        "model": "give it as MODEL",
        "log": f"'kvplan log {files['log']}' explains it",
    }
    assert uses[given] in message


def test_a_side_of_a_diff_may_be_a_recording(files):
    assert run("diff", files["request"], "--memory 40GiB").exit_code == FITS
