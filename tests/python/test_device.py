"""Pool, block tables, slots, zeroing and copying on the device: one suite for CPU and CUDA."""

from __future__ import annotations

import os
import random

import pytest
from spec_makers import full, sliding
from test_tensors import PLANS, planned_bytes
from torch_or_skip import CUDA, DEVICES, torch

import kvplan
from kvplan import _core, specs, tensors
from kvplan import device as kd
from kvplan.device import RequestStatus, TableGroup, WindowKind, operations


def int32(values, device):
    return torch.tensor(values, dtype=torch.int32, device=device)


PTX = os.environ.get("KVPLAN_PTX_CUDA")  # tests/cuda/ptx: libptx_block_ops_64.so


@pytest.fixture(
    params=[
        *DEVICES,
        pytest.param(
            "ptx",
            marks=pytest.mark.skipif(not PTX, reason="KVPLAN_PTX_CUDA is not set"),
        ),
    ]
)
def device(request, monkeypatch):
    """Where the tensors are; ptx: on the CPU, and the kernels' PTX works on them."""
    if request.param == "cuda" and not kd.is_cuda_built():
        pytest.skip("kvplan was built without its CUDA library")
    if request.param != "ptx":
        yield request.param
        return
    monkeypatch.setattr(_core, "cpu_block_ops", lambda: _core.load_block_ops(PTX))
    operations.ops_for.cache_clear()
    assert operations.ops_for("cpu").name == "cuda"
    yield "cpu"
    operations.ops_for.cache_clear()


# Pool.


def test_what_is_handed_out_comes_back(device):
    """Through arrays and lists; what a pool decides is tested in C++, on all devices."""
    ids = torch.full((8,), -7, dtype=torch.int32, device=device)
    pool = kd.DeviceBlockPool(8, device, ref_counts=True)
    taken = pool.allocate(int32([2, 3, 9], device), ids)
    assert taken.ids[:5].tolist() == [1, 2, 3, 4, 5]
    assert taken.starts.tolist() == [0, 2, 5, 5]
    assert taken.status.tolist() == [0, 0, RequestStatus.OUT_OF_BLOCKS]
    pool.touch([1])
    pool.release(int32([1, 2, 3, 4, 5], device))
    assert pool.snapshot().num_free_blocks == 6
    pool.release([1])
    assert sorted(pool.snapshot().free_block_ids) == list(range(1, 8))
    sliced = kd.SlicedDeviceBlockPool(4, [2, 4], device)
    taken = sliced.allocate(int32([[1, 5], [1, 9]], device), ids)
    assert taken.status.tolist() == [0, RequestStatus.OUT_OF_BLOCKS]
    used = sliced.snapshot().used_block_ids
    assert [len(group) for group in used] == [1, 5]
    for group, held in enumerate(used):
        sliced.release(int32(held, device), group)
    assert sliced.snapshot().num_free_large_blocks == 3


def test_errors_in_device_memory_are_bits(device):
    pool = kd.DeviceBlockPool(4, device, ref_counts=True)
    if device == "cpu":
        with pytest.raises(kvplan.InvalidArgument, match="block_ids: 4 is out of range"):
            pool.release(int32([4], device))
    else:
        pool.release(int32([4], device))
        assert pool.snapshot().errors == kd.PoolError.BAD_BLOCK_ID
        pool.reset()
    with pytest.raises(kvplan.InvalidArgument, match="block_ids: -1 is out of range"):
        pool.release([-1])
    pool.release([2])
    assert pool.snapshot().errors == kd.PoolError.BLOCK_NOT_IN_USE
    assert pool.snapshot().free_block_ids == [1, 2, 3]
    with pytest.raises(kvplan.InvalidArgument, match="reference counts"):
        kd.DeviceBlockPool(4, device).touch([1])


def test_what_is_not_in_use_gets_no_holder_however_often_it_is_touched(device):
    often = int32([2] * 20000, device)
    pool = kd.DeviceBlockPool(4, device, ref_counts=True)
    pool.touch(often)
    assert pool.ref_counts.tolist() == [0] * 4
    assert pool.snapshot().errors == kd.PoolError.BLOCK_NOT_IN_USE
    sliced = kd.SlicedDeviceBlockPool(3, [2], device, ref_counts=True)
    sliced.allocate(int32([[1]], device), int32([0], device))
    sliced.touch(often + 1, 0)  # beside the one in use
    assert sliced.snapshot() == kd.SlicedPoolSnapshot(1, [3], [[2]], kd.PoolError.BLOCK_NOT_IN_USE)
    sliced.release([3], 0)
    assert sliced.snapshot().used_block_ids == [[2]]


# Steps of a batch.

GROUPS = (
    TableGroup(16, 40),
    TableGroup(8, 80, WindowKind.SLIDING, 20),
    TableGroup(32, 20, WindowKind.CHUNKED, 48),
    TableGroup(512, 4, extra_entries=1, slot_mapping=False),
)


class Batch:
    """A step's inputs and outputs on one device."""

    def __init__(self, device, size, max_tokens, num_groups):
        self.device = device
        self.slots = torch.full((num_groups, max_tokens), -7, device=device)
        self.status = int32([-7] * size, device)
        self.starts = int32([-7] * (size + 1), device)
        self.positions = torch.full((max_tokens,), -7, device=device)

    def append(self, pool, tables, rows, context_lens, new_tokens):
        inputs = [int32(x, self.device) for x in (rows, context_lens, new_tokens)]
        kd.append_slots(
            pool,
            tables,
            *inputs,
            self.slots,
            self.status,
            query_start_loc=self.starts,
            positions=self.positions,
        )


