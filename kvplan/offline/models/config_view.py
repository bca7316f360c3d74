"""Read a model config: types, aliases, class defaults, and checks on what is read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from typing import Any

from kvplan.offline.models.errors import MissingKey, ModelError


def json_type(value: Any) -> str:
    """The type of a parsed value in JSON's words, e.g. "null" or "a list"."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an object" if isinstance(value, dict) else "a list"


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


@cache
def _table() -> dict[str, Any]:
    """What planning knows of transformers, by scripts/make_transformers_table.py.

    vLLM reads a config through transformers' config classes and names the language model of a text
    config by transformers' table; importing transformers takes seconds and can import torch.
    """
    file = resources.files("kvplan.offline.models") / "transformers.json"
    return json.loads(file.read_text())


def class_defaults(model_type: str) -> dict[str, Any]:
    """Defaults of the config class of a model type, of the keys that planning reads."""
    return _table()["defaults"].get(model_type, {})


def causal_language_model(model_type: str) -> str | None:
    """The architecture that generates text with a config of this model type, or None."""
    return _table()["causal_lm"].get(model_type)


def is_model_type(model_type: str) -> bool:
    """Whether transformers has a config class with a vocabulary for this model type."""
    return model_type in _table()["defaults"]


_ABSENT = object()

#: A size above this is a mistake; every product of a few of them still fits 64 bits.
_MAX_SIZE = 1 << 40

#: Other spellings that config classes map to these names.
_ALIASES: dict[str, tuple[str, ...]] = {
    "hidden_size": ("n_embd", "d_model", "dim"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads", "decoder_attention_heads"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers", "decoder_layers"),
    "layer_types": ("layers_block_type",),
}

#: Spellings of the number of KV heads, in vLLM's order of precedence.
KV_HEAD_KEYS = (
    "n_head_kv",
    "num_kv_heads",
    "num_key_value_heads",
    "multi_query_group_num",
    "num_attention_groups",
)


