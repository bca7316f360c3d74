"""The hit unit of a plan beside vLLM 0.33.0's own numbers, and asked of the manager itself.

`KVPLAN_HIT_MODELS` sets how many random models (default 150).
"""

import json
import os
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm.v1.core.kv_cache_utils")

from built_in_kinds import KINDS
from random_models import random_request
from test_cache_manager_plan import EAGLE, make_plan
from to_vllm import vllm_config, vllm_groups
from vllm.v1.core.kv_cache_utils import (
    generate_scheduler_kv_cache_config,
    resolve_cache_hit_alignment_tokens,
    resolve_kv_cache_block_sizes,
)
from vllm.v1.kv_cache_interface import KVCacheConfig

import kvplan
from kvplan import _core
from kvplan import request as requests

NUM_MODELS = int(os.environ.get("KVPLAN_HIT_MODELS", "150"))


def vllms_unit(plan) -> int:
    """Tokens to which vLLM rounds a hit of this plan."""
    config = plan.config
    groups = vllm_groups(plan.kv_cache_configs[0].kv_cache_groups)
    scheduler = generate_scheduler_kv_cache_config([KVCacheConfig(plan.num_blocks, [], groups)])
    engine = vllm_config(config)
    engine.kv_transfer_config = object() if config.has_kv_connector else None
    engine.speculative_config = SimpleNamespace(use_eagle_block_drop=lambda: False)
    return resolve_cache_hit_alignment_tokens(
        scheduler, engine, *resolve_kv_cache_block_sizes(scheduler, engine)
    )


def vllms_specs(plan):
    """The spec that vLLM has for each group."""
    groups = vllm_groups(plan.kv_cache_configs[0].kv_cache_groups)
    return [group.kv_cache_spec for group in groups]


def hit_of(plan, length: int) -> int:
    """Tokens that a prompt hits that comes a second time, by the replay of both."""
    result = _core.replay(
        plan,
        arrivals=[0.0, 1.0],
        priorities=[0, 0],
        num_prompt_tokens=[length, length],
        num_output_tokens=[1, 1],
        num_parts=[1, 1],
        part_texts=[1, 1],
        part_lengths=[length, length],
        output_texts=[2, 3],
        max_num_batched_tokens=1 << 30,
        async_scheduling=False,
        max_concurrent_batches=1,
    )
    assert result["requests"]["end"].tolist() == [0, 0]
    return int(result["requests"]["hit_tokens"][1])


def check(plan) -> bool:
    """Whether there is a hit unit to check."""
    try:
        found = plan._prefix_hits()
    except kvplan.PlanningError:
        return False  # no manager
    if found is None:
        longest = min(plan.max_model_len - 1, 20_000)
        # Without groups there is no manager either.
        assert not plan.groups or longest < 1 or hit_of(plan, longest) == 0
        return False
    tokens, shortest, blocks = found
    assert tokens == vllms_unit(plan)
    assert len(blocks) == len(plan.kv_cache_configs[0].kv_cache_groups)
    replayed = max(spec.prefix_replay_tokens for spec in vllms_specs(plan))
    assert hit_of(plan, shortest) == (replayed // tokens + 1) * tokens
    assert hit_of(plan, shortest - 1) == 0
    return True


@pytest.mark.parametrize("setting", [{}, EAGLE, {"prefix_cache_retention_interval": 0}])
@pytest.mark.parametrize("name", KINDS)
def test_built_in_models(name, setting):
    fields = {"max_model_len": 65536, **setting}
    try:
        plan, _ = make_plan(name, **fields)
    except kvplan.PlanningError as error:
        pytest.skip(str(error))
    if not check(plan):
        pytest.skip("nothing is cached")


def test_random_models():
    checked = 0
    for seed in range(NUM_MODELS):
        given = requests.loads(json.dumps(random_request(seed)))
        specs = given.kv_cache_specs()
        try:
            config = given.planning_config().replace(auto_fit=False, num_gpu_blocks_override=20_000)
            plan = kvplan.plan(config, specs, [1 << 50] * len(specs))
        except (kvplan.PlanningError, ValueError):
            continue
        try:
            checked += check(plan)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    assert checked > NUM_MODELS / 10
