#include "kvplan/block_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "block_pool_model.h"

namespace kvplan {
namespace {

using Ids = std::vector<BlockId>;
constexpr PoolGroupId kGroup{0};

void cache_full(BlockPool& pool, const Ids& blocks, const std::vector<std::string_view>& hashes,
                int64_t first_block = 0, PoolGroupId group = kGroup) {
  pool.cache_full_blocks({.blocks = blocks,
                          .hashes = hashes,
                          .first_block = first_block,
                          .block_size = 16,
                          .group_id = group});
}

bool cache_partial(BlockPool& pool, BlockId block, std::string_view hash, int64_t num_tokens) {
  return pool.cache_partial_block(
      {.block = block, .hash = hash, .num_tokens = num_tokens, .hash_block_size = 4});
}

TEST(BlockPool, HandsOutBlocksInOrderAndNeverTheNullBlock) {
  BlockPool pool(5);
  EXPECT_EQ(pool.num_free_blocks(), 4);
  EXPECT_EQ(pool.get_new_blocks(int64_t{3}), (Ids{1, 2, 3}));
  EXPECT_EQ(pool.get_new_blocks(int64_t{1}), (Ids{4}));
  EXPECT_EQ(pool.usage(), 1.0);
  EXPECT_THROW(pool.get_new_blocks(int64_t{1}), BlockPoolError);
  EXPECT_EQ(pool.get_new_blocks(int64_t{0}), Ids{});
  EXPECT_THROW(pool.get_new_blocks(int64_t{-1}), InvalidArgument);
}

TEST(BlockPool, AllocatesAllOrNothing) {
  BlockPool pool(5);
  pool.get_new_blocks(int64_t{2});
  EXPECT_THROW(pool.get_new_blocks(int64_t{3}), BlockPoolError);
  EXPECT_EQ(pool.free_block_ids(), (Ids{3, 4}));
  EXPECT_THROW(pool.get_new_blocks(int64_t{1} << 60), BlockPoolError);
}

TEST(BlockPool, UncachedBlocksAreReusedFirstAndCachedOnesLast) {
  BlockPool pool(7);
  const Ids blocks = pool.get_new_blocks(int64_t{4});
  cache_full(pool, {blocks[0], blocks[2]}, {"a", "b"});
  pool.free_blocks(Ids{4, 3, 2, 1});
  EXPECT_EQ(pool.free_block_ids(), (Ids{4, 2, 5, 6, 3, 1}));
}

TEST(BlockPool, BatchesAreFreedOneAfterAnother) {
  BlockPool pool(9);
  const Ids blocks = pool.get_new_blocks(int64_t{4});
  cache_full(pool, {2, 4}, {"a", "b"});
  const std::vector<size_t> ends = {2, 4};
  const std::vector<size_t> too_few = {2, 3};
  EXPECT_THROW(pool.free_batches(blocks, too_few), InvalidArgument);
  EXPECT_THROW(pool.free_batches(blocks, {}), InvalidArgument);
  EXPECT_THROW(pool.free_batches(Ids{1, 2, 3, 1}, ends), BlockPoolError);
  EXPECT_EQ(pool.free_block_ids(), (Ids{5, 6, 7, 8}));
  pool.free_batches(blocks, ends);
  EXPECT_EQ(pool.free_block_ids(), (Ids{3, 1, 5, 6, 7, 8, 2, 4}));
  // A block goes with the batch that takes its last holder.
  pool.touch(Ids{2, 2, 4});
  pool.free_batches(Ids{2, 4, 2}, std::vector<size_t>{1, 3});
  EXPECT_EQ(pool.free_block_ids(), (Ids{3, 1, 5, 6, 7, 8, 4, 2}));
}

TEST(BlockPool, BlocksThatLeaveTheMiddleKeepTheOrder) {
  BlockPool pool(7);
  pool.get_new_blocks(int64_t{6});
  cache_full(pool, {1, 2, 3, 4, 5, 6}, {"a", "b", "c", "d", "e", "f"});
  pool.free_blocks(Ids{1, 2, 3, 4, 5, 6});
  Ids order = {1, 2, 3, 4, 5, 6};
  for (size_t i = 0; i < 100; ++i) {
    const BlockId block = order[i % 5 + 1];
    pool.touch(Ids{block});
    EXPECT_EQ(pool.first_free(), order[0]);
    order.erase(std::find(order.begin(), order.end(), block));
    for (size_t at = 0; at + 1 < order.size(); ++at) {
      EXPECT_EQ(pool.next_free(order[at]), order[at + 1]);
      EXPECT_EQ(pool.prev_free(order[at + 1]), order[at]);
    }
    pool.free_blocks(Ids{block});
    order.push_back(block);
    ASSERT_EQ(pool.free_block_ids(), order);
    pool.check_invariants();
  }
}

TEST(BlockPool, WithoutCachingEveryFreedBlockIsReusedFirst) {
  BlockPool pool(4, {.enable_caching = false});
  pool.get_new_blocks(int64_t{2});
  cache_full(pool, {1}, {"a"});
  pool.free_blocks(Ids{2, 1});
  EXPECT_EQ(pool.free_block_ids(), (Ids{2, 1, 3}));
}

TEST(BlockPool, TouchTakesABlockOutOfTheFreeList) {
  BlockPool pool(4);
  pool.touch(Ids{2, 2, 0});
  EXPECT_EQ(pool.ref_count(2), 2);
  EXPECT_EQ(pool.free_block_ids(), (Ids{1, 3}));
  EXPECT_EQ(pool.next_free(1), 3);
  EXPECT_EQ(pool.prev_free(3), 1);
  EXPECT_EQ(pool.next_free(2), std::nullopt);
  pool.free_blocks(Ids{2});
  EXPECT_FALSE(pool.is_free(2));
  pool.free_blocks(Ids{2});
  EXPECT_TRUE(pool.is_free(2));
}

// Freeing a block more often than it is held is an error that changes nothing.
TEST(BlockPool, FreeingTooOftenChangesNothing) {
  BlockPool pool(6);
  pool.get_new_blocks(int64_t{3});
  pool.touch(Ids{2});
  EXPECT_THROW(pool.free_blocks(Ids{1, 2, 2, 3, 3}), BlockPoolError);
  EXPECT_THROW(pool.free_blocks(Ids{1, 2, 4}), BlockPoolError);
  EXPECT_THROW(pool.free_blocks(Ids{1, 2, 6}), BlockPoolError);
  EXPECT_THROW(pool.free_blocks(Ids{1, 2, -1}), BlockPoolError);
  EXPECT_EQ(pool.ref_count(1), 1);
  EXPECT_EQ(pool.ref_count(2), 2);
  EXPECT_EQ(pool.ref_count(3), 1);
  EXPECT_EQ(pool.free_block_ids(), (Ids{4, 5}));
  pool.free_blocks(Ids{1, 2, 2, 3});
  EXPECT_EQ(pool.free_block_ids(), (Ids{1, 2, 3, 4, 5}));
}

TEST(BlockPool, MessagesNameTheBlockAndTheLimit) {
  BlockPool pool(3);
  try {
    pool.free_blocks(Ids{2});
    FAIL();
  } catch (const BlockPoolError& e) {
    EXPECT_STREQ(e.what(),
                 "free_blocks: block 2 has 0 holder(s) and is released 1 time(s) by this call; "
                 "nothing was freed");
  }
  try {
    pool.touch(Ids{3});
    FAIL();
  } catch (const BlockPoolError& e) {
    EXPECT_STREQ(e.what(), "touch: block id 3 is not in the pool, which has ids 0 to 2");
  }
}

TEST(BlockPool, BadIdsAtTheEndLeaveEverythingAsItWas) {
  BlockPool pool(6, {.enable_events = true});
  pool.get_new_blocks(int64_t{2});
  cache_full(pool, {1}, {"a"});
  pool.take_events();
  EXPECT_THROW(pool.touch(Ids{3, 4, 6}), BlockPoolError);
  EXPECT_THROW(pool.evict_blocks(Ids{1, -1}), BlockPoolError);
  EXPECT_THROW(pool.unpin_blocks(Ids{1, 0}, [](BlockId) {}), BlockPoolError);
  EXPECT_THROW(cache_full(pool, {2, 9}, {"b", "c"}), BlockPoolError);
  EXPECT_THROW(cache_full(pool, {2, 1}, {"b", "c"}, -1), InvalidArgument);
  EXPECT_THROW(cache_full(pool, {2, 3}, {"b", ""}), InvalidArgument);
  EXPECT_EQ(pool.free_block_ids(), (Ids{3, 4, 5}));
  EXPECT_EQ(pool.num_cached_hashes(), 1);
  EXPECT_EQ(pool.find("a", kGroup), 1);
  EXPECT_FALSE(pool.has_events());
}

TEST(BlockPool, GroupsNeedRoomForTheirBlocks) {
  BlockPool pool(4);
  const PoolGroupId groups[] = {PoolGroupId{0}, PoolGroupId{1}};
  Ids one(1);
  EXPECT_THROW(pool.find_in_groups("hash", groups, one), InvalidArgument);
  Ids two(2);
  EXPECT_FALSE(pool.find_in_groups("hash", groups, two));
}

// The null block has id 0, is never freed, and does not count.
TEST(BlockPool, NullBlock) {
  BlockPool pool(9);
  pool.free_blocks(Ids{0, 0});
  EXPECT_EQ(pool.num_free_blocks(), 8);
  EXPECT_FALSE(pool.is_free(0));
  const Ids blocks = pool.get_new_blocks(int64_t{2});
  EXPECT_EQ(pool.usage(), 0.25);
  pool.free_blocks(Ids{0, blocks[0], 0, blocks[1]});
  EXPECT_EQ(pool.usage(), 0.0);
  cache_full(pool, {0}, {"a"});
  EXPECT_FALSE(cache_partial(pool, 0, "b", 4));
  EXPECT_EQ(pool.num_cached_hashes(), 0);
  EXPECT_THROW(pool.insert_hash(0, "a", kGroup, 16), BlockPoolError);

  BlockPool only_null(1);
  EXPECT_EQ(only_null.usage(), 0.0);
  EXPECT_EQ(only_null.num_free_blocks(), 0);
  EXPECT_TRUE(only_null.reset_prefix_cache());
  EXPECT_THROW(BlockPool(0), InvalidArgument);
  EXPECT_THROW(BlockPool(int64_t{1} << 31), InvalidArgument);
}

TEST(BlockPool, FindsByHashAndGroup) {
  BlockPool pool(8);
  const std::string sha(32, '\x7f');
  pool.get_new_blocks(int64_t{3});
  cache_full(pool, {1}, {sha});
  cache_full(pool, {2}, {sha}, 0, PoolGroupId{7});
  EXPECT_EQ(pool.find(sha, kGroup), 1);
  EXPECT_EQ(pool.find(sha, PoolGroupId{7}), 2);
  EXPECT_EQ(pool.find(sha, PoolGroupId{8}), std::nullopt);
  EXPECT_EQ(pool.find(sha.substr(1), kGroup), std::nullopt);
  Ids found(2);
  EXPECT_TRUE(pool.find_in_groups(sha, std::vector{PoolGroupId{7}, kGroup}, found));
  EXPECT_EQ(found, (Ids{2, 1}));
  EXPECT_FALSE(pool.find_in_groups(sha, std::vector{kGroup, PoolGroupId{1}}, found));
  EXPECT_THROW(pool.find(std::string(33, 'x'), kGroup), InvalidArgument);
}

TEST(BlockPool, FindPrefixStopsAtTheFirstMiss) {
  BlockPool pool(8);
  pool.get_new_blocks(int64_t{4});
  cache_full(pool, {1, 2, 3}, {"a", "b", "d"});
  Ids found(4);
  EXPECT_EQ(pool.find_prefix(std::vector<std::string_view>{"a", "b", "c", "d"}, kGroup, found), 2);
  EXPECT_EQ(found[0], 1);
  EXPECT_EQ(found[1], 2);
}

TEST(BlockPool, FindPrefixOfAnyLength) {
  std::vector<std::string> hashes;
  for (int i = 0; i < 20; ++i) hashes.push_back("hash " + std::to_string(i));
  const std::vector<std::string_view> all(hashes.begin(), hashes.end());
  for (size_t missing = 0; missing <= all.size(); ++missing) {
    BlockPool pool(21);
    const Ids blocks = pool.get_new_blocks(int64_t{20});
    std::vector<uint8_t> mask(20, 1);
    if (missing < mask.size()) mask[missing] = 0;
    pool.cache_full_blocks({.blocks = blocks, .hashes = all, .block_size = 16, .mask = mask});
    Ids found(20);
    const int64_t n = pool.find_prefix(all, kGroup, found);
    EXPECT_EQ(n, static_cast<int64_t>(missing));
    EXPECT_TRUE(std::equal(found.begin(), found.begin() + n, blocks.begin()));
    EXPECT_EQ(pool.find_prefix(all, kGroup, std::span(found).first(3)), std::min<int64_t>(n, 3));
  }
}

TEST(BlockPool, OfBlocksWithOneHashTheOldestIsFound) {
  BlockPool pool(8);
  pool.get_new_blocks(int64_t{3});
  cache_full(pool, {2}, {"a"});
  cache_full(pool, {1}, {"a"});
  cache_full(pool, {3}, {"a"});
  EXPECT_EQ(pool.find("a", kGroup), 2);
  EXPECT_EQ(pool.num_cached_hashes(), 1);
  pool.evict_blocks(Ids{1});
  EXPECT_EQ(pool.find("a", kGroup), 2);
  pool.evict_blocks(Ids{2});
  EXPECT_EQ(pool.find("a", kGroup), 3);
  cache_full(pool, {2}, {"a"});
  EXPECT_EQ(pool.find("a", kGroup), 3);
}

TEST(BlockPool, AllocationForgetsWhatTheBlocksCached) {
  BlockPool pool(3, {.enable_events = true});
  pool.get_new_blocks(int64_t{2});
  cache_full(pool, {1, 2}, {"a", "b"});
  pool.free_blocks(Ids{2, 1});
  EXPECT_EQ(pool.get_new_blocks(int64_t{1}), (Ids{2}));
  EXPECT_EQ(pool.find("b", kGroup), std::nullopt);
  EXPECT_EQ(pool.find("a", kGroup), 1);
  const std::vector<BlockPoolEvent> events = pool.take_events();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].kind, BlockPoolEvent::Kind::kStored);
  EXPECT_EQ(events[0].hashes, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(events[0].parent_hash, std::nullopt);
  EXPECT_EQ(events[1].kind, BlockPoolEvent::Kind::kRemoved);
  EXPECT_EQ(events[1].hashes, (std::vector<std::string>{"b"}));
}

TEST(BlockPool, MaskedBlocksStayOutOfTheCache) {
  BlockPool pool(4, {.enable_events = true});
  pool.get_new_blocks(int64_t{3});
  const std::vector<std::string_view> hashes{"a", "", "c"};  // that of a masked block is not read
  const std::vector<uint8_t> mask{1, 0, 1};
  pool.cache_full_blocks({.blocks = Ids{1, 2, 3},
                          .hashes = hashes,
                          .first_block = 2,
                          .block_size = 16,
                          .group_id = PoolGroupId{3},
                          .parent_hash = "p",
                          .mask = mask});
  EXPECT_FALSE(pool.has_hash(2));
  EXPECT_EQ(pool.block_hash_num_tokens(3), 80);
  EXPECT_EQ(pool.take_events(), (std::vector<BlockPoolEvent>{{.kind = BlockPoolEvent::Kind::kStored,
                                                              .group_id = PoolGroupId{3},
                                                              .block_size = 16,
                                                              .hashes = {"a", "c"},
                                                              .parent_hash = "p",
                                                              .blocks = {1, 3},
                                                              .positions = {2, 4},
                                                              .first = 2,
                                                              .end = 5}}));
}

TEST(BlockPool, UsesAreNotedInOrder) {
  BlockPool pool(4, {.log_uses = true});
  pool.get_new_blocks(int64_t{2});
  pool.touch(Ids{0, 2});
  pool.evict_blocks(Ids{1});
  pool.free_blocks(Ids{2});
  EXPECT_THROW(pool.touch(Ids{9}), BlockPoolError);
  using Kind = BlockUse::Kind;
  EXPECT_EQ(pool.take_uses(),
            (std::vector<BlockUse>{
                {Kind::kTaken, 1}, {Kind::kTaken, 2}, {Kind::kTouched, 2}, {Kind::kEvicted, 1}}));
  EXPECT_TRUE(pool.take_uses().empty());
  BlockPool silent(4);
  silent.get_new_blocks(int64_t{2});
  EXPECT_TRUE(silent.take_uses().empty());
}

TEST(BlockPool, GroupsWithCommonHashesAreCachedOneAfterAnother) {
  const std::vector<PoolGroupId> groups = {PoolGroupId{65535}, kGroup, PoolGroupId{7}};
  const std::vector<uint32_t> columns = {2, 0, 3};
  const std::vector<std::string_view> hashes = {"a", "b", "c"};
  const std::vector<uint8_t> mask = {1, 0, 1};
  // Four columns, of which one is not cached; a null block; one that was cached up to its middle.
  const Ids table = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, kNullBlock, 12};
  const FullBlocks full = {
      .hashes = hashes, .first_block = 2, .block_size = 16, .parent_hash = "p", .mask = mask};
  const FullBlockColumns all = {
      .blocks = table.data(), .stride = 4, .groups = groups, .columns = columns};
  BlockPool together(20, {.enable_events = true});
  BlockPool apart(20, {.enable_events = true});
  for (BlockPool* pool : {&together, &apart}) {
    pool->get_new_blocks(int64_t{12});
    cache_partial(*pool, 9, "half", 36);
  }
  together.cache_full_blocks(full, all);
  for (size_t j = 0; j < groups.size(); ++j) {
    FullBlocks one = full;
    const Ids blocks = {all.at(0, j), all.at(1, j), all.at(2, j)};
    one.blocks = blocks;
    one.group_id = groups[j];
    apart.cache_full_blocks(one);
  }
  EXPECT_EQ(together.num_cached_hashes(), 5);
  EXPECT_EQ(together.take_events(), apart.take_events());
  for (const PoolGroupId group : groups) {
    for (const std::string_view hash : hashes) {
      EXPECT_EQ(together.find(hash, group), apart.find(hash, group));
    }
  }
  EXPECT_EQ(together.find("c", kGroup), 9);
  EXPECT_EQ(together.find("half", kGroup), std::nullopt);
  // The last of them has a hash already: nothing is cached.
  const std::vector<std::string_view> others = {"d", "e", "f"};
  const Ids with_one_cached = {13, 2, 14, 15, 5, 6, 7, 8, 16, 10, 17, 12};
  EXPECT_THROW(
      together.cache_full_blocks(
          {.hashes = others, .block_size = 16},
          {.blocks = with_one_cached.data(), .stride = 4, .groups = groups, .columns = columns}),
      BlockPoolError);
  EXPECT_EQ(together.num_cached_hashes(), 5);
  EXPECT_THROW(together.cache_full_blocks(full, {.blocks = table.data(), .groups = groups}),
               InvalidArgument);
  // One hash goes only with the last of its groups' blocks.
  together.evict_blocks(Ids{3, 1});
  EXPECT_EQ(together.find("a", PoolGroupId{7}), 4);
  together.evict_blocks(Ids{4});
  EXPECT_EQ(together.find("a", PoolGroupId{7}), std::nullopt);
  together.check_invariants();
}

