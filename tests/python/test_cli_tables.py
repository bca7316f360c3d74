"""Tables on narrow terminals: nothing is cut short."""

import re
from collections import Counter

import pytest
from cli_runner import execute

COMMANDS = (
    ("plan", "deepseek-v4.1-flash", "--tp", "4", "--memory", "4GiB", "--grouping", "sliced"),
    ("plan", "gemma-3-27b", "--memory", "30GiB"),
    ("frontier", "deepseek-v4.1-flash", "--tp", "4", "--memory", "4GiB"),
    ("diff", "gemma-3-27b", "--kv-cache-dtype fp8", "--memory", "30GiB"),
    ("explain", "gemma-3-27b", "--memory", "30GiB"),
    ("models",),
)


def numbers(text):
    return Counter(re.findall(r"\d[\d,.]*\d%?", text))


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_number_is_whole_at_every_width(command):
    wide = execute(*command, env={"COLUMNS": "200"}).stdout
    assert numbers(wide)
    for width in (40, 60, 80, 100):
        narrow = execute(*command, env={"COLUMNS": str(width)}).stdout
        assert "…" not in narrow
        # Row by row, headers come again.
        assert numbers(narrow) >= numbers(wide)
        assert width < 60 or max(map(len, narrow.splitlines())) <= width


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_80_columns_are_enough(command):
    lines = execute(*command, env={"COLUMNS": "80"}).stdout.splitlines()
    assert max(map(len, lines)) <= 80
