#pragma once

#include <cstdint>

#include "device/pool_steps.h"
#include "device/sliced_take_steps.h"
#include "device/table_steps.h"

// A step of a batch: blocks for its tokens, and where they go. See steps.h. An item is a group of a
// request; their order is that in which the pool hands out blocks.
namespace kvplan::cuda {

/// Request by request and group by group.
struct ItemsByRequest {
  int64_t num_requests;
  int32_t num_groups;
  KVPLAN_STEP int64_t request(int64_t item) const { return item / num_groups; }
  KVPLAN_STEP int32_t group(int64_t item) const { return static_cast<int32_t>(item % num_groups); }
};

/// Group by group, as `SliceDemands` counts them.
struct ItemsByGroup {
  int64_t num_requests;
  int32_t num_groups;
  KVPLAN_STEP int64_t request(int64_t item) const { return item % num_requests; }
  KVPLAN_STEP int32_t group(int64_t item) const {
    return static_cast<int32_t>(item / num_requests);
  }
};

KVPLAN_STEP inline ItemsByRequest items_for(const Pool&, int64_t num_requests, int32_t num_groups) {
  return {num_requests, num_groups};
}
KVPLAN_STEP inline ItemsByGroup items_for(const SlicedPool&, int64_t num_requests,
                                          int32_t num_groups) {
  return {num_requests, num_groups};
}

template <class Team, class SliceAt>
KVPLAN_STEP void release_slices(Team& team, const Pool& pool, int64_t count, SliceAt slice_at) {
  release_steps(team, pool, count, [&](int64_t k) { return slice_at(k).id; });
}
template <class Team, class SliceAt>
KVPLAN_STEP void release_slices(Team& team, const SlicedPool& pool, int64_t count,
                                SliceAt slice_at) {
  release_steps(team, pool, count, slice_at);
}

/// Takes `needed(item)` blocks for each item, for each request in turn all or none, and calls
/// `put(item, k, id)` for the k-th of an item. `fail(r)` makes the request's items need none.
/// workspace: starts of the items first.
template <class Team, class Needed, class Fail, class Put>
KVPLAN_STEP void take_for_items(Team& team, const Pool& pool, const ItemsByRequest& items,
                                int64_t* workspace, Needed needed, Fail fail, Put put) {
  const int64_t num_items = items.num_requests * items.num_groups;
  const int64_t num_free = pool.state[kNumFree];
  int64_t* const starts = workspace;
  const auto add_up = [&] {
    const int64_t sum = team.scan(
        num_items, needed, [&](int64_t item, int64_t before, int64_t) { starts[item] = before; });
    team.once([&] { starts[num_items] = sum; });
    return sum;
  };
  int64_t total = add_up();
  if (total > num_free) {
    // Rare, and each answer depends on those before it.
    team.once([&] {
      int64_t left = num_free;
      for (int64_t r = 0; r < items.num_requests; ++r) {
        const int64_t count = starts[(r + 1) * items.num_groups] - starts[r * items.num_groups];
        if (count > left) {
          fail(r);
        } else {
          left -= count;
        }
      }
    });
    total = add_up();
  }
  team.for_each(total, [&](int64_t k) {
    const int64_t item = owner_of(starts, num_items, k);
    put(item, k - starts[item], take(pool, num_free, k));
  });
  team.once([&] { pool.state[kNumFree] = static_cast<int32_t>(num_free - total); });
}

template <class Team, class Needed, class Fail, class Put>
KVPLAN_STEP void take_for_items(Team& team, const SlicedPool& pool, const ItemsByGroup& items,
                                int64_t* workspace, Needed needed, Fail fail, Put put) {
  const int64_t num_items = items.num_requests * items.num_groups;
  const SliceDemands d =
      slice_demands(items.num_requests, items.num_groups, workspace, workspace + num_items + 1);
  const int64_t total =
      admit_slices(team, pool, d, INT64_MAX, needed, [&](int64_t r, int32_t) { fail(r); });
  take_slices(team, pool, d, total, put);
}

template <class Args>
KVPLAN_STEP int64_t num_requests_of(const Args& a) {
  if (a.num_requests == nullptr) return a.max_requests;
  const int64_t n = *a.num_requests;
  return n < 0 ? 0 : (n > a.max_requests ? a.max_requests : n);
}

/// Where the t-th token of the batch goes in each group, after `append_blocks_steps`.
template <class Args>
KVPLAN_STEP void write_slots(const Args& a, int64_t n, int64_t t) {
  const int64_t* const token_starts = a.workspace;
  const bool is_token = t < token_starts[n];
  const int64_t r = is_token ? owner_of(token_starts, n, t) : 0;
  const int64_t position = is_token ? a.context_lens[r] + (t - token_starts[r]) : 0;
  const bool has_slots = is_token && a.status[r] == kOk && a.rows[r] >= 0;
  for (int32_t i = 0; i < a.num_groups; ++i) {
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
}

/// All of `append_slots` but the slots: blocks, tables, statuses and where each request's tokens
/// begin.
template <class Team, class Args>
KVPLAN_STEP void append_blocks_steps(Team& team, const Args& a) {
  const auto& pool = a.pool;
  const int32_t num_groups = a.num_groups;
  const int64_t n = num_requests_of(a);
  const int64_t num_items = n * num_groups;
  const auto items = items_for(pool, n, num_groups);
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
      const int64_t r = items.request(item);
      const GroupTable& g = a.groups[items.group(item)];
      if (g.window.kind == WindowKind::kNone || !is_sound(r)) return {0, 0};
      return dropped_entries(g, a.cp, request_view(a, r));
    };
    const int64_t num_dropped = team.scan(
        num_items, [&](int64_t item) { return dropped(item).size(); },
        [&](int64_t item, int64_t before, int64_t) { item_starts[item] = before; });
    if (num_dropped > 0) {
      release_slices(team, pool, num_dropped, [&](int64_t k) -> Slice {
        const int64_t item = owner_of(item_starts, num_items, k);
        const int64_t r = items.request(item);
        const GroupTable& g = a.groups[items.group(item)];
        // From the last one to the first, as a request gives back its blocks.
        const int64_t in_use = entries_in_use(g, a.rows[r]);
        const int64_t nulls = null_entries(g, a.cp, a.context_lens[r]);
        const int64_t last = (nulls < in_use ? nulls : in_use) - 1;
        return {items.group(item), table_row(g, a.rows[r])[last - (k - item_starts[item])]};
      });
      team.for_each(num_items, [&](int64_t item) {
        const EntryRange range = dropped(item);
        int32_t* entries = range.size() > 0
                               ? table_row(a.groups[items.group(item)], a.rows[items.request(item)])
                               : nullptr;
        for (int64_t j = range.begin; j < range.end; ++j) entries[j] = kNullEntry;
      });
    }
  }

