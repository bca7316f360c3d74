"""The table of commands: where each lives, and its line in ``kvplan --help``.

A module ``kvplan.cli.<module>`` holds the click command ``command``.
"""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """One command: its module below ``kvplan.cli`` and its one-line help."""

    module: str
    summary: str


COMMANDS: dict[str, Entry] = {
    "plan": Entry("plan", "Plan a model's KV cache: does it fit, how much does it hold?"),
}
