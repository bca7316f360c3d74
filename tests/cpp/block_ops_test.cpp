// The operations of kvplan/device/block_ops.h on host memory, against the host's BlockPool and a
// model of the tables that is written down request by request; and the same steps in random order.
#include "kvplan/device/block_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "device/cpu/cpu_team.h"
#include "device/steps.h"
#include "kvplan/block_pool.h"
#include "kvplan/errors.h"
#include "tested_ops.h"

namespace kvplan::cuda {
namespace {

struct HostPool {
  explicit HostPool(int32_t num_blocks, bool with_ref_counts)
      : free_ids(num_blocks, -7),
        state(kPoolStateSize, -7),
        ref_counts(num_blocks, -7),
        last_use(num_blocks, -7) {
    pool = {.num_blocks = num_blocks, .free_ids = free_ids.data(), .state = state.data()};
    if (with_ref_counts) {
      pool.ref_counts = ref_counts.data();
      pool.last_use = last_use.data();
    }
    reset_pool(tested_ops(), pool);
  }

  /// In the order in which they will be handed out.
  std::vector<BlockId> free_order() const {
    std::vector<BlockId> ids(free_ids.begin(), free_ids.begin() + state[kNumFree]);
    std::reverse(ids.begin(), ids.end());
    return ids;
  }

  std::vector<int32_t> free_ids, state, ref_counts, last_use;
  Pool pool;
};

BlockPool host_pool(int64_t num_blocks) {
  return BlockPool(num_blocks, {.enable_caching = false, .enable_events = false});
}

struct Allocation {
  std::vector<int32_t> counts;
  std::vector<int32_t> ids;
  std::vector<int64_t> starts;
  std::vector<int32_t> status;
  Allocate args;

  Allocation(std::vector<int32_t> c, int64_t capacity)
      : counts(std::move(c)),
        ids(static_cast<size_t>(capacity), -7),
        starts(counts.size() + 1, -7),
        status(counts.size(), -7) {
    args = {.num_requests = static_cast<int32_t>(counts.size()),
            .counts = counts.data(),
            .ids_capacity = capacity,
            .ids = ids.data(),
            .starts = starts.data(),
            .status = status.data()};
  }

