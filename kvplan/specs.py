"""KV cache specs under vLLM's names: native, immutable values.

A spec says how one layer's cache is stored. Sizes are in bytes, block sizes in tokens. ``dtype=``
takes ``"bfloat16"`` or ``torch.bfloat16`` and reads back as the name. Mirrors
vllm/v1/kv_cache_interface.py (0.33).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum
from typing import Any, TypeVar

from kvplan._core import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    CircularBufferSpec,
    CrossAttentionSpec,
    CustomSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    HiddenStateCacheSpec,
    HiSparseHotSpec,
    HiSparseResidentSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    RSWASpec,
    SinkFullAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
    compute_layer_kv_cache_shape_bytes,
    compute_layout_strides,
)
from kvplan._core import spec_from_dict as from_dict
from kvplan.enums import (
    CustomDemand,
    KVCacheGroupRole,
    KVCacheSpecKind,
    KVQuantMode,
    MultipleOf,
    SparseCacheRole,
)
from kvplan.kv_cache_config import (
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    iter_layer_specs,
)

__all__ = [
    "AttentionSpec",
    "ChunkedLocalAttentionSpec",
    "CircularBufferSpec",
    "CrossAttentionSpec",
    "CustomDemand",
    "CustomSpec",
    "EncoderOnlyAttentionSpec",
    "FullAttentionSpec",
    "HiSparseHotSpec",
    "HiSparseResidentSpec",
    "HiddenStateCacheSpec",
    "KVCacheConfig",
    "KVCacheGroupRole",
    "KVCacheGroupSpec",
    "KVCacheLayout",
    "KVCacheSpec",
    "KVCacheSpecKind",
    "KVCacheSpecRegistry",
    "KVCacheTensor",
    "KVQuantMode",
    "MLAAttentionSpec",
    "MambaSpec",
    "MultipleOf",
    "RSWASpec",
    "SinkFullAttentionSpec",
    "SlidingWindowMLASpec",
    "SlidingWindowSpec",
    "SparseCacheRole",
    "UniformTypeKVCacheSpecs",
    "compute_layer_kv_cache_shape_bytes",
    "compute_layout_strides",
    "from_dict",
    "get_kv_cache_spec_kind",
    "get_kv_cache_spec_sliding_window",
    "is_full_attention_spec",
    "iter_layer_specs",
    "register_kv_cache_spec",
    "replace",
    "replace_as",
]

_Spec = TypeVar("_Spec", bound=KVCacheSpec)


class KVCacheLayout(Enum):
    """Physical order of the logical axes L, B, H, N, C.

    Mirrors vllm/v1/kv_cache_layout.py (0.33).
    """

    LBHNC = (0, 1, 2, 3, 4)
    LBNHC = (0, 1, 3, 2, 4)
    LHBNC = (0, 2, 1, 3, 4)
    BLHNC = (1, 0, 2, 3, 4)
    BLNHC = (1, 0, 3, 2, 4)
    BHLNC = (1, 2, 0, 3, 4)

    @property
    def stride_order(self) -> tuple[int, ...]:
        """Logical axis at each physical position, outermost first."""
        return self.value

    @property
    def layer_view_order(self) -> tuple[int, ...]:
        """The same for the four axes of one layer's view."""
        return tuple(axis - 1 for axis in self.value if axis != 0)

    @property
    def is_layer_compact(self) -> bool:
        """Each layer is one contiguous region."""
        return self.stride_order[0] == 0

    @property
    def is_block_contiguous(self) -> bool:
        """A page is laid out [H, N, C]."""
        return self.value[-3:] == (2, 3, 4)

    @property
    def is_block_compact(self) -> bool:
        """The bytes of a page are one contiguous run."""
        return sorted(self.value[:2]) == [0, 1]

    @property
    def is_block_outermost(self) -> bool:
        """Every block holds the pages of all layers."""
        return self.stride_order[0] == 1


def replace(spec: _Spec, **changes: Any) -> _Spec:
    """``dataclasses.replace`` for a native spec."""
    return spec.replace(**changes)


def replace_as(
    spec: KVCacheSpec, target_cls: type[_Spec], *, drop: Collection[str] = (), **changes: Any
) -> _Spec:
    """``replace``, but as another class; fields named in ``drop`` are left out.

    Mirrors vllm/v1/kv_cache_interface.py::replace_as (0.33).
    """
    fields = {name: value for name, value in spec._fields().items() if name not in drop}
    return target_cls(**{**fields, **changes})


def is_full_attention_spec(kv_cache_spec: KVCacheSpec) -> bool:
    """Whether every layer that the spec covers is full attention.

    Mirrors vllm/v1/kv_cache_interface.py::is_full_attention_spec (0.33).
    """
    specs = iter_layer_specs(kv_cache_spec)
    return len(specs) > 0 and all(isinstance(spec, FullAttentionSpec) for spec in specs)


# Subclasses before their bases, so that the most precise kind is found first.
_KINDS: tuple[tuple[type[KVCacheSpec], KVCacheSpecKind], ...] = (
    (SlidingWindowMLASpec, KVCacheSpecKind.SLIDING_WINDOW_MLA),
    (MLAAttentionSpec, KVCacheSpecKind.MLA_ATTENTION),
    (SinkFullAttentionSpec, KVCacheSpecKind.SINK_FULL_ATTENTION),
    (FullAttentionSpec, KVCacheSpecKind.FULL_ATTENTION),
    (ChunkedLocalAttentionSpec, KVCacheSpecKind.CHUNKED_LOCAL_ATTENTION),
    (SlidingWindowSpec, KVCacheSpecKind.SLIDING_WINDOW),
    (MambaSpec, KVCacheSpecKind.MAMBA),
    (EncoderOnlyAttentionSpec, KVCacheSpecKind.ENCODER_ONLY_ATTENTION),
    (CrossAttentionSpec, KVCacheSpecKind.CROSS_ATTENTION),
)