TEST(BlockPool, AFullBlockIsNotCachedTwice) {
  BlockPool pool(4);
  pool.get_new_blocks(int64_t{3});
  cache_full(pool, {1}, {"a"}, 1);
  EXPECT_THROW(cache_full(pool, {2, 1}, {"b", "c"}), BlockPoolError);
  EXPECT_FALSE(pool.has_hash(2));
  // As in vLLM, the later hash of a block that comes twice counts.
  cache_full(pool, {2, 3, 2}, {"b", "c", "d"});
  EXPECT_EQ(pool.find("b", kGroup), std::nullopt);
  EXPECT_EQ(pool.find("c", kGroup), 3);
  EXPECT_EQ(pool.find("d", kGroup), 2);
}

TEST(BlockPool, WhatCannotBeCachedNamesTheValue) {
  BlockPool pool(4);
  pool.get_new_blocks(int64_t{2});
  const auto error_of = [&](auto change) {
    const Ids blocks{1, 2};
    const std::vector<std::string_view> hashes{"a", "b"};
    FullBlocks full{.blocks = blocks, .hashes = hashes, .block_size = 16};
    const std::string long_hash(1000, 'x');
    const std::vector<std::string_view> three{"a", "b", "c"};
    change(full, long_hash, three);
    try {
      pool.cache_full_blocks(full);
    } catch (const InvalidArgument& e) {
      EXPECT_FALSE(pool.has_hash(1)) << e.what();
      return std::string(e.what());
    }
    return std::string("no error");
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  EXPECT_TRUE(has(error_of([](auto& f, auto&, auto&) { f.first_block = kMax; }),
                  "from block 9223372036854775807 on"));
  EXPECT_TRUE(has(error_of([](auto& f, auto&, auto&) { f.block_size = kMax; }),
                  "of 9223372036854775807 tokens"));
  EXPECT_TRUE(has(error_of([](auto& f, auto&, auto& three) { f.hashes = three; }),
                  "2 blocks but 3 hashes"));
  EXPECT_TRUE(has(error_of([](auto& f, auto& text, auto&) { f.parent_hash = text; }), "not 1000"));
  EXPECT_THROW(pool.cache_partial_block({.block = 1,
                                         .hash = "a",
                                         .num_tokens = 4,
                                         .hash_block_size = 4,
                                         .parent_hash = std::string(33, 'p')}),
               InvalidArgument);
  EXPECT_THROW(BlockPool(4, {.max_events = 0}), InvalidArgument);
}

TEST(BlockPool, EventsSayWhereAndWhetherTheHashIsStillFound) {
  BlockPool pool(4, {.enable_events = true});
  pool.get_new_blocks(int64_t{3});
  cache_full(pool, {1}, {"a"}, 7);
  cache_full(pool, {2}, {"a"}, 7);
  EXPECT_TRUE(cache_partial(pool, 3, "c", 8));
  pool.take_events();
  using Events = std::vector<BlockPoolEvent>;
  const auto removed = [](const char* hash, BlockId block, int64_t block_size, bool still_cached) {
    return BlockPoolEvent{.kind = BlockPoolEvent::Kind::kRemoved,
                          .block_size = block_size,
                          .hashes = {hash},
                          .blocks = {block},
                          .still_cached = still_cached};
  };
  pool.evict_blocks(Ids{1});
  EXPECT_EQ(pool.take_events(), (Events{removed("a", 1, 4, true)}));
  EXPECT_EQ(pool.find("a", kGroup), 2);
  cache_full(pool, {1}, {"b"}, 9);
  pool.evict_blocks(Ids{2});
  EXPECT_EQ(pool.take_events(), (Events{{.kind = BlockPoolEvent::Kind::kStored,
                                         .block_size = 16,
                                         .hashes = {"b"},
                                         .blocks = {1},
                                         .positions = {9},
                                         .first = 9,
                                         .end = 10},
                                        removed("a", 2, 16, false)}));
}

TEST(BlockPool, EventsThatNobodyTakesAreBounded) {
  BlockPool pool(2, {.enable_events = true, .max_events = 3});
  pool.get_new_blocks(int64_t{1});
  for (int i = 0; i < 5; ++i) {
    cache_full(pool, {1}, {"a"});
    pool.evict_block(1);
  }
  // 10 events: 4 on the 4th, and again on the 6th, 8th and 10th.
  const std::vector<BlockPoolEvent> events = pool.take_events();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].kind, BlockPoolEvent::Kind::kLost);
  EXPECT_EQ(events[0].num_lost, 9);
  EXPECT_EQ(events[1].kind, BlockPoolEvent::Kind::kRemoved);
  EXPECT_TRUE(pool.take_events().empty());
}

