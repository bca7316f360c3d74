// The operations of kvplan/device/block_ops.h on sliced pools, against what must hold of such a
// pool, the exact admission of the host's SlicedBlockPool, and the same steps in random order.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "device/cpu/cpu_team.h"
#include "device/steps.h"
#include "kvplan/device/block_ops.h"
#include "kvplan/errors.h"
#include "kvplan/sliced_block_pool.h"
#include "tested_ops.h"

namespace kvplan::cuda {
namespace {

using Ids = std::vector<int32_t>;

struct Arrays {
  Arrays(int32_t num_large, const Ids& slices, bool counted)
      : most(*std::max_element(slices.begin(), slices.end())),
        free_large(num_large, -7),
        listed(num_large, -7),
        state(kPoolStateSize + slices.size(), -7),
        large(num_large, {-7, -7, -7, -7}),
        used_slices(num_large * slice_words(most), -7),
        ref_counts(counted ? num_large * most : 0, -7) {
    pool.num_large_blocks = num_large;
    pool.num_groups = static_cast<int32_t>(slices.size());
    pool.max_slices = most;
    pool.free_large = free_large.data();
    pool.listed = listed.data();
    pool.state = state.data();
    pool.large = large.data();
    pool.used_slices = used_slices.data();
    pool.ref_counts = counted ? ref_counts.data() : nullptr;
    std::copy(slices.begin(), slices.end(), pool.slices);
  }

  bool is_used(int32_t group, int32_t id) const {
    const int32_t l = id / pool.slices[group];
    const int32_t slice = id % pool.slices[group];
    const int32_t word = used_slices[l * slice_words(most) + slice / 32];
    return large[l].owner == group && (static_cast<uint32_t>(word) >> slice % 32 & 1) != 0;
  }

  int64_t unused_in_open_blocks(int32_t group) const { return state[kPoolStateSize + group]; }

  int32_t most;
  Ids free_large, listed, state;
  std::vector<LargeBlock> large;
  Ids used_slices, ref_counts;
  SlicedPool pool;
};

/// The pool twice, by the tested operations and by shuffled steps, and who holds which block.
struct Pools {
  Pools(int32_t num_large, const Ids& slices, bool counted, uint64_t seed)
      : device(num_large, slices, counted),
        other(num_large, slices, counted),
        shuffled(seed),
        holders(slices.size()) {
    reset_pool(tested_ops(), device.pool);
    reset_pool_steps(shuffled, other.pool);
  }

  void release_blocks(int32_t group, const Ids& ids) {
    release(tested_ops(), device.pool, group, ids.data(), static_cast<int64_t>(ids.size()));
    release_steps(shuffled, other.pool, static_cast<int64_t>(ids.size()), [&](int64_t k) {
      return Slice{group, ids[static_cast<size_t>(k)]};
    });
    for (int32_t id : ids) {
      if (id != 0 && --holders[group].at(id) == 0) holders[group].erase(id);
    }
  }

  void hold(int32_t group, int32_t id) {
    ASSERT_GE(id, device.pool.slices[group]);
    ASSERT_LT(id, device.pool.num_large_blocks * device.pool.slices[group]);
    ASSERT_TRUE(holders[group].emplace(id, 1).second) << "block " << id << " is handed out twice";
  }

