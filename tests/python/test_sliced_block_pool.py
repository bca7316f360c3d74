"""The array face of the sliced block pool: conversions and errors; the pool is tested in C++."""

import numpy as np
import pytest

import kvplan

WIDE, SMALL = 0, 1


@pytest.fixture
def pool():
    return kvplan.SlicedBlockPool(4, [2, 4])


def test_shape(pool):
    assert len(pool) == pool.num_large_blocks == 4
    assert pool.slices == [2, 4]
    assert pool.num_groups == 2
    assert [pool.num_blocks(g) for g in (WIDE, SMALL)] == [8, 16]
    assert [pool.num_free_blocks(g) for g in (WIDE, SMALL)] == [6, 12]
    assert pool.memory_bytes >= 4 * 64 + 4 * 4 * 64


def test_ids_are_int32_arrays_of_slices(pool):
    wide = pool.get_new_blocks(1, WIDE)
    assert wide.dtype == np.int32
    assert wide.tolist() == [2]
    assert pool.get_new_blocks(2, SMALL).tolist() == [8, 9]
    assert [pool.owner(large) for large in range(4)] == [None, WIDE, SMALL, None]
    assert pool.usage == pytest.approx(2 / 3)
    assert pool.slice_usage == pytest.approx((1 / 2 + 2 / 4) / 3)
    assert pool.num_used_blocks(SMALL) == 2
    assert pool.ref_counts([0, 2, 3], WIDE).tolist() == [0, 1, 0]
    pool.free_blocks(wide, WIDE)
    assert pool.num_free_large_blocks == 2
    assert pool.num_empty_large_blocks == 2
    pool.check_invariants()


def test_allocation_for_all_groups(pool):
    first, second = pool.allocate([3, 4])
    assert (first.tolist(), second.tolist()) == ([2, 3, 4], [12, 13, 14, 15])
    assert pool.can_allocate([1, 0])
    assert not pool.can_allocate([0, 1])
    with pytest.raises(kvplan.BlockPoolError, match="cannot get blocks 1 of group 1"):
        pool.allocate([0, 1])
    with pytest.raises(kvplan.BlockPoolError, match="cannot get blocks 1000000000000 of group 0"):
        pool.allocate([10**12, 0])
    with pytest.raises(kvplan.InvalidArgument, match="2 groups, but there are 1 numbers"):
        pool.can_allocate([1])
    with pytest.raises(kvplan.InvalidArgument, match="cannot get -1 blocks"):
        pool.allocate([-1, 0])


def test_large_blocks_needed(pool):
    small = pool.get_new_blocks(1, SMALL)
    assert pool.num_large_blocks_needed([0, 3]) == 0
    assert pool.num_large_blocks_needed([3, 4]) == 3
    assert pool.num_large_blocks_needed([10, 0]) == 5
    pool.cache_full_blocks(small, [b"a"], 16, SMALL)
    pool.free_blocks(small, SMALL)
    assert pool.num_large_blocks_needed([0, 3], [[], small]) == 1
    with pytest.raises(kvplan.InvalidArgument, match="cannot get -1 blocks"):
        pool.num_large_blocks_needed([0, -1])


def test_frugal_allocation_fills_large_blocks_first(pool):
    first, second = pool.get_new_blocks(4, SMALL), pool.get_new_blocks(4, SMALL)
    pool.free_blocks([*first[:2], *second[:2]], SMALL)
    assert pool.num_free_large_blocks == 1
    _, small = pool.allocate([0, 4], frugal=True)
    assert sorted(small) == sorted([*first[:2], *second[:2]])
    pool.free_blocks(small, SMALL)
    _, small = pool.allocate([0, 4])  # blocks of one call lie together where they can
    assert small.tolist() == [12, 13, 14, 15]