@pytest.mark.skipif(not CUDA, reason="no GPU")
def test_a_captured_step_replays_ten_thousand_times():
    batch_size, rounds = 16, 10_000
    groups = (TableGroup(16, 64), TableGroup(16, 64, WindowKind.SLIDING, 64))
    pool = kd.DeviceBlockPool(batch_size * 64 + batch_size * 6 + 1, "cuda")
    tables = kd.BlockTables(groups, batch_size, "cuda")
    batch = Batch("cuda", batch_size, batch_size, 2)
    rows = int32(range(batch_size), "cuda")
    lengths, ones = int32([0] * batch_size, "cuda"), int32([1] * batch_size, "cuda")
    failures = int32([0], "cuda")

    def step():
        kd.append_slots(pool, tables, rows, lengths, ones, batch.slots, batch.status)
        failures.add_((batch.status != 0).sum().to(torch.int32))
        lengths.add_(1)

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    done = 1
    for _ in range(rounds):
        if done == 1024:  # the tables are full: the requests end, others begin
            kd.release_requests(pool, tables, rows)
            lengths.zero_()
            done = 0
        graph.replay()
        done += 1
    torch.cuda.synchronize()
    assert int(failures) == 0
    assert lengths.tolist() == [done] * batch_size
    snapshot = pool.snapshot()
    held = [b for t in tables.tables for b in t.flatten().tolist() if b != 0]
    assert sorted(held + snapshot.free_block_ids) == list(range(1, pool.num_blocks))


def test_gathered_tables_hide_what_is_below_the_window(device):
    pool = kd.DeviceBlockPool(100, device)
    tables = kd.BlockTables(GROUPS, 4, device)
    batch = Batch(device, 2, 96, len(GROUPS))
    batch.append(pool, tables, [2, 0], [0, 0], [40, 12])
    out = [torch.full((3, g.width + 1), 55, dtype=torch.int32, device=device) for g in GROUPS]
    kd.gather_block_tables(tables, int32([2, -1, 0], device), out, int32([40, 0, 12], device))
    table = tables.tables[1][2].tolist()
    # Of blocks of 8 tokens, those with one of the positions 20 to 39 stay.
    assert out[1][0].tolist()[:6] == [0, 0, *table[2:5], 55]
    assert out[0][0].tolist()[:4] == [*tables.tables[0][2].tolist()[:3], 55]
    assert not out[0][1][: GROUPS[0].width].any()
    assert out[0][2].tolist()[:2] == [int(tables.tables[0][0][0]), 55]


def model_layers():
    return {f"layers.{i}": full(2, 8) if i % 2 else sliding(33, 2, 8) for i in range(4)}


def test_tables_of_a_plan(device):
    config = kvplan.PlanningConfig(max_model_len=100, kv_cache_layout="BLHNC")
    plan = kvplan.plan(config, [model_layers()], [1 << 20])
    tables = kd.BlockTables.from_plan(plan, 3, device)
    kinds = {(g.window_kind, g.window_tokens) for g in tables.groups}
    assert kinds == {(WindowKind.NONE, 0), (WindowKind.SLIDING, 32)}
    assert all(g.width >= 7 and g.block_size == 16 for g in tables.groups)
    cross = specs.CrossAttentionSpec(block_size=16, num_kv_heads=2, head_size=8, dtype="bfloat16")
    config = kvplan.PlanningConfig(max_model_len=100, max_num_encoder_input_tokens=64)
    plan = kvplan.plan(config, [{"a": cross}], [1 << 20])
    with pytest.raises(kvplan.Unsupported, match="CrossAttentionSpec"):
        kd.BlockTables.from_plan(plan, 3, device)


# Bytes of blocks.


def block_bytes(config, layout, block):
    """Addresses of all states of a block, whatever the layer."""
    for group in config.kv_cache_groups:
        for name in group.layer_names:
            runs = list(planned_bytes(config, layout, name))
            per_block = len(runs) // config.num_blocks
            for run in runs[block * per_block : (block + 1) * per_block]:
                yield from run


def test_zeroing_takes_every_page_of_a_block_and_no_other(device):
    for seed, (config, layout) in PLANS[::4]:
        caches = tensors.allocate_kv_cache(config, device, layout)
        buffer = tensors.kv_cache_buffer(caches)
        buffer.fill_(1)
        regions = kd.BlockRegions.from_plan(config, device, layout)
        kd.zero_blocks(buffer, regions, [1])
        mine = set(block_bytes(config, layout, 1))
        others = set(block_bytes(config, layout, 0)) | set(block_bytes(config, layout, 2))
        zero = set((buffer == 0).nonzero().flatten().tolist())
        assert mine <= zero, (seed, layout)
        assert not others & zero, (seed, layout)
        if layout in ("LBHNC", "LBNHC", "BLHNC", "BLNHC"):  # pages in one piece, padding included
            pages = {
                byte
                for t in config.kv_cache_tensors
                for g in config.kv_cache_groups
                for i, name in enumerate(t.layers)
                if name in g.layer_names
                for start in [t.offset + i * t.layer_stride + t.block_stride]
                for byte in range(start, start + page_bytes(g.kv_cache_spec, name))
            }
            assert zero == pages, (seed, layout)


def page_bytes(spec, name):
    return getattr(spec, "kv_cache_specs", {}).get(name, spec).page_size_bytes


def test_bytes_beyond_two_gigabytes_of_offset():
    """Regions may lie anywhere in 64 bits; nothing is touched, since no id is given."""
    regions = kd.BlockRegions([(1 << 40, 1 << 33, 1 << 20)], 1000, 1 << 44, "cpu")
    assert regions.max_region_bytes == 1 << 20
    with pytest.raises(kvplan.InvalidArgument, match=r"regions\[0\]"):
        kd.BlockRegions([(1 << 40, 1 << 33, 1 << 20)], 2000, 1 << 43, "cpu")


