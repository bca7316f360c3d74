#pragma once

#include <cstdint>

#include "device/pool_steps.h"
#include "device/sliced_take_steps.h"
#include "device/table_steps.h"

// A step of a batch: blocks for its tokens, and where they go. See steps.h. An item is a group of a
// request; their order is that in which the pool hands out blocks.
//
// The step has three parts, so that a device can run each with all its thread blocks:
//
// 1. count: what each item drops and needs, from its own row alone (any number of teams);
// 2. admit: which requests get their blocks, and where in the pool (one team);
// 3. fill: tables and slots, each entry and slot by itself (any number of teams).
namespace kvplan::cuda {

/// Request by request and group by group.
struct ItemsByRequest {
  int64_t num_requests;
  int32_t num_groups;
  // Items are below 2^31: a division of 32 bits is a fifth of one of 64.
  KVPLAN_STEP int64_t request(int64_t item) const {
    return static_cast<uint32_t>(item) / static_cast<uint32_t>(num_groups);
  }
  KVPLAN_STEP int32_t group(int64_t item) const {
    return static_cast<int32_t>(static_cast<uint32_t>(item) % static_cast<uint32_t>(num_groups));
  }
  KVPLAN_STEP int64_t item(int64_t request, int32_t group) const {
    return request * num_groups + group;
  }
};

/// Group by group, as `SliceDemands` counts them.
struct ItemsByGroup {
  int64_t num_requests;
  int32_t num_groups;
  KVPLAN_STEP int64_t request(int64_t item) const {
    return static_cast<uint32_t>(item) % static_cast<uint32_t>(num_requests);
  }
  KVPLAN_STEP int32_t group(int64_t item) const {
    return static_cast<int32_t>(static_cast<uint32_t>(item) / static_cast<uint32_t>(num_requests));
  }
  KVPLAN_STEP int64_t item(int64_t request, int32_t group) const {
    return group * num_requests + request;
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

/// What an item has and gets: entry `begin` is the first new one, those from `in_use` to it are
/// null.
struct ItemRange {
  int32_t begin;
  int32_t in_use;
};

/// Entries of an item from which on each is for a thread of its own.
inline constexpr int32_t kLongItem = 3;

/// A long item, beside the entries of the items of a tile.
inline constexpr int64_t kOneLong = int64_t{1} << 48;

KVPLAN_STEP inline bool is_long(const Pool&, int32_t, int64_t entries) {
  return entries >= kLongItem;
}
/// Or one that fills a large block.
KVPLAN_STEP inline bool is_long(const SlicedPool& pool, int32_t group, int64_t entries) {
  return entries >= kLongItem || (pool.slices[group] == 2 && entries == 2);
}

/// Bits of `Admitted::flags`.
enum AppendFlag : int32_t {
  kRefused = 1,    ///< a request that was sound by itself is not in this batch
  kUneven = 2,     ///< requests have different numbers of tokens
  kLong = 4,       ///< an item is long
  kNotAll = 8,     ///< the pool has not enough for all requests
  kInTables = 16,  ///< the blocks are in the tables already
};

/// What the parts say to those after them.
struct Admitted {
  int64_t num_free;    ///< ids on the stack that the blocks are taken from
  int64_t num_taken;   ///< from its top
  int64_t num_tokens;  ///< of the batch
  int64_t flags;       ///< `AppendFlag`, in its first half
  KVPLAN_STEP int32_t* flag_word() { return reinterpret_cast<int32_t*>(&flags); }
  KVPLAN_STEP bool has(AppendFlag flag) const { return (flags & flag) != 0; }
};

template <class Args>
KVPLAN_STEP int64_t num_requests_of(const Args& a) {
  if (a.num_requests == nullptr) return a.max_requests;
  const int64_t n = *a.num_requests;
  return n < 0 ? 0 : (n > a.max_requests ? a.max_requests : n);
}

/// A step: its arguments, what follows from them alone, and the parts of its workspace.
template <class Args>
struct AppendStep {
  Args a;
  int64_t most_tokens;  ///< that a row of every table has room for
  ItemSums needed;
  ItemSums dropped;
  int64_t* token_starts;  ///< [max_requests + 1]
  int64_t* contexts;      ///< [max_requests] with `options.row_lens`, which change
  int64_t* shifts;        ///< [max_requests] from an item's sum to its place among the taken
  int64_t* take_starts;   ///< [max_requests + 1] of what each request takes
  ItemRange* ranges;      ///< [items]
  Admitted* admitted;     ///< [1]
  int64_t* kept;          ///< [items] blocks that are dropped, then two a word that are taken
  int64_t* slices;        ///< workspace of a sliced pool

  KVPLAN_STEP bool is_used(int64_t r) const { return a.status[r] == kOk && a.rows[r] >= 0; }
};

/// `tile`: items that a team counts together, a power of two. The workspace has room for tiles of
/// `kAppendTileItems` and more.
template <class Args>
AppendStep<Args> append_step(const Args& a, uint32_t tile) {
  const int64_t n = a.max_requests;
  const int64_t items = n * a.num_groups;
  int64_t* free = a.workspace;
  const auto part = [&free](int64_t size) {
    int64_t* const begin = free;
    free += size;
    return begin;
  };
  AppendStep<Args> s{};
  s.a = a;
  s.most_tokens = INT64_MAX;
  for (int32_t g = 0; g < a.num_groups; ++g) {
    const GroupTable& group = a.groups[g];
    const int64_t entries = group.width - int64_t{group.extra_entries};
    const int64_t tokens = tokens_per_entry(group.block_size, group.dcp_sharded, a.cp);
    // Lengths are below 2^32: more tokens an entry make no difference.
    const int64_t room = (entries > 0 ? entries : 0) * (tokens < UINT32_MAX ? tokens : UINT32_MAX);
    if (room < s.most_tokens) s.most_tokens = room;
  }
  s.token_starts = part(n + 1);
  s.contexts = part(n + 1);
  s.shifts = part(n + 1);
  s.take_starts = part(n + 1);
  const int64_t tiles = ceil_div(items, tile < kAppendTileItems ? tile : kAppendTileItems);
  const auto shift = static_cast<uint32_t>(std::countr_zero(tile));
  s.needed = {part(items), part(tiles), shift};
  s.dropped = {part(items), part(tiles), shift};
  s.ranges = reinterpret_cast<ItemRange*>(part(items));
  s.admitted = reinterpret_cast<Admitted*>(part(4));
  static_assert(sizeof(Admitted) == 4 * sizeof(int64_t));
  s.kept = part(items);
  s.slices = part(0);
  return s;
}

template <class Args>
KVPLAN_STEP RequestView view_of(const AppendStep<Args>& s, int64_t r, int64_t context_len) {
  const int64_t new_tokens = s.a.new_tokens[r];
  const int64_t end = context_len + new_tokens;
  const int64_t ahead = new_tokens > 0 ? end + s.a.options.lookahead_tokens : end;
  // A row that has no room for the new tokens is refused.
  return {s.a.rows[r], context_len, new_tokens, ahead < s.most_tokens ? ahead : s.most_tokens};
}

/// A request before the step, and once it is decided on.
template <class Args>
KVPLAN_STEP RequestView first_view(const AppendStep<Args>& s, int64_t r) {
  const int32_t* const lens = s.a.options.row_lens;
  if (lens == nullptr) return view_of(s, r, s.a.context_lens[r]);
  const int32_t row = s.a.rows[r];
  return view_of(s, r, row >= 0 && row < s.a.num_rows ? lens[row] : 0);
}
template <class Args>
KVPLAN_STEP int64_t context_of(const AppendStep<Args>& s, int64_t r) {
  return s.a.options.row_lens == nullptr ? s.a.context_lens[r] : s.contexts[r];
}
template <class Args>
KVPLAN_STEP RequestView request_view(const AppendStep<Args>& s, int64_t r) {
  return view_of(s, r, context_of(s, r));
}

/// A request by itself: what the batch has no say in.
template <class Args>
KVPLAN_STEP int32_t own_status(const AppendStep<Args>& s, const RequestView& q) {
  if (q.new_tokens > s.a.max_tokens) return kTooManyTokens;
  if (q.row == -1) return kOk;
  if (q.row < -1 || q.row >= s.a.num_rows || q.context_len < 0 || q.new_tokens < 0) {
    return kBadRequest;
  }
  return q.context_len + q.new_tokens > s.most_tokens ? kTableTooNarrow : kOk;
}

template <class Args>
KVPLAN_STEP int64_t num_tiles(const AppendStep<Args>& s, int64_t num_items) {
  return (num_items + (int64_t{1} << s.needed.shift) - 1) >> s.needed.shift;
}

/// Part 1. `is_used(r, view)`: whether the request counts.
template <class Team, class Args, class IsUsed>
KVPLAN_STEP void count_items(Team& team, const AppendStep<Args>& s, IsUsed is_used) {
  const Args& a = s.a;
  const int64_t n = num_requests_of(a);
  const int64_t num_items = n * a.num_groups;
  const auto items = items_for(a.pool, n, a.num_groups);
  const int64_t tile = int64_t{1} << s.needed.shift;
  team.for_each_tile(num_tiles(s, num_items), [&](int64_t t) {
    const int64_t first = t << s.needed.shift;
    const int64_t left = num_items - first;
    const int64_t count = left < tile ? left : tile;
    team.scan(
        count,
        [&](int64_t i) -> TwoSums {
          const int64_t item = first + i;
          const int64_t r = items.request(item);
          const RequestView q = first_view(s, r);
          if (!is_used(r, q)) return {0, 0};
          const int32_t group = items.group(item);
          const GroupTable& g = a.groups[group];
          const int64_t in_use = entries_in_use(g, q.row);
          const int64_t nulls = null_entries(g, a.cp, q.context_len);
          const EntryRange range = new_entries(g, a.cp, q, in_use, nulls);
          s.ranges[item] = {static_cast<int32_t>(range.begin), static_cast<int32_t>(in_use)};
          return {range.size() + (is_long(a.pool, group, range.size()) ? kOneLong : 0),
                  g.window.kind == WindowKind::kNone
                      ? 0
                      : dropped_entries(g, q.row, nulls < in_use ? nulls : in_use).size()};
        },
        [&](int64_t i, const TwoSums& before, const TwoSums& value) {
          s.needed.before[first + i] = before.first & (kOneLong - 1);
          s.dropped.before[first + i] = before.second;
          if (i < count - 1) return;
          s.needed.tiles[t] = before.first + value.first;
          s.dropped.tiles[t] = before.second + value.second;
        });
  });
}

/// Beside part 1: the first request of a row has it.
template <class Team, class Args>
KVPLAN_STEP void claim_rows(Team& team, const AppendStep<Args>& s) {
  const Args& a = s.a;
  if (a.row_claims == nullptr) return;
  const int64_t n = num_requests_of(a);
  team.for_each(n, [&](int64_t r) {
    const RequestView q = first_view(s, r);
    if (q.row < 0 || own_status(s, q) != kOk) return;
    team.fetch_max(&a.row_claims[q.row], static_cast<int32_t>(n - r));
  });
}

/// Part 2, of the requests: statuses and where their tokens begin.
template <class Team, class Args>
KVPLAN_STEP void decide_requests(Team& team, const AppendStep<Args>& s) {
  const Args& a = s.a;
  const int64_t n = num_requests_of(a);
  const auto tokens_of = [&](int64_t r) -> int64_t {
    const int64_t tokens = a.new_tokens[r];
    return tokens < 0 || tokens > a.max_tokens ? 0 : tokens;
  };
  const int64_t num_tokens =
      team.scan(n, tokens_of, [&](int64_t r, int64_t before, int64_t tokens) {
        s.token_starts[r] = before;
        const RequestView q = first_view(s, r);
        if (a.options.row_lens != nullptr) s.contexts[r] = q.context_len;
        int32_t status = own_status(s, q);
        int32_t flags = tokens != tokens_of(0) ? kUneven : 0;
        if (a.row_claims != nullptr && status == kOk && q.row >= 0 &&
            a.row_claims[q.row] != static_cast<int32_t>(n - r)) {
          status = kBadRequest;
          flags |= kRefused;
        }
        a.status[r] = status;
        if (flags != 0) team.fetch_or(s.admitted->flag_word(), flags);
      });
  team.once([&] {
    int64_t sum = num_tokens;
    if (num_tokens > a.max_tokens) {  // rare, and each answer depends on those before it
      sum = 0;
      for (int64_t r = 0; r < n; ++r) {
        s.token_starts[r] = sum;
        const int64_t tokens = tokens_of(r);
        if (sum + tokens > a.max_tokens) {
          a.status[r] = kTooManyTokens;
        } else {
          sum += tokens;
        }
      }
      s.admitted->flags |= kRefused | kUneven;
    }
    s.token_starts[n] = sum;
    s.admitted->num_tokens = sum;
  });
}

/// Sums of tiles become what is before them; returns the sums of all: needed, dropped.
template <class Team, class Args>
KVPLAN_STEP TwoSums add_tiles(Team& team, const AppendStep<Args>& s, int64_t num_items) {
  return team.scan(
      num_tiles(s, num_items),
      [&](int64_t t) -> TwoSums {
        return {s.needed.tiles[t] & (kOneLong - 1), s.dropped.tiles[t]};
      },
      [&](int64_t t, const TwoSums& before, const TwoSums&) {
        if (s.needed.tiles[t] >= kOneLong) team.fetch_or(s.admitted->flag_word(), kLong);
        s.needed.tiles[t] = before.first;
        s.dropped.tiles[t] = before.second;
      });
}

/// Part 2, of windows: blocks below them go back to the pool before any is taken.
template <class Team, class Args>
KVPLAN_STEP void drop_entries(Team& team, const AppendStep<Args>& s, int64_t total) {
  if (total == 0) return;
  const Args& a = s.a;
  const int64_t n = num_requests_of(a);
  const int64_t num_items = n * a.num_groups;
  const auto items = items_for(a.pool, n, a.num_groups);
  const auto entry_at = [&](int64_t k, int32_t& group) {
    const int64_t item = s.dropped.owner(num_items, k);
    const int64_t r = items.request(item);
    group = items.group(item);
    const GroupTable& g = a.groups[group];
    // From the last one to the first, as a request gives back its blocks.
    const int64_t in_use = s.ranges[item].in_use;
    const int64_t nulls = null_entries(g, a.cp, context_of(s, r));
    const int64_t last = (nulls < in_use ? nulls : in_use) - 1;
    return table_row(g, a.rows[r]) + (last - (k - s.dropped.start(item)));
  };
  // What is found once is kept, where it fits in.
  int64_t* const kept = s.kept;
  const bool is_kept = total <= int64_t{a.max_requests} * a.num_groups;
  const auto forget = [&](int64_t k) {
    int32_t group;
    int32_t* const entry = entry_at(k, group);
    if (is_kept) kept[k] = int64_t{group} << 32 | static_cast<uint32_t>(*entry);
    *entry = kNullEntry;
  };
  if (is_kept) team.for_each(total, forget);
  release_slices(team, a.pool, total, [&](int64_t k) -> Slice {
    if (is_kept) return {static_cast<int32_t>(kept[k] >> 32), static_cast<int32_t>(kept[k])};
    int32_t group;
    const int32_t id = *entry_at(k, group);
    return {group, id};
  });
  if (!is_kept) team.for_each(total, forget);
}

/// A list of new ids that `count` blocks are for.
template <class Team, class Args>
KVPLAN_STEP void count_new_ids(Team& team, const AppendStep<Args>& s, int32_t list, int64_t count) {
  const StepOptions& o = s.a.options;
  if (o.new_ids == nullptr) return;
  o.num_new_ids[list] = static_cast<int32_t>(count);
  if (count > o.new_ids_stride) team.fetch_or(&s.a.pool.state[kPoolErrors], kIdsLeftOut);
}

/// The k-th block that was taken.
template <class Args>
KVPLAN_STEP void list_new_id(const AppendStep<Args>& s, int32_t list, int64_t k, int32_t id) {
  const StepOptions& o = s.a.options;
  if (k < o.new_ids_stride) o.new_ids[list * o.new_ids_stride + k] = id;
}

/// Part 2, of blocks: which requests get them, each in turn all or none, and their places.
template <class Team, class Args>
KVPLAN_STEP void admit_requests(Team& team, const AppendStep<Args>& s, const Pool& pool,
                                int64_t total, int64_t num_free) {
  const Args& a = s.a;
  const int64_t n = num_requests_of(a);
  int64_t taken = total;
  if (total > num_free) {
    const auto start = [&](int64_t r) { return r < n ? s.needed.start(r * a.num_groups) : total; };
    const auto needs = [&](int64_t r) { return a.status[r] == kOk ? start(r + 1) - start(r) : 0; };
    // A request that needs more than what is left never fits, since that only shrinks. Of the
    // others all fit before the first that does not: it fails, and those after it are tried with
    // what is left.
    int64_t first = 0;
    int64_t left = num_free;
    for (;;) {
      team.for_each(n - first, [&](int64_t i) {
        if (needs(first + i) > left) a.status[first + i] = kOutOfBlocks;
      });
      const int64_t sum = team.scan(
          n - first, [&](int64_t i) { return needs(first + i); },
          [&](int64_t i, int64_t before, int64_t count) {
            if (before > left || before + count <= left) return;
            a.status[first + i] = kOutOfBlocks;
            s.shifts[0] = first + i;
            s.shifts[1] = before;
          });
      if (sum <= left) break;
      first = s.shifts[0] + 1;
      left -= s.shifts[1];
    }
    taken = team.scan(n, needs, [&](int64_t r, int64_t before, int64_t) {
      s.shifts[r] = before - start(r);
      s.take_starts[r] = before;
    });
  }
  team.once([&] {
    if (total > num_free) {
      s.take_starts[n] = taken;
      s.admitted->flags |= kNotAll;
    }
    s.admitted->num_free = num_free;
    s.admitted->num_taken = taken;
    count_new_ids(team, s, 0, taken);
    pool.state[kNumFree] = static_cast<int32_t>(num_free - taken);
  });
}

template <class Args>
KVPLAN_STEP int32_t* taken_slices(const AppendStep<Args>& s) {
  return reinterpret_cast<int32_t*>(s.kept);
}

/// The sums of what the items take of a sliced pool.
template <class Args>
KVPLAN_STEP ItemSums taken_sums(const AppendStep<Args>& s, int64_t n) {
  if (!s.admitted->has(kNotAll)) return s.needed;
  return slice_demands(n, s.a.num_groups, s.needed, 0, s.slices).sums;
}

/// The same for slices.
template <class Team, class Args>
KVPLAN_STEP void admit_requests(Team& team, const AppendStep<Args>& s, const SlicedPool& pool,
                                int64_t all, int64_t) {
  const Args& a = s.a;
  const int64_t n = num_requests_of(a);
  const int64_t num_items = n * a.num_groups;
  const auto items = items_for(pool, n, a.num_groups);
  const auto needed = [&](int64_t item) {
    if (!s.is_used(items.request(item))) return int64_t{0};
    return (item + 1 < num_items ? s.needed.start(item + 1) : all) - s.needed.start(item);
  };
  SliceDemands d = slice_demands(n, a.num_groups, s.needed, all, s.slices);
  admit_slices(team, pool, d, INT64_MAX, s.admitted->has(kLong), needed,
               [&](int64_t r, int32_t) { a.status[r] = kOutOfBlocks; });
  // All thread blocks of the next part write them into the tables, unless they are too many.
  const bool in_tables = d.total > 2 * int64_t{a.max_requests} * a.num_groups;
  const bool are_listed = a.options.new_ids != nullptr;
  if (are_listed) {
    team.for_each(a.num_groups, [&](int64_t i) {
      const auto g = static_cast<int32_t>(i);
      count_new_ids(team, s, g, d.of_group(g, n));
    });
  }
  take_slices(team, pool, d, [&](int64_t i, int32_t g, int32_t id) {
    if (are_listed) list_new_id(s, g, i - d.groups[g].start, id);
    if (!in_tables) {
      taken_slices(s)[i] = id;
      return;
    }
    const int64_t item = d.needed.owner(num_items, i);
    table_row(a.groups[items.group(item)],
              a.rows[items.request(item)])[s.ranges[item].begin + (i - d.needed.start(item))] = id;
  });
  team.once([&] {
    s.admitted->flags |= (d.total < all ? kNotAll : 0) | (in_tables ? kInTables : 0);
    s.admitted->num_taken = d.total;
  });
}

/// Part 2. `is_counted`: part 1 has run, by what each request is by itself.
template <class Team, class Args>
KVPLAN_STEP void admit(Team& team, const AppendStep<Args>& s, bool is_counted) {
  team.once([&] { s.admitted->flags = 0; });
  decide_requests(team, s);
  if (!is_counted || s.admitted->has(kRefused)) {
    count_items(team, s, [&](int64_t r, const RequestView&) { return s.is_used(r); });
  }
  const TwoSums sums = add_tiles(team, s, num_requests_of(s.a) * s.a.num_groups);
  drop_entries(team, s, sums.second);
  const int64_t num_free = s.a.pool.state[kNumFree];
  team.once([] {});  // all have read it before it changes
  admit_requests(team, s, s.a.pool, sums.first, num_free);
}

/// Entries that an item takes.
template <class Args>
KVPLAN_STEP int64_t num_new(const AppendStep<Args>& s, int64_t item, const RequestView& q,
                            int32_t group) {
  const int64_t end = required(s.a.groups[group], s.a.cp, q);
  return end > s.ranges[item].begin ? end - s.ranges[item].begin : 0;
}

/// The place of an item's first block among those that are taken.
template <class Args>
KVPLAN_STEP int64_t first_taken(const AppendStep<Args>& s, const Pool&, int64_t, int64_t item,
                                int64_t r) {
  return s.needed.start(item) + (s.admitted->has(kNotAll) ? s.shifts[r] : 0);
}
template <class Args>
KVPLAN_STEP int64_t first_taken(const AppendStep<Args>& s, const SlicedPool&, int64_t n,
                                int64_t item, int64_t) {
  return taken_sums(s, n).start(item);
}

/// The item of the k-th that is taken.
template <class Args>
KVPLAN_STEP int64_t item_of_taken(const AppendStep<Args>& s, const Pool&, int64_t n, int64_t k) {
  if (s.admitted->has(kNotAll)) k -= s.shifts[owner_of(s.take_starts, n, k)];
  return s.needed.owner(n * s.a.num_groups, k);
}
template <class Args>
KVPLAN_STEP int64_t item_of_taken(const AppendStep<Args>& s, const SlicedPool&, int64_t n,
                                  int64_t k) {
  return taken_sums(s, n).owner(n * s.a.num_groups, k);
}

/// The k-th block that is taken.
template <class Args>
KVPLAN_STEP int32_t taken_block(const AppendStep<Args>& s, const Pool& pool, int64_t k) {
  return taken_id(pool, s.admitted->num_free, k);
}
template <class Args>
KVPLAN_STEP int32_t taken_block(const AppendStep<Args>& s, const SlicedPool&, int64_t k) {
  return taken_slices(s)[k];
}
KVPLAN_STEP inline void hold_taken(const Pool& pool, int32_t id) {
  if (pool.ref_counts != nullptr) pool.ref_counts[id] = 1;
}
KVPLAN_STEP inline void hold_taken(const SlicedPool&, int32_t) {}

/// The block of entry `entry` of an item's row.
template <class Args>
KVPLAN_STEP int32_t block_of(const AppendStep<Args>& s, int64_t n, int64_t item, int64_t r,
                             const int32_t* entries, int64_t entry) {
  const int64_t k = entry - s.ranges[item].begin;
  if (k < 0 || s.admitted->has(kInTables)) return entries[entry];
  return taken_block(s, s.a.pool, first_taken(s, s.a.pool, n, item, r) + k);
}

/// Part 3, of an item's new entries.
template <class Args>
KVPLAN_STEP void put_blocks(const AppendStep<Args>& s, int64_t n, int64_t item, int64_t r,
                            int32_t* entries, int64_t count) {
  if (count == 0 || count >= kLongItem || s.admitted->has(kInTables)) return;
  const int64_t first = first_taken(s, s.a.pool, n, item, r);
  for (int64_t k = 0; k < count; ++k) {
    entries[k] = taken_block(s, s.a.pool, first + k);
    hold_taken(s.a.pool, entries[k]);
  }
}

/// Part 3, of the blocks of long items.
template <class Team, class Args>
KVPLAN_STEP void put_long(Team& team, const AppendStep<Args>& s) {
  const Args& a = s.a;
  if (!s.admitted->has(kLong) || s.admitted->has(kInTables)) return;
  const int64_t n = num_requests_of(a);
  const auto items = items_for(a.pool, n, a.num_groups);
  team.for_each(s.admitted->num_taken, [&](int64_t k) {
    const int64_t item = item_of_taken(s, a.pool, n, k);
    const int64_t r = items.request(item);
    const int32_t group = items.group(item);
    if (num_new(s, item, request_view(s, r), group) < kLongItem) return;
    const int64_t entry = s.ranges[item].begin + k - first_taken(s, a.pool, n, item, r);
    const int32_t id = taken_block(s, a.pool, k);
    table_row(a.groups[group], a.rows[r])[entry] = id;
    hold_taken(a.pool, id);
  });
}

/// The request of token t of the batch.
template <class Args>
KVPLAN_STEP int64_t request_of_token(const AppendStep<Args>& s, int64_t n, int64_t t) {
  if (s.admitted->has(kUneven)) return owner_of(s.token_starts, n, t);
  const int64_t each = s.token_starts[1];
  return each == 1 ? t : t / each;
}

/// Where token t of the batch goes in a group.
template <class Args>
KVPLAN_STEP int64_t slot_of_token(const AppendStep<Args>& s, int64_t n, int64_t t, int32_t group) {
  const Args& a = s.a;
  if (t >= s.admitted->num_tokens) return kPadSlot;
  const int64_t r = request_of_token(s, n, t);
  const GroupTable& g = a.groups[group];
  if (!g.slot_mapping || !s.is_used(r)) return kPadSlot;
  const int64_t position = context_of(s, r) + (t - s.token_starts[r]);
  const LocalPosition local = local_position(position, g.block_size, g.dcp_sharded, a.cp);
  if (!local.is_local) return kPadSlot;
  const int64_t item = items_for(a.pool, n, a.num_groups).item(r, group);
  const int32_t block =
      block_of(s, n, item, r, table_row(g, a.rows[r]), local.position / g.block_size);
  return slot_of(block, g.block_size, local.position % g.block_size);
}

/// Part 3, of an item: its entries and their number.
template <class Args>
KVPLAN_STEP void fill_item(const AppendStep<Args>& s, int64_t n, int64_t item) {
  const Args& a = s.a;
  const auto items = items_for(a.pool, n, a.num_groups);
  const int64_t r = items.request(item);
  if (!s.is_used(r)) return;
  const int32_t group = items.group(item);
  const GroupTable& g = a.groups[group];
  const RequestView q = request_view(s, r);
  const ItemRange range = s.ranges[item];
  const int64_t count = num_new(s, item, q, group);
  int32_t* const entries = table_row(g, q.row);
  for (int64_t j = range.in_use; j < range.begin; ++j) entries[j] = kNullEntry;
  put_blocks(s, n, item, r, entries + range.begin, count);
  g.num_entries[q.row] = static_cast<int32_t>(range.begin + count);
}

/// Part 3, of what the batch has for each request and one more.
template <class Team, class Args>
KVPLAN_STEP void fill_request(Team& team, const AppendStep<Args>& s, int64_t n, int64_t r) {
  const Args& a = s.a;
  const StepOptions& o = a.options;
  if (a.query_starts != nullptr) {
    a.query_starts[r] = static_cast<int32_t>(s.token_starts[r < n ? r : n]);
  }
  if (r == a.max_requests) {
    if (o.mirror == nullptr) return;
    o.mirror[0] = a.pool.state[kNumFree];
    o.mirror[1] = a.pool.state[kPoolErrors];
    return;
  }
  int32_t seq_len = 0;
  if (r >= n) {
    a.status[r] = kOk;
  } else {
    const RequestView q = request_view(s, r);
    if (a.row_claims != nullptr && q.row >= 0 && own_status(s, q) == kOk) {
      team.exchange(&a.row_claims[q.row], 0);
    }
    if (s.is_used(r)) {
      seq_len = static_cast<int32_t>(q.context_len + q.new_tokens);
      if (o.row_lens != nullptr) o.row_lens[q.row] = seq_len;
    }
  }
  if (o.seq_lens != nullptr) o.seq_lens[r] = seq_len;
  if (o.mirror != nullptr) o.mirror[kMirrorSize + r] = a.status[r];
}

/// Ids that are listed one by one; those of slices are when they are handed out.
KVPLAN_HOST_DEVICE inline int64_t num_listed(const Pool&, const StepOptions& o) {
  return o.new_ids == nullptr ? 0 : o.new_ids_stride;
}
KVPLAN_HOST_DEVICE inline int64_t num_listed(const SlicedPool&, const StepOptions&) { return 0; }

/// Numbers of `fill`'s pieces of work.
template <class Args>
KVPLAN_HOST_DEVICE int64_t num_pieces(const Args& a) {
  return int64_t{a.max_requests} * a.num_groups + a.max_tokens * a.num_groups +
         (a.positions != nullptr ? a.max_tokens : 0) + a.max_requests + 1 +
         num_listed(a.pool, a.options);
}

/// Part 3. No piece reads what another one writes, so that each can be a thread's.
template <class Team, class Args>
KVPLAN_STEP void fill(Team& team, const AppendStep<Args>& s) {
  const Args& a = s.a;
  const int64_t n = num_requests_of(a);
  put_long(team, s);
  const int64_t num_items = n * a.num_groups;
  const int64_t num_slots = a.max_tokens * a.num_groups;
  team.for_each(num_pieces(a), [&](int64_t i) {
    if (i < num_items) return fill_item(s, n, i);
    i -= num_items;
    if (i < num_slots) {
      const auto group = static_cast<int32_t>(i / a.max_tokens);
      const int64_t t = i - group * a.max_tokens;
      a.slots[group * a.slots_stride + t] = slot_of_token(s, n, t, group);
      return;
    }
    i -= num_slots;
    if (i <= a.max_requests) return fill_request(team, s, n, i);
    i -= a.max_requests + 1;
    if (i < num_listed(a.pool, a.options)) {
      if (i < s.admitted->num_taken) list_new_id(s, 0, i, taken_block(s, a.pool, i));
      return;
    }
    const int64_t t = i - num_listed(a.pool, a.options);
    if (a.positions == nullptr || t >= a.max_tokens) return;
    int64_t position = 0;
    if (t < s.admitted->num_tokens) {
      const int64_t r = request_of_token(s, n, t);
      position = context_of(s, r) + (t - s.token_starts[r]);
    }
    a.positions[t] = position;
  });
}

/// All parts by one team.
template <class Team, class Args>
KVPLAN_STEP void append_slots_steps(Team& team, const AppendStep<Args>& s) {
  claim_rows(team, s);
  admit(team, s, false);
  fill(team, s);
}

template <class Team, class Args>
KVPLAN_STEP void release_rows_steps(Team& team, const Args& a) {
  const int64_t n = a.max_requests;
  const int64_t num_items = n * a.num_groups;
  const auto items = items_for(a.pool, n, a.num_groups);
  int64_t* const item_starts = a.workspace;
  const auto is_row = [&](int32_t row) { return row >= 0 && row < a.num_rows; };
  if (a.row_claims != nullptr) {
    team.for_each(n, [&](int64_t r) {
      if (is_row(a.rows[r])) team.fetch_max(&a.row_claims[a.rows[r]], static_cast<int32_t>(n - r));
    });
  }
  const auto in_use = [&](int64_t item) -> int64_t {
    const int64_t r = items.request(item);
    const int32_t row = a.rows[r];
    if (row == -1) return 0;
    if (!is_row(row) ||
        (a.row_claims != nullptr && a.row_claims[row] != static_cast<int32_t>(n - r))) {
      team.fetch_or(&a.pool.state[kPoolErrors], kBadBlockId);
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
  if (a.row_claims != nullptr) {
    team.for_each(n, [&](int64_t r) {
      if (is_row(a.rows[r])) team.exchange(&a.row_claims[a.rows[r]], 0);
    });
  }
}

}  // namespace kvplan::cuda