// The prefix of a filled block still holds: a boundary that was replaced can be cached again.
TEST(BlockPool, AReplacedBoundaryCanComeBack) {
  BlockPool pool(4, {.enable_events = true});
  pool.get_new_blocks(int64_t{1});
  EXPECT_TRUE(cache_partial(pool, 1, "h4", 4));
  EXPECT_TRUE(cache_partial(pool, 1, "h4", 4));  // still current: nothing changes
  EXPECT_TRUE(cache_partial(pool, 1, "h8", 8));  // grew
  EXPECT_EQ(pool.find("h4", kGroup), std::nullopt);
  cache_full(pool, {1}, {"h16"});
  EXPECT_EQ(pool.find("h8", kGroup), std::nullopt);
  pool.take_events();
  EXPECT_TRUE(cache_partial(pool, 1, "h8", 8));
  EXPECT_EQ(pool.find("h8", kGroup), 1);
  EXPECT_EQ(pool.find("h16", kGroup), 1);
  ASSERT_EQ(pool.take_events().size(), 1u);
  // Both go with the block.
  pool.free_blocks(Ids{1});
  pool.get_new_blocks(int64_t{3});
  EXPECT_EQ(pool.find("h8", kGroup), std::nullopt);
  EXPECT_EQ(pool.take_events().size(), 2u);
}

