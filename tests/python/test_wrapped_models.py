"""Wrappers: the language model inside is planned as by itself, or the wrapper is refused."""

from __future__ import annotations

from functools import cache

import pytest
from recordings import recorded_config

pytest.importorskip("kvplan.specs")

from kvplan.offline import models
from kvplan.offline.models import ModelConfig, ModelError
from kvplan.offline.models.registry import ARCHITECTURES

WRAPPERS = sorted(name for name, row in ARCHITECTURES.items() if row.wraps or row.delegates)

#: One language model of each kind of cache, and some whose code reads other keys.
KINDS = (
    "LlamaForCausalLM",
    "Qwen2ForCausalLM",
    "FalconForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "Gemma3nForCausalLM",
    "Gemma4ForCausalLM",
    "Llama4ForCausalLM",
    "DeepseekV2ForCausalLM",
    "GlmMoeDsaForCausalLM",
    "DeepseekV4ForCausalLM",
    "MiMoV2FlashForCausalLM",
    "Qwen3NextForCausalLM",
    "Qwen3_5ForCausalLM",
    "KimiLinearForCausalLM",
    "BailingMoeV3ForCausalLM",
    "Lfm2ForCausalLM",
    "JambaForCausalLM",
    "NemotronHForCausalLM",
    "Mamba2ForCausalLM",
)


@cache
def recorded(architecture):
    config = recorded_config(architecture)
    return config.get("text_config", config)


def plan(config):
    return models.kv_cache_specs(ModelConfig(config, "test"))


def caches(plan_input):
    """What is stored, without names and without what the backend's packing adds."""
    fields = ("num_kv_heads", "head_size", "sliding_window", "attention_chunk_size", "shapes")
    return [
        (type(spec).__name__, *(getattr(spec, field, None) for field in fields))
        for spec in plan_input.kv_cache_specs[0].values()
    ]


def caches_or_refusal(config):
    try:
        return caches(plan(config)), None
    except ModelError as error:
        return None, str(error)


@cache
def alone(architecture, as_architecture):
    return caches_or_refusal({**recorded(architecture), "architectures": [as_architecture]})[0]


def named(architecture, how):
    text = {k: v for k, v in recorded(architecture).items() if k != "architectures"}
    if how == "by architecture":
        return {**text, "architectures": [architecture]}
    if how == "by model type":
        return text
    return {key: value for key, value in text.items() if key != "model_type"}


@pytest.mark.parametrize("how", ["by architecture", "by model type", "not at all"])
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_every_wrapper_with_every_kind_of_language_model(wrapper, how):
    row = ARCHITECTURES[wrapper]
    planned = 0
    for architecture in KINDS:
        config = {"architectures": [wrapper], "text_config": named(architecture, how)}
        found, refusal = caches_or_refusal(config)
        if found is None:
            assert any(word in refusal for word in (wrapper, "text_config", "is not planned"))
            continue
        planned += 1
        if how == "not at all":
            assert found == alone(architecture, row.wraps)
        else:
            assert found == alone(architecture, architecture), architecture
    if row.delegates:
        assert planned == {"by architecture": len(KINDS), "not at all": 0}.get(how, planned)
        assert how == "not at all" or planned > 10


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_language_models_that_no_table_knows(wrapper):
    llama = recorded("LlamaForCausalLM")
    text = {**llama, "model_type": "unheard_of", "architectures": ["UnheardOfForCausalLM"]}
    with pytest.raises(ModelError, match=r"UnheardOfForCausalLM|unheard_of"):
        plan({"architectures": [wrapper], "text_config": text})
    if ARCHITECTURES[wrapper].delegates:
        with pytest.raises(ModelError, match=f"{wrapper} runs the language model of a nested"):
            plan({**llama, "architectures": [wrapper]})


MISTRAL_SMALL_4 = {
    "model_type": "mistral4",
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "hidden_size": 4096,
    "kv_lora_rank": 256,
    "q_lora_rank": 1024,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 131072,
    "max_position_embeddings": 1048576,
}


def test_a_wrapper_of_latent_attention():
    wrapper = {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "text_config": MISTRAL_SMALL_4,
        "torch_dtype": "bfloat16",
    }
    specs = plan(wrapper).kv_cache_specs[0]
    assert len(specs) == 36
    assert {spec.head_size for spec in specs.values()} == {320}
    assert sum(s.page_size_bytes // s.block_size for s in specs.values()) == 23_040


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"kv_lora_rank": 256}, "kv_lora_rank"),
        ({"linear_num_key_heads": 16}, "linear_num_key_heads"),
        ({"mamba_d_state": 128}, "mamba_d_state"),
        ({"attention_chunk_size": 8192}, "attention_chunk_size"),
        ({"num_kv_shared_layers": 4}, "num_kv_shared_layers"),
        ({"swa_head_dim": 192}, "swa_head_dim"),
        ({"sliding_window_pattern": 4}, "sliding_window_pattern"),
    ],
)
def test_keys_that_shape_a_cache_are_read_or_refused(changes, key):
    with pytest.raises(ModelError, match=f"config.{key} is .*does not read it for LlamaForCausal"):
        plan({**recorded("LlamaForCausalLM"), **changes})
    plan({**recorded("LlamaForCausalLM"), key: None})


def test_layer_types_that_are_not_read():
    config = {**recorded("DeepseekV2ForCausalLM"), "layer_types": ["sliding_attention"]}
    with pytest.raises(ModelError, match=r"config.layer_types is .*sliding_attention"):
        plan(config)
    plan({**config, "layer_types": ["full_attention"]})
