"""grouping="sliced" on real models: tokens, groups, padding, against vLLM and the bound."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from built_in_kinds import KINDS
from cli_runner import run
from test_compact import config, deepseek_v4_1_flash, full, layers, mamba, mimo, sliding

import kvplan
from kvplan.check import check_kv_cache_configs, check_plan
from kvplan.offline import models

GIB = 1 << 30


def sliced_config(length, **fields):
    return config(length, **{"kv_cache_layout": "BLHNC"} | fields).replace(grouping="sliced")


def plan_both(specs, cfg, memory):
    """The plan of vLLM and the sliced one, both checked."""
    workers = specs if isinstance(specs, list) else [specs]
    plans = []
    for grouping in ("vllm", "sliced"):
        plan = kvplan.plan(cfg.replace(grouping=grouping), workers, [memory] * len(workers))
        assert check_plan(plan) == []
        configs = plan.kv_cache_configs
        assert check_kv_cache_configs(configs, workers, cfg.kv_cache_layout) == []
        plans.append(plan)
    return plans


def above_the_bound(specs, cfg, plan):
    """What a request's slices hold beyond its content, as a part of that."""
    workers = specs if isinstance(specs, list) else [specs]
    bound = kvplan.frontier(cfg.replace(grouping="compact"), workers).lower_bound_bytes
    held = sum(g.pages_per_request * g.slice_bytes for g in plan.groups)
    return held / bound - 1


@pytest.mark.parametrize(("length", "gain"), [(524288, 1.61), (1000000, 1.67)])
def test_deepseek_v4_1_flash_holds_more_tokens_in_four_groups(length, gain):
    cfg = sliced_config(length, max_in_flight_tokens=16384)
    vllm, sliced = plan_both(deepseek_v4_1_flash(), cfg, 4509715660)
    assert len(vllm.groups) == 17
    assert len(sliced.groups) == 4
    assert sliced.capacity_tokens >= gain * vllm.capacity_tokens
    assert sliced.num_blocks >= 700
    if length == 524288:
        assert vllm.capacity_tokens == 1057457
        # The figure is not one of counting: as many whole requests fit in whole blocks.
        assert int(sliced.max_concurrency) == 3
        assert int(vllm.max_concurrency) == 2


@pytest.mark.parametrize("heads", [16, 8, 4, 2])
def test_gemma_3_27b_has_two_groups_and_no_padding(heads):
    model = layers((10, full(heads, 128)), (52, sliding(1024, heads, 128)))
    vllm, sliced = plan_both(model, sliced_config(131072), 40 * GIB)
    assert (len(vllm.groups), len(sliced.groups)) == (7, 2)
    assert [g.padding_bytes for g in sliced.groups] == [0, 0]
    assert [g.slices for g in sliced.groups] == [26, 5]
    assert sliced.capacity_tokens > 1.035 * vllm.capacity_tokens


#: Bytes for the KV cache of a GPU: a deployment in which the built-in models run.
MEMORY = 40 * GIB
#: One request of their full length needs more.
TOO_LONG = {"glm-5.2", "llama-4-scout"}


@pytest.mark.parametrize("length", [4096, 32768, None])
@pytest.mark.parametrize("name", sorted(set(KINDS) - TOO_LONG))
def test_built_in_models_stay_near_the_lower_bound(name, length):
    options = models.ModelOptions(
        tensor_parallel_size=4, kv_cache_layout="BLHNC", max_model_len=length
    )
    found = models.kv_cache_specs(models.load(name), options)
    cfg = found.planning_config(grouping="sliced")
    _, sliced = plan_both(found.kv_cache_specs, cfg, MEMORY)
    over = above_the_bound(found.kv_cache_specs, cfg, sliced)
    assert 0 <= over < 0.09, f"{over:.2%}"
    for worker in sliced.workers:
        assert worker.bytes_per_block * sliced.num_blocks <= MEMORY


