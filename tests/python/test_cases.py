"""Reported cases: what users ran into, with the right answer (`grouping="vllm"`)."""

import json
import re

import pytest
import reported_cases as cases

import kvplan
from kvplan import check, request

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


@pytest.mark.parametrize("name", cases.PLANNED)
def test_what_fits(name):
    described, num_groups, request_gib, num_blocks, tokens = cases.PLANNED[name]
    planned = plan(described)
    assert len(planned.groups) == num_groups
    if len(described["workers"]) == 1:  # else it is that of the limiting stage
        assert round(planned.request_bytes / GIB, 2) == request_gib
    assert {c.num_blocks for c in planned.kv_cache_configs} == {num_blocks}
    assert planned.capacity_tokens == tokens
    # Between the messages' figures and the plan's own, only the null block is left out.
    assert planned.usable_blocks == num_blocks - 1
    assert planned.usable_capacity_tokens < tokens


def sizes_in(message):
    """Every size with its unit, as printed."""
    return re.findall(r"[\d.,]+ (?:[KMGT]iB|bytes|B)\b", message)


@pytest.mark.parametrize("name", cases.REFUSED)
def test_what_does_not_fit(name):
    described, longest = cases.REFUSED[name]
    error = refusal(described)
    assert error.estimated_max_len == longest
    assert str(longest) in str(error).replace(",", "")
    assert error.needed_bytes > error.available_bytes
    needed, available, *_ = sizes_in(str(error))
    assert needed != available, "sizes that differ are printed differently"
    assert not re.match(r"0\.0+ ", needed)
    fitted = plan(cases.auto_fitted(described))
    assert fitted.max_model_len == longest
    assert fitted.requested_max_model_len == described["config"]["max_model_len"]


def test_pages_that_are_padded():
    gemma = plan(cases.gemma_4_26b()).kv_cache_groups
    assert {group.kv_cache_spec.page_size_bytes for group in gemma} == {66560}
    assert min(group.kv_cache_spec.unpadded_page_size_bytes for group in gemma) == 33024
    # Of each attention page beside a state, all but 32,768 bytes hold nothing.
    nemotron = plan(cases.nemotron_3_nano())
    assert nemotron.groups[0].padding_bytes == 6 * (540672 - 32768)


def test_tokens_in_flight_are_the_knob_of_windows():
    error = refusal(cases.gemma_4_31b(65536, max_concurrent_batches=2))
    assert round(error.needed_bytes / GIB, 2) == 70.79
    assert error.max_in_flight_tokens == 36961
    assert re.search(r"max_num_batched_tokens\D*18480\b", str(error).replace(",", ""))
    assert refusal(cases.gemma_4_31b(36962)).max_in_flight_tokens == 36961


@pytest.mark.parametrize("override", [1, 50, 128])
def test_an_override_that_limits_is_named(override):
    with pytest.raises(ValueError, match="num_gpu_blocks_override") as caught:
        plan(cases.opt_125m(override))
    assert "gpu_memory_utilization" not in str(caught.value)


def test_uneven_stages_name_the_stage_that_limits():
    error = refusal(cases.REFUSED["uneven stages"][0])
    assert (error.worker, error.needed_bytes) == (0, 8 * GIB)
    planned = plan(cases.PLANNED["uneven stages"][0])
    assert planned.limiting_worker == 0
    assert [worker.num_blocks for worker in planned.workers] == [23405, 163840]
    assert [[t.size for t in c.kv_cache_tensors] for c in planned.kv_cache_configs] == [
        [23405 * 56 * 32768],
        [23405 * 8 * 32768],
    ]


def test_a_stage_names_only_its_own_layers():
    own = ("layers.2.mla", "layers.2.indexer")
    first = plan(cases.deepseek_v4_1_flash(first_stage=own)).kv_cache_configs[0]
    assert [layer for t in first.kv_cache_tensors for layer in t.layers] == list(own)
    for tensor in first.kv_cache_tensors:
        # 64 states of 584 and of 132 bytes, each padded to a multiple of 576.
        assert tensor.size == first.num_blocks * (37440 + 8640)
        assert tensor.offset in (0, 37440)
        assert tensor.block_stride == 37440 + 8640
    assert sorted(map(len, (g.layer_names for g in first.kv_cache_groups)))[-2:] == [0, 2]


def test_tokens_in_flight_count_once_in_the_steady_figure():
    planned = plan(cases.capacity_twice())
    assert planned.max_concurrency == pytest.approx(9.16, abs=0.005)
    assert planned.steady_concurrency == pytest.approx(115, abs=0.5)
    assert planned.steady_capacity_tokens == pytest.approx(115 * 131072, rel=0.005)


def test_the_largest_safe_block_id():
    assert plan(cases.wrapping_elements()).max_safe_block_id_elements == 65536 - 1
    planned = plan(cases.wrapping_bytes())
    assert planned.bytes_per_block == 1002240
    assert planned.max_safe_block_id_bytes == 2143 - 1
