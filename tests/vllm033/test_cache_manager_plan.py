"""The cache manager of a plan beside the one that vLLM 0.33.0's scheduler makes for the same model.

What the scheduler derives is asked of vLLM's own functions and properties. The two managers must
then give the same answers on random traces.
"""

from collections import Counter
from types import SimpleNamespace

import pytest

vllm = pytest.importorskip("vllm")
if not vllm.__version__.startswith("0.33."):
    pytest.skip("compares with vLLM 0.33", allow_module_level=True)

from built_in_kinds import KINDS  # noqa: E402
from cache_manager_pair import Pair, Refused  # noqa: E402
from test_cache_manager import Trace  # noqa: E402
from to_vllm import vllm_config, vllm_groups  # noqa: E402
from vllm.config import VllmConfig  # noqa: E402
from vllm.v1.core.kv_cache_utils import (  # noqa: E402
    generate_scheduler_kv_cache_config,
    resolve_kv_cache_block_sizes,
)
from vllm.v1.kv_cache_interface import KVCacheConfig  # noqa: E402

import kvplan  # noqa: E402
from kvplan.offline import models  # noqa: E402

NUM_TRACES = 6  # of each model and setting

EAGLE = {
    "use_eagle": True,
    "use_eagle_block_drop": True,
    "speculative_method": "eagle",
    "num_prefill_lookahead_tokens": 1,
}
SETTINGS = {
    "defaults": {},
    "no caching": {"enable_prefix_caching": False},
    "EAGLE": EAGLE,
    "EAGLE, connector": EAGLE | {"has_kv_connector": True},
    "context parallel": {"tensor_parallel_size": 2, "decode_context_parallel_size": 2},
    "retention": {"prefix_cache_retention_interval": 0},
    "few in flight": {"max_in_flight_tokens": 64},
}


def make_plan(name, **changes):
    """A small plan of a model, and the factor of a trace's lengths."""
    described = models.kv_cache_specs(name)

    def plan(max_model_len, num_blocks):
        fields = (
            described.config
            | changes
            | {
                "max_model_len": max_model_len,
                "auto_fit": False,
                "num_gpu_blocks_override": num_blocks,
            }
        )
        config = kvplan.PlanningConfig(**fields)
        return kvplan.plan(config, described.kv_cache_specs, [1 << 42])

    # Hits of a few blocks, whatever their size.
    scale = max(1, scheduler_arguments(plan(8192, None))["scheduler_block_size"] // 32)
    num_blocks = plan(200 * scale, None).request_blocks
    return plan(200 * scale, 3 * num_blocks + 20), scale


def scheduler_arguments(plan):
    """What vLLM's engine gives its manager: its groups, and its options."""
    config = plan.config
    worker = plan.kv_cache_configs[0]
    scheduler = generate_scheduler_kv_cache_config(
        [KVCacheConfig(plan.num_blocks, [], vllm_groups(worker.kv_cache_groups))]
    )
    engine = vllm_config(config)
    connector = object() if config.has_kv_connector else None
    engine.kv_transfer_config = connector
    engine.speculative_config = SimpleNamespace(
        use_eagle_block_drop=lambda: config.use_eagle_block_drop,
        disable_lookahead_block_hashes=False,
    )
    scheduler_block_size, hash_block_size = resolve_kv_cache_block_sizes(scheduler, engine)
    lookahead = VllmConfig.num_hash_lookahead_tokens.fget(engine)
    return {
        "groups": [(g.kv_cache_spec, g.is_eagle_group) for g in scheduler.kv_cache_groups],
        "num_blocks": plan.num_blocks,
        "retention": config.prefix_cache_retention_interval,
        "zeroing": scheduler.needs_kv_cache_zeroing,
        "max_model_len": plan.max_model_len,
        "max_in_flight_tokens": config.max_in_flight_tokens,
        "enable_caching": config.enable_prefix_caching,
        # As in Scheduler.__init__: such hashes prove the boundary token.
        "use_eagle": config.use_eagle_block_drop and not lookahead,
        "num_hash_lookahead_tokens": lookahead,
        "num_prefill_lookahead": config.num_prefill_lookahead_tokens,
        "dcp_world_size": config.decode_context_parallel_size,
        "scheduler_block_size": scheduler_block_size,
        "hash_block_size": hash_block_size,
        "enable_kv_cache_events": True,
        "watermark": 0.02,
    }


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", KINDS)
def test_decides_as_the_scheduler_s(name, setting):
    try:
        plan, scale = make_plan(name, **SETTINGS[setting])
    except kvplan.InconsistentSpec as error:
        if setting != "context parallel" or "DCP not support sliding window" not in str(error):
            raise
        pytest.skip(str(error))
    arguments = scheduler_arguments(plan)

    def make(rng):
        return Pair(
            **arguments,
            make=lambda: kvplan.CacheManager.from_plan(plan, enable_events=True, watermark=0.02),
        )

    seen = Counter()
    for seed in range(NUM_TRACES):
        try:
            trace = Trace(seed, make, scale)
        except Refused as refused:
            pytest.skip(f"vLLM refuses it, too: {refused}")
        assert trace.pair.native.num_hash_lookahead_tokens == trace.lookahead
        seen += trace.run()
    assert seen["allocated"] > 0
    if arguments["enable_caching"]:
        assert seen["hit"] > 0