  // Blocks for the new tokens.
  const auto added = [&](int64_t item) {
    return new_entries(a.groups[items.group(item)], a.cp, request_view(a, items.request(item)));
  };
  take_for_items(
      team, pool, items, item_starts,
      [&](int64_t item) { return is_sound(items.request(item)) ? added(item).size() : 0; },
      [&](int64_t r) { a.status[r] = kOutOfBlocks; },
      [&](int64_t item, int64_t k, int32_t id) {
        const GroupTable& g = a.groups[items.group(item)];
        table_row(g, a.rows[items.request(item)])[added(item).begin + k] = id;
      });
  team.for_each(num_items, [&](int64_t item) {
    const int64_t r = items.request(item);
    if (!is_sound(r)) return;
    const GroupTable& g = a.groups[items.group(item)];
    const RequestView q = request_view(a, r);
    const int64_t in_use = entries_in_use(g, q.row);
    const EntryRange range = new_entries(g, a.cp, q);
    const int64_t end = range.end > in_use ? range.end : in_use;
    int32_t* entries = table_row(g, q.row);
    for (int64_t j = in_use; j < range.begin && j < end; ++j) entries[j] = kNullEntry;
    g.num_entries[q.row] = static_cast<int32_t>(end);
  });
  if (a.query_starts != nullptr) {
    team.for_each(a.max_requests + 1, [&](int64_t r) {
      a.query_starts[r] = static_cast<int32_t>(r < n ? token_starts[r] : num_tokens);
    });
  }
}

template <class Team, class Args>
KVPLAN_STEP void append_slots_steps(Team& team, const Args& a) {
  append_blocks_steps(team, a);
  const int64_t n = num_requests_of(a);
  team.for_each(a.max_tokens, [&](int64_t t) { write_slots(a, n, t); });
}

template <class Team, class Args>
KVPLAN_STEP void release_rows_steps(Team& team, const Args& a) {
  const int64_t num_items = static_cast<int64_t>(a.max_requests) * a.num_groups;
  const auto items = items_for(a.pool, a.max_requests, a.num_groups);
  int64_t* const item_starts = a.workspace;
  const auto in_use = [&](int64_t item) -> int64_t {
    const int32_t row = a.rows[items.request(item)];
    if (row < 0 || row >= a.num_rows) {
      if (row != -1) team.fetch_or(&a.pool.state[kPoolErrors], kBadBlockId);
      return 0;
    }
    return entries_in_use(a.groups[items.group(item)], row);
  };
  const int64_t total = team.scan(num_items, in_use, [&](int64_t item, int64_t before, int64_t) {
    item_starts[item] = before;
  });
  const auto entry_at = [&](int64_t k) -> int32_t* {
    const int64_t item = owner_of(item_starts, num_items, k);
    const GroupTable& g = a.groups[items.group(item)];
    return table_row(g, a.rows[items.request(item)]) + (in_use(item) - 1 - (k - item_starts[item]));
  };
  release_slices(team, a.pool, total, [&](int64_t k) -> Slice {
    return {items.group(owner_of(item_starts, num_items, k)), *entry_at(k)};
  });
  team.for_each(total, [&](int64_t k) { *entry_at(k) = kNullEntry; });
  team.for_each(num_items, [&](int64_t item) {
    if (in_use(item) > 0) a.groups[items.group(item)].num_entries[a.rows[items.request(item)]] = 0;
  });
}

}  // namespace kvplan::cuda
