"""The vLLM face of the pool: installation, safety, block objects, subclasses, other pools."""

import copy
import gc
import logging
import random
import sys
from types import SimpleNamespace

import pytest

vllm = pytest.importorskip("vllm")
if not vllm.__version__.startswith("0.33."):
    pytest.skip("compares with vLLM 0.33", allow_module_level=True)

from vllm.v1.core import block_pool as vllm_block_pool  # noqa: E402
from vllm.v1.core import kv_cache_coordinator, kv_cache_utils  # noqa: E402
from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id  # noqa: E402

import kvplan.vllm  # noqa: E402
from kvplan.vllm import block_pool as face  # noqa: E402
from kvplan.vllm.detect import detect  # noqa: E402
from kvplan.vllm.patch import Applied  # noqa: E402

HASHES = [bytes([i]) * 32 for i in range(8)]
REQUEST = SimpleNamespace(block_hashes=HASHES)


def make_pool(num_blocks=8, **kwargs):
    return face.BlockPool(num_blocks, enable_caching=True, hash_block_size=16, **kwargs)


def free_ids(pool):
    return [block.block_id for block in pool.free_block_queue.get_all_free_blocks()]


# Installation.


def test_the_patch_replaces_every_import_and_undoing_it_restores_them():
    original = vllm_block_pool.BlockPool
    applied = Applied(face.patches(detect()))
    try:
        assert vllm_block_pool.BlockPool is face.BlockPool
        assert kv_cache_coordinator.BlockPool is face.BlockPool
        left = [
            name
            for name, module in sys.modules.items()
            if name.startswith("vllm.") and vars(module).get("BlockPool") is original
        ]
        assert left == []
    finally:
        applied.undo()
    assert vllm_block_pool.BlockPool is original
    assert kv_cache_coordinator.BlockPool is original


@pytest.mark.usefixtures("nothing_installed")
@pytest.mark.parametrize("off", ["0", "1"])
def test_the_environment_turns_it_off(monkeypatch, off):
    monkeypatch.setenv("KVPLAN_BLOCK_POOL", off)
    assert kvplan.vllm.install()
    assert (kv_cache_coordinator.BlockPool is face.BlockPool) == (off == "1")


@pytest.mark.usefixtures("nothing_installed")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda patch: patch.setattr(vllm, "__version__", "0.34.0"),
            "vLLM 0.34.0 was not tested with it, but 0.32.x and 0.33.x were",
        ),
        (
            lambda patch: patch.setattr(
                vllm_block_pool.BlockPool, "compact_blocks", lambda self: None, raising=False
            ),
            "has what this one does not know: compact_blocks",
        ),
        (
            lambda patch: patch.setattr(vllm_block_pool, "BlockPool", SimpleSubclass),
            "already replaced by test_block_pool_face.SimpleSubclass",
        ),
    ],
)
def test_what_it_does_not_know_leaves_vllms_pool_with_one_warning(
    change, reason, monkeypatch, caplog
):
    change(monkeypatch)
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    with caplog.at_level(logging.WARNING, logger="vllm.kvplan"):
        assert not face.patches(detect())
        assert not face.patches(detect())
    (record,) = caplog.records
    assert reason in record.message


class SimpleSubclass(vllm_block_pool.BlockPool):
    pass


# Safety.


def test_freeing_too_often_is_an_error_that_changes_nothing():
    pool = make_pool()
    a, b, c = pool.get_new_blocks(3)
    pool.free_blocks([c])
    for blocks in ([a, b, c], [a, b, b], iter([a, c])):
        with pytest.raises(ValueError, match="nothing was freed"):
            pool.free_blocks(blocks)
        assert [x.ref_cnt for x in (a, b, c)] == [1, 1, 0]
        assert free_ids(pool) == [3, 4, 5, 6, 7]
    pool.touch([a])
    pool.free_blocks([a, a, b])
    pool.check_invariants()


