"""Where tables go: colours only on a terminal and without ``NO_COLOR``."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

#: Columns of a table that goes to a file or a pipe.
PIPE_WIDTH = 110


def make_console(*, stderr: bool = False) -> Console:
    """A console on the present stdout, or on stderr.

    On a pipe the width is fixed, so that the same plan is the same text everywhere; ``COLUMNS``
    changes it.
    """
    from rich.console import Console

    file = sys.stderr if stderr else sys.stdout
    width = None if file.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH
    return Console(file=file, width=width, highlight=False, emoji=False, soft_wrap=False)
