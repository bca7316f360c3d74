"""kvplan's KV cache manager as vLLM's callers see it, and when it leaves the place to vLLM's."""

import dataclasses
import gc
import random
import weakref

import pytest

pytest.importorskip("vllm.v1.core.sched.scheduler")

import torch
import vllm.v1.kv_cache_interface as interface
from vllm.sampling_params import SamplingParams
from vllm.utils import hashing
from vllm.v1.core import block_pool as vllm_block_pool
from vllm.v1.core import kv_cache_manager, kv_cache_utils, single_type_kv_cache_manager
from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry
from vllm.v1.request import Request, RequestStatus

import kvplan.vllm
from kvplan import _core
from kvplan.vllm import block_pool, cache_manager, conversion, report
from kvplan.vllm.detect import detect
from kvplan.vllm.patch import Applied, stock

VLLM = detect()
BLOCK = 4
ATTENTION = {"block_size": BLOCK, "num_kv_heads": 1, "head_size": 8, "dtype": torch.float16}


@pytest.fixture(scope="module")
def to_native():
    description = conversion.describe(VLLM.interface, before_033=VLLM.before_033)
    return _core.VllmPlanner(description).to_native


@pytest.fixture(autouse=True)
def pool(nothing_installed, monkeypatch):
    monkeypatch.delenv("KVPLAN_BLOCK_POOL")
    applied = Applied(block_pool.patches(VLLM))
    yield applied
    applied.undo()


def config(*specs, num_blocks=50):
    specs = specs or (interface.FullAttentionSpec(**ATTENTION),)
    groups = [interface.KVCacheGroupSpec([f"layer {i}"], spec) for i, spec in enumerate(specs)]
    return interface.KVCacheConfig(num_blocks, [], groups)


WINDOW = interface.SlidingWindowSpec(**ATTENTION, sliding_window=9)
TWO_GROUPS = (interface.FullAttentionSpec(**ATTENTION), WINDOW)


def arguments(kv_cache_config=None, **other):
    return {
        "kv_cache_config": kv_cache_config or config(),
        "max_model_len": 100,
        "scheduler_block_size": BLOCK,
        "hash_block_size": BLOCK,
        **other,
    }


def request(name, num_tokens, hash_function=hashing.sha256, first=0):
    kv_cache_utils.init_none_hash(hash_function)
    hasher = kv_cache_utils.get_request_block_hasher(BLOCK, hash_function)
    tokens = list(range(first, first + num_tokens))
    return Request(name, tokens, SamplingParams(max_tokens=9), None, block_hasher=hasher)


def ids(blocks):
    return [[block.block_id for block in group] for group in blocks.blocks]


# Results.


def test_blocks_are_made_when_asked_for(to_native):
    manager = cache_manager.KVCacheManager(to_native, VLLM, **arguments(config(*TWO_GROUPS)))
    blocks = manager.allocate_slots(request("a", 6), 6)
    assert isinstance(blocks, kv_cache_manager.KVCacheBlocks)
    assert blocks.get_block_ids() == ([1, 2], [3, 4])
    assert blocks.get_block_ids(allow_none=True, group_ids=[1]) == ([3, 4],)
    assert blocks.get_block_ids(group_ids=(1, 0)) == ([3, 4], [1, 2])
    assert ids(blocks) == [[1, 2], [3, 4]]
    assert blocks.blocks is blocks.blocks
    assert blocks.blocks[0][0] is manager.block_pool.blocks[1]
    assert [block.ref_cnt for block in blocks.blocks[1]] == [1, 1]
    assert blocks.get_unhashed_block_ids_all_groups() == [[2], [4]]
    # From here on, the lists count.
    blocks.blocks[0].pop()
    assert blocks.get_block_ids() == ([1], [3, 4])
    both = blocks + manager.get_blocks("a")
    assert both.get_block_ids() == ([1, 1, 2], [3, 4, 3, 4])
    assert blocks.new_empty().get_block_ids() == ([], [])
    for bad in ((False, None), (1, 2, 3)):
        with pytest.raises(TypeError):
            blocks.get_block_ids(*bad)
    with pytest.raises(IndexError):
        blocks.get_block_ids(group_ids=[2])


