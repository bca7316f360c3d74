#include "kvplan/sliced_block_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "block_pool/highest_bit.h"
#include "block_pool/slice_division.h"
#include "sliced_block_pool_model.h"

namespace kvplan {
namespace {

constexpr PoolGroupId kWide{0};   // 2 slices
constexpr PoolGroupId kSmall{1};  // 4 slices
constexpr int64_t kSlices[] = {2, 4};

using Ids = std::vector<BlockId>;

std::string hash_of(int i) { return "hash " + std::to_string(i); }

void cache(SlicedBlockPool& pool, PoolGroupId group, const Ids& ids, int first_hash) {
  std::vector<std::string> hashes;
  for (size_t i = 0; i < ids.size(); ++i)
    hashes.push_back(hash_of(first_hash + static_cast<int>(i)));
  const std::vector<std::string_view> views(hashes.begin(), hashes.end());
  pool.cache_full_blocks({.blocks = ids, .hashes = views, .block_size = 16, .group_id = group});
}

template <typename Operation>
std::string error_of(Operation&& operation) {
  try {
    operation();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(SlicedBlockPool, IdsAreLargeBlockTimesSlicesPlusSlice) {
  SlicedBlockPool pool(4, kSlices);
  EXPECT_EQ(pool.num_blocks(kWide), 8);
  EXPECT_EQ(pool.num_blocks(kSmall), 16);
  EXPECT_EQ(pool.num_free_blocks(kWide), 6);
  EXPECT_EQ(pool.num_free_blocks(kSmall), 12);
  EXPECT_EQ(pool.get_new_blocks(kWide, 1), (Ids{2}));
  EXPECT_EQ(pool.get_new_blocks(kSmall, 2), (Ids{8, 9}));
  EXPECT_EQ(pool.get_new_blocks(kWide, 1), (Ids{3}));
  EXPECT_EQ(pool.get_new_blocks(kWide, 1), (Ids{6}));
  EXPECT_EQ(pool.owner(1), kWide);
  EXPECT_EQ(pool.owner(2), kSmall);
  EXPECT_EQ(pool.owner(0), std::nullopt);
  EXPECT_EQ(pool.num_free_blocks(kSmall), 2);
  EXPECT_EQ(pool.num_free_large_blocks(), 0);
  EXPECT_DOUBLE_EQ(pool.usage(), 1.0);
  EXPECT_DOUBLE_EQ(pool.slice_usage(), (3 / 2.0 + 2 / 4.0) / 3);
}

TEST(SlicedBlockPool, ALargeBlockGoesBackWithItsLastSlice) {
  SlicedBlockPool pool(2, kSlices);
  const Ids small = pool.get_new_blocks(kSmall, 2);
  EXPECT_EQ(pool.num_free_blocks(kWide), 0);
  pool.free_blocks(kSmall, Ids{small[1]});
  EXPECT_EQ(pool.num_free_blocks(kWide), 0);
  pool.free_blocks(kSmall, Ids{small[0]});
  EXPECT_EQ(pool.num_free_blocks(kWide), 2);
  EXPECT_EQ(pool.get_new_blocks(kWide, 2), (Ids{2, 3}));
}

TEST(SlicedBlockPool, TheFullestLargeBlockIsFilledFirst) {
  SlicedBlockPool pool(4, kSlices);
  pool.get_new_blocks(kSmall, 12);
  pool.free_blocks(kSmall, Ids{4, 5, 6, 8, 12, 13});  // 1, 3 and 2 of 4 stay in use
  EXPECT_EQ(pool.get_new_blocks(kSmall, 3), (Ids{8, 13, 12}));
  EXPECT_EQ(pool.get_new_blocks(kSmall, 3), (Ids{6, 5, 4}));
}

/// So that they come back whole, although there is room elsewhere.
TEST(SlicedBlockPool, WhatFillsLargeBlocksGetsWholeOnes) {
  SlicedBlockPool pool(5, kSlices);
  pool.get_new_blocks(kSmall, 1);
  const Ids many = pool.get_new_blocks(kSmall, 9);
  EXPECT_EQ(many, (Ids{8, 9, 10, 11, 12, 13, 14, 15, 5}));
  EXPECT_EQ(pool.num_free_large_blocks(), 1);
  pool.get_new_blocks(kWide, 2);
  EXPECT_EQ(pool.get_new_blocks(kSmall, 2), (Ids{6, 7}));  // no large block is left
}

/// A group with too much free among its own reuses that, from the fullest large block.
TEST(SlicedBlockPool, AFragmentedGroupReusesItsOwnFullestLargeBlock) {
  SlicedBlockPool pool(4, kSlices, {.own_first_above = 0.25});  // 4 of 16 slices
  const Ids ids = pool.get_new_blocks(kSmall, 8);
  cache(pool, kSmall, ids, 0);
  pool.free_blocks(kSmall, Ids{ids[0], ids[1], ids[2]});
  pool.free_blocks(kSmall, Ids{ids[4]});
  pool.get_new_blocks(kWide, 2);
  Ids got = pool.get_new_blocks(kSmall, 1);
  EXPECT_EQ(got, (Ids{ids[0]}));  // no large block is left: by age
  pool.free_blocks(kSmall, Ids{ids[5], ids[6]});
  got = pool.get_new_blocks(kSmall, 1);
  EXPECT_EQ(got, (Ids{ids[1]}));  // 5 free slices; the first large block has 2 in use
}

TEST(SlicedBlockPool, AdmissionCountsWholeLargeBlocks) {
  SlicedBlockPool pool(4, kSlices);
  const auto fits = [&](int64_t wide, int64_t small) {
    const SliceDemand demands[] = {{.group_id = kWide, .num_new = wide},
                                   {.group_id = kSmall, .num_new = small}};
    return pool.can_allocate(demands);
  };
  EXPECT_TRUE(fits(6, 0));
  EXPECT_TRUE(fits(4, 4));
  EXPECT_FALSE(fits(4, 5));
  EXPECT_FALSE(fits(5, 1));
  EXPECT_TRUE(fits(1, 8));
  EXPECT_FALSE(fits(std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::max()));
  pool.get_new_blocks(kSmall, 3);
  EXPECT_TRUE(fits(4, 1));
  EXPECT_FALSE(fits(4, 2));
}

TEST(SlicedBlockPool, AllocationForSeveralGroupsIsAllOrNothing) {
  SlicedBlockPool pool(4, kSlices);
  const Ids found = pool.get_new_blocks(kSmall, 2);
  cache(pool, kSmall, found, 0);
  pool.free_blocks(kSmall, found);
  SliceDemand demands[] = {{.group_id = kWide, .num_new = 4},
                           {.group_id = kSmall, .found = found, .num_new = 3}};
  Ids out(7);
  EXPECT_FALSE(pool.can_allocate(demands));
  EXPECT_EQ(error_of([&] { pool.allocate(demands, out); }),
            "cannot get blocks 4 of group 0 (0 free in its large blocks, 2 in a new one), 3 of "
            "group 1 (0 free in its large blocks, 4 in a new one): 3 of the pool's 3 large blocks "
            "are free, before those that hold what was found");
  EXPECT_EQ(pool.num_free_large_blocks(), 3);
  EXPECT_EQ(pool.ref_count(kSmall, found[0]), 0);
  demands[1].num_new = 2;
  EXPECT_EQ(error_of([&] { pool.allocate(demands, out); }),
            "allocate: the demands are for 6 new blocks, and there is room for 7 ids");
  out.resize(6);
  pool.allocate(demands, out);
  EXPECT_EQ(out, (Ids{4, 5, 6, 7, 6, 7}));
  EXPECT_EQ(pool.ref_count(kSmall, found[0]), 1);
  EXPECT_EQ(pool.num_free_large_blocks(), 0);
}

/// A group must not take large blocks by age that another group of the same request needs.
TEST(SlicedBlockPool, AllocationLeavesLargeBlocksToTheOtherGroups) {
  SlicedBlockPool pool(3, kSlices, {.own_first_above = 1});
  const Ids old = pool.get_new_blocks(kWide, 2);
  const Ids mixed = pool.get_new_blocks(kSmall, 4);
  cache(pool, kWide, old, 0);
  cache(pool, kSmall, mixed, 10);
  pool.free_blocks(kWide, old);                       // a whole large block, older
  pool.free_blocks(kSmall, Ids{mixed[0], mixed[1]});  // slices of one partly in use, newer
  const SliceDemand demands[] = {{.group_id = kSmall, .num_new = 2},
                                 {.group_id = kWide, .num_new = 1}};
  Ids out(3);
  pool.allocate(demands, out);
  EXPECT_EQ(out, (Ids{mixed[0], mixed[1], old[0]}));
}

TEST(SlicedBlockPool, WhatIsCachedIsFoundAndHeldAgain) {
  SlicedBlockPool pool(4, kSlices);
  const Ids ids = pool.get_new_blocks(kSmall, 3);
  cache(pool, kSmall, ids, 0);
  pool.free_blocks(kSmall, Ids{ids[2], ids[1], ids[0]});
  EXPECT_EQ(pool.num_free_large_blocks(), 3);
  EXPECT_EQ(pool.find(hash_of(1), kSmall), ids[1]);
  EXPECT_EQ(pool.find(hash_of(1), kWide), std::nullopt);
  const std::vector<std::string> hashes = {hash_of(0), hash_of(1), hash_of(7), hash_of(2)};
  const std::vector<std::string_view> views(hashes.begin(), hashes.end());
  Ids found(4);
  EXPECT_EQ(pool.find_prefix(views, kSmall, found), 2);
  found.resize(2);
  EXPECT_EQ(found, (Ids{ids[0], ids[1]}));
  pool.touch(kSmall, found);
  EXPECT_EQ(pool.num_free_large_blocks(), 2);
  EXPECT_EQ(pool.num_used_blocks(kSmall), 2);
  EXPECT_EQ(pool.num_free_blocks(kSmall), 2 + 8);
  EXPECT_FALSE(pool.reset_prefix_cache());
  pool.free_blocks(kSmall, found);
  EXPECT_TRUE(pool.reset_prefix_cache());
  EXPECT_EQ(pool.num_cached_hashes(), 0);
  EXPECT_EQ(pool.owner(1), std::nullopt);
}

TEST(SlicedBlockPool, TheReserveComesBeforeAnythingCached) {
  SlicedBlockPool pool(3, kSlices);
  const Ids ids = pool.get_new_blocks(kWide, 2);
  cache(pool, kWide, ids, 0);
  pool.free_blocks(kWide, ids);
  pool.get_new_blocks(kSmall, 4);
  EXPECT_EQ(pool.num_cached_hashes(), 2);
  pool.get_new_blocks(kSmall, 1);  // needs the large block, which is emptied as a whole
  EXPECT_EQ(pool.num_cached_hashes(), 0);
}

TEST(SlicedBlockPool, NothingCachedIsEvictedWhileALargeBlockIsEmpty) {
  for (const double own_first_above : {1.0, SlicedBlockPoolOptions{}.own_first_above, 0.0}) {
    SlicedBlockPool pool(1000, kSlices, {.own_first_above = own_first_above});
    const Ids ids = pool.get_new_blocks(kSmall, 128);
    cache(pool, kSmall, ids, 0);
    Ids freed;
    for (size_t i = 0; i < ids.size(); i += 4) freed.insert(freed.end(), &ids[i], &ids[i] + 3);
    pool.free_blocks(kSmall, freed);
    EXPECT_EQ(pool.num_empty_large_blocks(), 967);
    for (int i = 0; i < 100; ++i) pool.get_new_blocks(kSmall, 1);
    EXPECT_EQ(pool.num_cached_hashes(), 128);
    EXPECT_EQ(pool.num_empty_large_blocks(), 967 - 25);
    pool.get_new_blocks(kWide, 2 * (967 - 25));
    EXPECT_EQ(pool.num_empty_large_blocks(), 0);
    EXPECT_EQ(pool.num_cached_hashes(), 128);
    pool.get_new_blocks(kSmall, 1);
    EXPECT_EQ(pool.num_cached_hashes(), 127);
  }
}

TEST(SlicedBlockPool, TheLargeBlockUsedLongestAgoIsEmptiedFirst) {
  SlicedBlockPool pool(3, kSlices);
  const Ids first = pool.get_new_blocks(kWide, 2);
  const Ids second = pool.get_new_blocks(kWide, 2);
  cache(pool, kWide, first, 0);
  cache(pool, kWide, second, 2);
  pool.free_blocks(kWide, first);
  pool.free_blocks(kWide, second);
  pool.touch(kWide, Ids{first[0]});
  pool.free_blocks(kWide, Ids{first[0]});
  pool.get_new_blocks(kSmall, 1);
  EXPECT_TRUE(pool.find(hash_of(0), kWide));
  EXPECT_FALSE(pool.find(hash_of(2), kWide));
}

/// Both orders of the two kinds of cached blocks, by age and own slices first.
TEST(SlicedBlockPool, OwnCachedSlicesOrAWholeLargeBlock) {
  for (const double own_first_above : {1.0, 0.0}) {
    SlicedBlockPool pool(3, kSlices, {.own_first_above = own_first_above});
    const Ids whole = pool.get_new_blocks(kWide, 2);
    const Ids mixed = pool.get_new_blocks(kSmall, 4);
    cache(pool, kWide, whole, 0);
    cache(pool, kSmall, mixed, 10);
    pool.free_blocks(kWide, whole);
    pool.free_blocks(kSmall, Ids{mixed[1]});
    const Ids got = pool.get_new_blocks(kSmall, 1);
    if (own_first_above == 1.0) {  // the whole large block is older
      EXPECT_EQ(got, (Ids{4}));
      EXPECT_FALSE(pool.find(hash_of(0), kWide));
      EXPECT_TRUE(pool.find(hash_of(11), kSmall));
    } else {
      EXPECT_EQ(got, (Ids{mixed[1]}));
      EXPECT_TRUE(pool.find(hash_of(0), kWide));
      EXPECT_FALSE(pool.find(hash_of(11), kSmall));
    }
  }
}

TEST(SlicedBlockPool, WithoutCachingAFreedBlockLosesItsHash) {
  SlicedBlockPool pool(3, kSlices, {.enable_caching = false});
  const Ids ids = pool.get_new_blocks(kWide, 2);
  cache(pool, kWide, ids, 0);
  EXPECT_TRUE(pool.find(hash_of(0), kWide));
  pool.free_blocks(kWide, ids);
  EXPECT_FALSE(pool.find(hash_of(0), kWide));
  EXPECT_EQ(pool.owner(1), std::nullopt);
}

TEST(SlicedBlockPool, ErrorsChangeNothing) {
  SlicedBlockPool pool(4, kSlices);
  const Ids wide = pool.get_new_blocks(kWide, 1);
  const Ids small = pool.get_new_blocks(kSmall, 1);
  EXPECT_EQ(error_of([&] {
              pool.free_blocks(kWide, Ids{wide[0], 0, wide[0]});
            }),
            "free_blocks: block 2 of group 0 has 1 holder(s) and is released 2 time(s) by this "
            "call; nothing was freed");
  EXPECT_EQ(error_of([&] {
              pool.free_blocks(kWide, Ids{wide[0], 4});
            }),
            "free_blocks: block 4 of group 0 lies in large block 2, which belongs to group 1");
  EXPECT_EQ(error_of([&] {
              pool.free_blocks(kWide, Ids{wide[0], 6});
            }),
            "free_blocks: block 6 of group 0 lies in large block 3, which is in the reserve");
  for (const BlockId bad : {-1, 1, 8}) {
    EXPECT_EQ(error_of([&] {
                pool.free_blocks(kWide, Ids{wide[0], bad});
              }),
              "free_blocks: block id " + std::to_string(bad) +
                  " is not in group 0, which has ids 2 to 7 and the null block 0");
    EXPECT_NE(error_of([&] { pool.touch(kWide, Ids{wide[0], bad}); }), "no error");
    EXPECT_NE(error_of([&] { pool.evict_blocks(kWide, Ids{wide[0], bad}); }), "no error");
    EXPECT_NE(error_of([&] { pool.ref_count(kWide, bad); }), "no error");
  }
  EXPECT_EQ(error_of([&] {
              pool.touch(kWide, Ids{wide[0], 3});
            }),
            "touch: block 3 of group 0 has no holder and nothing cached");
  EXPECT_EQ(error_of([&] {
              cache(pool, kSmall, Ids{small[0], small[0] + 1}, 0);
            }),
            "cache_full_blocks: block 9 of group 1 has no holder");
  EXPECT_EQ(error_of([&] { pool.get_new_blocks(kWide, 4); }),
            "cannot get 4 blocks of group 0: 3 are free, in 1 free large blocks of 2 and in the "
            "group's own");
  EXPECT_EQ(error_of([&] { pool.get_new_blocks(PoolGroupId{2}, 1); }),
            "group 2 is not in the pool, which has 2 group(s)");
  EXPECT_NE(error_of([&] { pool.get_new_blocks(kWide, -1); }), "no error");
  EXPECT_EQ(pool.ref_count(kWide, wide[0]), 1);
  EXPECT_EQ(pool.num_cached_hashes(), 0);
  EXPECT_EQ(pool.num_free_large_blocks(), 1);
  pool.check_invariants();
}

TEST(SlicedBlockPool, GroupsNeedRoomForTheirBlocks) {
  SlicedBlockPool pool(4, kSlices);
  const PoolGroupId groups[] = {PoolGroupId{0}, PoolGroupId{1}};
  Ids one(1);
  EXPECT_THROW(pool.find_in_groups("hash", groups, one), InvalidArgument);
  Ids two(2);
  EXPECT_FALSE(pool.find_in_groups("hash", groups, two));
}

TEST(SlicedBlockPool, NullBlocksAreSkipped) {
  SlicedBlockPool pool(3, kSlices);
  const Ids ids = pool.get_new_blocks(kSmall, 1);
  pool.touch(kSmall, Ids{0, ids[0], 0});
  cache(pool, kSmall, Ids{0, ids[0]}, 0);
  pool.free_blocks(kSmall, Ids{0, ids[0], ids[0]});
  pool.evict_blocks(kSmall, Ids{0});
  EXPECT_EQ(pool.ref_count(kSmall, 0), 0);
  EXPECT_FALSE(pool.is_free(kSmall, 0));
  EXPECT_EQ(pool.num_free_large_blocks(), 2);
}

TEST(SlicedBlockPool, ShapesThatCannotBe) {
  const auto make = [](int64_t num_large, std::vector<int64_t> slices) {
    return error_of([&] { SlicedBlockPool(num_large, slices); });
  };
  EXPECT_EQ(make(0, {1}),
            "a sliced block pool has 1 to 2147483647 large blocks, not 0; large block 0 is the "
            "null block of every group");
  EXPECT_EQ(make(4, {}), "a sliced block pool has 1 to 65536 groups, not 0");
  EXPECT_EQ(make(4, {2, 0}),
            "group 1 cuts each of 4 large blocks into 0 slices; 1 to 536870911 are possible with "
            "32-bit block ids");
  EXPECT_EQ(make(1 << 20, {2048}),
            "group 0 cuts each of 1048576 large blocks into 2048 slices; 1 to 2047 are possible "
            "with 32-bit block ids");
  for (const double share : {-0.1, 1.1, std::nan("")}) {
    EXPECT_NE(error_of([&] { SlicedBlockPool(4, kSlices, {.own_first_above = share}); }),
              "no error");
  }
}

TEST(SlicedBlockPool, PoolsWithoutRoom) {
  SlicedBlockPool one(1, kSlices);
  EXPECT_DOUBLE_EQ(one.usage(), 0.0);
  EXPECT_DOUBLE_EQ(one.slice_usage(), 0.0);
  EXPECT_EQ(one.num_free_blocks(kSmall), 0);
  EXPECT_NE(error_of([&] { one.get_new_blocks(kSmall, 1); }), "no error");
  one.check_invariants();
  SlicedBlockPool two(2, kSlices);
  const SliceDemand both[] = {{.group_id = kWide, .num_new = 1},
                              {.group_id = kSmall, .num_new = 1}};
  EXPECT_FALSE(two.can_allocate(both));
  EXPECT_TRUE(two.can_allocate(std::span(both).first(1)));
}

TEST(SlicedBlockPool, EventsOfAnEmptiedLargeBlock) {
  SlicedBlockPool pool(2, kSlices, {.enable_events = true});
  const Ids ids = pool.get_new_blocks(kWide, 2);
  cache(pool, kWide, ids, 0);
  pool.free_blocks(kWide, Ids{ids[1], ids[0]});
  pool.get_new_blocks(kSmall, 1);
  const std::vector<BlockPoolEvent> events = pool.take_events();
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[1].kind, BlockPoolEvent::Kind::kRemoved);
  EXPECT_EQ(events[1].hashes, (std::vector<std::string>{hash_of(1)}));
  EXPECT_EQ(events[2].hashes, (std::vector<std::string>{hash_of(0)}));
  EXPECT_EQ(events[0].blocks, ids);
  EXPECT_EQ(events[0].positions, (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(events[1].blocks, (Ids{ids[1]}));
  EXPECT_EQ(events[1].block_size, 16);
}

// Moving.

using Moves = std::vector<SliceMove>;

/// Large blocks 1 to 3 are the small group's, with 1, 3 and 2 of 4 slices in use.
Ids scatter(SlicedBlockPool& pool) {
  const Ids ids = pool.get_new_blocks(kSmall, 12);
  cache(pool, kSmall, ids, 0);
  pool.evict_blocks(kSmall, ids);
  pool.free_blocks(kSmall, Ids{4, 5, 6, 8, 12, 13});
  return {7, 9, 10, 11, 14, 15};
}

TEST(SlicedBlockPoolMoves, TheEmptiestLargeBlockMovesToTheFullestThatHaveRoom) {
  SlicedBlockPool pool(4, kSlices);
  scatter(pool);
  const SliceDemand demand[] = {{.group_id = kWide, .num_new = 2}};
  EXPECT_FALSE(pool.can_allocate(demand));
  EXPECT_EQ(pool.num_free_large_blocks(), 0);
  EXPECT_EQ(pool.num_free_large_blocks_after_moves(), 1);
  EXPECT_TRUE(pool.can_make_room(demand));
  EXPECT_EQ(pool.make_room(demand), (Moves{{kSmall, 7, 8}}));
  EXPECT_EQ(pool.owner(1), std::nullopt);
  EXPECT_EQ(pool.ref_count(kSmall, 8), 1);
  EXPECT_EQ(pool.ref_count(kSmall, 7), 0);
  EXPECT_EQ(pool.num_used_blocks(kSmall), 6);
  EXPECT_EQ(pool.make_room(demand), Moves{});  // they fit
  Ids out(2);
  pool.allocate(demand, out);
  EXPECT_EQ(out, (Ids{2, 3}));
  pool.free_blocks(kSmall, Ids{8, 9, 10, 11, 14, 15});
  pool.free_blocks(kWide, out);
  EXPECT_EQ(pool.num_free_large_blocks(), 3);
}

/// Nothing moves into a large block that is emptied itself, so no move waits for another.
TEST(SlicedBlockPoolMoves, SeveralLargeBlocksAreEmptiedAtOnce) {
  SlicedBlockPool pool(6, kSlices);
  pool.get_new_blocks(kSmall, 20);
  pool.free_blocks(kSmall, Ids{5, 6, 7, 8, 10, 11, 12, 13, 16, 17, 20});  // 1, 1, 2, 2, 3 in use
  const SliceDemand demand[] = {{.group_id = kWide, .num_new = 4}};
  EXPECT_EQ(pool.make_room(demand), (Moves{{kSmall, 9, 20}, {kSmall, 4, 17}}));
  EXPECT_EQ(pool.num_free_large_blocks(), 2);
  const SliceDemand more[] = {{.group_id = kWide, .num_new = 6}};
  EXPECT_FALSE(pool.can_make_room(more));  // 9 slices in use need three
  EXPECT_EQ(pool.make_room(more), std::nullopt);
}

TEST(SlicedBlockPoolMoves, TheFewestBytesMoveOverAllGroups) {
  SlicedBlockPool pool(7, std::vector<int64_t>{2, 4, 1});
  const Ids wide = pool.get_new_blocks(kWide, 4);         // large blocks 1 and 2
  pool.get_new_blocks(kSmall, 16);                        // 3 to 6
  pool.free_blocks(kWide, Ids{wide[0], wide[2]});         // a half in use each
  pool.free_blocks(kSmall, Ids{12, 16, 20, 21, 22, 24});  // 3, 3, 1, 3 of 4
  // Either group could spare a large block, and the small one's is a quarter in use.
  const SliceDemand either[] = {{.group_id = PoolGroupId{2}, .num_new = 1}};
  EXPECT_EQ(pool.make_room(either), (Moves{{kSmall, 23, 24}}));
  pool.get_new_blocks(PoolGroupId{2}, 1);
  // Now the small one has but two free slices.
  EXPECT_EQ(pool.make_room(either), (Moves{{kWide, 5, 2}}));
  EXPECT_EQ(pool.num_free_large_blocks(), 1);
  const SliceDemand more[] = {{.group_id = PoolGroupId{2}, .num_new = 2}};
  EXPECT_EQ(pool.make_room(more), std::nullopt);
}

/// What the demands themselves will take is not taken from them.
TEST(SlicedBlockPoolMoves, AGroupKeepsTheFreeSlicesThatItWants) {
  SlicedBlockPool pool(4, kSlices);
  scatter(pool);  // 6 free slices
  const auto possible = [&](int64_t wide, int64_t small) {
    const SliceDemand demands[] = {{.group_id = kWide, .num_new = wide},
                                   {.group_id = kSmall, .num_new = small}};
    return pool.can_make_room(demands);
  };
  EXPECT_TRUE(possible(0, 6));
  EXPECT_FALSE(possible(0, 7));
  EXPECT_TRUE(possible(2, 2));
  EXPECT_FALSE(possible(2, 3));
  EXPECT_FALSE(possible(3, 0));
}

TEST(SlicedBlockPoolMoves, HoldersHashesAndLookupsSurvive) {
  SlicedBlockPool pool(4, kSlices, {.enable_events = true});
  const Ids ids = pool.get_new_blocks(kSmall, 12);
  cache(pool, kSmall, ids, 0);
  cache(pool, kWide, {}, 0);
  pool.touch(kSmall, Ids{7, 7});
  pool.free_blocks(kSmall, Ids{4, 5, 6, 8, 12, 13});
  pool.take_events();
  const SliceDemand demand[] = {{.group_id = kWide, .num_new = 1}};
  ASSERT_EQ(pool.make_room(demand), (Moves{{kSmall, 7, 8}}));
  EXPECT_EQ(pool.ref_count(kSmall, 8), 3);
  EXPECT_EQ(pool.block_hash(kSmall, 8), hash_of(3));
  EXPECT_EQ(pool.block_hash(kSmall, 7), "");
  EXPECT_EQ(pool.find(hash_of(3), kSmall), 8);
  EXPECT_EQ(pool.find(hash_of(4), kSmall), std::nullopt);  // its slice was needed
  for (const int dropped : {0, 1, 2}) {
    EXPECT_EQ(pool.find(hash_of(dropped), kSmall), std::nullopt);
  }
  EXPECT_EQ(pool.find(hash_of(8), kSmall), 12);  // newer than the one that was needed
  for (const BlockPoolEvent& event : pool.take_events()) {
    EXPECT_EQ(event.kind, BlockPoolEvent::Kind::kRemoved);
    EXPECT_NE(event.hashes, (std::vector<std::string>{hash_of(3)}));
  }
  // Found again, cached again, and gone with its last holder's large block.
  pool.free_blocks(kSmall, Ids{8, 8, 8});
  EXPECT_EQ(pool.find(hash_of(3), kSmall), 8);
  pool.check_invariants();
}

/// Of blocks with one hash the oldest is found, wherever it lies.
TEST(SlicedBlockPoolMoves, EqualHashesKeepTheirOrder) {
  SlicedBlockPool pool(4, kSlices);
  scatter(pool);
  for (const BlockId id : {10, 7, 14}) cache(pool, kSmall, Ids{id}, 5);
  const SliceDemand demand[] = {{.group_id = kWide, .num_new = 1}};
  ASSERT_EQ(pool.make_room(demand), (Moves{{kSmall, 7, 8}}));
  EXPECT_EQ(pool.find(hash_of(5), kSmall), 10);
  pool.evict_blocks(kSmall, Ids{10});
  EXPECT_EQ(pool.find(hash_of(5), kSmall), 8);
  pool.evict_blocks(kSmall, Ids{8});
  EXPECT_EQ(pool.find(hash_of(5), kSmall), 14);
}

/// What a request has found is held before its new blocks are taken: it may move, not go.
TEST(SlicedBlockPoolMoves, WhatWasFoundIsKept) {
  SlicedBlockPool pool(4, kSlices);
  const Ids ids = pool.get_new_blocks(kSmall, 12);
  cache(pool, kSmall, ids, 0);
  pool.free_blocks(kSmall, Ids{5, 6, 7, 11, 15});
  pool.evict_blocks(kSmall, Ids{6, 7, 11, 15});  // 4 is held and 5 cached; 3 and 3 held
  const Ids found = {5, 0};
  SliceDemand demand[] = {{.group_id = kSmall, .found = found}, {.group_id = kWide, .num_new = 3}};
  EXPECT_FALSE(pool.can_make_room(demand));  // two large blocks; eight slices need two
  demand[1].num_new = 2;
  EXPECT_EQ(pool.make_room(demand), (Moves{{kSmall, 4, 15}, {kSmall, 5, 11}}));
  EXPECT_EQ(pool.find(hash_of(1), kSmall), 11);
  EXPECT_EQ(pool.ref_count(kSmall, 11), 0);
  const Ids rewritten = {11, 0};
  demand[0].found = rewritten;
  Ids out(2);
  pool.allocate(demand, out);
  EXPECT_EQ(out, (Ids{2, 3}));
  EXPECT_EQ(pool.ref_count(kSmall, 11), 1);
}

TEST(SlicedBlockPoolMoves, PinnedBlocksAndTooManyMoves) {
  SlicedBlockPool pool(4, kSlices);
  scatter(pool);
  const SliceDemand demand[] = {{.group_id = kWide, .num_new = 1}};
  EXPECT_EQ(pool.make_room(demand, {.max_moves = 0}), std::nullopt);
  EXPECT_FALSE(pool.can_make_room(demand, {.max_moves = 0}));
  const Ids first = {7, 0};
  const GroupBlocks pinned[] = {{.group_id = kSmall, .blocks = first}};
  EXPECT_FALSE(pool.can_make_room(demand, {.max_moves = 1, .pinned = pinned}));
  EXPECT_EQ(pool.make_room(demand, {.max_moves = 1, .pinned = pinned}), std::nullopt);
  const Ids all = {7, 9, 14};
  const GroupBlocks all_pinned[] = {{.group_id = kSmall, .blocks = all}};
  EXPECT_FALSE(pool.can_make_room(demand, {.pinned = all_pinned}));
  EXPECT_EQ(pool.make_room(demand, {.pinned = pinned}), (Moves{{kSmall, 14, 8}, {kSmall, 15, 6}}));
}

TEST(SlicedBlockPoolMoves, ErrorsChangeNothing) {
  SlicedBlockPool pool(4, kSlices);
  scatter(pool);
  const auto error = [&](const SliceDemand& demand, const MoveOptions& options = {}) {
    const std::span<const SliceDemand> demands(&demand, 1);
    const std::string asked = error_of([&] { (void)pool.can_make_room(demands, options); });
    const std::string done = error_of([&] { (void)pool.make_room(demands, options); });
    const auto tail = [](const std::string& s) { return s.substr(s.find("make_room")); };
    if (done.find("make_room") == std::string::npos) {
      EXPECT_EQ(asked, done);
    } else {
      EXPECT_EQ(tail(asked), tail(done));
    }
    return done;
  };
  const SliceDemand fine{.group_id = kWide, .num_new = 2};
  EXPECT_EQ(error({.group_id = PoolGroupId{2}, .num_new = 1}),
            "group 2 is not in the pool, which has 2 group(s)");
  EXPECT_EQ(error({.group_id = kWide, .num_new = -1}), "cannot get -1 blocks");
  EXPECT_EQ(error(fine, {.max_moves = -1}), "make_room: max_moves is 0 or more, not -1");
  const Ids ids = {7, 16};
  EXPECT_EQ(error({.group_id = kSmall, .found = ids}),
            "make_room: block id 16 is not in group 1, which has ids 4 to 15 and the null block 0");
  const Ids free = {4};
  EXPECT_EQ(error({.group_id = kSmall, .found = free}),
            "make_room: block 4 of group 1 has no holder and nothing cached");
  const Ids foreign = {2};
  const GroupBlocks pinned[] = {{.group_id = kWide, .blocks = foreign}};
  EXPECT_EQ(error(fine, {.pinned = pinned}),
            "make_room: block 2 of group 0 lies in large block 1, which belongs to group 1");
  const GroupBlocks nowhere[] = {{.group_id = PoolGroupId{7}}};
  EXPECT_NE(error(fine, {.pinned = nowhere}), "no error");
  // More than any pool has.
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const SliceDemand huge[] = {{.group_id = kWide, .num_new = kMost},
                              {.group_id = kWide, .num_new = kMost},
                              {.group_id = kSmall, .num_new = kMost}};
  EXPECT_FALSE(pool.can_make_room(huge));
  EXPECT_EQ(pool.make_room(huge), std::nullopt);
  EXPECT_EQ(pool.num_used_blocks(kSmall), 6);
  EXPECT_EQ(pool.make_room(std::span(&fine, 1)), (Moves{{kSmall, 7, 8}}));
  EXPECT_EQ(pool.make_room({}), Moves{});
}

/// What callbacks of `unpin_blocks` were told.
struct Told {
  std::vector<std::pair<int, BlockId>> blocks{};
  SlicedBlockPool::ReuseCallback callback() {
    return [this](PoolGroupId group, BlockId block) {
      blocks.emplace_back(static_cast<int>(group), block);
    };
  }
};
using Reused = std::vector<std::pair<int, BlockId>>;

TEST(SlicedBlockPoolUnpin, ContentsStayAsLongAsCachedOnes) {
  for (const bool enable_caching : {true, false}) {
    SlicedBlockPool pool(4, kSlices, {.enable_caching = enable_caching});
    Told told;
    const Ids ids = pool.get_new_blocks(kSmall, 4);
    EXPECT_EQ(ids, (Ids{4, 5, 6, 7}));
    pool.free_blocks(kSmall, Ids{6});
    pool.unpin_blocks(kSmall, Ids{7, 5}, told.callback());
    EXPECT_EQ(pool.num_used_blocks(kSmall), 1);
    EXPECT_EQ(pool.get_new_blocks(kSmall, 1), (Ids{6}));  // the empty one
    pool.touch(kSmall, Ids{5});                           // once more in use
    EXPECT_EQ(pool.ref_count(kSmall, 5), 1);
    pool.free_blocks(kSmall, Ids{5, 4, 6});
    EXPECT_EQ(pool.owner(1), kSmall);
    EXPECT_EQ(pool.num_free_large_blocks(), 3);
    EXPECT_EQ(pool.get_new_blocks(kWide, 4), (Ids{4, 5, 6, 7}));  // the reserve
    EXPECT_EQ(told.blocks, Reused{});
    EXPECT_EQ(pool.get_new_blocks(kWide, 1), (Ids{2}));
    EXPECT_EQ(told.blocks, (Reused{{1, 7}, {1, 5}}));
    pool.free_blocks(kWide, Ids{2});
    EXPECT_EQ(pool.get_new_blocks(kSmall, 1), (Ids{4}));
    EXPECT_EQ(told.blocks.size(), 2);
    pool.check_invariants();
  }
}

TEST(SlicedBlockPoolUnpin, ABlockWithAnotherHolderStaysWatched) {
  SlicedBlockPool pool(2, kSlices);
  Told told;
  Told later;
  pool.get_new_blocks(kSmall, 2);
  pool.touch(kSmall, Ids{4, 4});
  pool.unpin_blocks(kSmall, Ids{4, 4}, told.callback());
  EXPECT_EQ(pool.ref_count(kSmall, 4), 1);
  pool.unpin_blocks(kSmall, Ids{4}, later.callback());
  pool.evict_blocks(kSmall, Ids{4});  // drops hashes only
  EXPECT_EQ(pool.get_new_blocks(kSmall, 3), (Ids{6, 7, 4}));
  EXPECT_EQ(told.blocks, (Reused{{1, 4}, {1, 4}}));  // once for each time
  EXPECT_EQ(later.blocks, (Reused{{1, 4}}));
}

TEST(SlicedBlockPoolUnpin, ResetTellsInTheOrderOfRegistration) {
  SlicedBlockPool pool(4, kSlices);
  Told told;
  const Ids small = pool.get_new_blocks(kSmall, 2);
  const Ids wide = pool.get_new_blocks(kWide, 1);
  cache(pool, kSmall, small, 0);
  pool.unpin_blocks(kSmall, Ids{5}, told.callback());
  pool.unpin_blocks(kWide, wide, told.callback());
  EXPECT_FALSE(pool.reset_prefix_cache());
  pool.unpin_blocks(kSmall, Ids{4}, told.callback());
  EXPECT_EQ(told.blocks, Reused{});
  EXPECT_TRUE(pool.reset_prefix_cache());
  EXPECT_EQ(told.blocks, (Reused{{1, 5}, {0, wide[0]}, {1, 4}}));
  EXPECT_EQ(pool.num_cached_hashes(), 0);
  EXPECT_EQ(pool.owner(1), std::nullopt);
  EXPECT_EQ(pool.owner(2), std::nullopt);
  pool.check_invariants();
}

TEST(SlicedBlockPoolUnpin, ErrorsChangeNothing) {
  SlicedBlockPool pool(3, kSlices);
  Told told;
  pool.get_new_blocks(kSmall, 2);
  const auto error = [&](PoolGroupId group, const Ids& ids) {
    return error_of([&] { pool.unpin_blocks(group, ids, told.callback()); });
  };
  EXPECT_EQ(error(kSmall, {4, 0}), "unpin_blocks: the null block is never freed");
  EXPECT_EQ(error(kSmall, {4, 5, 4}),
            "unpin_blocks: block 4 of group 1 has 1 holder(s) and is released 2 time(s) by this "
            "call; nothing was freed");
  EXPECT_EQ(error(kSmall, {4, 12}),
            "unpin_blocks: block id 12 is not in group 1, which has ids 4 to 11 and the null "
            "block 0");
  EXPECT_EQ(error(kWide, {2}),
            "unpin_blocks: block 2 of group 0 lies in large block 1, which belongs to group 1");
  EXPECT_NE(error(PoolGroupId{2}, {}), "no error");
  EXPECT_EQ(error_of([&] { pool.unpin_blocks(kSmall, Ids{4}, {}); }),
            "unpin_blocks: on_reuse must be callable");
  EXPECT_EQ(pool.num_used_blocks(kSmall), 2);
  pool.free_blocks(kSmall, Ids{4, 5});
  EXPECT_EQ(pool.owner(1), std::nullopt);  // nobody watches
  pool.check_invariants();
}

TEST(SlicedBlockPoolUnpin, ACallbackThatThrowsLeavesTheBlocksFree) {
  SlicedBlockPool pool(3, kSlices);
  Told told;
  pool.get_new_blocks(kSmall, 6);
  cache(pool, kSmall, Ids{8, 9}, 0);
  pool.free_blocks(kSmall, Ids{8, 9});
  const auto fail = [](PoolGroupId, BlockId) { throw std::runtime_error("no"); };
  pool.unpin_blocks(kSmall, Ids{4, 5}, fail);
  pool.unpin_blocks(kSmall, Ids{6, 7}, told.callback());
  const Ids found = {9};
  const SliceDemand demands[] = {{.group_id = kSmall, .found = found, .num_new = 1},
                                 {.group_id = kWide, .num_new = 1}};
  Ids out(2);
  EXPECT_THROW(pool.allocate(demands, out), std::runtime_error);
  EXPECT_EQ(told.blocks, (Reused{{1, 6}, {1, 7}}));  // in spite of the one before
  EXPECT_EQ(pool.num_free_large_blocks(), 2);
  EXPECT_EQ(pool.find(hash_of(1), kSmall), 9);
  pool.check_invariants();
  pool.allocate(demands, out);
  pool.unpin_blocks(kSmall, Ids{out[0], 9}, fail);
  EXPECT_THROW(pool.get_new_blocks(kWide, 3), std::runtime_error);
  EXPECT_EQ(pool.num_used_blocks(kWide), 1);
  EXPECT_EQ(pool.get_new_blocks(kWide, 3).size(), 3);
  pool.check_invariants();
}

/// Large block 1: 2 of 4 slices in use, the others unpinned; large block 2: the same.
void unpinned_halves(SlicedBlockPool& pool, const SlicedBlockPool::ReuseCallback& on_reuse) {
  pool.get_new_blocks(kSmall, 8);
  pool.unpin_blocks(kSmall, Ids{4, 5}, on_reuse);
  pool.unpin_blocks(kSmall, Ids{8, 9}, on_reuse);
}

TEST(SlicedBlockPoolUnpin, MovesTellBeforeAnythingMoves) {
  SlicedBlockPool pool(3, kSlices);
  Told told;
  unpinned_halves(pool, [&](PoolGroupId group, BlockId block) {
    EXPECT_EQ(pool.ref_count(kSmall, 10), 1);  // still there
    pool.check_invariants();
    told.callback()(group, block);
  });
  const SliceDemand demand[] = {{.group_id = kWide, .num_new = 2}};
  EXPECT_TRUE(pool.can_make_room(demand));
  const auto moves = pool.make_room(demand);
  ASSERT_TRUE(moves);
  EXPECT_EQ(moves->size(), 2);
  std::sort(told.blocks.begin(), told.blocks.end());
  EXPECT_EQ(told.blocks, (Reused{{1, 4}, {1, 5}, {1, 8}, {1, 9}}));
  EXPECT_TRUE(pool.can_allocate(demand));
  pool.check_invariants();
}

TEST(SlicedBlockPoolUnpin, NothingMovesIfACallbackThrows) {
  SlicedBlockPool pool(3, kSlices);
  unpinned_halves(pool, [](PoolGroupId, BlockId) { throw std::runtime_error("no"); });
  const SliceDemand demand[] = {{.group_id = kWide, .num_new = 2}};
  EXPECT_THROW(pool.make_room(demand), std::runtime_error);
  for (const BlockId id : {6, 7, 10, 11}) EXPECT_EQ(pool.ref_count(kSmall, id), 1);
  pool.check_invariants();
  EXPECT_EQ(pool.make_room(demand)->size(), 2);
}

TEST(SlicedBlockPoolUnpin, ACallbackMayCallThePool) {
  SlicedBlockPool pool(4, kSlices);
  unpinned_halves(pool, [&](PoolGroupId, BlockId block) {
    if (block == 9) pool.free_blocks(kSmall, Ids{10});
  });
  pool.get_new_blocks(kWide, 2);
  const SliceDemand demand[] = {{.group_id = kWide, .num_new = 2}};
  const auto moves = pool.make_room(demand);
  ASSERT_TRUE(moves);
  EXPECT_EQ(moves->size(), 1);  // of the large block that the callback has left with one
  Ids out(2);
  pool.allocate(demand, out);
  pool.check_invariants();
}

TEST(SlicedBlockPoolUnpin, TheCallbackMovesWithItsBlock) {
  SlicedBlockPool pool(4, kSlices);
  Told told;
  scatter(pool);  // 7 moves to 8
  pool.touch(kSmall, Ids{7});
  pool.unpin_blocks(kSmall, Ids{7}, told.callback());
  const SliceDemand demand[] = {{.group_id = kWide, .num_new = 2}};
  EXPECT_EQ(pool.make_room(demand), (Moves{{kSmall, 7, 8}}));
  pool.free_blocks(kSmall, Ids{8, 9, 10, 11});
  pool.check_invariants();
  EXPECT_EQ(told.blocks, Reused{});
  EXPECT_EQ(pool.get_new_blocks(kWide, 4).size(), 4);
  EXPECT_EQ(told.blocks, (Reused{{1, 8}}));
}

TEST(SlicedBlockPool, HashesMoveToAnotherBlock) {
  SlicedBlockPool pool(4, kSlices, {.enable_events = true});
  const Ids ids = pool.get_new_blocks(kSmall, 3);
  pool.cache_partial_block(
      {.block = ids[0], .hash = "part", .num_tokens = 8, .hash_block_size = 8, .group_id = kSmall});
  pool.cache_full_blocks({.blocks = std::span(&ids[2], 1),
                          .hashes = std::vector<std::string_view>{"part"},
                          .block_size = 16,
                          .group_id = kSmall});
  pool.take_events();
  pool.free_blocks(kSmall, Ids{ids[0]});
  pool.move_block_hashes(kSmall, ids[0], ids[1]);
  EXPECT_EQ(pool.block_hash(kSmall, ids[1]), "part");
  EXPECT_EQ(pool.block_hash(kSmall, ids[0]), "");
  EXPECT_EQ(pool.find("part", kSmall), ids[2]);  // now the oldest
  EXPECT_FALSE(pool.has_events());
  EXPECT_EQ(pool.get_new_blocks(kSmall, 2), (Ids{ids[0], 7}));  // the first is empty
  pool.move_block_hashes(kSmall, 0, ids[0]);
  pool.move_block_hashes(kSmall, ids[0], 7);
  const auto error = [&](PoolGroupId group, BlockId src, BlockId dst) {
    return error_of([&] { pool.move_block_hashes(group, src, dst); });
  };
  EXPECT_EQ(error(kSmall, ids[1], ids[2]),
            "move_block_hashes: block 6 of group 1 already has a hash");
  EXPECT_EQ(error(kSmall, ids[1], ids[1]),
            "move_block_hashes: block 5 of group 1 already has a hash");
  EXPECT_EQ(error(kSmall, ids[1], 0), "move_block_hashes: block 0 of group 1 is the null block");
  pool.free_blocks(kSmall, Ids{7});
  EXPECT_EQ(error(kSmall, ids[1], 7), "move_block_hashes: block 7 of group 1 has no holder");
  EXPECT_EQ(error(kSmall, ids[1], 8),
            "move_block_hashes: block 8 of group 1 lies in large block 2, which is in the reserve");
  EXPECT_EQ(error(kWide, 2, 3),
            "move_block_hashes: block 2 of group 0 lies in large block 1, which belongs to group "
            "1");
  EXPECT_EQ(pool.block_hash(kSmall, ids[1]), "part");
  pool.check_invariants();
}

/// Bytes follow the ids: a request reads what it has written, whatever has moved in between.
TEST(SlicedBlockPoolMoves, ContentsFollow) {
  constexpr int64_t kBytes = 12;  // of a large block
  constexpr int64_t kNumLarge = 40;
  constexpr int64_t kCut[] = {2, 4, 6};
  SlicedBlockPool pool(kNumLarge, kCut);
  std::vector<uint32_t> memory(static_cast<size_t>(kNumLarge * kBytes));
  struct Held {
    PoolGroupId group{};
    BlockId id = 0;
    uint32_t content = 0;
  };
  std::vector<Held> held;
  const auto page = [&](PoolGroupId group, BlockId id) {
    const int64_t bytes = kBytes / pool.slices(group);
    return std::span(memory).subspan(static_cast<size_t>(id * bytes), static_cast<size_t>(bytes));
  };
  std::mt19937 random(3);
  uint32_t num_written = 0;
  size_t num_moves = 0;
  for (int step = 0; step < 20000; ++step) {
    const PoolGroupId group{static_cast<uint16_t>(random() % 3)};
    const auto n = static_cast<int64_t>(random() % 9);
    const SliceDemand demand[] = {{.group_id = group, .num_new = n}};
    if (!pool.can_allocate(demand)) {
      if (const std::optional<Moves> moves = pool.make_room(demand)) {
        num_moves += moves->size();
        for (size_t i = moves->size(); i-- > 0;) {  // in any order
          const SliceMove& m = (*moves)[i];
          const auto from = page(m.group_id, m.source);
          std::copy(from.begin(), from.end(), page(m.group_id, m.destination).begin());
          for (Held& h : held) {
            if (h.group == m.group_id && h.id == m.source) {
              h.id = m.destination;
              break;
            }
          }
        }
      }
    }
    if (pool.can_allocate(demand)) {
      for (const BlockId id : pool.get_new_blocks(group, n)) {
        const auto to = page(group, id);
        std::fill(to.begin(), to.end(), ++num_written);
        held.push_back({group, id, num_written});
      }
    } else {
      for (size_t i = held.size() / 20; i > 0; --i) {
        std::swap(held[random() % held.size()], held.back());
        const Held h = held.back();
        held.pop_back();
        for (const uint32_t value : page(h.group, h.id)) ASSERT_EQ(value, h.content);
        pool.free_blocks(h.group, Ids{h.id});
      }
    }
  }
  EXPECT_GT(num_moves, 1000u);
  for (const Held& h : held) {
    for (const uint32_t value : page(h.group, h.id)) ASSERT_EQ(value, h.content);
  }
}

TEST(SlicedBlockPool, LargeBlocksNeededAreThoseMissing) {
  SlicedBlockPool pool(4, kSlices);
  const auto needed = [&](int64_t wide, int64_t small, const Ids& found = {}) {
    const SliceDemand demands[] = {{.group_id = kWide, .num_new = wide},
                                   {.group_id = kSmall, .found = found, .num_new = small}};
    return pool.num_large_blocks_needed(demands);
  };
  EXPECT_EQ(needed(0, 0), 0);
  EXPECT_EQ(needed(3, 4), 3);
  EXPECT_EQ(needed(20, 40), 20);  // more than there are
  EXPECT_GT(needed(int64_t{1} << 62, int64_t{1} << 62), int64_t{1} << 59);
  const Ids small = pool.get_new_blocks(kSmall, 2);
  EXPECT_EQ(needed(0, 2), 0);
  EXPECT_EQ(needed(0, 3), 1);
  cache(pool, kSmall, small, 0);
  pool.free_blocks(kSmall, small);
  // Both lie in one large block that nobody uses, with two slices beside them.
  EXPECT_EQ(needed(0, 2, small), 1);
  EXPECT_EQ(needed(1, 3, small), 3);
  EXPECT_THROW(needed(0, -1), InvalidArgument);
}

TEST(SlicedBlockPool, FrugalAllocationTakesNoLargeBlockThatItDoesNotNeed) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    std::mt19937 random(seed);
    const int64_t slices[] = {static_cast<int64_t>(1 + random() % 3),
                              static_cast<int64_t>(2 + random() % 7)};
    SlicedBlockPool pool(60, slices);
    std::vector<Ids> held(2);
    std::vector<int64_t> most_held(2);
    int next_hash = 0;
    for (int step = 0; step < 400; ++step) {
      const SliceDemand demands[] = {
          {.group_id = kWide, .num_new = static_cast<int64_t>(random() % 4)},
          {.group_id = kSmall, .num_new = static_cast<int64_t>(random() % 12)}};
      const int64_t free = pool.num_free_large_blocks();
      const int64_t needed = pool.num_large_blocks_needed(demands);
      if (needed <= free) {
        Ids ids(static_cast<size_t>(demands[0].num_new + demands[1].num_new));
        pool.allocate(demands, ids, true);
        EXPECT_EQ(pool.num_free_large_blocks(), free - needed);
        const auto split = ids.begin() + demands[0].num_new;
        held[0].insert(held[0].end(), ids.begin(), split);
        held[1].insert(held[1].end(), split, ids.end());
        if (random() % 2 == 0) {
          cache(pool, kSmall, Ids(split, ids.end()), next_hash);
          next_hash += static_cast<int>(demands[1].num_new);
        }
      }
      for (size_t g = 0; g < 2; ++g) {
        most_held[g] = std::max<int64_t>(most_held[g], static_cast<int64_t>(held[g].size()));
        // The group's large blocks in use are no more than its blocks ever filled.
        std::vector<bool> in_use(60);
        for (const BlockId id : held[g]) in_use[static_cast<size_t>(id / slices[g])] = true;
        EXPECT_LE(std::count(in_use.begin(), in_use.end(), true),
                  (most_held[g] + slices[g] - 1) / slices[g]);
        std::shuffle(held[g].begin(), held[g].end(), random);
        const size_t kept = std::min<size_t>(held[g].size(), random() % 40);
        pool.free_blocks(PoolGroupId{static_cast<uint16_t>(g)}, std::span(held[g]).subspan(kept));
        held[g].resize(kept);
      }
      pool.check_invariants();
    }
  }
}

TEST(SliceDivision, IsDivision) {
  std::mt19937 random(1);
  const uint32_t most = std::numeric_limits<int32_t>::max();
  for (int i = 0; i < 200'000; ++i) {
    const uint32_t d =
        i < 2000 ? static_cast<uint32_t>(i) + 1 : 1 + static_cast<uint32_t>(random()) % most;
    const detail::SliceDivision division(d);
    for (const uint32_t n : {0u, d - 1, d, most, most / d * d, most / d * d - 1,
                             static_cast<uint32_t>(random()) % most}) {
      if (n > most) continue;
      ASSERT_EQ(division.quotient(n), n / d) << n << " / " << d;
    }
  }
}

TEST(HighestBit, IsTheLargestMember) {
  std::mt19937 random(1);
  for (const uint32_t size : {1u, 64u, 65u, 5000u}) {
    detail::HighestBit bits(size);
    std::vector<bool> members(size);
    for (int step = 0; step < 2000; ++step) {
      const uint32_t i = static_cast<uint32_t>(random()) % size;
      members[i] = random() % 3 == 0;
      members[i] ? bits.insert(i) : bits.erase(i);
      uint32_t expected = detail::HighestBit::kNone;
      for (uint32_t j = 0; j < size; ++j) {
        if (members[j]) expected = j;
      }
      ASSERT_EQ(bits.highest(), expected);
    }
  }
}

TEST(SlicedBlockPool, DoesWhatTheModelDoes) {
  constexpr int kPools = 200;
  constexpr int kSteps = 5000;  // a million in all
  int64_t num_moves = 0;
  int64_t num_reused = 0;
  for (int seed = 0; seed < kPools; ++seed) {
    testing::RandomBytes bytes(static_cast<uint64_t>(seed));
    const int num_large = 1 + bytes.below(seed % 2 ? 14 : 24);
    std::vector<int> slices;
    for (int n = bytes.below(4); n >= 0; --n) slices.push_back(1 + bytes.below(7));
    testing::SlicedPoolDriver driver(num_large, slices, bytes.below(4) != 0, bytes.below(9) / 8.0);
    for (int step = 0; step < kSteps; ++step) {
      ASSERT_NO_THROW(driver.step(bytes, step % 8 == 0)) << "seed " << seed << " step " << step;
    }
    num_moves += driver.num_moves();
    num_reused += driver.num_reused();
  }
  EXPECT_GT(num_moves, 5000);
  EXPECT_GT(num_reused, 5000);
}

}  // namespace
}  // namespace kvplan
