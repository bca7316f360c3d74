"""One call of a planning function: kvplan's answer, or vLLM's own function."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from kvplan.vllm import installation, report, verify
from kvplan.vllm.installation import Installation


class Answer(NamedTuple):
    """A result, and what vLLM would log and write with it."""

    value: Any
    commit: Callable[[], None]
    verifiable: bool = True  # False where another plan than vLLM's was asked for


class StepAside(Exception):
    """vLLM's own function must run; the message says why."""

    def __init__(self, reason: str, *, by_design: bool = False):
        """``by_design``: nothing to warn of."""
        super().__init__(reason)
        self.by_design = by_design


def call(
    installed: Installation,
    function: str,
    prepare: Callable[[], Answer],
    stock: Callable[[], Any],
    describe: Callable[[], str] | None = None,
) -> Any:
    """Answer with kvplan if it can, otherwise with whatever ``stock`` returns or raises.

    ``prepare`` changes nothing and logs nothing; ``commit`` of its answer does. ``describe`` gives
    the input of a call whose verification failed.
    """
    try:
        reason = installed.guard.reason()
        if reason is not None:
            raise StepAside(reason)
        answer = prepare()
    except StepAside as aside:
        return _stock(function, stock, str(aside), aside.by_design)
    except Exception as error:
        return _stock(function, stock, f"{type(error).__name__}: {error}", False)
    if installed.verify and answer.verifiable:
        return _verified(function, answer, stock, describe)
    answer.commit()
    report.native(function)
    return answer.value


def _stock(function: str, stock: Callable[[], Any], reason: str, by_design: bool) -> Any:
    """The outcome of vLLM. Where it fails as well, its error is all that anyone needs."""
    try:
        with installation.stock_mode():
            result = stock()
    except Exception:
        report.error(function)
        raise
    report.fallback(reason, logging.INFO if by_design else logging.WARNING)
    return result


def _verified(
    function: str, answer: Answer, stock: Callable[[], Any], describe: Callable[[], str] | None
) -> Any:
    try:
        with installation.stock_mode():
            expected = stock()
    except Exception as error:
        report.verified(equal=False)
        verify.log_mismatch(function, f"vLLM raises {type(error).__name__}: {error}", describe)
        raise
    difference = verify.difference(answer.value, expected)
    report.verified(equal=difference is None)
    if difference is not None:
        verify.log_mismatch(function, difference, describe)
        report.fallback(f"{function} differs from vLLM's", level=None)
    else:
        report.native(function)
    return expected
