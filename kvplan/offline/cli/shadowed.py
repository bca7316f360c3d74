"""A built-in model that hides a file or directory of the same name."""

from __future__ import annotations

from pathlib import Path

from kvplan.offline.cli.failures import say_on_stderr


def warn_if_shadowed(model: str) -> None:
    """Say on stderr which of the two is taken, and how the other is named."""
    from kvplan.offline.models import builtin_models

    if model in builtin_models() and Path(model).exists():
        say_on_stderr(
            f"kvplan: warning: {model} is taken for the built-in model; to plan the file or "
            f"directory of this name, write ./{model}"
        )
