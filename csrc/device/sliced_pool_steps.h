#pragma once

#include <cstdint>

#include "device/step.h"
#include "kvplan/device/block_ops.h"

// The pool whose large blocks are cut into slices. See steps.h.
namespace kvplan::cuda {

/// A block of a group.
struct Slice {
  int32_t group;
  int32_t id;
};

KVPLAN_STEP inline bool is_slice(const SlicedPool& pool, const Slice& s) {
  const int64_t slices = pool.slices[s.group];
  return s.id >= slices && s.id < pool.num_large_blocks * slices;
}

KVPLAN_STEP inline int32_t large_of(const SlicedPool& pool, const Slice& s) {
  return s.id / pool.slices[s.group];
}

KVPLAN_STEP inline int32_t* word_of(const SlicedPool& pool, int32_t large, int32_t slice) {
  const int64_t words = (pool.max_slices + 31) / 32;
  return pool.used_slices + large * words + slice / 32;
}

KVPLAN_STEP inline int32_t bit_of(int32_t slice) { return static_cast<int32_t>(1U << slice % 32); }

KVPLAN_STEP inline int32_t* holders_of(const SlicedPool& pool, int32_t large, int32_t slice) {
  return pool.ref_counts + static_cast<int64_t>(large) * pool.max_slices + slice;
}

KVPLAN_STEP inline int32_t* partly_free(const SlicedPool& pool, int32_t group) {
  return pool.state + kPoolStateSize + group;
}

template <class Team>
KVPLAN_STEP void reset_pool_steps(Team& team, const SlicedPool& pool) {
  const int64_t words = (pool.max_slices + 31) / 32;
  team.for_each(pool.num_large_blocks, [&](int64_t l) {
    // The top of the stack is its last element, so the ids descend.
    if (l < pool.num_large_blocks - 1) {
      pool.free_large[l] = static_cast<int32_t>(pool.num_large_blocks - 1 - l);
    }
    pool.large[l] = {-1, 0, 0, 0};
  });
  team.for_each(pool.num_large_blocks * words, [&](int64_t i) { pool.used_slices[i] = 0; });
  if (pool.ref_counts != nullptr) {
    team.for_each(static_cast<int64_t>(pool.num_large_blocks) * pool.max_slices,
                  [&](int64_t i) { pool.ref_counts[i] = 0; });
  }
  team.for_each(kPoolStateSize + pool.num_groups,
                [&](int64_t i) { pool.state[i] = i == kNumFree ? pool.num_large_blocks - 1 : 0; });
}

/// Releases `slice_at(0) .. slice_at(count - 1)`, fewer than 2^31. A large block changes its place
/// where the batch names a slice of it last, also if that was released before, so that the order
/// does not depend on which thread comes first.
template <class Team, class SliceAt>
KVPLAN_STEP void release_steps(Team& team, const SlicedPool& pool, int64_t count,
                               SliceAt slice_at) {
  const int64_t num_free = pool.state[kNumFree];
  const int64_t num_listed = pool.state[kNumListed];
  team.for_each(count, [&](int64_t k) {
    const Slice s = slice_at(k);
    if (s.id == kNullEntry) return;
    if (!is_slice(pool, s)) {
      team.fetch_or(&pool.state[kPoolErrors], kBadBlockId);
      return;
    }
    const int32_t l = large_of(pool, s);
    const int32_t slice = s.id % pool.slices[s.group];
    if (pool.large[l].owner != s.group) {
      team.fetch_or(&pool.state[kPoolErrors], kBlockNotInUse);
      return;
    }
    team.fetch_max(&pool.large[l].scratch, static_cast<int32_t>(k) + 1);
    bool ends = true;
    if (pool.ref_counts != nullptr) {
      int32_t* const holders = holders_of(pool, l, slice);
      const int32_t before = team.fetch_add(holders, -1);
      if (before <= 0) {
        team.fetch_add(holders, 1);
        team.fetch_or(&pool.state[kPoolErrors], kBlockNotInUse);
        return;
      }
      ends = before == 1;
    }
    if (ends) {
      const int32_t bit = bit_of(slice);
      if ((team.fetch_and(word_of(pool, l, slice), ~bit) & bit) == 0) {
        team.fetch_or(&pool.state[kPoolErrors], kBlockNotInUse);
        return;
      }
      team.fetch_add(&pool.large[l].num_used, -1);
      team.fetch_add(partly_free(pool, s.group), 1);
    }
  });
  // Two sums in one: large blocks that go back to the reserve, and those that are to be listed.
  constexpr int64_t kToReserve = int64_t{1} << 32;
  const int64_t moved = team.scan(
      count,
      [&](int64_t k) -> int64_t {
        const Slice s = slice_at(k);
        if (!is_slice(pool, s)) return 0;
        const LargeBlock& block = pool.large[large_of(pool, s)];
        if (block.scratch != static_cast<int32_t>(k) + 1) return 0;
        if (block.num_used == 0) return kToReserve;
        return block.num_used < pool.slices[s.group] && block.is_listed == 0;
      },
      [&](int64_t k, int64_t before, int64_t moves) {
        if (moves == 0) return;
        const Slice s = slice_at(k);
        const int32_t l = large_of(pool, s);
        if (moves == kToReserve) {
          pool.free_large[num_free + before / kToReserve] = l;
          pool.large[l].owner = -1;
          team.fetch_add(partly_free(pool, s.group), -pool.slices[s.group]);
        } else {
          pool.listed[num_listed + before % kToReserve] = l;
          pool.large[l].is_listed = 1;
        }
      });
  team.for_each(count, [&](int64_t k) {
    const Slice s = slice_at(k);
    if (is_slice(pool, s)) team.exchange(&pool.large[large_of(pool, s)].scratch, 0);
  });
  team.once([&] {
    pool.state[kNumFree] = static_cast<int32_t>(num_free + moved / kToReserve);
    pool.state[kNumListed] = static_cast<int32_t>(num_listed + moved % kToReserve);
  });
}

template <class Team>
KVPLAN_STEP void touch_steps(Team& team, const SlicedPool& pool, int32_t group, const int32_t* ids,
                             int64_t num_ids) {
  team.for_each(num_ids, [&](int64_t k) {
    const Slice s{group, ids[k]};
    if (s.id == kNullEntry) return;
    if (!is_slice(pool, s)) {
      team.fetch_or(&pool.state[kPoolErrors], kBadBlockId);
      return;
    }
    const int32_t l = large_of(pool, s);
    int32_t* const holders = holders_of(pool, l, s.id % pool.slices[group]);
    // A block that is not in use stays without holders, however often it is named.
    if (pool.large[l].owner != group || team.fetch_add(holders, 0) <= 0) {
      team.fetch_or(&pool.state[kPoolErrors], kBlockNotInUse);
    } else {
      team.fetch_add(holders, 1);
    }
  });
}

}  // namespace kvplan::cuda
