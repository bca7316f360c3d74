"""The array face of the cache manager. What it decides is compared with vLLM's in tests/vllm033."""

import hashlib
import math
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import kvplan
from kvplan import specs


def hashes(count, seed=0):
    return [hashlib.sha256(bytes([seed, i])).digest() for i in range(count)]


@pytest.fixture
def manager():
    groups = [
        kvplan.CacheGroup("full_attention", 16),
        kvplan.CacheGroup("sliding_window", 16, window=32),
    ]
    return kvplan.CacheManager(groups, num_blocks=100, max_model_len=1000, enable_events=True)


def admit(manager, length):
    request = manager.add_request()
    manager.append_hashes(request, hashes(length // 16))
    hit = manager.find_prefix(request, length - 1)
    blocks = manager.allocate(
        request,
        length - hit.num_tokens,
        num_tokens=length,
        num_prompt_tokens=length,
        num_new_computed_tokens=hit.num_tokens,
        hit=hit,
    )
    return request, hit, blocks


def test_second_request_takes_over_the_prefix(manager):
    first, hit, blocks = admit(manager, 100)
    assert hit.num_tokens == 0
    assert [ids.tolist() for ids in blocks] == [[1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 11, 12, 13, 14]]
    second, hit, blocks = admit(manager, 100)
    assert hit.num_tokens == 96
    assert [ids.tolist() for ids in hit.blocks] == [[1, 2, 3, 4, 5, 6], [0, 0, 0, 0, 12, 13]]
    assert [ids.tolist() for ids in manager.block_ids(second)] == [
        [1, 2, 3, 4, 5, 6, 15],
        [0, 0, 0, 0, 12, 13, 16],
    ]
    assert all(ids.dtype == np.int32 for ids in blocks)
    assert [event.kind for event in manager.take_events()] == ["stored", "stored"]
    manager.free(first)
    assert not manager.reset_prefix_cache()
    manager.remove_request(second)
    assert manager.reset_prefix_cache()
    assert manager.usage == 0


def test_a_step_of_many_requests(manager):
    first, _, _ = admit(manager, 96)
    second, _, _ = admit(manager, 90)
    appended = np.zeros((4, 4), np.int32)
    assert manager.schedule([first, second], [96, 90], appended=appended) == (2, 2, "done")
    # Row, group, position, block: one more block in each group of the first request.
    assert appended[:2, :3].tolist() == [[0, 0, 6], [0, 1, 6]]
    assert manager.quiet_until(first) == 112
    assert manager.schedule([first], [97], appended=appended[:0]) == (1, 0, "done")
    assert manager.schedule([first], [112], appended=appended[:0]) == (0, 0, "no_room")


def test_no_room_is_no_error():
    manager = kvplan.CacheManager(
        [kvplan.CacheGroup("full_attention", 16)], num_blocks=4, max_model_len=1000
    )
    request = manager.add_request()
    assert manager.allocate(request, 49, num_tokens=49, num_prompt_tokens=49) is None
    assert manager.allocate(request, 48, num_tokens=49, num_prompt_tokens=49) is not None


def state(manager, requests):
    """All that a refused call must leave as it was."""
    pool = manager.pool
    return [
        [[ids.tolist() for ids in manager.block_ids(request)] for request in requests],
        [(manager.num_hashes(request), manager.quiet_until(request)) for request in requests],
        pool.free_block_ids().tolist(),
        pool.ref_counts(np.arange(len(pool))).tolist(),
        (manager.num_requests, pool.num_cached_hashes),
    ]


def refuses(manager, handles, call, /, *args, **kwargs):
    before = state(manager, handles)
    with pytest.raises((TypeError, ValueError)) as refused:
        call(*args, **kwargs)
    assert "incompatible function arguments" not in str(refused.value)
    assert state(manager, handles) == before
    manager.check_invariants()
    return str(refused.value)


TOKENS = {"num_tokens": 100, "num_prompt_tokens": 100, "num_computed_tokens": 99}
#: Calls with numbers that they take, of a request with 100 tokens.
CALLS = {
    "find_prefix": {"max_tokens": 99},
    "find_prefix_for_connector": {"max_tokens": 99},
    "hold_prefix": {"max_tokens": 99},
    "release_hold": {},
    "retain_prefix": {"max_tokens": 99},
    "truncate_hashes": {"count": 6},
    "num_hashes": {},
    "allocate": {
        "num_new_tokens": 1,
        **TOKENS,
        "num_in_flight_tokens": 0,
        "shared_prefix_boundary": 0,
        "num_new_computed_tokens": 0,
        "num_lookahead_tokens": 0,
        "num_external_computed_tokens": 0,
        "num_encoder_tokens": 0,
        "reserved_blocks": 0,
    },
    "commit": {"num_tokens_to_cache": 90, **TOKENS},
    "quiet_until": {},
    "num_blocks_to_allocate": {
        "num_tokens": 101,
        "num_tokens_main_model": 101,
        "total_computed_tokens": 100,
        "num_local_computed_tokens": 100,
        "num_encoder_tokens": 0,
        "prefill_end": 0,
    },
    "fork": {"num_computed_tokens": 90},
    "revert": {"num_computed_tokens": 90},
    "remove_skipped_blocks": {"num_processed_tokens": 0, "num_prompt_tokens": 0},
    "free": {},
    "pop_blocks_for_free": {},
    "remove_request": {},
    "record_blocks_for_zeroing": {"start_token": 0},
    "finalize_partial_tails": {"num_computed_tokens": 0, "num_in_flight_tokens": 0},
    "block_ids": {},
    "num_blocks_for_computed_tokens": {"group": 0, "num_computed_tokens": 0},
    "estimate_cached_tokens": {},
    "num_common_prefix_blocks": {"group": 0},
}
BAD = [-1, 2**31, 2**62, 2**64, 2**70, math.nan, 1.5, "1", True, [1], b"1"]


@pytest.mark.parametrize("name", CALLS)
def test_bad_numbers_change_nothing(manager, name):
    request, _, _ = admit(manager, 100)
    call, arguments = getattr(manager, name), {"request": request, **CALLS[name]}
    for argument in arguments:
        for bad in BAD:
            text = refuses(manager, [request], call, **{**arguments, argument: bad})
            assert str(bad) in text or repr(bad) in text, text
            named = argument in text or argument in ("request", "group", "num_tokens_to_cache")
            assert named, text
    for unknown in (request + 1, None):
        refuses(manager, [request], call, **{**arguments, "request": unknown})
    if name != "hold_prefix":  # the request has blocks
        call(**arguments)


STEP = {"requests": [0, 1], "num_computed_tokens": [100, 64]}


@pytest.mark.parametrize(
    "wrong",
    [
        {"requests": [0, 0]},
        {"requests": [1, 0, 1], "num_computed_tokens": [64, 100, 64]},
        {"requests": [0, 2]},
        {"requests": [0, -1]},
        {"requests": [0, 2**40]},
        {"requests": [0, 2**70]},
        {"requests": ["a", 1]},
        {"requests": None},
        {"num_computed_tokens": [100]},
        {"num_computed_tokens": [100, -1]},
        {"num_computed_tokens": [100, 2**62]},
        {"num_computed_tokens": [2**63 - 1] * 2},
        {"num_computed_tokens": [100, 2**70]},
        {"num_computed_tokens": [100, math.nan]},
        {"num_computed_tokens": [[100, 64]]},
        {"num_computed_tokens": [100, 1000]},
        {"num_new_tokens": [1, 0]},
        {"num_new_tokens": [1, -1]},
        {"num_new_tokens": [1, 2**62]},
        {"num_tokens": [101, -1]},
        {"num_in_flight_tokens": [0, -1]},
        {"num_lookahead_tokens": -1},
        {"num_lookahead_tokens": 2**62},
        {"num_lookahead_tokens": 2**70},
        {"appended": np.zeros(4, np.int32)},
        {"appended": np.zeros((4, 3), np.int32)},
        {"appended": None},
    ],
)
def test_a_bad_row_stops_a_step_before_it_begins(manager, wrong):
    requests = [admit(manager, 100)[0], admit(manager, 64)[0]]
    step = {**STEP, "appended": np.full((8, 4), -9, np.int32), **wrong}
    refuses(manager, requests, manager.schedule, **step)
    refuses(manager, requests, manager.schedule, **step)
    appended = np.zeros((8, 4), np.int32)
    # The second one needs a block in each group; so does the first, later.
    assert manager.schedule(**STEP, appended=appended) == (2, 2, "done")
    assert manager.schedule([1, 0], [65, 112], appended=appended) == (2, 2, "done")


@pytest.mark.parametrize(
    "call",
    [
        lambda m, r: m.append_hashes(r, [b"short"]),
        lambda m, r: m.append_hashes(r, [bytes(16), bytes(16)]),
        lambda m, r: m.append_hashes(r, [bytes(64)]),
        lambda m, r: m.append_hashes(r, [bytes(32), b""]),
        lambda m, r: m.append_hashes(r, ["h"]),
        lambda m, r: m.append_hashes(r, None),
        lambda m, r: m.truncate_hashes(r, 99),
        lambda m, r: m.commit(r, 900, num_tokens=900, num_prompt_tokens=100),
        lambda m, r: m.allocate(r, 0, num_tokens=100, num_prompt_tokens=100),
        lambda m, r: m.allocate(
            r, 1, num_tokens=101, num_prompt_tokens=100, skip_zeroing_groups=[-1]
        ),
        lambda m, r: m.allocate(
            r, 1, num_tokens=101, num_prompt_tokens=100, skip_zeroing_groups=[2**70]
        ),
        lambda m, r: m.evict_blocks([100]),
        lambda m, r: m.evict_blocks([-1]),
        lambda m, r: m.block_size(2),
        lambda m, r: m.block_size(-1),
        lambda m, r: m.num_blocks_for_computed_tokens(r, 2, 1),
        lambda m, r: m.num_common_prefix_blocks(r, 2**40),
        lambda m, r: m.record_prefix_cache_stats(-1, 0),
        lambda m, r: m.record_prefix_cache_stats(2**62, 0),
        lambda m, r: m.record_prefix_cache_stats(1, 2),
        lambda m, r: m.truncate_prefix(m.find_prefix(r, 99), 2**62),
        lambda m, r: m.truncate_prefix(m.find_prefix(r, 99), -16),
        lambda m, r: m.truncate_prefix(m.find_prefix(r, 64), 96),
    ],
)
def test_bad_calls_change_nothing(manager, call):
    request, _, _ = admit(manager, 100)
    manager.append_hashes(request, hashes(60, 1))
    refuses(manager, [request], call, manager, request)


@pytest.mark.parametrize("value", [-1, 0, 2**31, 2**62, 2**70, math.nan, "1", None])
def test_bad_options_are_refused(value):
    options = {"num_blocks": 10, "max_model_len": 100}
    groups = [kvplan.CacheGroup("sliding_window", 16, window=32)]
    allowed = {None: {"scheduler_block_size", "hash_block_size", "max_in_flight_tokens"}}
    allowed[None] |= {"retention_interval"}
    allowed[0] = {"max_in_flight_tokens", "retention_interval"}
    allowed[0] |= {"num_hash_lookahead_tokens", "num_prefill_lookahead"}
    for name in (
        "num_blocks", "max_model_len", "scheduler_block_size", "hash_block_size",
        "max_in_flight_tokens", "retention_interval", "num_hash_lookahead_tokens",
        "num_prefill_lookahead", "dcp_world_size", "pcp_world_size", "hash_bytes",
    ):  # fmt: skip
        if name in allowed.get(value, ()):
            kvplan.CacheManager(groups, **{**options, name: value})
            continue
        with pytest.raises((TypeError, ValueError)) as refused:
            kvplan.CacheManager(groups, **{**options, name: value})
        assert "incompatible function arguments" not in str(refused.value), name
        assert name in str(refused.value)
    for name in ("block_size", "window", "extra_retained_tokens"):
        if (name, value) == ("extra_retained_tokens", 0):
            continue
        group = {"kind": "sliding_window", "block_size": 16, "window": 32, name: value}
        with pytest.raises((TypeError, ValueError), match=name):
            kvplan.CacheManager([kvplan.CacheGroup(**group)], **options)
    with pytest.raises((TypeError, ValueError)):
        kvplan.CacheManager([], **options)
    for watermark in (-0.1, 1.5, math.nan):
        with pytest.raises(ValueError, match="watermark"):
            kvplan.CacheManager(groups, **options, watermark=watermark)


@pytest.mark.parametrize("kind", ["attention", "cross"])
def test_unknown_kinds_are_refused(kind):
    with pytest.raises(ValueError, match=kind):
        kvplan.CacheGroup(kind, 16)


def test_groups_of_specs():
    heads = {"num_kv_heads": 1, "head_size": 64, "dtype": "bfloat16"}
    groups = [
        kvplan.CacheGroup.from_spec(specs.FullAttentionSpec(block_size=16, **heads)),
        kvplan.CacheGroup.from_spec(
            specs.SlidingWindowSpec(block_size=16, sliding_window=32, **heads)
        ),
    ]
    manager = kvplan.CacheManager(groups, num_blocks=100, max_model_len=1000)
    admit(manager, 100)
    _, hit, _ = admit(manager, 100)
    assert [ids.tolist() for ids in hit.blocks][1] == [0, 0, 0, 0, 12, 13]


def test_the_manager_of_a_plan():
    heads = {"num_kv_heads": 1, "head_size": 64, "dtype": "bfloat16"}
    full = specs.FullAttentionSpec(block_size=16, **heads)
    window = specs.SlidingWindowSpec(block_size=16, sliding_window=32, **heads)
    layers = {"0": full, "1": window}
    config = kvplan.PlanningConfig(
        max_model_len=1000,
        use_eagle=True,
        use_eagle_block_drop=True,
        num_prefill_lookahead_tokens=1,
    )
    plan = kvplan.plan(config, [layers], [1 << 20])
    manager = kvplan.CacheManager.from_plan(plan)
    assert manager.num_groups == 2
    assert manager.hash_block_size == 16
    assert manager.pool.num_blocks == plan.num_blocks
    assert manager.num_hash_lookahead_tokens == 1
    plain = kvplan.CacheManager.from_plan(plan, lookahead_hashes=False, watermark=0.5)
    assert plain.num_hash_lookahead_tokens == 0
    assert not kvplan.CacheManager.from_plan(plan, enable_caching=False).pool.enable_caching
    with pytest.raises(TypeError, match=r"kvplan\.Plan, not dict"):
        kvplan.CacheManager.from_plan({})
    with pytest.raises(ValueError, match="no KV cache groups"):
        kvplan.CacheManager.from_plan(kvplan.plan(config, [{}], [1 << 20]))


def test_the_manager_of_a_plan_with_slices():
    heads = {"head_size": 64, "dtype": "bfloat16"}
    full = specs.FullAttentionSpec(block_size=16, num_kv_heads=8, **heads)
    window = specs.SlidingWindowSpec(block_size=16, num_kv_heads=1, sliding_window=32, **heads)
    config = kvplan.PlanningConfig(max_model_len=1000, grouping="sliced", kv_cache_layout="BLHNC")
    plan = kvplan.plan(config, [{"0": full, "1": window}], [8 << 20])
    slices = [group.slices for group in plan.kv_cache_groups]
    assert max(slices) > 1
    manager = kvplan.CacheManager.from_plan(plan)
    assert manager.is_sliced
    assert manager.num_blocks == plan.num_blocks == manager.sliced_pool.num_large_blocks
    with pytest.raises(kvplan.Unsupported, match="sliced_pool"):
        _ = manager.pool
    request, _, blocks = admit(manager, 100)
    assert [len(ids) for ids in blocks] == [7, 7]
    assert [manager.sliced_pool.num_used_blocks(g) for g in range(2)] == [7, 7]
    assert all(ids[0] >= k for ids, k in zip(blocks, slices, strict=True)), "none of the null block"
    used = manager.num_blocks - 1 - manager.num_free_blocks
    assert used == sum(-(-7 // k) for k in slices)
    manager.remove_request(request)
    _, hit, _ = admit(manager, 100)
    assert hit.num_tokens == 96
    with pytest.raises(kvplan.Unsupported, match="slices"):
        manager.evict_blocks([int(blocks[0][0])])
    manager.evict_blocks([int(blocks[0][0])], group=0)
    assert not manager.starts_again(0)


def test_counters_are_read_from_another_thread(manager):
    with ThreadPoolExecutor(1) as other:
        before = other.submit(manager.counters).result()
        admit(manager, 100)
        manager.record_prefix_cache_stats(99, 64)
        after = other.submit(manager.counters).result()
    assert before["num_free_blocks"] == 99
    assert before["num_requests"] == before["num_cached_hashes"] == 0
    assert (after["num_requests"], after["num_free_blocks"]) == (1, 99 - 14)
    assert (after["num_queried_tokens"], after["num_hit_tokens"]) == (99, 64)
    assert after["num_cached_hashes"] == manager.pool.num_cached_hashes


def test_the_eviction_hook_sees_blocks_with_their_hashes(manager):
    request, _, _ = admit(manager, 100)
    manager.free(request)
    seen = []

    def on_eviction(ids):
        assert ids.dtype == np.int32
        seen.extend((i, manager.pool.block_hash(i)[0]) for i in ids.tolist())

    manager.pool.set_eviction_hook(on_eviction)
    manager.pool.get_new_blocks(99 - 12)
    assert seen == []
    manager.pool.get_new_blocks(2)
    # The end of the first group's prefix goes first.
    assert seen == [(6, hashes(6)[5]), (5, hashes(6)[4])]

    def refuse(ids):
        raise RuntimeError("not yet")

    manager.pool.set_eviction_hook(refuse)
    free = manager.pool.free_block_ids().tolist()
    with pytest.raises(RuntimeError, match="not yet"):
        manager.pool.get_new_blocks(1)
    assert manager.pool.free_block_ids().tolist() == free
    manager.pool.set_eviction_hook(None)
    assert len(manager.pool.get_new_blocks(10)) == 10
    with pytest.raises(TypeError):
        manager.pool.set_eviction_hook(1)


def test_the_prefix_cache_survives_a_restart(manager):
    request, _, _ = admit(manager, 100)
    manager.free(request)
    saved = pickle.loads(pickle.dumps(manager.pool.save_prefix_cache()))
    groups = [
        kvplan.CacheGroup("full_attention", 16),
        kvplan.CacheGroup("sliding_window", 16, window=32),
    ]
    other = kvplan.CacheManager(groups, num_blocks=100, max_model_len=1000)
    for block, tokens in ((100, 16), (-1, 16), (2**70, 16), (99, 0), (99, 2**31)):
        with pytest.raises(ValueError):
            other.pool.restore_prefix_cache([*saved, (block, 0, tokens, bytes(32))])
        assert other.pool.num_cached_hashes == 0
    other.pool.restore_prefix_cache(saved)
    assert other.pool.save_prefix_cache() == saved
    _, hit, _ = admit(other, 100)
    assert hit.num_tokens == 96
    assert [ids.tolist() for ids in hit.blocks] == [[1, 2, 3, 4, 5, 6], [0, 0, 0, 0, 12, 13]]
    with pytest.raises(ValueError):
        other.pool.restore_prefix_cache(saved)


def test_held_prefixes_forks_and_reverted_steps(manager):
    request, _, _ = admit(manager, 100)
    child = manager.fork(request, 100)
    copies = manager.take_copies()
    assert copies == [(7, 15, 0), (14, 16, 1)]
    manager.free_copies(copies)
    assert [ids[-1] for ids in manager.block_ids(child)] == [15, 16]
    manager.remove_request(child)
    more = {"num_tokens": 120, "num_prompt_tokens": 100, "num_computed_tokens": 100}
    manager.allocate(request, 20, **more)
    assert len(manager.block_ids(request)[0]) == 8
    manager.revert(request, 100)
    assert len(manager.block_ids(request)[0]) == 7
    manager.free(request)
    assert manager.hold_prefix(request, 99).num_tokens == 96
    assert manager.pool.num_free_blocks == 99 - 8
    manager.release_hold(request)
    assert manager.pool.num_free_blocks == 99
    kept = manager.retain_prefix(request, 99, priority=2, until=7)
    manager.truncate_hashes(request, 0)
    assert manager.retain_prefix(request, 99) == 0
    assert manager.retained_prefixes() == [
        {"id": kept, "num_tokens": 96, "priority": 2, "until": 7, "pinned": False}
    ]
    assert manager.pool.num_free_blocks == 99 - 8
    assert (manager.expire_retained(6), manager.expire_retained(7)) == (0, 1)
    with pytest.raises(ValueError, match=f"release_retained: no prefix is retained as {kept}"):
        manager.release_retained(kept)
    everything = manager.pool.get_new_blocks(manager.pool.num_free_blocks)
    manager.pool.free_blocks(everything)
    request, _, _ = admit(manager, 100)
    others = manager.pool.get_new_blocks(manager.pool.num_free_blocks)
    assert manager.fork(request, 100) is None
    manager.pool.free_blocks(others)


@pytest.mark.parametrize(
    "appended",
    [
        np.full((8, 8), -9, np.int32)[:, ::2],
        np.asfortranarray(np.full((8, 4), -9, np.int32)),
        np.full((8, 4), -9, np.int64),
        [[-9] * 4] * 8,
    ],
)
def test_ids_are_never_written_into_a_copy(manager, appended):
    request, _, _ = admit(manager, 64)
    with pytest.raises(TypeError):
        manager.schedule([request], [64], appended=appended)
    ids = np.full((8, 4), -9, np.int32)
    assert manager.schedule([request], [64], appended=ids)[:2] == (1, 2)
    assert (ids[:2] >= 0).all()
    assert (ids[2:] == -9).all()


@pytest.mark.parametrize(
    ("requests", "computed"),
    [
        (np.array([0.7]), [64]),
        (np.array([2**64 - 1], np.uint64), [64]),
        ([0], np.array([64.9])),
        (np.array([2**32]), [64]),
    ],
)
def test_handles_and_counts_are_not_rounded(manager, requests, computed):
    admit(manager, 64)
    ids = np.full((8, 4), -9, np.int32)
    with pytest.raises((TypeError, ValueError)):
        manager.schedule(requests, computed, appended=ids)
    assert (ids == -9).all()


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.int16])
def test_handles_of_any_width(manager, dtype):
    requests = np.array([admit(manager, 64)[0], admit(manager, 80)[0]], dtype)
    ids = np.full((8, 4), -9, np.int32)
    assert manager.schedule(requests, [64, 80], appended=ids) == (2, 4, "done")
