"""Read a model config: aliases, class defaults, and checks on what is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvplan.offline.models.errors import MissingKey, ModelError
from kvplan.offline.models.json_words import json_type
from kvplan.offline.models.transformers_table import class_defaults
from kvplan.offline.models.value_types import check_value_types

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
