"""Slot mappings and gathered block tables against vLLM 0.33.0's own kernels, run on the CPU."""

import random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

import triton_stand_in  # noqa: E402
from vllm.v1.worker.gpu import block_table as theirs  # noqa: E402

from kvplan import device as kd  # noqa: E402
from kvplan.device import TableGroup, WindowKind  # noqa: E402

MAX_TOKENS = 64
MAX_REQS = 6
BATCH = 4


def int32(values):
    return torch.tensor(values, dtype=torch.int32)


def run(kernel, grid, monkeypatch, *args, **constants):
    triton_stand_in.run(kernel, grid, theirs, monkeypatch, *args, **constants)


def their_slots(monkeypatch, groups, tables, rows, starts, positions, cp):
    """What _compute_slot_mappings_kernel writes for these tables."""
    size, rank, interleave = cp
    slots = torch.full((len(groups), MAX_TOKENS), -7, dtype=torch.int64)
    run(
        theirs._compute_slot_mappings_kernel,
        (len(groups), len(rows) + 1),
        monkeypatch,
        MAX_TOKENS,
        int32(rows),
        starts,
        positions,
        tables,
        torch.tensor([t.stride(0) for t in tables]),
        int32([g.block_size for g in groups]),
        torch.tensor([g.slot_mapping for g in groups]),
        torch.tensor([g.dcp_sharded for g in groups]),
        slots,
        slots.stride(0),
        rank,
        CP_SIZE=size,
        CP_INTERLEAVE=interleave,
        PAD_ID=theirs.PAD_SLOT_ID,
        TRITON_BLOCK_SIZE=16,
    )
    return slots


@pytest.mark.parametrize("cp", [(1, 0, 1), (2, 0, 1), (2, 1, 4), (3, 2, 8)])
def test_slot_mappings(monkeypatch, cp):
    rng = random.Random(3)
    assert kd.PAD_SLOT_ID == theirs.PAD_SLOT_ID
    groups = (
        TableGroup(16, 30),
        TableGroup(8, 60, WindowKind.SLIDING, 20),
        TableGroup(8, 60, dcp_sharded=False),
        TableGroup(16, 30, slot_mapping=False),
    )
    pool = kd.DeviceBlockPool(400, "cpu")
    tables = kd.BlockTables(
        groups, MAX_REQS, "cpu", cp_size=cp[0], cp_rank=cp[1], cp_interleave=cp[2]
    )
    slots = torch.full((len(groups), MAX_TOKENS), -7, dtype=torch.int64)
    starts, positions = int32([0] * (BATCH + 1)), torch.zeros(MAX_TOKENS, dtype=torch.int64)
    status = int32([0] * BATCH)
    lengths = [0] * MAX_REQS
    for _ in range(25):
        rows = rng.sample(range(MAX_REQS), BATCH)
        if rng.random() < 0.3:
            rows[rng.randrange(BATCH)] = -1
        counts = [rng.choice((1, rng.randrange(16))) for _ in rows]
        context = [lengths[row] if row >= 0 else 0 for row in rows]
        kd.append_slots(
            pool,
            tables,
            int32(rows),
            int32(context),
            int32(counts),
            slots,
            status,
            query_start_loc=starts,
            positions=positions,
        )
        assert not status.any()
        for row, count in zip(rows, counts, strict=True):
            if row >= 0:
                lengths[row] += count
        expected = their_slots(monkeypatch, groups, tables.tables, rows, starts, positions, cp)
        assert torch.equal(slots, expected)
    assert (slots >= 0).any()


def test_gathered_tables(monkeypatch):
    rng = random.Random(4)
    groups = (
        TableGroup(16, 20),
        TableGroup(8, 40, WindowKind.SLIDING, 20),
        TableGroup(4, 80, WindowKind.SLIDING, 1),
    )
    tables = kd.BlockTables(groups, MAX_REQS, "cpu")
    for table, entries, group in zip(tables.tables, tables.num_entries, groups, strict=True):
        table.random_(1, 1000)
        entries.random_(1, group.width)
    for _ in range(20):
        rows = [rng.randrange(MAX_REQS) for _ in range(BATCH)]
        computed = int32([rng.randrange(300) for _ in range(MAX_REQS)])
        ours = [torch.full((BATCH + 1, g.width), 7, dtype=torch.int32) for g in groups]
        other = [table.clone() for table in ours]
        run(
            theirs._gather_block_tables_kernel,
            (len(groups), BATCH + 1),
            monkeypatch,
            int32(rows),
            tables.tables,
            other,
            torch.tensor([t.stride(0) for t in tables.tables]),
            tables.num_entries,
            tables.num_entries.stride(0),
            BATCH,
            computed,
            int32([g.window_tokens for g in groups]),
            int32([g.block_size for g in groups]),
            MASK_SLIDING_WINDOW=True,
            BLOCK_SIZE=16,
        )
        kd.gather_block_tables(
            tables, int32([*rows, -1]), ours, int32([*computed[rows].tolist(), 0])
        )
        for a, b in zip(ours, other, strict=True):
            assert torch.equal(a, b)
