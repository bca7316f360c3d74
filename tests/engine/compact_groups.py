"""Puts kvplan's compact grouping in the place of vLLM's in the engine of this process."""

from dataclasses import fields, replace
from typing import Any

from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import KVCacheGroupSpec, MambaSpec, UniformTypeKVCacheSpecs

import kvplan
from kvplan.config import as_planning_config

VLLM_GROUPING = kv_cache_utils.get_kv_cache_groups


def kvplan_spec(spec: Any) -> kvplan.specs.KVCacheSpec:
    """Kvplan's spec with the fields of vLLM's."""
    cls = getattr(kvplan.specs, type(spec).__name__)
    values = {f.name: getattr(spec, f.name) for f in fields(spec) if f.init}
    if isinstance(spec, MambaSpec):
        values["mamba_type"] = spec.mamba_type.name.lower()
    return cls(**values)


def vllm_group(group: Any, original: dict[str, Any]) -> KVCacheGroupSpec:
    """The group of vLLM, each layer with its own spec but for the block and the padded page."""

    def changed(name: str, spec: Any) -> Any:
        return replace(
            original[name], block_size=spec.block_size, page_size_padded=spec.page_size_padded
        )

    spec = group.kv_cache_spec
    if isinstance(spec, kvplan.specs.UniformTypeKVCacheSpecs):
        layers = {n: changed(n, s) for n, s in spec.kv_cache_specs.items()}
        return KVCacheGroupSpec(
            list(group.layer_names), UniformTypeKVCacheSpecs(spec.block_size, layers)
        )
    layer_specs = [changed(name, spec) for name in group.layer_names]
    return KVCacheGroupSpec(list(group.layer_names), layer_specs[0].merge(layer_specs))


def use_compact(max_groups: int) -> None:
    """From now on the engine's groups are kvplan's."""

    def grouping(vllm_config: Any, kv_cache_spec: dict[str, Any]) -> list[KVCacheGroupSpec]:
        config = as_planning_config(
            vllm_config,
            grouping="compact",
            max_groups=max_groups,
            attention_kernel_block_sizes=[kvplan.specs.MultipleOf(32)],  # the CPU backend's
        )
        layers = {name: kvplan_spec(spec) for name, spec in kv_cache_spec.items()}
        groups = kvplan.get_global_kv_cache_groups(config, [layers])
        return [vllm_group(g, kv_cache_spec) for g in groups]

    kv_cache_utils.get_kv_cache_groups = grouping


def use_vllm() -> None:
    """Back to vLLM's own grouping."""
    kv_cache_utils.get_kv_cache_groups = VLLM_GROUPING
