"""What a worker is told: groups, tensors, and the number of blocks.

Mirrors the dataclasses at the end of vllm/v1/kv_cache_interface.py (0.33).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from kvplan._core import AttentionSpec, KVCacheSpec, MambaSpec, UniformTypeKVCacheSpecs
from kvplan.enums import KVCacheGroupRole

__all__ = ["KVCacheConfig", "KVCacheGroupSpec", "KVCacheTensor", "iter_layer_specs"]


@dataclass
class KVCacheTensor:
    """Where a set of same-shaped layers lies in the KV cache allocation.

    The page of ``layers[l]`` for block ``b`` begins at
    ``offset + l * layer_stride + b * block_stride`` bytes of an allocation of ``size`` bytes.
    Tensors of different groups overlap: a block id belongs to one group at a time.
    """

    size: int
    layers: list[str]
    layer_stride: int
    block_stride: int
    offset: int = 0
    host_resident: bool = False


@dataclass
class KVCacheGroupSpec:
    """Layers that share one block table; the KV cache manager sees them as one layer.

    ``slices`` pages of the group lie side by side in one block of the pool (kvplan's own,
    ``grouping="sliced"``; else 1). The group has ``num_blocks * slices`` block ids,
    ``id = pool_block * slices + slice``, those of pool block 0 being null, and its tensors have
    ``block_stride = bytes_per_block // slices``.
    """

    layer_names: list[str]
    kv_cache_spec: KVCacheSpec
    is_eagle_group: bool = False
    host_resident: bool = False
    enable_kv_transfer: bool = True
    role: KVCacheGroupRole = KVCacheGroupRole.DEFAULT
    slices: int = 1


def iter_layer_specs(kv_cache_spec: KVCacheSpec) -> Collection[KVCacheSpec]:
    """The layer specs that a group's spec covers.

    Mirrors vllm/v1/kv_cache_interface.py::iter_layer_specs (0.33).
    """
    if isinstance(kv_cache_spec, UniformTypeKVCacheSpecs):
        return kv_cache_spec.kv_cache_specs.values()
    return (kv_cache_spec,)


def layer_spec(kv_cache_spec: KVCacheSpec, layer_name: str) -> KVCacheSpec:
    """The spec of one of the layers that a group's spec covers."""
    if isinstance(kv_cache_spec, UniformTypeKVCacheSpecs):
        return kv_cache_spec.kv_cache_specs[layer_name]
    return kv_cache_spec


