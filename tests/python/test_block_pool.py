"""The array face of the block pool: conversions and errors; the pool itself is tested in C++."""

import numpy as np
import pytest

import kvplan


def test_ids_are_int32_arrays():
    pool = kvplan.BlockPool(8)
    ids = pool.get_new_blocks(3)
    assert ids.dtype == np.int32
    assert ids.tolist() == [1, 2, 3]
    assert pool.num_free_blocks == 4
    assert pool.usage == pytest.approx(3 / 7)
    pool.free_blocks(ids[::-1])
    assert pool.free_block_ids().tolist() == [3, 2, 1, 4, 5, 6, 7]


@pytest.mark.parametrize(
    "ids",
    [
        [1, 2],
        (1, 2),
        np.array([1, 2], np.int64),
        np.array([1, 2], np.uint8),
        np.array([1, 9, 2], np.int32)[::2],
    ],
)
def test_ids_of_any_integer_type_are_taken(ids):
    pool = kvplan.BlockPool(4)
    pool.touch(ids)
    assert pool.ref_counts([0, 1, 2, 3]).tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        ([1.0], kvplan._core.InvalidArgument, "must be integers"),
        ([[1]], kvplan._core.InvalidArgument, "one-dimensional"),
        ([1, 4], kvplan.BlockPoolError, "block id 4 is not in the pool, which has ids 0 to 3"),
        ([1, -1], kvplan.BlockPoolError, "block id -1"),
        ([1, 2**32 + 1], kvplan.BlockPoolError, "block id 4294967297"),
        (np.array([2**64 - 1], np.uint64), kvplan.BlockPoolError, "block id 18446744073709551615"),
        (np.array([True]), kvplan._core.InvalidArgument, "must be integers, not of dtype bool"),
    ],
)
def test_bad_ids_change_nothing(ids, error, message):
    pool = kvplan.BlockPool(4)
    with pytest.raises(error, match=message):
        pool.touch(ids)
    with pytest.raises(error, match=message):
        pool.evict_blocks(ids)
    assert pool.free_block_ids().tolist() == [1, 2, 3]


def test_empty_lists_of_ids():
    pool = kvplan.BlockPool(4)
    pool.touch([])
    pool.free_blocks(np.array([], np.int64))
    assert pool.get_new_blocks(0).shape == (0,)


def test_errors_are_value_errors_that_name_the_numbers():
    pool = kvplan.BlockPool(4)
    with pytest.raises(ValueError, match="cannot get 4 blocks: 3 of the pool's 3 are free"):
        pool.get_new_blocks(4)
    with pytest.raises(ValueError, match="cannot get -1 blocks"):
        pool.get_new_blocks(-1)
    with pytest.raises(ValueError, match="cannot get 1000000000000 blocks"):
        pool.get_new_blocks(10**12)
    with pytest.raises(ValueError, match="block 2 has 0 holder"):
        pool.free_blocks([2])
    with pytest.raises(ValueError, match="1 to 2147483647 blocks, not 0"):
        kvplan.BlockPool(0)


@pytest.mark.parametrize("as_array", [False, True])
def test_prefix_lookup(as_array):
    pool = kvplan.BlockPool(8)
    raw = np.arange(4 * 32, dtype=np.uint8).reshape(4, 32)
    hashes = raw if as_array else [row.tobytes() for row in raw]
    ids = pool.get_new_blocks(4)
    pool.cache_full_blocks(ids[:3], hashes[:3], 16, group_id=5)
    assert pool.get_cached_prefix(hashes, 5).tolist() == [1, 2, 3]
    assert pool.get_cached_prefix(hashes[1:], 5).tolist() == [2, 3]
    assert pool.get_cached_prefix(hashes, 0).tolist() == []
    assert pool.get_cached_block(raw[1].tobytes(), [5]).tolist() == [2]
    assert pool.get_cached_block(raw[1].tobytes(), [5, 0]) is None
    assert pool.block_hash(2) == (raw[1].tobytes(), 5)
    assert pool.block_hash(4) is None