  /// Everything that must hold, from nothing but who holds what.
  void check() {
    const SlicedPool& pool = device.pool;
    std::vector<std::set<int32_t>> owners(pool.num_large_blocks);
    Ids used(pool.num_large_blocks);
    for (int32_t g = 0; g < pool.num_groups; ++g) {
      for (const auto& [id, count] : holders[g]) {
        const int32_t l = id / pool.slices[g];
        owners[l].insert(g);
        ++used[l];
        ASSERT_TRUE(device.is_used(g, id));
        if (pool.ref_counts != nullptr) {
          ASSERT_EQ(device.ref_counts[l * device.most + id % pool.slices[g]], count);
        }
      }
    }
    const std::set<int32_t> listed(device.listed.begin(),
                                   device.listed.begin() + device.state[kNumListed]);
    ASSERT_EQ(std::ssize(listed), device.state[kNumListed]);
    std::set<int32_t> free;
    std::vector<int64_t> unused(pool.num_groups);
    for (int32_t l = 1; l < pool.num_large_blocks; ++l) {
      const LargeBlock& block = device.large[l];
      ASSERT_LE(owners[l].size(), 1U) << "large block " << l << " has two owners";
      ASSERT_EQ(block.owner, owners[l].empty() ? -1 : *owners[l].begin());
      ASSERT_EQ(block.num_used, used[l]);
      ASSERT_EQ(block.scratch, 0);
      ASSERT_EQ(block.is_listed, static_cast<int32_t>(listed.count(l)));
      int bits = 0;
      for (int64_t w = 0; w < slice_words(device.most); ++w) {
        bits += std::popcount(
            static_cast<uint32_t>(device.used_slices[l * slice_words(device.most) + w]));
      }
      ASSERT_EQ(bits, used[l]);
      if (used[l] == 0) {
        free.insert(l);
        continue;
      }
      const int32_t left = pool.slices[block.owner] - used[l];
      unused[block.owner] += left;
      if (left > 0) {
        ASSERT_EQ(block.is_listed, 1);
      }
    }
    ASSERT_EQ(device.state[kNumFree], std::ssize(free));
    ASSERT_EQ(std::set<int32_t>(device.free_large.begin(),
                                device.free_large.begin() + device.state[kNumFree]),
              free);
    for (int32_t g = 0; g < pool.num_groups; ++g) {
      ASSERT_EQ(device.unused_in_open_blocks(g), unused[g]);
    }
    ASSERT_EQ(device.state[kPoolErrors], 0);
    // In whatever order the items of a step ran. Beyond their ends the stacks hold old ids.
    ASSERT_EQ(device.state, other.state);
    const auto same = [](const Ids& a, const Ids& b, int32_t n) {
      return std::equal(a.begin(), a.begin() + n, b.begin());
    };
    ASSERT_TRUE(same(device.free_large, other.free_large, device.state[kNumFree]));
    ASSERT_TRUE(same(device.listed, other.listed, device.state[kNumListed]));
    ASSERT_TRUE(device.large == other.large);
    ASSERT_EQ(device.used_slices, other.used_slices);
    ASSERT_EQ(device.ref_counts, other.ref_counts);
  }

  Arrays device;
  Arrays other;
  ShuffledTeam shuffled;
  std::vector<std::map<int32_t, int32_t>> holders;  // of each group: id and number of holders
};

/// Admission as SlicedBlockPool defines it: large blocks needed beyond the free slices of open
/// ones.
struct Admission {
  explicit Admission(const Arrays& a) : slices(a.pool.slices, a.pool.slices + a.pool.num_groups) {
    reserve = a.state[kNumFree];
    for (int32_t g = 0; g < a.pool.num_groups; ++g) open.push_back(a.unused_in_open_blocks(g));
  }

  bool take(const std::vector<int64_t>& counts) {
    int64_t needed = 0;
    for (size_t g = 0; g < counts.size(); ++g) needed += large(g, counts[g]);
    if (needed > reserve) return false;
    reserve -= needed;
    for (size_t g = 0; g < counts.size(); ++g) {
      open[g] += large(g, counts[g]) * slices[g] - counts[g];
    }
    return true;
  }

  int64_t large(size_t g, int64_t count) const {
    return count > open[g] ? (count - open[g] + slices[g] - 1) / slices[g] : 0;
  }

  Ids slices;
  int64_t reserve;
  std::vector<int64_t> open;
};

struct SliceAllocation {
  SliceAllocation(const SlicedPool& pool, Ids c, int64_t capacity)
      : counts(std::move(c)),
        ids(capacity, -7),
        starts(counts.size() + 1, -7),
        status(counts.size() / pool.num_groups, -7),
        workspace(allocate_slices_workspace(std::ssize(status), pool.num_groups), -7) {
    args = {.num_requests = static_cast<int32_t>(status.size()),
            .counts = counts.data(),
            .ids_capacity = capacity,
            .ids = ids.data(),
            .starts = starts.data(),
            .status = status.data(),
            .workspace = workspace.data()};
  }

  Ids of(int32_t group, size_t request) const {
    const size_t item = group * status.size() + request;
    return {ids.begin() + starts[item], ids.begin() + starts[item + 1]};
  }

