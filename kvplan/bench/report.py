"""Figures of a run, as JSON and back, and beside those of an earlier run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line: the same work on several sides.

    Attributes:
        work: Of `kvplan.bench.WORKS`.
        name: The scenario or the operation.
        workers: Workers of the engine; none for a block pool.
        layers: Caches over all stages; none for a block pool.
        per: What one figure is of: "plan", "worker", "pool", "block" or "request".
        seconds: CPU seconds by side.
        peak_bytes: What inputs and plan add to a fresh process by side, where that was measured.
    """

    work: str
    name: str
    per: str
    seconds: dict[str, float]
    workers: int | None = None
    layers: int | None = None
    peak_bytes: dict[str, int] = {}

    @property
    def figures(self) -> Mapping[str, float]:
        """What is compared with another run: seconds, or bytes where no time was measured."""
        return self.seconds or self.peak_bytes

    @property
    def key(self) -> tuple[str, str, int | None]:
        """What makes two rows of two runs the same work."""
        return self.work, self.name, self.workers


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A run: the machine, what was left out and why, and the rows."""

    kvplan_bench: Literal[1] = 1
    machine: dict[str, str]
    notes: list[str]
    rows: list[Row]

    def dumps(self) -> str:
        """JSON, one line a row."""
        fields = msgspec.to_builtins(self)
        rows = ",\n    ".join(msgspec.json.encode(row).decode() for row in fields.pop("rows"))
        head = msgspec.json.format(msgspec.json.encode(fields), indent=2).decode()
        return f'{head[:-2]},\n  "rows": [\n    {rows}\n  ]\n}}\n'


def load(path: str | os.PathLike[str]) -> Report:
    """Read a file that `Report.dumps` wrote. Raises `ValueError` that names the file."""
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=Report)
    except (msgspec.DecodeError, UnicodeError) as e:
        raise ValueError(f"{os.fspath(path)} is no result of 'kvplan bench --json': {e}") from e


def ratios(new: Report, old: Report) -> list[tuple[Row, dict[str, float]]]:
    """Rows of both runs with the old figure over the new one by side: above 1 is better now.

    A figure is seconds, or of a row without times the bytes at its peak.
    """
    before = {row.key: row.figures for row in old.rows}
    found = []
    for row in new.rows:
        past = before.get(row.key, {})
        common = {
            side: past[side] / figure
            for side, figure in row.figures.items()
            if side in past and figure > 0
        }
        if common:
            found.append((row, common))
    return found
