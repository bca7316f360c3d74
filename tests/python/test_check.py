"""The checker from Python: correct plans pass, every kind of change is caught."""

from __future__ import annotations

import copy

import pytest

import kvplan
from kvplan import check, specs

GIB = 1 << 30


def full(heads: int = 8, head_size: int = 128, **kwargs):
    return specs.FullAttentionSpec(
        block_size=16, num_kv_heads=heads, head_size=head_size, dtype="bfloat16", **kwargs
    )


def sliding(heads: int = 8, head_size: int = 128):
    return specs.SlidingWindowSpec(
        block_size=16,
        num_kv_heads=heads,
        head_size=head_size,
        dtype="bfloat16",
        sliding_window=1024,
        dcp_sharded=False,
    )


def request(layout: str = "LBNHC"):
    config = kvplan.PlanningConfig(max_model_len=4096, kv_cache_layout=layout)
    layers = {f"full.{i}": full() for i in range(2)} | {f"window.{i}": sliding() for i in range(4)}
    return config, [layers, layers], [GIB, 2 * GIB]


LAYOUTS = ["LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_correct_plans_pass(layout):
    config, layers, memory = request(layout)
    plan = kvplan.plan(config, layers, memory)
    assert check.check_plan(plan) == []
    configs = plan.kv_cache_configs
    assert check.check_kv_cache_configs(configs, layers, layout, available_memory=memory) == []


def mutate_offset(config):
    config.kv_cache_tensors[1].offset += 1


def mutate_layer_stride(config):
    config.kv_cache_tensors[0].layer_stride -= 1


def mutate_block_stride(config):
    config.kv_cache_tensors[0].block_stride -= 1


def mutate_size(config):
    config.kv_cache_tensors[0].size -= 1


def mutate_overflow(config):
    config.kv_cache_tensors[0].offset = 2**63 - 1


def mutate_num_blocks(config):
    config.num_blocks += 1


def mutate_group(config):
    config.kv_cache_groups[0].layer_names.pop()


def mutate_tensor(config):
    config.kv_cache_tensors[0].layers.pop()


def mutate_gap(config):
    for tensor in config.kv_cache_tensors:
        tensor.size *= 2


def mutate_eagle(config):
    config.kv_cache_groups[0].is_eagle_group = True


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("mutate", "rules"),
    [
        (mutate_offset, {"inside_buffer"}),
        (mutate_layer_stride, {"pages_disjoint", "blocks_disjoint"}),
        (mutate_block_stride, {"pages_disjoint", "blocks_disjoint"}),
        (mutate_size, {"equal_sizes"}),
        (mutate_overflow, {"overflow"}),
        (mutate_num_blocks, {"inside_buffer"}),
        (mutate_group, {"one_group"}),
        (mutate_tensor, {"one_tensor"}),
        (mutate_gap, {"no_gaps", "budget"}),
        (mutate_eagle, {"workers_agree"}),
    ],
)
def test_changed_plans_do_not(layout, mutate, rules):
    config, layers, memory = request(layout)
    configs = [copy.deepcopy(c) for c in kvplan.plan(config, layers, memory).kv_cache_configs]
    mutate(configs[0])
    found = check.check_kv_cache_configs(configs, layers, layout, available_memory=memory)
    assert rules & {v.rule for v in found}, found


def test_layers_of_the_worker_decide():
    config, layers, memory = request()
    configs = kvplan.plan(config, layers, memory).kv_cache_configs
    more = [layers[0] | {"forgotten": full()}, layers[1]]
    found = check.check_kv_cache_configs(configs, more, "LBNHC")
    assert {(v.rule, v.worker) for v in found} == {("one_group", 0), ("one_tensor", 0)}
    assert "forgotten" in found[0].message


def test_uniform_type_groups():
    config = kvplan.PlanningConfig(max_model_len=4096, kv_cache_layout="BLHNC")
    layers = {f"a.{i}": full(8) for i in range(3)} | {f"b.{i}": full(2) for i in range(3)}
    plan = kvplan.plan(config, [layers], [GIB])
    assert len(plan.kv_cache_groups) == 1
    assert check.check_plan(plan) == []
    configs = [copy.deepcopy(c) for c in plan.kv_cache_configs]
    assert check.check_kv_cache_configs(configs, [layers], "BLHNC") == []
    configs[0].kv_cache_tensors[1].offset -= 64
    found = check.check_kv_cache_configs(configs, [layers], "BLHNC")
    assert [v.rule for v in found] == ["pages_disjoint"]


def test_blocks_of_two_groups_that_share_bytes():
    config = kvplan.PlanningConfig(max_model_len=4096, kv_cache_layout="LHBNC")
    layers = {"full": full(4, 512)} | {f"window.{i}": sliding(16, 256) for i in range(5)}
    plan = kvplan.plan(config, [layers], [GIB])
    assert [v.rule for v in check.check_plan(plan)] == ["blocks_disjoint"]
    assert any("share bytes" in w for w in plan.warnings)


def test_arguments_must_belong_together():
    config, layers, memory = request()
    configs = kvplan.plan(config, layers, memory).kv_cache_configs
    with pytest.raises(ValueError, match="2 configs for 1 workers"):
        check.check_kv_cache_configs(configs, layers[:1], "LBNHC")
    with pytest.raises(ValueError, match="1 memory sizes for 2 workers"):
        check.check_kv_cache_configs(configs, layers, "LBNHC", available_memory=[1])
    with pytest.raises(ValueError, match="unknown KV cache layout"):
        check.check_kv_cache_configs(configs, layers, "XBNHC")
    broken = [copy.deepcopy(c) for c in configs]
    broken[0].num_blocks = 2**64
    with pytest.raises(ValueError, match="64-bit"):
        check.check_kv_cache_configs(broken, layers, "LBNHC")