  std::vector<BlockId> of(size_t request) const {
    return {ids.begin() + starts[request], ids.begin() + starts[request + 1]};
  }
};

TEST(BlockOps, RandomSequencesLikeTheHostPool) {
  for (uint64_t seed = 0; seed < static_cast<uint64_t>(rounds(60)); ++seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
    const bool counted = seed % 2 == 1;
    const auto num_blocks = static_cast<int32_t>(1 + below(60));
    HostPool device(num_blocks, counted);
    BlockPool host = host_pool(num_blocks);
    ShuffledTeam shuffled(seed);
    HostPool other(num_blocks, counted);
    std::vector<BlockId> held;  // one entry a holder
    int refused = 0;
    for (int step = 0; step < 80; ++step) {
      const int64_t what = below(3);
      if (what == 0) {
        std::vector<int32_t> counts(static_cast<size_t>(below(6)));
        for (int32_t& c : counts) c = static_cast<int32_t>(below(9));
        Allocation a(counts, 64);
        allocate(tested_ops(), device.pool, a.args);
        Allocation b(counts, 64);
        allocate_steps(shuffled, other.pool, b.args);
        EXPECT_EQ(a.ids, b.ids);
        EXPECT_EQ(a.starts, b.starts);
        EXPECT_EQ(a.status, b.status);
        for (size_t r = 0; r < counts.size(); ++r) {
          std::vector<BlockId> expected;
          int32_t status = kOk;
          try {
            expected = host.get_new_blocks(counts[r]);
          } catch (const BlockPoolError&) {
            status = kOutOfBlocks;
            ++refused;
          }
          EXPECT_EQ(a.status[r], status);
          EXPECT_EQ(a.of(r), expected);
          held.insert(held.end(), expected.begin(), expected.end());
        }
      } else if (what == 1) {
        std::shuffle(held.begin(), held.end(), random);
        std::vector<BlockId> ids(held.end() - below(static_cast<int64_t>(held.size()) + 1),
                                 held.end());
        held.resize(held.size() - ids.size());
        if (below(3) == 0) ids.insert(ids.begin() + below(1 + ids.size()), kNullBlock);
        host.free_blocks(ids);
        const auto n = static_cast<int64_t>(ids.size());
        release(tested_ops(), device.pool, ids.data(), n);
        release_steps(shuffled, other.pool, n, [&](int64_t k) { return ids[k]; });
      } else if (counted && !held.empty()) {
        std::vector<BlockId> ids;
        for (int64_t i = below(4); i > 0; --i) ids.push_back(held[below(held.size())]);
        host.touch(ids);
        held.insert(held.end(), ids.begin(), ids.end());
        touch(tested_ops(), device.pool, ids.data(), static_cast<int64_t>(ids.size()));
        touch_steps(shuffled, other.pool, ids.data(), static_cast<int64_t>(ids.size()));
      }
      ASSERT_EQ(device.free_order(), host.free_block_ids()) << "seed " << seed << " step " << step;
      ASSERT_EQ(other.free_order(), host.free_block_ids());
      ASSERT_EQ(device.state[kPoolErrors], 0);
      if (counted) {
        for (BlockId id = 1; id < num_blocks; ++id) {
          ASSERT_EQ(device.ref_counts[id], host.ref_count(id));
          ASSERT_EQ(device.last_use[id], 0);
        }
        ASSERT_EQ(device.ref_counts, other.ref_counts);
      }
    }
    if (num_blocks < 10) {
      EXPECT_GT(refused, 0);
    }
  }
}

TEST(BlockOps, AllOrNothingForEachRequest) {
  HostPool device(6, false);  // five blocks
  Allocation a({2, 4, 3, 1, -1, 0}, 16);
  allocate(tested_ops(), device.pool, a.args);
  EXPECT_EQ(a.status,
            (std::vector<int32_t>{kOk, kOutOfBlocks, kOk, kOutOfBlocks, kBadRequest, kOk}));
  EXPECT_EQ(a.of(0), (std::vector<BlockId>{1, 2}));
  EXPECT_TRUE(a.of(1).empty());
  EXPECT_EQ(a.of(2), (std::vector<BlockId>{3, 4, 5}));
  EXPECT_EQ(device.state[kNumFree], 0);

  HostPool wide(20, false);
  Allocation narrow({3, 4, 2}, 5);
  allocate(tested_ops(), wide.pool, narrow.args);
  EXPECT_EQ(narrow.status, (std::vector<int32_t>{kOk, kTableTooNarrow, kOk}));
  EXPECT_EQ(wide.state[kNumFree], 14);
}

TEST(BlockOps, WrongReleasesAreReportedAndLeftOut) {
  for (const bool counted : {false, true}) {
    HostPool device(5, counted);
    Allocation a({4}, 4);
    allocate(tested_ops(), device.pool, a.args);
    const std::vector<BlockId> bad{2, 99, -1, 0};
    release(tested_ops(), device.pool, bad.data(), 4);
    EXPECT_EQ(device.state[kPoolErrors], kBadBlockId);
    EXPECT_EQ(device.free_order(), (std::vector<BlockId>{2}));
    const std::vector<BlockId> again{1, 3, 4, 3, 4, 1};
    release(tested_ops(), device.pool, again.data(), 6);
    EXPECT_EQ(device.state[kNumFree], 4);
    EXPECT_EQ(device.state[kPoolErrors], kBadBlockId | (counted ? kBlockNotInUse : kTooManyFree));
    reset_pool(tested_ops(), device.pool);
    EXPECT_EQ(device.state[kPoolErrors], 0);
    EXPECT_EQ(device.free_order(), (std::vector<BlockId>{1, 2, 3, 4}));
  }
}

/// The tables of one batch, and the same worked out by hand with the host's pool.
TEST(BlockOps, ABlockThatIsReleasedTooOftenIsFreeWhereItIsNamedLast) {
  HostPool device(6, true);
  Allocation a({5}, 5);
  allocate(tested_ops(), device.pool, a.args);
  const std::vector<BlockId> ids{2, 1, 2, 3, 2};
  release(tested_ops(), device.pool, ids.data(), 5);
  EXPECT_EQ(device.state[kPoolErrors], kBlockNotInUse);
  EXPECT_EQ(device.free_order(), (std::vector<BlockId>{1, 3, 2}));
  EXPECT_EQ(device.ref_counts, (std::vector<int32_t>{0, 0, 0, 0, 1, 1}));
  EXPECT_EQ(device.last_use, (std::vector<int32_t>(6, 0)));
}

struct Group {
  int32_t block_size;
  Window window{};
  bool sharded = false;
  bool slots = true;
  int32_t extra = 0;
};

constexpr uint32_t kSmallTile = 4;  // the workspaces have room for it

struct Batch {
  std::vector<int32_t> rows, context_lens, new_tokens;
};

class Tables {
 public:
  Tables(std::vector<Group> groups, int32_t num_rows, int32_t width, int32_t max_requests,
         int64_t max_tokens, ContextParallel cp)
      : groups_(std::move(groups)),
        num_rows_(num_rows),
        width_(width),
        max_requests_(max_requests),
        max_tokens_(max_tokens),
        cp_(cp) {
    const size_t stride = static_cast<size_t>(width) + 3;  // rows are wider than their tables
    for (size_t g = 0; g < groups_.size(); ++g) {
      tables.emplace_back(stride * num_rows, 0);
      num_entries.emplace_back(num_rows, 0);
    }
    slots.assign(groups_.size() * (max_tokens + 1), -7);
    status.assign(max_requests, -7);
    query_starts.assign(max_requests + 1, -7);
    positions.assign(max_tokens, -7);
    workspace.assign(append_slots_workspace(max_requests, groups_.size()) + 100, -7);
  }

