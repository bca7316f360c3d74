#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "kvplan/block_pool.h"
#include "kvplan/sliced_block_pool.h"

/// What both pools promise alike, tried on the plain pool, on a sliced pool that cuts nothing, and
/// on one that cuts; and the second compared with the first, operation by operation.
namespace kvplan {
namespace {

using Ids = std::vector<BlockId>;
constexpr PoolGroupId kGroup{0};
constexpr int64_t kBlocks = 12;  // that a group can have

/// One group's face of a pool.
struct Plain {
  explicit Plain(bool caching = true, int64_t blocks = kBlocks)
      : pool(blocks + 1,
             {.enable_caching = caching, .enable_events = true, .max_events = 1'000'000}) {}
  Ids take(int64_t n) { return pool.get_new_blocks(n); }
  void touch(const Ids& ids) { pool.touch(ids); }
  void free(const Ids& ids) { pool.free_blocks(ids); }
  void unpin(const Ids& ids, std::function<void(BlockId)> told) {
    pool.unpin_blocks(ids, std::move(told));
  }
  void evict(const Ids& ids) { pool.evict_blocks(ids); }
  void move_hashes(BlockId from, BlockId to) { pool.move_block_hashes(from, to); }
  int64_t num_free() const { return pool.num_free_blocks(); }
  int32_t ref_count(BlockId id) const { return pool.ref_count(id); }

  BlockPool pool;
};

template <int64_t kSlices>
struct Sliced {
  static constexpr int64_t kOf[] = {kSlices};
  explicit Sliced(bool caching = true, int64_t blocks = kBlocks)
      : pool(blocks / kSlices + 1, kOf,
             {.enable_caching = caching, .enable_events = true, .max_events = 1'000'000}) {}
  Ids take(int64_t n) { return pool.get_new_blocks(kGroup, n); }
  void touch(const Ids& ids) { pool.touch(kGroup, ids); }
  void free(const Ids& ids) { pool.free_blocks(kGroup, ids); }
  void unpin(const Ids& ids, std::function<void(BlockId)> told) {
    pool.unpin_blocks(kGroup, ids, [told = std::move(told)](PoolGroupId, BlockId id) { told(id); });
  }
  void evict(const Ids& ids) { pool.evict_blocks(kGroup, ids); }
  void move_hashes(BlockId from, BlockId to) { pool.move_block_hashes(kGroup, from, to); }
  int64_t num_free() const { return pool.num_free_blocks(kGroup); }
  int32_t ref_count(BlockId id) const { return pool.ref_count(kGroup, id); }

  SlicedBlockPool pool;
};

template <class Pool>
void cache(Pool& p, const Ids& ids, const std::vector<std::string>& hashes, int64_t first = 0) {
  const std::vector<std::string_view> views(hashes.begin(), hashes.end());
  p.pool.cache_full_blocks(
      {.blocks = ids, .hashes = views, .first_block = first, .block_size = 16});
}

template <class Pool>
class PoolBehaviour : public ::testing::Test {};
using Pools = ::testing::Types<Plain, Sliced<1>, Sliced<4>>;
TYPED_TEST_SUITE(PoolBehaviour, Pools);

TYPED_TEST(PoolBehaviour, TakesAllOrNothingAndNeverTheNullBlock) {
  TypeParam p;
  EXPECT_EQ(p.num_free(), kBlocks);
  Ids ids = p.take(kBlocks);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), kNullBlock), 0);
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(std::unique(ids.begin(), ids.end()), ids.end());
  EXPECT_THROW(p.take(1), BlockPoolError);
  EXPECT_THROW(p.take(-1), InvalidArgument);
  p.free({ids[0], ids[1]});
  EXPECT_THROW(p.take(3), BlockPoolError);
  EXPECT_EQ(p.num_free(), 2);
}

TYPED_TEST(PoolBehaviour, HoldersAreCounted) {
  TypeParam p;
  const Ids ids = p.take(2);
  p.touch({ids[0], kNullBlock});
  EXPECT_EQ(p.ref_count(ids[0]), 2);
  EXPECT_THROW(p.free({ids[0], ids[1], ids[1]}), BlockPoolError);
  EXPECT_EQ(p.ref_count(ids[0]), 2) << "nothing was freed";
  p.free({ids[0], kNullBlock, ids[1]});
  EXPECT_EQ(p.num_free(), kBlocks - 1);
  EXPECT_THROW(p.free({ids[1]}), BlockPoolError);
  EXPECT_THROW(p.free({1000}), BlockPoolError);
}