def test_the_null_block_is_skipped():
    pool = make_pool()
    assert pool.null_block.block_id == 0
    assert pool.null_block.is_null
    assert pool.null_block is pool.blocks[0]
    blocks = pool.get_new_blocks(2)
    pool.touch([pool.null_block, *blocks])
    pool.free_blocks([pool.null_block, *blocks, pool.null_block])
    pool.free_blocks(blocks)
    assert pool.get_usage() == 0.0
    assert pool.null_block.ref_cnt == 0
    assert face.BlockPool(1, True, 16).get_usage() == 0


def test_blocks_of_nobody_are_refused():
    pool = make_pool()
    held = pool.get_new_blocks(1)
    for stranger in (make_pool().get_new_blocks(1)[0], kv_cache_utils.KVCacheBlock(3, 1)):
        with pytest.raises(ValueError, match="not a block of this pool"):
            pool.free_blocks([*held, stranger])
        with pytest.raises(ValueError, match="not a block of this pool"):
            pool.touch([*held, stranger])
    with pytest.raises(AttributeError):
        pool.free_blocks([1])
    assert held[0].ref_cnt == 1
    # vLLM's own tests hand in such blocks, which become free in neither pool.
    stranger = kv_cache_utils.KVCacheBlock(3)
    pool.free_blocks([stranger])
    assert (stranger.ref_cnt, pool.get_num_free_blocks()) == (-1, 6)


def test_white_box_changes_of_the_keys():
    pool = make_pool()
    first, second = pool.get_new_blocks(2)
    keys = [make_block_hash_with_group_id(block_hash, 0) for block_hash in HASHES[:3]]
    index = pool.cached_block_hash_to_block
    index.insert(keys[0], first)
    index.insert(keys[1], first)
    index.insert(keys[0], second)
    assert index._cache == {keys[0]: {1: first, 2: second}, keys[1]: first}
    assert index.pop(keys[2], 1) is None
    assert index.pop(keys[0], 1) is first
    assert index._cache == {keys[0]: second, keys[1]: first}
    before = copy.copy(index._cache)
    assert index._cache.pop(keys[0]) is second
    assert second.block_hash is None
    assert list(index._cache) == [keys[1]]
    index._cache[keys[0]] = before[keys[0]]
    assert index._cache == before
    assert second.block_hash == keys[0]
    index._cache.clear()
    assert len(index) == len(index._cache) == 0
    queue = pool.free_block_queue
    pool.get_new_blocks(5)
    assert queue.fake_free_list_head.next_free_block is queue.fake_free_list_tail
    assert queue.fake_free_list_tail.prev_free_block is queue.fake_free_list_head
    pool.free_blocks([first])
    assert queue.fake_free_list_tail.prev_free_block is first
    pool.check_invariants()


def test_allocation_is_all_or_nothing():
    pool = make_pool()
    with pytest.raises(ValueError, match="cannot get 8 blocks: 7 of the pool's 7 are free"):
        pool.get_new_blocks(8)
    with pytest.raises(ValueError, match="cannot get -1 blocks"):
        pool.get_new_blocks(-1)
    assert pool.get_num_free_blocks() == 7


def test_unknown_ids_are_not_evicted():
    pool = make_pool()
    blocks = pool.get_new_blocks(1)
    pool.cache_full_blocks(REQUEST, blocks, 0, 1, 16, 0)
    for bad in (8, -1):
        with pytest.raises(AssertionError, match=f"block id {bad} is not in the pool"):
            pool.evict_blocks({1, bad})
    assert pool.get_cached_block(HASHES[0], [0]) == blocks


def test_missing_hashes_cache_nothing():
    pool = make_pool(16)
    blocks = pool.get_new_blocks(10)
    with pytest.raises(IndexError, match="request has 8 block hashes"):
        pool.cache_full_blocks(REQUEST, blocks, 0, 10, 16, 0)
    with pytest.raises(AssertionError, match="no multiple of the hash block size"):
        pool.cache_full_blocks(REQUEST, blocks, 0, 2, 24, 0)
    assert len(pool.cached_block_hash_to_block) == 0


