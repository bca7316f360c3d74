"""Cost and memory far beyond any model, in a process of its own.

`python -m kvplan.bench.scale LAYERS WORKERS` prints what one size takes.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from typing import Any

import kvplan
from kvplan.bench.measure import peak_bytes_so_far, resident_bytes, take_turns
from kvplan.bench.report import Row
from kvplan.bench.scenarios import scale

#: Layers by workers. The largest is a hundred times what anybody runs, in both directions.
SIZES = (
    *((layers, 8) for layers in (100, 1_000, 10_000, 100_000)),
    *((8_000, workers) for workers in (8, 64, 512, 1024)),
    (100_000, 1024),
)


def scale_row(num_layers: int, num_workers: int) -> Row:
    """Plan so many layers over so many workers in a fresh process."""
    command = [sys.executable, "-m", "kvplan.bench.scale", str(num_layers), str(num_workers)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[1:])} failed: {done.stderr.strip()[-500:]}")
    found = json.loads(done.stdout)
    return Row(
        work="scale",
        name=f"{num_layers:,} layers",
        workers=num_workers,
        layers=num_layers,
        per="plan",
        seconds=found["seconds"],
        peak_bytes=found["peak_bytes"],
    )


def measure(num_layers: int, num_workers: int) -> dict[str, Any]:
    """Seconds of a warm plan, and what inputs and plan add to the memory of the process.

    `native` gives the workers of a stage one dict, `native_own_dicts` each its own.
    """
    seconds: dict[str, float] = {}
    peak_bytes: dict[str, int] = {}
    scenario = scale(num_layers)
    before = resident_bytes()
    for side in ("native", "native_own_dicts"):
        config, workers, memory = scenario.inputs(num_workers)
        if side == "native_own_dicts":
            workers = [dict(layers) for layers in workers]
        plan = kvplan.plan(config, workers, memory)
        peak_bytes[side] = peak_bytes_so_far() - before
        if len(plan.workers) != num_workers:
            raise AssertionError("a worker is missing")
        del plan
        call = functools.partial(kvplan.plan, config, workers, memory)
        seconds |= take_turns({side: call}, 2)
    return {"seconds": seconds, "peak_bytes": peak_bytes}


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]), int(sys.argv[2]))))
