"""What a log shows without being asked: known defects of vLLM's figures, and waste."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.offline.startup_log.facts import Rank, Start
from kvplan.offline.startup_log.memory_sum import TOLERANCE_GIB, memory_sum

#: An estimate of CUDA graphs this far above what they took is worth a word, in GiB.
_GRAPHS_GIB = 0.25
#: Ranks differ when their figures do by more than this part.
_RANKS = 0.01
#: Memory of other processes on a GPU that is worth a word, in GiB; a CUDA context is below it.
_OTHERS_GIB = 2.0
#: Padding layers that may waste less than this percentage are not.
_PADDING_PERCENT = 3.0
_BUFFER_GIB = 150 / 1024


@dataclass(frozen=True)
class Finding:
    """One thing to know.

    Attributes:
        kind: ``graph estimate``, ``graph capture``, ``suggestion``, ``ranks``, ``others``,
            ``padding``.
        words: What it is and what to do, in one or two sentences.
        gain_gib: KV memory of each GPU that acting on it brings, where that can be said.
    """

    kind: str
    words: str
    gain_gib: float | None = None


def findings_of(start: Start) -> list[Finding]:
    """Everything found, the most memory first."""
    found = [
        finding
        for check in (_graph_estimate, _suggestion, _ranks, _others, _padding)
        if (finding := check(start)) is not None
    ]
    return sorted(found, key=lambda finding: -(finding.gain_gib or 0.0))


def _graph_estimate(start: Start) -> Finding | None:
    pairs = [
        (rank.graphs_estimated, rank.graphs, rank)
        for rank in start.workers
        if rank.graphs_estimated is not None and rank.graphs is not None
    ]
    if not pairs:
        return None
    estimated, taken, rank = max(pairs, key=lambda pair: abs(pair[0] - pair[1]))
    over = estimated - taken
    if over > max(_GRAPHS_GIB, 0.5 * max(taken, 0.0)) and _estimate_counts(rank):
        to = (
            ""
            if rank.total is None or rank.utilization is None
            else (
                f" (--gpu-memory-utilization {min(1.0, rank.utilization + over / rank.total):.4f})"
            )
        )
        return Finding(
            "graph estimate",
            f"CUDA graphs were estimated at {estimated:.2f} GiB and took {taken:.2f} GiB: the "
            f"estimate kept {over:.2f} GiB of each GPU from the KV cache. Raise the utilization by "
            f"what was kept{to}, capture fewer sizes, or set "
            "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0 and leave room for the graphs yourself",
            over,
        )
    if -over > max(_GRAPHS_GIB, 0.5 * estimated):
        return Finding(
            "graph capture",
            f"CUDA graphs were estimated at {estimated:.2f} GiB and took {taken:.2f} GiB: "
            f"{-over:.2f} GiB more than was kept for them, so a start at a high utilization may "
            "run out of memory while it captures. Lower the utilization, or capture fewer sizes",
        )
    return None


def _estimate_counts(rank: Rank) -> bool:
    """Whether the estimate was taken off the KV cache, as far as the sum can tell."""
    return "CUDA graphs (estimated)" in memory_sum(rank).parts


def _suggestion(start: Start) -> Finding | None:
    for rank in start.workers:
        figures = (rank.requested, rank.consumed, rank.activation, rank.graphs_estimated)
        if rank.suggested_bytes is None or rank.graphs is None or None in figures:
            continue
        requested, consumed, activation, estimated = (f or 0.0 for f in figures)
        if estimated <= TOLERANCE_GIB or not memory_sum(rank).estimate_in_activation:
            continue
        suggested = rank.suggested_bytes / 2**30
        twice = requested - consumed - activation - max(rank.graphs, 0.0) - _BUFFER_GIB
        if abs(suggested - twice) > 2 * TOLERANCE_GIB:
            continue
        right = rank.suggested_bytes + round(estimated * 2**30)
        instead = f"; --kv-cache-memory-bytes {right} is what fits" if right > 0 else ""
        return Finding(
            "suggestion",
            f"The suggested --kv-cache-memory={rank.suggested_bytes} ({suggested:.2f} GiB) counts "
            f"the CUDA graphs twice, as estimated ({estimated:.2f} GiB) and as captured "
            f"({rank.graphs:.2f} GiB){instead}",
        )
    return None


def _ranks(start: Start) -> Finding | None:
    for what, attribute in (("KV cache memory", "kv_cache"), ("memory of the weights", "weights")):
        values = {
            rank.name: value
            for rank in start.workers
            if (value := getattr(rank, attribute)) is not None
        }
        if len(values) < 2 or max(values.values()) <= 0:
            continue
        least, most = min(values, key=values.__getitem__), max(values, key=values.__getitem__)
        if values[most] - values[least] <= max(_RANKS * values[most], TOLERANCE_GIB):
            continue
        limits = ""
        if attribute == "kv_cache":
            limits = f"; every rank gets the blocks of {least}, so the others' memory lies idle"
            if any(name.startswith("PP") for name in values):
                limits += " unless its layers need less; VLLM_PP_LAYER_PARTITION moves layers"
        return Finding(
            "ranks",
            f"The ranks differ: {what} is {values[least]:.2f} GiB on {least} and "
            f"{values[most]:.2f} GiB on {most}{limits}",
        )
    return None


def _others(start: Start) -> Finding | None:
    taken = {
        rank.name: rank.total - rank.free
        for rank in start.workers
        if rank.total is not None and rank.free is not None
    }
    if not taken or max(taken.values()) < _OTHERS_GIB:
        return None
    name = max(taken, key=taken.__getitem__)
    where = f" of {name}" if name else ""
    return Finding(
        "others",
        f"{taken[name]:.2f} GiB of the GPU{where} were taken before the engine started: another "
        "process uses it, or an earlier server has not ended",
    )


def _padding(start: Start) -> Finding | None:
    if start.padding_layers is None or start.padding_layers[1] < _PADDING_PERCENT:
        return None
    layers, percent = start.padding_layers
    return Finding(
        "padding",
        f"vLLM's grouping adds {layers} layers of padding, which may waste {percent:g} % of the KV "
        "cache; 'kvplan frontier' shows groupings without",
    )