def test_a_replaced_boundary_can_come_back():
    pool = face.BlockPool(8, True, 4)
    (block,) = pool.get_new_blocks(1)
    partial = {"request": REQUEST, "block": block, "kv_cache_group_id": 0, "block_size": 16}
    assert pool.cache_partial_block(num_tokens=8, **partial)
    pool.cache_full_blocks(REQUEST, [block], 0, 1, 16, 0)
    assert pool.get_cached_block(HASHES[1], [0]) is None
    assert pool.cache_partial_block(num_tokens=8, **partial)
    assert pool.get_cached_block(HASHES[1], [0]) == [block]
    assert pool.get_cached_block(HASHES[3], [0]) == [block]


# Block objects.


def test_members_of_pooled_blocks_are_the_pools():
    pool = make_pool()
    (block,) = pool.get_new_blocks(1)
    for name, value in (("block_id", 2), ("is_null", True), ("_block_hash", b""), ("pool", None)):
        with pytest.raises(AttributeError):
            setattr(block, name, value)
    block.ref_cnt += 1
    pool.free_blocks([block])
    assert block.ref_cnt == 1
    with pytest.raises(ValueError, match="cannot get 0"):
        block.ref_cnt = 0
    with pytest.raises(TypeError):
        block.ref_cnt = "many"
    block.ref_cnt = 1000
    assert block.ref_cnt == 1000
    pool.check_invariants()
    assert block.pool is pool
    assert "block_id=1, ref_cnt=1000" in repr(block)


def test_hash_of_a_block():
    pool = make_pool()
    (block,) = pool.get_new_blocks(1)
    key = make_block_hash_with_group_id(HASHES[0], 300)
    block.set_block_hash(key, num_tokens=16)
    assert (block.block_hash, block.block_hash_num_tokens) == (key, 16)
    assert pool.get_cached_block(HASHES[0], [300]) == [block]
    with pytest.raises(AssertionError, match="already has a hash"):
        block.set_block_hash(key)
    block.reset_hash()
    assert block.block_hash is None
    assert pool.get_cached_block(HASHES[0], [300]) is None


def test_blocks_is_a_sequence():
    blocks = make_pool(300).blocks
    assert len(blocks) == 300
    assert [b.block_id for b in blocks] == list(range(300))
    assert blocks[-1] is blocks[299]
    assert [b.block_id for b in blocks[10:4:-2]] == [10, 8, 6]
    for index in (300, -301):
        with pytest.raises(IndexError):
            blocks[index]


def test_blocks_outlive_their_pool():
    pool = make_pool()
    held = pool.get_new_blocks(2)
    pool.cache_full_blocks(REQUEST, held, 0, 1, 16, 0)
    sequence = pool.blocks
    del pool
    gc.collect()
    assert sequence[1] is held[0]
    assert sequence[5].block_id == 5
    assert held[0].pool.blocks[5] is sequence[5]
    del sequence
    gc.collect()
    assert held[0].pool is None
    assert held[0].block_hash is not None
    assert held[0].next_free_block is None
    del held
    gc.collect()


def test_pools_with_callbacks_into_their_owner_are_collected():
    class Owner:
        pass

    owner = Owner()
    owner.pool = make_pool()
    owner.blocks = owner.pool.get_new_blocks(2)
    owner.pool.unpin_blocks(owner.blocks[:1], lambda block, owner=owner: None)
    gone = []
    owner.pool.marker = type("Marker", (), {"__del__": lambda self: gone.append(True)})()
    del owner
    gc.collect()
    assert gone == [True]


