"""Block allocation on the device: pool, block tables, slot mappings, zeroing and copying of blocks.

Everything takes and fills torch tensors, on the CPU or on a CUDA device, with the same results.
On CUDA nothing waits for the device and nothing is allocated once the outputs are given, so that a
step can be captured into a CUDA graph. Tensors are checked before anything is launched: device,
dtype, shape and stride always, values where the host has them. Values in device memory are
checked by the kernels, which leave out what is wrong and say so in a status or an error bit.

Plans with ``grouping="sliced"`` have a ``SlicedDeviceBlockPool``; ``pool_for_plan`` makes the pool
that a plan needs.

Needs torch; CUDA devices need a kvplan that was built with nvcc (docs/device.md).
"""

from __future__ import annotations

from kvplan.device.block_pool import Allocation, DeviceBlockPool, PoolSnapshot
from kvplan.device.moves import move_blocks, remap_blocks
from kvplan.device.operations import is_cuda_built
from kvplan.device.regions import BlockRegions, copy_blocks, zero_blocks
from kvplan.device.sliced_block_pool import (
    SlicedDeviceBlockPool,
    SlicedPoolSnapshot,
    pool_for_plan,
)
from kvplan.device.status import PoolError, RequestStatus, WindowKind
from kvplan.device.steps import (
    PAD_SLOT_ID,
    AppendedSlots,
    StepOptions,
    append_slots,
    gather_block_tables,
    release_requests,
)
from kvplan.device.tables import BlockTables, TableGroup

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
    "SlicedDeviceBlockPool",
    "SlicedPoolSnapshot",
    "StepOptions",
    "TableGroup",
    "WindowKind",
    "append_slots",
    "copy_blocks",
    "gather_block_tables",
    "is_cuda_built",
    "move_blocks",
    "pool_for_plan",
    "release_requests",
    "remap_blocks",
    "zero_blocks",
]
