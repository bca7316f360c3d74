#include "kvplan/cache_manager.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kvplan/errors.h"

// Order, hits and events beside vLLM's own manager: tests/vllm033/test_cache_manager.py.
namespace kvplan {
namespace {

CacheGroup group(CacheKind kind, int64_t block_size, int64_t window = 0) {
  CacheGroup made;
  made.kind = kind;
  made.block_size = block_size;
  made.window = window;
  return made;
}

CacheManagerOptions options(std::vector<CacheGroup> groups, int64_t num_blocks = 100) {
  CacheManagerOptions made;
  made.groups = std::move(groups);
  made.num_blocks = num_blocks;
  made.max_model_len = 1000;
  return made;
}

/// `count` hashes of 32 bytes, distinct for each seed and place.
std::vector<std::byte> hashes(int64_t count, uint32_t seed = 0) {
  std::vector<std::byte> bytes(static_cast<size_t>(count) * 32);
  for (uint32_t i = 0; i < count; ++i) {
    const std::array<uint32_t, 2> words = {seed, i + 1};
    std::memcpy(bytes.data() + static_cast<size_t>(i) * 32, words.data(), sizeof(words));
  }
  return bytes;
}

RequestTokens prompt(int64_t num_tokens) {
  RequestTokens tokens;
  tokens.num_tokens = tokens.num_prompt_tokens = num_tokens;
  return tokens;
}

Allocation fresh(int64_t num_tokens) {
  Allocation allocation;
  allocation.num_new_tokens = num_tokens;
  return allocation;
}

std::vector<BlockId> table(const CacheManager& manager, RequestHandle request, size_t group) {
  const BlockTableView view = manager.block_table(request, group);
  std::vector<BlockId> ids;
  for (size_t i = 0; i < view.size(); ++i) ids.push_back(view[i]);
  return ids;
}

class FullAndWindow : public testing::Test {
 protected:
  CacheManager manager{
      options({group(CacheKind::kFullAttention, 16), group(CacheKind::kSlidingWindow, 16, 32)})};