def test_shared_empty_result(to_native):
    manager = cache_manager.KVCacheManager(to_native, VLLM, **arguments(config(*TWO_GROUPS)))
    empty = manager.empty_kv_cache_blocks
    assert empty.blocks == ((), ())
    assert empty.get_block_ids() == ([], [])
    assert empty.get_block_ids(allow_none=True) is None
    assert empty.get_block_ids(allow_none=True, group_ids=[0]) is None
    a = request("a", 6)
    assert manager.get_blocks("unknown") is empty
    assert manager.get_computed_blocks(a) == (empty, 0, 0)
    manager.allocate_slots(a, 6)
    a.num_computed_tokens = 6
    for _ in range(2):
        assert manager.allocate_slots(a, 1, num_lookahead_tokens=0) is empty
    assert manager.num_quiet == 2
    # The block becomes full: looked at, and still nothing new.
    assert manager.allocate_slots(a, 1, num_lookahead_tokens=1) is empty
    assert manager.allocate_slots(a, 2) is empty
    assert manager.num_quiet == 2
    with pytest.raises(ValueError, match="num_new_tokens"):
        manager.allocate_slots(a, 0)


def test_block_tables_and_coordinator(to_native):
    manager = cache_manager.KVCacheManager(to_native, VLLM, **arguments(config(*TWO_GROUPS)))
    a = request("a", 6)
    manager.allocate_slots(a, 6)
    first, second = manager.coordinator.single_type_managers
    assert [block.block_id for block in first.req_to_blocks["a"]] == [1, 2]
    assert [block.block_id for block in second.req_to_blocks.get("a")] == [3, 4]
    assert "b" not in first.req_to_blocks
    assert first.req_to_blocks["b"] == []
    assert list(first.req_to_blocks) == ["a"]
    needed = {
        "num_tokens": 12,
        "new_computed_blocks": manager.empty_kv_cache_blocks.blocks,
        "num_encoder_tokens": 0,
        "total_computed_tokens": 6,
        "num_local_computed_tokens": 6,
        "num_tokens_main_model": 12,
    }
    assert manager.coordinator.get_num_blocks_to_allocate("a", **needed) == 2
    assert manager.coordinator.get_num_blocks_to_allocate("b", **needed) > 2
    with pytest.raises(RuntimeError, match=r"coordinator\.free"):
        manager.coordinator.free("a")
    manager.free(a)
    assert manager.usage == 0.0
    hit = manager.coordinator.find_longest_cache_hit(a.block_hashes, 5)
    assert ids(kv_cache_manager.KVCacheBlocks(hit[0]))[0] == [1]


def test_what_white_box_users_read(to_native):
    manager = cache_manager.KVCacheManager(to_native, VLLM, **arguments())
    vllms = kv_cache_manager.KVCacheManager(**arguments())
    a, b = request("a", 9), request("b", 9)
    for one in (manager, vllms):
        for each in (a, b):
            one.allocate_slots(each, 9)
        one.free(b)
    seen = []
    for one in (manager, vllms):
        pool = one.block_pool
        cached = {
            key: sorted(found) if isinstance(found, dict) else found.block_id
            for key, found in pool.cached_block_hash_to_block._cache.items()
        }
        head = pool.free_block_queue.fake_free_list_head
        first = head.next_free_block
        seen.append((cached, head.block_id, first.block_id, first.next_free_block.block_id))
    assert seen[0] == seen[1]
    assert len(seen[0][0]) == 2


