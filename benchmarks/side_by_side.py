"""What the Python benchmarks share: vLLM's planner beside kvplan's, timing, the machine's name."""

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "vllm033")]

import oracle  # noqa: E402


def median_seconds(call: Callable[[], Any], budget_s: float = 2.0, most_runs: int = 200) -> float:
    """CPU seconds of one warm call: the median over samples of at least 0.2 ms, within the budget.

    CPU time, so that a busy machine slows neither side more than the other.
    """
    clock = time.process_time
    start = clock()
    call()
    once = clock() - start
    per_sample = max(1, int(2e-4 / max(once, 1e-8)))
    samples: list[float] = []
    deadline = time.perf_counter() + budget_s
    while len(samples) < 3 or (len(samples) < most_runs and time.perf_counter() < deadline):
        start = clock()
        for _ in range(per_sample):
            call()
        samples.append((clock() - start) / per_sample)
    return statistics.median(samples)


def show_seconds(seconds: float | None) -> str:
    """With a unit that keeps three digits."""
    if seconds is None:
        return "-"
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "us")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def show_ratio(slow: float | None, fast: float | None) -> str:
    return "-" if slow is None or fast is None else f"{slow / fast:,.0f}x"


def machine() -> dict[str, str]:
    """Everything that a figure depends on."""
    import kvplan

    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        if names:
            model = names[0].partition(":")[2].strip()
    from importlib.metadata import version

    return {
        "cpu": f"{model}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "vllm": version("vllm"),
        "kvplan": kvplan.__version__,
        "command": " ".join([Path(sys.executable).name, *sys.argv]),
    }


def report(header: list[str], rows: list[list[str]], as_json: bool) -> None:
    """A Markdown table under the machine's description, or the same as JSON."""
    if as_json:
        table = [dict(zip(header, row, strict=True)) for row in rows]
        print(json.dumps({"machine": machine(), "rows": table}, indent=2))
        return
    for key, value in machine().items():
        print(f"{key}: {value}")
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(cells: list[str]) -> str:
        padded = (f"{cell:<{w}}" for cell, w in zip(cells, widths, strict=True))
        return f"| {' | '.join(padded)} |"

    print()
    print(line(header))
    print(line(["-" * w for w in widths]))
    for row in rows:
        print(line(row))


__all__ = ["ROOT", "machine", "median_seconds", "oracle", "report", "show_ratio", "show_seconds"]
