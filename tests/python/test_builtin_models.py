"""Built-in models: each figure by hand from what its makers published, so a wrong config shows."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from recordings import recordings

import kvplan
from kvplan.offline import models
from kvplan.offline.models import ModelError, ModelOptions, config_file, config_view

KIB = 1024
ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "kvplan" / "offline" / "models" / "configs"


def heads(layers, kv_heads, size, value_size=None):
    """Bytes of a token's keys and values in layers that keep every token, 16 bits an element."""
    return layers * kv_heads * (size + (value_size or size)) * 2


def latent(layers):
    """The same of DeepSeek's latent attention: 512 compressed and 64 rotary elements."""
    return layers * (512 + 64) * 2


#: An index key of sparse attention: 128 elements in 8 bits and a 32-bit scale.
INDEX_KEY = 128 + 4


def compressed(by_4, by_128):
    """DeepSeek V4's layers that keep one state for 4 and for 128 tokens, in blocks of 256 tokens.

    A state is 448 elements in 8 bits, 64 in 16 and 8 bytes of scales; a page is whole 576 bytes.
    """
    state = 448 + 64 * 2 + 8

    def page(content):
        return -(-content // 576) * 576

    block = by_4 * (page(64 * state) + page(64 * INDEX_KEY)) + by_128 * page(2 * state)
    return block / 256


#: Bytes of KV cache for one more token on one GPU, caches, and the longest request.
PUBLISHED = {
    "deepseek-r1": (latent(61), 61, 163840),
    "deepseek-v3": (latent(61), 61, 163840),
    "deepseek-v3.2": (latent(61) + 61 * INDEX_KEY, 2 * 61, 163840),
    # One window a layer; where states are kept: they and their compressor, and an indexer's two.
    "deepseek-v4-flash": (compressed(21, 20), 43 + 21 * 4 + 20 * 2, 1 << 20),
    "deepseek-v4-pro": (compressed(30, 31), 61 + 30 * 4 + 31 * 2, 1 << 20),
    "gemma-2-9b": (heads(42 // 2, 8, 256), 42, 8192),
    "gemma-2-27b": (heads(46 // 2, 16, 128), 46, 8192),
    "gemma-3-4b": (heads(34 // 6, 4, 256), 34, 128 * KIB),
    "gemma-3-12b": (heads(48 // 6, 8, 256), 48, 128 * KIB),
    "gemma-3-27b": (heads(62 // 6, 16, 128), 62, 128 * KIB),
    "gemma-4-26b-a4b": (heads(30 // 6, 2, 512), 30, 256 * KIB),
    "gemma-4-31b": (heads(60 // 6, 4, 512), 60, 256 * KIB),
    "glm-4.5": (heads(92, 8, 128), 92, 128 * KIB),
    "glm-4.5-air": (heads(46, 8, 128), 46, 128 * KIB),
    "glm-4.6": (heads(92, 8, 128), 92, 198 * KIB),
    "glm-4.7": (heads(92, 8, 128), 92, 198 * KIB),
    "glm-5": (latent(78) + 78 * INDEX_KEY, 2 * 78, 198 * KIB),
    # Three layers index for themselves, then every fourth one for the three after it.
    "glm-5.2": (latent(78) + 21 * INDEX_KEY, 78 + 21, 1 << 20),
    # 11 latents without rotary part, an index key for each four tokens, and a ring beside it.
    "glm-5.3-flash": (11 * (512 * 2 + INDEX_KEY / 4), 34 + 3 * 11, 1 << 20),
    "gpt-oss-20b": (heads(24 // 2, 8, 64), 24, 128 * KIB),
    "gpt-oss-120b": (heads(36 // 2, 8, 64), 36, 128 * KIB),
    "jamba-1.5-large": (heads(72 // 8, 8, 128), 72, 256 * KIB),
    "kimi-k2": (latent(61), 61, 128 * KIB),
    "kimi-k2.5": (latent(61), 61, 256 * KIB),
    "kimi-k3": (latent(24), 93, 1 << 20),
    "lfm2.5-1.2b": (heads(6, 8, 64), 16, 125 * KIB),
    "llama-3.1-8b": (heads(32, 8, 128), 32, 128 * KIB),
    "llama-3.1-70b": (heads(80, 8, 128), 80, 128 * KIB),
    "llama-3.1-405b": (heads(126, 8, 128), 126, 128 * KIB),
    "llama-3.2-1b": (heads(16, 8, 64), 16, 128 * KIB),
    "llama-3.2-3b": (heads(28, 8, 128), 28, 128 * KIB),
    "llama-3.3-70b": (heads(80, 8, 128), 80, 128 * KIB),
    "llama-4-maverick": (heads(48 // 4, 8, 128), 48, 1 << 20),
    "llama-4-scout": (heads(48 // 4, 8, 128), 48, 10 << 20),
    "mimo-v2-flash": (heads(9, 4, 192, 128), 48, 256 * KIB),
    "minimax-m2": (heads(62, 8, 128), 62, 192 * KIB),
    "minimax-m2.5": (heads(62, 8, 128), 62, 192 * KIB),
    "minimax-m2.7": (heads(62, 8, 128), 62, 200 * KIB),
    # All but three layers have an index key of 128 elements in 16 bits.
    "minimax-m3": (heads(60, 4, 128) + 57 * 128 * 2, 60 + 57, 1 << 20),
    "mistral-7b": (heads(32, 8, 128), 32, 32 * KIB),
    "mistral-large-2411": (heads(88, 8, 128), 88, 128 * KIB),
    "mistral-small-3.1-24b": (heads(40, 8, 128), 40, 128 * KIB),
    "mistral-small-3.2-24b": (heads(40, 8, 128), 40, 128 * KIB),
    "mistral-small-4": (36 * (256 + 64) * 2, 36, 1 << 20),
    "mixtral-8x7b": (heads(32, 8, 128), 32, 32 * KIB),
    "mixtral-8x22b": (heads(56, 8, 128), 56, 64 * KIB),
    # Attention and Mamba layers; the feed-forward ones between them keep nothing.
    "nemotron-3-nano-30b": (heads(6, 2, 128), 6 + 23, 256 * KIB),
    "nemotron-nano-9b-v2": (heads(4, 8, 128), 4 + 27, 128 * KIB),
    "phi-4": (heads(40, 10, 128), 40, 16 * KIB),
    "qwen2.5-7b": (heads(28, 4, 128), 28, 32 * KIB),
    "qwen2.5-14b": (heads(48, 8, 128), 48, 32 * KIB),
    "qwen2.5-32b": (heads(64, 8, 128), 64, 32 * KIB),
    "qwen2.5-72b": (heads(80, 8, 128), 80, 32 * KIB),
    "qwen3-0.6b": (heads(28, 8, 128), 28, 40 * KIB),
    "qwen3-1.7b": (heads(28, 8, 128), 28, 40 * KIB),
    "qwen3-4b": (heads(36, 8, 128), 36, 40 * KIB),
    "qwen3-8b": (heads(36, 8, 128), 36, 40 * KIB),
    "qwen3-14b": (heads(40, 8, 128), 40, 40 * KIB),
    "qwen3-32b": (heads(64, 8, 128), 64, 40 * KIB),
    "qwen3-30b-a3b": (heads(48, 4, 128), 48, 40 * KIB),
    "qwen3-235b-a22b": (heads(94, 4, 128), 94, 40 * KIB),
    "qwen3-coder-480b-a35b": (heads(62, 8, 128), 62, 256 * KIB),
    "qwen3-next-80b": (heads(48 // 4, 2, 256), 48, 256 * KIB),
    "qwen3-vl-8b": (heads(36, 8, 128), 36, 256 * KIB),
    "qwen3-vl-32b": (heads(64, 8, 128), 64, 256 * KIB),
    "qwen3-vl-30b-a3b": (heads(48, 4, 128), 48, 256 * KIB),
    "qwen3-vl-235b-a22b": (heads(94, 4, 128), 94, 256 * KIB),
    "qwen3.5-27b": (heads(64 // 4, 4, 256), 64, 256 * KIB),
    "qwen3.5-35b-a3b": (heads(40 // 4, 2, 256), 40, 256 * KIB),
    "qwen3.5-122b-a10b": (heads(48 // 4, 2, 256), 48, 256 * KIB),
    "qwen3.5-397b-a17b": (heads(60 // 4, 2, 256), 60, 256 * KIB),
    "qwen3.6-27b": (heads(64 // 4, 4, 256), 64, 256 * KIB),
    "qwen3.6-35b-a3b": (heads(40 // 4, 2, 256), 40, 256 * KIB),
    "qwen3.8-27b": (heads(64 // 4, 4, 256), 64, 256 * KIB),
    # 32 decoder layers, each with a cache of its own states and one of the encoder's.
    "whisper-large-v3": (heads(32, 20, 64), 2 * 32, 448),
}

#: Tokens in a layer's window or chunk.
WINDOWS = {
    "gemma-2-9b": 4096,
    "gemma-2-27b": 4096,
    "gemma-3-4b": 1024,
    "gemma-3-12b": 1024,
    "gemma-3-27b": 1024,
    "gemma-4-26b-a4b": 1024,
    "gemma-4-31b": 1024,
    "gpt-oss-20b": 128,
    "gpt-oss-120b": 128,
    "llama-4-maverick": 8192,
    "llama-4-scout": 8192,
    "mimo-v2-flash": 128,
    "deepseek-v4-flash": 128,
    "deepseek-v4-pro": 128,
    "deepseek-v4.1-flash": 128,
}

#: Bytes of a recurrent state: a convolution's inputs in 16 bits, and what they are summed up in.
STATES = {
    # Jamba: 16,384 channels, 3 past inputs and 16 sums each, in 16 bits.
    "jamba-1.5-large": 16384 * (3 + 16) * 2,
    # Mamba 2: 3 past inputs of the channels and of 8 groups' inputs and outputs.
    "nemotron-3-nano-30b": 3 * (64 * 64 + 2 * 8 * 128) * 2 + 64 * 64 * 128 * 4,
    "nemotron-nano-9b-v2": 3 * (128 * 80 + 2 * 8 * 128) * 2 + 128 * 80 * 128 * 4,
    # Gated delta rule: 3 past queries, keys and values, and a matrix for each value head.
    "qwen3-next-80b": 3 * (2 * 16 + 32) * 128 * 2 + 32 * 128 * 128 * 2,
    "qwen3.5-27b": 3 * (2 * 16 + 48) * 128 * 2 + 48 * 128 * 128 * 4,
    "qwen3.5-35b-a3b": 3 * (2 * 16 + 32) * 128 * 2 + 32 * 128 * 128 * 4,
    "qwen3.5-122b-a10b": 3 * (2 * 16 + 64) * 128 * 2 + 64 * 128 * 128 * 4,
    "qwen3.5-397b-a17b": 3 * (2 * 16 + 64) * 128 * 2 + 64 * 128 * 128 * 4,
    "qwen3.6-27b": 3 * (2 * 16 + 48) * 128 * 2 + 48 * 128 * 128 * 4,
    "qwen3.6-35b-a3b": 3 * (2 * 16 + 32) * 128 * 2 + 32 * 128 * 128 * 4,
    "qwen3.8-27b": 3 * (2 * 16 + 48) * 128 * 2 + 48 * 128 * 128 * 4,
    # Kimi delta attention: the same with as many queries and keys as values.
    "glm-5.3-flash": 3 * 3 * 64 * 128 * 2 + 64 * 128 * 128 * 4,
    "kimi-k3": 3 * 3 * 96 * 128 * 2 + 96 * 128 * 128 * 4,
    # A short convolution's two past inputs.
    "lfm2.5-1.2b": 2 * 2048 * 2,
}


def plan_of(name):
    found = models.kv_cache_specs(name)
    return kvplan.plan(found.planning_config(), found.kv_cache_specs, [1 << 60])


@pytest.mark.parametrize("name", models.builtin_models())
def test_figures_are_the_published_ones(name):
    if name == "deepseek-v4.1-flash":
        pytest.skip("its deployments' figures are in test_models.py")
    plan = plan_of(name)
    caches = sum(len(group.layer_names) for group in plan.groups)
    per_token, *others = PUBLISHED[name]
    assert [caches, plan.max_model_len] == others
    # Index keys of GLM-5.3-Flash, beside latents in one block, start at multiples of 1 KiB.
    assert plan.bytes_per_token == pytest.approx(per_token, rel=4e-4 if "5.3" in name else 1e-12)


@pytest.mark.parametrize("name", models.builtin_models())
def test_windows_and_states_are_the_published_ones(name):
    windows, states = Counter(), Counter()
    for spec in models.kv_cache_specs(name).kv_cache_specs[0].values():
        if type(spec).__name__ == "MambaSpec":
            states[_state_bytes(spec)] += 1
            continue
        window = getattr(spec, "sliding_window", None)
        window = window or getattr(spec, "attention_chunk_size", None)
        # A compressor's ring is kept like a window of a few tokens.
        if window and window > 8:
            windows[window] += 1
    assert list(windows) == ([WINDOWS[name]] if name in WINDOWS else [])
    assert list(states) == ([STATES[name]] if name in STATES else [])


def _state_bytes(spec):
    total = 0
    for shape, dtype in zip(spec.shapes, spec.dtypes, strict=True):
        elements = 1
        for size in shape:
            elements *= size
        total += elements * (4 if "float32" in str(dtype) else 2)
    return total


@pytest.mark.parametrize("name", models.builtin_models())
def test_plans_where_its_heads_can_be_divided(name):
    config = json.loads((CONFIGS / f"{name}.json").read_text())
    text = config.get("text_config", config)
    of = text.get("num_attention_heads") or text["decoder_attention_heads"]
    kv_heads = text.get("num_key_value_heads", of)
    vocabulary = -(-text["vocab_size"] // 64) * 64
    for tp in (1, 2, 3, 4, 8):
        replicates = tp % kv_heads == 0 and not name.startswith("gpt-oss")
        options = ModelOptions(tensor_parallel_size=tp)
        divides = of % tp == vocabulary % tp == 0
        if divides and (kv_heads % tp == 0 or replicates):
            assert len(models.kv_cache_specs(name, options).kv_cache_specs) == tp
        else:
            with pytest.raises(ModelError, match=rf"tensor_parallel_size.*\b{tp}\b"):
                models.kv_cache_specs(name, options)


@pytest.mark.parametrize("name", models.builtin_models())
def test_plans_without_transformers(name, monkeypatch):
    expected = models.kv_cache_specs(name)
    monkeypatch.setattr(config_view, "class_defaults", lambda model_type: {})
    found = models.kv_cache_specs(name)
    assert found.kv_cache_specs == expected.kv_cache_specs
    assert found.config == expected.config


@pytest.mark.parametrize("name", models.builtin_models())
def test_its_recording_is_of_its_config(name):
    """What vLLM registers for it: tests/python/test_models.py compares the recording."""
    recording = recordings("models")[f"{name}-tp{2 if name == 'phi-4' else 4}"]  # 10 KV heads
    assert recording["config"] == json.loads((CONFIGS / f"{name}.json").read_text())


def test_every_config_says_where_it_was_published():
    rows = [line.split("|") for line in (CONFIGS / "README.md").read_text().splitlines()]
    published = {row[1].strip(" `"): row[2].strip() for row in rows if len(row) > 3}
    published = {name: hub for name, hub in published.items() if name.endswith(".json")}
    assert list(published) == [f"{name}.json" for name in models.builtin_models()]
    assert all(hub.count("/") == 1 for hub in published.values())


@pytest.mark.parametrize(
    ("typed", "suggested"),
    [
        ("Qwen3-8B", "Did you mean qwen3-8b?"),
        ("mistral-large", "Did you mean mistral-large-2411?"),
        ("llama-3.1-8b-instruct", "Did you mean llama-3.1-8b?"),
        ("gpt-oss", "Did you mean one of gpt-oss-20b, gpt-oss-120b?"),
        ("lama-3.1-70b", "Did you mean llama-3.1-70b?"),
    ],
)
def test_near_names_are_suggested(typed, suggested):
    with pytest.raises(ModelError) as caught:
        models.load(typed)
    assert suggested in str(caught.value)


def test_an_error_names_a_few_models_only():
    with pytest.raises(ModelError) as caught:
        models.load("qwen")
    message = str(caught.value)
    assert message.count("qwen") == 1 + config_file._MAX_SUGGESTIONS
    assert ", ...?" in message
    with pytest.raises(ModelError) as caught:
        models.load("zzzz")
    assert "mean" not in str(caught.value)
    assert f"'kvplan models' lists the {len(models.builtin_models())}" in str(caught.value)