  Ids counts, ids;
  std::vector<int64_t> starts;
  Ids status;
  std::vector<int64_t> workspace;
  AllocateSlices args;
};

TEST(SlicedOps, RandomSequencesHandOutEachSliceOnce) {
  int refused = 0;
  int too_many_ids = 0;
  for (int seed = 0; seed < rounds(80); ++seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](int64_t n) { return static_cast<int32_t>(random() % n); };
    Ids slices(1 + below(4));
    for (int32_t& k : slices) k = below(3) == 0 ? 1 + below(70) : 1 + below(8);
    const auto num_groups = static_cast<int32_t>(slices.size());
    const bool counted = seed % 2 == 1;
    Pools pools(1 + below(40), slices, counted, seed);
    ASSERT_NO_FATAL_FAILURE(pools.check());
    for (int step = 0; step < 60; ++step) {
      const int32_t what = below(counted ? 4 : 3);
      if (what == 0) {
        const int32_t n = below(6);
        Ids counts;
        for (int32_t i = 0; i < n * num_groups; ++i) {
          counts.push_back(below(3) == 0 ? 0 : below(2 + slices[i % num_groups] * 3));
        }
        const int64_t capacity = below(4) == 0 ? below(60) : 1 << 14;
        SliceAllocation a(pools.device.pool, counts, capacity);
        SliceAllocation b(pools.device.pool, counts, capacity);
        Admission admission(pools.device);
        allocate(tested_ops(), pools.device.pool, a.args);
        allocate_steps(pools.shuffled, pools.other.pool, b.args);
        ASSERT_EQ(a.ids, b.ids);
        ASSERT_EQ(a.starts, b.starts);
        ASSERT_EQ(a.status, b.status);
        int64_t room = capacity;
        for (int32_t r = 0; r < n; ++r) {
          const std::vector<int64_t> wanted(counts.begin() + r * num_groups,
                                            counts.begin() + (r + 1) * num_groups);
          const int64_t total = std::accumulate(wanted.begin(), wanted.end(), int64_t{0});
          Admission tried = admission;
          int32_t status = kOk;
          if (!tried.take(wanted)) {
            status = kOutOfBlocks;
          } else if (total > room) {
            status = kTableTooNarrow;
          } else {
            admission = tried;
            room -= total;
          }
          ASSERT_EQ(a.status[r], status) << "seed " << seed << " step " << step;
          refused += status == kOutOfBlocks;
          too_many_ids += status == kTableTooNarrow;
          for (int32_t g = 0; g < num_groups; ++g) {
            const Ids got = a.of(g, r);
            ASSERT_EQ(std::ssize(got), status == kOk ? wanted[g] : 0);
            for (int32_t id : got) ASSERT_NO_FATAL_FAILURE(pools.hold(g, id));
          }
        }
      } else if (what == 3) {
        const int32_t g = below(num_groups);
        Ids ids;
        for (const auto& [id, count] : pools.holders[g]) {
          if (below(3) == 0) ids.push_back(id);
        }
        touch(tested_ops(), pools.device.pool, g, ids.data(), std::ssize(ids));
        touch_steps(pools.shuffled, pools.other.pool, g, ids.data(), std::ssize(ids));
        for (int32_t id : ids) ++pools.holders[g][id];
      } else {
        const int32_t g = below(num_groups);
        const int32_t share = 1 + below(4);
        Ids ids;
        for (const auto& [id, count] : pools.holders[g]) {
          if (below(share) != 0) continue;
          ids.insert(ids.end(), 1 + below(count), id);
        }
        if (below(3) == 0) ids.push_back(0);
        std::shuffle(ids.begin(), ids.end(), random);
        pools.release_blocks(g, ids);
      }
      ASSERT_NO_FATAL_FAILURE(pools.check()) << "seed " << seed << " step " << step;
    }
    for (int32_t g = 0; g < num_groups; ++g) {
      Ids ids;
      for (const auto& [id, count] : pools.holders[g]) ids.insert(ids.end(), count, id);
      pools.release_blocks(g, ids);
    }
    ASSERT_NO_FATAL_FAILURE(pools.check());
    ASSERT_EQ(pools.device.state[kNumFree], pools.device.pool.num_large_blocks - 1);
  }
  EXPECT_GT(refused, rounds(60));
  EXPECT_GT(too_many_ids, rounds(20));
}

// Where every request takes and gives back whole large blocks there is one answer to "does it fit",
// whatever slices are chosen.
TEST(SlicedOps, WholeLargeBlocksAreAdmittedAsByTheHostPool) {
  std::mt19937_64 random(5);
  const Ids slices{3, 1, 16};
  Pools pools(30, slices, false, 5);
  SlicedBlockPool host(30, std::vector<int64_t>{3, 1, 16}, {.enable_caching = false});
  struct Request {
    std::vector<Ids> device;
    std::vector<std::vector<BlockId>> host;
  };
  std::vector<Request> running;
  int refused = 0;
  for (int step = 0; step < rounds(400); ++step) {
    if (!running.empty() && random() % 2 == 0) {
      std::swap(running[random() % running.size()], running.back());
      for (int32_t g = 0; g < 3; ++g) {
        pools.release_blocks(g, running.back().device[g]);
        host.free_blocks(PoolGroupId{static_cast<uint16_t>(g)}, running.back().host[g]);
      }
      running.pop_back();
    } else {
      Ids counts;
      std::vector<SliceDemand> demands;
      for (uint16_t g = 0; g < 3; ++g) {
        counts.push_back(static_cast<int32_t>(random() % 5) * slices[g]);
        demands.push_back({.group_id = PoolGroupId{g}, .num_new = counts.back()});
      }
      SliceAllocation a(pools.device.pool, counts, 1000);
      SliceAllocation b(pools.device.pool, counts, 1000);
      const bool fits = host.can_allocate(demands);
      allocate(tested_ops(), pools.device.pool, a.args);
      allocate_steps(pools.shuffled, pools.other.pool, b.args);
      ASSERT_EQ(a.status[0], fits ? kOk : kOutOfBlocks);
      refused += !fits;
      if (fits) {
        Request request;
        for (uint16_t g = 0; g < 3; ++g) {
          request.device.push_back(a.of(static_cast<int32_t>(g), 0));
          request.host.push_back(host.get_new_blocks(PoolGroupId{g}, counts[g]));
          for (int32_t id : request.device.back()) {
            ASSERT_NO_FATAL_FAILURE(pools.hold(static_cast<int32_t>(g), id));
          }
        }
        running.push_back(request);
      }
    }
    ASSERT_EQ(pools.device.state[kNumFree], host.num_free_large_blocks());
    ASSERT_NO_FATAL_FAILURE(pools.check());
  }
  EXPECT_GT(refused, rounds(20));
}

TEST(SlicedOps, TheFullestLargeBlockFirstAndWholeOnesForMany) {
  Pools pools(20, {8}, false, 1);
  SliceAllocation all(pools.device.pool, {24}, 24);  // three large blocks
  allocate(tested_ops(), pools.device.pool, all.args);
  SliceAllocation twin(pools.device.pool, {24}, 24);
  allocate_steps(pools.shuffled, pools.other.pool, twin.args);
  Ids expected(24);
  std::iota(expected.begin(), expected.end(), 8);
  EXPECT_EQ(all.ids, expected);
  for (int32_t id : all.ids) pools.hold(0, id);
  pools.release_blocks(0, {8, 9, 10, 11, 12, 17, 25, 26, 27});  // 5, 1 and 3 unused
  pools.check();
  const auto take = [&](int32_t n) {
    SliceAllocation a(pools.device.pool, {n}, n);
    SliceAllocation b(pools.device.pool, {n}, n);
    allocate(tested_ops(), pools.device.pool, a.args);
    allocate_steps(pools.shuffled, pools.other.pool, b.args);
    EXPECT_EQ(a.ids, b.ids);
    for (int32_t id : a.ids) pools.hold(0, id);
    pools.check();
    return a.ids;
  };
  EXPECT_EQ(take(2), (Ids{17, 25}));
  // Eight of them fill a large block of their own.
  EXPECT_EQ(take(9), (Ids{32, 33, 34, 35, 36, 37, 38, 39, 26}));
  EXPECT_EQ(pools.device.state[kNumFree], 15);
  // The rest of the pool: the holes, then the reserve.
  EXPECT_EQ(take(6 + 15 * 8).size(), 126U);
  EXPECT_EQ(pools.device.state[kNumFree], 0);
  SliceAllocation none(pools.device.pool, {1}, 1);
  allocate(tested_ops(), pools.device.pool, none.args);
  EXPECT_EQ(none.status[0], kOutOfBlocks);
  EXPECT_EQ(none.ids[0], -7);
}

TEST(SlicedOps, AListOfMoreThanARoundOfATeam) {
  constexpr int32_t kLarge = 3000;
  Pools pools(kLarge, {4, 2}, false, 9);
  const auto take = [&](Ids counts) {
    const int64_t capacity = 4 * kLarge;
    SliceAllocation a(pools.device.pool, counts, capacity);
    SliceAllocation b(pools.device.pool, counts, capacity);
    allocate(tested_ops(), pools.device.pool, a.args);
    allocate_steps(pools.shuffled, pools.other.pool, b.args);
    ASSERT_EQ(a.ids, b.ids);
    ASSERT_EQ(a.status[0], kOk);
    for (int32_t g = 0; g < 2; ++g) {
      for (int32_t id : a.of(g, 0)) ASSERT_NO_FATAL_FAILURE(pools.hold(g, id));
    }
    ASSERT_NO_FATAL_FAILURE(pools.check());
  };
  take({4 * (kLarge - 1), 0});
  Ids one_of_each;
  for (int32_t l = 1; l < kLarge; ++l) one_of_each.push_back(4 * l + l % 4);
  pools.release_blocks(0, one_of_each);
  ASSERT_NO_FATAL_FAILURE(pools.check());
  EXPECT_EQ(pools.device.state[kNumListed], kLarge - 1);
  take({2500, 0});
  EXPECT_EQ(pools.device.state[kNumListed], kLarge - 1);  // most of them full
  take({1, 0});
  EXPECT_EQ(pools.device.state[kNumListed], kLarge - 1 - 2500);
  Ids rest;
  for (const auto& [id, count] : pools.holders[0]) {
    if (id < 2000 * 4) rest.push_back(id);
  }
  pools.release_blocks(0, rest);
  take({0, 2 * 1999});
}

TEST(SlicedOps, BadIdsAreBitsAndChangeNothing) {
  Pools pools(4, {4, 2}, true, 1);
  SliceAllocation a(pools.device.pool, {3, 2}, 8);
  allocate(tested_ops(), pools.device.pool, a.args);
  const auto errors = [&](int32_t group, const Ids& ids) {
    pools.device.state[kPoolErrors] = 0;
    const std::vector<LargeBlock> before = pools.device.large;
    release(tested_ops(), pools.device.pool, group, ids.data(), std::ssize(ids));
    EXPECT_TRUE(pools.device.large == before);
    EXPECT_EQ(pools.device.state[kNumFree], 1);
    return pools.device.state[kPoolErrors];
  };
  EXPECT_EQ(a.of(0, 0), (Ids{8, 9, 10}));
  EXPECT_EQ(a.of(1, 0), (Ids{2, 3}));
  EXPECT_EQ(errors(0, {0}), 0);
  EXPECT_EQ(errors(0, {-1}), kBadBlockId);
  EXPECT_EQ(errors(0, {3}), kBadBlockId);  // of the null block
  EXPECT_EQ(errors(0, {16}), kBadBlockId);
  EXPECT_EQ(errors(1, {8}), kBadBlockId);
  EXPECT_EQ(errors(0, {11}), kBlockNotInUse);
  EXPECT_EQ(errors(0, {4}), kBlockNotInUse);   // the other group's large block
  EXPECT_EQ(errors(0, {12}), kBlockNotInUse);  // in the reserve
  const Ids free_one{11};
  touch(tested_ops(), pools.device.pool, 0, free_one.data(), 1);
  EXPECT_EQ(pools.device.state[kPoolErrors], kBlockNotInUse);
  const Ids twice{2, 2, 3};
  release(tested_ops(), pools.device.pool, 1, twice.data(), 3);
  EXPECT_EQ(pools.device.state[kNumFree], 2);
}

TEST(SlicedOps, ArgumentsAreCheckedBeforeAnything) {
  Pools pools(10, {4, 2}, false, 1);
  const auto refused = [&](auto change, const std::string& name) {
    SliceAllocation a(pools.device.pool, {1, 1}, 8);
    SlicedPool bad = pools.device.pool;
    change(bad, a.args);
    try {
      allocate(tested_ops(), bad, a.args);
      FAIL() << name;
    } catch (const InvalidArgument& e) {
      EXPECT_NE(std::string(e.what()).find(name), std::string::npos) << e.what();
    }
    EXPECT_EQ(pools.device.state[kNumFree], 9);
  };
  refused([](SlicedPool& p, AllocateSlices&) { p.slices[1] = 0; }, "pool.slices[1]");
  refused([](SlicedPool& p, AllocateSlices&) { p.slices[0] = -4; }, "pool.slices[0]");
  refused([](SlicedPool& p, AllocateSlices&) { p.slices[0] = 1 << 28; }, "pool.slices[0]");
  refused([](SlicedPool& p, AllocateSlices&) { p.slices[0] = 5; }, "pool.max_slices");
  refused([](SlicedPool& p, AllocateSlices&) { p.num_groups = 65; }, "pool.num_groups");
  refused([](SlicedPool& p, AllocateSlices&) { p.num_large_blocks = 0; }, "num_large_blocks");
  refused([](SlicedPool& p, AllocateSlices&) { p.large = nullptr; }, "pool.large");
  refused([](SlicedPool&, AllocateSlices& a) { a.workspace = nullptr; }, "workspace");
  refused([](SlicedPool&, AllocateSlices& a) { a.counts = nullptr; }, "counts");
  const Ids ids{8};
  EXPECT_THROW(release(tested_ops(), pools.device.pool, 2, ids.data(), 1), InvalidArgument);
  EXPECT_THROW(touch(tested_ops(), pools.device.pool, 0, ids.data(), 1), InvalidArgument);
}

// Steps of batches.

struct Table {
  Ids entries, num_entries;
  GroupTable group;