  RequestHandle admit(int64_t num_tokens, uint32_t seed = 0) {
    const RequestHandle request = manager.add_request();
    manager.append_hashes(request, hashes(num_tokens / 16, seed));
    PrefixHit hit;
    manager.find_prefix(request, num_tokens - 1, hit);
    Allocation allocation = fresh(num_tokens - hit.num_tokens);
    allocation.num_new_computed_tokens = hit.num_tokens;
    EXPECT_TRUE(manager.allocate(request, prompt(num_tokens), allocation, &hit));
    return request;
  }
};

TEST_F(FullAndWindow, SecondRequestTakesOverThePrefix) {
  const RequestHandle first = admit(100);
  EXPECT_EQ(table(manager, first, 0), (std::vector<BlockId>{1, 2, 3, 4, 5, 6, 7}));
  const RequestHandle second = admit(100);
  EXPECT_EQ(table(manager, second, 0), (std::vector<BlockId>{1, 2, 3, 4, 5, 6, 15}));
  // A window of 32 tokens reads two blocks of the hit.
  EXPECT_EQ(table(manager, second, 1), (std::vector<BlockId>{0, 0, 0, 0, 12, 13, 16}));
  EXPECT_EQ(manager.num_common_prefix_blocks(second, 0), 6);
}

TEST_F(FullAndWindow, BatchStepEqualsOneCallEach) {
  const RequestHandle a = admit(100);
  const RequestHandle b = admit(90, 1);
  CacheManager other(
      options({group(CacheKind::kFullAttention, 16), group(CacheKind::kSlidingWindow, 16, 32)}));
  const RequestHandle c = other.add_request();
  const RequestHandle d = other.add_request();
  other.append_hashes(c, hashes(6));
  other.append_hashes(d, hashes(5, 1));
  ASSERT_TRUE(other.allocate(c, prompt(100), fresh(100)));
  ASSERT_TRUE(other.allocate(d, prompt(90), fresh(90)));
  std::array<AppendedBlock, 8> appended;
  for (int64_t step = 0; step < 50; ++step) {
    const std::array requests = {a, b};
    const std::array<int64_t, 2> computed = {100 + step, 90 + step};
    DecodeStep decode;
    decode.requests = requests;
    decode.num_computed_tokens = computed;
    const StepResult result = manager.schedule(decode, appended);
    ASSERT_EQ(result.num_scheduled, 2u);
    size_t count = 0;
    for (const auto& [request, tokens] : {std::pair{c, computed[0]}, std::pair{d, computed[1]}}) {
      RequestTokens now = prompt(tokens == computed[0] && request == c ? 100 : 90);
      now.num_computed_tokens = tokens;
      now.num_tokens = tokens + 1;
      ASSERT_TRUE(other.allocate(request, now, fresh(1)));
      for (size_t g = 0; g < 2; ++g) {
        for (const BlockId block : other.new_blocks(g)) {
          ASSERT_LT(count, result.num_appended);
          EXPECT_EQ(appended[count].block, block);
          EXPECT_EQ(appended[count].group, static_cast<int32_t>(g));
          ++count;
        }
      }
    }
    EXPECT_EQ(count, result.num_appended);
  }
}

TEST_F(FullAndWindow, StepStopsWhereBlocksOrRoomEnd) {
  const RequestHandle request = admit(96);
  const std::array requests = {request};
  const std::array<int64_t, 1> computed = {96};
  DecodeStep step;
  step.requests = requests;
  step.num_computed_tokens = computed;
  std::array<AppendedBlock, 1> one;
  EXPECT_EQ(manager.schedule(step, one).stop, StepResult::Stop::kNoRoom);
  EXPECT_EQ(manager.block_table(request, 0).size(), 6u);
  const std::vector<BlockId> taken =
      manager.pool().get_new_blocks(manager.pool().num_free_blocks());
  std::array<AppendedBlock, 2> two;
  // The window lets go of a block, but two are needed.
  EXPECT_EQ(manager.schedule(step, two).stop, StepResult::Stop::kNoBlocks);
  manager.pool().free_blocks(taken);
  EXPECT_EQ(manager.schedule(step, two).num_appended, 2u);
}

TEST_F(FullAndWindow, BadCallsChangeNothing) {
  const RequestHandle request = admit(100);
  const std::vector<BlockId> before = table(manager, request, 0);
  const std::vector<BlockId> free_before = manager.pool().free_block_ids();
  const auto unknown = static_cast<RequestHandle>(7);
  EXPECT_THROW(manager.free(unknown), InvalidArgument);
  EXPECT_THROW(manager.free(static_cast<RequestHandle>(-1)), InvalidArgument);
  EXPECT_THROW(manager.allocate(unknown, prompt(10), fresh(10)), InvalidArgument);
  EXPECT_THROW(manager.allocate(request, prompt(100), fresh(0)), InvalidArgument);
  EXPECT_THROW(manager.allocate(request, prompt(100), fresh(-1)), InvalidArgument);
  EXPECT_THROW(manager.allocate(request, prompt(int64_t{1} << 40), fresh(1)), InvalidArgument);
  PrefixHit hit;
  hit.blocks = {{1}, {2}};
  EXPECT_THROW(manager.allocate(request, prompt(100), fresh(1), &hit), InvalidArgument)
      << "a running request has no new hit";
  hit.blocks = {{1}};
  EXPECT_THROW(manager.allocate(request, prompt(100), fresh(1), &hit), InvalidArgument);
  const RequestHandle other = manager.add_request();
  hit.blocks = {{1000}, {}};
  EXPECT_THROW(manager.allocate(other, prompt(100), fresh(1), &hit), BlockPoolError);
  hit.blocks = {{1, 2, 3, 4, 5, 6}, {}};
  EXPECT_THROW(manager.allocate(other, prompt(10), fresh(10), &hit), InvalidArgument)
      << "more blocks than computed tokens";
  manager.append_hashes(other, hashes(6));
  EXPECT_THROW(manager.commit(other, prompt(100), 96), InvalidArgument) << "nothing is allocated";
  EXPECT_THROW(manager.append_hashes(other, std::vector<std::byte>(33)), InvalidArgument);
  EXPECT_THROW(manager.truncate_hashes(other, 7), InvalidArgument);
  EXPECT_THROW(manager.block_table(request, 2), InvalidArgument);
  manager.remove_request(other);
  EXPECT_THROW(manager.remove_request(other), InvalidArgument) << "removed twice";
  EXPECT_EQ(table(manager, request, 0), before);
  EXPECT_EQ(manager.pool().free_block_ids(), free_before);
  manager.check_invariants();
}

TEST_F(FullAndWindow, NumbersOutOfRangeChangeNothing) {
  const RequestHandle request = admit(100);
  const std::vector<BlockId> free_before = manager.pool().free_block_ids();
  const int64_t quiet_until = manager.quiet_until(request);
  PrefixHit hit;
  const std::vector<int64_t> bad = {-1, int64_t{1} << 31, int64_t{1} << 62, INT64_MAX, INT64_MIN};
  for (const int64_t value : bad) {
    EXPECT_THROW(manager.find_prefix(request, value, hit), InvalidArgument);
    EXPECT_THROW(manager.find_prefix_for_connector(request, value, hit), InvalidArgument);
    EXPECT_THROW(manager.hold_prefix(request, value, hit), InvalidArgument);
    EXPECT_THROW(manager.fork(request, value), InvalidArgument);
    EXPECT_THROW(manager.revert(request, value), InvalidArgument);
    EXPECT_THROW(manager.commit(request, prompt(100), value), InvalidArgument);
    EXPECT_THROW(manager.remove_skipped_blocks(request, value), InvalidArgument);
    EXPECT_THROW(manager.remove_skipped_blocks(request, 0, value), InvalidArgument);
    EXPECT_THROW(manager.record_blocks_for_zeroing(request, value), InvalidArgument);
    EXPECT_THROW(manager.finalize_partial_tails(request, value, 0), InvalidArgument);
    EXPECT_THROW(manager.num_blocks_for_computed_tokens(request, 0, value), InvalidArgument);
    EXPECT_THROW(manager.truncate_hashes(request, value), InvalidArgument);
    EXPECT_THROW(manager.record_prefix_cache_stats(value, 0, false), InvalidArgument);
    CacheManager::Demand demand;
    demand.num_tokens = value;
    EXPECT_THROW(manager.num_blocks_to_allocate(request, demand), InvalidArgument);
    const std::array requests = {request, request};
    const std::array<int64_t, 2> computed = {100, value};
    DecodeStep step;
    step.requests = std::span(requests).first(1);
    step.num_computed_tokens = std::span(computed).last(1);
    std::array<AppendedBlock, 8> appended;
    EXPECT_THROW(manager.schedule(step, appended), InvalidArgument);
    step.requests = requests;
    step.num_computed_tokens = computed;
    EXPECT_THROW(manager.schedule(step, appended), InvalidArgument);
  }
  EXPECT_THROW(manager.block_size(2), InvalidArgument);
  EXPECT_THROW(manager.new_blocks(2), InvalidArgument);
  for (const int32_t unknown : {-1, 1, INT32_MAX}) {
    EXPECT_THROW(manager.quiet_until(RequestHandle{unknown}), InvalidArgument);
  }
  EXPECT_EQ(manager.pool().free_block_ids(), free_before);
  EXPECT_EQ(manager.quiet_until(request), quiet_until);
  manager.check_invariants();
}

TEST_F(FullAndWindow, AStepNamesARequestOnce) {
  const std::array named = {admit(96), admit(96, 1), RequestHandle{0}};
  std::array<AppendedBlock, 8> appended;
  const std::vector<BlockId> free_before = manager.pool().free_block_ids();
  for (const int64_t tokens : {96, 97}) {  // due, and quiet later
    const std::array<int64_t, 3> computed = {tokens, tokens, tokens};
    DecodeStep step;
    step.requests = named;
    step.num_computed_tokens = computed;
    EXPECT_THROW(manager.schedule(step, appended), InvalidArgument);
    if (tokens == 96) {
      EXPECT_EQ(manager.pool().free_block_ids(), free_before);
    }
    step.requests = std::span(named).first(2);
    step.num_computed_tokens = std::span(computed).first(2);
    EXPECT_EQ(manager.schedule(step, appended).num_appended, tokens == 96 ? 4u : 0u);
  }
}

TEST(CacheManager, AHitWithRSWAsGapIsNotQuiet) {
  CacheManager manager(options({group(CacheKind::kRSWA, 8, 4)}));
  const RequestHandle first = manager.add_request();
  manager.append_hashes(first, hashes(13));
  ASSERT_TRUE(manager.allocate(first, prompt(105), fresh(105)));
  // Of a prompt of 88 tokens; the others are outputs of before it was preempted.
  RequestTokens tokens = prompt(105);
  tokens.num_prompt_tokens = 88;
  const RequestHandle second = manager.add_request();
  manager.append_hashes(second, hashes(13));
  PrefixHit hit;
  manager.find_prefix(second, 104, hit);
  ASSERT_EQ(hit.num_tokens, 104);
  Allocation allocation = fresh(1);
  allocation.num_new_computed_tokens = 104;
  ASSERT_TRUE(manager.allocate(second, tokens, allocation, &hit));
  EXPECT_NE(table(manager, second, 0)[11], kNullBlock);
  EXPECT_LE(manager.quiet_until(second), 106) << "the next step drops the gap";
  tokens.num_tokens = 106;
  tokens.num_computed_tokens = 105;
  ASSERT_TRUE(manager.allocate(second, tokens, fresh(1)));
  EXPECT_EQ(table(manager, second, 0)[11], kNullBlock);
}

TEST(CacheManager, ABoundaryThatOthersShareIsCached) {
  CacheManagerOptions sparse =
      options({group(CacheKind::kFullAttention, 16), group(CacheKind::kSlidingWindow, 16, 32)});
  sparse.retention_interval = 0;
  CacheManager manager(sparse);
  PrefixHit hit;
  // Prompts of 160 tokens that share the first 96.
  const auto admit = [&](uint32_t seed) {
    std::vector<std::byte> names = hashes(6);
    const std::vector<std::byte> own = hashes(4, seed);
    names.insert(names.end(), own.begin(), own.end());
    const RequestHandle request = manager.add_request();
    manager.append_hashes(request, names);
    manager.find_prefix(request, 159, hit);
    RequestTokens tokens = prompt(160);
    tokens.shared_prefix_boundary = hit.shared_prefix_boundary;
    Allocation allocation = fresh(160 - hit.num_tokens);
    allocation.num_new_computed_tokens = hit.num_tokens;
    EXPECT_TRUE(manager.allocate(request, tokens, allocation, &hit));
  };
  admit(1);
  EXPECT_EQ(hit.shared_prefix_boundary, 0);
  admit(2);
  EXPECT_EQ(hit.num_tokens, 0) << "windows are cached for the prompt's end alone";
  EXPECT_EQ(hit.shared_prefix_boundary, 96) << "but others share this";
  admit(3);
  EXPECT_EQ(hit.num_tokens, 96) << "so the second cached a window there";
}

TEST(CacheManager, TheStateAtAPromptsEndIsCached) {
  CacheGroup states = group(CacheKind::kMamba, 64);
  states.mamba_align = true;
  CacheManagerOptions made = options({group(CacheKind::kFullAttention, 16), states});
  made.hash_block_size = 16;
  CacheManager manager(made);
  ASSERT_TRUE(manager.enable_partial_hits());
  PrefixHit hit;
  const RequestHandle first = manager.add_request();
  manager.append_hashes(first, hashes(6));
  RequestTokens tokens = prompt(100);
  ASSERT_TRUE(manager.allocate(first, tokens, fresh(96)));  // up to the boundary, as vLLM does
  tokens.num_computed_tokens = 96;
  ASSERT_TRUE(manager.allocate(first, tokens, fresh(4)));
  manager.new_step_starts();
  const RequestHandle second = manager.add_request();
  manager.append_hashes(second, hashes(6));
  manager.find_prefix(second, 99, hit);
  EXPECT_EQ(hit.num_tokens, 96) << "inside a block of states";
  EXPECT_EQ(manager.take_copies().size(), 1u) << "the first goes on beside what it cached";
}

TEST_F(FullAndWindow, OptionsAreChecked) {
  const auto full = group(CacheKind::kFullAttention, 16);
  const auto refused = [](CacheManagerOptions bad) { EXPECT_THROW(CacheManager{bad}, Error); };
  CacheManagerOptions bad = options({full});
  bad.hash_block_size = 8;
  refused(bad);
  refused(options({}));
  refused(options({group(CacheKind::kFullAttention, 0)}));
  refused(options({full, group(CacheKind::kSlidingWindow, 16, 0)}));
  refused(options({full, group(CacheKind::kMamba, 16)}));
  refused(options({full, group(CacheKind::kCrossAttention, 16)}));
  refused(options({group(CacheKind::kFullAttention, 32), group(CacheKind::kChunkedLocal, 16, 64)}));
  bad = options({full, full});
  bad.retention_interval = 16;
  refused(bad);
  bad = options({full, group(CacheKind::kSlidingWindow, 16, 32)});
  bad.retention_interval = 24;
  refused(bad);
  bad = options({full});
  bad.watermark = -0.1;
  refused(bad);
  KVCacheSpec hot;
  hot.kind = SpecKind::kHiSparseHot;
  EXPECT_THROW(cache_group(hot), Unsupported);
}

TEST_F(FullAndWindow, HeldPrefixSurvivesOthers) {
  const RequestHandle first = admit(100);
  manager.free(first);
  const RequestHandle second = manager.add_request();
  manager.append_hashes(second, hashes(6));
  PrefixHit hit;
  manager.hold_prefix(second, 99, hit);
  ASSERT_EQ(hit.num_tokens, 96);
  const int64_t num_held = 6 + 2;
  EXPECT_EQ(manager.pool().num_free_blocks(), 99 - num_held);
  // All others are taken, and none of the found ones is among them.
  const std::vector<BlockId> others = manager.pool().get_new_blocks(99 - num_held);
  Allocation allocation = fresh(4);
  allocation.num_new_computed_tokens = 96;
  EXPECT_FALSE(manager.allocate(second, prompt(100), allocation, &hit)) << "still held";
  manager.pool().free_blocks(others);
  EXPECT_TRUE(manager.allocate(second, prompt(100), allocation, &hit));
  EXPECT_EQ(manager.pool().ref_count(hit.blocks[0][0]), 1);
  EXPECT_THROW(manager.hold_prefix(second, 99, hit), InvalidArgument) << "it has blocks";
  manager.free(second);
  manager.hold_prefix(second, 99, hit);
  manager.hold_prefix(second, 99, hit);
  EXPECT_EQ(hit.num_tokens, 96);
  EXPECT_EQ(manager.pool().ref_count(hit.blocks[0][0]), 1) << "the second replaces the first";
  manager.release_hold(second);
  EXPECT_EQ(manager.pool().num_free_blocks(), 99);
  manager.hold_prefix(second, 99, hit);
  manager.remove_request(second);
  EXPECT_EQ(manager.pool().num_free_blocks(), 99);
}

TEST_F(FullAndWindow, RetainedPrefixesMakeWayInTheirOrder) {
  const auto keep = [&](uint32_t seed, const Retention& retention) {
    const RequestHandle request = admit(100, seed);
    const int64_t id = manager.retain_prefix(request, 99, retention);
    manager.remove_request(request);
    return id;
  };
  const auto ids = [&] {
    std::vector<int64_t> all;
    for (const RetainedPrefix& prefix : manager.retained_prefixes()) all.push_back(prefix.id);
    return all;
  };
  const int64_t high = keep(1, {.priority = 5});
  const int64_t pinned = keep(2, {.priority = -1, .pinned = true});
  const int64_t low = keep(3, {.until = 20});
  const int64_t low_too = keep(4, {.until = 10});
  EXPECT_EQ(ids(), (std::vector<int64_t>{low, low_too, high, pinned}));
  EXPECT_EQ(manager.retained_prefixes()[0].num_tokens, 96);
  // Six blocks of the first group and a window of two each.
  EXPECT_EQ(manager.pool().num_free_blocks(), 99 - 4 * 8);
  const RequestHandle other = manager.add_request();
  EXPECT_EQ(manager.retain_prefix(other, 99, {}), 0) << "nothing is cached of it";
  EXPECT_FALSE(manager.allocate(other, prompt(800), fresh(800)));
  EXPECT_EQ(ids().size(), 4) << "it would not fit without them either";
  EXPECT_EQ(manager.pool().num_free_blocks(), 99 - 4 * 8);
  ASSERT_TRUE(manager.allocate(other, prompt(36 * 16), fresh(36 * 16)));
  EXPECT_EQ(ids(), (std::vector<int64_t>{low_too, high, pinned})) << "72 blocks, 67 were free";
  manager.free(other);
  EXPECT_EQ(manager.expire_retained(9), 0);
  EXPECT_EQ(manager.expire_retained(10), 1);
  EXPECT_THROW(manager.release_retained(low), InvalidArgument);
  EXPECT_THROW(manager.retain_prefix(other, -1, {}), InvalidArgument);
  manager.release_retained(high);
  // A block of a retained prefix is common to all requests as before.
  const RequestHandle again = admit(100, 2);
  EXPECT_EQ(manager.num_common_prefix_blocks(again, 0), 7);
  EXPECT_FALSE(manager.reset_prefix_cache()) << "a request has blocks";
  EXPECT_EQ(ids(), (std::vector<int64_t>{pinned}));
  manager.free(again);
  EXPECT_FALSE(manager.allocate(other, prompt(48 * 16), fresh(48 * 16))) << "96 of 99, 8 pinned";
  EXPECT_TRUE(manager.reset_prefix_cache());
  EXPECT_TRUE(ids().empty());
  EXPECT_EQ(manager.pool().num_free_blocks(), 99);
}

/// Prefixes that share their beginnings, against sets of blocks.
TEST(CacheManager, RetainedPrefixesAgainstAModel) {
  struct Kept {
    int64_t id = 0;
    Retention retention;
    std::vector<BlockId> blocks;
  };
  constexpr int64_t kNumBlocks = 60;
  CacheManagerOptions small = options({group(CacheKind::kFullAttention, 16)});
  small.num_blocks = kNumBlocks;
  CacheManager manager(small);
  std::mt19937 random(7);
  const auto draw = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
  std::vector<Kept> kept;  // in their order
  std::vector<RequestHandle> running;
  const auto num_free = [&](size_t first_kept) {
    std::set<BlockId> used{kNullBlock};
    for (size_t i = first_kept; i < kept.size(); ++i) {
      used.insert(kept[i].blocks.begin(), kept[i].blocks.end());
    }
    for (const RequestHandle request : running) {
      const std::vector<BlockId> blocks = table(manager, request, 0);
      used.insert(blocks.begin(), blocks.end());
    }
    return kNumBlocks - static_cast<int64_t>(used.size());
  };
  int num_made_way = 0;
  int num_refused = 0;
  for (int step = 0; step < 4000; ++step) {
    const int64_t what = draw(10);
    if (what < 4) {
      const RequestHandle request = manager.add_request();
      const int64_t num_blocks = 1 + draw(20);
      manager.append_hashes(request, hashes(num_blocks, static_cast<uint32_t>(draw(4))));
      PrefixHit hit;
      manager.find_prefix(request, num_blocks * 16 - 1, hit);
      // What it takes over is not free, whether or not somebody keeps it.
      size_t num_gone = 0;
      const auto fits = [&] {
        std::set<BlockId> missing(hit.blocks[0].begin(), hit.blocks[0].end());
        for (size_t i = num_gone; i < kept.size(); ++i) {
          for (const BlockId block : kept[i].blocks) missing.erase(block);
        }
        for (const RequestHandle other : running) {
          for (const BlockId block : table(manager, other, 0)) missing.erase(block);
        }
        const auto num_new = num_blocks - static_cast<int64_t>(hit.blocks[0].size());
        return num_new + static_cast<int64_t>(missing.size()) <= num_free(num_gone);
      };
      while (!fits() && num_gone < kept.size() && !kept[num_gone].retention.pinned) ++num_gone;
      const bool expected = fits();
      const std::vector<BlockId> free_before = manager.pool().free_block_ids();
      Allocation allocation = fresh(num_blocks * 16 - hit.num_tokens);
      allocation.num_new_computed_tokens = hit.num_tokens;
      ASSERT_EQ(manager.allocate(request, prompt(num_blocks * 16), allocation, &hit), expected);
      if (expected) {
        kept.erase(kept.begin(), kept.begin() + static_cast<std::ptrdiff_t>(num_gone));
        num_made_way += static_cast<int>(num_gone);
        running.push_back(request);
      } else {
        ASSERT_EQ(manager.pool().free_block_ids(), free_before);
        manager.remove_request(request);
        ++num_refused;
      }
    } else if (what < 6 && !running.empty()) {
      const RequestHandle request = running[static_cast<size_t>(draw(std::ssize(running)))];
      const Retention retention{
          .priority = draw(3), .until = step + draw(200), .pinned = draw(12) == 0};
      const std::vector<BlockId> blocks = table(manager, request, 0);
      const auto max_blocks = draw(std::ssize(blocks) + 1);
      const int64_t id = manager.retain_prefix(request, max_blocks * 16, retention);
      if (max_blocks == 0) {
        ASSERT_EQ(id, 0);
        continue;
      }
      // Of two blocks cached under one hash, the older one is found.
      PrefixHit hit;
      manager.find_prefix(request, max_blocks * 16, hit);
      kept.push_back({id, retention, hit.blocks[0]});
      std::stable_sort(kept.begin(), kept.end(), [](const Kept& a, const Kept& b) {
        return std::tuple(a.retention.pinned, a.retention.priority) <
               std::tuple(b.retention.pinned, b.retention.priority);
      });
    } else if (what < 9 && !running.empty()) {
      const auto at = running.begin() + draw(std::ssize(running));
      manager.remove_request(*at);
      running.erase(at);
    } else {
      const size_t gone =
          std::erase_if(kept, [&](const Kept& k) { return *k.retention.until <= step; });
      ASSERT_EQ(manager.expire_retained(step), gone);
    }
    const std::vector<RetainedPrefix> found = manager.retained_prefixes();
    ASSERT_EQ(found.size(), kept.size());
    for (size_t i = 0; i < kept.size(); ++i) ASSERT_EQ(found[i].id, kept[i].id) << step;
    ASSERT_EQ(manager.pool().num_free_blocks(), num_free(0)) << step;
  }
  EXPECT_GT(num_made_way, 100);
  EXPECT_GT(num_refused, 20);
}

TEST_F(FullAndWindow, TheEndOfAPrefixIsEvictedFirst) {
  const RequestHandle request = admit(100);
  manager.free(request);
  const std::vector<BlockId> order = manager.pool().free_block_ids();
  // What holds no whole block goes first, then each group's blocks from the last to the first.
  EXPECT_EQ(order[0], 14);
  EXPECT_EQ(order[1], 7);
  const std::vector<BlockId> cached(order.end() - 12, order.end());
  EXPECT_EQ(cached, (std::vector<BlockId>{6, 5, 4, 3, 2, 1, 13, 12, 11, 10, 9, 8}));
}

TEST_F(FullAndWindow, ForkSharesWhatIsFullAndCopiesTheRest) {
  const RequestHandle parent = admit(100);
  const std::optional<RequestHandle> child = manager.fork(parent, 100);
  ASSERT_TRUE(child.has_value());
  const std::vector<BlockCopy> copies = manager.take_copies();
  EXPECT_EQ(copies, (std::vector<BlockCopy>{{7, 15, 0}, {14, 16, 1}}));
  EXPECT_EQ(table(manager, *child, 0), (std::vector<BlockId>{1, 2, 3, 4, 5, 6, 15}));
  EXPECT_EQ(table(manager, *child, 1), (std::vector<BlockId>{8, 9, 10, 11, 12, 13, 16}));
  for (const BlockCopy& copy : copies) EXPECT_EQ(manager.pool().ref_count(copy.source), 2);
  manager.free_copies(copies);
  // Of an earlier point even the cached block that is written anew is copied.
  const std::optional<RequestHandle> earlier = manager.fork(parent, 90);
  ASSERT_TRUE(earlier.has_value());
  EXPECT_EQ(table(manager, *earlier, 0), (std::vector<BlockId>{1, 2, 3, 4, 5, 17}));
  EXPECT_EQ(manager.num_hashes(*earlier), 5);
  EXPECT_EQ(manager.take_copies(), (std::vector<BlockCopy>{{6, 17, 0}, {13, 18, 1}}));
  manager.pool().free_blocks(std::array<BlockId, 4>{6, 17, 13, 18});
  manager.remove_request(*earlier);
  // Both go on by themselves; the child's next block is cached under its own hash.
  RequestTokens now = prompt(100);
  now.num_computed_tokens = 100;
  now.num_tokens = 113;
  for (const auto& [request, seed] : {std::pair{parent, 1u}, std::pair{*child, 2u}}) {
    manager.append_hashes(request, hashes(1, seed));
    EXPECT_TRUE(manager.allocate(request, now, fresh(13)));
  }
  EXPECT_NE(table(manager, parent, 0).back(), table(manager, *child, 0).back());
  EXPECT_EQ(manager.estimate_cached_tokens(*child), 112);
  manager.remove_request(parent);
  manager.check_invariants();
  manager.remove_request(*child);
  EXPECT_EQ(manager.pool().num_free_blocks(), 99);
}

TEST_F(FullAndWindow, AnEvictionHookThatThrowsLeavesTheRequestWithoutBlocks) {
  manager.remove_request(admit(100));
  const RequestHandle other = admit(1000 - 400, 7);
  manager.remove_request(other);
  manager.pool().set_eviction_hook(
      [](std::span<const BlockId>) { throw std::runtime_error("the disk is full"); });
  const RequestHandle request = manager.add_request();
  manager.append_hashes(request, hashes(6));
  PrefixHit hit;
  manager.find_prefix(request, 800, hit);
  ASSERT_EQ(hit.num_tokens, 96);
  Allocation allocation = fresh(700);
  allocation.num_new_computed_tokens = 96;
  EXPECT_THROW(manager.allocate(request, prompt(796), allocation, &hit), std::runtime_error);
  EXPECT_EQ(manager.pool().num_free_blocks(), 99);
  EXPECT_TRUE(table(manager, request, 0).empty());
  manager.pool().set_eviction_hook(nullptr);
  EXPECT_TRUE(manager.allocate(request, prompt(700), allocation = fresh(600)));
  manager.remove_request(request);
  EXPECT_EQ(manager.pool().num_free_blocks(), 99);
}

TEST_F(FullAndWindow, ForkNeedsItsBlocks) {
  const RequestHandle parent = admit(100);
  EXPECT_THROW(manager.fork(parent, 113), InvalidArgument);
  EXPECT_THROW(manager.fork(parent, -1), InvalidArgument);
  const std::vector<BlockId> others =
      manager.pool().get_new_blocks(manager.pool().num_free_blocks() - 1);
  EXPECT_EQ(manager.fork(parent, 100), std::nullopt);
  EXPECT_EQ(manager.num_requests(), 1u);
  EXPECT_FALSE(manager.has_copies());
  EXPECT_TRUE(manager.fork(parent, 96).has_value()) << "whole blocks need none";
  manager.pool().free_blocks(others);
  CacheGroup states = group(CacheKind::kMamba, 16);
  states.mamba_align = true;
  CacheManager stateful(options({group(CacheKind::kFullAttention, 16), states}));
  const RequestHandle request = stateful.add_request();
  EXPECT_THROW(stateful.fork(request, 0), Unsupported);
  EXPECT_THROW(stateful.revert(request, 0), Unsupported);
}

TEST_F(FullAndWindow, RevertedStepHasNotHappened) {
  const RequestHandle request = admit(90);
  const std::vector<BlockId> before = table(manager, request, 0);
  const std::vector<BlockId> free_before = manager.pool().free_block_ids();
  RequestTokens now = prompt(90);
  now.num_computed_tokens = 90;
  now.num_tokens = 130;
  manager.append_hashes(request, hashes(3, 5));
  ASSERT_TRUE(manager.allocate(request, now, fresh(40)));
  EXPECT_EQ(manager.estimate_cached_tokens(request), 128);
  manager.revert(request, 90);
  EXPECT_EQ(table(manager, request, 0), before);
  EXPECT_EQ(manager.estimate_cached_tokens(request), 80);
  std::vector<BlockId> free_after = manager.pool().free_block_ids();
  EXPECT_EQ(free_after.size(), free_before.size() + 3) << "the window has let go of three";
  EXPECT_THROW(manager.revert(request, 20), InvalidArgument) << "which that needs";
  EXPECT_THROW(manager.revert(request, -1), InvalidArgument);
  // And it can be done again.
  ASSERT_TRUE(manager.allocate(request, now, fresh(40)));
  EXPECT_EQ(manager.estimate_cached_tokens(request), 128);
  manager.revert(request, 130);
  EXPECT_EQ(manager.estimate_cached_tokens(request), 128);
}

/// Two groups that keep everything, in a pool that just holds one request of full length: 4 large
/// blocks of four slices, and 16.
class Slices : public testing::Test {
 protected:
  static CacheManagerOptions cut_options() {
    CacheManagerOptions made = options(
        {group(CacheKind::kFullAttention, 16), group(CacheKind::kFullAttention, 16)}, 1 + 4 + 16);
    made.groups[0].slices = 4;
    made.max_model_len = 256;
    return made;
  }

