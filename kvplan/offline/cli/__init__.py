"""The command line: ``kvplan plan``, ``kvplan fit`` and the other commands of the offline tool.

Every command's module is imported only when the command runs, so that ``kvplan --help`` is quick.
"""

from __future__ import annotations


def main() -> None:
    """Run the command line and leave with its exit code: the ``kvplan`` script."""
    from kvplan.offline.cli.app import app

    app.main(prog_name="kvplan")
