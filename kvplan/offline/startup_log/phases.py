"""Where the time of a start went, by phase and rank."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.offline.startup_log.facts import Rank, Start

#: Phases in their order, with what each is.
PHASES = {
    "import": "import, options, until the engine starts",
    "start": "processes and communication, until a rank loads",
    "download": "download of the weights",
    "weights": "weights read and processed",
    "compile": "torch.compile, or loading what it made before",
    "profile": "profile run, and the estimate of CUDA graphs",
    "plan": "KV cache planned and allocated",
    "graphs": "CUDA graphs captured",
    "warm-up": "kernels and sampler warmed up",
    "serve": "engine to ready server",
}
_YEAR = 366 * 86400


@dataclass(frozen=True)
class Phases:
    """Seconds of one rank by phase; a phase that the log does not tell is not there.

    Attributes:
        rank: Its name.
        seconds: By phase.
        total: From the first line to the ready server, or to the last line that is known.
    """

    rank: str
    seconds: dict[str, float]
    total: float | None


def phases_of(start: Start) -> list[Phases]:
    """The phases of every rank. Times of lines are whole seconds, durations are as printed."""
    return [_phases(start, rank) for rank in start.workers]


def _phases(start: Start, rank: Rank) -> Phases:
    times = start.times | rank.times
    printed = rank.durations
    found: dict[str, float | None] = {
        "import": _between(start.times, "begun", "engine"),
        "start": _between(times, "engine", "load"),
        "download": printed.get("download"),
        "weights": _weights(printed, times),
        "compile": _compile(printed),
        "plan": _between(times, "profiled", "planned"),
        "graphs": printed.get("graphs"),
        "serve": _between(start.times, "initialized", "ready"),
    }
    found["profile"] = _less(_between(times, "loaded", "profiled"), found["compile"])
    found["warm-up"] = _less(_between(times, "planned", "initialized"), found["graphs"])
    seconds = {name: found[name] for name in PHASES}
    last = "ready" if "ready" in start.times else "initialized"
    return Phases(
        rank.name,
        {name: value for name, value in seconds.items() if value is not None},
        _between(start.times, "begun", last),
    )


def _weights(printed: dict[str, float], times: dict[str, int]) -> float | None:
    """All of loading but the download, processing included, where it is told."""
    load = printed.get("load", _between(times, "load", "loaded"))
    if load is None:
        return printed.get("weights")
    return max(0.0, load - printed.get("download", 0.0))


def _compile(printed: dict[str, float]) -> float | None:
    if "compile" in printed:
        return printed["compile"]
    parts = [printed[name] for name in ("dynamo", "inductor") if name in printed]
    return sum(parts) if parts else None


def _between(times: dict[str, int], first: str, second: str) -> float | None:
    if first not in times or second not in times:
        return None
    seconds = times[second] - times[first]
    if seconds < -_YEAR // 2:  # over the turn of the year
        seconds += _YEAR
    return float(seconds) if seconds >= 0 else None


def _less(whole: float | None, part: float | None) -> float | None:
    return None if whole is None else max(0.0, whole - (part or 0.0))