TEST(BlockPool, AliasesGoWithTheirBlock) {
  BlockPool pool(4, {.enable_events = true});
  pool.get_new_blocks(int64_t{2});
  cache_full(pool, {1}, {"h16"});
  cache_partial(pool, 1, "h8", 8);
  cache_partial(pool, 1, "h12", 12);
  EXPECT_EQ(pool.secondary_hashes(1), (std::vector<BlockPool::CachedHash>{{"h8"}, {"h12"}}));
  pool.move_block_hashes(1, 2);
  EXPECT_FALSE(pool.has_hash(1));
  EXPECT_EQ(pool.find("h8", kGroup), 2);
  EXPECT_EQ(pool.block_hash(2), "h16");
  EXPECT_EQ(pool.block_hash_num_tokens(2), 16);
  EXPECT_THROW(pool.move_block_hashes(1, 2), BlockPoolError);
  pool.take_events();
  EXPECT_EQ(pool.evict_block(2), 3);
  EXPECT_EQ(pool.take_events().size(), 3u);
  EXPECT_EQ(pool.num_cached_hashes(), 0);
}

TEST(BlockPool, ReplacedContentLosesItsHashes) {
  BlockPool pool(4);
  pool.get_new_blocks(int64_t{1});
  cache_full(pool, {1}, {"h16"});
  EXPECT_TRUE(pool.cache_partial_block({.block = 1,
                                        .hash = "new",
                                        .num_tokens = 8,
                                        .hash_block_size = 4,
                                        .replace_existing = true}));
  EXPECT_EQ(pool.find("h16", kGroup), std::nullopt);
  EXPECT_EQ(pool.block_hash_num_tokens(1), 8);
}

