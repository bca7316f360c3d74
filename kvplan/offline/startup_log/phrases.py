"""The sentences of vLLM's start-up, 0.10 to 0.33, and what each of them says.

Each is found by a fixed part of it, then read by a pattern, then written down by a function. The
sentences are those of vllm/v1/worker/gpu_worker.py, gpu_model_runner.py, gpu/model_runner.py,
v1/core/kv_cache_utils.py, kv_cache_planning.py, v1/engine/core.py and compilation/ (0.33.0), and of
their predecessors as public logs show them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from kvplan.offline.startup_log.facts import Rank, Start
from kvplan.offline.startup_log.printed import printed_dict, printed_keywords

_N = r"(-?\d+(?:\.\d+)?)"
#: Figures of the engine's configuration that are compared or reconstructed.
_CONFIG_CHARACTERS = 1 << 16


class Phrase(NamedTuple):
    """One sentence.

    Attributes:
        part: A fixed part of it, which is looked for first.
        pattern: Where the figures are.
        write: Writes them down.
        step: What the engine is doing after it, for a start that ends there.
    """

    part: str
    pattern: re.Pattern[str]
    write: Callable[[Start, Rank, re.Match[str]], None]
    step: str = ""


def _rank_figures(*names: str) -> Callable[[Start, Rank, re.Match[str]], None]:
    def write(_: Start, rank: Rank, match: re.Match[str]) -> None:
        for name, text in zip(names, match.groups(), strict=True):
            if text is not None:
                setattr(rank, name, float(text))

    return write


def _rank_seconds(phase: str) -> Callable[[Start, Rank, re.Match[str]], None]:
    """Durations of one phase are added: a model and its drafter, several graphs."""

    def write(_: Start, rank: Rank, match: re.Match[str]) -> None:
        rank.durations[phase] = rank.durations.get(phase, 0.0) + float(match[1])

    return write


def _set_rank_seconds(phase: str) -> Callable[[Start, Rank, re.Match[str]], None]:
    def write(_: Start, rank: Rank, match: re.Match[str]) -> None:
        rank.durations[phase] = float(match[1])

    return write


def _nothing(_: Start, __: Rank, ___: re.Match[str]) -> None:
    """The time of the line is all that counts."""


def _version(start: Start, _: Rank, match: re.Match[str]) -> None:
    start.version = match[1]


def _engine_config(start: Start, _: Rank, match: re.Match[str]) -> None:
    start.version = match[1]
    start.config = printed_keywords(match[2][:_CONFIG_CHARACTERS])


def _arguments(start: Start, _: Rank, match: re.Match[str]) -> None:
    start.arguments = printed_dict(match[1][:_CONFIG_CHARACTERS])


def _loaded(_: Start, rank: Rank, match: re.Match[str]) -> None:
    rank.weights = float(match[1])
    rank.durations["load"] = float(match[2])


def _given_kv_cache(_: Start, rank: Rank, match: re.Match[str]) -> None:
    rank.free, rank.kv_cache, rank.kv_cache_given = float(match[1]), float(match[2]), True


def _given_on_cpu(_: Start, rank: Rank, match: re.Match[str]) -> None:
    rank.kv_cache, rank.total, rank.kv_cache_given = float(match[1]), float(match[2]), True


def _capacity(start: Start, _: Rank, match: re.Match[str]) -> None:
    start.device = match[1].split()[0]
    start.capacity_tokens = int(match[2].replace(",", ""))


def _concurrency(start: Start, _: Rank, match: re.Match[str]) -> None:
    start.max_model_len = int(match[1].replace(",", ""))
    start.max_concurrency = float(match[2])


def _batched_tokens(start: Start, _: Rank, match: re.Match[str]) -> None:
    start.batched_tokens = int(match[1])


def _fitted(start: Start, _: Rank, match: re.Match[str]) -> None:
    start.fitted_len = int(match[1])


def _padding(start: Start, _: Rank, match: re.Match[str]) -> None:
    start.padding_layers = (int(match[1]), float(match[2]))


def _captured(_: Start, rank: Rank, match: re.Match[str]) -> None:
    rank.durations["graphs"] = rank.durations.get("graphs", 0.0) + float(match[1])
    rank.graphs = (rank.graphs or 0.0) + float(match[2])


def _pool(_: Start, rank: Rank, match: re.Match[str]) -> None:
    rank.graphs, rank.graphs_estimated = float(match[1]), float(match[2])


def _usage(_: Start, rank: Rank, match: re.Match[str]) -> None:
    rank.free, rank.total = float(match[1]), float(match[2])
    rank.utilization, rank.requested = float(match[3]), float(match[4])


def _parts(_: Start, rank: Rank, match: re.Match[str]) -> None:
    rank.weights, rank.activation = float(match[1]), float(match[2])
    rank.non_torch, rank.graphs = float(match[3]), float(match[4])


def _consumed(_: Start, rank: Rank, match: re.Match[str]) -> None:
    rank.consumed, rank.activation = float(match[1]), float(match[2])
    rank.graphs = float(match[3])


def _suggestion(_: Start, rank: Rank, match: re.Match[str]) -> None:
    rank.suggested_bytes = int(match[1])


def _utilization_of_profile(_: Start, rank: Rank, match: re.Match[str]) -> None:
    if rank.utilization is None:
        rank.utilization = float(match[1])


def _profile(_: Start, rank: Rank, match: re.Match[str]) -> None:
    rank.durations.setdefault("profile", float(match[1]))
    rank.activation = float(match[2])
    if match[3] is not None:
        rank.non_torch = float(match[3])
    if match[4] is not None:
        rank.consumed = float(match[4])


def _estimate_applies(_: Start, rank: Rank, match: re.Match[str]) -> None:
    rank.estimate_applies = match[1] == "is enabled"


def _v0_memory(_: Start, rank: Rank, match: re.Match[str]) -> None:
    rank.total, rank.utilization, rank.requested = (float(match[i]) for i in (1, 2, 3))


def _v0_parts(_: Start, rank: Rank, match: re.Match[str]) -> None:
    rank.weights, rank.non_torch = float(match[1]), float(match[2])
    rank.activation, rank.kv_cache = float(match[3]), float(match[4])


def _engine_seconds(start: Start, _: Rank, match: re.Match[str]) -> None:
    start.durations["engine"] = float(match[1])


def _ready(start: Start, _: Rank, __: re.Match[str]) -> None:
    start.is_ready = True
    start.refusal = None  # what was logged before did not end it


def _gpu(start: Start, _: Rank, match: re.Match[str]) -> None:
    if start.gpu_name is None:
        start.gpu_name = match[1].strip()


def _phrase(
    part: str, pattern: str, write: Callable[[Start, Rank, re.Match[str]], None], step: str = ""
) -> Phrase:
    return Phrase(part, re.compile(pattern, re.S), write, step)


PHRASES = (
    _phrase("vLLM API server version", r"version (\S+)", _version, "reading its options"),
    _phrase("non-default args:", r"non-default args: (\{.*)", _arguments, "reading its options"),
    _phrase(
        "LLM engine (v",
        r"LLM engine \(v(\S+)\) with config: (.*)",
        _engine_config,
        "starting the engine",
    ),
    _phrase("Chunked prefill is enabled", r"max_num_batched_tokens=(\d+)", _batched_tokens),
    _phrase("Starting to load model", r"Starting to load model", _nothing, "loading the weights"),
    _phrase("Loading model from scratch", r"Loading model from", _nothing, "loading the weights"),
    _phrase("Time spent downloading", rf": {_N} seconds", _rank_seconds("download")),
    _phrase("Loading weights took", rf"took {_N} seconds", _rank_seconds("weights")),
    _phrase(
        "odel loading took",
        rf"odel loading took {_N} Gi?B(?: memory)? and {_N} seconds",
        _loaded,
        "profiling its memory",
    ),
    _phrase("Dynamo bytecode transform time", rf"time: {_N} s", _rank_seconds("dynamo")),
    _phrase("Compiling a graph for", rf"takes {_N} s", _rank_seconds("inductor")),
    _phrase("Directly load the compiled graph", rf"took {_N} s", _rank_seconds("inductor")),
    _phrase(
        "torch.compile t", rf"torch\.compile (?:takes|took) {_N} s", _set_rank_seconds("compile")
    ),
    _phrase("rofiling/warmup run took", rf"took {_N} s", _set_rank_seconds("profile")),
    _phrase(
        "Memory profiling takes",
        rf"takes {_N} seconds.*?(?:torch peak memory increase: {_N}GiB)"
        rf"(?:.*?non-torch forward increase memory: {_N}GiB)?"
        rf"(?:.*?total consumed \(from mem_get_info\): {_N}GiB)?",
        _profile,
    ),
    _phrase(
        "current vLLM instance can use",
        rf"\({_N}GiB\) x gpu_memory_utilization \({_N}\) = {_N}GiB",
        _v0_memory,
    ),
    _phrase(
        "model weights take",
        rf"take {_N}GiB; non_torch_memory takes {_N}GiB; PyTorch activation peak memory takes "
        rf"{_N}GiB; the rest of the memory reserved for KV Cache is {_N}GiB",
        _v0_parts,
    ),
    _phrase("Profiling CUDA graph memory", r"Profiling CUDA graph memory", _nothing),
    _phrase("Estimated CUDA graph memory", rf"memory: {_N} GiB", _rank_figures("graphs_estimated")),
    _phrase(
        "Available KV cache memory", rf"memory: {_N} GiB", _rank_figures("kv_cache"), "planning"
    ),
    _phrase(
        "CUDA graph memory profiling",
        r"memory profiling (is enabled|is disabled|will be enabled)",
        _estimate_applies,
    ),
    _phrase(
        "The current --gpu-memory-utilization=", rf"utilization={_N} ", _utilization_of_profile
    ),
    _phrase(
        "Initial free memory",
        rf"Initial free memory {_N} GiB, reserved {_N} GiB",
        _given_kv_cache,
        "planning",
    ),
    _phrase("for KV cache on node", rf"Explicitly set \({_N}/{_N}\) GiB", _given_on_cpu),
    _phrase("KV cache size:", r"(\w+(?: \+ host)?) KV cache size: ([\d,]+) tokens", _capacity),
    _phrase(
        "aximum concurrency for",
        rf"aximum concurrency for ([\d,]+) tokens per request: {_N}x",
        _concurrency,
        "warming up",
    ),
    _phrase("Auto-fit max_model_len: full", r"length (\d+)", _fitted),
    _phrase("Auto-fit max_model_len: reduced", r"from \d+ to (\d+)", _fitted),
    _phrase("padding layers, may waste", rf"Add (\d+) padding layers.*?{_N}%", _padding),
    _phrase(
        "raph capturing finished",
        rf"finished in {_N} secs?, took {_N} GiB",
        _captured,
        "warming up",
    ),
    _phrase("CUDA graph pool memory", rf"{_N} GiB \(actual\), {_N} GiB \(estimated\)", _pool),
    _phrase(
        "Desired GPU memory utilization is",
        rf"Free memory on device(?: \S+)? \({_N}/{_N} GiB\) on startup.*?is \({_N}, {_N} GiB\)",
        _usage,
    ),
    _phrase(
        "GiB for weight",
        rf"{_N} GiB for weights?, {_N} GiB for peak activation, {_N} GiB for non-torch memory, "
        rf"and {_N} GiB for",
        _parts,
    ),
    _phrase(
        "for consumed memory",
        rf"{_N} GiB for consumed memory[^,]*, {_N} GiB for peak activation, and {_N} GiB for",
        _consumed,
    ),
    _phrase("--kv-cache-memory=", r"--kv-cache-memory=(-?\d+)", _suggestion),
    _phrase("init engine (profile", rf"took {_N} s", _engine_seconds, "starting the server"),
    _phrase("Application startup complete", r"complete", _ready),
    _phrase("GPU 0", r"GPU 0(?:-\d+)?: ([^(]+?)\s*(?:\(|$)", _gpu),
)
