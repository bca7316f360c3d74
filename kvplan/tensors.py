"""A plan as torch tensors: one buffer, and a view of it for each layer.

Mirrors the functions on tensors of vllm/v1/kv_cache_interface.py and
vllm/v1/worker/utils.py::allocate_kv_cache (0.33). The arithmetic is the core's. Needs torch, which
``import kvplan`` does not import.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvplan._core import (
    InconsistentSpec,
    InvalidArgument,
    Plan,
    compute_kv_cache_view,
    compute_layer_kv_cache_shape_bytes,
    compute_layout_strides,
)
from kvplan.kv_cache_config import KVCacheConfig, KVCacheTensor
from kvplan.placed_cache import config_and_layout, iter_placed_tensors
from kvplan.specs import KVCacheLayout, KVCacheSpec

__all__ = [
    "allocate_kv_cache",
    "compute_layer_kv_cache_shape_bytes",
    "compute_layout_strides",
    "create_kv_cache_views",
    "group_kernel_blocks",
    "kv_cache_buffer",
]


def group_kernel_blocks(cache: torch.Tensor, num_blocks: int) -> torch.Tensor:
    """A layer's cache in kernel blocks, as a view whose first axis is the plan's blocks.

    ``[num_blocks * ratio, ...]`` becomes ``[num_blocks, ratio, ...]``; a cache without kernel
    blocks is returned as it is. Raises InconsistentSpec (a ValueError and AssertionError) where
    the first axis is no multiple of ``num_blocks``.

    Mirrors vllm/v1/kv_cache_interface.py::group_kernel_blocks (0.33).
    """
    if not cache.dim():
        raise InconsistentSpec("cache: needs an axis of kernel blocks, got shape ()")
    if cache.shape[0] == num_blocks:
        return cache
    if num_blocks < 1 or cache.shape[0] % num_blocks:
        raise InconsistentSpec(
            f"cache: {cache.shape[0]} kernel blocks are no multiple of num_blocks={num_blocks}"
        )
    return cache.unflatten(0, (num_blocks, -1))


def create_kv_cache_views(
    raw: torch.Tensor,
    spec: KVCacheSpec,
    num_blocks: int,
    layout: KVCacheLayout | str,
    kv_cache_tensor: KVCacheTensor,
    kernel_block_size: int | None = None,
) -> list[torch.Tensor]:
    """One view ``[B, H, N, C]`` of ``raw`` for each layer of ``kv_cache_tensor``.

    ``raw`` is a flat buffer of bytes (int8 or uint8). With ``kernel_block_size`` (tokens), B counts
    kernel blocks. A view has the spec's dtype, C its elements; specs without a dtype (Mamba)
    keep bytes. Raises LayoutError (a ValueError) where a block cannot be split into kernel blocks,
    InvalidArgument where a view would end outside ``raw``, pages would lie over each other, or
    begin inside an element.

    Mirrors vllm/v1/kv_cache_interface.py::create_kv_cache_views (0.33).
    """
    if not isinstance(raw, torch.Tensor):
        raise InvalidArgument(f"raw: needs a torch tensor, got {type(raw).__name__}")
    if raw.dtype not in (torch.int8, torch.uint8):
        raise InvalidArgument(f"raw: needs dtype int8 or uint8, got {raw.dtype}")
    if raw.dim() != 1 or raw.stride(0) != 1:
        raise InvalidArgument(
            f"raw: needs one contiguous axis, got shape {tuple(raw.shape)} and strides "
            f"{raw.stride()}"
        )
    shape, strides, offset = compute_kv_cache_view(
        spec, num_blocks, layout, kv_cache_tensor, raw.numel(), kernel_block_size
    )
    layers = torch.as_strided(raw, shape, strides, raw.storage_offset() + offset)
    dtype = getattr(spec, "dtype", None)
    if dtype is not None:
        torch_dtype = getattr(torch, dtype)
        try:
            return [layer.view(torch_dtype) for layer in layers]
        except RuntimeError as error:
            tensor = kv_cache_tensor
            raise InvalidArgument(
                f"pages of {dtype} begin at multiples of {torch_dtype.itemsize} bytes; raw begins "
                f"at byte {raw.storage_offset()} of its storage, kv_cache_tensor has offset="
                f"{tensor.offset}, layer_stride={tensor.layer_stride}, "
                f"block_stride={tensor.block_stride}"
            ) from error
    return list(layers)


def allocate_kv_cache(
    plan: Plan | KVCacheConfig,
    device: torch.device | str,
    layout: KVCacheLayout | str | None = None,
    kernel_block_sizes: Sequence[int] | None = None,
    *,
    worker: int = 0,
) -> dict[str, torch.Tensor]:
    """Allocate a worker's KV cache, zeroed, and view it as ``[B, H, N, C]`` for each layer.

    ``plan``: a Plan, of which ``worker`` is taken and which knows its layout, or a KVCacheConfig,
    which needs ``layout``. ``kernel_block_sizes``: tokens of a kernel block, one entry for
    each of the first groups. All views share one buffer of the tensors' ``size`` bytes; groups lie
    over each other in it. A layer without views (``has_layer_views``) gets the whole buffer, int8.

    Mirrors vllm/v1/worker/utils.py::allocate_kv_cache (0.33).
    """
    config, layout = config_and_layout(plan, layout, worker)
    tensors = config.kv_cache_tensors
    if not tensors:
        return {}
    sizes = sorted({t.size for t in tensors})
    if len(sizes) != 1:
        raise InconsistentSpec(f"the tensors must share one buffer, but have sizes {sizes}")
    buffer = torch.zeros(sizes[0], dtype=torch.int8, device=device)

    caches: dict[str, torch.Tensor] = {}
    for index, spec, tensor in iter_placed_tensors(config):
        if not spec.has_layer_views:
            caches.update((name, buffer) for name in tensor.layers)
            continue
        kernel_block_size = None
        if kernel_block_sizes is not None and index < len(kernel_block_sizes):
            kernel_block_size = kernel_block_sizes[index]
        views = create_kv_cache_views(
            buffer, spec, config.num_blocks_of(tensor), layout, tensor, kernel_block_size
        )
        caches.update(zip(tensor.layers, views, strict=True))
    return caches


def kv_cache_buffer(caches: dict[str, torch.Tensor]) -> torch.Tensor:
    """The one buffer behind the views of ``allocate_kv_cache``: int8 ``[size]``."""
    storages = {c.untyped_storage().data_ptr(): c for c in caches.values()}
    if len(storages) != 1:
        raise InvalidArgument(f"caches: the views lie in {len(storages)} buffers, must be in one")
    (cache,) = storages.values()
    return torch.empty(0, dtype=torch.int8, device=cache.device).set_(cache.untyped_storage())