class ConfigView:
    """One level of a model config, with its class's defaults behind it.

    It keeps the keys that were asked for in ``keys_read``.

    Args:
        values: The parsed JSON object.
        where: Text that names this level in errors, such as "text_config".

    Raises:
        ModelError: If a value that planning reads has another type than its key holds.
    """

    def __init__(self, values: Mapping[str, Any], where: str = "config") -> None:
        check_value_types(values, where)
        self.values = values
        self.where = where
        self.keys_read: set[str] = set()

    @property
    def model_type(self) -> str:
        """The ``model_type`` of this level, or an empty string."""
        value = self.values.get("model_type", "")
        return value if isinstance(value, str) else ""

    def get(self, key: str, default: Any = None) -> Any:
        """The value under a key, else the config class's default, else ``default``."""
        value = self._lookup(key)
        return default if value is _ABSENT or value is None else value

    def own(self, key: str, default: Any = None) -> Any:
        """The value written in the config itself, without class defaults."""
        value = self._written(key)
        return default if value is _ABSENT else value

    def _written(self, key: str) -> Any:
        names = (key, *_ALIASES.get(key, ()))
        self.keys_read.update(names)
        return next((self.values[name] for name in names if name in self.values), _ABSENT)

    def _lookup(self, key: str) -> Any:
        written = self._written(key)
        if written is not _ABSENT:
            return written
        defaults = class_defaults(self.model_type)
        for name in (key, *_ALIASES.get(key, ())):
            if name in defaults:
                return defaults[name]
        return _ABSENT

    def require(self, key: str) -> Any:
        """Like ``get``, but a key that is nowhere to be found is an error that names it.

        Raises:
            MissingKey: If neither the config nor its class gives a value.
        """
        value = self._lookup(key)
        if value is _ABSENT or value is None:
            raise MissingKey(key, self.where, self.model_type)
        return value

    def size(self, key: str, *, minimum: int = 1) -> int:
        """A required whole number.

        Raises:
            MissingKey: If it is not given.
            ModelError: If it is not a whole number in range.
        """
        return self._checked_size(key, self.require(key), minimum)

    def optional_size(self, key: str, default: int | None = None, *, minimum: int = 1) -> Any:
        """A whole number, or ``default`` where the key is absent or null."""
        value = self.get(key)
        return default if value is None else self._checked_size(key, value, minimum)

    def _checked_size(self, key: str, value: Any, minimum: int) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ModelError(f"{self.where}.{key} must be a whole number; got {value!r}")
        if not minimum <= value <= _MAX_SIZE:
            raise ModelError(
                f"{self.where}.{key} is {value}; it must be between {minimum} and {_MAX_SIZE:,}"
            )
        return value

    def sizes(self, key: str, length: int | None = None, *, minimum: int = 0) -> list[int]:
        """A required list of whole numbers, of a given length if one is named."""
        value = self.require(key)
        if not isinstance(value, list):
            raise ModelError(f"{self.where}.{key} must be a list; got {json_type(value)}")
        if length is not None and len(value) < length:
            raise ModelError(
                f"{self.where}.{key} has {len(value)} entries, but the model has {length} layers"
            )
        return [self._checked_size(f"{key}[{i}]", v, minimum) for i, v in enumerate(value)]

    def section(self, key: str) -> ConfigView:
        """A nested object.

        Raises:
            MissingKey: If it is absent.
            ModelError: If it is not an object.
        """
        value = self.require(key)
        if not isinstance(value, dict):
            raise ModelError(f"{self.where}.{key} must be an object; got {json_type(value)}")
        return ConfigView(value, f"{self.where}.{key}")

    def layer_types(self, num_layers: int) -> list[str] | None:
        """The declared kind of every layer, or None where the config declares none.

        Raises:
            ModelError: If the list contradicts the number of layers.
        """
        value = self.own("layer_types")
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise ModelError(f"{self.where}.layer_types must be a list of strings")
        if len(value) < num_layers:
            raise ModelError(
                f"{self.where}.layer_types has {len(value)} entries, but num_hidden_layers is "
                f"{num_layers}"
            )
        return value[:num_layers]

    @property
    def num_layers(self) -> int:
        """``num_hidden_layers``."""
        layers = self.size("num_hidden_layers")
        if layers > MAX_LAYERS:
            raise ModelError(
                f"{self.where}.num_hidden_layers is {layers}; at most {MAX_LAYERS} are planned"
            )
        return layers

    @property
    def num_heads(self) -> int:
        """Attention heads over all TP ranks."""
        return self.size("num_attention_heads")

    @property
    def num_kv_heads(self) -> int:
        """KV heads over all TP ranks; as many as attention heads where none are declared.

        Mirrors vllm/transformers_utils/model_arch_config_convertor.py::get_total_num_kv_heads
        (0.33).
        """
        self.keys_read.update(KV_HEAD_KEYS)
        for source in (self.own, self.get):
            for key in KV_HEAD_KEYS:
                if source(key) is not None:
                    return self._checked_size(key, source(key), 1)
        return self.num_heads

    @property
    def head_size(self) -> int:
        """Elements of one head: ``head_dim``, else the hidden size divided by the heads."""
        head_dim = self.get("head_dim")
        if head_dim:
            return self._checked_size("head_dim", head_dim, 1)
        return self.split_head_size

    @property
    def split_head_size(self) -> int:
        """The hidden size divided by the heads, for model code that does not read ``head_dim``."""
        hidden, heads = self.size("hidden_size"), self.num_heads
        if hidden % heads:
            raise ModelError(
                f"{self.where} has no head_dim, and hidden_size ({hidden}) is not divisible by "
                f"num_attention_heads ({heads})"
            )
        return hidden // heads


#: Keys under which multimodal configs keep their language model, in order of preference.
TEXT_CONFIG_KEYS = ("text_config", "llm_config", "language_config", "thinker_config")


def text_view(root: ConfigView) -> ConfigView:
    """The language model's part of a config: a nested text config, or the config itself."""
    view = root
    for _ in range(3):
        for key in TEXT_CONFIG_KEYS:
            value = view.values.get(key)
            if isinstance(value, dict):
                view = ConfigView(value, key)
                break
        else:
            return view
    return view


#: More layers than any model has; a config with more is damaged.
MAX_LAYERS = 100_000