  AppendSlots append_args(const Pool& pool, const Batch& b, const int32_t* num_requests) {
    AppendSlots a;
    a.pool = pool;
    a.num_groups = static_cast<int32_t>(groups_.size());
    a.num_rows = num_rows_;
    a.max_requests = max_requests_;
    a.max_tokens = max_tokens_;
    a.cp = cp_;
    a.num_requests = num_requests;
    a.rows = b.rows.data();
    a.context_lens = b.context_lens.data();
    a.new_tokens = b.new_tokens.data();
    a.status = status.data();
    a.slots = slots.data();
    a.slots_stride = max_tokens_ + 1;
    a.query_starts = query_starts.data();
    a.positions = positions.data();
    a.workspace = workspace.data();
    fill(a.groups);
    return a;
  }

  void fill(GroupTable* out) {
    for (size_t g = 0; g < groups_.size(); ++g) {
      out[g] = {.table = tables[g].data(),
                .num_entries = num_entries[g].data(),
                .row_stride = width_ + 3,
                .width = width_,
                .block_size = groups_[g].block_size,
                .window = groups_[g].window,
                .extra_entries = groups_[g].extra,
                .dcp_sharded = groups_[g].sharded,
                .slot_mapping = groups_[g].slots};
    }
  }

  std::vector<BlockId> row(size_t g, int32_t r) const {
    const auto* begin = tables[g].data() + static_cast<size_t>(r) * (width_ + 3);
    return {begin, begin + num_entries[g][r]};
  }

  std::vector<std::vector<int32_t>> tables, num_entries;
  std::vector<int64_t> slots, positions, workspace;
  std::vector<int32_t> status, query_starts;

 private:
  std::vector<Group> groups_;
  int32_t num_rows_, width_, max_requests_;
  int64_t max_tokens_;
  ContextParallel cp_;
};

/// What append_slots is to do, one request after another: written without its arithmetic.
class Model {
 public:
  Model(std::vector<Group> groups, int32_t num_rows, int32_t num_blocks, ContextParallel cp)
      : pool(host_pool(num_blocks)), rows(groups.size()), groups_(std::move(groups)), cp_(cp) {
    for (auto& r : rows) r.resize(num_rows);
  }

  int64_t span(const Group& g) const { return g.sharded ? g.block_size * cp_.size : g.block_size; }

  bool is_read(const Group& g, int64_t position, int64_t context) const {
    if (g.window.kind == WindowKind::kSliding) return position >= context - g.window.tokens;
    if (g.window.kind == WindowKind::kChunked) {
      return position / g.window.tokens >= context / g.window.tokens;
    }
    return true;
  }

  bool entry_is_read(const Group& g, int64_t entry, int64_t context) const {
    for (int64_t p = entry * span(g); p < (entry + 1) * span(g); ++p) {
      if (is_read(g, p, context)) return true;
    }
    return false;
  }

  void drop(const Batch& b) {
    std::vector<BlockId> dropped;
    for (size_t r = 0; r < b.rows.size(); ++r) {
      if (b.rows[r] < 0) continue;
      for (size_t g = 0; g < groups_.size(); ++g) {
        std::vector<BlockId>& entries = rows[g][b.rows[r]];
        for (int64_t j = std::ssize(entries) - 1; j >= 0; --j) {
          if (entries[j] == kNullBlock || entry_is_read(groups_[g], j, b.context_lens[r])) continue;
          dropped.push_back(entries[j]);
          entries[j] = kNullBlock;
        }
      }
    }
    pool.free_blocks(dropped);
  }

