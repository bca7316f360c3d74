#pragma once

#include <cstdint>

#include "device/sliced_pool_steps.h"

// Taking slices of a sliced pool. See steps.h.
namespace kvplan::cuda {

/// What a batch takes of a group. The rest of its slices, those that fill no whole large block of
/// an item, come from listed large blocks and then from large blocks that it opens.
struct GroupDemand {
  int64_t start;   ///< number of its first slice, of all of the batch
  int64_t rest;    ///< slices
  int64_t loose;   ///< those of the rest that come from listed large blocks
  int64_t listed;  ///< unused slices of the listed large blocks of the groups before it
  int64_t opened;  ///< large blocks that are opened before those of its rest
  int64_t large;   ///< large blocks for its rest
  int64_t partly;  ///< groups before it whose last large block is not full
};

/// What a batch asks of a sliced pool. Item `g * num_requests + r` is group g of request r.
struct SliceDemands {
  int64_t num_requests;
  int32_t num_groups;
  ItemSums needed;  ///< slices of each item
  int64_t total;    ///< of all
  /// How many large blocks of its own each item fills: they are its first slices.
  int64_t* whole_starts;  ///< [items + 1]
  int64_t num_whole;      ///< of all; 0: `whole_starts` is not set
  int64_t num_opened;     ///< large blocks, whole ones and others
  int64_t num_partly;     ///< of those, not full
  GroupDemand* groups;    ///< [groups]
  ItemSums sums;          ///< room for other sums of items

