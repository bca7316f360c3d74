"""The reported cases as vLLM 0.33.0 itself answers them: the figures that kvplan must repeat."""

import dropin_outcome
import native
import oracle
import pytest
import reported_cases as cases

import kvplan.vllm

GIB = cases.GIB
planning = oracle.kv_cache_planning

# request -> groups, GiB of one request, blocks, vLLM's capacity in tokens
PLANNED = {
    "deepseek-v4.1-flash": (cases.deepseek_v4_1_flash(), 17, 2.08, 32622, 1057457),
    "one odd layer": (cases.one_odd_layer(), 46, 5.66, 59578, 2778017),
    "mimo": (cases.mimo(), 11, 4.03, 209715, 2601899),
    "gemma-4-26b": (cases.gemma_4_26b(), 6, 1.53, 48976, 325328),
    "nemotron-3-nano": (cases.nemotron_3_nano(), 5, 6.20, 13239, 845644),
    "gpt-oss with a drafter": (cases.gpt_oss_eagle3(), 2, 5.05, 68985, 1037759),
    "llama-4-scout": (cases.llama_4_scout(chunked=True), 4, 60.42, 965345, 15337676),
    "gemma-4-31b": (cases.gemma_4_31b(32768), 6, 45.79, 20070, 280494),
    "eight blocks": (cases.eight_blocks(896), 1, 0.0, 8, 1024),
    "opt-125m": (cases.opt_125m(129), 1, 0.07, 129, 2064),
    "uneven stages": (cases.uneven_stages((56, 8), [40 * GIB] * 2), 1, 32.0, 23405, 374480),
    "capacity twice": (cases.capacity_twice(), 12, 12.49, 535530, 1200598),
}
# request -> estimated maximum model length
REFUSED = {
    "llama-4-scout, all full": (cases.llama_4_scout(chunked=False), 3861360),
    "gemma-4-31b": (cases.gemma_4_31b(65536), 58368),
    "gemma-4-31b, one token in flight too many": (cases.gemma_4_31b(36962), 262048),
    "eight blocks": (cases.eight_blocks(1024), 896),
    "override 50": (cases.opt_125m(50), 784),
    "override 128": (cases.opt_125m(128), 2032),
    "uneven stages": (
        cases.uneven_stages((16, 32), [int(3.18 * GIB), int(6.37 * GIB)]),
        104176,
    ),
}
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
