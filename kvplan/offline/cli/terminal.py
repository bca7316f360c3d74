"""Where answers go: tables that never cut a value short, colours on a terminal only, progress."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO, cast

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

#: Columns of a table that goes to a file or a pipe.
PIPE_WIDTH = 110

_TRAILING = re.compile(r" +$", re.M)


class _WithoutTrailingBlanks:
    """A stream that is no terminal; rich fills every line of a table to its full width."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write lines without the blanks at their ends."""
        return self._stream.write(_TRAILING.sub("", text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def make_console(*, stderr: bool = False) -> Console:
    """A console on the present stdout, or on stderr.

    On a pipe the width is fixed, so that the same plan is the same text everywhere; ``COLUMNS``
    changes it.
    """
    from rich.console import Console

    file = sys.stderr if stderr else sys.stdout
    width = None if file.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH
    if not file.isatty():
        file = cast("TextIO", _WithoutTrailingBlanks(file))
    return Console(file=file, width=width, highlight=False, emoji=False, soft_wrap=False)


def print_json(answer: Any) -> None:
    """What ``--json`` prints."""
    click.echo(json.dumps(answer, indent=2))


def named_lines(lines: Iterable[tuple[str, str]]) -> Table:
    """Sentences, each with its name in bold at the left."""
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in lines:
        grid.add_row(name, text)
    return grid


#: Columns between two cells, in the order in which they are tried.
_GAPS = (3, 2, 1)
#: Longer words of headers are broken as the last resort.
_LONGEST_WORD = 14


@dataclass(frozen=True)
class Column:
    """One column: numbers keep their width, words and headers wrap.

    Attributes:
        header: What stands above it.
        words: Whether it holds words, not numbers.
        right: Whether words stand at the right, as numbers do.
    """

    header: str
    words: bool = False
    right: bool = False


@dataclass
class FittingTable:
    """Rows of text under columns, printed in the width that there is.

    Where it is too narrow, words wrap first, then headers, then the gaps shrink, then the columns
    at both edges go. What is too wide even so is printed row by row, each value with its header.
    """

    columns: Sequence[Column]
    rows: list[Sequence[str]] = field(default_factory=list)
    styles: list[str] = field(default_factory=list)
    sections: set[int] = field(default_factory=set)

    def add_row(self, *cells: str, style: str = "") -> None:
        """A row of as many cells as there are columns."""
        self.rows.append(cells)
        self.styles.append(style)

    def add_section(self) -> None:
        """A gap before the next row."""
        self.sections.add(len(self.rows))

    def fits(self, width: int) -> bool:
        """Whether nothing of it is wider than this many columns."""
        return self._layout(width)[0] <= width

    def print(self, console: Console) -> None:
        """Print it."""
        needed, headers, widths, gap = self._layout(console.width)
        if needed - 2 > console.width:
            self._print_rows(console)
        else:
            console.print(self._table(headers, widths, gap, has_edges=needed <= console.width))

    def _print_rows(self, console: Console) -> None:
        for i, row in enumerate(self.rows):
            cells = zip((column.header for column in self.columns), row, strict=True)
            words = ", ".join(f"{header} {cell}".strip() for header, cell in cells if cell)
            if i in self.sections:
                console.print()
            console.print(words, markup=False, highlight=False)
        console.print()

    def _layout(self, available: int) -> tuple[int, list[str], list[int], int]:
        """Columns needed, headers, widths and the gap: the widest gap that fits, or the least."""
        for gap in _GAPS:
            headers = [c.header if gap == _GAPS[0] else _broken(c.header) for c in self.columns]
            widths = self._widths(headers, gap, available)
            needed = sum(widths) + gap * (len(widths) - 1) + 2  # with a column at both edges
            if needed <= available:
                break
        return needed, headers, widths, gap

    def _widths(self, headers: Sequence[str], gap: int, available: int) -> list[int]:
        """Characters of each column: as many as it needs, and as many of the rest as it likes."""
        natural, least = [], []
        longest = _LONGEST_WORD if gap == _GAPS[-1] else available
        for i, column in enumerate(self.columns):
            cells = [row[i] for row in self.rows]
            values = max(map(_width, cells), default=0)
            natural.append(max(values, _width(headers[i])))
            header = min(_longest_word([headers[i]]), longest)
            if column.words:
                values = _longest_word(cells)
            least.append(max(header, values))
        spare = available - gap * (len(natural) - 1) - 2 - sum(least)
        for i in range(len(least)):
            more = max(0, min(spare, natural[i] - least[i]))
            least[i] += more
            spare -= more
        return least

    def _table(
        self, headers: Sequence[str], widths: Sequence[int], gap: int, *, has_edges: bool
    ) -> Table:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        # One column between two cells is the box's own.
        right, left = gap // 2, (gap - 1) // 2
        table = Table(
            box=SIMPLE_HEAD,
            pad_edge=False,
            show_edge=has_edges,
            header_style="bold",
            padding=(0, right, 0, left),
        )
        for column, header, width in zip(self.columns, headers, widths, strict=True):
            table.add_column(
                Text(header),
                justify="left" if column.words and not column.right else "right",
                vertical="top",
                overflow="fold",
                width=width,
            )
        for i, (row, style) in enumerate(zip(self.rows, self.styles, strict=True)):
            if i in self.sections:
                table.add_section()
            table.add_row(*map(Text, row), style=style)
        return table


def _longest_word(texts: Sequence[str]) -> int:
    return max((len(word) for text in texts for word in text.split()), default=0)


def _width(cell: str) -> int:
    return max(map(len, cell.split("\n")))


def _broken(header: str) -> str:
    """A header of several lines: one a word."""
    return re.sub(r"(?<=[_/])(?=\w)", "\n", header).replace(" ", "\n")


class ProgressBar:
    """A context manager that gives the function to report what is done with."""

    def __init__(self, total: int, *, hidden: bool, of: str = "plans") -> None:
        self._bar: Any = None
        if hidden or not sys.stderr.isatty():
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

        self._bar = Progress(
            of,
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task(of, total=total)

    def __enter__(self) -> Callable[[int], None]:
        if self._bar is None:
            return lambda done: None
        self._bar.start()
        return lambda done: self._bar.advance(self._task, done)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
