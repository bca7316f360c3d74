"""Types of the config values that planning reads, so that none is silently taken for absent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kvplan.offline.models.errors import ModelError


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return _is_number(value) and (isinstance(value, int) or value.is_integer())


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool) or (isinstance(value, int) and value in (0, 1))


_Check = Callable[[Any], bool]
_WHOLE: tuple[str, _Check] = ("a whole number", _is_whole)
_NUMBER: tuple[str, _Check] = ("a number", _is_number)
_FLAG: tuple[str, _Check] = ("true or false", _is_flag)
_TEXT: tuple[str, _Check] = ("a string", lambda value: isinstance(value, str))
_LIST: tuple[str, _Check] = ("a list", lambda value: isinstance(value, list))
_OBJECT: tuple[str, _Check] = ("an object", lambda value: isinstance(value, dict))
_WINDOW: tuple[str, _Check] = (
    "a whole number or a list of them",
    lambda value: value is False or _is_whole(value) or isinstance(value, list),
)
_WHOLE_OR_AUTO: tuple[str, _Check] = (
    'a whole number or "auto"',
    lambda value: value == "auto" or _is_whole(value),
)

#: The longest request a model takes, by the names that configs have for it.
LENGTH_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)

#: What a key holds where it is not null. Keys that are read with a check of their own are left out.
_TYPES: dict[str, tuple[str, _Check]] = {
    **dict.fromkeys(
        (
            *LENGTH_KEYS,
            "original_max_position_embeddings",
            "head_dim",
            "sliding_window_pattern",
            "_sliding_window_pattern",
            "kv_lora_rank",
            "indexer_n_heads",
            "linear_key_head_dim",
            "vocab_size",
            "padded_vocab_size",
        ),
        _WHOLE,
    ),
    **dict.fromkeys(("sliding_window", "interleaved_sliding_window"), _WINDOW),
    "mamba_d_head": _WHOLE_OR_AUTO,
    "partial_rotary_factor": _NUMBER,
    **dict.fromkeys(
        (
            "use_sliding_window",
            "multi_query",
            "new_decoder_architecture",
            "add_swa_attention_sink_bias",
            "learnable_sink",
            "use_index_cache",
            "attention_k_eq_v",
        ),
        _FLAG,
    ),
    **dict.fromkeys(
        ("model_type", "dtype", "torch_dtype", "mamba_ssm_cache_dtype", "hybrid_override_pattern"),
        _TEXT,
    ),
    **dict.fromkeys(
        (
            "no_rope_layers",
            "local_layer_ids",
            "compress_ratios",
            "layers_block_type",
            "full_attn_idxs",
            "indexer_types",
            "ple_layer_ids",
            "window_sizes",
        ),
        _LIST,
    ),
    **dict.fromkeys(
        (
            "text_config",
            "llm_config",
            "language_config",
            "thinker_config",
            "rope_parameters",
            "rope_scaling",
            "quantization_config",
            "compression_config",
            "compress_rates",
            "per_layer_config",
        ),
        _OBJECT,
    ),
}


def has_type(key: str) -> bool:
    """Whether planning knows what a key holds, and so reads it for some model."""
    return key in _TYPES


def check_value_types(values: Mapping[str, Any], where: str) -> None:
    """Refuse a value of another type than its key holds; null is like an absent key.

    Raises:
        ModelError: If there is one; it names the key, the type and the value.
    """
    for key in values.keys() & _TYPES.keys():
        words, is_right = _TYPES[key]
        value = values[key]
        if value is not None and not is_right(value):
            raise ModelError(f"{where}.{key} must be {words}; got {value!r}")
