"""What a start-up log says, as it says it: figures of every rank, the engine's, the refusal."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Rank:
    """The figures of one rank. Sizes in GiB as they are printed, durations in seconds.

    Attributes:
        name: ``TP0``, ``PP1_TP3``, ``rank 2``; empty where one process runs alone.
        weights: What "Model loading took".
        consumed: Weights and non-torch memory together, where vLLM does not part them.
        non_torch: Memory beside PyTorch's.
        activation: Peak activation, with the graphs' estimate in it where ``consumed`` is logged.
        graphs_estimated: CUDA graphs as estimated before the KV cache is sized.
        estimate_applies: Whether that estimate is taken off the KV cache, where the log says so.
        graphs: What capturing them took.
        free: Free memory when the engine started.
        total: The GPU's memory.
        utilization: ``gpu_memory_utilization``.
        requested: Memory that the engine may use.
        kv_cache: Memory for the KV cache.
        kv_cache_given: Whether ``kv_cache_memory_bytes`` gave it, so that nothing was measured.
        suggested_bytes: ``--kv-cache-memory`` that vLLM suggests to fit the requested memory.
        durations: Seconds by phase, as printed.
        times: Seconds since the year began, by what was logged then.
    """

    name: str
    weights: float | None = None
    consumed: float | None = None
    non_torch: float | None = None
    activation: float | None = None
    graphs_estimated: float | None = None
    estimate_applies: bool | None = None
    graphs: float | None = None
    free: float | None = None
    total: float | None = None
    utilization: float | None = None
    requested: float | None = None
    kv_cache: float | None = None
    kv_cache_given: bool = False
    suggested_bytes: int | None = None
    durations: dict[str, float] = field(default_factory=dict)
    times: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Refusal:
    """Why a start failed.

    Attributes:
        kind: ``length``, ``no memory``, ``utilization``, ``states``, ``out of memory``,
            ``context``, ``other``.
        numbers: What the message says, by name; sizes in GiB.
        message: vLLM's own words.
        line: The line of the log.
    """

    kind: str
    numbers: Mapping[str, float]
    message: str
    line: int


@dataclass
class Start:
    """One start of an engine.

    Attributes:
        version: vLLM's.
        arguments: "non-default args", by vLLM's names.
        config: The engine's configuration as it is printed.
        ranks: By name.
        device: ``GPU``, or another device whose KV cache the log speaks of.
        gpu_name: The GPU's name, where an environment report is in the log.
        capacity_tokens: "GPU KV cache size".
        max_model_len: Tokens per request that the concurrency is for.
        max_concurrency: "Maximum concurrency".
        fitted_len: What an automatic ``max_model_len`` came to.
        batched_tokens: ``max_num_batched_tokens``, where it is logged.
        padding_layers: Layers of padding, and the part of memory that they may waste in percent.
        durations: Seconds by phase of the engine.
        times: Seconds since the year began, by what was logged then.
        refusal: Why it failed.
        is_ready: Whether the server came up.
        first_line: Where it begins.
        last_line: Where it ends.
        last_step: What it was doing last.
    """

    version: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    ranks: dict[str, Rank] = field(default_factory=dict)
    device: str = "GPU"
    gpu_name: str | None = None
    capacity_tokens: int | None = None
    max_model_len: int | None = None
    max_concurrency: float | None = None
    fitted_len: int | None = None
    batched_tokens: int | None = None
    padding_layers: tuple[int, float] | None = None
    durations: dict[str, float] = field(default_factory=dict)
    times: dict[str, int] = field(default_factory=dict)
    refusal: Refusal | None = None
    is_ready: bool = False
    first_line: int = 0
    last_line: int = 0
    last_step: str = ""

    def rank(self, name: str) -> Rank:
        """The rank of this name; made when it is first spoken of."""
        return self.ranks.setdefault(name, Rank(name))

    @property
    def workers(self) -> list[Rank]:
        """Ranks that hold figures, in order."""
        found = [rank for rank in self.ranks.values() if _has_figures(rank)]
        return sorted(found, key=lambda rank: _natural(rank.name))


def _has_figures(rank: Rank) -> bool:
    figures = (rank.weights, rank.kv_cache, rank.graphs, rank.graphs_estimated, rank.total)
    return any(value is not None for value in figures) or bool(rank.durations)


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(p), "") if p.isdigit() else (0, p) for p in re.split(r"(\d+)", name) if p]
