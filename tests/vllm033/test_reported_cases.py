"""The reported cases as vLLM 0.33.0 itself answers them: the figures that kvplan must repeat."""

import dropin_outcome
import native
import oracle
import pytest
import reported_cases as cases
from reported_cases import PLANNED, REFUSED

import kvplan.vllm

GIB = cases.GIB
planning = oracle.kv_cache_planning

STAGE_WITHOUT_A_GROUP = cases.deepseek_v4_1_flash(("layers.2.mla", "layers.2.indexer"))


@pytest.mark.parametrize("name", PLANNED)
def test_vllm_plans(name):
    described, num_groups, request_gib, num_blocks, tokens = PLANNED[name]
    config, specs, _ = oracle.inputs(described)
    groups = planning.get_global_kv_cache_groups(config, specs)
    needed = planning._max_memory_usage_bytes_from_groups(oracle.BUILDER, config, groups)
    outcome = oracle.run(described)
    assert len(outcome["kv_cache_groups"]) == num_groups
    assert round(needed / GIB, 2) == request_gib
    assert {c["num_blocks"] for c in outcome["kv_cache_configs"]} == {num_blocks}
    assert outcome["capacity"][0] == tokens
    assert native.compare(described) == []


@pytest.mark.parametrize("name", REFUSED)
def test_vllm_refuses(name):
    described, estimate = REFUSED[name]
    outcome = oracle.run(described)
    assert outcome["error"] == "ValueError"
    assert f"maximum model length is {estimate}. " in outcome["message"]
    assert native.compare(described) == []
    fitted = cases.auto_fitted(described)
    assert oracle.run(fitted)["max_model_len"] == estimate
    assert native.compare(fitted) == []


def test_vllm_hands_a_stage_layers_that_it_does_not_own():
    tensors = oracle.run(STAGE_WITHOUT_A_GROUP)["kv_cache_configs"][0]["kv_cache_tensors"]
    assert len({layer for t in tensors for layer in t["layers"]}) == 43 + 2 + 2
    assert native.compare(STAGE_WITHOUT_A_GROUP) == []


IN_VLLM = {name: described for name, (described, *_) in (PLANNED | REFUSED).items()}
IN_VLLM |= {f"{name}, fitted": cases.auto_fitted(described) for name, described in IN_VLLM.items()}
IN_VLLM["a stage without some group"] = STAGE_WITHOUT_A_GROUP


@pytest.mark.parametrize("name", IN_VLLM)
def test_the_drop_in_answers_as_vllm(name):
    kvplan.vllm.install()
    try:
        before = kvplan.vllm.stats()
        assert dropin_outcome.difference(IN_VLLM[name]) is None
        after = kvplan.vllm.stats()
        assert after["fallback"] == before["fallback"]
        planned = [s["native"].get("get_global_kv_cache_groups", 0) for s in (before, after)]
        assert planned[1] == planned[0] + 1
    finally:
        kvplan.vllm.uninstall()