def get_kv_cache_spec_kind(kv_cache_spec: KVCacheSpec) -> KVCacheSpecKind:
    """The kind of a layer's or a group's spec.

    Mirrors vllm/v1/kv_cache_interface.py::get_kv_cache_spec_kind (0.33).
    """
    if not isinstance(kv_cache_spec, UniformTypeKVCacheSpecs):
        for cls, kind in _KINDS:
            if isinstance(kv_cache_spec, cls):
                return kind
        return KVCacheSpecKind.UNKNOWN
    kinds = {get_kv_cache_spec_kind(spec) for spec in iter_layer_specs(kv_cache_spec)}
    if len(kinds) == 1:
        return kinds.pop()
    if is_full_attention_spec(kv_cache_spec):
        return KVCacheSpecKind.FULL_ATTENTION
    return KVCacheSpecKind.UNKNOWN


def get_kv_cache_spec_sliding_window(kv_cache_spec: KVCacheSpec) -> int | None:
    """The window in tokens of sliding-window layers, None for others or where layers differ.

    Mirrors vllm/v1/kv_cache_interface.py::get_kv_cache_spec_sliding_window (0.33).
    """
    windows = {
        spec.sliding_window if isinstance(spec, SlidingWindowSpec) else None
        for spec in iter_layer_specs(kv_cache_spec)
    }
    return windows.pop() if len(windows) == 1 else None


class KVCacheSpecRegistry:
    """Which spec classes there are, and with which of them each may share a group.

    A subclass that only adds fields is known by its base. One that changes what a page or a request
    takes has no native counterpart: planning refuses it, and it enters as a :class:`CustomSpec`.
    Mirrors vllm/v1/kv_cache_spec_registry.py::KVCacheSpecRegistry (0.33).
    """

    _bases: dict[type[KVCacheSpec], type[KVCacheSpec]] = {  # noqa: RUF012
        FullAttentionSpec: FullAttentionSpec,
        MLAAttentionSpec: FullAttentionSpec,
        HiddenStateCacheSpec: FullAttentionSpec,
        RSWASpec: FullAttentionSpec,
        SinkFullAttentionSpec: FullAttentionSpec,
        SlidingWindowSpec: SlidingWindowSpec,
        SlidingWindowMLASpec: SlidingWindowMLASpec,
        ChunkedLocalAttentionSpec: ChunkedLocalAttentionSpec,
        CircularBufferSpec: CircularBufferSpec,
        CrossAttentionSpec: CrossAttentionSpec,
        MambaSpec: MambaSpec,
        HiSparseHotSpec: HiSparseHotSpec,
        HiSparseResidentSpec: HiSparseResidentSpec,
        CustomSpec: CustomSpec,
    }
    _managers: dict[type[KVCacheSpec], Any] = {}  # noqa: RUF012

    @classmethod
    def register(
        cls,
        kvcache_spec_cls: type[KVCacheSpec],
        manager_class: Any = None,
        uniform_type_base_spec: type[KVCacheSpec] | None = None,
    ) -> None:
        """Register a subclass with its manager and the base whose layers may share its groups.

        Raises:
            ValueError: the class has another base already, or does not derive from this one.
        """
        base = uniform_type_base_spec or kvcache_spec_cls
        if not issubclass(kvcache_spec_cls, base):
            raise ValueError(f"{kvcache_spec_cls.__name__} must inherit from {base.__name__}")
        known = cls._bases.setdefault(kvcache_spec_cls, base)
        if known is not base:
            raise ValueError(
                f"Conflicting registration for KVCacheSpec: {kvcache_spec_cls.__name__} has the "
                f"base {known.__name__} already, not {base.__name__}"
            )
        cls._managers[kvcache_spec_cls] = manager_class

    @classmethod
    def _lookup(cls, table: dict[type[KVCacheSpec], Any], spec: KVCacheSpec) -> Any:
        return next((table[c] for c in type(spec).__mro__ if c in table), None)

    @classmethod
    def get_uniform_type_base_spec(cls, kvcache_spec: KVCacheSpec) -> type[KVCacheSpec] | None:
        """The class whose layers may share a group with this spec's, or None."""
        return cls._lookup(cls._bases, kvcache_spec)

    @classmethod
    def get_manager_class(cls, kvcache_spec: KVCacheSpec, role: str | None = None) -> Any:
        """The manager given at registration, or None: kvplan's own specs have no manager."""
        return cls._lookup(cls._managers, kvcache_spec)

    @classmethod
    def check_kv_cache_spec_registry(cls, kv_cache_spec: dict[str, KVCacheSpec]) -> None:
        """Raise ValueError for a layer whose spec class is not registered."""
        for layer_name, spec in kv_cache_spec.items():
            if cls.get_uniform_type_base_spec(spec) is None:
                raise ValueError(
                    f"Unsupported KV cache spec type for layer {layer_name}: {type(spec)}. Please "
                    "register it using @register_kv_cache_spec decorator."
                )


def register_kv_cache_spec(
    manager_class: Any = None, uniform_type_base_spec: type[KVCacheSpec] | None = None
) -> Callable[[type[_Spec]], type[_Spec]]:
    """Class decorator for :meth:`KVCacheSpecRegistry.register`."""

    def register(kvcache_spec_cls: type[_Spec]) -> type[_Spec]:
        KVCacheSpecRegistry.register(kvcache_spec_cls, manager_class, uniform_type_base_spec)
        return kvcache_spec_cls

    return register
