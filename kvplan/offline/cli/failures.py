"""Exit codes, and every error as one clear paragraph on stderr."""

from __future__ import annotations

import difflib
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterable
from typing import TextIO

import click

from kvplan import NotEnoughMemory, PlanningError

FITS = 0
DOES_NOT_FIT = 1
BAD_INPUT = 2
INTERNAL_ERROR = 3
INTERRUPTED = 130
BROKEN_PIPE = 141


class BadInput(click.ClickException):
    """What the user gave cannot be used; the message names the value and what would be right."""

    exit_code = BAD_INPUT


class ReaderGone(Exception):
    """Writing failed since nobody reads; click would leave with 1 for a BrokenPipeError."""


class DoesNotFit(click.ClickException, PlanningError):
    """It is clear before planning that nothing fits."""

    exit_code = DOES_NOT_FIT


def report_failure(error: Exception) -> int:
    """Print what went wrong and return the exit code.

    With ``KVPLAN_TRACEBACK=1`` the traceback comes too.
    """
    if os.environ.get("KVPLAN_TRACEBACK") == "1":
        import traceback

        traceback.print_exception(error)
    if isinstance(error, (BrokenPipeError, ReaderGone)):
        # The reader went away, e.g. `| head`. Keep the interpreter's final flush quiet, too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    message, code = _describe(error)
    say_on_stderr(f"kvplan: {message}")
    return code


def counted(number: int, thing: str) -> str:
    """A number of things: ``1 group``, ``7 groups``."""
    return f"{number:,} {thing}" + ("s" if number != 1 else "")


def say_on_stderr(text: str) -> None:
    """Print a message; on a terminal, broken between words."""
    click.echo(wrap_for_terminal(text, sys.stderr), err=True)


def wrap_for_terminal(text: str, stream: TextIO | None = None) -> str:
    """A text for stdout or another stream: on a terminal, broken between words."""
    if not (stream or sys.stdout).isatty():
        return text
    return wrapped(text, shutil.get_terminal_size().columns)


def wrapped(text: str, width: int) -> str:
    """Each line broken between words; what follows an indented line is indented further."""
    return "\n".join(
        textwrap.fill(
            line,
            width,
            subsequent_indent="    " if line.startswith(" ") else "",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in text.split("\n")
    )


def does_not_fit(label: str, reason: object) -> str:
    """The one wording of it: what does not fit, and why."""
    if isinstance(reason, NotEnoughMemory):
        reason = _shortage(reason)
    return f"{label} does not fit: {str(reason).strip()}"


def _shortage(error: NotEnoughMemory) -> str:
    """The reason in plain words; what it advises is tried elsewhere."""
    from kvplan.offline.cli.sizes import format_size

    needed, there = error.needed_bytes, error.available_bytes
    where = f"GPU {error.worker}" if error.worker >= 0 else "the memory"
    text = (
        f"a request of {error.max_model_len:,} tokens holds {format_size(needed)} of KV cache, and "
        f"{where} has room for {format_size(there)}, {format_size(needed - there)} too little. "
    )
    longest = error.estimated_max_len
    text += f"{longest:,} tokens would fit." if longest > 0 else "Not even one token fits."
    override = re.search(r"num_gpu_blocks_override=.*?(?=\. |\.?$)", str(error), re.S)
    return f"{text} {override[0]}." if override else text


def _describe(error: Exception) -> tuple[str, int]:
    if isinstance(error, click.Abort):
        return "interrupted", INTERRUPTED
    if isinstance(error, click.UsageError):
        return _usage(error), BAD_INPUT
    if isinstance(error, click.ClickException):
        return error.format_message(), error.exit_code
    if isinstance(error, (PlanningError, ValueError, AssertionError)):
        return str(error).strip() or type(error).__name__, BAD_INPUT
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}", BAD_INPUT
    if isinstance(error, MemoryError):
        return "the input is too large: this machine's memory does not hold it", BAD_INPUT
    return (
        f"internal error, please report it: {type(error).__name__}: {error} "
        "(KVPLAN_TRACEBACK=1 shows where)",
        INTERNAL_ERROR,
    )


def _usage(error: click.UsageError) -> str:
    message = " ".join(error.format_message().split())
    message = message if message.endswith((".", "?", "!")) else message + "."
    if error.ctx is None:
        return message
    return f"{message} See '{error.ctx.command_path} --help'."


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """What to append to an error: a space and the nearest known name; empty if none is near."""
    by_lower = {k.lower(): k for k in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return f" Did you mean {by_lower[near[0]]}?" if near else ""


def refuse_unknown(what: str, names: Iterable[str], known: Collection[str]) -> None:
    """Refuse names that are not known, with the nearest one. Raises `BadInput`."""
    for name in names:
        if name not in known:
            raise BadInput(
                f"{what}: {name!r} is unknown.{did_you_mean(name, known)} Known: {', '.join(known)}"
            )
