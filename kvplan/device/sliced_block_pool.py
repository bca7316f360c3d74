"""Free slices in device memory: the pool of plans with ``grouping="sliced"``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvplan import _core
from kvplan._core import InvalidArgument, Plan
from kvplan.arguments import in_range
from kvplan.device.block_pool import Allocation, DeviceBlockPool, DevicePool
from kvplan.device.operations import ops_for, resolved_device
from kvplan.device.status import PoolError
from kvplan.device.tensor_checks import INT32_END, address_of, checked_ids, checked_tensor
from kvplan.placed_cache import worker_config


@dataclass(frozen=True)
class SlicedPoolSnapshot:
    """A sliced pool as the host saw it.

    ``num_free_blocks[g]``: what group g could get if no other group took any.
    ``used_block_ids[g]``: its blocks in use, ascending.
    """

    num_free_large_blocks: int
    num_free_blocks: list[int]
    used_block_ids: list[list[int]]
    errors: PoolError


class SlicedDeviceBlockPool(DevicePool):
    """Free slices of large blocks in device memory, as ``kvplan.SlicedBlockPool`` on the host.

    ``num_large_blocks`` is a plan's ``num_blocks`` and includes the null block. Group g cuts a
    large block into ``slices[g]`` slices, its blocks: ``large_id * slices[g] + slice``. A large
    block belongs to one group from its first slice in use to its last. Blocks 1 to
    ``slices[g] - 1`` do not exist, block 0 is null in every group.

    Whether a request gets its blocks is exact: ``sum over g of ceil((n_g - f_g) / slices[g])``
    large blocks must be free, f_g being the unused slices of the group's large blocks. Equal calls
    give equal ids. With ``ref_counts`` a block can have several holders.

    New blocks come from whole free large blocks, as many as a request's blocks of the group fill,
    if the batch leaves enough; then from the fullest of the group's large blocks; then from other
    free ones. Large blocks with 1, 2, 3 to 4, 5 to 8, ... unused slices count as equally full.
    """

    def __init__(
        self,
        num_large_blocks: int,
        slices: Sequence[int],
        device: torch.device | str = "cuda",
        *,
        ref_counts: bool = False,
    ) -> None:
        in_range("num_large_blocks", num_large_blocks, 1, INT32_END)
        if not 1 <= len(slices) <= _core.MAX_TABLE_GROUPS:
            raise InvalidArgument(
                f"slices: has {len(slices)} groups, needs 1 to {_core.MAX_TABLE_GROUPS}"
            )
        most = (INT32_END - 1) // num_large_blocks + 1  # ids are 32-bit
        for i, count in enumerate(slices):
            in_range(f"slices[{i}]", count, 1, most)
        self._ops = ops_for(torch.device(device).type)
        self.num_large_blocks = num_large_blocks
        self.slices = tuple(slices)
        self.device = resolved_device(device)

        def array(*shape: int) -> torch.Tensor:
            return torch.zeros(*shape, dtype=torch.int32, device=self.device)

        largest = max(slices)
        self._free_large = array(num_large_blocks)
        self._listed = array(num_large_blocks)
        self._state = array(_core.POOL_STATE_SIZE + len(slices))
        self._large = array(num_large_blocks, 4)
        self._used_slices = array(num_large_blocks, _core.slice_words(largest))
        self._ref_counts = array(num_large_blocks, largest) if ref_counts else None
        self._native = _core.SlicedDevicePool(
            num_large_blocks,
            self.slices,
            self._free_large.data_ptr(),
            self._listed.data_ptr(),
            self._state.data_ptr(),
            self._large.data_ptr(),
            self._used_slices.data_ptr(),
            address_of(self._ref_counts),
        )
        self.reset()

    def workspace_size(self, num_requests: int) -> int:
        """int64 elements that ``allocate`` needs for this many requests."""
        in_range("num_requests", num_requests, 0, INT32_END)
        return _core.allocate_slices_workspace(num_requests, len(self.slices))

    def allocate(
        self,
        counts: torch.Tensor,
        ids: torch.Tensor,
        starts: torch.Tensor | None = None,
        status: torch.Tensor | None = None,
        workspace: torch.Tensor | None = None,
    ) -> Allocation:
        """Takes ``counts[r, g]`` blocks of each group for each request in turn, all or none.

        counts: int32 ``[num_requests, num_groups]``, contiguous. ids: int32 ``[capacity]``, filled:
        the blocks of group g of request r are ``ids[starts[i]:starts[i + 1]]`` with
        ``i = g * num_requests + r``. Made where not given: starts, int64
        ``[num_groups * num_requests + 1]``; status, int32 ``[num_requests]``, a RequestStatus each;
        workspace, int64 ``[workspace_size(num_requests)]``.
        """
        num_groups = len(self.slices)
        checked_tensor("counts", counts, self.device, torch.int32, (None, num_groups))
        if not counts.is_contiguous():
            raise InvalidArgument(f"counts: has strides {counts.stride()}, must be contiguous")
        n = counts.shape[0]
        size = self.workspace_size(n)
        workspace = self._made(size, torch.int64) if workspace is None else workspace
        checked_tensor("workspace", workspace, self.device, torch.int64, (size,), at_least=True)
        num_starts = num_groups * n + 1
        return self._allocate(counts, num_starts, ids, starts, status, workspace.data_ptr())

    def release(self, block_ids: torch.Tensor | Sequence[int], group: int) -> None:
        """One holder less for each block of the group; null blocks are skipped.

        block_ids: int32 ``[n]`` or a list.
        """
        ids = self._ids(block_ids, group)
        self._run("release", group, ids.data_ptr(), ids.shape[0])

    def touch(self, block_ids: torch.Tensor | Sequence[int], group: int) -> None:
        """One holder more for each block in use; null blocks are skipped. Needs ``ref_counts``."""
        ids = self._ids(block_ids, group)
        self._run("touch", group, ids.data_ptr(), ids.shape[0])

    def _ids(self, block_ids: torch.Tensor | Sequence[int], group: int) -> torch.Tensor:
        slices = self.slices[in_range("group", group, 0, len(self.slices))]
        return checked_ids(
            "block_ids", block_ids, self.device, self.num_large_blocks * slices, slices
        )

    def snapshot(self) -> SlicedPoolSnapshot:
        """The pool on the host. Waits for the device: the only method that does."""
        state = self._state.tolist()
        owners = self._large[:, 0].tolist()
        words = self._used_slices.tolist()
        used: list[list[int]] = [[] for _ in self.slices]
        for large, owner in enumerate(owners):
            if owner < 0:
                continue
            slices = self.slices[owner]
            used[owner] += [
                large * slices + i for i in range(slices) if words[large][i // 32] >> i % 32 & 1
            ]
        unused = state[_core.POOL_STATE_SIZE :]
        return SlicedPoolSnapshot(
            num_free_large_blocks=state[0],
            num_free_blocks=[u + state[0] * k for u, k in zip(unused, self.slices, strict=True)],
            used_block_ids=used,
            errors=PoolError(state[1]),
        )


def pool_for_plan(
    plan: Plan,
    device: torch.device | str = "cuda",
    *,
    worker: int = 0,
    ref_counts: bool = False,
) -> DeviceBlockPool | SlicedDeviceBlockPool:
    """The pool of a plan's blocks: a sliced one where a group has slices.

    Its ids are those of every worker of a pipeline stage that has the same slices.
    """
    slices = [group.slices for group in worker_config(plan, worker).kv_cache_groups]
    if all(k == 1 for k in slices):
        return DeviceBlockPool(plan.num_blocks, device, ref_counts=ref_counts)
    return SlicedDeviceBlockPool(plan.num_blocks, slices, device, ref_counts=ref_counts)
