"""Timing of calls side by side."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

Calls = Mapping[str, Callable[[], Any]]

#: A sample is at least this long, so that the clock's own cost and step do not count.
SAMPLE_S = 2e-4
FEWEST_SAMPLES, MOST_SAMPLES = 3, 200
LONG_S = 1.0


def take_turns(calls: Calls, budget_s: float) -> dict[str, float]:
    """CPU seconds of one warm call of each side: medians over samples taken in turn.

    CPU time, so that other work on the machine slows no side more than the other. A side whose
    share of `budget_s`, wall seconds in all, is used up leaves the round. Each has at least
    `FEWEST_SAMPLES`, or one where a call takes longer than `LONG_S`.
    """
    clock = time.process_time
    gc.collect()
    repeats, spent, samples, fewest = {}, {}, {}, {}
    for name, call in calls.items():
        begin = time.perf_counter()
        call()
        start = clock()
        call()
        once = clock() - start
        repeats[name] = max(1, int(SAMPLE_S / max(once, 1e-8)))
        samples[name] = [once] if repeats[name] == 1 else []
        fewest[name] = 1 if once > LONG_S else FEWEST_SAMPLES
        spent[name] = time.perf_counter() - begin
    share = budget_s / max(1, len(calls))
    active = dict(calls)
    while active:
        for name, call in list(active.items()):
            taken = len(samples[name])
            if taken >= MOST_SAMPLES or (taken >= fewest[name] and spent[name] >= share):
                del active[name]
                continue
            begin, start = time.perf_counter(), clock()
            for _ in range(repeats[name]):
                call()
            samples[name].append((clock() - start) / repeats[name])
            spent[name] += time.perf_counter() - begin
    return {name: statistics.median(values) for name, values in samples.items()}


def show_seconds(seconds: float | None) -> str:
    """With a unit that keeps three digits; "-" for none."""
    if seconds is None:
        return "-"
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "us")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def show_ratio(slow: float | None, fast: float | None) -> str:
    """How many times as long, with two digits below ten; "-" where one was not measured."""
    if slow is None or fast is None or fast <= 0:
        return "-"
    ratio = slow / fast
    return f"{ratio:.1f}x" if ratio < 10 else f"{ratio:,.0f}x"