  bool take(const Batch& b, size_t r) {
    std::vector<std::vector<BlockId>> grown;
    std::vector<BlockId> taken;
    for (size_t g = 0; g < groups_.size(); ++g) {
      std::vector<BlockId> entries = rows[g][b.rows[r]];
      const int64_t tokens = b.context_lens[r] + b.new_tokens[r];
      int64_t needed = 0;
      while (needed * span(groups_[g]) < tokens) ++needed;
      if (tokens > 0) needed += groups_[g].extra;
      while (std::ssize(entries) < needed) {
        if (!entry_is_read(groups_[g], std::ssize(entries), b.context_lens[r])) {
          entries.push_back(kNullBlock);
          continue;
        }
        if (pool.num_free_blocks() == 0) {
          pool.free_blocks(taken);  // as it was: the first taken is the next to be taken
          return false;
        }
        taken.push_back(pool.get_new_blocks(1)[0]);
        entries.push_back(taken.back());
      }
      grown.push_back(std::move(entries));
    }
    for (size_t g = 0; g < groups_.size(); ++g) rows[g][b.rows[r]] = std::move(grown[g]);
    return true;
  }

  int64_t slot(size_t g, int32_t row, int64_t position) const {
    const Group& group = groups_[g];
    if (!group.slots) return kPadSlot;
    if (!group.sharded) {
      return int64_t{rows[g][row][position / group.block_size]} * group.block_size +
             position % group.block_size;
    }
    if (position / cp_.interleave % cp_.size != cp_.rank) return kPadSlot;
    // The states of this rank in the entry, in order of their tokens.
    const int64_t entry = position / span(group);
    int64_t offset = 0;
    for (int64_t p = entry * span(group); p < position; ++p) {
      offset += p / cp_.interleave % cp_.size == cp_.rank;
    }
    return int64_t{rows[g][row][entry]} * group.block_size + offset;
  }

  BlockPool pool;
  std::vector<std::vector<std::vector<BlockId>>> rows;

