"""How full the device's sliced pool gets beside the host's, on the CPU: nothing here is timed.

Requests of 64 to 5,800 tokens come, hold slices of every group, take one more now and then, and go.
Printed are the mean of the large blocks that are open beyond the bytes in use, and the share of
requests that did not get in.
"""

from __future__ import annotations

import random
import sys
from itertools import pairwise

try:
    import torch
except ImportError:
    sys.exit("not measured: torch is not installed")

import kvplan
from kvplan import device as kd

NUM_LARGE = 2500
STEPS = 3000
Blocks = list[list[int]]


class DevicePool:
    def __init__(self, slices: list[int]) -> None:
        self.pool = kd.SlicedDeviceBlockPool(NUM_LARGE, slices, "cpu")
        self.ids = torch.zeros(1 << 16, dtype=torch.int32)

    def allocate(self, counts: list[int]) -> Blocks | None:
        got = self.pool.allocate(torch.tensor([counts], dtype=torch.int32), self.ids)
        if got.status[0]:
            return None
        starts = got.starts.tolist()
        return [self.ids[a:b].tolist() for a, b in pairwise(starts)]

    def free(self, blocks: Blocks) -> None:
        for group, ids in enumerate(blocks):
            self.pool.release(ids, group)

    def num_free(self) -> int:
        return self.pool.snapshot().num_free_large_blocks


class HostPool:
    def __init__(self, slices: list[int]) -> None:
        self.pool = kvplan.SlicedBlockPool(NUM_LARGE, slices, enable_caching=False)

    def allocate(self, counts: list[int]) -> Blocks | None:
        if not self.pool.can_allocate(counts):
            return None
        return [ids.tolist() for ids in self.pool.allocate(counts)]

    def free(self, blocks: Blocks) -> None:
        for group, ids in enumerate(blocks):
            self.pool.free_blocks(ids, group)

    def num_free(self) -> int:
        return self.pool.num_free_large_blocks


def simulate(pool: DevicePool | HostPool, slices: list[int], seed: int) -> tuple[float, float]:
    rng = random.Random(seed)
    running: list[tuple[Blocks, int]] = []  # blocks and the step at which they go
    lost, asked, refused = [], 0, 0
    for step in range(STEPS):
        if rng.random() < 0.25:
            tokens = int(2 ** rng.uniform(6, 12.5))
            asked += 1
            blocks = pool.allocate([tokens // (64 if k == 1 else 16) + 1 for k in slices])
            if blocks is None:
                refused += 1
            else:
                running.append((blocks, step + rng.randrange(20, 400)))
        for blocks, _ in running:
            if rng.random() < 0.06:
                group = rng.randrange(len(slices))
                more = pool.allocate([int(g == group) for g in range(len(slices))])
                if more is not None:
                    blocks[group] += more[group]
        for blocks, end in running:
            if end <= step:
                pool.free(blocks)
        running = [request for request in running if request[1] > step]
        if step > STEPS // 3:
            used = sum(
                len(ids) / k for blocks, _ in running for ids, k in zip(blocks, slices, strict=True)
            )
            lost.append(NUM_LARGE - 1 - pool.num_free() - used)
    return sum(lost) / len(lost), refused / asked


if __name__ == "__main__":
    for slices in ([1, 8, 4], [1, 16], [2, 3, 40]):
        for name, make in (("device", DevicePool), ("host", HostPool)):
            runs = [simulate(make(slices), slices, seed) for seed in range(3)]
            beyond, out = (sum(values) / len(runs) for values in zip(*runs, strict=True))
            print(f"slices {slices}, {name}: {beyond:.1f} large blocks, {100 * out:.1f} % refused")