@pytest.mark.parametrize("length", [4096, 65536, 524288])
def test_short_and_long_lengths_stay_within_three_percent(length):
    cfg = sliced_config(length, max_in_flight_tokens=16384)
    model = deepseek_v4_1_flash()
    _, sliced = plan_both(model, cfg, 4509715660)
    assert above_the_bound(model, cfg, sliced) < 0.03
    _, sliced = plan_both(mimo(), sliced_config(length), 20 * GIB)
    assert above_the_bound(mimo(), sliced_config(length), sliced) < 0.03


def test_a_plan_for_long_requests_serves_short_ones_without_padding_more():
    """The slices are chosen for one length; what pages hold does not depend on it."""
    long = kvplan.plan(
        sliced_config(524288, max_in_flight_tokens=16384), [deepseek_v4_1_flash()], [4509715660]
    )
    content = sum(g.content_bytes * g.pages_per_request for g in long.groups)
    held = sum(g.slice_bytes * g.pages_per_request for g in long.groups)
    for group in long.groups:
        assert group.padding_bytes <= 0.15 * group.slice_bytes
    assert held < 1.02 * content


def test_reports_count_whole_blocks_of_the_pool():
    plan = kvplan.plan(
        sliced_config(524288, max_in_flight_tokens=16384), [deepseek_v4_1_flash()], [4509715660]
    )
    for group in plan.groups:
        assert group.slice_bytes * group.slices == plan.bytes_per_block
        assert group.pool_blocks_per_request == -(-group.pages_per_request // group.slices)
        assert group.page_size_bytes <= group.slice_bytes
        assert group.max_safe_block_id_bytes == (2**31 - 1) // group.slice_bytes
    assert plan.request_blocks == sum(g.pool_blocks_per_request for g in plan.groups)
    assert plan.request_bytes == plan.request_blocks * plan.bytes_per_block
    assert plan.max_safe_block_id_bytes * plan.bytes_per_block < 2**31
    assert [g.slices for g in plan.kv_cache_groups] == [g.slices for g in plan.groups]


def test_auto_fit_finds_the_longest_length_of_whole_blocks():
    cfg = sliced_config(524288, max_in_flight_tokens=8192)
    plan = kvplan.plan(cfg.replace(auto_fit=True), [deepseek_v4_1_flash()], [1 << 30])
    fitted = plan.max_model_len
    assert fitted < 524288
    groups = plan.kv_cache_groups
    for length, fits in ((fitted, True), (fitted + 1, False)):
        cfg_at = cfg.replace(max_model_len=length)
        if fits:
            kvplan.plan(cfg_at, [deepseek_v4_1_flash()], [1 << 30], groups)
        else:
            with pytest.raises(kvplan.NotEnoughMemory) as error:
                kvplan.plan(cfg_at, [deepseek_v4_1_flash()], [1 << 30], groups)
            assert error.value.estimated_max_len == fitted
            assert "whole blocks" in str(error.value)


def test_all_workers_take_one_number_of_blocks():
    model = mimo()
    names = list(model)
    stages = [{n: model[n] for n in names[s::3]} for s in range(3)]
    cfg = sliced_config(65536, pipeline_parallel_size=3)
    memory = [8 * GIB, 9 * GIB, 7 * GIB]
    plan = kvplan.plan(cfg, stages, memory)
    assert check_plan(plan) == []
    assert plan.num_blocks == min(
        m // w.bytes_per_block for m, w in zip(memory, plan.workers, strict=True)
    )
    slices = {tuple(g.slices for g in c.kv_cache_groups) for c in plan.kv_cache_configs}
    assert len(slices) == 1


def test_the_two_calls_of_vllm_plan_what_one_call_does():
    cfg = sliced_config(131072)
    model = mimo()
    groups = kvplan.get_global_kv_cache_groups(cfg, [model])
    configs = kvplan.get_kv_cache_configs(cfg, [model], [20 * GIB], groups)
    assert check_kv_cache_configs(configs, [model], "BLHNC", available_memory=[20 * GIB]) == []
    # Without the memory the smallest pool is assumed, whose blocks are no wider.
    known = kvplan.get_kv_cache_configs(cfg, [model], [20 * GIB])
    assert configs[0].num_blocks >= known[0].num_blocks


def test_min_large_blocks_bounds_the_block():
    model = deepseek_v4_1_flash()
    cfg = sliced_config(524288, max_in_flight_tokens=16384)
    for blocks in (700, 1500, 2500):
        plan = kvplan.plan(cfg.replace(min_large_blocks=blocks), [model], [4509715660])
        assert plan.num_blocks >= blocks
    with pytest.raises(ValueError, match="min_large_blocks"):
        cfg.replace(min_large_blocks=0)


def test_one_kind_is_grouped_as_vllm_does_and_says_so():
    plan = kvplan.plan(sliced_config(4096), [layers((4, full(8, 128)))], [GIB])
    assert [g.slices for g in plan.groups] == [1]
    assert any("one kind of cache" in message for _, message in plan.notices)


def test_a_layer_outermost_layout_is_refused_with_the_knob():
    cfg = sliced_config(4096, kv_cache_layout="LBNHC")
    with pytest.raises(kvplan.LayoutError, match=r"LBNHC.*VLLM_KV_CACHE_LAYOUT.*BLHNC"):
        kvplan.plan(cfg, [mimo()], [GIB])
    assert kvplan.sliced_point(cfg, [mimo()]) is None


def test_states_and_attention_share_blocks():
    model = layers((23, mamba(540_672, 64)), (6, full(1, 128, 64)))
    vllm, sliced = plan_both(model, sliced_config(131072), 4 * GIB)
    assert len(sliced.groups) == 2
    assert above_the_bound(model, sliced_config(131072), sliced) < 0.03
    assert sliced.capacity_tokens > 1.02 * vllm.capacity_tokens


def test_plan_as_json_and_check(tmp_path):
    result = run("plan", "gemma-3-27b", "--memory", "40GiB", "--grouping", "sliced", "--json")
    plan = json.loads(result.stdout)
    assert [g["slices"] for g in plan["groups"]] == [5, 26]
    assert [g["slices"] for g in plan["placement"]["workers"][0]["groups"]] == [5, 26]
    assert plan["config"]["kv_cache_layout"] == "BLHNC", "sliced asks for a layout of its own"
    path = tmp_path / "plan.json"
    path.write_text(result.stdout)
    assert run("check", str(path)).exit_code == 0
    plan["placement"]["workers"][0]["groups"][0]["slices"] = 6
    path.write_text(json.dumps(plan))
    assert run("check", str(path)).exit_code == 1


def test_table_explain_and_diff_speak_of_slices():
    table = run("plan", "gemma-3-27b", "--memory", "40GiB", "--grouping", "sliced").stdout
    assert "slices" in table
    assert "1,260 of 32.50 MiB" in table
    explain = run("explain", "gemma-3-27b", "--grouping", "sliced").stdout
    assert "A block holds 5 slices of 6.50 MiB." in " ".join(explain.split())
    diff = run("diff", "gemma-3-27b", "--grouping sliced", "--memory", "40GiB").stdout
    assert re.search(r"slices +- +5, 26", diff)
    assert "slices" not in run("plan", "gemma-3-27b", "--memory", "40GiB").stdout


def test_map_draws_every_slice(tmp_path):
    path = tmp_path / "map.svg"
    assert run("map", "gemma-3-27b", "--grouping", "sliced", "-o", str(path)).exit_code == 0
    text = path.read_text()
    slices = re.findall(r">(\d+) slices of ", text)
    assert len(slices) == 2
    assert text.count('class="cut"') >= sum(int(n) - 1 for n in slices)


def test_frontier_shows_the_sliced_point(tmp_path):
    plot = tmp_path / "curve.svg"
    result = run("frontier", "gemma-3-27b", "--memory", "40GiB", "--plot", str(plot), "--json")
    answer = json.loads(result.stdout)
    assert answer["sliced"]["num_groups"] == 2
    assert answer["sliced"]["slices"] == [5, 26]
    assert answer["sliced"]["request_bytes"] == answer["lower_bound_bytes"]
    assert answer["sliced"]["request_bytes"] < answer["vllm"]["request_bytes"]
    assert ">sliced: 2 groups, " in plot.read_text()
    assert run("frontier", "gemma-3-27b").stdout.count(" sliced") == 1
    one_kind = json.loads(run("frontier", "llama-3.1-70b", "--json").stdout)
    assert one_kind["sliced"] is None


def test_sweep_plans_sliced_grouping():
    rows = run(
        "sweep", "gemma-3-27b", "--memory", "40GiB", "--grouping", "vllm,sliced", "--quiet"
    ).stdout.splitlines()
    columns = rows[0].split(",")
    groups, tokens = columns.index("num_groups"), columns.index("capacity_tokens")
    vllm, sliced = (row.split(",") for row in rows[1:])
    assert (vllm[groups], sliced[groups]) == ("7", "2")
    assert int(sliced[tokens]) > int(vllm[tokens])


def test_the_documented_picture_is_current(tmp_path):
    docs = Path(__file__).parents[2] / "docs"
    name = "map-deepseek-v4.1-flash-sliced.svg"
    command = "map deepseek-v4.1-flash --tp 4 --memory 4GiB --grouping sliced -o {}"
    text = (docs / "sliced.md").read_text()
    assert f"](images/{name})" in text
    assert command.format("sliced.svg") in text
    assert run(*command.format(tmp_path / name).split()).exit_code == 0
    assert (tmp_path / name).read_text() == (docs / "images" / name).read_text()


def test_the_documented_arithmetic_of_the_reported_case():
    cfg = sliced_config(524288, max_in_flight_tokens=16384)
    vllm, sliced = plan_both(deepseek_v4_1_flash(), cfg, 4509715660)
    text = (Path(__file__).parents[2] / "docs" / "sliced.md").read_text()
    assert f"{vllm.request_bytes:,} bytes" in text
    assert f"W =\n{sliced.bytes_per_block:,}" in text
    assert f"has {sliced.num_blocks:,} such blocks" in text
    for group in sliced.groups:
        held = group.slice_bytes * group.pages_per_request
        assert f"| {group.slices} | {group.slice_bytes:,} |" in text
        assert f"{held:,} |" in text
    assert f"{sliced.capacity_tokens:,} tokens with 4 groups" in text
    assert f"holds {vllm.capacity_tokens:,} with 17" in text


@pytest.mark.parametrize("length", [8192, 131072, 524288])
def test_the_pool_admits_as_many_requests_as_the_plan_says(length):
    cfg = sliced_config(length, max_in_flight_tokens=16384)
    plan = kvplan.plan(cfg, [deepseek_v4_1_flash()], [4509715660])
    pool = kvplan.SlicedBlockPool(plan.num_blocks, [g.slices for g in plan.groups])
    pages = [g.pages_per_request for g in plan.groups]
    requests = 0
    while pool.can_allocate(pages):
        pool.allocate(pages)
        requests += 1
    assert requests >= 1, "one request of the planned length fits"
    assert requests == plan.usable_capacity_tokens // plan.max_model_len


@pytest.mark.parametrize("slices", [0, -1, 2**31, 2**62])
def test_groups_with_impossible_slices_are_named(slices):
    cfg, model = sliced_config(4096), deepseek_v4_1_flash()
    groups = kvplan.plan(cfg, [model], [1 << 30]).kv_cache_groups
    groups[1].slices = slices
    with pytest.raises(kvplan.InvalidArgument, match=f"slices.*{slices}"):
        kvplan.plan(cfg, [model], [1 << 30], groups)