  KVPLAN_STEP int64_t num_items() const { return num_requests * num_groups; }
  KVPLAN_STEP int64_t start(int64_t item) const {
    return item < num_items() ? needed.start(item) : total;
  }
  KVPLAN_STEP int64_t count(int64_t item) const { return start(item + 1) - needed.start(item); }
  /// Slices of a group for the first requests.
  KVPLAN_STEP int64_t of_group(int32_t g, int64_t requests) const {
    return start(g * num_requests + requests) - start(g * num_requests);
  }
  /// Whole large blocks of the items of a group that come before `item`.
  KVPLAN_STEP int64_t whole_before(int32_t g, int64_t item) const {
    return num_whole == 0 ? 0 : whole_starts[item] - whole_starts[g * num_requests];
  }
  /// Slices of the items of a group that come before `item` and fill no whole large blocks.
  KVPLAN_STEP int64_t rest_before(const SlicedPool& pool, int32_t g, int64_t item) const {
    return start(item) - start(g * num_requests) - pool.slices[g] * whole_before(g, item);
  }
  KVPLAN_STEP int64_t rest_of(const SlicedPool& pool, int32_t g) const {
    return rest_before(pool, g, (g + 1) * num_requests);
  }
  /// The number, of all slices, of slice `k` of the rest of a group.
  KVPLAN_STEP int64_t number_of(const SlicedPool& pool, int32_t g, int64_t k) const {
    if (num_whole == 0) return groups[g].start + k;
    const int64_t first = g * num_requests;
    const int64_t item =
        first +
        owner_by([&](uint32_t r) { return rest_before(pool, g, first + r); }, num_requests, k);
    return groups[g].start + pool.slices[g] * whole_before(g, item + 1) + k;
  }
  KVPLAN_STEP int32_t group_of(int64_t item) const {
    return static_cast<int32_t>(static_cast<uint32_t>(item) / static_cast<uint32_t>(num_requests));
  }
};

/// `needed`: how many slices each item takes, `total` together.
KVPLAN_STEP inline SliceDemands slice_demands(int64_t num_requests, int32_t num_groups,
                                              const ItemSums& needed, int64_t total,
                                              int64_t* workspace) {
  const int64_t items = num_requests * num_groups;
  int64_t* const groups = workspace + items + 1;
  int64_t* const flat = groups + kGroupWords * num_groups;
  static_assert(sizeof(GroupDemand) == kGroupWords * sizeof(int64_t));
  return {num_requests,
          num_groups,
          needed,
          total,
          workspace,
          0,
          0,
          0,
          reinterpret_cast<GroupDemand*>(groups),
          {flat + 1, flat, 31}};
}

/// Large blocks to open for `slices_needed` slices where `available` are free in open ones.
KVPLAN_STEP inline int64_t large_needed(int64_t slices_needed, int64_t available, int32_t slices) {
  const int64_t more = slices_needed - available;
  if (more <= 0) return 0;
  if (more > INT32_MAX) return INT32_MAX;  // of no pool
  // 32 bits: a division is a fifth of one of 64.
  const auto k = static_cast<uint32_t>(slices);
  return (static_cast<uint32_t>(more) + (k - 1)) / k;
}

/// Where the slices of each group come from. Returns whether there are enough large blocks.
template <class Team>
KVPLAN_STEP bool divide_groups(Team& team, const SlicedPool& pool, SliceDemands& d) {
  constexpr int64_t kPartly = int64_t{1} << 48;  // beside large blocks
  const auto large_of_rest = [&](int32_t g, int64_t rest, int64_t available) {
    const int64_t large = large_needed(rest, available, pool.slices[g]);
    return large + (large * pool.slices[g] > rest - available && large > 0 ? kPartly : 0);
  };
  const TwoSums sums = team.scan(
      d.num_groups,
      [&](int64_t i) -> TwoSums {
        const auto g = static_cast<int32_t>(i);
        const int64_t available = *partly_free(pool, g);
        return {large_of_rest(g, d.rest_of(pool, g), available), available};
      },
      [&](int64_t i, const TwoSums& before, const TwoSums& value) {
        const auto g = static_cast<int32_t>(i);
        const int64_t rest = d.rest_of(pool, g);
        d.groups[g] = {.start = d.start(g * d.num_requests),
                       .rest = rest,
                       .loose = rest < value.second ? rest : value.second,
                       .listed = before.second,
                       .opened = d.num_whole + before.first % kPartly,
                       .large = value.first % kPartly,
                       .partly = before.first / kPartly};
      });
  d.num_opened = d.num_whole + sums.first % kPartly;
  d.num_partly = sums.first / kPartly;
  return d.num_opened <= pool.state[kNumFree];
}

/// Decides which requests get their slices where the pool has not enough for all. Rare, and each
/// answer depends on those before it: but as far as all fit together each does, and one that does
/// not fit alone in what those leave never will, since that only shrinks. One thread goes through
/// the others.
template <class Team, class Fail>
KVPLAN_STEP void refuse_requests(Team& team, const SlicedPool& pool, const SliceDemands& d,
                                 int64_t capacity, Fail fail) {
  const int64_t n = d.num_requests;
  const int64_t num_free = pool.state[kNumFree];
  const int64_t first = team.scan(
      n,
      [&](int64_t r) -> int64_t {
        int64_t large = 0;
        int64_t count = 0;
        for (int32_t g = 0; g < d.num_groups; ++g) {
          const int64_t slices = d.start(g * n + r + 1) - d.groups[g].start;
          large += large_needed(slices, *partly_free(pool, g), pool.slices[g]);
          count += slices;
        }
        return large <= num_free && count <= capacity;
      },
      [](int64_t, int64_t, int64_t) {});
  // What those leave: unused slices of each group, large blocks and places.
  const TwoSums used = team.scan(
      d.num_groups,
      [&](int64_t i) -> TwoSums {
        const auto g = static_cast<int32_t>(i);
        const int64_t slices = d.of_group(g, first);
        return {large_needed(slices, *partly_free(pool, g), pool.slices[g]), slices};
      },
      [&](int64_t i, const TwoSums&, const TwoSums& value) {
        const auto g = static_cast<int32_t>(i);
        d.groups[g].loose = *partly_free(pool, g) + value.first * pool.slices[g] - value.second;
      });
  int64_t reserve = num_free - used.first;
  int64_t room = capacity - used.second;
  const auto opened_for = [&](int64_t r, int64_t& count) {
    int64_t large = 0;
    for (int32_t g = 0; g < d.num_groups; ++g) {
      const int64_t slices = d.count(g * n + r);
      count += slices;
      large += large_needed(slices, d.groups[g].loose, pool.slices[g]);
    }
    return large;
  };
  int64_t* const candidates = d.whole_starts;
  const int64_t num_candidates = team.scan(
      n - first,
      [&](int64_t i) -> int64_t {
        int64_t count = 0;
        if (opened_for(first + i, count) > reserve) {
          fail(first + i, kOutOfBlocks);
          return 0;
        }
        return count > 0;
      },
      [&](int64_t i, int64_t before, int64_t is_candidate) {
        if (is_candidate != 0) candidates[before] = first + i;
      });
  team.once([&] {
    for (int64_t i = 0; i < num_candidates; ++i) {
      const int64_t r = candidates[i];
      int64_t count = 0;
      const int64_t large = opened_for(r, count);
      if (large > reserve) {
        fail(r, kOutOfBlocks);
      } else if (count > room) {
        fail(r, kTableTooNarrow);
      } else {
        reserve -= large;
        room -= count;
        for (int32_t g = 0; g < d.num_groups; ++g) {
          const int64_t slices = d.count(g * n + r);
          int64_t& left = d.groups[g].loose;
          left += large_needed(slices, left, pool.slices[g]) * pool.slices[g] - slices;
        }
      }
    }
  });
}

/// Decides which requests get their slices, all or none for each in turn, and from where. `needed`:
/// slices of an item, none of a request that `fail` was called for. `fills`: an item may fill a
/// large block. Whole large blocks are opened where an item fills them and the reserve has enough:
/// what is asked for together is mostly released together.
template <class Team, class Needed, class Fail>
KVPLAN_STEP void admit_slices(Team& team, const SlicedPool& pool, SliceDemands& d, int64_t capacity,
                              bool fills, Needed needed, Fail fail) {
  if (!divide_groups(team, pool, d) || d.total > capacity) {
    refuse_requests(team, pool, d, capacity, fail);
    team.once([&] { d.sums.tiles[0] = 0; });
    d.total = team.scan(d.num_items(), needed, [&](int64_t item, int64_t before, int64_t) {
      d.sums.before[item] = before;
    });
    d.needed = d.sums;
    divide_groups(team, pool, d);
  }
  if (!fills) return;
  d.num_whole = team.scan(
      d.num_items(),
      [&](int64_t item) -> int64_t {
        return static_cast<uint32_t>(d.count(item)) /
               static_cast<uint32_t>(pool.slices[d.group_of(item)]);
      },
      [&](int64_t item, int64_t before, int64_t value) {
        d.whole_starts[item] = before;
        if (item == d.num_items() - 1) d.whole_starts[item + 1] = before + value;
      });
  if (d.num_whole == 0 || divide_groups(team, pool, d)) return;
  d.num_whole = 0;
  divide_groups(team, pool, d);
}

/// The first half of a `LargeBlock`, read at once.
struct alignas(8) LargeUse {
  int32_t owner;
  int32_t num_used;
};
KVPLAN_STEP inline LargeUse use_of(const SlicedPool& pool, int32_t large) {
  LargeUse use;
  __builtin_memcpy(&use, __builtin_assume_aligned(pool.large + large, 16), sizeof use);
  return use;
}

KVPLAN_STEP inline int32_t num_unused(const SlicedPool& pool, const LargeUse& use) {
  return use.owner < 0 ? 0 : pool.slices[use.owner] - use.num_used;
}

/// Sorts the listed large blocks by group, and those of a group by how full they are, where 1, 2, 3
/// to 4, 5 to 8, ... unused slices count as equally full; equals keep their order. Those without an
/// unused slice and those in the reserve leave the list. Returns how many are in it, and sets
/// `large[i].scratch` to the unused slices of those before the i-th.
template <class Team>
KVPLAN_STEP int64_t sort_listed(Team& team, const SlicedPool& pool) {
  // Some bits of the key a pass, to and fro between the list and the unused end of the stack: what
  // is listed with an unused slice is not in the reserve. All values of these bits, a digit, are
  // counted in one scan: eight in a short list, four in others.
  const int32_t class_bits = num_bits(static_cast<uint32_t>(
      num_bits(pool.max_slices > 2 ? static_cast<uint32_t>(pool.max_slices) - 2 : 0)));
  const int32_t key_bits = class_bits + num_bits(static_cast<uint32_t>(pool.num_groups) - 1);
  int32_t* from = pool.listed;
  int32_t* to = pool.free_large + pool.state[kNumFree];
  int64_t count = pool.state[kNumListed];
  const int32_t digit_bits = count < (1 << 16) ? 3 : 2;
  const int32_t half = 1 << (digit_bits - 1);
  const int32_t width = 64 / half;
  const auto sum_of = [&](const TwoSums& sums, int32_t digit) {
    const int64_t word = digit < half ? sums.first : sums.second;
    return static_cast<int32_t>(word >> digit % half * width) & (width == 16 ? 0xffff : -1);
  };
  constexpr int32_t kLeaves = -1;  // no place: of large blocks with slices there are below 2^30
  for (int32_t shift = 0; shift == 0 || shift < key_bits; shift += digit_bits) {
    const TwoSums counts = team.scan(
        count,
        [&](int64_t i) -> TwoSums {
          const LargeUse use = use_of(pool, from[i]);
          const int32_t unused = num_unused(pool, use);
          if (unused == 0) return {0, 0};
          const int32_t key = use.owner << class_bits | num_bits(unused - 1U);
          const int32_t digit = key >> shift & (2 * half - 1);
          const int64_t one = int64_t{1} << digit % half * width;
          return digit < half ? TwoSums{one, 0} : TwoSums{0, one};
        },
        [&](int64_t i, const TwoSums& before, const TwoSums& one) {
          const auto word = static_cast<uint64_t>(one.first | one.second);
          const auto high = static_cast<uint32_t>(word >> 32);
          const int32_t bit =
              (high != 0 ? 32 + num_bits(high) : num_bits(static_cast<uint32_t>(word))) - 1;
          const int32_t digit = (one.first == 0 ? half : 0) + bit / width;
          pool.large[i].scratch = word == 0 ? kLeaves : sum_of(before, digit) << digit_bits | digit;
        });
    team.for_each(count, [&](int64_t i) {
      const int32_t place = pool.large[i].scratch;
      const int32_t l = from[i];
      if (place == kLeaves) {
        pool.large[l].is_listed = 0;
        return;
      }
      uint32_t sum = static_cast<uint32_t>(place) >> digit_bits;
      for (int32_t digit = 0; digit < (place & (2 * half - 1)); ++digit) {
        sum += static_cast<uint32_t>(sum_of(counts, digit));
      }
      to[sum] = l;
    });
    if (shift == 0) {  // those that stay; the scratch of the others
      const int64_t all = count;
      count = 0;
      for (int32_t digit = 0; digit < 2 * half; ++digit) count += sum_of(counts, digit);
      team.for_each(all - count, [&](int64_t i) { pool.large[count + i].scratch = 0; });
    }
    int32_t* const sorted = to;
    to = from;
    from = sorted;
  }
  team.scan(
      count, [&](int64_t i) -> int64_t { return num_unused(pool, use_of(pool, from[i])); },
      [&](int64_t i, int64_t before, int64_t) {
        pool.large[i].scratch = static_cast<int32_t>(before);
        pool.listed[i] = from[i];
      });
  return count;
}

/// Hands out what `admit_slices` decided: `put(i, g, id)` gets the i-th of all
/// slices, one of group g.
template <class Team, class Put>
KVPLAN_STEP void take_slices(Team& team, const SlicedPool& pool, const SliceDemands& d, Put put) {
  if (d.total == 0) return;
  const int64_t num_free = pool.state[kNumFree];
  const int64_t num_listed = pool.state[kNumListed] == 0 ? 0 : sort_listed(team, pool);
  const auto opened = [&](int64_t j) { return pool.free_large[num_free - 1 - j]; };
  const auto put_slice = [&](int64_t i, int32_t g, int32_t large, int32_t slice) {
    if (pool.ref_counts != nullptr) *holders_of(pool, large, slice) = 1;
    put(i, g, large * pool.slices[g] + slice);
  };
  const auto take_listed = [&](int64_t i) {
    const int32_t l = pool.listed[i];
    const LargeUse use = use_of(pool, l);
    const int32_t g = use.owner;
    const GroupDemand& group = d.groups[g];
    int64_t k = pool.large[i].scratch - group.listed;  // of the group's rest
    pool.large[i].scratch = 0;
    const int32_t all = num_unused(pool, use);
    int32_t left = group.loose - k < all ? static_cast<int32_t>(group.loose - k) : all;
    if (left <= 0) return;
    pool.large[l].num_used = use.num_used + left;
    for (int32_t first = 0; left > 0; first += 32) {
      int32_t* const word = word_of(pool, l, first);
      auto bits = static_cast<uint32_t>(*word);
      for (; left > 0 && ~bits != 0; --left, ++k) {
        const int32_t slice = first + num_bits(~bits & (bits + 1)) - 1;  // the lowest unused one
        put_slice(d.number_of(pool, g, k), g, l, slice);
        bits |= bits + 1;
      }
      *word = static_cast<int32_t>(bits);
    }
  };
  const auto put_opened = [&](int64_t i) {
    int32_t g = 0;
    int64_t block = 0;
    int64_t slice = 0;
    if (d.num_whole == 0) {
      g = static_cast<int32_t>(
          owner_by([&](uint32_t at) { return d.groups[at].start; }, d.num_groups, i));
      slice = i - d.groups[g].start;
    } else {
      const int64_t item = d.needed.owner(d.num_items(), i);
      g = d.group_of(item);
      const int64_t k = i - d.needed.start(item);
      const int64_t end = d.whole_starts[item + 1];
      if (k < (end - d.whole_starts[item]) * pool.slices[g]) {
        block = d.whole_starts[item] + k / pool.slices[g];
        return put_slice(i, g, opened(block), static_cast<int32_t>(k % pool.slices[g]));
      }
      slice = d.rest_before(pool, g, item + 1) - (d.start(item + 1) - i);
    }
    slice -= d.groups[g].loose;
    if (slice < 0) return;  // of a listed large block
    const auto slices = static_cast<uint32_t>(pool.slices[g]);
    const uint32_t more = static_cast<uint32_t>(slice) / slices;
    block = d.groups[g].opened + more;
    put_slice(i, g, opened(block),
              static_cast<int32_t>(static_cast<uint32_t>(slice) - more * slices));
  };
  const auto mark_opened = [&](int64_t j) {
    int32_t g = 0;
    int32_t used = 0;
    const int32_t l = opened(j);
    if (j < d.num_whole) {
      g = d.group_of(owner_of(d.whole_starts, d.num_items(), j));
      used = pool.slices[g];
    } else {
      g = static_cast<int32_t>(
          owner_by([&](uint32_t at) { return d.groups[at].opened; }, d.num_groups, j));
      const GroupDemand& group = d.groups[g];
      const int64_t left = group.rest - group.loose - (j - group.opened) * pool.slices[g];
      used = left < pool.slices[g] ? static_cast<int32_t>(left) : pool.slices[g];
      if (used < pool.slices[g]) pool.listed[num_listed + group.partly] = l;
    }
    pool.large[l].owner = g;
    pool.large[l].num_used = used;
    pool.large[l].is_listed = used < pool.slices[g];
    for (int32_t slice = 0; slice < used; slice += 32) {
      const int32_t bits = used - slice;
      *word_of(pool, l, slice) = bits >= 32 ? -1 : static_cast<int32_t>((1U << bits) - 1);
    }
  };
  team.for_each(num_listed + d.total + d.num_opened + d.num_groups, [&](int64_t i) {
    if (i < num_listed) return take_listed(i);
    i -= num_listed;
    if (i < d.total) return put_opened(i);
    i -= d.total;
    if (i < d.num_opened) return mark_opened(i);
    i -= d.num_opened;
    const auto g = static_cast<int32_t>(i);
    const GroupDemand& group = d.groups[g];
    *partly_free(pool, g) += static_cast<int32_t>(group.large * pool.slices[g] - group.rest);
  });
  team.once([&] {
    pool.state[kNumListed] = static_cast<int32_t>(num_listed + d.num_partly);
    pool.state[kNumFree] = static_cast<int32_t>(num_free - d.num_opened);
  });
}

template <class Team>
KVPLAN_STEP void allocate_steps(Team& team, const SlicedPool& pool, const AllocateSlices& a) {
  const auto count = [&](int64_t r, int32_t g) { return a.counts[r * pool.num_groups + g]; };
  team.for_each(a.num_requests, [&](int64_t r) {
    a.status[r] = kOk;
    for (int32_t g = 0; g < pool.num_groups; ++g) {
      if (count(r, g) < 0) a.status[r] = kBadRequest;
    }
  });
  const auto needed = [&](int64_t item) -> int64_t {
    const int64_t r = item % a.num_requests;
    return a.status[r] == kOk ? count(r, static_cast<int32_t>(item / a.num_requests)) : 0;
  };
  SliceDemands d = slice_demands(a.num_requests, pool.num_groups, {}, 0, a.workspace);
  // Its sums go to `starts`.
  d.needed = d.sums = {a.starts, d.sums.tiles, d.sums.shift};
  team.once([&] { d.sums.tiles[0] = 0; });
  d.total = team.scan(d.num_items(), needed,
                      [&](int64_t item, int64_t before, int64_t) { a.starts[item] = before; });
  admit_slices(team, pool, d, a.ids_capacity, true, needed,
               [&](int64_t r, int32_t status) { a.status[r] = status; });
  team.once([&] { a.starts[d.num_items()] = d.total; });
  take_slices(team, pool, d, [&](int64_t i, int32_t, int32_t id) { a.ids[i] = id; });
}

}  // namespace kvplan::cuda
