"""Layer names in few words: ``0-47``, ``5-59 by 6``, ``0, 1, 7``."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NUMBER = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")
_MAX_RUNS = 4


def layer_ranges(names: Iterable[str]) -> str:
    """The numbers of the layers; "" if a name has none."""
    numbers = []
    for name in names:
        match = _NUMBER.search(name)
        if match is None:
            return ""
        numbers.append(int(match.group(1)))
    return number_ranges(sorted(set(numbers)))


def number_ranges(numbers: list[int]) -> str:
    """Sorted numbers as runs of equal steps, the tail cut off where there are many."""
    runs: list[str] = []
    start = 0
    while start < len(numbers):
        end = start + 1
        step = numbers[end] - numbers[start] if end < len(numbers) else 1
        while end + 1 < len(numbers) and numbers[end + 1] - numbers[end] == step:
            end += 1
        end = min(end, len(numbers) - 1)
        if end - start >= 2 or (end - start == 1 and step == 1):
            runs.append(f"{numbers[start]}-{numbers[end]}" + (f" by {step}" if step > 1 else ""))
            start = end + 1
        else:
            runs.append(str(numbers[start]))
            start += 1
    if len(runs) > _MAX_RUNS:
        runs = [*runs[: _MAX_RUNS - 1], "..."]
    return ", ".join(runs)