TYPED_TEST(PoolBehaviour, WhatIsCachedIsFoundUntilItsBlockIsReused) {
  TypeParam p;
  const Ids ids = p.take(4);
  cache(p, ids, {"a", "b", "c", "d"});
  p.free({ids[3], ids[2], ids[1], ids[0]});
  const std::vector<std::string_view> hashes{"a", "b", "x", "d"};
  Ids found(4);
  EXPECT_EQ(p.pool.find_prefix(hashes, kGroup, found), 2);
  EXPECT_EQ((Ids{found[0], found[1]}), (Ids{ids[0], ids[1]}));
  p.touch({ids[0], ids[1]});
  p.take(kBlocks - 4);  // those that hold nothing
  EXPECT_TRUE(p.pool.find("c", kGroup));
  p.take(2);
  EXPECT_FALSE(p.pool.find("c", kGroup));
  EXPECT_FALSE(p.pool.find("d", kGroup));
  EXPECT_EQ(p.pool.find("a", kGroup), ids[0]);
}

TYPED_TEST(PoolBehaviour, RoomAndCachingAsAsked) {
  TypeParam p(false);
  const Ids ids = p.take(1);
  const PoolGroupId groups[] = {kGroup};
  EXPECT_THROW(p.pool.find_in_groups("a", groups, std::span<BlockId>()), InvalidArgument);
  EXPECT_THROW(p.pool.find(std::string(33, 'x'), kGroup), InvalidArgument);
  EXPECT_THROW(p.pool.find("", kGroup), InvalidArgument);
  cache(p, {kNullBlock, ids[0]}, {"null", "a"});
  EXPECT_FALSE(p.pool.find("null", kGroup));
  Ids out(1);
  EXPECT_TRUE(p.pool.find_in_groups("a", groups, out));
  EXPECT_EQ(out, ids);
}

TYPED_TEST(PoolBehaviour, HashesMoveAndGo) {
  TypeParam p;
  const Ids ids = p.take(3);
  cache(p, {ids[0], ids[1]}, {"a", "b"});
  EXPECT_THROW(p.move_hashes(ids[0], ids[1]), BlockPoolError);
  EXPECT_THROW(p.move_hashes(ids[0], kNullBlock), BlockPoolError);
  p.move_hashes(ids[0], ids[2]);
  EXPECT_EQ(p.pool.find("a", kGroup), ids[2]);
  p.evict({ids[2], ids[2]});
  EXPECT_FALSE(p.pool.find("a", kGroup));
  EXPECT_FALSE(p.pool.reset_prefix_cache());
  p.free(ids);
  EXPECT_TRUE(p.pool.reset_prefix_cache());
  EXPECT_EQ(p.pool.num_cached_hashes(), 0);
  EXPECT_EQ(p.num_free(), kBlocks);
}

TYPED_TEST(PoolBehaviour, EventsSayWhatHappened) {
  TypeParam p;
  const Ids ids = p.take(2);
  cache(p, ids, {"a", "b"}, 3);
  p.evict({ids[1]});
  const std::vector<BlockPoolEvent> events = p.pool.take_events();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].blocks, ids);
  EXPECT_EQ(events[0].positions, (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(events[1].kind, BlockPoolEvent::Kind::kRemoved);
  EXPECT_EQ(events[1].hashes, (std::vector<std::string>{"b"}));
  EXPECT_EQ(events[1].blocks, (Ids{ids[1]}));
  EXPECT_EQ(events[1].block_size, 16);
  EXPECT_FALSE(events[1].still_cached);
}

TYPED_TEST(PoolBehaviour, UnpinnedBlocksAreReusedLastAndReported) {
  TypeParam p;
  const Ids ids = p.take(2);
  Ids told;
  const auto tell = [&](BlockId id) { told.push_back(id); };
  EXPECT_THROW(p.unpin({kNullBlock}, tell), BlockPoolError);
  EXPECT_THROW(p.unpin({ids[0], ids[0]}, tell), BlockPoolError);
  p.unpin({ids[0]}, tell);
  p.touch({ids[0]});
  p.unpin({ids[0]}, tell);
  p.take(kBlocks - 2);
  EXPECT_EQ(told, Ids{});
  EXPECT_EQ(p.take(1), (Ids{ids[0]}));
  EXPECT_EQ(told, (Ids{ids[0], ids[0]}));
}

}  // namespace
}  // namespace kvplan
