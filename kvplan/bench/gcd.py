"""The search for an approximate greatest common divisor, where vLLM's tries every divisor."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from kvplan import planning
from kvplan.bench.measure import take_turns
from kvplan.bench.report import Row

if TYPE_CHECKING:
    from kvplan.bench.vllm_sides import Sides

EXPONENTS = range(2, 10)
#: A call of vLLM's takes over ten seconds beyond.
LARGEST_FOR_VLLM = 10**7


def values_near(largest: int) -> list[int]:
    """Three values within a third of the largest one, which is among them."""
    rng = random.Random(largest)
    return [largest, *(rng.randint(2 * largest // 3, largest) for _ in range(2))]


def gcd_row(exponent: int, sides: Sides | None, budget_s: float) -> Row:
    """Three values of which the largest is a power of ten."""
    values = values_near(10**exponent)
    calls: dict[str, Callable[[], Any]] = {}
    if sides is not None and values[0] <= LARGEST_FOR_VLLM and sides.approximate_gcd is not None:
        calls["vllm"] = partial(sides.approximate_gcd, values)
    calls["native"] = partial(planning._approximate_gcd, values)
    if "vllm" in calls and calls["vllm"]() != calls["native"]():
        raise AssertionError(f"the divisors of {values} differ")
    seconds = take_turns(calls, budget_s)
    return Row(work="gcd", name=f"10^{exponent}", per="search", seconds=seconds)
