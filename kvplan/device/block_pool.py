"""Free block ids in device memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvplan import _core
from kvplan.arguments import in_range
from kvplan.device.operations import on_device, ops_for, resolved_device, stream_of
from kvplan.device.status import PoolError
from kvplan.device.tensor_checks import INT32_END, address_of, checked_ids, checked_tensor


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
        in_range("num_blocks", num_blocks, 1, INT32_END)
        self._ops = ops_for(torch.device(device).type)
        self.num_blocks = num_blocks
        self.device = resolved_device(device)

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
            address_of(self.ref_counts),
            address_of(self._last_use),
        )
        self.reset()

    def reset(self) -> None:
        """Makes all blocks free and forgets errors."""
        with on_device(self.device):
            self._ops.reset_pool(self._native, stream_of(self.device))

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
        checked_tensor("counts", counts, self.device, torch.int32, (None,))
        n = counts.shape[0]
        if starts is None:
            starts = torch.empty(n + 1, dtype=torch.int64, device=self.device)
        if status is None:
            status = torch.empty(n, dtype=torch.int32, device=self.device)
        checked_tensor("ids", ids, self.device, torch.int32, (None,))
        checked_tensor("starts", starts, self.device, torch.int64, (n + 1,))
        checked_tensor("status", status, self.device, torch.int32, (n,))
        with on_device(self.device):
            self._ops.allocate(
                self._native,
                n,
                counts.data_ptr(),
                ids.shape[0],
                ids.data_ptr(),
                starts.data_ptr(),
                status.data_ptr(),
                stream_of(self.device),
            )
        return Allocation(ids, starts, status)

    def release(self, block_ids: torch.Tensor | Sequence[int]) -> None:
        """One holder less for each block; null blocks are skipped. int32 ``[n]`` or a list."""
        ids = checked_ids("block_ids", block_ids, self.device, self.num_blocks)
        with on_device(self.device):
            self._ops.release(self._native, ids.data_ptr(), ids.shape[0], stream_of(self.device))

    def touch(self, block_ids: torch.Tensor | Sequence[int]) -> None:
        """One holder more for each block in use; null blocks are skipped. Needs ``ref_counts``."""
        ids = checked_ids("block_ids", block_ids, self.device, self.num_blocks)
        with on_device(self.device):
            self._ops.touch(self._native, ids.data_ptr(), ids.shape[0], stream_of(self.device))

    def snapshot(self) -> PoolSnapshot:
        """The pool on the host. Waits for the device: the only method that does."""
        state = self.state.cpu()
        num_free = int(state[0])
        free = self.free_ids[:num_free].flip(0).tolist()
        return PoolSnapshot(num_free, free, PoolError(int(state[1])))
