"""What the command line imports, and when: the time of ``kvplan --help`` is its imports."""

import subprocess
import sys

import pytest
from cli_runner import execute, run, surroundings

from kvplan.offline.cli.app import COMMANDS

HEAVY = ("torch", "vllm", "transformers", "numpy")


def modules_after(*args: str) -> set[str]:
    """Modules loaded in a fresh process that ran the command."""
    script = (
        "import sys\n"
        "from kvplan.offline.cli.app import app\n"
        "try:\n"
        f"    app.main({list(args)!r})\n"
        "except SystemExit as e:\n"
        "    assert not e.code, e.code\n"
        "print('MODULES', *sys.modules)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        **surroundings(),
    )
    line = result.stdout.rsplit("MODULES ", 1)[1]
    return set(line.split())


def test_help_imports_only_click():
    modules = modules_after("--help")
    assert "click" in modules
    for name in (*HEAVY, "rich", "msgspec", "kvplan.offline.models", "kvplan.offline.cli.plan"):
        assert name not in modules


@pytest.mark.parametrize("output", [(), ("--json",)])
def test_planning_imports_nothing_heavy(output):
    modules = modules_after("plan", "gemma-3-27b", "--memory", "60GiB", *output)
    for name in HEAVY:
        assert name not in modules
    assert ("rich" in modules) == (not output)


@pytest.mark.parametrize(
    "words",
    [
        "fit gemma-3-27b --memory 30GiB",
        "explain gemma-3-27b",
        "frontier gemma-3-27b",
        "diff gemma-3-27b gpt-oss-120b --memory 60GiB",
        "sweep gemma-3-27b --memory 20GiB:60GiB:20GiB -o {}/rows.csv",
        "map gemma-3-27b --memory 60GiB -o {}/map.svg",
        "models",
        "completion bash",
    ],
)
def test_no_command_imports_anything_heavy(words, tmp_path):
    modules = modules_after(*words.format(tmp_path, tmp_path).split())
    for name in (*HEAVY, "huggingface_hub", "pyarrow", "cairosvg"):
        assert name not in modules


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_shows_examples(name):
    result = run(name, "--help")
    assert result.exit_code == 0
    assert f"  kvplan {name}" in result.stdout.partition("Examples:")[2]


def test_help_and_version():
    assert "Examples:" in execute("--help").stdout
    assert "Examples:" in execute("plan", "--help").stdout
    assert execute("--version").stdout.startswith("kvplan")


def test_the_package_runs_as_a_module():
    for module in ("kvplan", "kvplan.offline.cli"):
        result = subprocess.run(
            [sys.executable, "-m", module, "--help"],
            capture_output=True,
            text=True,
            check=True,
            **surroundings(),
        )
        assert result.stdout.startswith("Usage: kvplan ")
