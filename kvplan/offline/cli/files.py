"""What a file is, told by its first bytes, and a built-in model that hides a file of its name."""

from __future__ import annotations

import re
from pathlib import Path

from kvplan.offline.cli.failures import BadInput, say_on_stderr

#: Bytes in which every kind shows itself.
_HEAD = 1 << 14
#: Whatever a container runtime or a terminal has put in front of it.
_LOG_LINE = re.compile(rb"\b(INFO|WARNING|ERROR|DEBUG) \d\d-\d\d \d\d:\d\d:\d\d ")

#: Of each kind: what it is called, and what takes it.
KINDS = {
    "plan": ("a plan", "'kvplan check' takes it"),
    "request": ("a recorded request", "use --request {path}"),
    "bench": ("a result of 'kvplan bench'", "'kvplan bench --compare' takes it"),
    "model": ("a model's config", "give it as MODEL"),
    "log": ("a log of vLLM", "'kvplan log {path}' explains it"),
}


def file_kind(path: Path) -> str | None:
    """One of `KINDS`, or None for a file that is none of these or cannot be read.

    A pipe is none of them: what is read here would be gone for its reader.
    """
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return None
    for kind in ("plan", "request", "bench"):
        if f'"kvplan_{kind}"'.encode() in head:
            return kind
    if head.lstrip()[:1] == b"{" and (b'"architectures"' in head or b'"model_type"' in head):
        return "model"
    return "log" if _LOG_LINE.search(head) else None


def refuse_other_kind(path: str | Path, wanted: str) -> None:
    """Refuse a file of another kind than the one wanted. Raises `BadInput`, which says its use."""
    kind = file_kind(Path(path))
    if kind is not None and kind != wanted:
        what, use = KINDS[kind]
        raise BadInput(f"{path} is {what}, not {KINDS[wanted][0]}: {use.format(path=path)}")


def warn_if_shadowed(model: str) -> None:
    """Say on stderr which of the two is taken, and how the other is named."""
    from kvplan.offline.models import builtin_models

    if model in builtin_models() and Path(model).exists():
        say_on_stderr(
            f"kvplan: warning: {model} is taken for the built-in model; to plan the file or "
            f"directory of this name, write ./{model}"
        )