def test_what_is_found_is_held_with_the_new_blocks(pool):
    ids = pool.get_new_blocks(2, SMALL)
    pool.cache_full_blocks(ids, [b"a", b"b"], 16, SMALL)
    pool.free_blocks(ids[::-1], SMALL)
    found = pool.get_cached_prefix([b"a", b"b", b"c"], SMALL)
    assert found.tolist() == ids.tolist()
    assert pool.get_cached_prefix([b"a"], WIDE).tolist() == []
    assert not pool.can_allocate([4, 3], [[], found])
    wide, small = pool.allocate([4, 2], [[], found])
    assert wide.tolist() == [4, 5, 6, 7]
    assert small.tolist() == [6, 7]
    assert pool.ref_counts(found, SMALL).tolist() == [1, 1]
    assert pool.get_cached_block(b"a", [SMALL]).tolist() == [4]
    assert pool.get_cached_block(b"a", [SMALL, WIDE]) is None
    assert pool.block_hash(4, SMALL) == b"a"
    assert pool.block_hash(6, SMALL) is None


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        ([2.0], kvplan.InvalidArgument, "must be integers"),
        ([[2]], kvplan.InvalidArgument, "one-dimensional"),
        ([2, 1], kvplan.BlockPoolError, "block id 1 is not in group 0, which has ids 2 to 7"),
        ([2, 8], kvplan.BlockPoolError, "block id 8 is not in group 0"),
        ([2, -1], kvplan.BlockPoolError, "block id -1"),
        ([2, 2**32 + 2], kvplan.BlockPoolError, "block id 4294967298"),
        ([2, 4], kvplan.BlockPoolError, "in large block 2, which belongs to group 1"),
        ([2, 6], kvplan.BlockPoolError, "in large block 3, which is in the reserve"),
        ([2, 0, 2], kvplan.BlockPoolError, "has 1 holder.* released 2 time"),
        ([3], kvplan.BlockPoolError, "has 0 holder"),
    ],
)
def test_bad_ids_change_nothing(pool, ids, error, message):
    pool.get_new_blocks(1, WIDE)
    pool.get_new_blocks(1, SMALL)
    with pytest.raises(error, match=message):
        pool.free_blocks(ids, WIDE)
    assert pool.ref_counts([2], WIDE).tolist() == [1]
    pool.check_invariants()


def test_errors_are_value_errors_that_name_the_numbers(pool):
    with pytest.raises(ValueError, match="cannot get 7 blocks of group 0: 6 are free"):
        pool.get_new_blocks(7, WIDE)
    with pytest.raises(ValueError, match="cannot get 1000000000000 blocks"):
        pool.get_new_blocks(10**12, WIDE)
    with pytest.raises(ValueError, match="cannot get -1 blocks"):
        pool.get_new_blocks(-1, WIDE)
    with pytest.raises(ValueError, match="group 2 is not in the pool, which has 2"):
        pool.get_new_blocks(1, 2)
    with pytest.raises(ValueError, match="group id is 0 to 65535, not -1"):
        pool.num_free_blocks(-1)
    with pytest.raises(ValueError, match="has no holder and nothing cached"):
        pool.touch(pool.get_new_blocks(1, WIDE) + 1, WIDE)
    with pytest.raises(ValueError, match="1 to 65536 groups, not 0"):
        kvplan.SlicedBlockPool(4, [])
    with pytest.raises(ValueError, match="group 1 cuts each of 4 large blocks into 0 slices"):
        kvplan.SlicedBlockPool(4, [1, 0])


def test_events_and_reset():
    pool = kvplan.SlicedBlockPool(2, [2, 4], enable_events=True)
    ids = pool.get_new_blocks(2, WIDE)
    pool.cache_full_blocks(ids, [b"a", b"b"], 16, WIDE, first_block=1, parent_hash=b"p")
    pool.free_blocks(ids[::-1], WIDE)
    pool.free_blocks(pool.get_new_blocks(1, SMALL), SMALL)
    assert [(e.kind, e.group_id, e.hashes, e.parent_hash) for e in pool.take_events()] == [
        ("stored", WIDE, [b"a", b"b"], b"p"),
        ("removed", WIDE, [b"b"], None),
        ("removed", WIDE, [b"a"], None),
    ]
    assert pool.reset_prefix_cache()
    assert pool.num_cached_hashes == 0
    assert [e.kind for e in pool.take_events()] == ["cleared"]


def scattered(**options):
    """Large blocks 1 to 3 are the small group's, with 1, 3 and 2 of 4 slices in use."""
    pool = kvplan.SlicedBlockPool(4, [2, 4], **options)
    ids = pool.get_new_blocks(12, SMALL)
    pool.free_blocks([4, 5, 6, 8, 12, 13], SMALL)
    return pool, [i for i in ids.tolist() if i not in (4, 5, 6, 8, 12, 13)]


