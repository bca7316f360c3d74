"""The checker from Python: correct plans pass, every kind of change is caught."""

from __future__ import annotations

import copy

import pytest
from spec_makers import full, sliding

import kvplan
from kvplan import check

GIB = 1 << 30


def request(layout: str = "LBNHC"):
    config = kvplan.PlanningConfig(max_model_len=4096, kv_cache_layout=layout)
    window = sliding(1024, 8, 128, dcp_sharded=False)
    layers = {f"full.{i}": full(8, 128) for i in range(2)}
    layers |= {f"window.{i}": window for i in range(4)}
    return config, [layers, layers], [GIB, 2 * GIB]


LAYOUTS = ["LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_correct_plans_pass(layout):
    config, layers, memory = request(layout)
    plan = kvplan.plan(config, layers, memory)
    assert check.check_plan(plan) == []
    configs = plan.kv_cache_configs
    assert check.check_kv_cache_configs(configs, layers, layout, available_memory=memory) == []


def vary(changed, name, by):
    setattr(changed, name, getattr(changed, name) + by)


OVERLAP = {"pages_disjoint", "blocks_disjoint"}


@pytest.mark.parametrize(
    ("change", "rules"),
    [
        (lambda c: setattr(c.kv_cache_tensors[1], "offset", 1), {"inside_buffer"}),
        (lambda c: setattr(c.kv_cache_tensors[0], "offset", 2**63 - 1), {"overflow"}),
        (lambda c: vary(c.kv_cache_tensors[0], "layer_stride", -1), OVERLAP),
        (lambda c: vary(c.kv_cache_tensors[0], "block_stride", -1), OVERLAP),
        (lambda c: vary(c.kv_cache_tensors[0], "size", -1), {"equal_sizes"}),
        (lambda c: [vary(t, "size", t.size) for t in c.kv_cache_tensors], {"no_gaps", "budget"}),
        (lambda c: vary(c, "num_blocks", 1), {"inside_buffer"}),
        (lambda c: c.kv_cache_groups[0].layer_names.pop(), {"one_group"}),
        (lambda c: c.kv_cache_tensors[0].layers.pop(), {"one_tensor"}),
        (lambda c: setattr(c.kv_cache_groups[0], "is_eagle_group", True), {"workers_agree"}),
    ],
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_changed_plans_do_not(layout, change, rules):
    config, layers, memory = request(layout)
    configs = [copy.deepcopy(c) for c in kvplan.plan(config, layers, memory).kv_cache_configs]
    change(configs[0])
    found = check.check_kv_cache_configs(configs, layers, layout, available_memory=memory)
    assert rules & {v.rule for v in found}, found


def test_layers_of_the_worker_decide():
    config, layers, memory = request()
    configs = kvplan.plan(config, layers, memory).kv_cache_configs
    more = [layers[0] | {"forgotten": full(8, 128)}, layers[1]]
    found = check.check_kv_cache_configs(configs, more, "LBNHC")
    assert {(v.rule, v.worker) for v in found} == {("one_group", 0), ("one_tensor", 0)}
    assert "forgotten" in found[0].message


def test_uniform_type_groups():
    config = kvplan.PlanningConfig(max_model_len=4096, kv_cache_layout="BLHNC")
    layers = {f"{heads}.{i}": full(heads, 128) for heads in (8, 2) for i in range(3)}
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
    layers = {"full": full(4, 512)} | {f"window.{i}": sliding(1024, 16, 256) for i in range(5)}
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
