"""One call of a planning function: kvplan's answer, or vLLM's own function."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from kvplan.vllm import installation, report, verify
from kvplan.vllm.installation import Installation
from kvplan.vllm.step_aside import StepAside


class Answer(NamedTuple):
    """A result, and what vLLM would log and write with it, if anything."""

    value: Any
    commit: Callable[[], None] | None = None
    verifiable: bool = True  # False where another plan than vLLM's was asked for


def call(
    installed: Installation,
    function: str,
    prepare: Callable[..., Answer],
    stock: Callable[..., Any],
    arguments: tuple[Any, ...],
    describe: Callable[[], str] | None = None,
) -> Any:
    """Answer with kvplan if it can, otherwise with whatever ``stock`` returns or raises.

    ``prepare``, which takes the installation first, changes nothing and logs nothing; ``commit`` of
    its answer does. ``describe`` gives the input of a call whose verification failed.
    """
    met = installed.subclasses.met
    if met:
        met.clear()
    try:
        reason = installed.guard.reason()
        if reason is not None:
            raise StepAside(reason)
        answer = prepare(installed, *arguments)
    except StepAside as aside:
        return _stock(function, stock, arguments, str(aside), aside.by_design)
    except Exception as error:
        return _stock(function, stock, arguments, f"{type(error).__name__}: {error}", False)
    if met and not answer.verifiable:
        names = ", ".join(sorted(cls.__qualname__ for cls in met))
        reason = f"with the KV cache spec class {names}, no other grouping than vLLM's is planned"
        return _stock(function, stock, arguments, reason, False)
    if answer.verifiable and (
        installed.verify or (met and installed.subclasses.on_trial(function))
    ):
        return _verified(installed, function, answer, stock, arguments, describe)
    if answer.commit is not None:
        answer.commit()
    report.native(function)
    return answer.value


def _stock(
    function: str,
    stock: Callable[..., Any],
    arguments: tuple[Any, ...],
    reason: str,
    by_design: bool,
) -> Any:
    """The outcome of vLLM. Where it fails as well, its error is all that anyone needs."""
    try:
        with installation.stock_mode():
            result = stock(*arguments)
    except Exception:
        report.error(function)
        raise
    report.fallback(reason, logging.INFO if by_design else logging.WARNING)
    return result


def _verified(
    installed: Installation,
    function: str,
    answer: Answer,
    stock: Callable[..., Any],
    arguments: tuple[Any, ...],
    describe: Callable[[], str] | None,
) -> Any:
    try:
        with installation.stock_mode():
            expected = stock(*arguments)
    except Exception as error:
        report.verified(equal=False)
        raised = f"vLLM raises {type(error).__name__}: {error}"
        if not _blamed_on_plugin(installed, function, raised):
            verify.log_mismatch(function, raised, describe)
        raise
    difference = verify.difference(answer.value, expected)
    report.verified(equal=difference is None)
    if difference is None:
        installed.subclasses.found_equal(function, installed.subclasses.met)
        report.native(function)
    elif not _blamed_on_plugin(installed, function, difference):
        verify.log_mismatch(function, difference, describe)
        report.fallback(f"{function} differs from vLLM's", level=None)
    return expected


def _blamed_on_plugin(installed: Installation, function: str, difference: str) -> bool:
    """Leaves the plugin classes of this call to vLLM from now on, if there are any."""
    met = installed.subclasses.met
    if met:
        report.fallback(installed.subclasses.found_different(function, met, difference))
    return bool(met)
