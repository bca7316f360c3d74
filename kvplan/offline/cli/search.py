"""The largest number for which something holds, found by halving."""

from __future__ import annotations

from collections.abc import Callable


def largest(low: int, high: int, holds: Callable[[int], bool]) -> int | None:
    """The largest n in low..high with holds(n), which must hold below it; None if not even low."""
    if low > high or not holds(low):
        return None
    if holds(high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low