def test_events_wait_natively(to_native):
    manager = cache_manager.KVCacheManager(
        to_native, VLLM, **arguments(enable_kv_cache_events=True)
    )
    vllms = kv_cache_manager.KVCacheManager(**arguments(enable_kv_cache_events=True))
    a = request("a", 9)
    for one in (manager, vllms):
        one.allocate_slots(a, 9)
    pool = manager.block_pool
    assert pool._kv_event_queue == []
    assert pool.kv_event_queue == vllms.block_pool.kv_event_queue != []
    for one in (manager, vllms):
        one.evict_blocks({1})
        one.free(a)
        assert one.reset_prefix_cache()
        one.allocate_slots(a, 8)
    held = weakref.ref(a)
    assert [type(event).__name__ for event in pool.kv_event_queue] == [
        "BlockStored",
        "BlockRemoved",
        "AllBlocksCleared",
        "BlockStored",
    ]
    assert manager.take_events() == vllms.take_events()
    assert manager.take_events() == []
    # What nobody has taken yet holds the request whose tokens it is about.
    for one in (manager, vllms):
        one.free(a)
        assert one.reset_prefix_cache()
        one.take_events()
        one.allocate_slots(a, 4)
        one.free(a)
    del a, vllms
    gc.collect()
    assert held() is not None
    (event,) = manager.take_events()
    assert event.token_ids == list(range(4))
    gc.collect()
    assert held() is None


# Requests.


def test_requests_are_kept_no_longer_than_their_blocks(to_native):
    manager = cache_manager.KVCacheManager(to_native, VLLM, **arguments())
    looked_up = [request(str(i), 9, first=i) for i in range(5)]
    for each in looked_up:
        manager.get_computed_blocks(each)
    manager.check_invariants()
    gone = [weakref.ref(each) for each in looked_up]
    del looked_up, each
    gc.collect()
    assert [ref() is None for ref in gone] == [True] * 4 + [False]

    a = request("a", 9)
    assert manager.allocate_slots(a, 9) is not None
    held = weakref.ref(a)
    del a
    assert held() is not None
    manager.free(held())
    manager.free(request("a", 9))
    gc.collect()
    assert held() is None
    manager.check_invariants()


def test_another_object_of_the_same_id(to_native):
    manager = cache_manager.KVCacheManager(to_native, VLLM, **arguments())
    manager.allocate_slots(request("a", 9), 9)
    again = request("a", 13)
    again.num_computed_tokens = 9
    assert manager.allocate_slots(again, 4).get_block_ids() == ([4],)
    manager.free(request("a", 1))
    assert manager.usage == 0.0
    assert manager.get_computed_blocks(request("b", 13))[1] == 12


def test_hashes_that_start_anew(to_native):
    manager = cache_manager.KVCacheManager(to_native, VLLM, **arguments())
    a = request("a", 8)
    manager.allocate_slots(a, 8)
    # A streamed input replaced what followed the fourth token.
    del a._all_token_ids[4:], a.block_hashes[1:]
    a.num_computed_tokens = 4
    a.append_output_token_ids([90, 91, 92, 93, 94])
    manager.allocate_slots(a, 5)
    manager.free(a)
    other = request("b", 8)
    other._all_token_ids[4:] = [90, 91, 92, 93, 94]
    other.block_hashes[1:] = []
    other.update_block_hashes()
    assert manager.get_computed_blocks(request("c", 9))[1] == 8


@pytest.mark.parametrize("name", ["sha256", "sha256_cbor", "xxhash"])
def test_hashes_of_any_size(to_native, name):
    if name == "xxhash":
        pytest.importorskip("xxhash")
    function = hashing.get_hash_fn_by_name(name)
    manager = cache_manager.KVCacheManager(to_native, VLLM, **arguments())
    a = request("a", 9, function)
    manager.allocate_slots(a, 9)
    manager.free(a)
    assert manager.get_computed_blocks(request("b", 9, function))[1] == 8
    key = kv_cache_utils.make_block_hash_with_group_id(a.block_hashes[0], 0)
    assert manager.block_pool.blocks[1].block_hash == key