 private:
  std::vector<Group> groups_;
  ContextParallel cp_;
};

TEST(AppendSlots, RandomBatchesLikeTheModel) {
  int out_of_blocks = 0;
  int dropped_steps = 0;
  for (uint64_t seed = 0; seed < static_cast<uint64_t>(rounds(150)); ++seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
    ContextParallel cp;
    if (below(3) == 0) {
      cp.size = static_cast<int32_t>(2 + below(2));
      cp.rank = static_cast<int32_t>(below(cp.size));
      cp.interleave = below(2) == 0 ? 1 : 4;
    }
    std::vector<Group> groups(1 + below(4));
    for (Group& g : groups) {
      g.block_size = int32_t{4} << below(3);
      const int64_t kind = below(4);
      if (kind == 0) g.window = {WindowKind::kSliding, static_cast<int32_t>(1 + below(20))};
      if (kind == 1) g.window = {WindowKind::kChunked, static_cast<int32_t>(1 + below(20))};
      g.sharded = cp.size > 1 && below(2) == 0;
      g.slots = below(6) != 0;
      g.extra = below(6) == 0 ? 2 : 0;
    }
    const int32_t num_rows = 6;
    const int32_t max_requests = 5;
    const int64_t max_tokens = 48;
    const int32_t width = 64;
    const auto num_blocks = static_cast<int32_t>(2 + below(80));
    const bool counted = below(2) == 0;
    HostPool device(num_blocks, counted);
    HostPool other(num_blocks, counted);
    Tables tables(groups, num_rows, width, max_requests, max_tokens, cp);
    Tables other_tables(groups, num_rows, width, max_requests, max_tokens, cp);
    ShuffledTeam shuffled(seed);
    Model model(groups, num_rows, num_blocks, cp);
    std::vector<int64_t> lengths(num_rows, 0);

    for (int step = 0; step < 40; ++step) {
      Batch b{std::vector<int32_t>(max_requests, -1), std::vector<int32_t>(max_requests, 0),
              std::vector<int32_t>(max_requests, 0)};
      std::vector<int32_t> order(num_rows);
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), random);
      const auto n = static_cast<int32_t>(below(max_requests + 1));
      int64_t tokens = 0;
      for (int32_t r = 0; r < n; ++r) {
        b.rows[r] = below(8) == 0 ? -1 : order[r];
        // Some requests begin with tokens that were computed elsewhere.
        if (b.rows[r] >= 0 && lengths[b.rows[r]] == 0 && below(4) == 0) {
          lengths[b.rows[r]] = below(60);
        }
        b.context_lens[r] = b.rows[r] < 0 ? 0 : static_cast<int32_t>(lengths[b.rows[r]]);
        int64_t count = below(2) == 0 ? 1 : below(10);
        count = std::min({count, max_tokens - tokens, 200 - int64_t{b.context_lens[r]}});
        b.new_tokens[r] = static_cast<int32_t>(count);
        tokens += count;
      }
      const AppendSlots args = tables.append_args(device.pool, b, &n);
      append_slots(tested_ops(), args);
      append_slots_steps(shuffled,
                         append_step(other_tables.append_args(other.pool, b, &n), kSmallTile));

      const int64_t free_before = model.pool.num_free_blocks();
      model.drop(b);
      dropped_steps += model.pool.num_free_blocks() > free_before;
      int64_t t = 0;
      for (int32_t r = 0; r < n; ++r) {
        const bool fits = b.rows[r] < 0 || model.take(b, r);
        ASSERT_EQ(tables.status[r], fits ? kOk : kOutOfBlocks) << "seed " << seed;
        out_of_blocks += !fits;
        if (fits && b.rows[r] >= 0) lengths[b.rows[r]] += b.new_tokens[r];
        ASSERT_EQ(tables.query_starts[r], t);
        for (int32_t i = 0; i < b.new_tokens[r]; ++i, ++t) {
          const int64_t position = b.context_lens[r] + i;
          ASSERT_EQ(tables.positions[t], position);
          for (size_t g = 0; g < groups.size(); ++g) {
            const int64_t expected =
                fits && b.rows[r] >= 0 ? model.slot(g, b.rows[r], position) : kPadSlot;
            ASSERT_EQ(tables.slots[g * (max_tokens + 1) + t], expected)
                << "seed " << seed << " step " << step << " group " << g << " token " << t;
          }
        }
      }
      for (size_t g = 0; g < groups.size(); ++g) {
        for (int64_t pad = t; pad < max_tokens; ++pad) {
          ASSERT_EQ(tables.slots[g * (max_tokens + 1) + pad], kPadSlot);
        }
        ASSERT_EQ(tables.slots[g * (max_tokens + 1) + max_tokens], -7);  // beyond the mapping
        for (int32_t r = 0; r < num_rows; ++r) {
          ASSERT_EQ(tables.row(g, r), model.rows[g][r])
              << "seed " << seed << " step " << step << " group " << g << " row " << r;
        }
      }
      for (int32_t r = n; r <= max_requests; ++r) ASSERT_EQ(tables.query_starts[r], t);
      ASSERT_EQ(device.free_order(), model.pool.free_block_ids())
          << "seed " << seed << " step " << step;
      ASSERT_EQ(device.state[kPoolErrors], 0);
      ASSERT_EQ(tables.tables, other_tables.tables);
      ASSERT_EQ(tables.num_entries, other_tables.num_entries);
      ASSERT_EQ(tables.slots, other_tables.slots);
      ASSERT_EQ(tables.status, other_tables.status);
      ASSERT_EQ(device.free_order(), other.free_order());
      if (counted) {
        ASSERT_EQ(device.ref_counts, other.ref_counts);
      }

      if (below(6) == 0) {  // some requests end
        std::vector<int32_t> ended(order.begin(), order.begin() + 1 + below(2));
        ended.push_back(-1);
        std::vector<BlockId> blocks;
        for (int32_t row : ended) {
          if (row < 0) continue;
          for (size_t g = 0; g < groups.size(); ++g) {
            blocks.insert(blocks.end(), model.rows[g][row].rbegin(), model.rows[g][row].rend());
            model.rows[g][row].clear();
          }
          lengths[row] = 0;
        }
        model.pool.free_blocks(blocks);
        ReleaseRows released;
        released.num_groups = static_cast<int32_t>(groups.size());
        released.num_rows = num_rows;
        released.max_requests = static_cast<int32_t>(ended.size());
        released.rows = ended.data();
        released.pool = device.pool;
        released.workspace = tables.workspace.data();
        tables.fill(released.groups);
        release_rows(tested_ops(), released);
        released.pool = other.pool;
        released.workspace = other_tables.workspace.data();
        other_tables.fill(released.groups);
        release_rows_steps(shuffled, released);
        ASSERT_EQ(device.free_order(), model.pool.free_block_ids());
        ASSERT_EQ(device.free_order(), other.free_order());
        ASSERT_EQ(tables.tables, other_tables.tables);
        ASSERT_EQ(tables.num_entries, other_tables.num_entries);
      }
    }
  }
  EXPECT_GT(out_of_blocks, rounds(200));
  EXPECT_GT(dropped_steps, rounds(200));
}

