"""Block allocation on the device: pool, block tables, slot mappings, zeroing and copying of blocks.

Everything takes and fills torch tensors, on the CPU or on a CUDA device, with the same results.
On CUDA nothing waits for the device and nothing is allocated once the outputs are given, so that a
step can be captured into a CUDA graph. Tensors are checked before anything is launched: device,
dtype, shape and stride always, values where the host has them. Values in device memory are
checked by the kernels, which leave out what is wrong and say so in a status or an error bit.

Needs torch; CUDA devices need a kvplan that was built with nvcc (docs/device.md).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from functools import cache
from pathlib import Path
from typing import Any

import torch

from kvplan import _core
from kvplan._core import DeviceError, InvalidArgument, Plan, PlanningConfig, Unsupported
from kvplan.arguments import in_range
from kvplan.kv_cache_config import KVCacheConfig, iter_layer_specs
from kvplan.placed_cache import config_and_layout, iter_placed_tensors, worker_config

__all__ = [
    "PAD_SLOT_ID",
    "Allocation",
    "AppendedSlots",
    "BlockRegions",
    "BlockTables",
    "DeviceBlockPool",
    "PoolError",
    "PoolSnapshot",
    "RequestStatus",
    "TableGroup",
    "WindowKind",
    "append_slots",
    "copy_blocks",
    "gather_block_tables",
    "is_cuda_built",
    "release_requests",
    "zero_blocks",
]

PAD_SLOT_ID = -1  #: slot of a token that writes no state, as in vLLM
_LIBRARY = "libkvplan_cuda.so"
_INT32_END = 2**31
_INT64_END = 2**63


class RequestStatus(IntEnum):
    """What became of a request in a batch."""

    OK = 0
    OUT_OF_BLOCKS = 1  #: nothing was taken for it
    TABLE_TOO_NARROW = 2  #: the table's rows, or the output, have no room for it
    TOO_MANY_TOKENS = 3  #: its tokens go beyond the slot mapping
    BAD_REQUEST = 4  #: a row, length or count out of range


class PoolError(IntFlag):
    """What a pool was asked for that it left out."""

    BAD_BLOCK_ID = 1
    BLOCK_NOT_IN_USE = 2
    TOO_MANY_FREE = 4


class WindowKind(IntEnum):
    """Which tokens below the next one stay readable."""

    NONE = 0  #: all
    SLIDING = 1  #: the last ``window_tokens``
    CHUNKED = 2  #: those of the next token's chunk of ``window_tokens``


def _library_path() -> Path:
    return Path(os.environ.get("KVPLAN_CUDA_LIBRARY") or Path(_core.__file__).parent / _LIBRARY)


def is_cuda_built() -> bool:
    """Whether this kvplan has its CUDA library (``KVPLAN_CUDA_LIBRARY`` names another one)."""
    return _library_path().exists()


@cache
def _ops(device_type: str) -> Any:
    if device_type == "cpu":
        return _core.cpu_block_ops()
    if device_type != "cuda":
        raise Unsupported(f"device: kvplan.device runs on cpu and cuda, not on {device_type}")
    path = _library_path()
    if not path.exists():
        raise DeviceError(
            f"kvplan was built without its CUDA library ({path} is missing); build it where nvcc "
            "is found, with KVPLAN_CUDA=ON"
        )
    return _core.load_block_ops(str(path))


def _device(device: torch.device | str) -> torch.device:
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return device


def _on(device: torch.device) -> AbstractContextManager[Any]:
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _stream(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


def _checked(
    name: str,
    tensor: torch.Tensor,
    device: torch.device,
    dtype: torch.dtype,
    shape: tuple[int | None, ...],
    at_least: bool = False,
) -> torch.Tensor:
    """``tensor``, if its last axis is contiguous and it is what the names say."""
    if not isinstance(tensor, torch.Tensor):
        raise InvalidArgument(f"{name}: needs a torch tensor, got {type(tensor).__name__}")
    if tensor.device != device:
        raise InvalidArgument(f"{name}: is on {tensor.device}, needs to be on {device}")
    if tensor.dtype != dtype:
        raise InvalidArgument(f"{name}: has dtype {tensor.dtype}, needs {dtype}")

    def fits(size: int, wanted: int | None) -> bool:
        return wanted is None or size == wanted or (at_least and size > wanted)

    if tensor.dim() != len(shape) or not all(map(fits, tensor.shape, shape)):
        wanted = ", ".join("any" if n is None else str(n) for n in shape)
        raise InvalidArgument(
            f"{name}: has shape {tuple(tensor.shape)}, needs "
            f"{'at least ' if at_least else ''}({wanted})"
        )
    if tensor.numel() and tensor.stride(-1) != 1:
        raise InvalidArgument(f"{name}: has strides {tensor.stride()}, the last must be 1")
    return tensor


def _host_values(name: str, tensor: torch.Tensor, low: int, high: int) -> None:
    """Checks values in ``[low, high)`` where the host has them."""
    if tensor.device.type != "cpu" or not tensor.numel():
        return
    smallest, largest = int(tensor.min()), int(tensor.max())
    if smallest < low or largest >= high:
        value = smallest if smallest < low else largest
        raise InvalidArgument(f"{name}: {value} is out of range, needs to be in [{low}, {high})")


def _ids(
    name: str, ids: torch.Tensor | Sequence[int], device: torch.device, num_blocks: int
) -> torch.Tensor:
    """Block ids as an int32 tensor on the device; ids that the host has are checked."""
    if not isinstance(ids, torch.Tensor):
        try:
            # The type is found, not given: torch would cut fractions off.
            ids = torch.as_tensor(ids)
            if not ids.numel():  # of no type
                ids = ids.to(torch.int64)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InvalidArgument(f"{name}: needs block ids ({error})") from error
        if ids.dim() != 1 or ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
            raise InvalidArgument(
                f"{name}: has shape {tuple(ids.shape)} and dtype {ids.dtype}, needs a list of "
                "integers"
            )
        ids = ids.to(torch.int64)
        _host_values(name, ids, 0, num_blocks)
        ids = ids.to(device, torch.int32)
    _checked(name, ids, device, torch.int32, (None,))
    _host_values(name, ids, 0, num_blocks)
    return ids


def _optional(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


@dataclass(frozen=True)
class PoolSnapshot:
    """A pool as the host saw it: ``free_block_ids`` in the order they will be handed out."""

    num_free_blocks: int
    free_block_ids: list[int]
    errors: PoolError


@dataclass(frozen=True)
class Allocation:
    """Blocks for a batch: those of request r are ``ids[starts[r]:starts[r + 1]]``.

    ``status``: int32 ``[num_requests]``, a RequestStatus each.
    """

    ids: torch.Tensor
    starts: torch.Tensor
    status: torch.Tensor


class DeviceBlockPool:
    """Free block ids in device memory.

    ``num_blocks`` includes the null block 0, which is never handed out. What is released last is
    handed out first, in the order of ``kvplan.BlockPool`` without prefix caching; equal calls give
    equal ids. With ``ref_counts`` a block can have several holders.
    """

    def __init__(
        self, num_blocks: int, device: torch.device | str = "cuda", *, ref_counts: bool = False
    ) -> None:
        in_range("num_blocks", num_blocks, 1, _INT32_END)
        self._ops = _ops(torch.device(device).type)
        self.num_blocks = num_blocks
        self.device = _device(device)

        def array(size: int) -> torch.Tensor:
            return torch.zeros(size, dtype=torch.int32, device=self.device)

        self.free_ids = array(num_blocks)
        self.state = array(_core.POOL_STATE_SIZE)
        self.ref_counts = array(num_blocks) if ref_counts else None
        self._last_use = array(num_blocks) if ref_counts else None
        self._native = _core.DevicePool(
            num_blocks,
            self.free_ids.data_ptr(),
            self.state.data_ptr(),
            _optional(self.ref_counts),
            _optional(self._last_use),
        )
        self.reset()

    def reset(self) -> None:
        """Makes all blocks free and forgets errors."""
        with _on(self.device):
            self._ops.reset_pool(self._native, _stream(self.device))

    def allocate(
        self,
        counts: torch.Tensor,
        ids: torch.Tensor,
        starts: torch.Tensor | None = None,
        status: torch.Tensor | None = None,
    ) -> Allocation:
        """Takes ``counts[r]`` blocks for each request in turn, all of them or none.

        counts: int32 ``[num_requests]``. ids: int32 ``[capacity]``, filled. starts: int64
        ``[num_requests + 1]`` and status: int32 ``[num_requests]`` are made where not given.
        """
        _checked("counts", counts, self.device, torch.int32, (None,))
        n = counts.shape[0]
        if starts is None:
            starts = torch.empty(n + 1, dtype=torch.int64, device=self.device)
        if status is None:
            status = torch.empty(n, dtype=torch.int32, device=self.device)
        _checked("ids", ids, self.device, torch.int32, (None,))
        _checked("starts", starts, self.device, torch.int64, (n + 1,))
        _checked("status", status, self.device, torch.int32, (n,))
        with _on(self.device):
            self._ops.allocate(
                self._native,
                n,
                counts.data_ptr(),
                ids.shape[0],
                ids.data_ptr(),
                starts.data_ptr(),
                status.data_ptr(),
                _stream(self.device),
            )
        return Allocation(ids, starts, status)

    def release(self, block_ids: torch.Tensor | Sequence[int]) -> None:
        """One holder less for each block; null blocks are skipped. int32 ``[n]`` or a list."""
        ids = _ids("block_ids", block_ids, self.device, self.num_blocks)
        with _on(self.device):
            self._ops.release(self._native, ids.data_ptr(), ids.shape[0], _stream(self.device))

    def touch(self, block_ids: torch.Tensor | Sequence[int]) -> None:
        """One holder more for each block in use; null blocks are skipped. Needs ``ref_counts``."""
        ids = _ids("block_ids", block_ids, self.device, self.num_blocks)
        with _on(self.device):
            self._ops.touch(self._native, ids.data_ptr(), ids.shape[0], _stream(self.device))

    def snapshot(self) -> PoolSnapshot:
        """The pool on the host. Waits for the device: the only method that does."""
        state = self.state.cpu()
        num_free = int(state[0])
        free = self.free_ids[:num_free].flip(0).tolist()
        return PoolSnapshot(num_free, free, PoolError(int(state[1])))


@dataclass(frozen=True)
class TableGroup:
    """The block table of one KV cache group.

    ``block_size``: tokens. ``width``: entries of a row. ``window_tokens``: readable tokens below
    the next one (SLIDING: vLLM's ``num_retained_tokens``) or tokens of a chunk.
    ``extra_entries``: blocks beyond those of the tokens. ``dcp_sharded``: context parallelism deals
    the tokens of an entry to the ranks. ``slot_mapping``: whether tokens have slots.
    """

    block_size: int
    width: int
    window_kind: WindowKind = WindowKind.NONE
    window_tokens: int = 0
    extra_entries: int = 0
    dcp_sharded: bool = True
    slot_mapping: bool = True


def _check_group(name: str, group: TableGroup, cp_interleave: int) -> None:
    in_range(f"{name}.width", group.width, 1, _INT32_END)
    in_range(f"{name}.block_size", group.block_size, 1, _INT32_END)
    in_range(f"{name}.extra_entries", group.extra_entries, 0, _INT32_END)
    in_range(f"{name}.window_kind", group.window_kind, 0, len(WindowKind))
    smallest = 1 if group.window_kind == WindowKind.CHUNKED else 0
    in_range(f"{name}.window_tokens", group.window_tokens, smallest, _INT32_END)
    if group.dcp_sharded and group.block_size % cp_interleave:
        raise InvalidArgument(
            f"{name}.block_size: {group.block_size} is no multiple of cp_interleave={cp_interleave}"
        )


def _table_group(index: int, group: Any, config: PlanningConfig, max_model_len: int) -> TableGroup:
    """A group's table, or Unsupported with its spec's name."""
    spec = next(iter(iter_layer_specs(group.kv_cache_spec)))
    window = (WindowKind.NONE, 0)
    extra = 0
    if getattr(group, "slices", 1) != 1:
        raise Unsupported(
            f"group {index} has {group.slices} slices a block: its ids come from a pool of their "
            "own, which DeviceBlockPool is not"
        )
    if isinstance(spec, _core.SlidingWindowSpec):
        window = (WindowKind.SLIDING, spec.num_retained_tokens)
    elif isinstance(spec, _core.ChunkedLocalAttentionSpec):
        window = (WindowKind.CHUNKED, spec.attention_chunk_size)
    elif isinstance(spec, _core.MambaSpec) and config.mamba_cache_mode == "none":
        extra = spec.num_speculative_blocks
    elif not isinstance(spec, _core.FullAttentionSpec) or isinstance(spec, _core.RSWASpec):
        raise Unsupported(
            f"group {index}: append_slots has no rule for the blocks of {type(spec).__name__}"
        )
    width = group.kv_cache_spec.max_num_blocks_per_req(config, max_model_len)
    return TableGroup(
        spec.block_size,
        width,
        *window,
        extra_entries=extra,
        dcp_sharded=spec.dcp_sharded,
        slot_mapping=spec.uses_slot_mapping and not isinstance(spec, _core.MambaSpec),
    )


class BlockTables:
    """The block tables of all groups: one row a request.

    ``tables[g]``: int32 ``[max_num_reqs, width]``; ``num_entries``: int32
    ``[num_groups, max_num_reqs]``. ``max_batch``: the most requests of one call.
    """

    def __init__(
        self,
        groups: Sequence[TableGroup],
        max_num_reqs: int,
        device: torch.device | str = "cuda",
        *,
        max_batch: int | None = None,
        cp_size: int = 1,
        cp_rank: int = 0,
        cp_interleave: int = 1,
    ) -> None:
        self.groups = tuple(groups)
        self.max_num_reqs = in_range("max_num_reqs", max_num_reqs, 1, _INT32_END)
        if max_batch is None:
            max_batch = max_num_reqs
        self.max_batch = in_range("max_batch", max_batch, 1, _INT32_END)
        in_range("cp_size", cp_size, 1, _INT32_END)
        in_range("cp_rank", cp_rank, 0, cp_size)
        in_range("cp_interleave", cp_interleave, 1, _INT32_END)
        self._ops = _ops(torch.device(device).type)
        self.device = _device(device)
        for i, g in enumerate(self.groups):
            _check_group(f"groups[{i}]", g, cp_interleave if cp_size > 1 else 1)
        self.tables = [
            torch.zeros(max_num_reqs, g.width, dtype=torch.int32, device=self.device)
            for g in self.groups
        ]
        self.num_entries = torch.zeros(
            len(self.groups), max_num_reqs, dtype=torch.int32, device=self.device
        )
        self._workspace = torch.zeros(
            _core.append_slots_workspace(self.max_batch, len(self.groups)),
            dtype=torch.int64,
            device=self.device,
        )
        rows = [
            (
                table.data_ptr(),
                entries.data_ptr(),
                table.stride(0),
                g.width,
                g.block_size,
                int(g.window_kind),
                g.window_tokens,
                g.extra_entries,
                g.dcp_sharded,
                g.slot_mapping,
            )
            for g, table, entries in zip(self.groups, self.tables, self.num_entries, strict=True)
        ]
        self._native = _core.DeviceTables(rows, max_num_reqs, cp_size, cp_rank, cp_interleave)

    @classmethod
    def from_plan(
        cls,
        plan: Plan,
        max_num_reqs: int,
        device: torch.device | str = "cuda",
        *,
        worker: int = 0,
        dcp_rank: int = 0,
        dcp_interleave: int = 1,
        max_batch: int | None = None,
    ) -> BlockTables:
        """Tables for requests of the planned length.

        Raises Unsupported where a group's blocks follow other rules than those of full, sliding
        window and chunked attention and of Mamba states in mode ``none``.
        """
        config = plan.config
        groups = [
            _table_group(i, group, config, plan.max_model_len)
            for i, group in enumerate(worker_config(plan, worker).kv_cache_groups)
        ]
        return cls(
            groups,
            max_num_reqs,
            device,
            max_batch=max_batch,
            cp_size=config.decode_context_parallel_size,
            cp_rank=dcp_rank,
            cp_interleave=dcp_interleave,
        )

    def _rows(self, name: str, rows: torch.Tensor, size: int | None = None) -> int:
        _checked(name, rows, self.device, torch.int32, (size,))
        if rows.device.type == "cpu":
            _host_values(name, rows, -1, self.max_num_reqs)
            used = rows[rows >= 0]
            if used.unique().numel() != used.numel():
                raise InvalidArgument(f"{name}: a row is named twice")
        if not 1 <= rows.shape[0] <= self.max_batch:
            raise InvalidArgument(
                f"{name}: has {rows.shape[0]} requests, needs 1 to max_batch={self.max_batch}"
            )
        return rows.shape[0]


@dataclass(frozen=True)
class AppendedSlots:
    """What a step wrote. ``slot_mapping``: int64 ``[num_groups, max_tokens]``; ``status``: int32
    ``[batch]``, a RequestStatus each.
    """

    slot_mapping: torch.Tensor
    status: torch.Tensor


def append_slots(
    pool: DeviceBlockPool,
    tables: BlockTables,
    rows: torch.Tensor,
    context_lens: torch.Tensor,
    new_tokens: torch.Tensor,
    slot_mapping: torch.Tensor,
    status: torch.Tensor,
    *,
    num_requests: torch.Tensor | None = None,
    query_start_loc: torch.Tensor | None = None,
    positions: torch.Tensor | None = None,
) -> AppendedSlots:
    """One step of a batch, in one launch: request i adds ``new_tokens[i]`` to row ``rows[i]``.

    Blocks that no token reads any more go back to the pool, and their entries become 0; each
    request in turn gets the blocks that it needs in all groups, or none; ``slot_mapping[g, t]`` is
    where the t-th token of the batch goes in group g, PAD_SLOT_ID for padding, for other ranks'
    tokens and for requests whose status is not OK.

    rows, context_lens, new_tokens, status: int32 ``[batch]``; a row of -1 is padding, no row
    may appear twice. slot_mapping: int64 ``[num_groups, max_tokens]``. num_requests: int32 ``[1]``,
    how many of the batch count. Also written where given: query_start_loc, int32 ``[batch + 1]``;
    positions, int64 ``[max_tokens]``.
    """
    device = tables.device
    if pool.device != device:
        raise InvalidArgument(f"pool: is on {pool.device}, the tables are on {device}")
    batch = tables._rows("rows", rows)
    _checked("context_lens", context_lens, device, torch.int32, (batch,))
    _checked("new_tokens", new_tokens, device, torch.int32, (batch,))
    _checked("status", status, device, torch.int32, (batch,))
    _checked("slot_mapping", slot_mapping, device, torch.int64, (len(tables.groups), None))
    max_tokens = slot_mapping.shape[1]
    if num_requests is not None:
        _checked("num_requests", num_requests, device, torch.int32, (1,))
    if query_start_loc is not None:
        _checked("query_start_loc", query_start_loc, device, torch.int32, (batch + 1,))
    if positions is not None:
        _checked("positions", positions, device, torch.int64, (max_tokens,))
    with _on(device):
        tables._ops.append_slots(
            pool._native,
            tables._native,
            batch,
            max_tokens,
            _optional(num_requests),
            rows.data_ptr(),
            context_lens.data_ptr(),
            new_tokens.data_ptr(),
            status.data_ptr(),
            slot_mapping.data_ptr(),
            slot_mapping.stride(0),
            _optional(query_start_loc),
            _optional(positions),
            tables._workspace.data_ptr(),
            _stream(device),
        )
    return AppendedSlots(slot_mapping, status)


def release_requests(pool: DeviceBlockPool, tables: BlockTables, rows: torch.Tensor) -> None:
    """Gives back all blocks of these rows, the last entry first, and empties the rows.

    rows: int32 ``[n]``; -1 is skipped.
    """
    if pool.device != tables.device:
        raise InvalidArgument(f"pool: is on {pool.device}, the tables are on {tables.device}")
    n = tables._rows("rows", rows)
    with _on(tables.device):
        tables._ops.release_rows(
            pool._native,
            tables._native,
            n,
            rows.data_ptr(),
            tables._workspace.data_ptr(),
            _stream(tables.device),
        )


def gather_block_tables(
    tables: BlockTables,
    rows: torch.Tensor,
    out: Sequence[torch.Tensor],
    context_lens: torch.Tensor | None = None,
) -> Sequence[torch.Tensor]:
    """Copies rows of every table for a forward pass: ``out[g][i] = tables[g][rows[i]]``.

    With ``context_lens`` (int32 ``[batch]``), entries of which no token is read become 0. Entries
    beyond a row's number stay as they are; a row of -1 becomes 0. out: one int32 tensor a group, at
    least ``[batch, width]``.

    Mirrors vllm/v1/worker/gpu/block_table.py::BlockTables.gather_block_tables (0.33).
    """
    device = tables.device
    _checked("rows", rows, device, torch.int32, (None,))
    _host_values("rows", rows, -1, tables.max_num_reqs)
    batch = rows.shape[0]
    if context_lens is not None:
        _checked("context_lens", context_lens, device, torch.int32, (batch,))
    if len(out) != len(tables.groups):
        raise InvalidArgument(f"out: has {len(out)} tables, needs {len(tables.groups)}")
    for i, (table, group) in enumerate(zip(out, tables.groups, strict=True)):
        _checked(f"out[{i}]", table, device, torch.int32, (batch, group.width), at_least=True)
    with _on(device):
        tables._ops.gather_tables(
            tables._native,
            batch,
            rows.data_ptr(),
            _optional(context_lens),
            [(table.data_ptr(), table.stride(0)) for table in out],
            _stream(device),
        )
    return out


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
        self.device = _device(device)
        self.num_blocks = in_range("num_blocks", num_blocks, 1, _INT32_END)
        self.buffer_bytes = in_range("buffer_bytes", buffer_bytes, 0, _INT64_END)
        self.regions = tuple(regions)
        for i, (offset, stride, size) in enumerate(self.regions):
            in_range(f"regions[{i}] offset", offset, 0, _INT64_END)
            in_range(f"regions[{i}] block stride", stride, 1, _INT64_END)
            in_range(f"regions[{i}] bytes", size, 0, _INT64_END)
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
        return _checked(name, buffer, self.device, torch.int8, (self.buffer_bytes,), at_least=True)


def zero_blocks(
    buffer: torch.Tensor,
    regions: BlockRegions,
    block_ids: torch.Tensor | Sequence[int],
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
    ids = _ids("block_ids", block_ids, device, regions.num_blocks)
    if num_ids is not None:
        _checked("num_ids", num_ids, device, torch.int32, (1,))
    if errors is not None:
        _checked("errors", errors, device, torch.int32, (1,))
    with _on(device):
        _ops(device.type).zero_blocks(
            buffer.data_ptr(),
            regions._table.data_ptr(),
            len(regions.regions),
            regions.max_region_bytes,
            _core.vector_bytes([buffer.data_ptr()], regions.regions),
            regions.num_blocks,
            ids.shape[0],
            ids.data_ptr(),
            _optional(num_ids),
            _optional(errors),
            _stream(device),
        )


def copy_blocks(
    source: torch.Tensor,
    target: torch.Tensor,
    regions: BlockRegions,
    source_ids: torch.Tensor | Sequence[int],
    target_ids: torch.Tensor | Sequence[int],
    *,
    num_pairs: torch.Tensor | None = None,
    errors: torch.Tensor | None = None,
) -> None:
    """Copies all bytes of block ``source_ids[i]`` to block ``target_ids[i]``.

    source, target: buffers as in ``zero_blocks``, which may be one. No target may be another
    pair's source or target. num_pairs, errors: as there.
    """
    device = regions.device
    source = regions._buffer("source", source)
    target = regions._buffer("target", target)
    sources = _ids("source_ids", source_ids, device, regions.num_blocks)
    targets = _ids("target_ids", target_ids, device, regions.num_blocks)
    if sources.shape != targets.shape:
        raise InvalidArgument(
            f"target_ids: has {targets.shape[0]} ids, source_ids has {sources.shape[0]}"
        )
    distance = abs(source.data_ptr() - target.data_ptr())
    if 0 < distance < regions.buffer_bytes:
        raise InvalidArgument(
            f"target: begins {distance} bytes from source, which overlaps it; needs to be the same "
            f"buffer or {regions.buffer_bytes} bytes away"
        )
    if device.type == "cpu":
        if targets.unique().numel() != targets.numel():
            raise InvalidArgument("target_ids: a block is named twice")
        same = source.data_ptr() == target.data_ptr()
        if same and torch.isin(targets, sources[sources != targets]).any():
            raise InvalidArgument("target_ids: a block is also another pair's source")
    if num_pairs is not None:
        _checked("num_pairs", num_pairs, device, torch.int32, (1,))
    if errors is not None:
        _checked("errors", errors, device, torch.int32, (1,))
    with _on(device):
        _ops(device.type).copy_blocks(
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
            _optional(num_pairs),
            _optional(errors),
            _stream(device),
        )
