"""Rows into a CSV, JSON or JSON Lines file, so that those written so far are always whole."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TextIO

from kvplan.cli.failures import BadInput

SUFFIXES = (".csv", ".json", ".jsonl")


class RowWriter:
    """Writes rows of named columns to a file or stdout; a context manager."""

    def __init__(self, path: Path | None, columns: Sequence[str]) -> None:
        """``path`` None is CSV on stdout. Raises BadInput for a suffix it does not know."""
        suffix = ".csv" if path is None else path.suffix.lower()
        if suffix not in SUFFIXES:
            raise BadInput(f"{path}: the file's name must end in {', '.join(SUFFIXES)}")
        self._columns = columns
        self._file: TextIO = sys.stdout if path is None else path.open("w", newline="")
        self._is_own = path is not None
        self._suffix = suffix
        self.count = 0

    def __enter__(self) -> RowWriter:
        if self._suffix == ".csv":
            csv.writer(self._file).writerow(self._columns)
        elif self._suffix == ".json":
            self._file.write("[")
        return self

    def __exit__(self, *_: object) -> None:
        if self._suffix == ".json":
            self._file.write("\n]\n")
        self._file.flush()
        if self._is_own:
            self._file.close()

    def write(self, rows: Iterable[Sequence[Any]]) -> None:
        """Append rows, and have them on disk before returning."""
        rows = list(rows)
        if self._suffix == ".csv":
            csv.writer(self._file).writerows([_text(value) for value in row] for row in rows)
        else:
            for number, row in enumerate(rows, self.count):
                text = json.dumps(dict(zip(self._columns, row, strict=True)))
                if self._suffix == ".json":
                    text = ("," if number else "") + "\n  " + text
                self._file.write(text if self._suffix == ".json" else text + "\n")
        self.count += len(rows)
        self._file.flush()


def _text(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value