TEST(BlockPool, UnpinnedBlocksAreReusedLastAndReported) {
  BlockPool pool(5);
  pool.get_new_blocks(int64_t{2});
  Ids reused;
  std::vector<bool> was_free;
  pool.unpin_blocks(Ids{1, 2}, [&](BlockId id) {
    reused.push_back(id);
    was_free.push_back(pool.is_free(id));
  });
  EXPECT_EQ(pool.free_block_ids(), (Ids{3, 4, 1, 2}));
  pool.get_new_blocks(int64_t{3});
  EXPECT_EQ(reused, (Ids{1}));
  pool.free_blocks(Ids{1, 3, 4});
  EXPECT_TRUE(pool.reset_prefix_cache());
  EXPECT_EQ(reused, (Ids{1, 2}));
  EXPECT_EQ(was_free, (std::vector<bool>{false, true}));  // handed out, and reset
}

TEST(BlockPool, EveryCallbackOfABlockIsCalled) {
  BlockPool pool(3);
  pool.get_new_blocks(int64_t{1});
  pool.touch(Ids{1});
  std::string told;
  pool.unpin_blocks(Ids{1}, [&](BlockId) { told += "first "; });
  pool.unpin_blocks(Ids{1}, [&](BlockId) { told += "second "; });
  pool.touch(Ids{1});
  pool.unpin_blocks(Ids{1}, [&](BlockId) { told += "third "; });
  pool.get_new_blocks(int64_t{2});
  EXPECT_EQ(told, "first second third ");
}

