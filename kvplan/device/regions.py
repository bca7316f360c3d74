"""The bytes of blocks: zeroing and copying them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from kvplan import _core
from kvplan._core import InvalidArgument, Plan
from kvplan.arguments import in_range
from kvplan.device.operations import on_device, ops_for, resolved_device, stream_of
from kvplan.device.tensor_checks import (
    INT32_END,
    INT64_END,
    Ids,
    address_of,
    checked_ids,
    checked_pairs,
    checked_tensor,
    uploaded,
)
from kvplan.kv_cache_config import KVCacheConfig
from kvplan.placed_cache import config_and_layout, iter_placed_tensors


class BlockRegions:
    """The bytes that belong to a block id: every page of the layers, padding included.

    ``regions``: (offset, block stride, bytes) each, the first block's and from block to block.
    """

    def __init__(
        self,
        regions: Sequence[tuple[int, int, int]],
        num_blocks: int,
        buffer_bytes: int,
        device: torch.device | str = "cuda",
    ) -> None:
        self.device = resolved_device(device)
        self.num_blocks = in_range("num_blocks", num_blocks, 1, INT32_END)
        self.buffer_bytes = in_range("buffer_bytes", buffer_bytes, 0, INT64_END)
        self.regions = tuple(regions)
        for i, (offset, stride, size) in enumerate(self.regions):
            in_range(f"regions[{i}] offset", offset, 0, INT64_END)
            in_range(f"regions[{i}] block stride", stride, 1, INT64_END)
            in_range(f"regions[{i}] bytes", size, 0, INT64_END)
            if size > stride and num_blocks > 1:
                raise InvalidArgument(
                    f"regions[{i}]: {size} bytes of a block reach into the next one, which begins "
                    f"{stride} bytes after it"
                )
            if offset + (num_blocks - 1) * stride + size > buffer_bytes:
                raise InvalidArgument(
                    f"regions[{i}]: {size} bytes at {offset} + id * {stride} leave a buffer of "
                    f"{buffer_bytes} bytes with {num_blocks} blocks"
                )
        self.max_region_bytes = max((size for _, _, size in self.regions), default=0)
        self._table = torch.tensor(self.regions, dtype=torch.int64).reshape(-1, 3).to(self.device)

    @classmethod
    def from_plan(
        cls,
        plan: Plan | KVCacheConfig,
        device: torch.device | str = "cuda",
        layout: Any = None,
        *,
        group: int | None = None,
        worker: int = 0,
    ) -> BlockRegions:
        """The regions of a worker of a Plan, or of a KVCacheConfig with ``layout``.

        All groups' layers together, or those of one group; groups with different slices have
        different ids, so one must be chosen.
        """
        config, layout = config_and_layout(plan, layout, worker)
        if group is not None and not 0 <= group < len(config.kv_cache_groups):
            raise InvalidArgument(f"group: {group} of {len(config.kv_cache_groups)}")
        placed = []
        num_blocks = set()
        for index, spec, tensor in iter_placed_tensors(config):
            if group is not None and index != group:
                continue
            blocks = config.num_blocks_of(tensor)
            num_blocks.add(blocks)
            placed.append(
                (
                    spec,
                    len(tensor.layers),
                    tensor.layer_stride,
                    tensor.block_stride,
                    tensor.offset,
                    blocks,
                )
            )
        if len(num_blocks) > 1:
            raise InvalidArgument(
                f"group: groups have {sorted(num_blocks)} block ids; regions are of one of them"
            )
        size = config.kv_cache_tensors[0].size if config.kv_cache_tensors else 0
        regions = _core.compute_block_regions(placed, getattr(layout, "name", layout), size)
        return cls(regions, min(num_blocks, default=config.num_blocks), size, device)

    def _buffer(self, name: str, buffer: torch.Tensor) -> torch.Tensor:
        if isinstance(buffer, torch.Tensor) and buffer.dtype == torch.uint8:
            buffer = buffer.view(torch.int8)
        return checked_tensor(
            name, buffer, self.device, torch.int8, (self.buffer_bytes,), at_least=True
        )


def zero_blocks(
    buffer: torch.Tensor,
    regions: BlockRegions,
    block_ids: Ids,
    *,
    num_ids: torch.Tensor | None = None,
    errors: torch.Tensor | None = None,
) -> None:
    """Fills all bytes of these blocks with zero.

    buffer: int8 or uint8 ``[buffer_bytes]`` (``kvplan.tensors.kv_cache_buffer``). block_ids: int32
    ``[n]`` or a list. num_ids: int32 ``[1]``, how many of them count. errors: int32 ``[1]``, gets
    PoolError bits for ids in device memory that are out of range and left out.
    """
    device = regions.device
    buffer = regions._buffer("buffer", buffer)
    ids = checked_ids("block_ids", block_ids, device, regions.num_blocks)
    if num_ids is not None:
        checked_tensor("num_ids", num_ids, device, torch.int32, (1,))
    if errors is not None:
        checked_tensor("errors", errors, device, torch.int32, (1,))
    with on_device(device):
        ops_for(device.type).zero_blocks(
            buffer.data_ptr(),
            regions._table.data_ptr(),
            len(regions.regions),
            regions.max_region_bytes,
            _core.vector_bytes([buffer.data_ptr()], regions.regions),
            regions.num_blocks,
            ids.shape[0],
            ids.data_ptr(),
            address_of(num_ids),
            address_of(errors),
            stream_of(device),
        )


def copy_blocks(
    source: torch.Tensor,
    target: torch.Tensor,
    regions: BlockRegions,
    source_ids: Ids,
    target_ids: Ids,
    *,
    num_pairs: torch.Tensor | None = None,
    errors: torch.Tensor | None = None,
) -> None:
    """Copies all bytes of block ``source_ids[i]`` to block ``target_ids[i]``.

    source, target: buffers as in ``zero_blocks``, which may be one. No target may be another
    pair's source or target. num_pairs, errors: as there.
    """
    checked_copy((source, target), regions, (source_ids, target_ids), num_pairs, errors)()


def checked_copy(
    buffers: tuple[torch.Tensor, torch.Tensor],
    regions: BlockRegions,
    ids: tuple[Ids, Ids],
    num_pairs: torch.Tensor | None = None,
    errors: torch.Tensor | None = None,
) -> Callable[[], None]:
    """``copy_blocks``, checked and not launched yet."""
    if not isinstance(regions, BlockRegions):
        raise InvalidArgument(f"regions: needs BlockRegions, got {type(regions).__name__}")
    device = regions.device
    source = regions._buffer("source", buffers[0])
    target = regions._buffer("target", buffers[1])
    sources, targets = checked_pairs(*ids, device, regions.num_blocks)
    distance = abs(source.data_ptr() - target.data_ptr())
    if 0 < distance < regions.buffer_bytes:
        raise InvalidArgument(
            f"target: begins {distance} bytes from source, which overlaps it; needs to be the same "
            f"buffer or {regions.buffer_bytes} bytes away"
        )
    if targets.device.type == "cpu":
        if targets.unique().numel() != targets.numel():
            raise InvalidArgument("target_ids: a block is named twice")
        same = source.data_ptr() == target.data_ptr() and sources.device == targets.device
        if same and torch.isin(targets, sources[sources != targets]).any():
            raise InvalidArgument("target_ids: a block is also another pair's source")
    sources, targets = uploaded(sources, device), uploaded(targets, device)
    if num_pairs is not None:
        checked_tensor("num_pairs", num_pairs, device, torch.int32, (1,))
    if errors is not None:
        checked_tensor("errors", errors, device, torch.int32, (1,))

    def launch() -> None:
        with on_device(device):
            ops_for(device.type).copy_blocks(
                source.data_ptr(),
                target.data_ptr(),
                regions._table.data_ptr(),
                len(regions.regions),
                regions.max_region_bytes,
                _core.vector_bytes([source.data_ptr(), target.data_ptr()], regions.regions),
                regions.num_blocks,
                sources.shape[0],
                sources.data_ptr(),
                targets.data_ptr(),
                address_of(num_pairs),
                address_of(errors),
                stream_of(device),
            )

    return launch
