"""What sliced grouping gives for real hybrid models, and how long its search takes.

    python benchmarks/sliced_models.py models   # a Markdown table
    python benchmarks/sliced_models.py lengths  # bytes above the lower bound at several lengths
    python benchmarks/sliced_models.py search   # CPU time of the search

The models are those of compact_models.py, all in BLHNC. "Above the bound" is what a request's
slices hold beyond the content of its pages. Tokens are those of a pool of 40 GiB.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from compact_models import Case, all_cases
from spec_makers import full, mamba, sliding

import kvplan

GIB = 1 << 30
MEMORY = 40 * GIB
LENGTHS = (2048, 16384, 131072, 1048576)


def sliced_config(case: Case, **changes: object) -> kvplan.PlanningConfig:
    """The case's config for sliced grouping."""
    return case.config.replace(
        **{"grouping": "sliced", "kv_cache_layout": "BLHNC", **changes}  # type: ignore[arg-type]
    )


def above_the_bound(config: kvplan.PlanningConfig, case: Case, plan: kvplan.Plan) -> float:
    """Padding of a request's slices as a part of its content."""
    curve = kvplan.frontier(config.replace(grouping="compact"), case.kv_cache_specs)
    held = sum(group.slice_bytes * group.pages_per_request for group in plan.groups)
    return held / curve.lower_bound_bytes - 1


def plan(config: kvplan.PlanningConfig, case: Case) -> kvplan.Plan:
    """A plan in memory that holds one request at least."""
    memory = MEMORY
    while True:
        try:
            return kvplan.plan(config, case.kv_cache_specs, [memory] * len(case.kv_cache_specs))
        except kvplan.NotEnoughMemory:
            memory *= 2


def models_table() -> None:
    """Tokens in 40 GiB, groups in brackets."""
    head = (
        "model",
        "tokens",
        "vLLM 0.33",
        "compact",
        "sliced",
        "gain",
        "slices",
        "blocks",
        "above",
    )
    print("| " + " | ".join(head) + " |")
    print("|" + " --- |" * len(head))
    for case in all_cases():
        config = sliced_config(case)
        plans = {
            grouping: plan(config.replace(grouping=grouping), case)
            for grouping in ("vllm", "compact", "sliced")
        }
        sliced = plans["sliced"]
        cells = [case.name, f"{config.max_model_len:,}"]
        cells += [f"{p.capacity_tokens:,} ({len(p.groups)})" for p in plans.values()]
        cells.append(f"{sliced.capacity_tokens / plans['vllm'].capacity_tokens:.2f}x")
        cells.append(", ".join(str(group.slices) for group in sliced.groups))
        cells.append(f"{sliced.num_blocks:,}")
        cells.append(f"{above_the_bound(config, case, sliced):.2%}")
        print("| " + " | ".join(cells) + " |")


def lengths_table() -> None:
    """Bytes above the bound, planned for each length; then one plan at all lengths."""
    head = ("model", *(f"{length:,}" for length in LENGTHS))
    print("| " + " | ".join(head) + " |")
    print("|" + " --- |" * len(head))
    for case in all_cases():
        cells = [case.name]
        for length in LENGTHS:
            config = sliced_config(case, max_model_len=length)
            cells.append(f"{above_the_bound(config, case, plan(config, case)):.2%}")
        print("| " + " | ".join(cells) + " |")


def search_times() -> None:
    """Specs in, groups out."""
    print(f"{'layers':>8} {'kinds':>6} {'ms':>8}  proven")
    for count in (50, 500, 5000):
        shapes: list[Callable[[int], object]] = [
            lambda i: full(8, 64 * (1 + i)),
            lambda i: sliding(512 << i, 4, 64 * (2 + i)),
            lambda i: mamba(540_672 + 4096 * i, 64),
        ]
        specs = [shape(i) for i in range(3) for shape in shapes]
        layers = {f"layers.{n}": specs[n % len(specs)] for n in range(count)}
        config = kvplan.PlanningConfig(
            max_model_len=131072, grouping="sliced", kv_cache_layout="BLHNC"
        )
        best = float("inf")
        point = None
        for _ in range(20):
            start = time.process_time()
            point = kvplan.sliced_point(config, [layers], [MEMORY])
            best = min(best, time.process_time() - start)
        assert point is not None
        print(f"{count:>8} {point.num_groups:>6} {best * 1e3:>8.2f}  {point.exact}")


def main() -> None:
    """Run what the command line names; without a name, all of it."""
    parts = {"models": models_table, "lengths": lengths_table, "search": search_times}
    for name in sys.argv[1:] or parts:
        parts[name]()


if __name__ == "__main__":
    main()