class _FromPlan:
    """A field that is made from the plan when it is first read: a plan for a thousand workers need
    not build what nobody looks at.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, instance: KVCacheConfig | None, owner: type) -> Any:
        if instance is None:
            return self
        state = instance.__dict__
        if self.name not in state:
            plan, worker = state["_plan"]
            state[self.name] = getattr(plan, f"_{self.name}")(worker)
        return state[self.name]

    def __set__(self, instance: KVCacheConfig, value: Any) -> None:
        instance.__dict__[self.name] = value


@dataclass(eq=False, repr=False)
class KVCacheConfig:
    """The KV cache of one worker.

    ``max_model_len`` is the planned length in tokens where a plan made the config (with auto-fit:
    the fitted one), else ``None``; it takes no part in equality.
    """

    num_blocks: int
    kv_cache_tensors: list[KVCacheTensor]
    kv_cache_groups: list[KVCacheGroupSpec]
    prefix_cache_retention_interval: int | None = None
    kv_cache_layout: str | None = None
    hash_block_size: int | None = None
    cache_hit_alignment_tokens: int | None = None
    hisparse_host_num_blocks: int | None = None
    hisparse_host_block_stride: int | None = None
    hisparse_shared_host_pool: bool = False
    kv_tp_replicas: int = 1
    max_model_len: int | None = field(default=None, compare=False)

    def _values(self) -> tuple[Any, ...]:
        return tuple(
            getattr(self, name) for name, f in type(self).__dataclass_fields__.items() if f.compare
        )

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._values() == other._values()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        fields = (f"{name}={getattr(self, name)!r}" for name in type(self).__dataclass_fields__)
        return f"KVCacheConfig({', '.join(fields)})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in type(self).__dataclass_fields__}

    @cached_property
    def transfer_group_ids(self) -> tuple[int, ...]:
        """Groups that take part in external KV transfer."""
        return tuple(i for i, g in enumerate(self.kv_cache_groups) if g.enable_kv_transfer)

    @cached_property
    def prefix_cacheable_group_ids(self) -> tuple[int, ...]:
        """Transferable groups whose blocks can be found by hash."""
        groups = self.kv_cache_groups
        return tuple(i for i in self.transfer_group_ids if groups[i].kv_cache_spec.prefix_cacheable)

    @cached_property
    def prefix_cacheable_groups(self) -> tuple[KVCacheGroupSpec, ...]:
        """The groups of ``prefix_cacheable_group_ids``."""
        return tuple(self.kv_cache_groups[i] for i in self.prefix_cacheable_group_ids)

    @cached_property
    def transfer_groups(self) -> tuple[KVCacheGroupSpec, ...]:
        """The groups of ``transfer_group_ids``."""
        return tuple(self.kv_cache_groups[i] for i in self.transfer_group_ids)

    @cached_property
    def transfer_group_index_by_layer(self) -> dict[str, int]:
        """Position in ``transfer_groups`` of each of their layers."""
        return {name: i for i, g in enumerate(self.transfer_groups) for name in g.layer_names}

    def select_transfer_block_ids(self, block_ids: Sequence[list[int]]) -> tuple[list[int], ...]:
        """The block ids of transferable groups; ValueError unless there is one list a group."""
        if len(block_ids) != len(self.kv_cache_groups):
            raise ValueError(
                f"Expected {len(self.kv_cache_groups)} KV cache groups, got {len(block_ids)}."
            )
        return tuple(block_ids[i] for i in self.transfer_group_ids)

    @property
    def host_group_ids(self) -> tuple[int, ...]:
        """Groups in host memory."""
        return tuple(i for i, g in enumerate(self.kv_cache_groups) if g.host_resident)

    def num_blocks_of(self, tensor: KVCacheTensor) -> int:
        """Block ids of the group that ``tensor`` belongs to: the pool's, or each of its slices."""
        if not tensor.host_resident:
            return self.num_blocks * self._slices_of(tensor)
        if self.hisparse_host_num_blocks is None:
            raise ValueError("a host-resident tensor needs hisparse_host_num_blocks")
        return self.hisparse_host_num_blocks

    def _slices_of(self, tensor: KVCacheTensor) -> int:
        first = tensor.layers[0] if tensor.layers else None
        return next((g.slices for g in self.kv_cache_groups if first in g.layer_names), 1)

    @property
    def has_mamba_layers(self) -> bool:
        """Whether any layer keeps a Mamba state."""
        return any(
            isinstance(spec, MambaSpec)
            for group in self.kv_cache_groups
            for spec in iter_layer_specs(group.kv_cache_spec)
        )

    @property
    def has_mixed_precision_kv_cache(self) -> bool:
        """Whether the device's attention caches differ in dtype or quantization."""
        precisions = {
            (spec.dtype, spec.kv_quant_mode)
            for group in self.kv_cache_groups
            if not group.host_resident
            for spec in iter_layer_specs(group.kv_cache_spec)
            if isinstance(spec, AttentionSpec)
        }
        return len(precisions) > 1

    @property
    def needs_kv_cache_zeroing(self) -> bool:
        """Whether a block must be zeroed when it is handed out: a Mamba state is read before it is
        written whole, and another group's bytes may be NaN in this group's precision.
        """
        return self.has_mamba_layers or self.has_mixed_precision_kv_cache


# The two fields that cost something to build. Set here, since a dataclass would take a descriptor
# in its body for a default value.
for _name in ("kv_cache_tensors", "kv_cache_groups"):
    setattr(KVCacheConfig, _name, _FromPlan(_name))
