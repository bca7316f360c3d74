"""Block operations on a GPU beside vLLM's Triton kernels and torch index operations, in one run.

Prints "not measured: no GPU" without one, and "not measured" for what is not installed. Times are
medians of graph replays, so that the host takes no part in them.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from dataclasses import replace

try:
    import torch
except ImportError:
    sys.exit("not measured: torch is not installed")
if not torch.cuda.is_available():
    print("not measured: no GPU")
    sys.exit(0)

from kvplan import device as kd
from kvplan.device import TableGroup, WindowKind

BATCH = 256
GROUPS = (
    TableGroup(16, 512),
    TableGroup(16, 512, WindowKind.SLIDING, 1023),
    TableGroup(16, 512, WindowKind.SLIDING, 1023),
    TableGroup(16, 512, WindowKind.SLIDING, 1023),
)
CONTEXT = 4000
MIB = 1 << 20


def microseconds(step: Callable[[], object], repeat: int = 50, inner: int = 20) -> float:
    """Median time of one step, from replays of a graph of ``inner`` steps."""
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(inner):
            step()
    times = []
    for _ in range(repeat):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / inner)
    return statistics.median(times)


def int32(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device="cuda")


def append_slots(slices: int) -> None:
    """A decode step of 256 requests and 4 groups: goal 10 us.

    slices: of a large block, in the groups with a window.
    """
    groups = [replace(g, slices=slices if g.window_tokens else 1) for g in GROUPS]
    pool: kd.DeviceBlockPool | kd.SlicedDeviceBlockPool
    if slices == 1:
        pool = kd.DeviceBlockPool(200_000, "cuda")
    else:
        pool = kd.SlicedDeviceBlockPool(100_000, [g.slices for g in groups], "cuda")
    tables = kd.BlockTables(groups, BATCH, "cuda")
    rows, status = int32(list(range(BATCH))), int32([0] * BATCH)
    slots = torch.zeros(len(GROUPS), 8192, dtype=torch.int64, device="cuda")
    lengths, counts = int32([0] * BATCH), int32([32] * BATCH)
    while int(lengths[0]) < CONTEXT:
        kd.append_slots(pool, tables, rows, lengths, counts, slots, status)
        lengths += counts
    # Requests at different places in their blocks, as in service.
    lengths += torch.arange(BATCH, dtype=torch.int32, device="cuda") % 16
    ones, slots = int32([1] * BATCH), slots[:, :BATCH].contiguous()

    def step() -> None:
        kd.append_slots(pool, tables, rows, lengths, ones, slots, status)
        lengths.add_(1)

    added = microseconds(lambda: lengths.add_(1))
    ours = microseconds(step, repeat=10, inner=16) - added
    print(
        f"append_slots, {BATCH} requests, {len(GROUPS)} groups, {slices} slices of a large block: "
        f"{ours:.1f} us"
    )
    if slices != 1:
        return

    position = lengths.long()

    def with_torch() -> None:
        for g, t in enumerate(tables.tables):
            block = t.gather(1, (position // 16)[:, None])[:, 0].long()
            torch.add(block * 16, position % 16, out=slots[g])

    print(f"  slots alone with torch index operations: {microseconds(with_torch):.1f} us")
    try:
        from vllm.v1.worker.gpu.block_table import BlockTables
    except ImportError:
        print("  vLLM's Triton kernel: not measured: vLLM is not installed")
        return
    theirs = BlockTables(
        [g.block_size for g in GROUPS],
        BATCH,
        8192,
        [g.width for g in GROUPS],
        torch.device("cuda"),
    )
    starts = torch.arange(BATCH + 1, dtype=torch.int32, device="cuda")
    time = microseconds(lambda: theirs.compute_slot_mappings(rows, starts, position, BATCH))
    print(f"  slots alone with vLLM's Triton kernel: {time:.1f} us")


def zero_and_copy() -> None:
    """Bandwidth against a plain copy of the same bytes: goal 80 %."""
    num_blocks, block = 1024, MIB
    buffer = torch.zeros(num_blocks * block, dtype=torch.int8, device="cuda")
    half = num_blocks // 2
    first, second = int32(list(range(half))), int32(list(range(half, num_blocks)))
    plain = microseconds(lambda: buffer[: half * block].copy_(buffer[half * block :]), 20, 2)
    print(f"plain copy: {2 * half * block / plain / 1e3:.0f} GB/s read and written")
    for layers in (1, 32):
        page = block // layers
        if layers == 1:
            table = [(0, block, block)]
        else:
            table = [(i * num_blocks * page, page, page) for i in range(layers)]
        regions = kd.BlockRegions(table, num_blocks, buffer.numel(), "cuda")
        copied = microseconds(
            lambda r=regions: kd.copy_blocks(buffer, buffer, r, second, first), 20, 2
        )
        zeroed = microseconds(lambda r=regions: kd.zero_blocks(buffer, r, first), 20, 2)
        filled = microseconds(lambda: buffer[: half * block].zero_(), 20, 2)
        print(
            f"{layers} regions a block: copy at {100 * plain / copied:.0f} % of the plain copy, "
            f"zero at {100 * filled / zeroed:.0f} % of torch's fill"
        )
    view = buffer.view(num_blocks, block)
    indexed = microseconds(lambda: view.index_copy_(0, first.long(), view[second.long()]), 20, 2)
    print(f"torch index_copy_: {100 * plain / indexed:.0f} % of the plain copy")


if __name__ == "__main__":
    print(torch.cuda.get_device_name())
    append_slots(1)
    append_slots(8)
    zero_and_copy()
