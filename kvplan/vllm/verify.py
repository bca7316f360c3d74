"""Planning with both: kvplan's result beside vLLM's, field by field."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Callable
from typing import Any

from kvplan.vllm import report


def difference(ours: Any, theirs: Any, where: str = "result") -> str | None:
    """The first place where the two differ, in types too; None if they are equal."""
    if ours is theirs:
        return None
    if type(ours) is not type(theirs):
        return f"{where}: {type(ours).__name__} {ours!r}, vLLM: {type(theirs).__name__} {theirs!r}"
    if dataclasses.is_dataclass(ours):
        for field in dataclasses.fields(ours):
            found = difference(
                getattr(ours, field.name, None),
                getattr(theirs, field.name, None),
                f"{where}.{field.name}",
            )
            if found is not None:
                return found
        return None
    if isinstance(ours, (list, tuple)):
        if len(ours) != len(theirs):
            return f"{where}: {len(ours)} entries, vLLM: {len(theirs)}"
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            found = difference(a, b, f"{where}[{i}]")
            if found is not None:
                return found
        return None
    if isinstance(ours, dict):
        if list(ours) != list(theirs):
            return f"{where}: keys {list(ours)}, vLLM: {list(theirs)}"
        for key in ours:
            found = difference(ours[key], theirs[key], f"{where}[{key!r}]")
            if found is not None:
                return found
        return None
    return None if ours == theirs else f"{where}: {ours!r}, vLLM: {theirs!r}"


def compared(
    function: str, ours: Any, stock: Callable[[], Any], describe: Callable[[], str] | None
) -> Any:
    """What ``stock`` returns or raises; that kvplan's result differs is one error line."""
    try:
        expected = stock()
    except Exception as error:
        report.verified(equal=False)
        _log_mismatch(function, f"vLLM raises {type(error).__name__}: {error}", describe)
        raise
    found = difference(ours, expected)
    report.verified(equal=found is None)
    if found is None:
        report.native(function)
    else:
        _log_mismatch(function, found, describe)
        report.fallback(f"{function} differs from vLLM's", level=None)
    return expected


def _log_mismatch(function: str, difference: str, describe: Callable[[], str] | None) -> None:
    """Names the difference and the file with the input."""
    report.logger.error(
        "kvplan's %s differs from vLLM's, whose result is used. Please report this: %s. %s",
        function,
        difference,
        _reproducer(describe),
    )


def _reproducer(describe: Callable[[], str] | None) -> str:
    if describe is None:
        return "The input is that of the next planning step."
    try:
        text = describe()
        handle, path = tempfile.mkstemp(prefix="kvplan-mismatch-", suffix=".json")
        with os.fdopen(handle, "w") as file:
            file.write(text)
    except Exception as error:
        return f"The input could not be written: {type(error).__name__}: {error}"
    return f"The input is in {path}; replay it with: kvplan plan --request {path}"