def test_regions_of_groups_with_slices():
    plan = kvplan.plan(
        kvplan.PlanningConfig(max_model_len=64, kv_cache_layout="BLHNC"),
        [model_layers()],
        [1 << 18],
    )
    config = plan.kv_cache_configs[0]
    config.kv_cache_groups[0].slices = 2
    for t in config.kv_cache_tensors:
        if t.layers[0] in config.kv_cache_groups[0].layer_names:
            t.block_stride //= 2
            t.layer_stride //= 2
    with pytest.raises(kvplan.InvalidArgument, match="group"):
        kd.BlockRegions.from_plan(config, "cpu", "BLHNC")
    other = kd.BlockRegions.from_plan(config, "cpu", "BLHNC", group=1)
    assert other.num_blocks == plan.num_blocks
    with pytest.raises(kvplan.InvalidArgument, match="group: 9 of"):
        kd.BlockRegions.from_plan(config, "cpu", "BLHNC", group=9)


# Sliced pools. The C++ tests (sliced_block_ops_test.cpp) check every state they pass through.


def sliced_plan():
    layers = {f"layers.{i}": full(4, 8) if i % 3 else sliding(33, 1, 8) for i in range(6)}
    config = kvplan.PlanningConfig(
        max_model_len=200, kv_cache_layout="BLHNC", grouping="sliced", min_large_blocks=40
    )
    plan = kvplan.plan(config, [layers], [1 << 18])
    assert sorted(g.slices for g in plan.kv_cache_groups) != [1, 1]
    return plan


class Scheduler:
    """A scheduler on the device: rows know their lengths, a step says what it took."""

    def __init__(self, device, pool, tables, batch, max_tokens):
        self.device, self.pool, self.tables, self.batch = device, pool, tables, batch
        lists = len(tables.groups) if isinstance(pool, kd.SlicedDeviceBlockPool) else 1
        self.slots = torch.zeros(len(tables.groups), max_tokens, dtype=torch.int64, device=device)
        self.status = int32([-7] * batch, device)
        self.lens = int32([0] * tables.max_num_reqs, device)
        self.seq_lens = int32([-7] * batch, device)
        self.new_ids = torch.zeros(lists, 8 * batch + 50, dtype=torch.int32, device=device)
        self.num_new_ids = int32([-7] * lists, device)
        self.mirror = int32([-7] * (2 + batch), "cpu")
        if device == "cuda":
            self.mirror = self.mirror.pin_memory()

    def step(self, rows, new_tokens, lookahead):
        kd.append_slots(
            self.pool,
            self.tables,
            int32(rows, self.device),
            None,
            int32(new_tokens, self.device),
            self.slots,
            self.status,
            options=kd.StepOptions(
                lookahead_tokens=lookahead,
                row_lens=self.lens,
                seq_lens=self.seq_lens,
                new_ids=self.new_ids,
                num_new_ids=self.num_new_ids,
                mirror=self.mirror,
            ),
        )
        if self.device == "cuda":
            torch.cuda.synchronize()

    def release(self, rows):
        kd.release_requests(self.pool, self.tables, int32(rows, self.device))
        self.lens[rows] = 0

    def taken(self):
        return [
            ids[:n].tolist() for ids, n in zip(self.new_ids, self.num_new_ids.tolist(), strict=True)
        ]


@pytest.mark.parametrize("windowed", [False, True])
@pytest.mark.parametrize("lookahead", [0, 3, 20])
@pytest.mark.parametrize("rows", [6, 200])  # one launch, and three
def test_a_scheduler_on_the_device_takes_what_the_host_manager_takes(
    device, windowed, lookahead, rows
):
    rng = random.Random(lookahead)
    whole = kvplan.CacheGroup("full_attention", 8)
    groups = [whole, kvplan.CacheGroup("sliding_window", 8, window=40) if windowed else whole]
    num_blocks = 60 * rows if windowed else 3 * rows  # windows are dropped before all, or in turn

    def manager():
        return kvplan.CacheManager(
            groups, num_blocks=num_blocks, max_model_len=160, enable_caching=False
        )

    host = manager()
    pool = kd.DeviceBlockPool(num_blocks, device)
    window = (WindowKind.SLIDING, 39) if windowed else ()
    tables = kd.BlockTables([TableGroup(8, 20), TableGroup(8, 20, *window)], rows, device)
    scheduler = Scheduler(device, pool, tables, rows, 12 * rows)
    requests, lengths = [host.add_request() for _ in range(rows)], [0] * rows
    refused = 0
    for step in range(12 if rows < 100 else 5):
        order = rng.sample(range(rows), rows)
        batch = [row if rng.random() < 0.9 else -1 for row in order]
        new_tokens = [min(rng.choice([1, 1, 11]), 160 - lengths[r]) for r in order]
        batch = [row if n else -1 for row, n in zip(batch, new_tokens, strict=True)]
        scheduler.step(batch, new_tokens, lookahead)
        taken = []
        status = []
        for row, n in zip(batch, new_tokens, strict=True):
            status.append(RequestStatus.OK)
            if row < 0:
                continue
            new = host.allocate(
                requests[row],
                n,
                num_tokens=lengths[row] + n,
                num_prompt_tokens=lengths[row] + n,
                num_computed_tokens=lengths[row],
                num_lookahead_tokens=lookahead,
            )
            if new is None:
                status[-1] = RequestStatus.OUT_OF_BLOCKS
                refused += 1
            else:
                taken += [int(b) for ids in new for b in ids if b]
                lengths[row] += n
        assert scheduler.status.tolist() == status
        assert scheduler.lens.tolist() == lengths
        ends = [
            lengths[row] if row >= 0 and s == RequestStatus.OK else 0
            for row, s in zip(batch, status, strict=True)
        ]
        assert scheduler.seq_lens.tolist() == ends
        (new_ids,) = scheduler.taken()
        assert len(new_ids) == len(taken)
        assert windowed or new_ids == taken
        for row, request in enumerate(requests):
            for g, ids in enumerate(host.block_ids(request)):
                got = tables.tables[g][row][: int(tables.num_entries[g][row])].tolist()
                assert [b > 0 for b in got] == [b > 0 for b in ids.tolist()]
        assert scheduler.mirror.tolist() == [host.pool.num_free_blocks, 0, *status]
        if not windowed and step % 3 == 2:  # from an empty pool, so that ids come in one order
            for request in requests:
                host.free(request)
            scheduler.release(list(range(rows)))
            lengths = [0] * rows
            assert pool.snapshot().num_free_blocks == host.pool.num_free_blocks
            pool.reset()
            host = manager()
            requests = [host.add_request() for _ in range(rows)]
    assert windowed or refused > 0


