"""Where tables go: colours only on a terminal and without ``NO_COLOR``."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

#: Columns of a table that goes to a file or a pipe.
PIPE_WIDTH = 110


def make_console() -> Console:
    """A console on the present stdout.

    On a pipe the width is fixed, so that the same plan is the same text everywhere; ``COLUMNS``
    changes it.
    """
    from rich.console import Console

    is_terminal = sys.stdout.isatty()
    width = None if is_terminal or "COLUMNS" in os.environ else PIPE_WIDTH
    return Console(file=sys.stdout, width=width, highlight=False, emoji=False, soft_wrap=False)
