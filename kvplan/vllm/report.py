"""What the drop-in did in this process, and its log lines."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

# Below vLLM's own logger, so that a server's log shows the lines in its format.
logger = logging.getLogger("vllm.kvplan")

_native: Counter[str] = Counter()
_errors: Counter[str] = Counter()
_fallback: Counter[str] = Counter()
_comparisons: Counter[str] = Counter()
_cache_manager: Counter[str] = Counter()
_logged: set[tuple[int, str]] = set()


def once(level: int, message: str) -> None:
    """Log a message the first time it comes up in this process."""
    if (level, message) not in _logged:
        _logged.add((level, message))
        logger.log(level, "%s", message)


def native(function: str) -> None:
    """Count an answer of kvplan."""
    _native[function] += 1


def error(function: str) -> None:
    """Count an error of vLLM's function, which is the outcome of the call."""
    _errors[function] += 1


def fallback(reason: str, level: int | None = logging.WARNING) -> None:
    """Count an answer of vLLM instead; logged once for each reason unless ``level`` is None."""
    _fallback[reason] += 1
    if level is not None:
        once(level, f"kvplan steps aside, vLLM plans the KV cache itself: {reason}")


def verified(equal: bool) -> None:
    """Count a comparison."""
    _comparisons["verified"] += 1
    if not equal:
        _comparisons["mismatches"] += 1


def cache_manager(what: str) -> None:
    """Count a KV cache manager by whose it is and why, or a comparison of two."""
    _cache_manager[what] += 1


def stats() -> dict[str, Any]:
    """See :func:`kvplan.vllm.stats`."""
    return {
        "native": dict(_native),
        "fallback": dict(_fallback),
        "errors": dict(_errors),
        "verified": _comparisons["verified"],
        "mismatches": _comparisons["mismatches"],
        "cache_manager": dict(_cache_manager),
    }


def reset() -> None:
    """Forget all counts and which messages were logged."""
    for counter in (_native, _errors, _fallback, _comparisons, _cache_manager):
        counter.clear()
    _logged.clear()
