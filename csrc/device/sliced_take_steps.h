#pragma once

#include <cstdint>

#include "device/sliced_pool_steps.h"

// Taking slices of a sliced pool. See steps.h.
namespace kvplan::cuda {

/// What a batch asks of a sliced pool. Item `g * num_requests + r` is group g of request r.
struct SliceDemands {
  int64_t num_requests;
  int32_t num_groups;
  int64_t* starts;        ///< [items + 1] of the slices of each item
  int64_t* whole_starts;  ///< [items + 1] of its whole large blocks, which are its first slices
  int64_t* loose;         ///< [groups] slices that come from listed large blocks
  int64_t* large_starts;  ///< [groups + 1] of the large blocks that the rest of a group opens
  int64_t* spare;         ///< [groups] scratch

  KVPLAN_STEP int64_t num_items() const { return num_requests * num_groups; }
  KVPLAN_STEP int64_t of_group(const int64_t* sums, int32_t g) const {
    return sums[(g + 1) * num_requests] - sums[g * num_requests];
  }
  /// Slices of a group that do not fill the whole large blocks of an item.
  KVPLAN_STEP int64_t not_whole(int32_t g, int64_t slices) const {
    return of_group(starts, g) - slices * of_group(whole_starts, g);
  }
  /// Slices of an item's group that come before the item and not from whole large blocks.
  KVPLAN_STEP int64_t loose_before(int64_t item, int64_t slices) const {
    const int64_t first = item / num_requests * num_requests;
    return starts[item] - starts[first] - slices * (whole_starts[item] - whole_starts[first]);
  }
};

KVPLAN_STEP inline SliceDemands slice_demands(int64_t num_requests, int32_t num_groups,
                                              int64_t* starts, int64_t* workspace) {
  int64_t* const groups = workspace + num_requests * num_groups + 1;
  return {num_requests,
          num_groups,
          starts,
          workspace,
          groups,
          groups + num_groups,
          groups + int64_t{2} * num_groups + 1};
}

/// Large blocks to open for `slices_needed` slices where `available` are free in open ones.
KVPLAN_STEP inline int64_t large_needed(int64_t slices_needed, int64_t available, int64_t slices) {
  return slices_needed > available ? ceil_div(slices_needed - available, slices) : 0;
}

/// Decides which requests get their slices, all or none for each in turn, and from where. `needed`:
/// slices of an item, none of a request that `fail` was called for. Whole large blocks are opened
/// where an item fills them and the reserve has enough: what is asked for together is mostly
/// released together. Returns the number of slices.
template <class Team, class Needed, class Fail>
KVPLAN_STEP int64_t admit_slices(Team& team, const SlicedPool& pool, const SliceDemands& d,
                                 int64_t capacity, Needed needed, Fail fail) {
  const int64_t num_items = d.num_items();
  const int64_t num_free = pool.state[kNumFree];
  const auto add_up = [&] {
    const int64_t sum = team.scan(
        num_items, needed, [&](int64_t item, int64_t before, int64_t) { d.starts[item] = before; });
    team.once([&] { d.starts[num_items] = sum; });
    return sum;
  };
  const auto opened = [&] {  // where no large block is opened as a whole
    int64_t sum = 0;
    for (int32_t g = 0; g < d.num_groups; ++g) {
      sum += large_needed(d.of_group(d.starts, g), *partly_free(pool, g), pool.slices[g]);
    }
    return sum;
  };
  int64_t total = add_up();
  if (total > capacity || opened() > num_free) {
    // Rare, and each answer depends on those before it.
    team.once([&] {
      int64_t reserve = num_free;
      int64_t room = capacity;
      for (int32_t g = 0; g < d.num_groups; ++g) d.spare[g] = *partly_free(pool, g);
      for (int64_t r = 0; r < d.num_requests; ++r) {
        int64_t large = 0;
        int64_t count = 0;
        for (int32_t g = 0; g < d.num_groups; ++g) {
          const int64_t item = g * d.num_requests + r;
          const int64_t n = d.starts[item + 1] - d.starts[item];
          large += large_needed(n, d.spare[g], pool.slices[g]);
          count += n;
        }
        if (large > reserve) {
          fail(r, kOutOfBlocks);
        } else if (count > room) {
          fail(r, kTableTooNarrow);
        } else {
          reserve -= large;
          room -= count;
          for (int32_t g = 0; g < d.num_groups; ++g) {
            const int64_t item = g * d.num_requests + r;
            const int64_t n = d.starts[item + 1] - d.starts[item];
            d.spare[g] += large_needed(n, d.spare[g], pool.slices[g]) * pool.slices[g] - n;
          }
        }
      }
    });
    total = add_up();
  }
  const int64_t num_whole = team.scan(
      num_items,
      [&](int64_t item) {
        return (d.starts[item + 1] - d.starts[item]) / pool.slices[item / d.num_requests];
      },
      [&](int64_t item, int64_t before, int64_t) { d.whole_starts[item] = before; });
  team.once([&] {
    d.whole_starts[num_items] = num_whole;
    int64_t with_whole = num_whole;
    for (int32_t g = 0; g < d.num_groups; ++g) {
      with_whole +=
          large_needed(d.not_whole(g, pool.slices[g]), *partly_free(pool, g), pool.slices[g]);
    }
    d.spare[0] = with_whole <= num_free;
  });
  team.for_each(d.spare[0] != 0 ? 0 : num_items + 1, [&](int64_t i) { d.whole_starts[i] = 0; });
  team.once([&] {
    d.large_starts[0] = d.whole_starts[num_items];
    for (int32_t g = 0; g < d.num_groups; ++g) {
      const int64_t available = *partly_free(pool, g);
      const int64_t rest = d.not_whole(g, pool.slices[g]);
      d.loose[g] = rest < available ? rest : available;
      d.large_starts[g + 1] = d.large_starts[g] + large_needed(rest, available, pool.slices[g]);
    }
  });
  return total;
}

/// The j-th unused slice of a large block.
KVPLAN_STEP inline int32_t unused_slice(const SlicedPool& pool, int32_t large, int64_t j) {
  int32_t slice = 0;
  for (;; ++slice) {
    const bool is_unused = (*word_of(pool, large, slice) & bit_of(slice)) == 0;
    if (is_unused && j-- == 0) return slice;
  }
}

/// Takes the unused slices of listed large blocks of a group, those of the fullest large blocks
/// first, where large blocks with 1, 2, 3 to 4, 5 to 8, ... unused slices count as equally full.
template <class Team, class PutLoose>
KVPLAN_STEP void take_listed_slices(Team& team, const SlicedPool& pool, int32_t group,
                                    int64_t wanted, PutLoose put) {
  const int64_t slices = pool.slices[group];
  const int64_t num_listed = pool.state[kNumListed];
  int64_t taken = 0;
  for (int64_t fewer = 0, most = 1; taken < wanted && fewer < slices; fewer = most, most *= 2) {
    const auto unused_of = [&](int64_t i) -> int64_t {
      const LargeBlock& block = pool.large[pool.listed[i]];
      const int64_t unused = slices - block.num_used;
      return block.owner == group && unused > fewer && unused <= most ? unused : 0;
    };
    const auto before = [&](int64_t i) -> int32_t& { return pool.large[pool.listed[i]].scratch; };
    const int64_t available =
        team.scan(num_listed, unused_of,
                  [&](int64_t i, int64_t sum, int64_t) { before(i) = static_cast<int32_t>(sum); });
    if (available == 0) continue;  // and so all of `before` is 0 again
    const int64_t left = wanted - taken;
    const int64_t count = available < left ? available : left;
    team.for_each(count, [&](int64_t k) {
      int64_t low = 0;  // the last one with not more than k before it
      int64_t high = num_listed - 1;
      while (low < high) {
        const int64_t middle = (low + high + 1) / 2;
        if (before(middle) <= k) {
          low = middle;
        } else {
          high = middle - 1;
        }
      }
      const int32_t l = pool.listed[low];
      const int32_t slice = unused_slice(pool, l, k - before(low));
      if (pool.ref_counts != nullptr) *holders_of(pool, l, slice) = 1;
      put(taken + k, static_cast<int32_t>(l * slices + slice));
    });
    team.for_each(num_listed, [&](int64_t i) {
      const int64_t unused = unused_of(i);
      const int64_t rest = count - before(i);
      before(i) = 0;
      if (unused == 0 || rest <= 0) return;
      const int32_t l = pool.listed[i];
      const int64_t used = unused < rest ? unused : rest;
      for (int64_t k = 0; k < used; ++k) {
        const int32_t slice = unused_slice(pool, l, 0);
        *word_of(pool, l, slice) |= bit_of(slice);
      }
      pool.large[l].num_used += static_cast<int32_t>(used);
    });
    taken += count;
  }
}

/// Hands out what `admit_slices` decided: `put(item, k, id)` gets the k-th slice of an item.
template <class Team, class Put>
KVPLAN_STEP void take_slices(Team& team, const SlicedPool& pool, const SliceDemands& d,
                             int64_t total, Put put) {
  const int64_t num_items = d.num_items();
  const int64_t num_free = pool.state[kNumFree];
  const int64_t num_whole = d.whole_starts[num_items];
  const int64_t num_opened = d.large_starts[d.num_groups];
  const auto opened = [&](int64_t j) { return pool.free_large[num_free - 1 - j]; };
  if (pool.state[kNumListed] > kMaxListed) compact_list_steps(team, pool);

  for (int32_t g = 0; g < d.num_groups; ++g) {
    const int64_t slices = pool.slices[g];
    take_listed_slices(team, pool, g, d.loose[g], [&](int64_t k, int32_t id) {
      // The last item with not more than k loose slices before it.
      int64_t low = g * d.num_requests;
      int64_t high = low + d.num_requests - 1;
      while (low < high) {
        const int64_t middle = (low + high + 1) / 2;
        if (d.loose_before(middle, slices) <= k) {
          low = middle;
        } else {
          high = middle - 1;
        }
      }
      const int64_t whole = slices * (d.whole_starts[low + 1] - d.whole_starts[low]);
      put(low, whole + k - d.loose_before(low, slices), id);
    });
  }
  team.for_each(total, [&](int64_t i) {
    const int64_t item = owner_of(d.starts, num_items, i);
    const auto g = static_cast<int32_t>(item / d.num_requests);
    const int64_t slices = pool.slices[g];
    const int64_t k = i - d.starts[item];
    const int64_t whole = slices * (d.whole_starts[item + 1] - d.whole_starts[item]);
    int64_t block = d.whole_starts[item] + k / slices;
    int64_t slice = k % slices;
    if (k >= whole) {
      const int64_t rest = d.loose_before(item, slices) + k - whole - d.loose[g];
      if (rest < 0) return;  // from a listed large block
      block = d.large_starts[g] + rest / slices;
      slice = rest % slices;
    }
    const int32_t l = opened(block);
    if (pool.ref_counts != nullptr) *holders_of(pool, l, static_cast<int32_t>(slice)) = 1;
    put(item, k, static_cast<int32_t>(l * slices + slice));
  });

  // The large blocks that were opened.
  const auto rest_of = [&](int32_t g) { return d.not_whole(g, pool.slices[g]) - d.loose[g]; };
  team.for_each(num_opened, [&](int64_t j) {
    int32_t g;
    int64_t used;
    if (j < num_whole) {
      g = static_cast<int32_t>(owner_of(d.whole_starts, num_items, j) / d.num_requests);
      used = pool.slices[g];
    } else {
      g = static_cast<int32_t>(owner_of(d.large_starts, d.num_groups, j));
      const int64_t left = rest_of(g) - (j - d.large_starts[g]) * pool.slices[g];
      used = left < pool.slices[g] ? left : pool.slices[g];
    }
    const int32_t l = opened(j);
    pool.large[l].owner = g;
    pool.large[l].num_used = static_cast<int32_t>(used);
    for (int32_t slice = 0; slice < used; slice += 32) {
      const int64_t bits = used - slice;
      *word_of(pool, l, slice) = bits >= 32 ? -1 : static_cast<int32_t>((1U << bits) - 1);
    }
  });
  team.once([&] {
    int32_t num_listed = pool.state[kNumListed];
    for (int32_t g = 0; g < d.num_groups; ++g) {
      const int64_t large = d.large_starts[g + 1] - d.large_starts[g];
      const int64_t rest = rest_of(g);
      *partly_free(pool, g) += static_cast<int32_t>(large * pool.slices[g] - rest - d.loose[g]);
      if (rest % pool.slices[g] == 0) continue;
      const int32_t l = opened(d.large_starts[g + 1] - 1);
      if (pool.large[l].is_listed != 0) continue;
      pool.large[l].is_listed = 1;
      pool.listed[num_listed++] = l;
    }
    pool.state[kNumListed] = num_listed;
    pool.state[kNumFree] = static_cast<int32_t>(num_free - num_opened);
  });
}

template <class Team>
KVPLAN_STEP void allocate_steps(Team& team, const SlicedPool& pool, const AllocateSlices& a) {
  const SliceDemands d = slice_demands(a.num_requests, pool.num_groups, a.starts, a.workspace);
  const auto count = [&](int64_t r, int32_t g) { return a.counts[r * pool.num_groups + g]; };
  team.for_each(a.num_requests, [&](int64_t r) {
    a.status[r] = kOk;
    for (int32_t g = 0; g < pool.num_groups; ++g) {
      if (count(r, g) < 0) a.status[r] = kBadRequest;
    }
  });
  const int64_t total = admit_slices(
      team, pool, d, a.ids_capacity,
      [&](int64_t item) -> int64_t {
        const int64_t r = item % a.num_requests;
        return a.status[r] == kOk ? count(r, static_cast<int32_t>(item / a.num_requests)) : 0;
      },
      [&](int64_t r, int32_t status) { a.status[r] = status; });
  take_slices(team, pool, d, total,
              [&](int64_t item, int64_t k, int32_t id) { a.ids[a.starts[item] + k] = id; });
}

}  // namespace kvplan::cuda
