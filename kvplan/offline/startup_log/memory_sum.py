"""Whether the figures of a rank add up to the memory that it asked for."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.offline.startup_log.facts import Rank

#: Figures have two decimals, so a sum of them may be this far off.
TOLERANCE_GIB = 0.02


@dataclass(frozen=True)
class MemorySum:
    """The sum of one rank, in GiB.

    Attributes:
        requested: Memory that the engine may use.
        parts: What takes it, by name, in order.
        missing: Parts that the log does not say.
        rest: What the known parts leave: of a closed sum nearly nothing, else the missing parts.
        estimate_in_activation: Whether the peak activation holds the estimate of CUDA graphs.
    """

    requested: float | None
    parts: dict[str, float]
    missing: tuple[str, ...]
    rest: float | None
    estimate_in_activation: bool = False

    @property
    def closes(self) -> bool:
        """Whether every part is there and they add up."""
        return not self.missing and self.rest is not None and abs(self.rest) <= TOLERANCE_GIB + 1e-9


def memory_sum(rank: Rank) -> MemorySum:
    """The sum of a rank, as far as its figures go.

    Versions of vLLM differ in whether the logged activation holds the estimate of CUDA graphs; the
    sum itself tells. Mirrors vllm/v1/worker/gpu_worker.py (0.33).
    """
    figures = {"weights": rank.weights, "non-torch": rank.non_torch}
    if rank.consumed is not None:
        figures = {"weights and non-torch": rank.consumed}
    figures["peak activation"] = rank.activation
    figures["KV cache"] = rank.kv_cache
    parts = {name: value for name, value in figures.items() if value is not None}
    missing = [name for name, value in figures.items() if value is None]
    requested = _requested(rank)
    if requested is None:
        missing.append("requested memory")
    rest = None if requested is None else requested - sum(parts.values())
    estimate = rank.graphs_estimated or 0.0
    if not estimate or rank.estimate_applies is False:
        return MemorySum(requested, parts, tuple(missing), rest)
    if missing or rest is None or abs(rest - estimate) < abs(rest):
        rest = None if rest is None else rest - estimate
        return MemorySum(requested, _with_graphs(parts, estimate), tuple(missing), rest)
    if rank.consumed is None and not rank.estimate_applies:
        return MemorySum(requested, parts, (), rest)
    parts["peak activation"] -= estimate
    return MemorySum(requested, _with_graphs(parts, estimate), (), rest, True)


def _requested(rank: Rank) -> float | None:
    if rank.requested is None and rank.total is not None and rank.utilization is not None:
        return rank.total * rank.utilization
    return rank.requested


def _with_graphs(parts: dict[str, float], estimate: float) -> dict[str, float]:
    """The parts with the estimate of CUDA graphs before the KV cache, which is last."""
    kv_cache = {name: value for name, value in parts.items() if name == "KV cache"}
    others = {name: value for name, value in parts.items() if name != "KV cache"}
    return others | {"CUDA graphs (estimated)": estimate} | kv_cache
