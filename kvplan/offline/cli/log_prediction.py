"""The parts of a rank's memory that a log says, beside those that are predicted without it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kvplan.offline.budget.budget import Budget
from kvplan.offline.startup_log import MemorySum, Rank

_GIB = 2**30
#: Half of the last printed digit of a size.
_ROUNDING_GIB = 0.005
#: What a log's figures hold, by the names of a budget's parts.
_PARTS = {
    "weights": ("weights", "LoRA adapters"),
    "weights and non-torch": ("weights", "LoRA adapters", "runner's buffers", "non-torch"),
    "non-torch": ("non-torch",),
    "peak activation": ("peak activation",),
    "CUDA graphs (estimated)": ("CUDA graphs",),
}


@dataclass(frozen=True)
class Prediction:
    """One part, in GiB.

    Attributes:
        part: Its name.
        logged: What the log says.
        predicted: What is predicted.
        error: How far off that may be.
    """

    part: str
    logged: float
    predicted: float
    error: float

    @property
    def agrees(self) -> bool:
        """Whether the logged figure is within the error."""
        return abs(self.logged - self.predicted) <= self.error + _ROUNDING_GIB


def predictions(rank: Rank, found: MemorySum, budgets: Sequence[Budget]) -> list[Prediction]:
    """The parts that both know, and the KV cache.

    Args:
        rank: The rank's figures.
        found: Its sum.
        budgets: What is predicted for each pipeline stage.
    """
    budget = budgets[min(_stage(rank.name), len(budgets) - 1)]
    by_name = {part.name: part for part in budget.parts}
    logged = dict(found.parts)
    if rank.weights is not None:
        logged.setdefault("weights", rank.weights)
    rows = []
    for name, of in _PARTS.items():
        parts = [by_name[part] for part in of if part in by_name]
        if name in logged and parts:
            size, error = sum(p.bytes for p in parts), sum(p.error for p in parts)
            rows.append(Prediction(name, logged[name], size / _GIB, error / _GIB))
    if rank.kv_cache is not None and not rank.kv_cache_given:
        size, error = budget.kv_cache_bytes, budget.error
        rows.append(Prediction("KV cache", rank.kv_cache, size / _GIB, error / _GIB))
    return rows


def _stage(name: str) -> int:
    match = re.search(r"(?:^|_)PP(\d+)", name)
    return int(match[1]) if match else 0