def test_reserved_steps_take_no_blocks(device):
    plan = sliced_plan()
    pool = kd.pool_for_plan(plan, device)
    tables = kd.BlockTables.from_plan(plan, 3, device)
    scheduler = Scheduler(device, pool, tables, 3, 200)
    scheduler.step([2, 0, -1], [30, 7, 5], 20)
    held = pool.snapshot().used_block_ids
    assert [sorted(ids) for ids in scheduler.taken()] == held
    for _ in range(20):
        scheduler.step([2, 0, -1], [1, 1, 0], 0)
        assert scheduler.num_new_ids.tolist() == [0] * len(tables.groups)
        assert (scheduler.slots[0, :2] > 0).all()
    assert scheduler.seq_lens.tolist() == [50, 27, 0]
    num_blocks = pool.num_large_blocks * pool.slices[0]
    buffer = torch.ones(64 * num_blocks, dtype=torch.int8, device=device)
    regions = kd.BlockRegions([(0, 64, 64)], num_blocks, 64 * num_blocks, device)
    scheduler.step([2, 0, -1], [40, 1, 0], 0)
    kd.zero_blocks(buffer, regions, scheduler.new_ids[0], num_ids=scheduler.num_new_ids[:1])
    zeroed = (buffer.reshape(-1, 64) == 0).all(1).nonzero().flatten().tolist()
    assert zeroed == sorted(scheduler.taken()[0]) != []


def test_new_ids_beyond_their_list_are_an_error(device):
    tables = kd.BlockTables([TableGroup(8, 200)], 1, device)
    for pool in (kd.DeviceBlockPool(500, device), kd.SlicedDeviceBlockPool(500, [1], device)):
        scheduler = Scheduler(device, pool, tables, 1, 1700)
        scheduler.new_ids = scheduler.new_ids[:, :5].contiguous()
        scheduler.step([0], [1500], 0)
        assert scheduler.num_new_ids.tolist() == [188]
        assert scheduler.new_ids.tolist() == [[1, 2, 3, 4, 5]]
        assert pool.snapshot().errors == kd.PoolError.IDS_LEFT_OUT
        assert scheduler.mirror.tolist() == [311, kd.PoolError.IDS_LEFT_OUT, 0]
        scheduler.release([0])


@pytest.mark.parametrize(
    "options",
    [
        dict(lookahead_tokens=-1),
        dict(row_lens=[0]),
        dict(seq_lens=[0] * 3),
        dict(new_ids=[0]),
        dict(num_new_ids=[0]),
        dict(mirror=[0]),
    ],
)
def test_bad_options_of_a_step_are_named(device, options):
    tables = kd.BlockTables([TableGroup(8, 20)], 4, device)
    pool = kd.DeviceBlockPool(50, device)
    (name,) = options
    tensors_of = {k: v if isinstance(v, int) else int32(v, device) for k, v in options.items()}
    lens = int32([0] * 2, device)
    with pytest.raises(kvplan.InvalidArgument, match=name):
        kd.append_slots(
            pool,
            tables,
            int32([0, 1], device),
            lens,
            lens,
            torch.zeros(1, 8, dtype=torch.int64, device=device),
            lens.clone(),
            options=kd.StepOptions(**tensors_of),
        )
    assert pool.snapshot().num_free_blocks == 49


