"""The block pool's share of a real engine's steps: vLLM's pool, kvplan's, its manager, and slices.

Usage: python benchmarks/block_pool_engine.py MODEL_DIR

Needs vLLM's CPU engine (0.32). Each pool serves the same load in a process of its own: a tiny
random model, so that the scheduler's share of a step is as large as on a fast accelerator.
Every call of the pool is timed; the timer's own cost, about 0.1 us a call, is in all figures.
kvplan's manager, with slices or without, calls its pool natively, and only schedule() shows what it
costs.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "engine")]

METHODS = (
    "get_new_blocks",
    "free_blocks",
    "touch",
    "get_cached_block",
    "cache_full_blocks",
)


class Step:
    """Seconds of the engine step that is running."""

    def __init__(self) -> None:
        self.schedule = self.pool = 0.0
        self.calls = 0


def timed(step: Step, method, add):
    def call(*args, **kwargs):
        start = time.perf_counter()
        try:
            return method(*args, **kwargs)
        finally:
            add(step, time.perf_counter() - start)

    return call


def add_pool(step: Step, seconds: float) -> None:
    step.pool += seconds
    step.calls += 1


def add_schedule(step: Step, seconds: float) -> None:
    step.schedule += seconds


def serve(which: str, model_dir: Path) -> dict[str, float]:
    """Medians over the steps, so that a step that lost the processor does not count."""
    import pool_load

    if which == "kvplan":
        from kvplan.vllm import block_pool
        from kvplan.vllm.detect import detect
        from kvplan.vllm.patch import Applied

        assert Applied(block_pool.patches(detect()))
    if which in ("manager", "sliced"):
        import kvplan.vllm

        if which == "sliced":
            os.environ["KVPLAN_GROUPING"] = "sliced"
        assert kvplan.vllm.install()
    from vllm import SamplingParams

    engine = pool_load.make_engine(model_dir, num_blocks=4000, block_size=32)
    core = engine.llm_engine.engine_core.engine_core
    manager = core.scheduler.kv_cache_manager
    step = Step()
    pool = manager.block_pool
    for name in METHODS if which in ("vllm", "kvplan") else ():
        setattr(pool, name, timed(step, getattr(pool, name), add_pool))
    core.scheduler.schedule = timed(step, core.scheduler.schedule, add_schedule)
    steps: list[tuple[float, float, float, int]] = []
    step_fn = core.step_fn

    def timed_step():
        step.__init__()
        start = time.perf_counter()
        result = step_fn()
        steps.append((time.perf_counter() - start, step.schedule, step.pool, step.calls))
        return result

    core.step_fn = timed_step
    params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True, detokenize=False)
    engine.generate(pool_load.make_prompts(96), params, use_tqdm=False)
    columns = list(zip(*steps, strict=True))
    names = ("total", "schedule", "pool", "calls")
    medians = {name: statistics.median(column) for name, column in zip(names, columns, strict=True)}
    return {"steps": len(steps), **medians}


def main() -> None:
    if len(sys.argv) == 3:
        print("RESULT " + json.dumps(serve(sys.argv[1], Path(sys.argv[2]))))
        return
    print("| pool | steps | step | schedule() | pool | calls | pool's share of schedule() |")
    print("|---|---|---|---|---|---|---|")
    for which in ("vllm", "kvplan", "manager", "sliced"):
        command = [sys.executable, __file__, which, sys.argv[1]]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=True)
        line = [x for x in done.stdout.splitlines() if x.startswith("RESULT ")][-1]
        r = json.loads(line.removeprefix("RESULT "))
        times = [f"{1e6 * r[key]:,.0f} us" for key in ("total", "schedule", "pool")]
        cells = [
            which,
            str(r["steps"]),
            *times,
            f"{r['calls']:.0f}",
            f"{r['pool'] / r['schedule']:.1%}",
        ]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