TEST(BlockPool, AThrowingCallbackLeavesTheBlocksFree) {
  BlockPool pool(4);
  pool.get_new_blocks(int64_t{1});
  pool.unpin_blocks(Ids{1}, [](BlockId) { throw std::runtime_error("no"); });
  EXPECT_THROW(pool.get_new_blocks(int64_t{3}), std::runtime_error);
  EXPECT_EQ(pool.free_block_ids(), (Ids{2, 3, 1}));
  pool.check_invariants();
}

#if KVPLAN_CHECKS
TEST(BlockPool, ASecondThreadIsRefused) {
  BlockPool pool(4);
  pool.get_new_blocks(int64_t{1});
  bool refused = false;
  // The callback keeps the first thread inside the pool; it may itself call the pool again.
  pool.unpin_blocks(Ids{1}, [&](BlockId) {
    pool.touch(Ids{0});
    std::thread second([&] {
      try {
        pool.touch(Ids{0});
      } catch (const BlockPoolError&) {
        refused = true;
      }
    });
    second.join();
  });
  pool.get_new_blocks(int64_t{3});
  EXPECT_TRUE(refused);
  std::thread later([&] { pool.free_blocks(Ids{1}); });
  later.join();
  EXPECT_TRUE(pool.is_free(1));
}
#endif