TEST(AppendSlots, BadRequestsAreFlaggedAndNothingElseChanges) {
  HostPool device(100, false);
  const std::vector<Group> groups{{.block_size = 4}};
  Tables tables(groups, 4, 3, 6, 20, {});
  Batch b{{0, 1, 4, -2, 2, 3}, {0, -1, 0, 0, 0, 0}, {2, 1, 1, 1, 13, 3}};
  append_slots(tested_ops(), tables.append_args(device.pool, b, nullptr));
  EXPECT_EQ(tables.status, (std::vector<int32_t>{kOk, kBadRequest, kBadRequest, kBadRequest,
                                                 kTableTooNarrow, kTooManyTokens}));
  EXPECT_EQ(device.state[kNumFree], 98);
  EXPECT_EQ(tables.row(0, 0), (std::vector<BlockId>{1}));
  for (int32_t r : {1, 2, 3}) EXPECT_TRUE(tables.row(0, r).empty());
  EXPECT_EQ(std::count(tables.slots.begin(), tables.slots.end(), kPadSlot), 18);

  // Counts that would overflow, and a damaged number of entries.
  Batch huge{
      {0, 1, 2, 3, -1, -1}, {4, 0, 2147483647, 0, 0, 0}, {1, 2147483647, 2147483647, 0, 0, 0}};
  tables.num_entries[0][0] = 2147483647;
  append_slots(tested_ops(), tables.append_args(device.pool, huge, nullptr));
  EXPECT_EQ(tables.status[1], kTooManyTokens);
  EXPECT_EQ(tables.status[2], kTooManyTokens);
  EXPECT_EQ(tables.num_entries[0][0], 3);
}

TEST(AppendSlots, WhatDoesNotFitIntoTheMappingTakesNothingFromTheOthers) {
  HostPool device(100, false);
  Tables tables({{.block_size = 4}}, 4, 3, 3, 8, {});
  Batch b{{0, 1, 2}, {0, 0, 0}, {6, 6, 2}};
  append_slots(tested_ops(), tables.append_args(device.pool, b, nullptr));
  EXPECT_EQ(tables.status, (std::vector<int32_t>{kOk, kTooManyTokens, kOk}));
  EXPECT_EQ(tables.query_starts, (std::vector<int32_t>{0, 6, 6, 8}));
  EXPECT_EQ(tables.row(0, 0), (std::vector<BlockId>{1, 2}));
  EXPECT_TRUE(tables.row(0, 1).empty());
  EXPECT_EQ(tables.slots, (std::vector<int64_t>{4, 5, 6, 7, 8, 9, 12, 13, -7}));
  EXPECT_EQ(tables.positions, (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 0, 1}));
}

TEST(AppendSlots, OfARowThatIsNamedTwiceTheFirstCounts) {
  for (const bool counted : {false, true}) {
    HostPool device(100, counted);
    Tables tables({{.block_size = 4}, {.block_size = 4}}, 4, 3, 4, 8, {});
    std::vector<int32_t> claims(4, 0);
    Batch b{{1, 0, 1, 1}, {0, 0, 0, 0}, {1, 1, 5, 1}};
    AppendSlots args = tables.append_args(device.pool, b, nullptr);
    args.row_claims = claims.data();
    append_slots(tested_ops(), args);
    EXPECT_EQ(tables.status, (std::vector<int32_t>{kOk, kOk, kBadRequest, kBadRequest}));
    EXPECT_EQ(tables.row(0, 1), (std::vector<BlockId>{1}));
    EXPECT_EQ(tables.row(1, 0), (std::vector<BlockId>{4}));
    EXPECT_EQ(device.state[kNumFree], 95);
    EXPECT_EQ(claims, (std::vector<int32_t>(4, 0)));

    ReleaseRows released;
    released.pool = device.pool;
    released.num_groups = 2;
    released.num_rows = 4;
    released.max_requests = 4;
    released.rows = b.rows.data();
    released.workspace = tables.workspace.data();
    released.row_claims = claims.data();
    tables.fill(released.groups);
    release_rows(tested_ops(), released);
    EXPECT_EQ(device.state[kNumFree], 99);
    EXPECT_EQ(device.state[kPoolErrors], kBadBlockId);
    EXPECT_EQ(claims, (std::vector<int32_t>(4, 0)));
  }
}

