"""How many requests a second a plan serves in time: goodput under limits on latency.

A request is served in time where its first token and the mean time of a further one keep their
limits, as vLLM's ``bench serve --goodput`` and DistServe (OSDI 2024) count it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kvplan.offline.replay.run import Report

__all__ = ["MOST_RATE", "Limits", "highest_rate"]

#: A rate is found to this factor.
PRECISION = 1.01
#: Rates that are tried, requests a second.
LEAST_RATE, MOST_RATE = 2.0**-14, 2.0**14


@dataclass(frozen=True)
class Limits:
    """What each of most requests must keep.

    Attributes:
        first_token: Seconds from arrival to the first token.
        token_time: Seconds a further token, in the mean of the request.
        share: Share of the requests that must.
    """

    first_token: float = 2.0
    token_time: float = 0.1
    share: float = 0.9

    def in_time(self, report: Report) -> float:
        """Share of the requests that finish in time."""
        outcome: dict[str, Any] = report.requests
        first = outcome["first_token"] - report.trace.arrivals
        further = np.maximum(report.trace.output_tokens - 1, 1)
        each = (outcome["finished"] - outcome["first_token"]) / further
        kept = report.finished & (first <= self.first_token) & (each <= self.token_time)
        return float(kept.mean()) if len(kept) else 0.0

    def most_late(self, requests: int) -> int:
        """Of so many requests, those that may be late."""
        return math.ceil(requests * (1 - self.share))

    def kept(self, report: Report) -> bool:
        """Whether enough of the requests do."""
        return self.in_time(report) >= self.share

    def to_dict(self) -> dict[str, float | None]:
        """As plain data for JSON; None where there is no limit."""
        return {name: n if math.isfinite(n) else None for name, n in asdict(self).items()}

    @property
    def words(self) -> str:
        """The limits as a phrase."""
        limits = (
            (self.first_token, f"{self.first_token:g} s to the first token"),
            (self.token_time, f"{self.token_time * 1e3:g} ms a further one"),
        )
        given = " and ".join(words for seconds, words in limits if math.isfinite(seconds))
        return f"{self.share:.0%} of the requests within {given}"


def highest_rate(keeps: Callable[[float], bool], start: float) -> float:
    """The highest rate that keeps the limits, to one percent, by doubling and bisection.

    Args:
        keeps: Whether a rate, in requests a second, does.
        start: Where to begin.

    Returns:
        Requests a second; 0 where none does, `MOST_RATE` where all do.
    """
    low = high = start
    if keeps(start):
        while keeps(high := low * 2):
            low = high
            if low >= MOST_RATE:
                return MOST_RATE
    else:
        while not keeps(low := high / 2):
            high = low
            if low <= LEAST_RATE:
                return 0.0
    while high > low * PRECISION:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low
