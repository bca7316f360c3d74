"""grouping="sliced" on real models: tokens, groups, padding, against vLLM and the bound."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import reported_cases as cases
from built_in_kinds import KINDS
from cli_runner import answer_to, run
from spec_makers import full, layers, mamba
from test_compact import inputs

import kvplan
from kvplan.check import check_kv_cache_configs, check_plan
from kvplan.offline import models

GIB = 1 << 30
SLICED = {"grouping": "sliced", "kv_cache_layout": "BLHNC"}


def deepseek(length=524288):
    return inputs(cases.deepseek_v4_1_flash(), max_model_len=length, **SLICED)


def mimo(length, **changes):
    return inputs(cases.mimo(), max_model_len=length, **SLICED | changes)


def plan_both(cfg, workers, memory):
    """The plan of vLLM and the sliced one, both checked."""
    plans = []
    for grouping in ("vllm", "sliced"):
        plan = kvplan.plan(cfg.replace(grouping=grouping), workers, [memory] * len(workers))
        assert check_plan(plan) == []
        configs = plan.kv_cache_configs
        assert check_kv_cache_configs(configs, workers, cfg.kv_cache_layout) == []
        plans.append(plan)
    return plans


def above_the_bound(cfg, workers, plan):
    """What a request's slices hold beyond its content, as a part of that."""
    bound = kvplan.frontier(cfg.replace(grouping="compact"), workers).lower_bound_bytes
    held = sum(g.pages_per_request * g.slice_bytes for g in plan.groups)
    return held / bound - 1


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
    _, sliced = plan_both(cfg, found.kv_cache_specs, MEMORY)
    over = above_the_bound(cfg, found.kv_cache_specs, sliced)
    assert 0 <= over < 0.09, f"{over:.2%}"
    for worker in sliced.workers:
        assert worker.bytes_per_block * sliced.num_blocks <= MEMORY


@pytest.mark.parametrize(
    ("length", "gain"), [(4096, 1), (65536, 1), (524288, 1.61), (1000000, 1.67)]
)
def test_short_and_long_lengths_stay_within_three_percent(length, gain):
    for described, memory in ((deepseek(length), 4509715660), (mimo(length), 20 * GIB)):
        _, sliced = plan_both(*described, memory)
        assert above_the_bound(*described, sliced) < 0.03
    vllm, sliced = plan_both(*deepseek(length), 4509715660)
    assert (len(vllm.groups), len(sliced.groups)) == (17, 4)
    assert sliced.capacity_tokens >= gain * vllm.capacity_tokens


def test_the_two_calls_of_vllm_plan_what_one_call_does():
    cfg, workers = mimo(131072)
    groups = kvplan.get_global_kv_cache_groups(cfg, workers)
    configs = kvplan.get_kv_cache_configs(cfg, workers, [20 * GIB], groups)
    assert check_kv_cache_configs(configs, workers, "BLHNC", available_memory=[20 * GIB]) == []
    # Without the memory the smallest pool is assumed, whose blocks are no wider.
    known = kvplan.get_kv_cache_configs(cfg, workers, [20 * GIB])
    assert configs[0].num_blocks >= known[0].num_blocks
    # Every step carries the slices on.
    slices = [group.slices for group in groups]
    scheduler = kvplan.planning.generate_scheduler_kv_cache_config(configs)
    assert [group.slices for group in scheduler.kv_cache_groups] == slices
    placed = kvplan.get_kv_cache_config_from_groups(cfg, groups, 20 * GIB)
    for config in (configs[0], placed):
        assert [group.slices for group in config.kv_cache_groups] == slices
        for tensor, k in zip(config.kv_cache_tensors, slices, strict=False):
            assert config.num_blocks_of(tensor) == config.num_blocks * k
    configs[0].kv_cache_groups[0].slices += 1
    assert check_kv_cache_configs(configs, workers, "BLHNC") != []


def test_a_layer_outermost_layout_is_refused_with_the_knob():
    cfg, workers = mimo(4096, kv_cache_layout="LBNHC")
    with pytest.raises(kvplan.LayoutError, match=r"LBNHC.*VLLM_KV_CACHE_LAYOUT.*BLHNC"):
        kvplan.plan(cfg, workers, [GIB])
    assert kvplan.sliced_point(cfg, workers) is None


def test_a_length_that_does_not_fit_is_counted_in_whole_blocks():
    cfg, workers = deepseek()
    fitted = kvplan.plan(cfg.replace(auto_fit=True), workers, [1 << 30])
    longer = cfg.replace(max_model_len=fitted.max_model_len + 1)
    with pytest.raises(kvplan.NotEnoughMemory, match="whole blocks") as error:
        kvplan.plan(longer, workers, [1 << 30], fitted.kv_cache_groups)
    assert error.value.estimated_max_len == fitted.max_model_len < 524288


def test_states_and_attention_share_blocks():
    model = [layers((23, mamba(540_672, 64)), (6, full(1, 128, 64)))]
    cfg = kvplan.PlanningConfig(max_model_len=131072, **SLICED)
    vllm, sliced = plan_both(cfg, model, 4 * GIB)
    assert len(sliced.groups) == 2
    assert above_the_bound(cfg, model, sliced) < 0.03
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
    one_kind = answer_to("frontier", "llama-3.1-70b")
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


def test_the_documented_arithmetic_of_the_reported_case():
    vllm, sliced = plan_both(*deepseek(), 4509715660)
    # The figure is not one of counting: as many whole requests fit in whole blocks.
    assert (int(vllm.max_concurrency), int(sliced.max_concurrency)) == (2, 3)
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
    cfg, workers = deepseek(length)
    plan = kvplan.plan(cfg, workers, [4509715660])
    pool = kvplan.SlicedBlockPool(plan.num_blocks, [g.slices for g in plan.groups])
    pages = [g.pages_per_request for g in plan.groups]
    requests = 0
    while pool.can_allocate(pages):
        pool.allocate(pages)
        requests += 1
    assert requests >= 1, "one request of the planned length fits"
    assert requests == plan.usable_capacity_tokens // plan.max_model_len


@pytest.mark.parametrize("slices", [0, -1, 1.5, 2**31, 2**62, 2**63])
def test_groups_with_impossible_slices_are_named(slices):
    cfg, workers = deepseek(4096)
    groups = kvplan.plan(cfg, workers, [1 << 30]).kv_cache_groups
    groups[1].slices = slices
    with pytest.raises((ValueError, TypeError), match=r"slices|64-bit"):
        kvplan.plan(cfg, workers, [1 << 30], groups)
