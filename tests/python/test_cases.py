"""Reported cases: what users ran into, with the right answer (`grouping="vllm"`)."""

import json
import re
from collections import Counter

import pytest
import reported_cases as cases

import kvplan
from kvplan import check, planning, request

GIB = cases.GIB


def plan(described):
    r = request.loads(json.dumps(described))
    planned = kvplan.plan(r.planning_config(), r.kv_cache_specs(), r.available_memory())
    assert check.check_plan(planned) == []
    return planned


def refusal(described):
    """The `NotEnoughMemory` that the request ends in."""
    with pytest.raises(kvplan.NotEnoughMemory) as caught:
        plan(described)
    return caught.value


def widths(planned):
    """How many layers each group has."""
    return [len(group.layer_names) for group in planned.kv_cache_groups]


def gib(size_bytes):
    return round(size_bytes / GIB, 2)


def test_deepseek_v4_1_flash_holds_what_its_users_logged():
    planned = plan(cases.deepseek_v4_1_flash())
    assert len(planned.groups) == 17
    assert planned.bytes_per_block == 138240
    assert planned.num_blocks == 32622
    assert planned.capacity_tokens == 1057457


def test_one_odd_layer_makes_groups_of_one():
    planned = plan(cases.one_odd_layer())
    assert widths(planned) == [1] * 46
    assert gib(planned.request_bytes) == 5.66


def test_mimo_with_a_drafter():
    planned = plan(cases.mimo())
    assert widths(planned) == [5, 4, 5, 5, 5, 5, 5, 5, 5, 4, 5]
    assert {spec.page_size_bytes for spec in group_specs(planned)} == {40960}
    assert gib(planned.request_bytes) == 4.03


def group_specs(planned):
    return [group.kv_cache_spec for group in planned.kv_cache_groups]


def test_gemma_4_26b_pads_its_full_layers():
    planned = plan(cases.gemma_4_26b())
    assert [spec.block_size for spec in group_specs(planned)] == [16] * 6
    assert {spec.page_size_bytes for spec in group_specs(planned)} == {66560}
    padded = [s for s in group_specs(planned) if type(s).__name__ == "FullAttentionSpec"]
    assert [spec.unpadded_page_size_bytes for spec in padded] == [33024]
    assert planned.max_concurrency == pytest.approx(9.93, abs=0.005)


def test_nemotron_3_nano_attends_64_tokens_in_a_state_sized_page():
    planned = plan(cases.nemotron_3_nano())
    assert Counter(widths(planned)) == {6: 4, 5: 1}
    assert [spec.page_size_bytes for spec in group_specs(planned)] == [540672] * 5
    assert group_specs(planned)[0].block_size == 64
    assert gib(planned.request_bytes) == 6.20
    # Of each attention page, all but 32,768 bytes hold nothing.
    assert planned.groups[0].padding_bytes == 6 * (540672 - 32768)


def test_gpt_oss_with_a_drafter_is_two_groups():
    planned = plan(cases.gpt_oss_eagle3())
    assert widths(planned) == [19, 18]


def test_llama_4_scout_as_full_attention_does_not_fit():
    error = refusal(cases.llama_4_scout(chunked=False))
    assert error.needed_bytes == 240 * GIB
    assert error.estimated_max_len == 3861360
    assert "3861360" in str(error).replace(",", "")


def test_llama_4_scout_with_chunked_layers_fits():
    planned = plan(cases.llama_4_scout(chunked=True))
    assert widths(planned) == [12, 12, 12, 12]
    assert gib(planned.request_bytes) == 60.42


def test_gemma_4_31b_fits_with_few_tokens_in_flight():
    assert gib(plan(cases.gemma_4_31b(32768)).request_bytes) == 45.79
    error = refusal(cases.gemma_4_31b(65536, max_concurrent_batches=2))
    assert gib(error.needed_bytes) == 70.79
    assert error.estimated_max_len == 58368
    assert error.max_in_flight_tokens == 36961
    message = str(error).replace(",", "")
    assert "58368" in message
    assert re.search(r"max_num_batched_tokens\D*18480\b", message)
    fitted = plan(cases.gemma_4_31b(65536, auto_fit=True))
    assert (fitted.max_model_len, fitted.requested_max_model_len) == (58368, 262144)


def test_gemma_4_31b_advice_is_exact():
    assert plan(cases.gemma_4_31b(36961)).max_model_len == 262144
    assert refusal(cases.gemma_4_31b(36962)).max_in_flight_tokens == 36961


def test_the_null_block_is_not_promised():
    error = refusal(cases.eight_blocks(1024))
    assert error.estimated_max_len == 896
    planned = plan(cases.eight_blocks(1024, auto_fit=True))
    assert planned.max_model_len == 896
    assert planned.num_blocks == 8


def test_reported_capacity_leaves_out_the_null_block():
    planned = plan(cases.eight_blocks(896))
    assert planned.usable_blocks == 7
    assert planned.usable_capacity_tokens == 896
    # vLLM's figures for the same pool, which count the null block.
    assert planned.capacity_tokens == 1024
    assert planned.max_concurrency == pytest.approx(8 / 7)


