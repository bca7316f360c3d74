"""Free block ids in device memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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


class DevicePool:
    """What pools of whole blocks and of slices have in common."""

    device: torch.device
    _ops: Any
    _native: Any

    def _run(self, operation: str, *arguments: int) -> None:
        with on_device(self.device):
            getattr(self._ops, operation)(self._native, *arguments, stream_of(self.device))

    def _made(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(size, dtype=dtype, device=self.device)

    def _allocate(
        self,
        counts: torch.Tensor,
        num_starts: int,
        ids: torch.Tensor,
        starts: torch.Tensor | None,
        status: torch.Tensor | None,
        *workspace: int,
    ) -> Allocation:
        n = counts.shape[0]
        starts = self._made(num_starts, torch.int64) if starts is None else starts
        status = self._made(n, torch.int32) if status is None else status
        checked_tensor("ids", ids, self.device, torch.int32, (None,))
        checked_tensor("starts", starts, self.device, torch.int64, (num_starts,))
        checked_tensor("status", status, self.device, torch.int32, (n,))
        out = (ids.shape[0], ids.data_ptr(), starts.data_ptr(), status.data_ptr())
        self._run("allocate", n, counts.data_ptr(), *out, *workspace)
        return Allocation(ids, starts, status)

    def reset(self) -> None:
        """Makes all blocks free and forgets errors."""
        self._run("reset_pool")


class DeviceBlockPool(DevicePool):
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
        return self._allocate(counts, counts.shape[0] + 1, ids, starts, status)

    def release(self, block_ids: torch.Tensor | Sequence[int]) -> None:
        """One holder less for each block; null blocks are skipped. int32 ``[n]`` or a list."""
        ids = checked_ids("block_ids", block_ids, self.device, self.num_blocks)
        self._run("release", ids.data_ptr(), ids.shape[0])

    def touch(self, block_ids: torch.Tensor | Sequence[int]) -> None:
        """One holder more for each block in use; null blocks are skipped. Needs ``ref_counts``."""
        ids = checked_ids("block_ids", block_ids, self.device, self.num_blocks)
        self._run("touch", ids.data_ptr(), ids.shape[0])

    def snapshot(self) -> PoolSnapshot:
        """The pool on the host. Waits for the device: the only method that does."""
        state = self.state.cpu()
        num_free = int(state[0])
        free = self.free_ids[:num_free].flip(0).tolist()
        return PoolSnapshot(num_free, free, PoolError(int(state[1])))
