"""The plan's slices on vLLM's objects, in the scheduler's process and in the workers'."""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheTensor

from kvplan._core import VllmPlanner
from kvplan.kv_cache_config import KVCacheConfig as NativeKVCacheConfig
from kvplan.kv_cache_config import KVCacheGroupSpec as NativeKVCacheGroupSpec
from kvplan.planning import get_max_concurrency_for_kv_cache_config
from kvplan.vllm.patch import Patch, stock
from kvplan.vllm.sliced.gate import any_spec

if TYPE_CHECKING:
    from kvplan.vllm.flow import Flow


@dataclass
class SlicedKVCacheConfig(KVCacheConfig):
    """vLLM's config, whose pool has ``num_blocks`` large blocks.

    Group g cuts each into ``slices[g]`` of its own blocks, so it has ``num_blocks * slices[g]``
    block ids. vLLM's workers ask :meth:`num_blocks_of` when they make a layer's view.
    """

    slices: tuple[int, ...] = ()

    def num_blocks_of(self, tensor: KVCacheTensor) -> int:
        """Block ids of the group that the tensor's layers are in."""
        return self.num_blocks * self.slices[self._group_of(tensor)]

    def _group_of(self, tensor: KVCacheTensor) -> int:
        return next(
            g
            for g, group in enumerate(self.kv_cache_groups)
            if tensor.layers[0] in group.layer_names
        )


def with_slices(config: KVCacheConfig, slices: tuple[int, ...]) -> SlicedKVCacheConfig:
    """A planned config with its groups' slices, for which vLLM's groups have no place."""
    values = {field.name: getattr(config, field.name) for field in fields(KVCacheConfig)}
    return SlicedKVCacheConfig(**values, slices=slices)


def max_concurrency(
    planner: VllmPlanner, planning_config: Any, config: SlicedKVCacheConfig
) -> float:
    """How many requests of the full length the pool holds when their slices share blocks."""
    groups = [
        NativeKVCacheGroupSpec(
            list(group.layer_names), planner.to_native(any_spec(group.kv_cache_spec)), slices=slices
        )
        for group, slices in zip(config.kv_cache_groups, config.slices, strict=True)
    ]
    return get_max_concurrency_for_kv_cache_config(
        planning_config,
        NativeKVCacheConfig(
            num_blocks=config.num_blocks, kv_cache_tensors=[], kv_cache_groups=groups
        ),
    )


def patches(flow: Flow) -> list[Patch]:
    """The capacity in the log: slices of several requests share blocks."""
    name = "get_max_concurrency_for_kv_cache_config"
    original = stock(flow.vllm.planning, name)

    @functools.wraps(original)
    def get_max_concurrency(vllm_config: Any, kv_cache_config: Any) -> float:
        if not isinstance(kv_cache_config, SlicedKVCacheConfig):
            return original(vllm_config, kv_cache_config)
        config = flow.planner.read_config(vllm_config, {})
        return max_concurrency(flow.planner, config, kv_cache_config)

    return [Patch(flow.vllm.planning, name, get_max_concurrency)]