TEST(BlockPool, ResetNeedsAllBlocksFree) {
  BlockPool pool(4, {.enable_events = true});
  pool.get_new_blocks(int64_t{1});
  cache_full(pool, {1}, {"a"});
  EXPECT_FALSE(pool.reset_prefix_cache());
  EXPECT_EQ(pool.find("a", kGroup), 1);
  pool.free_blocks(Ids{1});
  pool.take_events();
  EXPECT_TRUE(pool.reset_prefix_cache());
  EXPECT_EQ(pool.find("a", kGroup), std::nullopt);
  EXPECT_FALSE(pool.has_hash(1));
  EXPECT_EQ(pool.take_events()[0].kind, BlockPoolEvent::Kind::kCleared);
}

TEST(BlockPool, HoldersCanBeSetWhileThereAreAny) {
  BlockPool pool(4);
  pool.get_new_blocks(int64_t{1});
  pool.set_ref_count(1, 3);
  EXPECT_EQ(pool.ref_count(1), 3);
  EXPECT_THROW(pool.set_ref_count(1, 0), BlockPoolError);
  EXPECT_THROW(pool.set_ref_count(2, 1), BlockPoolError);
}

TEST(BlockPool, DetachedBlocksAreNeitherFreeNorHeld) {
  BlockPool pool(5);
  pool.detach_free(2);
  EXPECT_EQ(pool.num_free_blocks(), 3);
  EXPECT_THROW(pool.detach_free(2), BlockPoolError);
  EXPECT_THROW(pool.touch(Ids{2}), BlockPoolError);
  EXPECT_THROW(pool.free_blocks(Ids{2}), BlockPoolError);
  EXPECT_THROW(pool.attach_free_back(Ids{2, 2}), BlockPoolError);
  pool.attach_free_back(Ids{2});
  EXPECT_EQ(pool.free_block_ids(), (Ids{1, 3, 4, 2}));
}

