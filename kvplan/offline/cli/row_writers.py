"""Rows into a CSV, JSON, JSON Lines or Parquet file, whole however the writing ends."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO, TypeVar

from kvplan.offline.cli.failures import BadInput

Row = Sequence[Any]
_T = TypeVar("_T")


class RowWriter:
    """Writes rows of named columns to a file or stdout; a context manager."""

    def __init__(self, path: Path | None, columns: Mapping[str, type]) -> None:
        """``path`` None is CSV on stdout. Raises BadInput for a suffix it does not know.

        Args:
            path: The file.
            columns: The type of each column: str, bool, int or float, any of which can be None.
        """
        suffix = ".csv" if path is None else path.suffix.lower()
        if suffix not in FORMATS:
            raise BadInput(f"{path}: the file's name must end in {', '.join(FORMATS)}")
        self._format = FORMATS[suffix](path, columns)
        self.count = 0

    def __enter__(self) -> RowWriter:
        self._format.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._format.end()

    def write(self, rows: Sequence[Row]) -> None:
        """Append rows; text formats have them on disk before this returns."""
        self._format.write(rows)
        self.count += len(rows)


class _Csv:
    """A header, then a row a line. What is None is empty."""

    def __init__(self, path: Path | None, columns: Mapping[str, type]) -> None:
        self.columns = list(columns)
        self.file: TextIO = sys.stdout if path is None else path.open("w", newline="")
        self._is_own = path is not None

    def begin(self) -> None:
        csv.writer(self.file).writerow(self.columns)

    def write(self, rows: Sequence[Row]) -> None:
        csv.writer(self.file).writerows([_text(value) for value in row] for row in rows)
        self.file.flush()

    def end(self) -> None:
        self.file.flush()
        if self._is_own:
            self.file.close()


class _JsonLines(_Csv):
    """An object a line."""

    def begin(self) -> None:
        return

    def write(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self.file.write(json.dumps(dict(zip(self.columns, row, strict=True))) + "\n")
        self.file.flush()


class _Json(_Csv):
    """A list of objects."""

    _separator = "\n  "

    def begin(self) -> None:
        self.file.write("[")

    def write(self, rows: Sequence[Row]) -> None:
        for row in rows:
            text = json.dumps(dict(zip(self.columns, row, strict=True)))
            self.file.write(self._separator + text)
            self._separator = ",\n  "
        self.file.flush()

    def end(self) -> None:
        self.file.write("\n]\n")
        super().end()


def _pyarrow(path: Path) -> Any:
    """The package. Raises BadInput where it is not."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise BadInput(
            f"{path}: a .parquet needs the package pyarrow: pip install pyarrow; a "
            ".csv, .json or .jsonl needs nothing"
        ) from None
    return pyarrow


class _Parquet:
    """A Parquet file in row groups; it is whole once it is closed, also after an interruption."""

    #: Rows of a row group; smaller ones make files large and slow to read.
    ROW_GROUP = 1 << 16

    def __init__(self, path: Path, columns: Mapping[str, type]) -> None:
        pyarrow = _pyarrow(path)
        types = {
            str: pyarrow.string(),
            bool: pyarrow.bool_(),
            int: pyarrow.int64(),
            float: pyarrow.float64(),
        }
        self._table = pyarrow.table
        self._columns = columns
        self._schema = pyarrow.schema([(name, types[kind]) for name, kind in columns.items()])
        self._writer = pyarrow.parquet.ParquetWriter(path, self._schema)
        self._rows: list[Row] = []

    def begin(self) -> None:
        return

    def write(self, rows: Sequence[Row]) -> None:
        self._rows += rows
        if len(self._rows) >= self.ROW_GROUP:
            self._write_group()

    def end(self) -> None:
        if self._rows:
            self._write_group()
        self._writer.close()

    def _write_group(self) -> None:
        values = {
            name: [None if row[i] is None else kind(row[i]) for row in self._rows]
            for i, (name, kind) in enumerate(self._columns.items())
        }
        self._writer.write_table(self._table(values, schema=self._schema))
        self._rows = []


class ParquetParts:
    """A folder of Parquet files, one for each chunk of rows, that is whole at any time.

    A file appears under its name when it is complete, so whoever goes on later does only what is
    missing. What reads Parquet reads the folder as one table.
    """

    def __init__(self, path: Path, columns: Mapping[str, type], what: str) -> None:
        """Begin, or go on.

        Args:
            path: The folder; its name ends in .parquet.
            columns: As for `RowWriter`.
            what: Says what the rows are of; a folder of something else is refused.

        Raises:
            BadInput: It is a file, or holds something else.
        """
        if path.suffix.lower() != ".parquet" or path.is_file():
            raise BadInput(
                f"{path}: with --resume the output is a folder of Parquet files, whose name ends "
                "in .parquet; a file is written whole"
            )
        self._path, self._columns = path, columns
        self._pyarrow = _pyarrow(path)
        about = path / "_about.txt"
        if about.exists():
            if about.read_bytes() != what.encode():
                raise BadInput(f"{path} holds the rows of another sweep; give another --output")
        elif path.exists() and any(path.iterdir()):
            raise BadInput(
                f"{path} holds files and no _about.txt, so they are of no sweep; give another "
                "--output"
            )
        path.mkdir(exist_ok=True)
        about.write_bytes(what.encode())
        self._expected: deque[int] = deque()
        self.done = {
            int(part.stem.rpartition("-")[2])
            for part in path.glob("part-[0-9]*[0-9].parquet")
            if self._is_whole(part)
        }
        self.count = 0

    def __enter__(self) -> ParquetParts:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def _is_whole(self, part: Path) -> bool:
        """Whether it has its end, which a copy that broke off lacks; such a part is made again."""
        try:
            self._pyarrow.parquet.read_metadata(part)
        except (self._pyarrow.ArrowException, OSError):
            return False
        return True

    def missing(self, chunks: Iterable[_T]) -> Iterator[_T]:
        """The chunks whose rows are not here yet; `write` takes theirs in this order."""
        for number, chunk in enumerate(chunks):
            if number not in self.done:
                self._expected.append(number)
                yield chunk

    def write(self, rows: Sequence[Row]) -> None:
        """The rows of the next missing chunk."""
        name = f"part-{self._expected.popleft():06}.parquet"
        unfinished = self._path / f".{name}"
        part = _Parquet(unfinished, self._columns)
        part.write(rows)
        part.end()
        os.replace(unfinished, self._path / name)
        self.count += len(rows)


FORMATS: dict[str, Any] = {
    ".csv": _Csv,
    ".json": _Json,
    ".jsonl": _JsonLines,
    ".parquet": _Parquet,
}


def _text(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value