TEST(AppendSlots, ArgumentsAreCheckedBeforeAnything) {
  HostPool device(10, false);
  const std::vector<Group> groups{{.block_size = 4}};
  Tables tables(groups, 2, 8, 1, 8, {});
  Batch b{{0}, {0}, {1}};
  const AppendSlots good = tables.append_args(device.pool, b, nullptr);
  const auto refused = [&](auto change, const char* name) {
    AppendSlots bad = good;
    change(bad);
    try {
      append_slots(tested_ops(), bad);
      FAIL() << name;
    } catch (const InvalidArgument& e) {
      EXPECT_NE(std::string(e.what()).find(name), std::string::npos) << e.what();
    }
    EXPECT_EQ(device.state[kNumFree], 9);
    EXPECT_EQ(tables.status[0], -7);
  };
  refused([](AppendSlots& a) { a.rows = nullptr; }, "rows");
  refused([](AppendSlots& a) { a.workspace = nullptr; }, "workspace");
  refused([](AppendSlots& a) { a.num_groups = 0; }, "num_groups");
  refused([](AppendSlots& a) { a.num_groups = kMaxGroups + 1; }, "num_groups");
  refused([](AppendSlots& a) { a.groups[0].width = 0; }, "groups[0].width");
  refused([](AppendSlots& a) { a.groups[0].row_stride = 7; }, "groups[0].row_stride");
  refused([](AppendSlots& a) { a.groups[0].block_size = 0; }, "groups[0].block_size");
  refused(
      [](AppendSlots& a) {
        a.groups[0].window = {WindowKind::kChunked, 0};
      },
      "groups[0].window.tokens");
  refused([](AppendSlots& a) { a.cp = {2, 2, 1}; }, "cp.rank");
  refused([](AppendSlots& a) { a.slots_stride = 7; }, "slots_stride");
  refused([](AppendSlots& a) { a.pool.num_blocks = 0; }, "pool.num_blocks");
  refused(
      [](AppendSlots& a) {
        a.cp = {2, 0, 3};
        a.groups[0].dcp_sharded = true;
      },
      "groups[0].block_size");
  append_slots(tested_ops(), good);
  EXPECT_EQ(tables.status[0], kOk);
}

TEST(GatherTables, WindowsAndPadding) {
  HostPool device(40, false);
  const std::vector<Group> groups{{.block_size = 4},
                                  {.block_size = 4, .window = {WindowKind::kSliding, 5}}};
  Tables tables(groups, 3, 8, 2, 32, {});
  Batch b{{2, 0}, {0, 0}, {13, 5}};
  append_slots(tested_ops(), tables.append_args(device.pool, b, nullptr));
  const auto row = tables.row(1, 2);
  ASSERT_EQ(row.size(), 4U);

  std::vector<std::vector<int32_t>> out(2, std::vector<int32_t>(3 * 9, 55));
  const std::vector<int32_t> rows{2, -1, 0};
  const std::vector<int32_t> context_lens{13, 0, 5};
  GatherTables a;
  a.num_groups = 2;
  a.num_rows = 3;
  a.max_requests = 3;
  a.rows = rows.data();
  a.context_lens = context_lens.data();
  tables.fill(a.groups);
  for (int g = 0; g < 2; ++g) {
    a.out[g] = out[g].data();
    a.out_stride[g] = 9;
  }
  gather_tables(tested_ops(), a);
  const std::vector<int32_t> first(out[1].begin(), out[1].begin() + 9);
  // Positions 8 to 12 are read by the token at 13; entries beyond the row's stay.
  EXPECT_EQ(first, (std::vector<int32_t>{0, 0, row[2], row[3], 55, 55, 55, 55, 55}));
  const std::vector<int32_t> padding(out[1].begin() + 9, out[1].begin() + 18);
  EXPECT_EQ(padding, (std::vector<int32_t>{0, 0, 0, 0, 0, 0, 0, 0, 55}));
  EXPECT_EQ(out[0][18], tables.row(0, 0)[0]);
  a.context_lens = nullptr;
  gather_tables(tested_ops(), a);
  EXPECT_EQ(out[1][0], row[0]);
}

