"""The longest request a model takes, from its config."""

from __future__ import annotations

from typing import Any

from kvplan.offline.models.config_view import LENGTH_KEYS, ConfigView
from kvplan.offline.models.errors import ModelError
from kvplan.offline.models.options import ModelOptions

_DEFAULT_LENGTH = 2048

#: RoPE types whose factor max_position_embeddings already contains, or that have none.
_ALREADY_SCALED = frozenset(
    {"su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling", "default"}
)


def _rope_parameters(root: ConfigView, text: ConfigView) -> list[dict[str, Any]]:
    """Every RoPE parameter set of a config; newer configs nest one per layer type."""
    found: list[dict[str, Any]] = []
    for view in (text, root):
        for key in ("rope_parameters", "rope_scaling"):
            value = view.values.get(key)
            if not isinstance(value, dict):
                continue
            nested = [v for v in value.values() if isinstance(v, dict)]
            found.extend(nested or [value])
        if found:
            return found
    return found


def derived_max_model_len(root: ConfigView, text: ConfigView, model_type: str) -> tuple[int, str]:
    """Longest request in tokens that a config allows, and the key it comes from.

    Mirrors vllm/config/model.py::_get_and_verify_max_len (0.33) without its tokenizer lookup.
    """
    length: float | None = None
    source = "default"
    for key in LENGTH_KEYS:
        value = text.get(key)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or value < 1:
            continue
        if length is None or value < length:
            length, source = value, key
    command_r = text.get("model_max_length")
    if isinstance(command_r, int) and command_r >= 1:
        length, source = command_r, "model_max_length"
    if length is None:
        return _DEFAULT_LENGTH, source
    parameters = _rope_parameters(root, text)
    types = [p.get("rope_type", p.get("type", "default")) for p in parameters]
    for rope_type in types:
        if not isinstance(rope_type, str):
            raise ModelError(f"the config's rope type must be a string; got {rope_type!r}")
    if "gemma3" not in model_type:
        factor: Any = 1.0
        for rope_type, parameter in zip(types, parameters, strict=True):
            if rope_type not in _ALREADY_SCALED:
                factor = parameter.get("factor", factor)
        if factor is not None:
            if not isinstance(factor, (int, float)) or isinstance(factor, bool):
                raise ModelError(f"the config's rope factor must be a number; got {factor!r}")
            length *= factor
    if "longrope" in types:
        original = root.values.get("original_max_position_embeddings")
        if isinstance(original, int):
            length, source = original, "original_max_position_embeddings"
    return int(length), source


def resolve_max_model_len(derived: int, source: str, options: ModelOptions) -> int:
    """The length to plan for: the user's, if the model allows it, else the model's.

    Raises:
        ModelError: If the user asks for more than the model allows.
    """
    wanted = options.max_model_len
    if wanted is None or options.auto_fit:
        return derived
    wanted = int(wanted)
    if wanted > derived and source != "default":
        raise ModelError(
            f"max_model_len {wanted:,} is greater than the model's {derived:,} (its {source}); "
            "hf_overrides can change the model's"
        )
    return wanted