@pytest.mark.parametrize("seed", range(5))
def test_the_free_queue(seed):
    """The same random operations on vLLM's queue and on the one over a pool."""
    rng = random.Random(seed)
    n = rng.choice([0, 1, 10])
    pool = make_pool(n + 1)
    blocks = [kv_cache_utils.KVCacheBlock(i) for i in range(n + 1)], pool.blocks
    queues = kv_cache_utils.FreeKVCacheBlockQueue(blocks[0][1:]), pool.free_block_queue
    free = set(range(1, n + 1))
    for _ in range(500):
        action = rng.choice(["popleft", "popleft_n", "remove", "append", "append_n", "prepend_n"])
        taken = sorted(set(range(1, n + 1)) - free)
        some = rng.sample(taken, rng.randrange(len(taken) + 1))
        answers = []
        if action == "popleft" and not free:
            for queue in queues:
                with pytest.raises(ValueError, match="No free blocks available"):
                    queue.popleft()
            continue
        if (action == "remove" and not free) or (action == "append" and not taken):
            continue
        index = rng.randrange(max(len(free), 1))
        count = rng.randrange(len(free) + 1)
        for queue, mine in zip(queues, blocks, strict=True):
            if action == "popleft":
                answers.append([queue.popleft().block_id])
            elif action == "popleft_n":
                answers.append([b.block_id for b in queue.popleft_n(count)])
            elif action == "remove":
                block = queue.get_all_free_blocks()[index]
                queue.remove(block)
                answers.append([block.block_id])
            elif action == "append":
                queue.append(mine[taken[0]])
            else:
                getattr(queue, action)([mine[i] for i in some])
        if answers:
            assert answers[0] == answers[1]
            free -= set(answers[0])
        else:
            free |= {taken[0]} if action == "append" else set(some)
        orders = [[b.block_id for b in queue.get_all_free_blocks()] for queue in queues]
        assert orders[0] == orders[1]
        assert queues[0].num_free_blocks == queues[1].num_free_blocks == len(free)


# Subclasses and other pools.


def test_blocks_of_other_pools_go_to_those():
    ours, also_ours = make_pool(), make_pool()
    theirs = vllm_block_pool.BlockPool(8, True, 16)
    mixed = [*ours.get_new_blocks(1), *theirs.get_new_blocks(2), *also_ours.get_new_blocks(1)]
    ours.free_blocks(reversed(mixed))
    assert [pool.get_num_free_blocks() for pool in (ours, theirs, also_ours)] == [7, 7, 7]
    mixed = [*ours.get_new_blocks(2), *theirs.get_new_blocks(2)]
    theirs.free_blocks(mixed)
    assert [pool.get_num_free_blocks() for pool in (ours, theirs)] == [7, 7]
    ours.check_invariants()


def test_a_subclass_that_shares_an_event_queue():
    """As vllm/v1/hisparse/block_pool.py does."""

    class Shared(face.BlockPool):
        def __init__(self, *args, event_owner, **kwargs):
            self._event_owner = event_owner
            super().__init__(*args, **kwargs)

        @property
        def kv_event_queue(self):
            return self._event_owner.kv_event_queue

        @kv_event_queue.setter
        def kv_event_queue(self, events):
            assert not events

    owner = make_pool(enable_kv_cache_events=True)
    shared = Shared(8, True, 16, enable_kv_cache_events=True, event_owner=owner, medium="CPU")
    key = make_block_hash_with_group_id(HASHES[0], 2)
    for pool in (owner, shared):
        (block,) = pool.get_new_blocks(1)
        block.set_block_hash(key)
        pool.evict_blocks({1})
    assert [(e.medium, e.group_idx) for e in owner.take_events()] == [("GPU", 2), ("CPU", 2)]


def test_a_subclass_that_answers_lookups_itself():
    """As the connector in vllm/.../umbp/scheduler.py does, with standalone blocks."""

    class Lookup(face.BlockPool):
        def get_cached_block(self, block_hash, kv_cache_group_ids):
            key = make_block_hash_with_group_id(block_hash, kv_cache_group_ids[0])
            return [kv_cache_utils.KVCacheBlock(block_id=7, _block_hash=key)]

    pool = Lookup(num_gpu_blocks=1, enable_caching=True, hash_block_size=16)
    (block,) = pool.get_cached_block(HASHES[0], [4])
    assert kv_cache_utils.get_group_id(block.block_hash) == 4
    assert (block.ref_cnt, block.is_null, block.pool) == (0, False, None)


def test_an_error_in_a_reuse_callback_reaches_the_caller():
    def refuse(block):
        raise RuntimeError(f"no {block.block_id}")

    pool = make_pool(3)
    pool.unpin_blocks(pool.get_new_blocks(1), refuse)
    with pytest.raises(RuntimeError, match="no 1"):
        pool.get_new_blocks(2)
    assert free_ids(pool) == [2, 1]
    pool.check_invariants()