@pytest.mark.parametrize(("override", "estimate"), [(50, 784), (128, 2032)])
def test_an_override_of_too_few_blocks_is_refused(override, estimate):
    assert refusal(cases.opt_125m(override)).estimated_max_len == estimate


def test_an_override_of_enough_blocks_is_accepted():
    assert plan(cases.opt_125m(129)).num_blocks == 129


@pytest.mark.parametrize("override", [1, 50, 128])
@pytest.mark.parametrize("auto_fit", [False, True])
def test_an_override_that_limits_is_named(override, auto_fit):
    if auto_fit and override > 1:
        planned = plan(cases.opt_125m(override, auto_fit=True))
        assert planned.max_model_len == (override - 1) * 16
        return
    with pytest.raises(ValueError, match="num_gpu_blocks_override") as caught:
        plan(cases.opt_125m(override, auto_fit=auto_fit))
    assert "gpu_memory_utilization" not in str(caught.value)


def sizes_in(message):
    """Every size with its unit, as printed."""
    return re.findall(r"[\d.,]+ (?:[KMGT]iB|bytes|B)\b", message)


@pytest.mark.parametrize(
    "described",
    [cases.eight_blocks(1024), cases.opt_125m(128), cases.gemma_4_31b(36962)],
    ids=["eight blocks", "override", "one token in flight too many"],
)
def test_sizes_that_differ_are_printed_differently(described):
    error = refusal(described)
    assert error.needed_bytes > error.available_bytes
    needed, available, *_ = sizes_in(str(error))
    assert needed != available
    assert not re.match(r"0\.0+ ", needed)


def test_uneven_stages_name_the_stage_that_limits():
    memory = [int(3.18 * GIB), int(6.37 * GIB)]
    error = refusal(cases.uneven_stages((16, 32), memory))
    assert error.worker == 0
    assert error.needed_bytes == 8 * GIB
    assert error.estimated_max_len == 104176
    planned = plan(cases.uneven_stages((16, 32), memory, auto_fit=True))
    assert planned.max_model_len == 104176
    assert planned.limiting_worker == 0
    assert [c.num_blocks for c in planned.kv_cache_configs] == [6512, 6512]


def test_stages_shrink_to_the_smallest_block_count():
    planned = plan(cases.uneven_stages((56, 8), [40 * GIB, 40 * GIB]))
    assert [worker.num_blocks for worker in planned.workers] == [23405, 163840]
    large, small = planned.kv_cache_configs
    assert (large.num_blocks, small.num_blocks) == (23405, 23405)
    assert [t.size for t in small.kv_cache_tensors] == [23405 * 8 * 32768]
    assert [t.size for t in large.kv_cache_tensors] == [23405 * 56 * 32768]


def test_a_stage_names_only_its_own_layers():
    own = ("layers.2.mla", "layers.2.indexer")
    planned = plan(cases.deepseek_v4_1_flash(first_stage=own))
    first = planned.kv_cache_configs[0]
    assert [layer for t in first.kv_cache_tensors for layer in t.layers] == list(own)
    for tensor in first.kv_cache_tensors:
        # 64 states of 584 and of 132 bytes, each padded to a multiple of 576.
        assert tensor.size == first.num_blocks * (37440 + 8640)
        assert tensor.offset in (0, 37440)
        assert tensor.block_stride == 37440 + 8640
    assert sorted(map(len, (g.layer_names for g in first.kv_cache_groups)))[-2:] == [0, 2]


def test_capacity_is_reported_for_one_engine_too():
    planned = plan(cases.capacity_twice())
    assert widths(planned) == [7] * 12
    assert planned.num_blocks == 535530
    assert sum(group.pages_per_request for group in planned.groups) == 58465
    assert planned.max_concurrency == pytest.approx(9.16, abs=0.005)
    assert planned.steady_concurrency == pytest.approx(115, abs=0.5)
    assert planned.steady_capacity_tokens == pytest.approx(115 * 131072, rel=0.005)


def test_the_largest_safe_block_id():
    assert plan(cases.wrapping_elements()).max_safe_block_id_elements == 65536 - 1
    planned = plan(cases.wrapping_bytes())
    assert planned.bytes_per_block == 1002240
    assert planned.max_safe_block_id_bytes == 2143 - 1


def test_functions_agree_with_the_plan():
    """The mirrored functions and `plan` are two doors to one planner."""
    r = request.loads(json.dumps(cases.deepseek_v4_1_flash()))
    config, specs, memory = r.planning_config(), r.kv_cache_specs(), r.available_memory()
    groups = planning.get_global_kv_cache_groups(config, specs)
    configs = planning.get_kv_cache_configs(config, specs, memory, groups)
    planned = kvplan.plan(config, specs, memory)
    assert configs == list(planned.kv_cache_configs)
    assert groups == list(planned.kv_cache_groups)
