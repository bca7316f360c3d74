"""Moving slices: the pool's answer, the copies on the device, and the block tables, together."""

import random

import numpy as np
import pytest

import kvplan

torch = pytest.importorskip("torch")

from kvplan import device as kd  # noqa: E402


def plan():
    full = kvplan.specs.FullAttentionSpec(
        block_size=16, num_kv_heads=1, head_size=16, dtype="bfloat16"
    )
    window = kvplan.specs.SlidingWindowSpec(
        block_size=16, num_kv_heads=1, head_size=16, dtype="bfloat16", sliding_window=64
    )
    layers = {f"layers.{i}": full if i % 12 == 11 else window for i in range(24)}
    config = kvplan.PlanningConfig(
        max_model_len=1024,
        max_in_flight_tokens=64,
        grouping="sliced",
        kv_cache_layout="BLHNC",
        min_large_blocks=30,
    )
    return kvplan.plan(config, [layers], [1 << 21])


def test_requests_find_what_they_have_written():
    p = plan()
    slices = [group.slices for group in p.groups]
    assert len(slices) == 2
    assert max(slices) > 1
    config = p.kv_cache_configs[0]
    buffer = torch.zeros(config.kv_cache_tensors[0].size, dtype=torch.int8)
    groups = range(len(slices))
    regions = [kd.BlockRegions.from_plan(p, "cpu", group=g) for g in groups]
    pool = kvplan.SlicedBlockPool(p.num_blocks, slices)
    draw = random.Random(4)
    requests = []  # (block ids of each group, what was written)
    num_moved = 0

    def pages(g, block_id):
        return [
            buffer[offset + block_id * stride :][:size]
            for offset, stride, size in regions[g].regions
        ]

    for step in range(400):
        for tables, _ in draw.sample(requests, min(len(requests), 4)):  # as behind a window
            pool.free_blocks(tables[1][:1], 1)
            tables[1] = tables[1][1:]
        wanted = [draw.randrange(4), 1] if step // 50 % 2 else [0, draw.randrange(12)]  # by turns
        if not pool.can_allocate(wanted):
            moves = pool.make_room(wanted)
            if moves is None:
                tables, value = requests.pop(draw.randrange(len(requests)))
                for g in groups:
                    for block_id in tables[g].tolist():
                        assert all((page == value).all() for page in pages(g, block_id))
                    pool.free_blocks(tables[g], g)
                continue
            moves = [(sources.tolist(), targets.tolist()) for sources, targets in moves]
            kd.move_blocks(buffer, regions, None, moves)
            for g, (sources, destinations) in enumerate(moves):
                moved = np.arange(pool.num_blocks(g), dtype=np.int32)
                moved[sources] = destinations
                for tables, _ in requests:
                    tables[g] = moved[tables[g]]
                num_moved += len(sources)
        tables = pool.allocate(wanted)
        value = step % 120 + 1
        for g in groups:
            for block_id in tables[g].tolist():
                for page in pages(g, block_id):
                    page.fill_(value)
        requests.append((tables, value))
    assert num_moved > 50
    pool.check_invariants()
