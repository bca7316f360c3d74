"""Timing of calls side by side, the memory of a process, and what a figure depends on."""

from __future__ import annotations

import gc
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import kvplan

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


def resident_bytes() -> int:
    """What the process holds now."""
    return _status_bytes("VmRSS") or peak_bytes_so_far()


def peak_bytes_so_far() -> int:
    """The most that the process has held."""
    # Of this program alone; getrusage's figure begins with that of the process that started it.
    if (peak := _status_bytes("VmHWM")) is not None:
        return peak
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _status_bytes(key: str) -> int | None:
    """A line of Linux's /proc/self/status in bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            name, _, value = line.partition(":")
            if name == key:
                return int(value.split()[0]) * 1024
    return None


def describe_machine() -> dict[str, str]:
    """Processor, memory, load and versions of this process, as a reader wants them."""
    described = {
        "processor": _processor(),
        "cores": str(_cores()),
        "memory": _memory(),
        "load": _load(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "kvplan": kvplan.__version__,
        "vllm": _version("vllm"),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }
    return {key: value for key, value in described.items() if value}


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory() -> str:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return ""
    return f"{total / 2**30:.0f} GiB"


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
