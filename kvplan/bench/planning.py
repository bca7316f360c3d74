"""Planning a whole engine, placing one worker's tensors, and the search for a divisor."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import kvplan
from kvplan import planning
from kvplan.bench.measure import take_turns
from kvplan.bench.report import Row
from kvplan.bench.scenarios import Scenario

if TYPE_CHECKING:
    from kvplan.bench.vllm_sides import Sides


def planning_row(scenario: Scenario, num_workers: int, sides: Sides | None, budget_s: float) -> Row:
    """From specs to the configs of all workers.

    `native` ends with the plan, `native_own_dicts` too but gives each worker a dict of its own
    instead of one for all ranks of a stage, `native_configs` with every worker's config read as
    Python objects; the other sides end with those, too.
    """
    inputs = scenario.inputs(num_workers)
    calls: dict[str, Callable[[], Any]] = {
        "native": lambda: kvplan.plan(*inputs),
        "native_configs": lambda: list(kvplan.plan(*inputs).kv_cache_configs),
    }
    if num_workers > 1:
        own = [dict(layers) for layers in inputs[1]]
        calls["native_own_dicts"] = lambda: kvplan.plan(inputs[0], own, inputs[2])
    if sides is not None:
        calls = sides.planning(scenario.request(num_workers)) | calls
        # vLLM hands a stage without a group the other stages' layers; so must what it is timed
        # beside.
        expected = calls["vllm"]()
        exact = inputs[0].replace(place_foreign_layers=True)
        _require_equal(expected, kvplan.plan(exact, *inputs[1:]).kv_cache_configs, scenario.name)
        _require_equal(expected, calls["drop_in"](), scenario.name)
    return Row(
        work="planning",
        name=scenario.name,
        workers=num_workers,
        layers=len(scenario.layers),
        per="plan",
        seconds=take_turns(calls, budget_s),
    )


def placement_row(scenario: Scenario, sides: Sides | None, budget_s: float) -> Row:
    """From one worker's groups to the offsets and strides of its tensors."""
    inputs = scenario.inputs(1)
    plan = kvplan.plan(*inputs)
    config = inputs[0].replace(max_model_len=plan.max_model_len, auto_fit=False)
    groups = list(plan.kv_cache_groups)
    config = config.replace(num_gpu_blocks_override=plan.num_blocks)
    memory = inputs[2][0]

    def native() -> list[Any]:
        return [planning.get_kv_cache_config_from_groups(config, groups, memory)]

    calls: dict[str, Callable[[], Any]] = {"native": native}
    if sides is not None:
        calls = sides.placement(scenario.request(1), plan.num_blocks) | calls
        for call in calls.values():
            _require_equal(calls["vllm"](), call(), scenario.name)
    return Row(
        work="placement",
        name=scenario.name,
        workers=1,
        layers=len(scenario.layers),
        per="worker",
        seconds=take_turns(calls, budget_s),
    )


def _require_equal(expected: Sequence[Any], found: Sequence[Any], name: str) -> None:
    """Raise where two answers differ in anything that a worker allocates by."""
    if len(expected) != len(found):
        raise AssertionError(f"{name}: {len(expected)} and {len(found)} workers")
    for worker, (a, b) in enumerate(zip(expected, found, strict=True)):
        if _allocation(a) != _allocation(b):
            raise AssertionError(f"{name}: the configs of worker {worker} differ")


def _allocation(config: Any) -> tuple[Any, ...]:
    tensors = [
        (t.size, list(t.layers), t.layer_stride, t.block_stride, t.offset)
        for t in config.kv_cache_tensors
    ]
    groups = [
        (list(g.layer_names), g.kv_cache_spec.block_size, bool(g.is_eagle_group))
        for g in config.kv_cache_groups
    ]
    return config.num_blocks, tensors, groups


EXPONENTS = range(2, 10)
#: A call of vLLM's takes over ten seconds beyond.
LARGEST_FOR_VLLM = 10**7


def values_near(largest: int) -> list[int]:
    """Three values within a third of the largest one, which is among them."""
    rng = random.Random(largest)
    return [largest, *(rng.randint(2 * largest // 3, largest) for _ in range(2))]


def gcd_row(exponent: int, sides: Sides | None, budget_s: float) -> Row:
    """Three values of which the largest is a power of ten."""
    values = values_near(10**exponent)
    calls: dict[str, Callable[[], Any]] = {}
    if sides is not None and values[0] <= LARGEST_FOR_VLLM and sides.approximate_gcd is not None:
        calls["vllm"] = partial(sides.approximate_gcd, values)
    calls["native"] = partial(planning._approximate_gcd, values)
    if "vllm" in calls and calls["vllm"]() != calls["native"]():
        raise AssertionError(f"the divisors of {values} differ")
    seconds = take_turns(calls, budget_s)
    return Row(work="gcd", name=f"10^{exponent}", per="search", seconds=seconds)
