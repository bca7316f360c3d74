"""vLLM 0.33.0's planner, driven by request dictionaries and read back as plain data.

The request format is kvplan's own (docs/request.md); the answer is what vLLM's real classes and
functions give for it. Only the builder lookup is replaced, because it asks the platform.
"""

import dataclasses
import functools
import logging
import warnings
from fractions import Fraction
from typing import Any

from kvplan.bench.vllm_objects import (
    CONFIG_DEFAULTS,
    expand_workers,
    inputs,
    make_config,
    make_spec,
)

logging.getLogger("vllm").setLevel(logging.ERROR)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch
    from vllm.v1 import kv_cache_interface as interface
    from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
    from vllm.v1.core import kv_cache_utils

    try:
        from vllm.v1.core import kv_cache_config_builder, kv_cache_planning
    except ImportError:  # before 0.33 the functions are here, and there is no builder
        kv_cache_planning = kv_cache_utils

logging.getLogger("vllm").setLevel(logging.ERROR)
if kv_cache_planning is not kv_cache_utils:
    BUILDER = kv_cache_planning.DefaultKVCacheConfigBuilder()
    kv_cache_config_builder.get_kv_cache_config_builder = lambda vllm_config: BUILDER

__all__ = ["CONFIG_DEFAULTS", "expand_workers", "inputs", "make_config", "make_spec"]


def remember_dtype_sizes() -> None:
    """Let vLLM make a tensor per dtype instead of per question: 40 % of its time goes there.

    For comparing answers only; whoever measures vLLM leaves it as it is.
    """
    remembered = functools.cache(interface.get_dtype_size)
    interface.get_dtype_size = kv_cache_planning.get_dtype_size = remembered


def plain(value: Any) -> Any:
    """A field value as something that compares equal across vLLM and kvplan."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value).__name__ == "MultipleOf":
        return {"multiple_of": value.base}
    if isinstance(value, (tuple, list)):
        return [plain(v) for v in value]
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, MambaAttentionBackendEnum):
        return value.name.lower()
    if isinstance(value, Fraction):
        return value.numerator if value.denominator == 1 else str(value)
    return value.value


# Field names per class, read off vLLM's dataclasses so that none can be forgotten.
SPEC_FIELDS: dict[str, list[str]] = {
    name: [f.name for f in dataclasses.fields(cls)]
    for name, cls in vars(interface).items()
    if isinstance(cls, type) and issubclass(cls, interface.KVCacheSpec)
}


def describe_spec(spec: Any) -> dict[str, Any]:
    """Every field of a spec; `spec` may be vLLM's or kvplan's, both have the same names."""
    kind = type(spec).__name__
    described: dict[str, Any] = {"kind": kind}
    for name in SPEC_FIELDS[kind]:
        value = getattr(spec, name)
        if name == "kv_cache_specs":
            described[name] = [[layer, describe_spec(s)] for layer, s in value.items()]
        else:
            described[name] = plain(value)
    return described


def describe_group(group: Any) -> dict[str, Any]:
    """Every field of a `KVCacheGroupSpec`."""
    return {
        "layer_names": list(group.layer_names),
        "kv_cache_spec": describe_spec(group.kv_cache_spec),
        "is_eagle_group": bool(group.is_eagle_group),
        "host_resident": bool(group.host_resident),
        "enable_kv_transfer": bool(group.enable_kv_transfer),
        "role": plain(group.role),
    }


def describe_tensor(tensor: Any) -> dict[str, Any]:
    """Every field of a `KVCacheTensor`."""
    return {
        "size": tensor.size,
        "layers": list(tensor.layers),
        "layer_stride": tensor.layer_stride,
        "block_stride": tensor.block_stride,
        "offset": tensor.offset,
        "host_resident": bool(tensor.host_resident),
    }


def describe_kv_cache_config(config: Any) -> dict[str, Any]:
    """Every field of a `KVCacheConfig`."""
    described = {
        f.name: plain(getattr(config, f.name))
        for f in dataclasses.fields(interface.KVCacheConfig)
        if f.name not in ("kv_cache_tensors", "kv_cache_groups")
    }
    described["kv_cache_tensors"] = [describe_tensor(t) for t in config.kv_cache_tensors]
    described["kv_cache_groups"] = [describe_group(g) for g in config.kv_cache_groups]
    return described


def attempt(function: Any, *args: Any) -> Any:
    """The function's answer, or `{"error": type name, "message": text}`."""
    try:
        return function(*args)
    except Exception as e:
        return {"error": type(e).__name__, "message": str(e)}


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Plan a request with vLLM and describe everything it decided, or its error."""
    try:
        config, specs, memory = inputs(request)
        groups = kv_cache_planning.get_global_kv_cache_groups(config, specs)
        described_groups = [describe_group(g) for g in groups]
        configs = kv_cache_planning.get_kv_cache_configs(config, specs, memory, groups)
    except Exception as e:
        return {"error": type(e).__name__, "message": str(e)}
    scheduler = attempt(kv_cache_utils.generate_scheduler_kv_cache_config, configs)
    outcome = {
        "max_model_len": config.model_config.max_model_len,
        "kv_cache_groups": described_groups,
        "kv_cache_configs": [describe_kv_cache_config(c) for c in configs],
        "scheduler": scheduler
        if isinstance(scheduler, dict)
        else describe_kv_cache_config(scheduler),
    }
    capacity = attempt(kv_cache_utils.get_kv_cache_capacity, config, configs[0])
    outcome["capacity"] = capacity if isinstance(capacity, dict) else list(capacity)
    sizes = attempt(kv_cache_utils.resolve_kv_cache_block_sizes, configs[0], config)
    outcome["block_sizes"] = sizes if isinstance(sizes, dict) else list(sizes)
    return outcome
