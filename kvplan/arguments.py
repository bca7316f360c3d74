"""Checks of arguments that are numbers."""

from __future__ import annotations

import operator

from kvplan._core import InvalidArgument


def in_range(name: str, value: int, low: int, high: int) -> int:
    """``value``, if it is an integer in ``[low, high)``; InvalidArgument names it otherwise."""
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidArgument(f"{name}: needs an integer, got {value!r}") from None
    if isinstance(value, bool):
        raise InvalidArgument(f"{name}: needs an integer, got {value!r}")
    if not low <= number < high:
        raise InvalidArgument(f"{name}: {number} is out of range, needs to be in [{low}, {high})")
    return number
