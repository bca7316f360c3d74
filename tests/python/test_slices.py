"""Groups that cut a block of the pool into slices, through the Python objects."""

from __future__ import annotations

import json

import pytest

import kvplan
from kvplan.check import check_kv_cache_configs
from kvplan.offline.cli.placement_file import placement_dict, read_placement
from kvplan.planning import (
    generate_scheduler_kv_cache_config,
    get_kv_cache_config_from_groups,
    get_kv_cache_configs,
)
from kvplan.specs import FullAttentionSpec, KVCacheGroupSpec, SlidingWindowSpec

PAGE = 64 << 10
LAYERS = {
    f"layers.{i}": (
        FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, dtype="bfloat16")
        if i < 2
        else SlidingWindowSpec(
            block_size=16, num_kv_heads=8, head_size=128, dtype="bfloat16", sliding_window=128
        )
    )
    for i in range(8)
}
CONFIG = kvplan.PlanningConfig(max_model_len=256, max_in_flight_tokens=64, kv_cache_layout="BLHNC")


def groups(slices: int = 3) -> list[KVCacheGroupSpec]:
    names = list(LAYERS)
    return [
        KVCacheGroupSpec(names[:2], LAYERS[names[0]], slices=slices),
        KVCacheGroupSpec(names[2:], LAYERS[names[2]]),
    ]


def test_slices_go_through_the_planning_functions() -> None:
    memory = [100 * 6 * PAGE]
    (config,) = get_kv_cache_configs(CONFIG, [LAYERS], memory, groups())
    assert config.num_blocks == 100
    assert [g.slices for g in config.kv_cache_groups] == [3, 1]
    assert [t.block_stride for t in config.kv_cache_tensors] == [2 * PAGE, 6 * PAGE]
    assert [config.num_blocks_of(t) for t in config.kv_cache_tensors] == [300, 100]
    assert not check_kv_cache_configs([config], [LAYERS], "BLHNC", available_memory=memory)
    assert [g.slices for g in generate_scheduler_kv_cache_config([config]).kv_cache_groups] == [
        3,
        1,
    ]
    assert get_kv_cache_config_from_groups(CONFIG, groups(), memory[0]) == config


def test_the_null_block_and_admission_count_whole_blocks() -> None:
    fits = (1 + 6 + 13) * 6 * PAGE
    get_kv_cache_configs(CONFIG, [LAYERS], [fits], groups())
    with pytest.raises(kvplan.NotEnoughMemory):
        get_kv_cache_configs(CONFIG, [LAYERS], [fits - 1], groups())


def test_the_checker_counts_slices() -> None:
    (config,) = get_kv_cache_configs(CONFIG, [LAYERS], [100 * 6 * PAGE], groups())
    config.kv_cache_groups[0].slices = 4
    assert "inside_buffer" in {v.rule for v in check_kv_cache_configs([config], [LAYERS], "BLHNC")}


def test_groups_without_slices_are_as_vllm_has_them() -> None:
    (config,) = get_kv_cache_configs(CONFIG, [LAYERS], [1 << 30])
    assert {g.slices for g in config.kv_cache_groups} == {1}


@pytest.mark.parametrize("slices", [0, -1, 2**63, 1.5])
def test_slices_out_of_range_are_refused(slices: float) -> None:
    with pytest.raises((ValueError, TypeError)):
        get_kv_cache_configs(CONFIG, [LAYERS], [1 << 30], groups(slices))  # type: ignore[arg-type]


def test_a_layout_without_slices_is_refused() -> None:
    with pytest.raises(kvplan.LayoutError, match=r"LBNHC.*VLLM_KV_CACHE_LAYOUT"):
        get_kv_cache_configs(CONFIG.replace(kv_cache_layout="LBNHC"), [LAYERS], [1 << 30], groups())


def test_placement_files_hold_the_slices() -> None:
    plan = kvplan.plan(CONFIG, [LAYERS], [100 * 6 * PAGE], groups())
    placement = placement_dict(plan, [LAYERS])
    assert placement["workers"][0]["groups"][0]["slices"] == 3
    text = json.dumps({"placement": placement})
    assert read_placement(text.encode(), "plan.json").violations() == []
    broken = text.replace('"slices": 3', '"slices": 5')
    assert read_placement(broken.encode(), "plan.json").violations()
