"""Models: what is registered, which options matter, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("kvplan.specs")

from built_in_kinds import KINDS
from recordings import BY_ENGINE, all_recordings, recorded_config, recordings

from kvplan.offline import models
from kvplan.offline.models import (
    ModelConfig,
    ModelError,
    ModelOptions,
    UnknownArchitecture,
    not_planned,
)
from kvplan.offline.models.drafters import speculative_method
from kvplan.offline.models.registry import MTP_ARCHITECTURES

REGISTERED = all_recordings()

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 6,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}


def planned(config, **options):
    return models.kv_cache_specs(ModelConfig(config, "test"), ModelOptions(**options))


def without(config, *keys):
    return {key: value for key, value in config.items() if key not in keys}


def options_of(fixture):
    arguments = dict(fixture["engine_args"])
    draft = arguments.pop("draft_config", None)
    if draft is not None:
        arguments["speculative_config"] = {**arguments["speculative_config"], "config": draft}
    return ModelOptions(device_capability=tuple(fixture["capability"]), **arguments)


@pytest.mark.parametrize("name", REGISTERED)
def test_registers_what_vllm_registers(name):
    fixture = REGISTERED[name]
    plan_input = models.kv_cache_specs(ModelConfig(fixture["config"], name), options_of(fixture))
    tp = fixture["engine_args"].get("tensor_parallel_size", 1)
    assert len(plan_input.kv_cache_specs) == tp * len(fixture["workers"])
    for mine, theirs in zip(plan_input.kv_cache_specs[::tp], fixture["workers"], strict=True):
        encoded = {name: json.loads(json.dumps(spec.to_dict())) for name, spec in mine.items()}
        expected = {name: fixture["specs"][index] for name, index in theirs}
        assert encoded == expected
        assert list(encoded) == list(expected)
        assert {name: spec.is_draft for name, spec in mine.items()} == {
            name: fixture["specs"][index].get("is_draft", False) for name, index in theirs
        }
    assert set(plan_input.backends) == {name for stage in fixture["backends"] for name in stage}
    config = plan_input.config
    assert config["kv_cache_layout"] == fixture["layout"]
    for key in (
        "block_size",
        "max_model_len",
        "mamba_cache_mode",
        "max_in_flight_tokens",
        "max_num_encoder_input_tokens",
    ):
        assert config[key] == fixture[key], key


def test_documentation_says_how_every_architecture_was_verified():
    text = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 5][2:]
    recorded = {name.strip() for row in rows for name in row[3].split(",")} - {"-"}
    from_code = {name.strip() for row in rows for name in row[4].split(",")} - {"-"}
    assert recorded | from_code == set(models.known_architectures())
    assert not recorded & from_code
    architectures = {fixture["config"]["architectures"][0] for fixture in REGISTERED.values()}
    assert recorded == architectures


def test_case_1_with_the_blocks_that_were_reported():
    import kvplan

    options = ModelOptions(
        tensor_parallel_size=4,
        max_model_len=524_288,
        speculative_config={"method": "dspark", "num_speculative_tokens": 5},
        deepseek_v41_reported_blocks=True,
    )
    plan_input = models.kv_cache_specs("deepseek-v4.1-flash", options)
    plan = kvplan.plan(plan_input.planning_config(), plan_input.kv_cache_specs, [4_509_715_660] * 4)
    assert plan_input.config["max_in_flight_tokens"] == 16_384
    assert plan_input.config["kv_cache_layout"] == "BLHNC"
    assert len(plan.groups) == 17
    assert plan.bytes_per_block == 138_240
    assert plan.num_blocks == 32_622
    assert plan.capacity_tokens == 1_057_457


def test_gemma_3_has_seven_groups():
    import kvplan

    plan_input = models.kv_cache_specs("gemma-3-27b")
    plan = kvplan.plan(plan_input.planning_config(), plan_input.kv_cache_specs, [60 << 30])
    assert len(plan.groups) == 7


@pytest.mark.parametrize(
    ("tp", "heads"), [(1, 8), (2, 4), (8, 1), (16, 1)], ids=["1", "2", "8", "replicated"]
)
def test_kv_heads_are_split_then_replicated(tp, heads):
    plan_input = planned(LLAMA, tensor_parallel_size=tp)
    assert len(plan_input.kv_cache_specs) == tp
    assert {s.num_kv_heads for s in plan_input.kv_cache_specs[0].values()} == {heads}


def test_tp_that_does_not_divide_the_heads_is_refused():
    with pytest.raises(ModelError, match=r"32 attention heads must be divisible .* 3; sizes that"):
        planned(LLAMA, tensor_parallel_size=3)
    with pytest.raises(ModelError, match="32 attention heads"):
        planned(LLAMA, tensor_parallel_size=64)
    config = {**LLAMA, "num_attention_heads": 24, "num_key_value_heads": 6, "head_dim": 64}
    with pytest.raises(ModelError, match="6 KV heads cannot be spread over"):
        planned(config, tensor_parallel_size=4)


def test_tp_that_does_not_divide_the_padded_vocabulary_is_refused():
    with pytest.raises(ModelError, match=r"padded to 100,352 entries, .*size 5"):
        models.kv_cache_specs("phi-4", ModelOptions(tensor_parallel_size=5))
    five = {**LLAMA, "num_attention_heads": 40, "num_key_value_heads": 10, "head_dim": 128}
    with pytest.raises(ModelError, match="padded to 128,256"):
        planned({**five, "vocab_size": 128_200}, tensor_parallel_size=5)
    # 127,990 becomes 128,000, which five ranks divide.
    planned({**five, "vocab_size": 127_990}, tensor_parallel_size=5)
    planned({**LLAMA, "vocab_size": 32_001}, tensor_parallel_size=8)


THIRTY_HEADS = {
    **LLAMA,
    "num_attention_heads": 30,
    "num_key_value_heads": 30,
    "head_dim": 128,
    "vocab_size": 32_256,
}


def test_tp_that_does_not_divide_the_mlps_is_refused():
    with pytest.raises(ModelError) as caught:
        planned({**THIRTY_HEADS, "intermediate_size": 11008}, tensor_parallel_size=3)
    assert str(caught.value) == (
        "the model's MLPs are 11,008 wide (intermediate_size), which must be divisible by "
        "tensor_parallel_size 3; sizes that divide it and the 30 attention heads: 1, 2"
    )
    planned({**THIRTY_HEADS, "intermediate_size": 11010}, tensor_parallel_size=3)
    planned({**THIRTY_HEADS, "intermediate_size": 11008}, tensor_parallel_size=2)


def test_models_of_another_mlp_width_are_left_to_vllm():
    planned({**THIRTY_HEADS, "intermediate_size": 11008, "num_experts": 8}, tensor_parallel_size=3)
    molmo = recorded_config("MolmoForCausalLM")
    planned({**molmo, "intermediate_size": molmo["intermediate_size"] + 1}, tensor_parallel_size=2)


def test_kv_heads_that_do_not_divide_the_heads_are_refused():
    with pytest.raises(ModelError, match="a rank has 32 and 7"):
        planned({**LLAMA, "num_key_value_heads": 7})


def test_what_vllm_does_not_replicate():
    with pytest.raises(ModelError, match=r"does not replicate its 8 KV heads.*got 16"):
        models.kv_cache_specs("gpt-oss-120b", ModelOptions(tensor_parallel_size=16))
    models.kv_cache_specs("gpt-oss-120b", ModelOptions(tensor_parallel_size=8))
    config = recorded_config("NemotronHForCausalLM")
    with pytest.raises(ModelError, match=r"Mamba 2's groups \(8\) must be divisible by .*16"):
        planned(config, tensor_parallel_size=16)
    dory = {**LLAMA, "architectures": ["DoryForCausalLM"]}
    with pytest.raises(ModelError, match="on one tensor parallel rank only; got 2"):
        planned(dory, tensor_parallel_size=2)


def test_pipeline_stages_follow_vllm():
    plan_input = planned({**LLAMA, "num_hidden_layers": 10}, pipeline_parallel_size=4)
    assert [len(worker) for worker in plan_input.kv_cache_specs] == [2, 3, 3, 2]
    assert plan_input.config["max_in_flight_tokens"] == 5 * 8192
    explicit = planned(LLAMA, pipeline_parallel_size=2, pipeline_layer_partition=[1, 5])
    assert [len(worker) for worker in explicit.kv_cache_specs] == [1, 5]
    with pytest.raises(ModelError, match=r"\[1, 4\] sums to 5, but the model has 6 layers"):
        planned(LLAMA, pipeline_parallel_size=2, pipeline_layer_partition=[1, 4])


def test_models_that_vllm_does_not_run_everywhere():
    config = {**LLAMA, "architectures": ["Step1ForCausalLM"], "num_attention_groups": 4}
    with pytest.raises(ModelError, match=r"here it takes FLASH_ATTN.*backend TRITON_ATTN"):
        planned(config)
    planned(config, attention_backend="TRITON_ATTN")
    dory = {**LLAMA, "architectures": ["DoryForCausalLM"], "layer_types": ["full_attention"] * 6}
    with pytest.raises(ModelError, match="does not run DoryForCausalLM in pipeline stages"):
        planned(dory, pipeline_parallel_size=2)


def test_inkling_divides_its_kv_heads():
    config = {**LLAMA, "architectures": ["InklingForCausalLM"], "head_dim": 128}
    assert len(planned(config, tensor_parallel_size=8).kv_cache_specs[0]) == 12
    with pytest.raises(ModelError, match=r"8 KV heads.*--tp 16 does not divide them"):
        planned(config, tensor_parallel_size=16)
    with pytest.raises(ModelError, match="kv_cache_dtype auto, bfloat16, fp8"):
        planned(config, kv_cache_dtype="nvfp4")


def test_dcp_must_divide_tp():
    with pytest.raises(ModelError, match=r"tensor_parallel_size \(4\) must be divisible by"):
        planned(LLAMA, tensor_parallel_size=4, decode_context_parallel_size=3)


def test_dcp_needs_replicated_heads_and_a_backend_that_does_it():
    planned(LLAMA, tensor_parallel_size=16, decode_context_parallel_size=2)
    for tp in (8, 16):
        with pytest.raises(
            ModelError, match=r"needs tensor_parallel_size 32 or more: .* 8 KV heads"
        ):
            planned(LLAMA, tensor_parallel_size=tp, decode_context_parallel_size=4)
    with pytest.raises(ModelError, match="3 query heads of each KV head must be divisible by"):
        planned(
            {**LLAMA, "hidden_size": 1536, "num_attention_heads": 12, "num_key_value_heads": 4},
            tensor_parallel_size=12,
            decode_context_parallel_size=2,
        )
    with pytest.raises(ModelError, match="TRITON_ATTN does not do decode context parallelism"):
        planned(
            LLAMA,
            tensor_parallel_size=16,
            decode_context_parallel_size=2,
            attention_backend="TRITON_ATTN",
        )
    sparse = models.load("deepseek-v3.2")
    options = {"tensor_parallel_size": 8, "decode_context_parallel_size": 8}
    with pytest.raises(ModelError, match="FLASHMLA_SPARSE needs kv_cache_dtype fp8_ds_mla or fp8"):
        models.kv_cache_specs(sparse, ModelOptions(**options))
    models.kv_cache_specs(sparse, ModelOptions(**options, kv_cache_dtype="fp8"))


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("prefix_caching", [None, False])
def test_another_length_of_the_same_model(name, prefix_caching):
    options = ModelOptions(enable_prefix_caching=prefix_caching)
    base = models.kv_cache_specs(name, options)
    for length in (1024, "auto", None):
        changed = options.replace(max_model_len=length)
        fresh, derived = models.kv_cache_specs(name, changed), base.at_length(changed)
        assert derived.kv_cache_specs == fresh.kv_cache_specs
        assert derived.config == fresh.config
    with pytest.raises(ModelError, match="is greater than the model's"):
        base.at_length(options.replace(max_model_len=1 << 30))


def test_windows_that_are_listed_layer_by_layer():
    listed = planned({**LLAMA, "interleaved_sliding_window": [None, 64, 64] * 2})
    windows = [getattr(s, "sliding_window", None) for s in listed.kv_cache_specs[0].values()]
    assert windows == [None, 64, 64] * 2
    with pytest.raises(ModelError, match="has 2 entries, but the model has 6 layers"):
        planned({**LLAMA, "interleaved_sliding_window": [None, 64]})
    with pytest.raises(ModelError, match=r"interleaved_sliding_window\[1\] is -1"):
        planned({**LLAMA, "interleaved_sliding_window": [None, -1] * 3})


def test_wrappers_follow_the_language_model_they_name():
    wrapper = {"architectures": ["InternVLChatModel"], "model_type": "internvl_chat"}
    inner = {**LLAMA, "architectures": ["InternLM2ForCausalLM"], "model_type": "internlm2"}
    names = list(planned({**wrapper, "llm_config": inner}).kv_cache_specs[0])
    assert names[0] == "language_model.model.layers.0.attention.attn"
    with pytest.raises(ModelError, match=r"'internlm2', which names none: it is not guessed"):
        planned({**wrapper, "llm_config": without(inner, "architectures")})
    with pytest.raises(UnknownArchitecture, match="NoSuchModel"):
        planned({**wrapper, "llm_config": {**inner, "architectures": ["NoSuchModel"]}})


def test_context_length_follows_rope_scaling():
    assert planned(LLAMA).config["max_model_len"] == 8192
    linear = {**LLAMA, "rope_scaling": {"type": "linear", "factor": 4.0}}
    assert planned(linear).config["max_model_len"] == 32768
    yarn = {**LLAMA, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}
    assert planned(yarn).config["max_model_len"] == 8192
    longrope = {
        **LLAMA,
        "rope_scaling": {"type": "longrope"},
        "original_max_position_embeddings": 4096,
    }
    assert planned(longrope).config["max_model_len"] == 4096
    assert planned(LLAMA, max_model_len=1000).config["max_model_len"] == 1000
    fitted = planned(LLAMA, max_model_len="auto").config
    assert (fitted["max_model_len"], fitted["auto_fit"]) == (8192, True)
    with pytest.raises(ModelError, match=r"max_model_len 9,000 is greater than the model's 8,192"):
        planned(LLAMA, max_model_len=9000)


@pytest.mark.parametrize("name", ["LlamaForCasualLM", "NoSuchModel"])
def test_unknown_architectures_are_named(name):
    with pytest.raises(UnknownArchitecture) as caught:
        planned({**LLAMA, "architectures": [name]})
    assert caught.value.architecture == name
    assert repr(name) in str(caught.value)
    assert "kvplan models --architectures" in str(caught.value)
    if name == "LlamaForCasualLM":
        assert caught.value.suggestion == "LlamaForCausalLM"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Step5ForCausalLM", "vLLM 0.33 serves it, but what its layers cache"),
        ("BertModel", "a pooling model"),
        ("MPTForCausalLM", "no longer serves it since 0.28.0"),
    ],
)
def test_why_a_known_architecture_is_refused(name, words):
    with pytest.raises(UnknownArchitecture, match=words) as caught:
        planned({**LLAMA, "architectures": [name]})
    assert f"architecture '{name}' is not planned" in str(caught.value)


def test_no_refused_architecture_is_planned():
    refused = not_planned.NOT_RECORDED | not_planned.POOLING | set(not_planned.REMOVED)
    assert not refused & set(models.known_architectures())
    text = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    for name in not_planned.NOT_RECORDED:
        assert name in text


def test_mtp_layers_are_not_guessed():
    config = {**LLAMA, "num_nextn_predict_layers": 1}
    with pytest.raises(ModelError, match="'mtp' is not planned for LlamaForCausalLM"):
        planned(config, speculative_config={"method": "mtp", "num_speculative_tokens": 1})
    recorded = {
        fixture["config"]["architectures"][0]
        for fixture in REGISTERED.values()
        if fixture["engine_args"].get("speculative_config", {}).get("method") == "mtp"
    }
    alias = {"ExaoneMoEForCausalLM"}
    assert set(MTP_ARCHITECTURES) - alias == recorded


def test_drafters_of_other_architectures_are_not_guessed():
    for method in ("eagle", "eagle3", "dflash"):
        draft = {**LLAMA, "architectures": ["SomeDrafter"]}
        config = {"method": method, "num_speculative_tokens": 2, "config": draft}
        with pytest.raises(ModelError, match=rf"'{method}' is not planned with a drafter.*Some"):
            planned(LLAMA, speculative_config=config)


def test_what_speculative_methods_mean_for_the_planner():
    draft = {**LLAMA, "num_hidden_layers": 1}
    eagle = {"method": "eagle", "num_speculative_tokens": 2, "config": draft}
    config = planned(LLAMA, speculative_config=eagle).config
    assert (config["use_eagle"], config["use_eagle_block_drop"]) == (True, True)
    draft = {**draft, "architectures": ["DFlashDraftModel"]}
    dflash = {"method": "dflash", "num_speculative_tokens": 2, "config": draft}
    config = planned(LLAMA, speculative_config=dflash).config
    assert (config["use_eagle"], config["use_eagle_block_drop"]) == (True, False)
    assert config["num_prefill_lookahead_tokens"] == 1
    older = {"method": "deepseek_mtp", "num_speculative_tokens": 1}
    model = models.load("deepseek-v3.2")
    config = models.kv_cache_specs(model, ModelOptions(speculative_config=older)).config
    assert config["speculative_method"] == "mtp"
    with pytest.raises(ModelError, match="method is 'medusa'"):
        planned(LLAMA, speculative_config={"method": "medusa", "num_speculative_tokens": 1})


@pytest.mark.parametrize(
    ("directory", "changes", "expected"),
    [
        ("EAGLE-LLaMA3-Instruct-8B", {}, "eagle"),
        ("Qwen3-8B_eagle3", {}, "eagle3"),
        ("Qwen3-8B-DFlash-b16", {}, "dflash"),
        ("dspark_qwen3_8b_block7", {}, "dspark"),
        ("small", {}, "draft_model"),
        ("small", {"architectures": ["Qwen3DSparkModel"]}, "dspark"),
        ("small", {"architectures": ["MuseGlimmerAssistantModel"]}, "dflash"),
        ("small", {"architectures": ["DeepseekV3ForCausalLM"]}, "mtp"),
        ("small", {"model_type": "mimo_mtp"}, "mtp"),
    ],
)
@pytest.mark.parametrize("named", [{}, {"method": None}, {"method": "draft_model"}])
def test_methods_are_inferred_from_the_drafter(
    directory, changes, expected, named, tmp_path_factory
):
    path = tmp_path_factory.mktemp("d") / directory
    path.mkdir()
    (path / "config.json").write_text(json.dumps({**LLAMA, **changes}))
    for model in (path, path / "config.json"):
        speculative = {**named, "model": str(model), "num_speculative_tokens": 2}
        assert speculative_method(speculative) == expected


def test_inferred_methods_are_planned():
    speculative = {"model": "llama-3.2-1b", "num_speculative_tokens": 2}
    inferred = models.kv_cache_specs("llama-3.1-8b", ModelOptions(speculative_config=speculative))
    speculative = {**speculative, "method": "draft_model"}
    named = models.kv_cache_specs("llama-3.1-8b", ModelOptions(speculative_config=speculative))
    assert inferred.kv_cache_specs == named.kv_cache_specs
    assert inferred.config["speculative_method"] == "draft_model"
    assert speculative_method({"model": "ngram", "num_speculative_tokens": 2}) == "ngram"
    speculative = {"model": "deepseek-v3", "num_speculative_tokens": 1}
    own = models.kv_cache_specs("deepseek-v3", ModelOptions(speculative_config=speculative))
    assert own.config["speculative_method"] == "mtp"
    with pytest.raises(ModelError, match="whose config is not the target's"):
        planned(LLAMA, speculative_config=speculative)


@pytest.mark.parametrize(
    ("speculative", "message"),
    [
        ({"num_speculative_tokens": 2}, "no method, and no model whose name and config"),
        ({"config": LLAMA, "num_speculative_tokens": 2}, "give method .mtp, eagle.* or model"),
        ({"model": "proposers.Mine", "num_speculative_tokens": 2}, "a class of a Python module"),
        (
            {"method": "medusa", "num_speculative_tokens": 2},
            "speculative_config.method is 'medusa'",
        ),
    ],
)
def test_methods_that_cannot_be_inferred(speculative, message):
    with pytest.raises(ModelError, match=message):
        planned(LLAMA, speculative_config=speculative)


def test_no_architectures():
    with pytest.raises(ModelError, match="names no architectures"):
        planned(without(LLAMA, "architectures"))


def test_missing_keys_are_named():
    config = without({**LLAMA, "model_type": "unheard_of"}, "num_hidden_layers")
    with pytest.raises(models.MissingKey, match="no 'num_hidden_layers'") as caught:
        planned(config)
    assert caught.value.key == "num_hidden_layers"


def test_overrides_of_a_nested_config_that_is_not_there():
    overrides = {"text_config": {"num_hidden_layers": 4}}
    with pytest.raises(ModelError, match=r"^hf_overrides.text_config changes a nested config that"):
        planned(LLAMA, hf_overrides=overrides)
    wrapped = {**LLAMA, "text_config": {**LLAMA, "num_hidden_layers": 8}}
    assert len(planned(wrapped, hf_overrides=overrides).kv_cache_specs[0]) == 4
    assert len(planned(LLAMA, hf_overrides={"num_hidden_layers": 4}).kv_cache_specs[0]) == 4


def test_a_config_without_a_model_type_has_no_defaults():
    with pytest.raises(ModelError, match=r"'num_attention_heads'.*it names no model_type either"):
        planned(without(LLAMA, "model_type", "num_attention_heads"))


def test_missing_keys_take_the_class_default():
    config = without(LLAMA, "num_hidden_layers")
    assert len(planned(config).kv_cache_specs[0]) == 32


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_key_value_heads": -8}, r"num_key_value_heads is -8; it must be between 1"),
        ({"num_attention_heads": 0}, r"num_attention_heads is 0"),
        ({"num_hidden_layers": "6"}, r"num_hidden_layers must be a whole number; got '6'"),
        ({"num_hidden_layers": 1 << 60}, r"num_hidden_layers is 1152921504606846976"),
        ({"num_hidden_layers": True}, r"must be a whole number; got True"),
        ({"num_hidden_layers": 10**9}, r"num_hidden_layers is 1000000000"),
        ({"rope_scaling": {"type": []}}, r"rope type"),
        ({"head_dim": 64, "partial_rotary_factor": 1e308}, r"partial_rotary_factor"),
        ({"hidden_size": 4097}, r"hidden_size \(4097\) is not divisible by num_attention_heads"),
        ({"torch_dtype": "float64"}, r"torch_dtype is 'float64'"),
        ({"layer_types": ["full_attention"] * 5}, r"5 entries, but num_hidden_layers is 6"),
        ({"layer_types": ["sliding_attention"] * 6}, r"layer_types\[0\] is 'sliding_attention'"),
        ({"layer_types": "full_attention"}, r"layer_types must be a list of strings"),
    ],
)
def test_contradictory_configs_are_refused(changes, message):
    with pytest.raises(ModelError, match=message):
        planned({**LLAMA, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_position_embeddings": "131072"}, "embeddings must be a whole number; got '131072'"),
        ({"max_position_embeddings": True}, "embeddings must be a whole number; got True"),
        ({"model_max_length": "8192"}, "model_max_length must be a whole number; got '8192'"),
        ({"sliding_window": "4096"}, "sliding_window must be a whole number or a list.*'4096'"),
        ({"sliding_window": 4096.5}, "sliding_window must be a whole number or a list.*4096.5"),
        ({"use_sliding_window": "false"}, "use_sliding_window must be true or false; got 'false'"),
        ({"head_dim": "128"}, "head_dim must be a whole number; got '128'"),
        ({"partial_rotary_factor": "0.5"}, "partial_rotary_factor must be a number; got '0.5'"),
        ({"torch_dtype": 16}, "torch_dtype must be a string; got 16"),
        ({"rope_scaling": "dynamic"}, "rope_scaling must be an object; got 'dynamic'"),
        ({"rope_scaling": {"rope_type": "linear", "factor": "4"}}, "factor must be a number"),
        ({"quantization_config": "fp8"}, "quantization_config must be an object; got 'fp8'"),
        ({"text_config": [1]}, r"text_config must be an object; got \[1\]"),
        ({"text_config": {"sliding_window": "1"}}, r"text_config.sliding_window must be"),
    ],
)
def test_values_of_another_type_are_refused(changes, message):
    with pytest.raises(ModelError, match=message):
        planned({**LLAMA, **changes})


def test_null_and_whole_floats_are_taken():
    changes = {"sliding_window": None, "rope_scaling": None, "max_position_embeddings": 4096.0}
    assert planned({**LLAMA, **changes}).config["max_model_len"] == 4096


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tensor_parallel_size": 0}, "tensor_parallel_size must be a whole number of at least 1"),
        ({"block_size": -16}, "block_size must be a whole number of at least 1; got -16"),
        ({"block_size": 24}, "block_size 24 is not supported by attention backend FLASH_ATTN"),
        ({"kv_cache_dtype": "fp9"}, "no attention backend takes head size 128"),
        ({"attention_backend": "FLASH_ATTEN"}, "did you mean FLASH_ATTN"),
        ({"attention_backend": "FLASHMLA"}, "does not run this model's non-MLA layers"),
        ({"attention_backend": "GDN_ATTN"}, "belongs to a layer"),
        ({"attention_backend": "ROCM_OCTAVE"}, "does not take head size 128"),
        ({"kv_cache_layout": "XYZ"}, "unknown KV cache layout 'XYZ'"),
        ({"dtype": "int3"}, "unknown dtype 'int3'"),
        ({"max_model_len": 0}, "max_model_len must be a whole number of at least 1"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ModelError, match=message):
        planned(LLAMA, **options)


def test_an_unquantized_cache_has_the_dtype_of_the_model():
    with pytest.raises(ModelError, match=r"float16 is not the model's dtype, bfloat16; .*auto or"):
        planned(LLAMA, kv_cache_dtype="float16")
    with pytest.raises(ModelError, match=r"bfloat16 is not the model's dtype, float32; .*auto, or"):
        planned(LLAMA, kv_cache_dtype="bfloat16", dtype="float32")
    planned(LLAMA, kv_cache_dtype="bfloat16")
    planned(LLAMA, kv_cache_dtype="float16", dtype="float16")


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "JambaForCausalLM"])
def test_a_block_of_states_needs_prefix_caching(architecture):
    config = recorded_config(architecture)
    with pytest.raises(ModelError, match="mamba_block_size 64 needs --enable-prefix-caching"):
        planned(config, mamba_block_size=64, enable_prefix_caching=False)
    planned(config, mamba_block_size=64)
    same = {"mamba_block_size": 64, "max_model_len": 64}
    planned(config, **same, enable_prefix_caching=False)


def test_attention_decides_the_block_of_the_states_beside_it():
    config = recorded_config("JambaForCausalLM")
    assert planned(config, mamba_block_size=64).kv_cache_specs == planned(config).kv_cache_specs


def test_state_dtypes_that_vllm_does_not_start_with():
    config = recorded_config("KimiLinearForCausalLM")
    for dtype in ("bfloat16", "float16"):
        with pytest.raises(ModelError, match=f"mamba_ssm_cache_dtype {dtype}: vLLM 0.33 does not"):
            planned(config, mamba_ssm_cache_dtype=dtype)
    float32 = planned(config, mamba_ssm_cache_dtype="float32").kv_cache_specs
    assert float32 == planned(config).kv_cache_specs


def test_layers_that_skipping_cannot_tell_apart():
    config = recorded_config("LongcatFlashForCausalLM")
    with pytest.raises(ModelError, match=r"one number in their name.*has model\.layers\.0"):
        planned(config, kv_cache_dtype="fp8", kv_cache_dtype_skip_layers=["0"])


@pytest.mark.parametrize(
    ("kv_cache_dtype", "backend", "content"),
    [
        ("auto", "FLASH_ATTN", None),
        ("fp8", "FLASH_ATTN", None),
        ("int8_per_token_head", "TRITON_ATTN", 264),
        ("nvfp4", "FLASHINFER", 72),
        ("turboquant_k8v4", "TURBOQUANT", 196),
    ],
)
def test_kv_cache_dtype_chooses_backend_and_packing(kv_cache_dtype, backend, content):
    plan_input = planned(LLAMA, kv_cache_dtype=kv_cache_dtype)
    assert backend in plan_input.backends
    spec = plan_input.kv_cache_specs[0]["model.layers.3.self_attn.attn"]
    assert spec.state_content_bytes == content


@pytest.mark.parametrize(
    ("name", "capability", "options", "message"),
    [
        ("gemma-3-12b", (8, 0), {}, "8.9 or later with attention backend TRITON_ATTN.*bfloat16$"),
        ("gpt-oss-20b", (8, 0), {}, "8.9 or later with attention backend TRITON_ATTN"),
        ("deepseek-v3", (8, 0), {}, "8.9 or later with attention backend TRITON_MLA"),
        ("llama-3.1-8b", (7, 5), {}, "the GPU's is 7.5: give --kv-cache-dtype float16"),
        ("llama-3.1-8b", (8, 6), {"attention_backend": "TRITON_ATTN"}, "the GPU's is 8.6"),
        ("llama-3.1-8b", (8, 6), {"kv_cache_dtype": "fp8_per_token_head"}, "'fp8_per_token_head'"),
        ("llama-3.1-8b", (7, 5), {"kv_cache_dtype": "bfloat16"}, "needs compute capability 8.0"),
    ],
)
def test_cache_dtypes_that_triton_cannot_read_are_refused(name, capability, options, message):
    options = {"kv_cache_dtype": "fp8", **options}
    with pytest.raises(ModelError, match=message):
        models.kv_cache_specs(name, ModelOptions(device_capability=capability, **options))
    with_native_fp8 = ModelOptions(device_capability=(8, 9), **options)
    assert models.kv_cache_specs(name, with_native_fp8).cache_dtype == options["kv_cache_dtype"]


def test_flashinfer_reads_fp8_on_older_gpus():
    plan_input = planned(LLAMA, kv_cache_dtype="fp8", device_capability=(8, 0))
    assert plan_input.backends == ["FLASHINFER"]


@pytest.mark.parametrize(
    ("name", "capability"), [("FLASH_ATTN", (7, 5)), ("FLASHINFER", (7, 5)), ("FLASHMLA", (8, 0))]
)
def test_a_chosen_backend_runs_on_the_gpu(name, capability):
    model = "deepseek-v3" if name == "FLASHMLA" else "llama-3.1-8b"
    options = ModelOptions(attention_backend=name, device_capability=capability)
    with pytest.raises(ModelError, match=f"attention backend {name} does not run"):
        models.kv_cache_specs(model, options)
    models.kv_cache_specs(model, options.replace(device_capability=(9, 0)))


@pytest.mark.parametrize(
    ("declared", "model_type", "capability", "wanted", "expected"),
    [
        ("bfloat16", "llama", (9, 0), "auto", "bfloat16"),
        ("bfloat16", "llama", (7, 5), "auto", "float16"),
        ("float32", "llama", (7, 5), "auto", "float16"),
        ("float32", "llama", (8, 0), "auto", "bfloat16"),
        ("bfloat16", "llama", (7, 5), "half", "float16"),
        ("float16", "gemma3_text", (9, 0), "auto", "bfloat16"),
        ("bfloat16", "gemma3_text", (7, 5), "auto", "float32"),
        ("bfloat16", "llama", (9, 0), "float32", "float32"),
    ],
)
def test_the_dtype_that_a_model_runs_in(declared, model_type, capability, wanted, expected):
    config = {**LLAMA, "torch_dtype": declared, "model_type": model_type}
    plan_input = planned(config, device_capability=capability, dtype=wanted)
    assert plan_input.dtype == expected
    spec = plan_input.kv_cache_specs[0]["model.layers.3.self_attn.attn"]
    assert spec.dtype == expected
    if expected == "float32":
        assert plan_input.backends == ["TRITON_ATTN"]


def test_a_config_without_a_dtype_counts_as_bfloat16_and_says_so():
    config = {key: value for key, value in LLAMA.items() if key != "torch_dtype"}
    assumed = planned(config)
    assert (assumed.dtype, assumed.dtype_is_assumed) == ("bfloat16", True)
    older = planned(config, device_capability=(7, 5))
    assert (older.dtype, older.dtype_is_assumed) == ("float16", True)
    assert not planned(config, dtype="float16").dtype_is_assumed
    assert not planned(LLAMA).dtype_is_assumed


@pytest.mark.parametrize("part", ["vision_config", "encoder_config"])
def test_the_dtype_of_a_part_is_that_of_a_model_without_one(part):
    config = {key: value for key, value in LLAMA.items() if key != "torch_dtype"}
    found = planned({**config, part: {"torch_dtype": "float16"}})
    assert (found.dtype, found.dtype_is_assumed) == ("float16", False)


@pytest.mark.parametrize(
    ("model_type", "options", "message"),
    [
        ("gemma2", {"dtype": "float16"}, "does not run model type 'gemma2' in float16"),
        ("glm4", {"dtype": "half"}, "does not run model type 'glm4' in float16"),
        ("llama", {"dtype": "bfloat16", "device_capability": (7, 5)}, "capability 8.0 or later"),
    ],
)
def test_dtypes_that_vllm_refuses(model_type, options, message):
    with pytest.raises(ModelError, match=message):
        planned({**LLAMA, "model_type": model_type}, **options)


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        ({"quant_method": "fp8"}, "auto"),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8}}, "fp8"),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": None}, "auto"),
        ({"quant_method": "modelopt", "quantization": {"kv_cache_quant_algo": "FP8"}}, "fp8_e4m3"),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": "INT9"}, "auto"),
    ],
)
def test_quantized_checkpoints_choose_their_cache_dtype(quantization, expected):
    config = {**LLAMA, "quantization_config": quantization}
    assert planned(config).cache_dtype == expected
    assert planned(config, kv_cache_dtype="bfloat16").cache_dtype == "bfloat16"


def test_packed_formats_keep_the_outermost_layers_unquantized():
    specs = planned(LLAMA, kv_cache_dtype="turboquant_3bit_nc").kv_cache_specs[0]
    dtypes = [str(spec.dtype) for spec in specs.values()]
    assert dtypes == ["bfloat16"] * 2 + ["uint8"] * 2 + ["bfloat16"] * 2


def test_files_and_directories(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    assert models.load(path).architecture == "LlamaForCausalLM"
    assert models.load(str(tmp_path)).values == LLAMA


def test_files_that_are_not_configs(tmp_path):
    path = tmp_path / "config.json"
    path.write_text("{not json")
    with pytest.raises(ModelError, match=r"is not valid JSON \(line 1\)"):
        models.load(path)
    for text, words in (
        ("[1, 2]", "a list"),
        ("null", "null"),
        ("3", "a number"),
        ("true", "true or false"),
        ('"x"', "a string"),
    ):
        path.write_text(text)
        with pytest.raises(ModelError, match=f"holds {words}, not an object"):
            models.load(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ModelError, match="is not a JSON text file"):
        models.load(path)
    for text in ("[" * 100_000, "\x00"):
        path.write_text(text)
        with pytest.raises(ModelError, match="is not valid JSON"):
            models.load(path)
    with path.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(ModelError, match=r"is 1,073,741,824 bytes; a model config is at most"):
        models.load(path)


def test_places_without_a_config(tmp_path):
    with pytest.raises(ModelError, match=r"holds no config\.json"):
        models.load(tmp_path)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match=r"holds GGUF files and no config\.json"):
        models.load(tmp_path)
    with pytest.raises(ModelError, match=r"no such model 'llama-3.1-70c'.*Did you mean llama-3.1"):
        models.load("llama-3.1-70c")
    with pytest.raises(ModelError, match="empty string"):
        models.load(" ")


@pytest.mark.parametrize("name", recordings(BY_ENGINE))
def test_registers_what_a_running_engine_registers(name):
    """A whole CPU engine of vLLM 0.32.0 agrees, apart from what its own backend decides."""
    recorded = recordings(BY_ENGINE)[name]
    (mine,) = planned(recorded["config"], max_model_len=1024).kv_cache_specs
    assert {name: type(spec).__name__ for name, spec in mine.items()} == {
        name: layer["kind"] for name, layer in recorded["layers"].items()
    }
    for name, layer in recorded["layers"].items():
        facts = {key: value for key, value in layer.items() if key != "kind"}
        encoded = json.loads(json.dumps(mine[name].to_dict()))
        assert {key: encoded[key] for key in facts} == facts, name


def test_overridden_architectures_and_model_types_count():
    with pytest.raises(UnknownArchitecture, match="FooForCausalLM"):
        models.kv_cache_specs(
            "qwen3-0.6b", ModelOptions(hf_overrides={"architectures": ["FooForCausalLM"]})
        )
    overrides = {"architectures": ["ExaoneForCausalLM"]}
    names = list(planned(LLAMA, hf_overrides=overrides).kv_cache_specs[0])
    assert names[0] == "model.h.0.attn.attention.attn"
    # A model type brings the defaults of its class: Gemma has heads of 256 elements.
    specs = planned(LLAMA, hf_overrides={"model_type": "gemma"}).kv_cache_specs[0]
    assert {spec.head_size for spec in specs.values()} == {256}


def test_overrides_replace_values_and_update_the_configs_within():
    scaled = {**LLAMA, "rope_scaling": {"rope_type": "linear", "factor": 4.0}}
    overrides = {"rope_scaling": {"rope_type": "linear"}}
    assert planned(scaled, hf_overrides=overrides).config["max_model_len"] == 8192
    qwen2 = {**LLAMA, "architectures": ["Qwen2ForCausalLM"]}
    wrapped = {"architectures": ["Qwen2_5OmniModel"], "thinker_config": {"text_config": qwen2}}
    overrides = {"thinker_config": {"text_config": {"num_hidden_layers": 2}}}
    assert len(planned(wrapped, hf_overrides=overrides).kv_cache_specs[0]) == 2


def test_overrides_that_mean_nothing_are_told():
    overrides = {"sliding_windw": 128, "rope_theta": 1e6, "sliding_window": 4096, "head_dim": 64}
    assert planned(LLAMA, hf_overrides=overrides).unknown_overrides == (
        "sliding_windw",
        "rope_theta",
    )
