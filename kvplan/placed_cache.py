"""A worker's cache where it lies: its config and layout, and the group and spec of each tensor."""

from __future__ import annotations

from collections.abc import Iterator

from kvplan._core import InvalidArgument, KVCacheSpec, Plan
from kvplan.arguments import in_range
from kvplan.kv_cache_config import KVCacheConfig, KVCacheTensor, layer_spec
from kvplan.specs import KVCacheLayout


def worker_config(plan: Plan, worker: int) -> KVCacheConfig:
    """The config of a worker of ``plan``; InvalidArgument for one that it has not."""
    configs = plan.kv_cache_configs
    return configs[in_range("worker", worker, 0, len(configs))]


def config_and_layout(
    plan: Plan | KVCacheConfig, layout: KVCacheLayout | str | None, worker: int
) -> tuple[KVCacheConfig, KVCacheLayout | str]:
    """Those of a worker of a Plan, which knows its layout, or a KVCacheConfig and ``layout``."""
    config: KVCacheConfig
    if isinstance(plan, Plan):
        config = worker_config(plan, worker)
        layout = layout or plan.config.kv_cache_layout
    else:
        config = plan
    if layout is None:
        raise InvalidArgument("layout: a KVCacheConfig does not know its layout; give it")
    return config, layout


def iter_placed_tensors(
    config: KVCacheConfig,
) -> Iterator[tuple[int, KVCacheSpec, KVCacheTensor]]:
    """Each tensor with the index of its group, the first that names its layers, and their spec."""
    group_of = {
        name: i
        for i, group in reversed(list(enumerate(config.kv_cache_groups)))
        for name in group.layer_names
    }
    for tensor in config.kv_cache_tensors:
        name = tensor.layers[0]
        index = group_of[name]
        yield index, layer_spec(config.kv_cache_groups[index].kv_cache_spec, name), tensor