TEST(ZeroAndCopy, ExactlyTheRegionsOfTheBlocks) {
  std::mt19937_64 random(3);
  const std::vector<BlockRegion> regions{{8, 100, 24}, {40, 100, 60}, {500, 16, 16}};
  const int32_t num_blocks = 4;
  std::vector<uint8_t> buffer(600);
  for (uint8_t& byte : buffer) byte = static_cast<uint8_t>(1 + random() % 255);
  const std::vector<uint8_t> before = buffer;
  const std::vector<int32_t> ids{2, 0, 7, -1};
  int32_t errors = 0;
  ZeroBlocks zero{.buffer = buffer.data(),
                  .regions = regions.data(),
                  .num_regions = 3,
                  .max_region_bytes = 60,
                  .vector_bytes = 4,
                  .num_blocks = num_blocks,
                  .num_ids = 2,
                  .ids = ids.data(),
                  .errors = &errors};
  zero_blocks(tested_ops(), zero);
  std::vector<uint8_t> expected = before;
  for (int32_t id : {2, 0}) {
    for (const BlockRegion& r : regions) {
      std::fill_n(expected.begin() + r.offset + id * r.block_stride, r.size, uint8_t{0});
    }
  }
  EXPECT_EQ(buffer, expected);
  EXPECT_EQ(errors, 0);
  zero.num_ids = 4;
  zero_blocks(tested_ops(), zero);
  EXPECT_EQ(buffer, expected);
  EXPECT_EQ(errors, kBadBlockId);
  const int32_t none = 0;
  buffer = before;
  zero.ids_used = &none;
  zero_blocks(tested_ops(), zero);
  EXPECT_EQ(buffer, before);

  const std::vector<int32_t> sources{1, 4};
  const std::vector<int32_t> targets{3, 0};
  errors = 0;
  const CopyBlocks copy{.source_buffer = buffer.data(),
                        .target_buffer = buffer.data(),
                        .regions = regions.data(),
                        .num_regions = 3,
                        .max_region_bytes = 60,
                        .vector_bytes = 4,
                        .num_blocks = num_blocks,
                        .num_pairs = 2,
                        .sources = sources.data(),
                        .targets = targets.data(),
                        .errors = &errors};
  copy_blocks(tested_ops(), copy);
  expected = before;
  for (const BlockRegion& r : regions) {
    std::copy_n(before.begin() + r.offset + r.block_stride, r.size,
                expected.begin() + r.offset + 3 * r.block_stride);
  }
  EXPECT_EQ(buffer, expected);
  EXPECT_EQ(errors, kBadBlockId);
}

TEST(ZeroAndCopy, MoreTilesThanANumberHoldsAreRefused) {
  char buffer[16];
  const BlockRegion region{0, 16, 16};
  const int32_t id = 0;
  ZeroBlocks zero{.buffer = buffer,
                  .regions = &region,
                  .num_regions = 1 << 30,
                  .max_region_bytes = INT64_MAX / 2,
                  .num_blocks = 1,
                  .num_ids = 1,
                  .ids = &id};
  EXPECT_THROW(zero_blocks(tested_ops(), zero), Overflow);
}

TEST(ZeroAndCopy, WidestAccess) {
  alignas(32) static char buffer[64];
  EXPECT_EQ(vector_bytes(buffer, std::vector<BlockRegion>{{0, 64, 32}}), 16);
  EXPECT_EQ(vector_bytes(buffer, std::vector<BlockRegion>{{0, 64, 32}, {8, 64, 16}}), 8);
  EXPECT_EQ(vector_bytes(buffer, std::vector<BlockRegion>{{0, 20, 16}}), 4);
  EXPECT_EQ(vector_bytes(buffer + 2, std::vector<BlockRegion>{{0, 64, 32}}), 2);
  EXPECT_EQ(vector_bytes(buffer, std::vector<BlockRegion>{{0, 64, 5}}), 1);
  ZeroBlocks zero{.buffer = buffer + 2,
                  .regions = nullptr,
                  .num_regions = 1,
                  .max_region_bytes = 4,
                  .vector_bytes = 4,
                  .num_blocks = 1,
                  .num_ids = 1};
  EXPECT_THROW(zero_blocks(tested_ops(), zero), InvalidArgument);
}

}  // namespace
}  // namespace kvplan::cuda
