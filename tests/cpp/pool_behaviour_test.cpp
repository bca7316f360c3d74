#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
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

/// One random sequence of operations on the plain pool and on a sliced pool that cuts nothing. Only
/// which of the empty blocks comes next may differ; so ids are compared through a map.
class SameOperations {
 public:
  explicit SameOperations(uint64_t seed) : random_(seed), unpins_(seed % 2 == 0) {}

  void step() {
    switch (below(7)) {
      case 0:
      case 1:
        take();
        break;
      case 2:
      case 3: {
        std::shuffle(held_.begin(), held_.end(), random_);
        const Ids ids = pop(std::min<size_t>(held_.size(), static_cast<size_t>(below(7))));
        plain_.free(ids);
        sliced_.free(in_sliced(ids));
        break;
      }
      case 4:
        hit();
        break;
      case 5:
        // Not both: an unpinned block that lost its hash is kept in the sliced pool alone.
        unpins_ ? unpin() : change_hashes();
        break;
      default:
        if (below(10) == 0) {
          ASSERT_EQ(plain_.pool.reset_prefix_cache(), sliced_.pool.reset_prefix_cache());
        } else {
          cache_one();
        }
    }
    compare();
  }

 private:
  int below(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }
  BlockId any_held() { return held_[static_cast<size_t>(below(static_cast<int>(held_.size())))]; }
  Ids in_sliced(const Ids& ids) const {
    Ids others;
    for (const BlockId id : ids) others.push_back(sliced_id_.at(id));
    return others;
  }
  Ids pop(size_t n) {
    const Ids ids(held_.end() - static_cast<ptrdiff_t>(n), held_.end());
    held_.resize(held_.size() - n);
    return ids;
  }
  /// Whether both pools did it, or both refused.
  template <class Do>
  void both(Do&& operation) {
    const auto accepts = [&](auto& pool, auto&& translate) {
      try {
        operation(pool, translate);
        return true;
      } catch (const BlockPoolError&) {
        return false;
      }
    };
    const bool accepted = accepts(plain_, [](BlockId id) { return id; });
    ASSERT_EQ(accepts(sliced_, [&](BlockId id) { return sliced_id_.at(id); }), accepted);
  }

  void take() {
    const int64_t n = std::min<int64_t>(below(5), plain_.num_free());
    const Ids ids = plain_.take(n);
    note_events();  // by the old ids
    const Ids others = sliced_.take(n);
    for (size_t i = 0; i < ids.size(); ++i) sliced_id_[ids[i]] = others[i];
    held_.insert(held_.end(), ids.begin(), ids.end());
  }
  void cache_one() {
    if (held_.empty()) return;
    const BlockId id = any_held();
    const std::string hash = "hash " + std::to_string(below(30));
    const int64_t position = below(6);
    if (below(3) == 0) {
      both([&](auto& p, auto&& translate) {
        p.pool.cache_partial_block({.block = translate(id),
                                    .hash = hash,
                                    .num_tokens = 16 * position + 3,
                                    .hash_block_size = 1});
      });
    } else {
      both([&](auto& p, auto&& translate) { cache(p, {translate(id)}, {hash}, position); });
    }
  }
  void hit() {
    const std::string hash = "hash " + std::to_string(below(30));
    const std::optional<BlockId> found = plain_.pool.find(hash, kGroup);
    const std::optional<BlockId> other = sliced_.pool.find(hash, kGroup);
    ASSERT_EQ(found.has_value(), other.has_value());
    if (!found) return;
    ASSERT_EQ(sliced_id_.at(*found), *other);
    plain_.touch({*found});
    sliced_.touch({*other});
    held_.push_back(*found);
  }
  /// Of blocks in use: what loses its hash while it is free is empty in the sliced pool alone.
  void change_hashes() {
    if (held_.empty()) return;
    const BlockId from = any_held();
    const BlockId to = any_held();
    if (below(2) == 0) {
      both([&](auto& p, auto&& translate) { p.evict({translate(from)}); });
    } else {
      both([&](auto& p, auto&& translate) { p.move_hashes(translate(from), translate(to)); });
    }
  }
  /// By its last holder: a later one decides anew in the plain pool alone.
  void unpin() {
    if (held_.empty() || plain_.ref_count(held_.back()) != 1) return;
    const Ids ids = pop(1);
    plain_.unpin(ids, [this](BlockId id) { told_.push_back(sliced_id_.at(id)); });
    sliced_.unpin(in_sliced(ids), [this](BlockId id) { told_by_sliced_.push_back(id); });
  }
  void note_events() {
    for (BlockPoolEvent& event : plain_.pool.take_events()) {
      event.blocks = in_sliced(event.blocks);
      events_.push_back(std::move(event));
    }
  }
  void compare() {
    sliced_.pool.check_invariants();
    ASSERT_EQ(plain_.num_free(), sliced_.num_free());
    ASSERT_EQ(plain_.pool.num_cached_hashes(), sliced_.pool.num_cached_hashes());
    ASSERT_EQ(told_, told_by_sliced_);
    note_events();
    ASSERT_EQ(std::exchange(events_, {}), sliced_.pool.take_events());
    for (const BlockId id : held_) {
      ASSERT_EQ(plain_.ref_count(id), sliced_.ref_count(sliced_id_.at(id)));
    }
  }

  std::mt19937_64 random_;
  const bool unpins_;
  Plain plain_;
  Sliced<1> sliced_;
  Ids held_;  // by the plain pool's ids; once for each holder
  std::map<BlockId, BlockId> sliced_id_;
  std::vector<BlockPoolEvent> events_;  // of the plain pool, with the sliced pool's ids
  Ids told_;
  Ids told_by_sliced_;
};

TEST(PoolBehaviour, ASlicedPoolThatCutsNothingIsThePlainPool) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SameOperations operations(seed);
    for (int i = 0; i < 300; ++i) {
      operations.step();
      ASSERT_FALSE(::testing::Test::HasFatalFailure()) << "seed " << seed << ", step " << i;
    }
  }
}

}  // namespace
}  // namespace kvplan
