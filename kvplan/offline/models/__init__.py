"""From a model's ``config.json`` to the KV cache specs that vLLM registers for it."""

from kvplan.offline.models.config_file import builtin_models
from kvplan.offline.models.errors import MissingKey, ModelError, UnknownArchitecture
from kvplan.offline.models.options import ModelOptions
from kvplan.offline.models.plan_input import ModelConfig, ModelPlanInput, kv_cache_specs, load
from kvplan.offline.models.registry import known_architectures

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