def test_hashes_of_wrong_type_or_size_are_refused():
    pool = kvplan.BlockPool(4)
    pool.get_new_blocks(1)
    with pytest.raises(TypeError, match="must be bytes, not str"):
        pool.cache_full_blocks([1], ["a"], 16)
    with pytest.raises(ValueError, match="1 to 32 bytes, not 33"):
        pool.cache_full_blocks([1], [bytes(33)], 16)
    with pytest.raises(ValueError, match="uint8 array of shape"):
        pool.cache_full_blocks([1], np.zeros(32, np.uint8), 16)
    with pytest.raises(ValueError, match="1 blocks but 0 hashes"):
        pool.cache_full_blocks([1], [], 16)
    with pytest.raises(ValueError, match="group id is 0 to 65535, not 65536"):
        pool.cache_full_blocks([1], [b"a"], 16, group_id=65536)
    with pytest.raises(ValueError, match="mask of 2"):
        pool.cache_full_blocks([1], [b"a"], 16, mask=[True, False])
    assert pool.num_cached_hashes == 0


def test_events():
    pool = kvplan.BlockPool(4, enable_events=True)
    pool.get_new_blocks(3)
    pool.cache_full_blocks([1, 2, 3], [b"a", b"b", b"c"], 16, group_id=1, mask=[True, False, True])
    pool.cache_full_blocks([2], [b"d"], 16, first_block=3, parent_hash=b"c")
    pool.evict_blocks([3])
    events = pool.take_events()
    assert [(e.kind, e.group_id, e.hashes, e.parent_hash) for e in events] == [
        ("stored", 1, [b"a", b"c"], None),
        ("stored", 0, [b"d"], b"c"),
        ("removed", 1, [b"c"], None),
    ]
    assert [(e.block_ids, e.positions, e.block_size) for e in events] == [
        ([1, 3], [0, 2], 16),
        ([2], [3], 16),
        ([3], [], 16),
    ]
    assert not events[2].still_cached
    assert pool.take_events() == []
    assert "kind='removed'" in repr(events[2])
    pool.free_blocks([1, 2, 3])
    assert pool.reset_prefix_cache()
    assert [e.kind for e in pool.take_events()] == ["cleared"]


def test_events_that_nobody_takes_are_bounded():
    pool = kvplan.BlockPool(3, enable_events=True, max_events=2)
    pool.get_new_blocks(2)
    pool.cache_full_blocks([1], [b"a"], 16)
    pool.cache_full_blocks([2], [b"a"], 16)
    pool.evict_blocks([1])
    lost, removed = pool.take_events()
    assert (lost.kind, lost.num_lost) == ("lost", 2)
    assert (removed.kind, removed.still_cached) == ("removed", True)
    with pytest.raises(ValueError, match="max_events must be positive, got 0"):
        kvplan.BlockPool(3, max_events=0)


def test_partial_blocks():
    pool = kvplan.BlockPool(4)
    pool.get_new_blocks(2)
    assert pool.cache_partial_block(1, b"h4", 4, hash_block_size=4)
    pool.cache_full_blocks([1], [b"h16"], 16)  # in place of the boundary
    assert pool.get_cached_block(b"h4", [0]) is None
    assert pool.cache_partial_block(1, b"h4", 4, hash_block_size=4)  # the prefix still holds
    pool.move_block_hashes(1, 2)
    for block_hash in (b"h4", b"h16"):
        assert pool.get_cached_block(block_hash, [0]).tolist() == [2]


def test_reuse_callbacks():
    pool = kvplan.BlockPool(3)
    pool.get_new_blocks(1)
    reused = []
    pool.unpin_blocks([1], reused.append)
    pool.get_new_blocks(1)
    assert reused == []
    pool.get_new_blocks(1)
    assert reused == [1]


def test_an_error_in_a_callback_reaches_the_caller_and_leaves_the_blocks_free():
    def refuse(block_id):
        raise RuntimeError(f"no {block_id}")

    pool = kvplan.BlockPool(3)
    pool.get_new_blocks(1)
    pool.unpin_blocks([1], refuse)
    with pytest.raises(RuntimeError, match="no 1"):
        pool.get_new_blocks(2)
    assert pool.free_block_ids().tolist() == [2, 1]
    pool.check_invariants()


def test_two_million_blocks_cost_64_bytes_each_and_the_index():
    pool = kvplan.BlockPool(2_000_000, enable_caching=False)
    assert pool.memory_bytes < 2_000_000 * 64 + 1024
    with_index = kvplan.BlockPool(2_000_000)
    assert with_index.memory_bytes <= 2_000_000 * (64 + 8 * 8 / 3)
