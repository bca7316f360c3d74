#pragma once

#include <cstdint>

#include "device/step.h"
#include "kvplan/device/block_ops.h"

// The pool of blocks of one size. See steps.h.
namespace kvplan::cuda {

KVPLAN_STEP inline bool is_block(const Pool& pool, int32_t id) {
  return id > kNullEntry && id < pool.num_blocks;
}

/// The pool's errors, for an id that is not a block's: the null block is none.
template <class Team>
KVPLAN_STEP void report_bad_id(Team& team, const Pool& pool, int32_t id) {
  if (id != kNullEntry) team.fetch_or(&pool.state[kPoolErrors], kBadBlockId);
}

template <class Team>
KVPLAN_STEP void reset_pool_steps(Team& team, const Pool& pool) {
  team.for_each(pool.num_blocks, [&](int64_t i) {
    // The top of the stack is its last element, so the ids descend.
    if (i < pool.num_blocks - 1) pool.free_ids[i] = static_cast<int32_t>(pool.num_blocks - 1 - i);
    if (pool.ref_counts != nullptr) {
      pool.ref_counts[i] = 0;
      pool.last_use[i] = 0;
    }
  });
  team.once([&] {
    pool.state[kNumFree] = pool.num_blocks - 1;
    pool.state[kPoolErrors] = 0;
  });
}

/// In `ref_counts` while a release runs: the last holder has gone.
inline constexpr int32_t kLastHolderGone = -(1 << 30);

/// Releases `id_at(0) .. id_at(count - 1)`, fewer than 2^30. A block becomes free where the batch
/// names it last, also if it is named more often than it has holders, so that the order does not
/// depend on which thread comes first.
template <class Team, class IdAt>
KVPLAN_STEP void release_steps(Team& team, const Pool& pool, int64_t count, IdAt id_at) {
  const int64_t num_free = pool.state[kNumFree];
  const int64_t num_usable = pool.num_blocks - 1;
  if (pool.ref_counts != nullptr) {
    team.for_each(count, [&](int64_t k) {
      const int32_t id = id_at(k);
      if (!is_block(pool, id)) return report_bad_id(team, pool, id);
      const int32_t before = team.fetch_add(&pool.ref_counts[id], -1);
      if (before == 1) {
        team.fetch_add(&pool.ref_counts[id], kLastHolderGone);
      } else if (before <= 0) {
        team.fetch_add(&pool.ref_counts[id], 1);
        team.fetch_or(&pool.state[kPoolErrors], kBlockNotInUse);
      }
      team.fetch_max(&pool.last_use[id], static_cast<int32_t>(k) + 1);
    });
  }
  // The first of the batch shall be handed out first, so it goes on the stack last.
  const int64_t released = team.scan(
      count,
      [&](int64_t i) -> int64_t {
        const int64_t k = count - 1 - i;
        const int32_t id = id_at(k);
        if (!is_block(pool, id)) {
          if (pool.ref_counts == nullptr) report_bad_id(team, pool, id);
          return 0;
        }
        if (pool.ref_counts == nullptr) return 1;
        return pool.last_use[id] == static_cast<int32_t>(k) + 1 &&
               pool.ref_counts[id] == kLastHolderGone;
      },
      [&](int64_t i, int64_t before, int64_t is_released) {
        if (is_released == 0) return;
        const int32_t id = id_at(count - 1 - i);
        if (pool.ref_counts != nullptr) pool.ref_counts[id] = 0;
        const int64_t place = num_free + before;
        if (place < num_usable) {
          pool.free_ids[place] = id;
        } else {
          team.fetch_or(&pool.state[kPoolErrors], kTooManyFree);
        }
      });
  if (pool.ref_counts != nullptr) {
    team.for_each(count, [&](int64_t k) {
      const int32_t id = id_at(k);
      if (is_block(pool, id)) team.exchange(&pool.last_use[id], 0);  // it may be there twice
    });
  }
  team.once([&] {
    const int64_t free_now = num_free + released;
    pool.state[kNumFree] = static_cast<int32_t>(free_now < num_usable ? free_now : num_usable);
  });
}

template <class Team>
KVPLAN_STEP void touch_steps(Team& team, const Pool& pool, const int32_t* ids, int64_t num_ids) {
  team.for_each(num_ids, [&](int64_t k) {
    const int32_t id = ids[k];
    if (!is_block(pool, id)) return report_bad_id(team, pool, id);
    // A block that is not in use stays without holders, however often it is named.
    if (team.fetch_add(&pool.ref_counts[id], 0) <= 0) {
      team.fetch_or(&pool.state[kPoolErrors], kBlockNotInUse);
    } else {
      team.fetch_add(&pool.ref_counts[id], 1);
    }
  });
}

/// The k-th block that is handed out of a stack of `num_free` ids.
KVPLAN_STEP inline int32_t taken_id(const Pool& pool, int64_t num_free, int64_t k) {
  return pool.free_ids[num_free - 1 - k];
}
KVPLAN_STEP inline int32_t take(const Pool& pool, int64_t num_free, int64_t k) {
  const int32_t id = taken_id(pool, num_free, k);
  if (pool.ref_counts != nullptr) pool.ref_counts[id] = 1;
  return id;
}

template <class Team>
KVPLAN_STEP void allocate_steps(Team& team, const Pool& pool, const Allocate& a) {
  const int64_t num_free = pool.state[kNumFree];
  const int32_t n = a.num_requests;
  int64_t total = team.scan(
      n, [&](int64_t r) -> int64_t { return a.counts[r] > 0 ? a.counts[r] : 0; },
      [&](int64_t r, int64_t before, int64_t) {
        a.starts[r] = before;
        a.status[r] = a.counts[r] < 0 ? kBadRequest : kOk;
      });
  if (total > num_free || total > a.ids_capacity) {
    // Rare, and each answer depends on those before it.
    team.once([&] {
      int64_t taken = 0;
      for (int32_t r = 0; r < n; ++r) {
        a.starts[r] = taken;
        const int64_t count = a.counts[r] > 0 ? a.counts[r] : 0;
        if (count > num_free - taken) {
          a.status[r] = kOutOfBlocks;
        } else if (count > a.ids_capacity - taken) {
          a.status[r] = kTableTooNarrow;
        } else {
          taken += count;
        }
      }
      a.starts[n] = taken;
    });
    total = a.starts[n];
  } else {
    team.once([&] { a.starts[n] = total; });
  }
  team.for_each(total, [&](int64_t k) { a.ids[k] = take(pool, num_free, k); });
  team.once([&] { pool.state[kNumFree] = static_cast<int32_t>(num_free - total); });
}

}  // namespace kvplan::cuda