  bool grow(RequestHandle request, int64_t from, int64_t to, const PrefixHit* hit = nullptr) {
    RequestTokens tokens = prompt(256);
    Allocation allocation = fresh(to - from);
    (hit == nullptr ? tokens.num_computed_tokens : allocation.num_new_computed_tokens) = from;
    return manager.allocate(request, tokens, allocation, hit);
  }

  /// A request of 80 tokens, with its 5 slices in large blocks of their own.
  RequestHandle admit_scattered() {
    const RequestHandle request = manager.add_request();
    manager.append_hashes(request, hashes(16));
    std::vector<BlockId> others;
    for (int64_t tokens = 0; tokens < 80; tokens += 16) {
      EXPECT_TRUE(grow(request, tokens, tokens + 16));
      const auto taken = manager.sliced_pool().get_new_blocks(PoolGroupId{0}, 3);
      others.insert(others.end(), taken.begin(), taken.end());
    }
    manager.sliced_pool().free_blocks(PoolGroupId{0}, others);
    EXPECT_EQ(manager.num_free_blocks(), 10);
    return request;
  }

  CacheManager manager{cut_options()};
};

TEST_F(Slices, ARequestThatIsStuckAloneStartsAgainAndNobodyJoinsIt) {
  const RequestHandle alone = admit_scattered();
  const RequestHandle other = manager.add_request();
  ASSERT_TRUE(grow(other, 0, 16));
  EXPECT_FALSE(grow(alone, 80, 256));
  EXPECT_FALSE(manager.starts_again(alone)) << "somebody else can be preempted";
  manager.free(other);
  EXPECT_FALSE(grow(alone, 80, 256)) << "5 large blocks and 16";
  EXPECT_TRUE(manager.starts_again(alone));
  EXPECT_FALSE(manager.fork(alone, 80).has_value());
  manager.free(alone);
  EXPECT_FALSE(manager.starts_again(alone));
  EXPECT_EQ(manager.counters().num_cached_hashes, 0) << "what it has cached lies where it lay";
  EXPECT_FALSE(grow(other, 0, 16));
  EXPECT_TRUE(grow(alone, 0, 80));
  EXPECT_TRUE(grow(alone, 80, 256));
  EXPECT_FALSE(grow(other, 0, 16));
  manager.remove_request(alone);
  EXPECT_TRUE(grow(other, 0, 16));
  manager.remove_request(other);
  EXPECT_EQ(manager.num_free_blocks(), manager.num_blocks() - 1);
}

TEST_F(Slices, WhatIsCachedGivesWayToARequestThatNeedsThePool) {
  manager.remove_request(admit_scattered());
  for (const bool holds : {false, true}) {
    const RequestHandle request = manager.add_request();
    manager.append_hashes(request, hashes(16));
    PrefixHit hit;
    if (holds) {
      manager.remove_request(admit_scattered());
      manager.hold_prefix(request, 255, hit);
    } else {
      manager.find_prefix(request, 255, hit);
    }
    ASSERT_EQ(hit.num_tokens, 80);
    EXPECT_FALSE(grow(request, 80, 256, &hit));
    manager.release_hold(request);
    EXPECT_EQ(manager.counters().num_cached_hashes, 0);
    manager.find_prefix(request, 255, hit);
    EXPECT_EQ(hit.num_tokens, 0);
    EXPECT_TRUE(grow(request, 0, 256, &hit));
    manager.remove_request(request);
    EXPECT_TRUE(manager.reset_prefix_cache());
  }
}

TEST_F(Slices, IdsGoWithTheirGroup) {
  const RequestHandle request = admit_scattered();
  EXPECT_TRUE(manager.is_sliced());
  EXPECT_EQ(manager.sliced_pool().num_used_blocks(PoolGroupId{0}), 5);
  const auto refused = [&](auto&& call) { EXPECT_THROW(call(), Unsupported); };
  const std::array blocks = {manager.block_table(request, 0)[0]};
  std::vector<BlockId> popped;
  refused([&] { manager.pool(); });
  refused([&] { manager.evict_blocks(blocks); });
  refused([&] { manager.pop_blocks_for_free(request, popped); });
  EXPECT_THROW(manager.evict_blocks(2, blocks), InvalidArgument);
  const int64_t num_cached = manager.counters().num_cached_hashes;
  manager.evict_blocks(0, blocks);
  EXPECT_EQ(manager.counters().num_cached_hashes, num_cached - 1);
  CacheManagerOptions plain = cut_options();
  EXPECT_THROW(CacheManager(plain, std::make_shared<BlockPool>(21)), InvalidArgument);
  plain.groups[0].slices = 0;
  EXPECT_THROW(CacheManager{plain}, InvalidArgument);
  plain.groups[0].slices = 1;
  EXPECT_THROW(CacheManager(plain).sliced_pool(), Unsupported);
}

TEST(CacheManager, ArithmeticOfAGroupIsWhatAManagerDoes) {
  CacheGroup states = group(CacheKind::kMamba, 16);
  states.mamba_align = true;
  states.num_speculative_blocks = 2;
  CacheGroup window = group(CacheKind::kSlidingWindow, 16, 40);
  window.extra_retained_tokens = 5;
  for (const CacheGroup& one :
       {group(CacheKind::kFullAttention, 16), window, group(CacheKind::kChunkedLocal, 16, 48),
        group(CacheKind::kCircularBuffer, 16), states}) {
    CacheManagerOptions alone = options({one});
    alone.enable_caching = false;
    CacheManager manager(alone);
    const RequestHandle request = manager.add_request();
    RequestTokens now = prompt(1);
    for (int64_t computed = 0; computed < 400; ++computed, ++now.num_tokens) {
      now.num_computed_tokens = computed;
      ASSERT_TRUE(manager.allocate(request, now, fresh(1)));
      const std::vector<BlockId> ids = table(manager, request, 0);
      const int64_t held = std::ssize(ids) - std::count(ids.begin(), ids.end(), kNullBlock);
      // A state's source is held one step longer.
      const bool is_copied = one.mamba_align && computed > 1 && computed % 16 <= 1;
      if (!is_copied) {
        ASSERT_EQ(held, blocks_held(one, computed, 1)) << computed;
      }
      if (!one.mamba_align && one.kind != CacheKind::kCircularBuffer) {
        ASSERT_EQ(std::count(ids.begin(), ids.end(), kNullBlock),
                  skipped_tokens(one, computed) / 16);
      }
    }
  }
  EXPECT_EQ(blocks_for_hit(group(CacheKind::kFullAttention, 16), 100), 7);
  EXPECT_EQ(blocks_for_hit(window, 112), 3);
  EXPECT_EQ(blocks_for_hit(window, 16), 1);
  EXPECT_EQ(blocks_for_hit(group(CacheKind::kChunkedLocal, 16, 48), 112), 1);
  EXPECT_EQ(blocks_for_hit(states, 112), 1);
  EXPECT_EQ(blocks_for_hit(states, 0), 0);
  CacheGroup sharded = group(CacheKind::kFullAttention, 16);
  sharded.dcp_sharded = true;
  EXPECT_EQ(blocks_held(sharded, 100, 1, 4), 2);
  EXPECT_THROW(blocks_held(sharded, -1, 1), InvalidArgument);
  EXPECT_THROW(blocks_held(sharded, 1, -1), InvalidArgument);
  EXPECT_THROW(skipped_tokens(group(CacheKind::kSlidingWindow, 16, 0), 5), InvalidArgument);
}

TEST_F(FullAndWindow, CountersFollow) {
  EXPECT_EQ(manager.counters().num_free_blocks, 99) << "before any call";
  const RequestHandle request = admit(100);
  CacheManagerCounters now = manager.counters();
  EXPECT_EQ(now.num_requests, 1);
  EXPECT_EQ(now.num_free_blocks, 99 - 14);
  EXPECT_EQ(now.num_cached_hashes, manager.pool().num_cached_hashes());
  manager.record_prefix_cache_stats(100, 64, false);
  manager.take_prefix_cache_stats();
  manager.record_prefix_cache_stats(100, 0, true);
  manager.remove_request(request);
  now = manager.counters();
  EXPECT_EQ(now.num_requests, 0);
  EXPECT_EQ(now.num_free_blocks, 99);
  EXPECT_EQ(now.num_queried_tokens, 200);
  EXPECT_EQ(now.num_hit_tokens, 64);
}

TEST(CacheManager, AnyPoolOrderLeavesNothingBehind) {
  std::mt19937 random(5);
  CacheGroup states = group(CacheKind::kMamba, 16);
  states.mamba_align = true;
  CacheManager manager(options(
      {group(CacheKind::kFullAttention, 16), group(CacheKind::kSlidingWindow, 16, 48), states},
      60));
  const int64_t num_free = manager.pool().num_free_blocks();
  struct Running {
    RequestHandle handle;
    RequestTokens tokens;
  };
  std::vector<Running> running;
  PrefixHit hit;
  for (int step = 0; step < 3000; ++step) {
    if (running.size() < 4) {
      const int64_t length = 1 + static_cast<int64_t>(random() % 150);
      Running made{manager.add_request(), prompt(length)};
      manager.append_hashes(made.handle, hashes(length / 16, static_cast<uint32_t>(random() % 3)));
      manager.find_prefix(made.handle, length - 1, hit);
      Allocation allocation = fresh(length - hit.num_tokens);
      allocation.num_new_computed_tokens = hit.num_tokens;
      if (manager.allocate(made.handle, made.tokens, allocation, &hit)) {
        made.tokens.num_computed_tokens = length;
        running.push_back(made);
      } else {
        manager.remove_request(made.handle);
      }
    }
    for (size_t i = 0; i < running.size(); ++i) {
      Running& request = running[i];
      ++request.tokens.num_tokens;
      const bool fits = request.tokens.num_tokens < 300 &&
                        manager.allocate(request.handle, request.tokens, fresh(1));
      if (fits) {
        ++request.tokens.num_computed_tokens;
        continue;
      }
      manager.remove_request(request.handle);
      running.erase(running.begin() + static_cast<ptrdiff_t>(i--));
    }
    manager.new_step_starts();
    for (const BlockCopy& copy : manager.take_copies()) {
      manager.pool().free_blocks(std::array{copy.source, copy.destination});
    }
    manager.take_boundary_states();
  }
  for (const Running& request : running) manager.remove_request(request.handle);
  EXPECT_EQ(manager.pool().num_free_blocks(), num_free);
  EXPECT_EQ(manager.num_requests(), 0u);
  EXPECT_TRUE(manager.reset_prefix_cache());
}

}  // namespace
}  // namespace kvplan