  Ids row(int32_t r) const {
    const auto begin = entries.begin() + r * group.row_stride;
    return {begin, begin + num_entries[r]};
  }
};

constexpr uint32_t kSmallTile = 4;  // the workspaces have room for it

struct BatchRun {
  static constexpr int32_t kRows = 7;
  static constexpr int32_t kMaxRequests = 6;

  BatchRun(Arrays& arrays, const std::vector<GroupTable>& groups, int64_t max_tokens)
      : tables(groups.size()),
        status(kMaxRequests, -7),
        slots(groups.size() * max_tokens, -7),
        workspace(append_slots_workspace(kMaxRequests, std::ssize(groups)) + 100, -7) {
    args.pool = arrays.pool;
    args.num_groups = static_cast<int32_t>(groups.size());
    args.num_rows = kRows;
    args.max_requests = kMaxRequests;
    args.max_tokens = max_tokens;
    args.status = status.data();
    args.slots = slots.data();
    args.slots_stride = max_tokens;
    args.workspace = workspace.data();
    for (size_t g = 0; g < groups.size(); ++g) {
      Table& t = tables[g];
      t.group = groups[g];
      t.entries.assign(kRows * groups[g].width, 0);
      t.num_entries.assign(kRows, 0);
      t.group.table = t.entries.data();
      t.group.num_entries = t.num_entries.data();
      t.group.row_stride = t.group.width;
      args.groups[g] = t.group;
    }
  }

