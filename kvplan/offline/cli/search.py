"""The largest number for which something holds."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable


def largest(low: int, high: int, holds: Callable[[int], bool]) -> int | None:
    """The largest n in low..high with holds(n), which must hold below it; None if not even low."""
    found = bisect_left(range(low, high + 1), True, key=lambda n: not holds(n))
    return low + found - 1 if found else None
