"""Where tables go: colours only on a terminal and without ``NO_COLOR``."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console

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
