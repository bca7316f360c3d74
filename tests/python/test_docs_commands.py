"""The commands in the documentation run, in order, and print what it says."""

import re
import subprocess
from pathlib import Path

import pytest
from cli_runner import execute_line, surroundings

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.S | re.M)


def commands_of(page):
    """(command, lines printed) pairs of a page."""
    pairs = []
    for block in BLOCK.findall((DOCS / page).read_text()):
        for line in block.splitlines():
            if line.startswith("$ "):
                pairs.append((line[2:], []))
            else:
                pairs[-1][1].append(line)
    return pairs


@pytest.mark.parametrize("page", ["tutorial.md", "cli.md"])
def test_commands_print_what_the_page_says(page, tmp_path):
    pairs = commands_of(page)
    assert len(pairs) >= 10
    for command, lines in pairs:
        assert command.startswith("kvplan ")
        result = subprocess.run(
            execute_line() + command.removeprefix("kvplan"),
            shell=True,
            capture_output=True,
            text=True,
            check=False,
            **surroundings(cwd=tmp_path),
        )
        assert result.returncode in (0, 1), (command, result.stderr)
        printed = [line.rstrip() for line in (result.stdout + result.stderr).splitlines()]
        assert matches([line for line in printed if line], [line for line in lines if line]), (
            command,
            printed,
        )


def matches(printed, documented):
    """Line by line; a line ``...`` stands for any number of lines."""
    pattern = "".join(
        r"(?:.*\n)*" if line == "..." else re.escape(line) + r"\n" for line in documented
    )
    return re.fullmatch(pattern, "".join(line + "\n" for line in printed)) is not None


def test_matching_can_fail():
    assert matches(["a", "b"], ["a", "b"])
    assert matches(["a", "b", "c"], ["a", "..."])
    assert not matches(["a", "b"], ["a"])
    assert not matches(["a"], ["b"])