def test_steps_of_a_sliced_plan(device):
    plan = sliced_plan()
    pool = kd.pool_for_plan(plan, device)
    tables = kd.BlockTables.from_plan(plan, 4, device)
    assert pool.slices == tuple(g.slices for g in plan.kv_cache_groups)
    batch = Batch(device, 2, 200, len(tables.groups))
    for step, new_tokens in enumerate([[90, 40], [1, 60], [80, 1]]):
        context = [[0, 0], [90, 40], [91, 100]][step]
        batch.append(pool, tables, [2, 0], context, new_tokens)
        assert batch.status.tolist() == [0, 0]
        used = pool.snapshot().used_block_ids
        for g, table in enumerate(tables.tables):
            entries = tables.num_entries[g].tolist()
            blocks = [b for row in (0, 2) for b in table[row][: entries[row]].tolist() if b]
            assert sorted(blocks) == used[g]
    assert batch.slots[0, 0] == tables.tables[0][2, 91 // 16] * 16 + 91 % 16
    plain = kd.DeviceBlockPool(plan.num_blocks, device)
    other = kd.SlicedDeviceBlockPool(plan.num_blocks, [9, 9], device)
    for wrong in (plain, other):
        with pytest.raises(kvplan.InvalidArgument, match=r"pool: cuts a block into \("):
            batch.append(wrong, tables, [2, 0], [171, 101], [1, 1])
        with pytest.raises(kvplan.InvalidArgument, match=r"pool: cuts a block into \("):
            kd.release_requests(wrong, tables, int32([0], device))
    kd.release_requests(pool, tables, int32([0, 2, -1], device))
    assert pool.snapshot().num_free_large_blocks == plan.num_blocks - 1


def test_pools_of_plans_without_slices_are_plain(device):
    config = kvplan.PlanningConfig(max_model_len=100, kv_cache_layout="BLHNC")
    plan = kvplan.plan(config, [model_layers()], [1 << 20])
    assert isinstance(kd.pool_for_plan(plan, device), kd.DeviceBlockPool)
    with pytest.raises(kvplan.InvalidArgument, match="worker: 1 is out of range"):
        kd.pool_for_plan(plan, device, worker=1)


@pytest.mark.parametrize(
    ("num_large", "slices", "message"),
    [
        (0, [1], "num_large_blocks: 0"),
        (4, [], "slices: has 0 groups"),
        (4, [1] * 65, "slices: has 65 groups"),
        (4, [2, 0], r"slices\[1\]: 0"),
        (4, [-3], r"slices\[0\]: -3"),
        (4, [1.5], r"slices\[0\]: .*1\.5"),
        (1 << 20, [2048], r"slices\[0\]: 2048"),
    ],
)
def test_bad_slices_are_named(device, num_large, slices, message):
    with pytest.raises(kvplan.InvalidArgument, match=message):
        kd.SlicedDeviceBlockPool(num_large, slices, device)


def test_bad_calls_of_a_sliced_pool_are_named(device):
    pool = kd.SlicedDeviceBlockPool(4, [4, 2], device)
    ids = torch.zeros(8, dtype=torch.int32, device=device)
    for call, message in (
        (lambda: pool.release([16], 0), "block_ids: 16 is out of range"),
        (lambda: pool.release([3], 0), "block_ids: 3 is a slice of the null block"),
        (lambda: pool.release([8], 1), "block_ids: 8 is out of range"),
        (lambda: pool.release([4], 2), "group: 2 is out of range"),
        (lambda: pool.touch([4], 0), "reference counts"),
        (lambda: pool.allocate(int32([1, 1], device), ids), "counts: has shape"),
        (lambda: pool.allocate(int32([[1, 1, 1]], device), ids), "counts: has shape"),
        (lambda: pool.allocate(int32([[1, 1]], device), ids[:0].long()), "ids: has dtype"),
        (
            lambda: pool.allocate(int32([[1, 1]], device), ids, workspace=ids.long()),
            "workspace: has shape",
        ),
    ):
        with pytest.raises(kvplan.InvalidArgument, match=message):
            call()
    assert pool.snapshot() == kd.SlicedPoolSnapshot(3, [12, 6], [[], []], kd.PoolError(0))
    pool.release([0, 4], 0)
    assert pool.snapshot().errors == kd.PoolError.BLOCK_NOT_IN_USE


def test_moved_blocks_take_contents_and_tables_along(device):
    plan = sliced_plan()
    caches = tensors.allocate_kv_cache(plan, device)
    buffer = tensors.kv_cache_buffer(caches)
    regions = [kd.BlockRegions.from_plan(plan, device, group=g) for g in range(2)]
    tables = kd.BlockTables.from_plan(plan, 3, device)
    k = [g.slices for g in plan.kv_cache_groups]
    sources = [[5 * k[0]], [7 * k[1] + k[1] - 1, 6 * k[1]]]
    targets = [[2 * k[0]], [3 * k[1], 3 * k[1] + 1]]
    for g in range(2):
        tables.tables[g][1, : len(sources[g])] = int32(sources[g], device)
        tables.num_entries[g, 1] = len(sources[g])
        tables.tables[g][2, 0] = sources[g][0]  # not in use
        for i, name in enumerate(plan.kv_cache_configs[0].kv_cache_groups[g].layer_names):
            for j, block in enumerate(sources[g]):
                caches[name][block] = 10 * g + i + j + 1
    kd.move_blocks(buffer, regions, tables, list(zip(sources, targets, strict=True)))
    for g in range(2):
        assert tables.tables[g][1, : len(targets[g])].tolist() == targets[g]
        assert tables.tables[g][2, 0] == sources[g][0]
        for i, name in enumerate(plan.kv_cache_configs[0].kv_cache_groups[g].layer_names):
            for j, block in enumerate(targets[g]):
                assert (caches[name][block] == 10 * g + i + j + 1).all()
    for call, message in (
        (lambda: kd.move_blocks(buffer, regions, tables, [([], [])]), "moves: are of 1 groups"),
        (lambda: kd.remap_blocks(tables, 2, [1], [2]), "group: 2 is out of range"),
        (lambda: kd.remap_blocks(tables, 0, [1, 2], [2]), "target_ids: has 1 ids"),
        (lambda: kd.remap_blocks(tables, 0, [0], [2]), "null block"),
        (lambda: kd.remap_blocks(tables, 0, [4, 4], [2, 3]), "named twice"),
    ):
        if device == "cpu" or ("null" not in message and "twice" not in message):
            with pytest.raises(kvplan.InvalidArgument, match=message):
                call()


def test_lists_are_checked_before_they_go_to_another_device(monkeypatch):
    """As for a CUDA device, which is not there: its tensors are on the meta device."""
    meta = torch.device("meta")
    tables = kd.BlockTables([TableGroup(16, 4)], 2, "cpu")
    regions = kd.BlockRegions([(0, 8, 8)], 9, 72, "cpu")
    tables.device = regions.device = meta
    buffer = torch.zeros(72, dtype=torch.int8, device=meta)

    def uploaded(ids, device):
        raise AssertionError("uploaded")

    for module in ("tensor_checks", "moves", "regions"):
        monkeypatch.setattr(f"kvplan.device.{module}.uploaded", uploaded)
    for call, message in (
        (lambda: kd.remap_blocks(tables, 0, [0], [7]), "the null block does not move"),
        (lambda: kd.remap_blocks(tables, 0, [3, 3], [7, 8]), "source_ids: a block is named twice"),
        (lambda: kd.zero_blocks(buffer, regions, [9]), "block_ids: 9 is out of range"),
        (lambda: kd.copy_blocks(buffer, buffer, regions, [1, 2], [3, 3]), "named twice"),
        (lambda: kd.copy_blocks(buffer, buffer, regions, [1, 2], [2, 3]), "another pair's source"),
        (lambda: kd.move_blocks(buffer, [regions], tables, [([1, 2], [2, 3])]), "pair's source"),
    ):
        with pytest.raises(kvplan.InvalidArgument, match=message):
            call()
    with pytest.raises(AssertionError, match="uploaded"):
        kd.remap_blocks(tables, 0, [3], [7])


@pytest.mark.parametrize(
    ("moves", "message"),
    [
        ([([1], [2]), ([12], [24])], r"moves\[1\]: target_ids: 24 is out of range"),
        ([([1], [2]), ([12], [13, 14])], r"moves\[1\]: target_ids: has 2 ids"),
        ([([1], [2]), ([0], [13])], r"moves\[1\]: source_ids, target_ids: the null block"),
        ([([1, 3], [2, 2]), ([], [])], r"moves\[0\]: target_ids: a block is named twice"),
        ([([1], [2]), ([8], [12])], "moves: block 8 of group 1 lies over block 2 of group 0"),
        ([([1], [2]), ([12], [7])], "moves: block 7 of group 1 lies over block 1 of group 0"),
        ([([1], [2]), 3], r"moves\[1\]: needs sources and targets, got 3"),
    ],
)
def test_bad_moves_move_nothing(moves, message):
    buffer = torch.arange(96, dtype=torch.int8)
    regions = [kd.BlockRegions([(0, 16 // k, 16 // k)], 6 * k, 96, "cpu") for k in (1, 4)]
    tables = kd.BlockTables([TableGroup(4, 2, slices=k) for k in (1, 4)], 2, "cpu")
    for table, ids in zip(tables.tables, ([1, 3], [12, 8]), strict=True):
        table[0] = int32(ids, "cpu")
    tables.num_entries[:, 0] = 2
    with pytest.raises(kvplan.InvalidArgument, match=message):
        kd.move_blocks(buffer, regions, tables, moves)
    assert buffer.tolist() == list(range(96))
    assert [t[0].tolist() for t in tables.tables] == [[1, 3], [12, 8]]
    kd.move_blocks(buffer, regions, tables, [([1, 4], [2, 4]), ([12], [21])])
    assert [t[0].tolist() for t in tables.tables] == [[2, 3], [21, 8]]


def test_what_the_host_pool_moved(device):
    """make_room of the host's pool, its moves on the device, and every block has its contents."""
    rng = random.Random(3)
    slices = [1, 4]
    host = kvplan.SlicedBlockPool(24, slices, enable_caching=False)
    block = 32
    buffer = torch.zeros(24 * block, dtype=torch.int8, device=device)
    regions = [
        kd.BlockRegions([(0, block // k, block // k)], 24 * k, 24 * block, device) for k in slices
    ]
    tables = kd.BlockTables([TableGroup(16, 64, slices=k) for k in slices], 2, device)
    small = host.get_new_blocks(80, 1).tolist()
    rng.shuffle(small)
    host.free_blocks(small[50:], 1)
    rows = small[:25], small[25:50]
    for row, ids in enumerate(rows):
        tables.tables[1][row, :25] = int32(ids, device)
        tables.num_entries[1, row] = 25
        for i, id in enumerate(ids):
            buffer[id * 8 : id * 8 + 8] = 50 * row + i + 1
    moves = host.make_room([8, 0])
    assert sum(len(sources) for sources, _ in moves) > 0
    kd.move_blocks(buffer, regions, tables, moves)
    host.allocate([8, 0])
    for row in range(2):
        ids = tables.tables[1][row, :25].tolist()
        assert all(host.ref_counts(ids, 1) == 1)
        for i, id in enumerate(ids):
            assert buffer[id * 8 : id * 8 + 8].tolist() == [50 * row + i + 1] * 8


# What is refused, by the tensor's name, with nothing changed.


def arguments(device):
    pool = kd.DeviceBlockPool(50, device)
    tables = kd.BlockTables(GROUPS[:2], 4, device)
    batch = Batch(device, 2, 32, 2)
    return (
        pool,
        tables,
        {
            "rows": int32([0, 1], device),
            "context_lens": int32([0, 0], device),
            "new_tokens": int32([1, 1], device),
            "slot_mapping": batch.slots,
            "status": batch.status,
            "query_start_loc": batch.starts,
            "positions": batch.positions,
        },
    )


@pytest.mark.parametrize(
    "name",
    [
        "rows",
        "context_lens",
        "new_tokens",
        "slot_mapping",
        "status",
        "query_start_loc",
        "positions",
    ],
)
def test_bad_tensors_are_named(device, name):
    pool, tables, good = arguments(device)
    tensor = good[name]
    bad = {
        "dtype": tensor.to(torch.float32),
        "on meta": tensor.to("meta"),
        "shape": tensor[None],
        "needs a torch tensor": tensor.tolist(),
        "strides": torch.stack([tensor, tensor], -1)[..., 0],
    }
    if CUDA:
        bad["is on"] = tensor.to("cpu" if device == "cuda" else "cuda")
    if name not in ("slot_mapping",):
        bad["has "] = tensor[:-1] if name != "rows" else tensor[:0]
    for message, value in bad.items():
        with pytest.raises(kvplan.InvalidArgument, match=f"{name}: .*{message}"):
            kd.append_slots(pool, tables, **good | {name: value})
    assert pool.snapshot().num_free_blocks == 49
    assert not tables.num_entries.any()
    kd.append_slots(pool, tables, **good)
    assert good["status"].tolist() == [0, 0]


def test_a_batch_of_one_may_be_a_column(device):
    pool, tables, args = arguments(device)
    column = int32([[2, 0, 5]] * 4, device)[:1]
    status = int32([-7], device)
    kd.append_slots(
        pool, tables, column[:, 0], column[:, 1], column[:, 2], args["slot_mapping"], status
    )
    assert status.tolist() == [RequestStatus.OK]
    assert args["slot_mapping"][0, :5].tolist() == [16, 17, 18, 19, 20]


def test_rows_out_of_range(device):
    pool, tables, good = arguments(device)
    for rows, message in (([0, 4], "4 is out of range"), ([-2, 0], "-2 is out"), ([1, 1], "twice")):
        if device == "cpu":
            with pytest.raises(kvplan.InvalidArgument, match=f"rows: .*{message}"):
                kd.append_slots(pool, tables, **good | {"rows": int32(rows, device)})
    if device == "cuda":
        kd.append_slots(pool, tables, **good | {"rows": int32([0, 4], device)})
        assert good["status"].tolist() == [RequestStatus.OK, RequestStatus.BAD_REQUEST]


def test_lengths_that_do_not_fit_are_flags(device):
    pool, tables, good = arguments(device)
    context = int32([0, 100_000], device)
    kd.append_slots(pool, tables, **good | {"context_lens": context})
    assert good["status"].tolist() == [RequestStatus.OK, RequestStatus.TABLE_TOO_NARROW]
    kd.append_slots(pool, tables, **good | {"new_tokens": int32([1, 1000], device)})
    assert good["status"].tolist() == [RequestStatus.OK, RequestStatus.TOO_MANY_TOKENS]
    kd.append_slots(pool, tables, **good | {"new_tokens": int32([-1, 2], device)})
    assert good["status"].tolist() == [RequestStatus.BAD_REQUEST, RequestStatus.OK]


def test_outputs_too_narrow_are_named(device):
    _, tables, good = arguments(device)
    rows = good["rows"]
    out = [torch.zeros(2, g.width, dtype=torch.int32, device=device) for g in tables.groups]
    with pytest.raises(kvplan.InvalidArgument, match=r"out\[1\]: has shape"):
        kd.gather_block_tables(tables, rows, [out[0], out[1][:, :-1]])
    with pytest.raises(kvplan.InvalidArgument, match="out: has 1 tables, needs 2"):
        kd.gather_block_tables(tables, rows, out[:1])
    pool = kd.DeviceBlockPool(9, device)
    with pytest.raises(kvplan.InvalidArgument, match="starts: has shape"):
        pool.allocate(rows, out[0][0], starts=torch.zeros(2, dtype=torch.int64, device=device))


def test_blocks_that_are_not_there_are_named(device):
    regions = kd.BlockRegions([(0, 16, 16)], 4, 64, device)
    buffer = torch.ones(64, dtype=torch.uint8, device=device)
    for ids in ([4], [-1], [1 << 40]):
        with pytest.raises(kvplan.InvalidArgument, match=r"block_ids: .* out of range"):
            kd.zero_blocks(buffer, regions, ids)
        with pytest.raises(kvplan.InvalidArgument, match=r"target_ids: .* out of range"):
            kd.copy_blocks(buffer, buffer, regions, [0], ids)
    with pytest.raises(kvplan.InvalidArgument, match="buffer: has shape"):
        kd.zero_blocks(buffer[:63], regions, [0])
    with pytest.raises(kvplan.InvalidArgument, match="buffer: has dtype"):
        kd.zero_blocks(buffer.to(torch.int16), regions, [0])
    with pytest.raises(kvplan.InvalidArgument, match="target_ids: has 1 ids, source_ids has 2"):
        kd.copy_blocks(buffer, buffer, regions, [0, 1], [2])
    with pytest.raises(kvplan.InvalidArgument, match="block_ids: needs block ids"):
        kd.zero_blocks(buffer, regions, ["a"])
    assert bool(buffer.all())
    if device == "cuda":
        errors = int32([0], device)
        kd.zero_blocks(buffer, regions, int32([99, 1], device), errors=errors)
        assert int(errors) == kd.PoolError.BAD_BLOCK_ID
        assert int(buffer.sum()) == 48
    else:
        with pytest.raises(kvplan.InvalidArgument, match="named twice"):
            kd.copy_blocks(buffer, buffer, regions, [0, 1], [2, 2])
        with pytest.raises(kvplan.InvalidArgument, match="another pair's source"):
            kd.copy_blocks(buffer, buffer, regions, [0, 1], [1, 2])


def test_other_things_than_pools_and_tables_are_named(device):
    pool, tables, tensors_ = arguments(device)
    host = kvplan.BlockPool(50)
    with pytest.raises(kvplan.InvalidArgument, match=r"pool: needs a DeviceBlockPool .*BlockPool"):
        kd.append_slots(host, tables, *list(tensors_.values())[:5])
    with pytest.raises(kvplan.InvalidArgument, match="tables: needs BlockTables, got DeviceBlock"):
        kd.release_requests(tables, pool, tensors_["rows"])
    with pytest.raises(kvplan.InvalidArgument, match=r"groups\[1\]: needs a TableGroup, got int"):
        kd.BlockTables([GROUPS[0], 16], 4, device)
    sliced = kd.SlicedDeviceBlockPool(4, [1, 2], device)
    for value in (-1, 2**31, 2**62, 1.5):
        with pytest.raises(kvplan.InvalidArgument, match=f"num_requests: .*{value}"):
            sliced.workspace_size(value)


def test_unknown_devices_are_refused():
    with pytest.raises(kvplan.Unsupported, match="meta"):
        kd.DeviceBlockPool(4, "meta")
    with pytest.raises(kvplan.InvalidArgument, match="num_blocks"):
        kd.DeviceBlockPool(0, "cpu")
    with pytest.raises(kvplan.InvalidArgument, match=r"groups\[0\]"):
        kd.BlockTables([TableGroup(16, 0)], 1, "cpu")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_num_reqs", 0),
        ("max_num_reqs", 2.5),
        ("max_num_reqs", True),
        ("max_batch", 0),
        ("max_batch", -1),
        ("cp_size", 0),
        ("cp_size", 2**31),
        ("cp_rank", 2),
        ("cp_rank", -1),
        ("cp_interleave", 0),
        ("cp_interleave", -4),
    ],
)
def test_tables_name_a_bad_number_before_any_step(device, name, value):
    numbers = {"max_num_reqs": 4, "cp_size": 2} | {name: value}
    with pytest.raises(kvplan.InvalidArgument, match=f"{name}: .*{value}"):
        kd.BlockTables(GROUPS[:2], device=device, **numbers)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("width", {"width": 0}),
        ("width", {"width": 2**40}),
        ("block_size", {"block_size": 2**31}),
        ("block_size", {"block_size": 16.5}),
        ("block_size", {"block_size": 6}),  # no multiple of cp_interleave=4
        ("extra_entries", {"extra_entries": -3}),
        ("window_kind", {"window_kind": 7}),
        ("window_tokens", {"window_kind": WindowKind.SLIDING, "window_tokens": -5}),
        ("window_tokens", {"window_kind": WindowKind.SLIDING, "window_tokens": 2**40}),
        ("window_tokens", {"window_kind": WindowKind.CHUNKED, "window_tokens": 0}),
    ],
)
def test_tables_name_a_bad_group_before_any_step(device, name, fields):
    group = TableGroup(**{"block_size": 16, "width": 4} | fields)
    with pytest.raises(kvplan.InvalidArgument, match=rf"groups\[1\]\.{name}: .*{fields[name]}"):
        kd.BlockTables([GROUPS[0], group], 4, device, cp_size=2, cp_interleave=4)


@pytest.mark.parametrize("ids", [[1.5], [True], [[1, 2]], 1, [float("nan")], [2**70]])
def test_lists_that_are_not_block_ids_are_named(device, ids):
    regions = kd.BlockRegions([(0, 16, 16)], 4, 64, device)
    buffer = torch.ones(64, dtype=torch.int8, device=device)
    pool = kd.DeviceBlockPool(4, device)
    for call in (
        lambda: pool.release(ids),
        lambda: kd.zero_blocks(buffer, regions, ids),
        lambda: kd.copy_blocks(buffer, buffer, regions, ids, [0]),
    ):
        with pytest.raises(kvplan.InvalidArgument, match=r"^(block|source)_ids: (has|needs) "):
            call()
    assert bool(buffer.all())
    assert pool.snapshot().errors == 0


@pytest.mark.parametrize("empty", [[], (), torch.tensor([], dtype=torch.int32)])
def test_no_block_ids(empty):
    pool = kd.DeviceBlockPool(4, "cpu")
    pool.release(empty)
    assert pool.snapshot().num_free_blocks == 3


@pytest.mark.parametrize(
    ("regions", "num_blocks", "buffer_bytes", "message"),
    [
        ([(0, 16, 16)], 0, 64, "num_blocks: 0"),
        ([(0, 16, 16)], -5, 64, "num_blocks: -5"),
        ([(0, 16, 16)], 2**31, 2**40, "num_blocks: 2147483648"),
        ([(0, 16, 16)], 4, -1, "buffer_bytes: -1"),
        ([(0, 16, 16), (0.5, 16, 16)], 4, 80, r"regions\[1\] offset: .*0\.5"),
        ([(0, 0, 16)], 4, 64, r"regions\[0\] block stride: 0"),
        ([(0, 16, 2**70)], 4, 64, r"regions\[0\] bytes: 1180591620717411303424"),
        ([(0, 16, 16), (0, 8, 16)], 4, 64, r"regions\[1\]: 16 bytes of a block reach"),
    ],
)
def test_bad_regions_are_named(device, regions, num_blocks, buffer_bytes, message):
    with pytest.raises(kvplan.InvalidArgument, match=message):
        kd.BlockRegions(regions, num_blocks, buffer_bytes, device)


def test_buffers_that_overlap_are_not_copied(device):
    regions = kd.BlockRegions([(0, 16, 16)], 4, 64, device)
    both = torch.arange(128, dtype=torch.int8, device=device)
    before = both.clone()
    for source, target in ((both[:64], both[16:80]), (both[16:80], both[:64])):
        with pytest.raises(kvplan.InvalidArgument, match="target: begins 16 bytes from source"):
            kd.copy_blocks(source, target, regions, [0], [1])
    assert torch.equal(both, before)
    kd.copy_blocks(both[:64], both[64:], regions, [0], [1])
    assert both[80:96].tolist() == before[:16].tolist()


@pytest.mark.parametrize("worker", [1, -1])
def test_workers_that_a_plan_has_not_are_named(device, worker):
    config = kvplan.PlanningConfig(max_model_len=64, kv_cache_layout="BLHNC")
    plan = kvplan.plan(config, [model_layers()], [1 << 18])
    for make in (
        lambda: kd.BlockTables.from_plan(plan, 4, device, worker=worker),
        lambda: kd.BlockRegions.from_plan(plan, device, worker=worker),
    ):
        with pytest.raises(kvplan.InvalidArgument, match=f"worker: {worker} is out of range"):
            make()


def test_a_missing_library_says_how_to_build_it(monkeypatch, tmp_path):
    operations.ops_for.cache_clear()
    monkeypatch.setenv("KVPLAN_CUDA_LIBRARY", str(tmp_path / "none.so"))
    with pytest.raises(kvplan.DeviceError, match="KVPLAN_CUDA=ON"):
        kd.DeviceBlockPool(4, "cuda")
    wrong = tmp_path / "wrong.so"
    wrong.write_bytes(b"no library")
    monkeypatch.setenv("KVPLAN_CUDA_LIBRARY", str(wrong))
    with pytest.raises(kvplan.DeviceError, match=r"wrong\.so"):
        kd.DeviceBlockPool(4, "cuda")
    operations.ops_for.cache_clear()


def test_the_built_library_opens_without_a_gpu():
    """No device is needed before the first launch, which then says what is missing."""
    if not kd.is_cuda_built():
        pytest.skip("kvplan was built without its CUDA library")
    operations.ops_for.cache_clear()
    ops = operations.ops_for("cuda")
    assert ops.name == "cuda"
    if CUDA:
        return
    pool = kd.DeviceBlockPool(4, "cpu")
    with pytest.raises(kvplan.DeviceError, match="reset_pool"):
        ops.reset_pool(pool._native, 0)