  ReleaseSlicedRows released(const Ids& rows) {
    ReleaseSlicedRows r;
    r.pool = args.pool;
    r.num_groups = args.num_groups;
    r.num_rows = kRows;
    r.max_requests = static_cast<int32_t>(rows.size());
    r.rows = rows.data();
    r.workspace = workspace.data();
    std::copy(std::begin(args.groups), std::end(args.groups), std::begin(r.groups));
    return r;
  }

  std::vector<Table> tables;
  Ids status;
  std::vector<int64_t> slots, workspace;
  AppendSlices args;
};

void append_batches(int seed, int64_t max_tokens, int steps, int& refused) {
  std::mt19937_64 random(seed);
  const auto below = [&](int64_t n) { return static_cast<int32_t>(random() % n); };
  Ids slices(1 + below(3));
  std::vector<GroupTable> groups(slices.size());
  for (size_t g = 0; g < slices.size(); ++g) {
    slices[g] = 1 + below(6);
    groups[g].block_size = 4 << below(3);
    groups[g].width = 80;
    if (below(2) == 0) groups[g].window = {WindowKind::kSliding, 1 + below(30)};
  }
  Pools pools(2 + below(40), slices, seed % 2 == 1, seed);
  BatchRun run(pools.device, groups, max_tokens);
  BatchRun twin(pools.other, groups, max_tokens);
  Ids lengths(BatchRun::kRows);
  const auto same_tables = [&] {
    for (size_t g = 0; g < groups.size(); ++g) {
      ASSERT_EQ(run.tables[g].entries, twin.tables[g].entries);
      ASSERT_EQ(run.tables[g].num_entries, twin.tables[g].num_entries);
    }
  };
  const auto hold_what_the_tables_have = [&] {
    for (size_t g = 0; g < groups.size(); ++g) {
      pools.holders[g].clear();
      for (int32_t row = 0; row < BatchRun::kRows; ++row) {
        for (int32_t id : run.tables[g].row(row)) {
          if (id == 0) continue;
          ASSERT_NO_FATAL_FAILURE(pools.hold(static_cast<int32_t>(g), id));
        }
      }
    }
  };
  for (int step = 0; step < steps; ++step) {
    Ids rows(BatchRun::kRows);
    std::iota(rows.begin(), rows.end(), 0);
    std::shuffle(rows.begin(), rows.end(), random);
    rows.resize(BatchRun::kMaxRequests);
    Ids context(BatchRun::kMaxRequests), counts(BatchRun::kMaxRequests);
    const int32_t n = below(BatchRun::kMaxRequests + 1);
    for (int32_t r = 0; r < n; ++r) {
      context[r] = lengths[rows[r]];
      counts[r] = std::min<int32_t>(below(2) == 0 ? 1 : below(max_tokens / BatchRun::kMaxRequests),
                                    300 - context[r]);
      if (below(8) == 0) {
        rows[r] = -1;
        context[r] = counts[r] = 0;
      }
    }
    for (BatchRun* each : {&run, &twin}) {
      each->args.num_requests = &n;
      each->args.rows = rows.data();
      each->args.context_lens = context.data();
      each->args.new_tokens = counts.data();
    }
    // First the blocks below the windows, by a step without tokens; it may fail nothing.
    const Ids nothing(BatchRun::kMaxRequests);
    for (BatchRun* each : {&run, &twin}) each->args.new_tokens = nothing.data();
    append_slots(tested_ops(), run.args);
    append_slots_steps(pools.shuffled, append_step(twin.args, kSmallTile));
    ASSERT_NO_FATAL_FAILURE(hold_what_the_tables_have());
    ASSERT_NO_FATAL_FAILURE(pools.check());

    Admission admission(pools.device);
    std::vector<std::vector<int64_t>> entries(groups.size());
    for (size_t g = 0; g < groups.size(); ++g) {
      for (int32_t row : rows) {
        entries[g].push_back(row < 0 ? 0 : std::ssize(run.tables[g].row(row)));
      }
    }
    for (BatchRun* each : {&run, &twin}) each->args.new_tokens = counts.data();
    append_slots(tested_ops(), run.args);
    append_slots_steps(pools.shuffled, append_step(twin.args, kSmallTile));
    ASSERT_NO_FATAL_FAILURE(same_tables());
    ASSERT_EQ(run.status, twin.status);
    ASSERT_EQ(run.slots, twin.slots);
    ASSERT_NO_FATAL_FAILURE(hold_what_the_tables_have());
    ASSERT_NO_FATAL_FAILURE(pools.check()) << "seed " << seed << " step " << step;
    int64_t t = 0;
    for (int32_t r = 0; r < n; ++r) {
      std::vector<int64_t> wanted;
      for (size_t g = 0; g < groups.size(); ++g) {
        const int64_t end =
            (context[r] + counts[r] + groups[g].block_size - 1) / groups[g].block_size;
        const int64_t nulls = skipped_tokens(groups[g].window, context[r]) / groups[g].block_size;
        const int64_t begin = std::max(entries[g][r], nulls);
        wanted.push_back(rows[r] < 0 ? 0 : std::max<int64_t>(end - begin, 0));
      }
      const bool fits = admission.take(wanted);
      ASSERT_EQ(run.status[r], fits ? kOk : kOutOfBlocks) << "seed " << seed << " step " << step;
      refused += !fits;
      for (int32_t i = 0; i < counts[r]; ++i, ++t) {
        for (size_t g = 0; g < groups.size(); ++g) {
          int64_t slot = kPadSlot;
          if (fits && rows[r] >= 0) {
            const int32_t position = context[r] + i;
            const int32_t id = run.tables[g].row(rows[r])[position / groups[g].block_size];
            ASSERT_NE(id, 0);
            slot = int64_t{id} * groups[g].block_size + position % groups[g].block_size;
          }
          ASSERT_EQ(run.slots[g * max_tokens + t], slot);
        }
      }
      if (fits && rows[r] >= 0) lengths[rows[r]] += counts[r];
    }
    for (size_t g = 0; g < groups.size(); ++g) {
      for (int64_t pad = t; pad < max_tokens; ++pad) {
        ASSERT_EQ(run.slots[g * max_tokens + pad], kPadSlot);
      }
    }
    Ids ended{-1};
    for (int32_t row = 0; row < BatchRun::kRows; ++row) {
      if (lengths[row] < 250 && below(12) != 0) continue;
      ended.push_back(row);
      lengths[row] = 0;
    }
    if (ended.size() <= BatchRun::kMaxRequests) {
      release_rows(tested_ops(), run.released(ended));
      release_rows_steps(pools.shuffled, twin.released(ended));
    } else {
      for (int32_t row = 0; row < BatchRun::kRows; ++row) {
        const Ids one{row};
        release_rows(tested_ops(), run.released(one));
        release_rows_steps(pools.shuffled, twin.released(one));
        lengths[row] = 0;
      }
    }
    ASSERT_NO_FATAL_FAILURE(same_tables());
    ASSERT_NO_FATAL_FAILURE(hold_what_the_tables_have());
    ASSERT_NO_FATAL_FAILURE(pools.check());
  }
  for (int32_t row = 0; row < BatchRun::kRows; ++row) {
    const Ids one{row};
    release_rows(tested_ops(), run.released(one));
  }
  ASSERT_EQ(pools.device.state[kNumFree], pools.device.pool.num_large_blocks - 1);
}

TEST(AppendSlices, RandomBatches) {
  int refused = 0;
  for (int seed = 0; seed < rounds(120); ++seed) {
    ASSERT_NO_FATAL_FAILURE(append_batches(seed, 60, 25, refused));
  }
  EXPECT_GT(refused, rounds(100));
}

TEST(AppendSlices, SlotsOfManyTokens) {
  int refused = 0;
  for (int seed = 0; seed < 3; ++seed) {
    ASSERT_NO_FATAL_FAILURE(append_batches(seed, 5000, 3, refused));
  }
}

TEST(AppendSlices, TablesMustBeThoseOfThePool) {
  Arrays arrays(10, {4, 2}, false);
  reset_pool(tested_ops(), arrays.pool);
  BatchRun run(arrays, std::vector<GroupTable>(1, {.width = 4, .block_size = 4, .window = {}}), 8);
  const Ids rows(BatchRun::kMaxRequests, -1);
  run.args.rows = run.args.context_lens = run.args.new_tokens = rows.data();
  EXPECT_THROW(append_slots(tested_ops(), run.args), InvalidArgument);
  EXPECT_EQ(run.status[0], -7);
}

TEST(RemapBlocks, EveryEntryInUseAndNoOther) {
  Ids table{5, 9, 0, 7, 7, 5, 9, 9};
  Ids num_entries{3, 2};
  const Ids sources{5, 7};
  const Ids targets{9, 3};
  RemapBlocks a;
  a.group = {.table = table.data(),
             .num_entries = num_entries.data(),
             .row_stride = 4,
             .width = 4,
             .block_size = 16,
             .window = {}};
  a.num_rows = 2;
  a.num_moves = 2;
  a.sources = sources.data();
  a.targets = targets.data();
  remap_blocks(tested_ops(), a);
  EXPECT_EQ(table, (Ids{9, 9, 0, 7, 3, 9, 9, 9}));
  a.targets = nullptr;
  EXPECT_THROW(remap_blocks(tested_ops(), a), InvalidArgument);
}

}  // namespace
}  // namespace kvplan::cuda
