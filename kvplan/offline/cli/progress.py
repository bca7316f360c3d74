"""A progress bar on stderr, where that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


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