TEST(BlockPool, ManyKeysOfOneByteDifference) {
  constexpr int kBlocks = 5000;
  BlockPool pool(kBlocks + 1);
  const Ids blocks = pool.get_new_blocks(int64_t{kBlocks});
  std::vector<std::string> hashes;
  for (int i = 0; i < kBlocks; ++i) {
    std::string hash(32, '\0');
    hash[31 - i % 32] = static_cast<char>(i / 32);
    hash[i % 31] = static_cast<char>(hash[i % 31] ^ (i / 32 + 1));
    hashes.push_back(hash);
  }
  std::vector<std::string_view> views(hashes.begin(), hashes.end());
  cache_full(pool, blocks, views);
  pool.check_invariants();
  pool.free_blocks(blocks);
  pool.get_new_blocks(int64_t{kBlocks / 2});
  pool.check_invariants();
  EXPECT_TRUE(pool.find(views.back(), kGroup).has_value());
}

TEST(BlockPool, EvictionHookSeesContentsBeforeTheyGo) {
  BlockPool pool(6);
  std::vector<BlockId> blocks = pool.get_new_blocks(3);
  const std::vector<std::string_view> views = {"first", "second", "third"};
  pool.cache_full_blocks({.blocks = blocks, .hashes = views, .block_size = 16});
  pool.free_blocks(blocks);
  std::vector<std::string> evicted;
  bool throws = true;
  pool.set_eviction_hook([&](std::span<const BlockId> ids) {
    if (throws) throw std::runtime_error("not now");
    for (const BlockId id : ids) evicted.emplace_back(pool.block_hash(id));
  });
  EXPECT_EQ(pool.get_new_blocks(2).size(), 2u) << "nothing is cached in them";
  const std::vector<BlockId> before = pool.free_block_ids();
  EXPECT_THROW(pool.get_new_blocks(2), std::runtime_error);
  EXPECT_EQ(pool.free_block_ids(), before);
  throws = false;
  EXPECT_EQ(pool.get_new_blocks(2), (std::vector<BlockId>{blocks[0], blocks[1]}));
  EXPECT_EQ(evicted, (std::vector<std::string>{"first", "second"}));
  pool.set_eviction_hook(nullptr);
  pool.get_new_blocks(1);
  EXPECT_EQ(evicted.size(), 2u);
}

TEST(BlockPool, PrefixCacheIsSavedAndRestored) {
  BlockPool pool(8);
  std::vector<BlockId> blocks = pool.get_new_blocks(4);
  const std::vector<std::string_view> views = {"a", "b", "c", "d"};
  pool.cache_full_blocks({.blocks = blocks, .hashes = views, .block_size = 16});
  pool.insert_hash(blocks[1], "another", PoolGroupId{3}, 8);
  pool.free_blocks(std::vector<BlockId>{blocks[2], blocks[1], blocks[0]});
  const std::vector<SavedHash> saved = save_prefix_cache(pool);
  ASSERT_EQ(saved.size(), 5u);
  EXPECT_EQ(saved[0].hash, "c");
  EXPECT_EQ(saved[0].num_tokens, 48);
  EXPECT_EQ(saved.back().block, blocks[3]) << "in use";

  BlockPool other(8);
  restore_prefix_cache(other, saved);
  other.check_invariants();
  EXPECT_EQ(other.find("b", PoolGroupId{0}), blocks[1]);
  EXPECT_EQ(other.find("another", PoolGroupId{3}), blocks[1]);
  EXPECT_EQ(save_prefix_cache(other), saved);
  EXPECT_THROW(restore_prefix_cache(other, saved), BlockPoolError) << "it has cached blocks";
  BlockPool small(3);
  EXPECT_THROW(restore_prefix_cache(small, saved), BlockPoolError);
  std::vector<SavedHash> bad = saved;
  std::swap(bad[1], bad[4]);
  std::swap(bad[2], bad[3]);
  bad[0].block = blocks[1];
  BlockPool empty(8);
  EXPECT_THROW(restore_prefix_cache(empty, bad), BlockPoolError);
  bad = saved;
  bad[0].hash.clear();
  EXPECT_THROW(restore_prefix_cache(empty, bad), InvalidArgument);
  EXPECT_EQ(empty.num_cached_hashes(), 0);
  EXPECT_EQ(empty.free_block_ids(), BlockPool(8).free_block_ids());
}

TEST(BlockPool, BehavesLikeTheModel) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    testing::RandomBytes bytes(seed);
    testing::BlockPoolDriver driver(1 + static_cast<int>(seed % 20), seed % 4 != 0);
    for (int i = 0; i < 2500; ++i) ASSERT_NO_THROW(driver.step(bytes)) << "seed " << seed;
  }
}

}  // namespace
}  // namespace kvplan