def test_make_room_says_what_moves():
    pool, held = scattered()
    assert not pool.can_allocate([2, 0])
    assert pool.num_free_large_blocks_after_moves == 1
    assert pool.can_make_room([2, 0])
    assert not pool.can_make_room([3, 0])
    assert pool.make_room([3, 0]) is None
    (wide_from, wide_to), (small_from, small_to) = pool.make_room([2, 0])
    assert wide_from.tolist() == wide_to.tolist() == []
    assert (small_from.tolist(), small_to.tolist()) == ([7], [8])
    assert small_from.dtype == small_to.dtype == np.int32
    assert [pair[0].tolist() for pair in pool.make_room([2, 0])] == [[], []]  # it fits
    pool.check_invariants()
    assert pool.allocate([2, 0])[0].tolist() == [2, 3]
    moved = np.arange(pool.num_blocks(SMALL), dtype=np.int32)
    moved[small_from] = small_to
    pool.free_blocks(moved[held], SMALL)
    assert pool.num_used_blocks(SMALL) == 0


def test_what_was_found_may_move():
    pool = kvplan.SlicedBlockPool(4, [2, 4])
    ids = pool.get_new_blocks(12, SMALL)
    pool.cache_full_blocks(ids[1:2], [b"a"], 16, SMALL)
    pool.free_blocks([5, 6, 7, 11, 15], SMALL)
    found = pool.get_cached_prefix([b"a"], SMALL)
    sources, destinations = pool.make_room([2, 0], [[], found])[SMALL]
    assert (sources.tolist(), destinations.tolist()) == ([4, 5], [15, 11])
    assert pool.get_cached_prefix([b"a"], SMALL).tolist() == [11]
    wide, small = pool.allocate([2, 0], [[], [11]])
    assert wide.tolist() == [2, 3]
    assert small.tolist() == []
    assert pool.ref_counts([11], SMALL).tolist() == [1]


def test_pinned_blocks_and_too_many_moves_leave_the_pool_as_it_is():
    pool, held = scattered()
    for options in (
        {"max_moves": 0},
        {"max_moves": 1, "pinned": [[], [7]]},
        {"pinned": [[], held]},
    ):
        assert not pool.can_make_room([1, 0], **options)
        assert pool.make_room([1, 0], **options) is None
    assert pool.ref_counts(held, SMALL).tolist() == [1] * 6
    assert pool.make_room([1, 0], max_moves=2, pinned=[[], [7]])[SMALL][0].tolist() == [14, 15]


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (([1],), {}, "2 groups, but there are 1 numbers"),
        (([-1, 0],), {}, "cannot get -1 blocks"),
        (([1, 0],), {"max_moves": -1}, "max_moves is 0 or more, not -1"),
        (([1, 0],), {"pinned": [[7]]}, "2 groups, but there are 1 lists of pinned"),
        (([1, 0],), {"pinned": [[], [16]]}, "block id 16 is not in group 1"),
        (([1, 0],), {"pinned": [[2], []]}, "in large block 1, which belongs to group 1"),
        (([1, 0], [[], [4]]), {}, "block 4 of group 1 has no holder and nothing cached"),
    ],
)
def test_bad_input_to_make_room(arguments, options, message):
    pool, held = scattered()
    for call in (pool.can_make_room, pool.make_room):
        with pytest.raises(ValueError, match=message):
            call(*arguments, **options)
    assert pool.ref_counts(held, SMALL).tolist() == [1] * 6
    pool.check_invariants()


