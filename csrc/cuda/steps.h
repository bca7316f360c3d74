#pragma once

#include <cstdint>

#include "kvplan/cuda/block_ops.h"

#if defined(__CUDACC__)
#define KVPLAN_STEP __device__
#else
#define KVPLAN_STEP
#endif

/// The operations on pool and tables, step by step, for a team of threads.
///
/// A team is one CUDA thread block, or one CPU thread. `for_each(n, f)` runs f(0) .. f(n - 1) in
/// any order and at once; `scan(n, value, store)` calls `store(i, sum of value(j) for j < i,
/// value(i))` for each i and returns the sum of all; `once(f)` runs f in one thread. Each ends with
/// a barrier: what a step wrote, the next one reads. Within a step no item depends on another;
/// tests run the items of a step in random order.
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

/// Releases `id_at(0) .. id_at(count - 1)`. A block becomes free where its last holder in the batch
/// is, so that the order does not depend on which thread comes first.
template <class Team, class IdAt>
KVPLAN_STEP void release_steps(Team& team, const Pool& pool, int64_t count, IdAt id_at) {
  const int64_t num_free = pool.state[kNumFree];
  const int64_t num_usable = pool.num_blocks - 1;
  if (pool.ref_counts != nullptr) {
    team.for_each(count, [&](int64_t k) {
      const int32_t id = id_at(k);
      if (!is_block(pool, id)) return report_bad_id(team, pool, id);
      if (team.fetch_add(&pool.ref_counts[id], -1) <= 0) {
        team.fetch_add(&pool.ref_counts[id], 1);
        team.fetch_or(&pool.state[kPoolErrors], kBlockNotInUse);
        return;
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
        return pool.ref_counts[id] == 0 && pool.last_use[id] == static_cast<int32_t>(k) + 1;
      },
      [&](int64_t i, int64_t before, int64_t is_released) {
        if (is_released == 0) return;
        const int64_t place = num_free + before;
        if (place < num_usable) {
          pool.free_ids[place] = id_at(count - 1 - i);
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
    if (team.fetch_add(&pool.ref_counts[id], 1) <= 0) {
      team.fetch_add(&pool.ref_counts[id], -1);
      team.fetch_or(&pool.state[kPoolErrors], kBlockNotInUse);
    }
  });
}

/// The k-th block that is handed out of a stack of `num_free` ids.
KVPLAN_STEP inline int32_t take(const Pool& pool, int64_t num_free, int64_t k) {
  const int32_t id = pool.free_ids[num_free - 1 - k];
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

/// The tables of one request: what the steps below ask again and again.
struct RequestView {
  int32_t row;
  int64_t context_len;
  int64_t new_tokens;
};

struct EntryRange {
  int64_t begin;
  int64_t end;
  KVPLAN_STEP int64_t size() const { return end > begin ? end - begin : 0; }
};

template <class Args>
KVPLAN_STEP RequestView request_view(const Args& a, int64_t r) {
  return {a.rows[r], a.context_lens[r], a.new_tokens[r]};
}

KVPLAN_STEP inline int32_t* table_row(const GroupTable& g, int32_t row) {
  return g.table + row * g.row_stride;
}

/// Entries of a row in use; a damaged number cannot lead outside the row.
KVPLAN_STEP inline int64_t entries_in_use(const GroupTable& g, int32_t row) {
  const int32_t n = g.num_entries[row];
  return n < 0 ? 0 : (n > g.width ? g.width : n);
}

KVPLAN_STEP inline int64_t entry_tokens(const GroupTable& g, const ContextParallel& cp) {
  return tokens_per_entry(g.block_size, g.dcp_sharded, cp);
}

KVPLAN_STEP inline int64_t required(const GroupTable& g, const ContextParallel& cp,
                                    const RequestView& q) {
  return required_entries(q.context_len + q.new_tokens, entry_tokens(g, cp), g.extra_entries);
}

KVPLAN_STEP inline int64_t null_entries(const GroupTable& g, const ContextParallel& cp,
                                        int64_t context_len) {
  return leading_null_entries(g.window, context_len, entry_tokens(g, cp));
}

/// The blocks below the window that the row still holds: what lies below them is null already.
KVPLAN_STEP inline EntryRange dropped_entries(const GroupTable& g, const ContextParallel& cp,
                                              const RequestView& q) {
  const int64_t in_use = entries_in_use(g, q.row);
  const int64_t nulls = null_entries(g, cp, q.context_len);
  const int64_t end = nulls < in_use ? nulls : in_use;
  const int32_t* entries = table_row(g, q.row);
  int64_t begin = end;
  while (begin > 0 && entries[begin - 1] != kNullEntry) --begin;
  return {begin, end};
}

/// The entries that get a new block. Between those in use and these lie null ones.
KVPLAN_STEP inline EntryRange new_entries(const GroupTable& g, const ContextParallel& cp,
                                          const RequestView& q) {
  const int64_t end = required(g, cp, q);
  const int64_t in_use = entries_in_use(g, q.row);
  const int64_t nulls = null_entries(g, cp, q.context_len);
  return {in_use > nulls ? in_use : nulls, end};
}

template <class Team>
KVPLAN_STEP void append_slots_steps(Team& team, const AppendSlots& a) {
  const Pool& pool = a.pool;
  const int32_t num_groups = a.num_groups;
  int64_t n = a.max_requests;
  if (a.num_requests != nullptr) {
    n = *a.num_requests;
    n = n < 0 ? 0 : (n > a.max_requests ? a.max_requests : n);
  }
  const int64_t num_items = n * num_groups;  // item: a group of a request
  int64_t* const token_starts = a.workspace;
  int64_t* const item_starts = a.workspace + a.max_requests + 1;

  // Which requests are sound, and where their tokens begin.
  const int64_t num_tokens = team.scan(
      n,
      [&](int64_t r) -> int64_t {
        const int64_t tokens = a.new_tokens[r];
        return tokens < 0 ? 0 : (tokens > a.max_tokens ? a.max_tokens : tokens);
      },
      [&](int64_t r, int64_t before, int64_t tokens) {
        token_starts[r] = before;
        const RequestView q = request_view(a, r);
        int32_t status = kOk;
        if (before + tokens > a.max_tokens || q.new_tokens > tokens) {
          status = kTooManyTokens;
        } else if (q.row == -1) {
          status = kOk;
        } else if (q.row < -1 || q.row >= a.num_rows || q.context_len < 0 || q.new_tokens < 0) {
          status = kBadRequest;
        } else {
          for (int32_t g = 0; g < num_groups; ++g) {
            if (required(a.groups[g], a.cp, q) > a.groups[g].width) status = kTableTooNarrow;
          }
        }
        a.status[r] = status;
      });
  team.for_each(a.max_requests - n + 1, [&](int64_t i) {
    if (i == 0) token_starts[n] = num_tokens;
    if (i > 0) a.status[n + i - 1] = kOk;
  });
  const auto is_sound = [&](int64_t r) { return a.status[r] == kOk && a.rows[r] >= 0; };

  // Blocks below the windows go back to the pool before any is taken.
  bool any_window = false;
  for (int32_t g = 0; g < num_groups; ++g) {
    any_window = any_window || a.groups[g].window.kind != WindowKind::kNone;
  }
  if (any_window) {
    const auto dropped = [&](int64_t item) -> EntryRange {
      const int64_t r = item / num_groups;
      const GroupTable& g = a.groups[item % num_groups];
      if (g.window.kind == WindowKind::kNone || !is_sound(r)) return {0, 0};
      return dropped_entries(g, a.cp, request_view(a, r));
    };
    const int64_t num_dropped = team.scan(
        num_items, [&](int64_t item) { return dropped(item).size(); },
        [&](int64_t item, int64_t before, int64_t) { item_starts[item] = before; });
    if (num_dropped > 0) {
      release_steps(team, pool, num_dropped, [&](int64_t k) {
        const int64_t item = owner_of(item_starts, num_items, k);
        const int64_t r = item / num_groups;
        const GroupTable& g = a.groups[item % num_groups];
        // From the last one to the first, as a request gives back its blocks.
        const int64_t in_use = entries_in_use(g, a.rows[r]);
        const int64_t nulls = null_entries(g, a.cp, a.context_lens[r]);
        const int64_t last = (nulls < in_use ? nulls : in_use) - 1;
        return table_row(g, a.rows[r])[last - (k - item_starts[item])];
      });
      team.for_each(num_items, [&](int64_t item) {
        const EntryRange range = dropped(item);
        int32_t* entries = range.size() > 0
                               ? table_row(a.groups[item % num_groups], a.rows[item / num_groups])
                               : nullptr;
        for (int64_t j = range.begin; j < range.end; ++j) entries[j] = kNullEntry;
      });
    }
  }

  // Blocks for the new tokens, request by request and group by group.
  const int64_t num_free = pool.state[kNumFree];
  const auto needed = [&](int64_t item) -> int64_t {
    const int64_t r = item / num_groups;
    if (!is_sound(r)) return 0;
    return new_entries(a.groups[item % num_groups], a.cp, request_view(a, r)).size();
  };
  int64_t total = team.scan(num_items, needed, [&](int64_t item, int64_t before, int64_t) {
    item_starts[item] = before;
  });
  if (total > num_free) {
    // Rare, and each answer depends on those before it.
    team.once([&] {
      int64_t taken = 0;
      for (int64_t r = 0; r < n; ++r) {
        int64_t count = 0;
        for (int32_t g = 0; g < num_groups; ++g) count += needed(r * num_groups + g);
        const bool fits = count <= num_free - taken;
        for (int32_t g = 0; g < num_groups; ++g) {
          const int64_t item_needs = needed(r * num_groups + g);
          item_starts[r * num_groups + g] = taken;
          if (fits) taken += item_needs;
        }
        if (!fits) a.status[r] = kOutOfBlocks;
      }
      item_starts[num_items] = taken;
    });
    total = item_starts[num_items];
  } else {
    team.once([&] { item_starts[num_items] = total; });
  }
  team.for_each(total, [&](int64_t k) {
    const int64_t item = owner_of(item_starts, num_items, k);
    const int64_t r = item / num_groups;
    const GroupTable& g = a.groups[item % num_groups];
    const int64_t first = new_entries(g, a.cp, request_view(a, r)).begin;
    table_row(g, a.rows[r])[first + k - item_starts[item]] = take(pool, num_free, k);
  });
  team.for_each(num_items, [&](int64_t item) {
    const int64_t r = item / num_groups;
    if (!is_sound(r)) return;
    const GroupTable& g = a.groups[item % num_groups];
    const RequestView q = request_view(a, r);
    const int64_t in_use = entries_in_use(g, q.row);
    const EntryRange range = new_entries(g, a.cp, q);
    const int64_t end = range.end > in_use ? range.end : in_use;
    int32_t* entries = table_row(g, q.row);
    for (int64_t j = in_use; j < range.begin && j < end; ++j) entries[j] = kNullEntry;
    g.num_entries[q.row] = static_cast<int32_t>(end);
  });
  team.once([&] { pool.state[kNumFree] = static_cast<int32_t>(num_free - total); });

  // Slots.
  team.for_each(a.max_tokens, [&](int64_t t) {
    const bool is_token = t < num_tokens;
    const int64_t r = is_token ? owner_of(token_starts, n, t) : 0;
    const int64_t position = is_token ? a.context_lens[r] + (t - token_starts[r]) : 0;
    const bool has_slots = is_token && is_sound(r);
    for (int32_t i = 0; i < num_groups; ++i) {
      const GroupTable& g = a.groups[i];
      int64_t slot = kPadSlot;
      if (has_slots && g.slot_mapping) {
        const LocalPosition local = local_position(position, g.block_size, g.dcp_sharded, a.cp);
        if (local.is_local) {
          const int32_t block = table_row(g, a.rows[r])[local.position / g.block_size];
          slot = slot_of(block, g.block_size, local.position % g.block_size);
        }
      }
      a.slots[i * a.slots_stride + t] = slot;
    }
    if (a.positions != nullptr) a.positions[t] = position;
  });
  if (a.query_starts != nullptr) {
    team.for_each(a.max_requests + 1, [&](int64_t r) {
      a.query_starts[r] = static_cast<int32_t>(r < n ? token_starts[r] : num_tokens);
    });
  }
}

template <class Team>
KVPLAN_STEP void release_rows_steps(Team& team, const ReleaseRows& a) {
  const int32_t num_groups = a.num_groups;
  const int64_t num_items = static_cast<int64_t>(a.max_requests) * num_groups;
  int64_t* const item_starts = a.workspace;
  const auto in_use = [&](int64_t item) -> int64_t {
    const int32_t row = a.rows[item / num_groups];
    if (row < 0 || row >= a.num_rows) {
      if (row != -1) team.fetch_or(&a.pool.state[kPoolErrors], kBadBlockId);
      return 0;
    }
    return entries_in_use(a.groups[item % num_groups], row);
  };
  const int64_t total = team.scan(num_items, in_use, [&](int64_t item, int64_t before, int64_t) {
    item_starts[item] = before;
  });
  const auto entry_at = [&](int64_t k) -> int32_t* {
    const int64_t item = owner_of(item_starts, num_items, k);
    const GroupTable& g = a.groups[item % num_groups];
    return table_row(g, a.rows[item / num_groups]) + (in_use(item) - 1 - (k - item_starts[item]));
  };
  release_steps(team, a.pool, total, [&](int64_t k) { return *entry_at(k); });
  team.for_each(total, [&](int64_t k) { *entry_at(k) = kNullEntry; });
  team.for_each(num_items, [&](int64_t item) {
    if (in_use(item) > 0) a.groups[item % num_groups].num_entries[a.rows[item / num_groups]] = 0;
  });
}

/// One entry of a gathered row; returns false where the entry stays as it is.
KVPLAN_STEP inline bool gathered_entry(const GatherTables& a, int32_t group, int64_t r,
                                       int64_t entry, int32_t& out) {
  const GroupTable& g = a.groups[group];
  const int32_t row = a.rows[r];
  if (row < 0 || row >= a.num_rows) {
    out = kNullEntry;
    return true;
  }
  if (entry >= entries_in_use(g, row)) return false;
  const int64_t nulls =
      a.context_lens != nullptr ? null_entries(g, a.cp, a.context_lens[r]) : int64_t{0};
  out = entry < nulls ? kNullEntry : table_row(g, row)[entry];
  return true;
}

}  // namespace kvplan::cuda
