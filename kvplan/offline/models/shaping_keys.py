"""Config keys that shape a KV cache, and the check that none of them goes unread."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from kvplan.offline.models.config_view import KV_HEAD_KEYS, ConfigView
from kvplan.offline.models.errors import ModelError
from kvplan.offline.models.layers import ModelLayers

#: Latents, kinds of layers, windows, chunks and shared layers.
_KEYS = frozenset(
    {
        "kv_lora_rank",
        "index_topk",
        "compress_ratios",
        "compress_rates",
        "layer_types",
        "layers_block_type",
        "hybrid_override_pattern",
        "hybrid_layer_pattern",
        "layer_group_size",
        "local_layer_ids",
        "block_configs",
        "per_layer_config",
        "sliding_window",
        "sliding_window_size",
        "interleaved_sliding_window",
        "window_sizes",
        "attention_chunk_size",
        "num_kv_shared_layers",
        "kv_source_layer_ids",
        "ssm_state_size",
        "conv_L_cache",
        "num_global_key_value_heads",
        "global_head_dim",
        "swa_num_key_value_heads",
        "swa_head_dim",
    }
)

#: Sizes of recurrent layers; these few of them do not change what a layer keeps.
_STATE_PREFIXES = ("linear_", "mamba_")
_STATELESS = frozenset(
    {"mamba_chunk_size", "mamba_dt_rank", "mamba_expand", "mamba_dt_min", "mamba_dt_max"}
)

#: Keys that lay out the kinds of layers where ``layer_types`` does not list them.
_LAYOUTS = frozenset(
    {
        "sliding_window_pattern",
        "_sliding_window_pattern",
        "full_attention_interval",
        "full_attn_idxs",
        "attn_layer_period",
    }
)

_FULL = frozenset({"full_attention", "attention"})


def check_every_key_is_read(
    architecture: str, text: ConfigView, model: ModelLayers, ignored: Collection[str]
) -> None:
    """Refuse a config that says something about its cache that the family did not look at.

    Args:
        architecture: Name of the architecture.
        text: The config that its family has read.
        model: What the family made of it.
        ignored: Keys that the architecture's code does not read, whatever they say.

    Raises:
        ModelError: If a key that shapes other models' caches was not read; it names the key.
    """
    listed = "layer_types" in text.keys_read and bool(text.own("layer_types"))
    latent = model.uses_mla or model.is_attention_free
    for key, value in text.values.items():
        if key in text.keys_read or key in ignored or not _says_something(key, value):
            continue
        if listed and key in _LAYOUTS:
            continue
        if key in KV_HEAD_KEYS:
            if latent or value == text.values.get("num_attention_heads"):
                continue
        elif key not in _KEYS | _LAYOUTS and not _is_state_size(key, value):
            continue
        raise ModelError(
            f"{text.where}.{key} is {_shortened(value)}, and kvplan does not read it for "
            f"{architecture}: what its layers cache is not guessed"
        )


def _says_something(key: str, value: Any) -> bool:
    if isinstance(value, list) and key in ("layer_types", "layers_block_type"):
        return any(kind not in _FULL for kind in value)
    return value not in (None, False, 0, "") and value != [] and value != {}


def _is_state_size(key: str, value: Any) -> bool:
    is_size = isinstance(value, (int, list, dict)) and not isinstance(value, bool)
    return key.startswith(_STATE_PREFIXES) and key not in _STATELESS and is_size


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