def test_partial_blocks_move_with_all_their_hashes():
    pool, _ = scattered()
    assert pool.cache_partial_block(7, b"h8", 8, hash_block_size=4, group_id=SMALL)
    assert pool.cache_partial_block(7, b"h4", 4, hash_block_size=4, group_id=SMALL)
    assert pool.make_room([1, 0])[SMALL][1].tolist() == [8]
    for block_hash in (b"h4", b"h8"):
        assert pool.get_cached_block(block_hash, [SMALL]).tolist() == [8]
    pool.cache_full_blocks([8], [b"h16"], 16, SMALL)  # covers more than either
    assert pool.get_cached_block(b"h8", [SMALL]) is None
    assert pool.cache_partial_block(8, b"h8", 8, hash_block_size=4, group_id=SMALL)
    assert not pool.cache_partial_block(0, b"h8", 8, hash_block_size=4, group_id=SMALL)
    pool.check_invariants()
    with pytest.raises(ValueError, match="block 12 of group 1 has no holder"):
        pool.cache_partial_block(12, b"x", 4, hash_block_size=4, group_id=SMALL)
    with pytest.raises(ValueError, match="1 to 2147483647 tokens, not 0"):
        pool.cache_partial_block(8, b"x", 0, hash_block_size=4, group_id=SMALL)
    assert pool.num_cached_hashes == 2


@pytest.mark.parametrize("size", [0, -4])
def test_hash_blocks_without_tokens_are_refused(size):
    plain = kvplan.BlockPool(3, enable_events=True)
    sliced = kvplan.SlicedBlockPool(3, [1, 1], enable_events=True)
    for pool, ids in ((plain, plain.get_new_blocks(1)), (sliced, sliced.get_new_blocks(1, SMALL))):
        with pytest.raises(ValueError, match=f"hash_block_size is 1 token or more, not {size}"):
            pool.cache_partial_block(ids[0], b"h", 3, hash_block_size=size, group_id=SMALL)
        assert pool.num_cached_hashes == 0
        assert pool.take_events() == []


def test_unpinned_blocks_are_reused_last_and_somebody_is_told():
    pool = kvplan.SlicedBlockPool(3, [1, 4])
    told = []
    ids = pool.get_new_blocks(4, SMALL)
    pool.unpin_blocks(ids[:2], lambda *block: told.append(block), SMALL)
    pool.free_blocks(ids[2:], SMALL)
    pool.touch(ids[1:2], SMALL)  # once more in use
    pool.free_blocks(ids[1:2], SMALL)
    assert pool.owner(1) == SMALL
    assert pool.get_new_blocks(1, WIDE).tolist() == [2]
    assert told == []
    assert pool.get_new_blocks(1, WIDE).tolist() == [1]
    assert told == [(ids[0], SMALL), (ids[1], SMALL)]
    with pytest.raises(ValueError, match="unpin_blocks: the null block is never freed"):
        pool.unpin_blocks([0], told.append, WIDE)
    with pytest.raises(TypeError):
        pool.unpin_blocks([1], None, WIDE)
    assert pool.num_used_blocks(WIDE) == 2


def test_moves_tell_of_unpinned_blocks_first_and_an_error_moves_nothing():
    def refuse(block_id, group_id):
        raise RuntimeError(f"no {block_id}")

    pool = kvplan.SlicedBlockPool(3, [1, 4])
    ids = pool.get_new_blocks(8, SMALL)
    pool.unpin_blocks(ids[[0, 1, 4, 5]], refuse, SMALL)
    with pytest.raises(RuntimeError, match="no"):
        pool.make_room([1, 0])
    assert pool.ref_counts(ids, SMALL).tolist() == [0, 0, 1, 1] * 2
    sources, targets = pool.make_room([1, 0])[SMALL]
    assert (len(sources), len(targets)) == (2, 2)
    pool.check_invariants()


def test_hashes_move_to_another_block():
    pool = kvplan.SlicedBlockPool(3, [1, 4])
    ids = pool.get_new_blocks(3, SMALL)
    pool.cache_full_blocks(ids[:1], [b"h"], 16, SMALL)
    pool.free_blocks(ids[:1], SMALL)
    pool.move_block_hashes(ids[0], ids[1], SMALL)
    assert pool.get_cached_block(b"h", [SMALL]).tolist() == [ids[1]]
    assert pool.block_hash(ids[0], SMALL) is None
    with pytest.raises(ValueError, match="block 5 of group 1 already has a hash"):
        pool.move_block_hashes(ids[2], ids[1], SMALL)
    with pytest.raises(ValueError, match="block 4 of group 1 has no holder"):
        pool.move_block_hashes(ids[1], ids[0], SMALL)
    pool.check_invariants()