def test_bad_calls_change_nothing(to_native):
    manager = cache_manager.KVCacheManager(to_native, VLLM, **arguments())
    a = request("a", 9)
    manager.allocate_slots(a, 9)
    tables, free = manager.get_block_ids("a"), manager.block_pool.get_num_free_blocks()
    for call in (
        lambda: manager.allocate_slots(),
        lambda: manager.allocate_slots(a),
        lambda: manager.allocate_slots(a, "3"),
        lambda: manager.allocate_slots(a, -1),
        lambda: manager.allocate_slots(a, 1, num_lookahead_tokens=-1),
        lambda: manager.allocate_slots(a, 1, unknown=3),
        lambda: manager.allocate_slots(object(), 1),
        lambda: manager.allocate_slots(a, 2**70),
        lambda: manager.allocate_slots(a, 1, new_computed_blocks=3),
        lambda: manager.cache_blocks(a, "3"),
        lambda: manager.get_computed_blocks(None),
        lambda: manager.free(None),
        lambda: manager.remove_skipped_blocks("a"),
        lambda: manager._start(),
    ):
        with pytest.raises((TypeError, ValueError, AttributeError, OverflowError)):
            call()
    assert manager.get_block_ids("a") == tables
    assert manager.block_pool.get_num_free_blocks() == free
    manager.check_invariants()
    blank = cache_manager.KVCacheManager.__new__(cache_manager.KVCacheManager)
    with pytest.raises(RuntimeError, match="__init__"):
        blank.get_blocks("a")


# Where vLLM's own manager runs.


class OwnManager(single_type_kv_cache_manager.FullAttentionManager):
    pass


class OwnSpec(interface.FullAttentionSpec):
    pass


def reason(to_native, **given):
    report.reset()
    made = cache_manager.make_kv_cache_manager(to_native, False, VLLM, **given)
    assert type(made) is kv_cache_manager.KVCacheManager
    (text,) = report.stats()["cache_manager"]
    return text.removeprefix("vLLM: ")


def test_what_is_not_known_is_vllms(to_native, monkeypatch, pool):
    own = OwnSpec(**ATTENTION)
    assert "OwnSpec" in reason(to_native, **arguments(config(own)))
    with monkeypatch.context() as patch:
        patch.setattr(KVCacheSpecRegistry, "get_manager_class", lambda spec, role=None: OwnManager)
        assert "OwnManager" in reason(to_native, **arguments())
    pool.undo()
    assert "pool" in reason(to_native, **arguments())


def test_a_fault_at_construction_leaves_vllms(to_native, monkeypatch):
    def fails(*args, **kwargs):
        raise MemoryError("injected")

    for name in ("_start", "_settings", "_put_into_coordinator", "_require_same_settings"):
        with monkeypatch.context() as patch:
            patch.setattr(cache_manager.KVCacheManager, name, fails)
            assert "injected" in reason(to_native, **arguments())
    monkeypatch.setattr(cache_manager, "_MANAGERS", {})
    assert "managed by vLLM alone" in reason(to_native, **arguments())


def test_other_settings_than_vllms_leave_vllms(to_native, monkeypatch):
    monkeypatch.setattr(
        cache_manager.KVCacheManager,
        "_settings",
        lambda self: {"block_sizes": (BLOCK + 1,)},
    )
    assert "block_sizes is (5,) to kvplan, (4,) to vLLM" in reason(to_native, **arguments())


def test_vllms_own_error_stays(to_native):
    bad = arguments(watermark=-1.0)
    with pytest.raises(AssertionError, match="watermark"):
        cache_manager.make_kv_cache_manager(to_native, False, VLLM, **bad)


