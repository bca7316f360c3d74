"""kvplan's specs and groups as vLLM 0.33.0's objects, and the part of a VllmConfig to plan with."""

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import torch
from vllm.v1 import kv_cache_interface as interface
from vllm.v1.attention.backend import MultipleOf
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum

import kvplan


def _value(name: str, value: Any) -> Any:
    if name == "dtype":
        return getattr(torch, value)
    if name == "dtypes":
        return tuple(getattr(torch, v) for v in value)
    if name == "shapes":
        return tuple(tuple(shape) for shape in value)
    if name == "tokens_per_state" and isinstance(value, str):
        return Fraction(value)
    if name == "mamba_type":
        return MambaAttentionBackendEnum[value.upper()]
    if isinstance(value, dict):
        return MultipleOf(value["multiple_of"])
    return value


def vllm_spec(spec: kvplan.specs.KVCacheSpec) -> Any:
    """The object of vLLM with the same fields."""
    if isinstance(spec, kvplan.specs.UniformTypeKVCacheSpecs):
        layers = {name: vllm_spec(s) for name, s in spec.kv_cache_specs.items()}
        return interface.UniformTypeKVCacheSpecs(block_size=spec.block_size, kv_cache_specs=layers)
    fields = spec.to_dict()
    cls = getattr(interface, fields.pop("kind"))
    return cls(**{name: _value(name, v) for name, v in fields.items()})


def vllm_groups(groups: list[Any]) -> list[Any]:
    """The `KVCacheGroupSpec` objects of vLLM for kvplan's."""
    return [
        interface.KVCacheGroupSpec(
            list(g.layer_names), vllm_spec(g.kv_cache_spec), is_eagle_group=g.is_eagle_group
        )
        for g in groups
    ]


def vllm_config(config: kvplan.PlanningConfig) -> SimpleNamespace:
    """What vLLM's planner reads, from a `PlanningConfig` without a drafter."""
    layout = interface.KVCacheLayout[config.kv_cache_layout]
    return SimpleNamespace(
        model_config=SimpleNamespace(
            max_model_len=config.max_model_len,
            original_max_model_len=config.max_model_len,
            supports_kv_cache_grouping=False,
        ),
        cache_config=SimpleNamespace(
            num_gpu_blocks_override=config.num_gpu_blocks_override,
            mamba_cache_mode=config.mamba_cache_mode,
            block_size=config.block_size,
            enable_prefix_caching=config.enable_prefix_caching,
            prefix_match_unit=config.prefix_match_unit,
            prefix_cache_retention_interval=config.prefix_cache_retention_interval,
            get_resolved_kv_cache_layout=lambda: layout,
        ),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=config.tensor_parallel_size,
            pipeline_parallel_size=config.pipeline_parallel_size,
            decode_context_parallel_size=config.decode_context_parallel_size,
        ),
        scheduler_config=SimpleNamespace(
            disable_hybrid_kv_cache_manager=False,
            max_num_encoder_input_tokens=config.max_num_encoder_input_tokens,
        ),
        attention_config=SimpleNamespace(hisparse_config=None),
        device_config=SimpleNamespace(device_type=config.device_type),
        speculative_config=None,
        kv_transfer_config=None,
        num_prefill_lookahead_tokens=config.num_prefill_lookahead_tokens,
        max_in_flight_tokens=config.max_in_flight_tokens,
    )
