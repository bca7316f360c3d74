"""``kvplan diff``: two plans side by side."""

import json

import pytest
from cli_runner import answer_to, run

from kvplan.offline.cli.failures import BAD_INPUT, DOES_NOT_FIT, FITS


def test_same_model_with_another_option():
    a, b = answer_to("diff", "gemma-3-27b", "--kv-cache-dtype fp8", "--memory", "30GiB").values()
    plain = answer_to("plan", "gemma-3-27b", "--memory", "30GiB")
    assert a["max_concurrency"] == plain["max_concurrency"]
    fp8 = answer_to("plan", "gemma-3-27b", "--memory", "30GiB", "--kv-cache-dtype", "fp8")
    assert b["max_concurrency"] == fp8["max_concurrency"] == 2 * a["max_concurrency"]


def test_two_models_as_a_table():
    result = run("diff", "llama-3.1-70b --tp 4", "gpt-oss-120b", "--memory", "40GiB")
    assert result.exit_code == FITS
    lines = {line.split("  ")[0].strip(): line for line in result.stdout.splitlines()}
    assert "80" in lines["layers"]
    assert "-55.0%" in lines["layers"]
    assert "llama-3.1-70b" in result.stdout


def test_recorded_requests(tmp_path):
    paths = [tmp_path / "before.json", tmp_path / "after.json"]
    for path, memory in zip(paths, ("30GiB", "60GiB"), strict=True):
        run("plan", "gemma-3-27b", "--memory", memory, "--write-request", path)
    result = run("diff", *paths, "--json")
    a, b = json.loads(result.stdout).values()
    assert b["num_blocks"] == 2 * a["num_blocks"]


def test_one_side_does_not_fit():
    result = run("diff", "gemma-3-27b --memory 3GiB", "gemma-3-27b --memory 30GiB")
    assert result.exit_code == DOES_NOT_FIT
    assert "does not fit" in result.stdout
    assert "does not fit" in result.stderr


@pytest.mark.parametrize(
    ("args", "word"),
    [
        ((), "two sides"),
        (("gemma-3-27b",), "two sides"),
        (("gemma-3-27b", ""), "empty"),
        (("gemma-3-27b", "'"), "line of arguments"),
        (("gemma-3-27b", "gema", "--memory", "1GiB"), "gema"),
        (("gemma-3-27b", "--nonsense 1", "--memory", "1GiB"), "--nonsense"),
        (("gemma-3-27b", "llama-3.1-70b"), "--memory"),
    ],
)
def test_bad_input(args, word):
    result = run("diff", *args)
    assert result.exit_code == BAD_INPUT
    assert word in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_headers_say_what_differs():
    table = run("diff", "gemma-3-27b", "--grouping compact", "--memory", "30GiB").stdout
    assert "--grouping compact" in table
    assert [line.split() for line in table.splitlines() if line.startswith(" grouping")] == [
        ["grouping", "vllm", "compact", "differs"]
    ]
    table = run("diff", "gemma-3-27b --tp 1", "gemma-3-27b --tp 2", "--memory", "30GiB").stdout
    assert "--tp 1 " in table
    assert "--tp 2 " in table
    two_models = run("diff", "gemma-3-27b --tp 1", "llama-3.1-70b", "--memory", "60GiB").stdout
    assert "gemma-3-27b --tp 1 " in two_models
    assert "grouping" not in two_models


def test_a_recording_beside_the_model_under_other_options(tmp_path):
    recorded = tmp_path / "rec.json"
    run("plan", "gemma-3-27b", "--memory", "20GiB", "--write-request", recorded)
    sides = (f"{recorded} --memory 12GiB", "gemma-3-27b --tp 2 --memory 12GiB")
    result = run("diff", *sides, "--json")
    a, b = json.loads(result.stdout).values()
    assert (a["name"], b["name"]) == (str(recorded), "gemma-3-27b --tp 2")
    assert a["model"] == b["model"] == "gemma-3-27b"


def test_what_is_known_without_memory_of_two_that_do_not_fit():
    result = run("diff", "gemma-3-27b", "--kv-cache-dtype fp8", "--memory", "3GiB", "--json")
    assert result.exit_code == DOES_NOT_FIT
    a, b = json.loads(result.stdout).values()
    assert not a["fits"]
    assert a["request_bytes"] == 2 * b["request_bytes"] > 0
    assert "num_blocks" not in a
    rows = run("diff", "gemma-3-27b", "--kv-cache-dtype fp8", "--memory", "3GiB").stdout
    assert "one request" in rows
    assert [line.split() for line in rows.splitlines() if " fits" in line] == [["fits", "no", "no"]]


@pytest.mark.parametrize("width", [60, 80, 110])
def test_many_backends_fit_the_terminal(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    args = ("diff", "deepseek-v4-flash", "--tp 4", "--memory", "30GiB")
    assert max(map(len, run(*args).stdout.splitlines())) <= width