def test_unknown_vllms(monkeypatch):
    assert cache_manager.unsupported_reason(VLLM) is None
    newer = dataclasses.replace(VLLM, version="0.34.0")
    assert "0.34.0" in cache_manager.unsupported_reason(newer)
    with monkeypatch.context() as patch:
        patch.setattr(cache_manager, "_source_digest", lambda module: "0")
        assert "is not that of vLLM" in cache_manager.unsupported_reason(VLLM)
    with monkeypatch.context() as patch:
        patch.setattr(kv_cache_manager.KVCacheManager, "free", lambda self, request: None)
        assert "KVCacheManager.free was replaced" in cache_manager.unsupported_reason(VLLM)
    assert cache_manager.unsupported_reason(VLLM) is None


def test_installed_and_taken_out(monkeypatch, pool):
    from vllm.v1.core.sched import scheduler

    pool.undo()
    own = scheduler.KVCacheManager
    assert own is kv_cache_manager.KVCacheManager
    assert kvplan.vllm.install()
    made = scheduler.KVCacheManager(**arguments())
    assert type(made) is cache_manager.KVCacheManager
    # What others import or subclass stays vLLM's.
    assert kv_cache_manager.KVCacheManager is own
    assert kvplan.vllm.stats()["cache_manager"] == {"kvplan": 1}
    kvplan.vllm.uninstall()
    assert scheduler.KVCacheManager is own

    monkeypatch.setenv("KVPLAN_CACHE_MANAGER", "0")
    assert kvplan.vllm.install()
    assert scheduler.KVCacheManager is own


# Verification.


def serve(manager, rng, num_requests=30):
    """Requests that share prefixes, through what a scheduler calls."""
    running = []
    for i in range(num_requests):
        new = request(str(i), rng.randint(1, 40), first=rng.randrange(2))
        manager.new_step_starts()
        hit, num_hit, _ = manager.get_computed_blocks(new)
        blocks = manager.allocate_slots(
            new,
            new.num_tokens - num_hit,
            num_new_computed_tokens=num_hit,
            new_computed_blocks=hit,
        )
        if blocks is None:
            manager.free(running.pop(0))
            continue
        new.status = RequestStatus.RUNNING
        new.num_computed_tokens = new.num_tokens
        running.append(new)
        if rng.random() < 0.5:
            old = running.pop(rng.randrange(len(running)))
            if rng.random() < 0.5:
                manager.free(old)
            else:
                manager.block_pool.free_blocks(reversed(manager.pop_blocks_for_free(old)))
        manager.take_new_block_ids()


def test_verify_compares_every_call(to_native):
    made = cache_manager.make_kv_cache_manager(
        to_native, True, VLLM, **arguments(config(*TWO_GROUPS, num_blocks=60))
    )
    assert type(made.block_pool) is stock(vllm_block_pool, "BlockPool")
    serve(made, random.Random(1))
    stats = report.stats()["cache_manager"]
    assert "mismatches" not in stats
    assert stats["verified"] > 100


@pytest.mark.parametrize("call", ["allocate_slots", "get_computed_blocks", "free"])
def test_verify_finds_a_difference(to_native, monkeypatch, call, caplog):
    made = cache_manager.make_kv_cache_manager(to_native, True, VLLM, **arguments())
    vllms = cache_manager.make_kv_cache_manager(to_native, True, VLLM, **arguments())
    vllms._stop()
    ours = getattr(cache_manager.KVCacheManager, call)
    count = 0

    def off_by_one(self, *args, **kwargs):
        nonlocal count
        count += 1
        return ours(self, *args, **kwargs) if count < 5 else "wrong"

    monkeypatch.setattr(cache_manager.KVCacheManager, call, off_by_one)
    serve(made, random.Random(2))
    serve(vllms, random.Random(2))
    assert report.stats()["cache_manager"]["mismatches"] == 1
    assert "'wrong'" in caplog.text
    assert count == 5
    # The results were vLLM's all along.
    queues = [each.block_pool.free_block_queue for each in (made, vllms)]
    left = [[block.block_id for block in queue.get_all_free_blocks()] for queue in queues]
    assert left[0] == left[1]
