"""What happens to block tables in a step of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from kvplan._core import InvalidArgument
from kvplan.arguments import in_range
from kvplan.device.block_pool import DeviceBlockPool
from kvplan.device.operations import on_device, stream_of
from kvplan.device.sliced_block_pool import SlicedDeviceBlockPool
from kvplan.device.tables import BlockTables, checked_tables
from kvplan.device.tensor_checks import (
    INT32_END,
    address_of,
    check_host_values,
    checked_tensor,
)

PAD_SLOT_ID = -1  #: slot of a token that writes no state, as in vLLM


Pool: TypeAlias = DeviceBlockPool | SlicedDeviceBlockPool


def _check_pool(pool: Pool, tables: BlockTables) -> None:
    checked_tables(tables)
    if not isinstance(pool, (DeviceBlockPool, SlicedDeviceBlockPool)):
        raise InvalidArgument(
            "pool: needs a DeviceBlockPool or SlicedDeviceBlockPool (pool_for_plan), got "
            f"{type(pool).__name__}"
        )
    if pool.device != tables.device:
        raise InvalidArgument(f"pool: is on {pool.device}, the tables are on {tables.device}")
    slices = tuple(group.slices for group in tables.groups)
    of_pool = pool.slices if isinstance(pool, SlicedDeviceBlockPool) else (1,) * len(slices)
    if slices != of_pool:
        raise InvalidArgument(f"pool: cuts a block into {of_pool} slices, the tables have {slices}")


@dataclass(frozen=True)
class AppendedSlots:
    """What a step wrote. ``slot_mapping``: int64 ``[num_groups, max_tokens]``; ``status``: int32
    ``[batch]``, a RequestStatus each.
    """

    slot_mapping: torch.Tensor
    status: torch.Tensor


@dataclass(frozen=True)
class StepOptions:
    """What a scheduler on the device may want of a step besides; None or 0: nothing of the kind.

    ``lookahead_tokens``: a request with new tokens gets blocks also for so many tokens after them,
    as far as its row has room: for drafted tokens, or for as many steps to come, which then find
    their blocks. ``row_lens``: int32 ``[max_num_reqs]``, the tokens of each row, read in the place
    of ``context_lens``; the new tokens of a request that is OK are added to it. A row that is
    released is not set to 0. The rest is written: ``seq_lens``, int32 ``[batch]``, tokens after the
    step, 0 for padding and requests that are not OK. ``new_ids``, int32 ``[lists, capacity]``, and
    ``num_new_ids``, int32 ``[lists]``: the blocks that were taken, one list, with a
    ``SlicedDeviceBlockPool`` one for each group; ``zero_blocks`` takes both. Above the capacity,
    ids are left out, and the pool has the error IDS_LEFT_OUT. ``mirror``, int32 ``[2 + batch]``, on
    the device or in pinned host memory: free (large) blocks, the pool's errors and the statuses,
    for the host to read once an event behind the step has come.
    """

    lookahead_tokens: int = 0
    row_lens: torch.Tensor | None = None
    seq_lens: torch.Tensor | None = None
    new_ids: torch.Tensor | None = None
    num_new_ids: torch.Tensor | None = None
    mirror: torch.Tensor | None = None

    def _checked(self, tables: BlockTables, batch: int, lists: int) -> tuple[int, ...]:
        """For the native call."""
        device = tables.device
        in_range("lookahead_tokens", self.lookahead_tokens, 0, INT32_END)
        for name, shape in (
            ("row_lens", (tables.max_num_reqs,)),
            ("seq_lens", (batch,)),
            ("new_ids", (lists, None)),
            ("num_new_ids", (lists,)),
        ):
            if (tensor := getattr(self, name)) is not None:
                checked_tensor(name, tensor, device, torch.int32, shape)
        if (self.new_ids is None) != (self.num_new_ids is None):
            raise InvalidArgument("new_ids, num_new_ids: one is given without the other")
        if self.new_ids is not None and not self.new_ids.is_contiguous():
            raise InvalidArgument(f"new_ids: has strides {self.new_ids.stride()}, not contiguous")
        if (mirror := self.mirror) is not None:
            is_pinned = isinstance(mirror, torch.Tensor) and mirror.is_pinned()
            where = mirror.device if is_pinned else device
            checked_tensor("mirror", mirror, where, torch.int32, (2 + batch,))
        return (
            self.lookahead_tokens,
            address_of(self.row_lens),
            address_of(self.seq_lens),
            address_of(self.new_ids),
            0 if self.new_ids is None else self.new_ids.shape[1],
            address_of(self.num_new_ids),
            address_of(self.mirror),
        )


def append_slots(
    pool: Pool,
    tables: BlockTables,
    rows: torch.Tensor,
    context_lens: torch.Tensor | None,
    new_tokens: torch.Tensor,
    slot_mapping: torch.Tensor,
    status: torch.Tensor,
    *,
    num_requests: torch.Tensor | None = None,
    query_start_loc: torch.Tensor | None = None,
    positions: torch.Tensor | None = None,
    options: StepOptions = StepOptions(),
) -> AppendedSlots:
    """One step of a batch: request i adds ``new_tokens[i]`` to row ``rows[i]``.

    One launch for small batches, three for others (docs/device.md). Groups with slices need a
    ``SlicedDeviceBlockPool`` with the same slices.

    Blocks that no token reads any more go back to the pool, and their entries become 0; each
    request in turn gets the blocks that it needs in all groups, or none; ``slot_mapping[g, t]`` is
    where the t-th token of the batch goes in group g, PAD_SLOT_ID for padding, for other ranks'
    tokens and for requests whose status is not OK.

    rows, context_lens, new_tokens, status: int32 ``[batch]``; a row of -1 is padding; of the
    requests with one row all but the first are BAD_REQUEST (on the CPU an error). slot_mapping:
    int64 ``[num_groups, max_tokens]``. num_requests: int32 ``[1]``, how many of the batch count.
    Also written where given: query_start_loc, int32 ``[batch + 1]``; positions, int64
    ``[max_tokens]``; what ``options`` name. context_lens is None where they have ``row_lens``.
    """
    _check_pool(pool, tables)
    device = tables.device
    batch = tables._rows("rows", rows)
    if context_lens is not None or options.row_lens is None:
        checked_tensor("context_lens", context_lens, device, torch.int32, (batch,))
    lists = len(tables.groups) if isinstance(pool, SlicedDeviceBlockPool) else 1
    native_options = options._checked(tables, batch, lists)
    checked_tensor("new_tokens", new_tokens, device, torch.int32, (batch,))
    checked_tensor("status", status, device, torch.int32, (batch,))
    checked_tensor("slot_mapping", slot_mapping, device, torch.int64, (len(tables.groups), None))
    max_tokens = slot_mapping.shape[1]
    if num_requests is not None:
        checked_tensor("num_requests", num_requests, device, torch.int32, (1,))
    if query_start_loc is not None:
        checked_tensor("query_start_loc", query_start_loc, device, torch.int32, (batch + 1,))
    if positions is not None:
        checked_tensor("positions", positions, device, torch.int64, (max_tokens,))
    with on_device(device):
        tables._ops.append_slots(
            pool._native,
            tables._native,
            batch,
            max_tokens,
            address_of(num_requests),
            rows.data_ptr(),
            address_of(context_lens),
            new_tokens.data_ptr(),
            status.data_ptr(),
            slot_mapping.data_ptr(),
            slot_mapping.stride(0),
            address_of(query_start_loc),
            address_of(positions),
            tables._workspace.data_ptr(),
            native_options,
            stream_of(device),
        )
    return AppendedSlots(slot_mapping, status)


def release_requests(pool: Pool, tables: BlockTables, rows: torch.Tensor) -> None:
    """Gives back all blocks of these rows, the last entry first, and empties the rows.

    rows: int32 ``[n]``; -1 is skipped.
    """
    _check_pool(pool, tables)
    n = tables._rows("rows", rows)
    with on_device(tables.device):
        tables._ops.release_rows(
            pool._native,
            tables._native,
            n,
            rows.data_ptr(),
            tables._workspace.data_ptr(),
            stream_of(tables.device),
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
    device = checked_tables(tables).device
    checked_tensor("rows", rows, device, torch.int32, (None,))
    check_host_values("rows", rows, -1, tables.max_num_reqs)
    batch = rows.shape[0]
    if context_lens is not None:
        checked_tensor("context_lens", context_lens, device, torch.int32, (batch,))
    if len(out) != len(tables.groups):
        raise InvalidArgument(f"out: has {len(out)} tables, needs {len(tables.groups)}")
    for i, (table, group) in enumerate(zip(out, tables.groups, strict=True)):
        checked_tensor(f"out[{i}]", table, device, torch.int32, (batch, group.width), at_least=True)
    with on_device(device):
        tables._ops.gather_tables(
            tables._native,
            batch,
            rows.data_ptr(),
            address_of(context_lens),
            [(table.data_ptr(), table.stride(0)) for table in out],
            stream_of(device),
        )
    return out
