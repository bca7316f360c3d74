#include "kvplan/sliced_block_pool.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
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

class RandomBytes : public testing::ByteSource {
 public:
  explicit RandomBytes(uint64_t seed) : random_(seed) {}
  uint8_t next() override { return static_cast<uint8_t>(random_() >> 7); }

 private:
  std::mt19937_64 random_;
};

TEST(SlicedBlockPool, DoesWhatTheModelDoes) {
  constexpr int kPools = 200;
  constexpr int kSteps = 5000;  // a million in all
  for (int seed = 0; seed < kPools; ++seed) {
    RandomBytes bytes(static_cast<uint64_t>(seed));
    const int num_large = 1 + bytes.below(14);
    std::vector<int> slices;
    for (int n = bytes.below(4); n >= 0; --n) slices.push_back(1 + bytes.below(7));
    testing::SlicedPoolDriver driver(num_large, slices, bytes.below(4) != 0, bytes.below(9) / 8.0);
    for (int step = 0; step < kSteps; ++step) {
      ASSERT_NO_THROW(driver.step(bytes, step % 8 == 0)) << "seed " << seed << " step " << step;
    }
  }
}

}  // namespace
}  // namespace kvplan
