"""From a model's ``config.json`` to the KV cache specs that vLLM registers for it."""

from kvplan.models.config_file import builtin_models
from kvplan.models.errors import MissingKey, ModelError, UnknownArchitecture
from kvplan.models.options import ModelOptions
from kvplan.models.plan_input import ModelConfig, ModelPlanInput, kv_cache_specs, load
from kvplan.models.registry import known_architectures

__all__ = [
    "MissingKey",
    "ModelConfig",
    "ModelError",
    "ModelOptions",
    "ModelPlanInput",
    "UnknownArchitecture",
    "builtin_models",
    "known_architectures",
    "kv_cache_specs",
    "load",
]
