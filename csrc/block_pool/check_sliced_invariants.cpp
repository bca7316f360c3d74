#include <vector>

#include "block_pool/invariant.h"
#include "block_pool/sliced_block_pool_state.h"
#include "kvplan/sliced_block_pool.h"

namespace kvplan {

using detail::BlockRecord;
using detail::LargeBlock;
using detail::require;
using detail::SlicedBlockPoolState;
using detail::SlicedGroup;

namespace {

/// What the slices of one owned large block say, compared with its counts and lists. Returns its
/// keys.
size_t check_large_block(const SlicedBlockPoolState& s, uint32_t l) {
  const LargeBlock& block = s.large[l];
  require(block.owner < s.groups.size(), "the owner of a large block is no group", l);
  const uint32_t k = s.groups[block.owner].slices();
  require(block.num_used + block.num_cached <= k, "more slices than a large block has", l);
  require(block.num_used + block.num_cached != 0, "an unused large block is not given back", l);
  require(block.first_fresh <= k, "more slices were used than a large block has", l);
  require(!block.is_counted, "an admission was not finished", l);

  std::vector<bool> is_listed(k);
  uint32_t previous = 0;
  uint32_t length = 0;
  for (uint32_t at = block.cached_first; at != 0;) {
    require(at <= k && ++length <= k, "the list of cached slices leaves the block", l);
    const BlockRecord& record = s.record_at({l, at - 1});
    require(record.prev_link == previous, "links of cached slices disagree", l);
    require(record.ref_count == 0 && record.is_kept(),
            "a cached slice is in use, or nothing is kept there", l);
    is_listed[at - 1] = true;
    previous = at;
    at = record.next_link;
  }
  require(block.cached_last == previous, "the list of cached slices ends elsewhere", l);
  require(block.num_cached == length, "the count of cached slices is not their list's length", l);
  for (uint32_t at = block.empty_head; at != 0; at = s.record_at({l, at - 1}).next_link) {
    require(at <= block.first_fresh && !is_listed[at - 1], "an empty slice is listed twice", l);
    require(!s.record_at({l, at - 1}).is_kept(), "an empty slice is kept", l);
    is_listed[at - 1] = true;
  }

  size_t num_keys = 0;
  uint32_t num_used = 0;
  for (uint32_t slice = 0; slice < s.records_per_large; ++slice) {
    const BlockRecord& record = s.record_at({l, slice});
    const bool in_use = (record.key.flags & BlockRecord::kInUse) != 0;
    require(in_use == (record.ref_count > 0), "a slice's holders and its flag disagree", l);
    require(record.ref_count >= 0, "a reference count is negative", l);
    require((record.key.flags & BlockRecord::kCounted) == 0, "an admission was not finished", l);
    num_keys += record.has_hash();
    if (slice >= block.first_fresh) {
      require(!in_use && !record.is_kept(), "a fresh slice was used", l);
    } else {
      require(in_use != is_listed[slice], "a slice is in use and free, or neither", l);
    }
    num_used += in_use;
  }
  require(num_used == block.num_used, "the count of used slices is wrong", l);
  return num_keys;
}

/// Length of a list through `kLinks`; `visit(id)` for each member.
template <LargeBlock::Links LargeBlock::*kLinks, typename Visit>
size_t check_list(const SlicedBlockPoolState& s, const detail::LargeBlockList<kLinks>& list,
                  Visit&& visit) {
  size_t length = 0;
  uint32_t previous = 0;
  for (uint32_t l = list.first; l != 0; l = (s.large[l].*kLinks).next) {
    require(l < s.num_large && ++length < s.num_large, "a list of large blocks does not end", l);
    require((s.large[l].*kLinks).prev == previous, "links of large blocks disagree", l);
    visit(l);
    previous = l;
  }
  require(list.last == previous, "a list of large blocks ends elsewhere", previous);
  return length;
}

/// Number of large blocks in the buckets of a group; `belongs(block)` holds for each.
template <LargeBlock::Links LargeBlock::*kLinks, typename Belongs>
size_t check_buckets(const SlicedBlockPoolState& s,
                     const detail::LargeBlockBuckets<kLinks>& buckets, uint32_t group,
                     Belongs&& belongs) {
  size_t total = 0;
  uint32_t fullest = detail::HighestBit::kNone;
  for (uint32_t used = 0; used < buckets.lists().size(); ++used) {
    const size_t length = check_list(s, buckets.lists()[used], [&](uint32_t l) {
      require(s.owns(group, l) && s.large[l].num_used == used && belongs(s.large[l]),
              "a large block is in a wrong bucket", l);
    });
    total += length;
    if (length != 0) fullest = used;
  }
  require(buckets.occupied().highest() == fullest, "the fullest bucket is another", group);
  return total;
}

}  // namespace

void SlicedBlockPool::check_invariants() const {
  const SlicedBlockPoolState& s = *state_;
  size_t num_keys = 0;
  size_t num_reserve = 0;
  size_t num_whole = 0;
  size_t num_watched = 0;
  struct Sums {
    int64_t used = 0;
    int64_t partly_free = 0;
    size_t roomy = 0;
    size_t aged = 0;
  };
  std::vector<Sums> sums(s.groups.size());
  require(!s.large[0].is_owned, "the null block has an owner", 0);
  for (uint32_t l = 1; l < s.num_large; ++l) {
    const LargeBlock& block = s.large[l];
    if (!block.is_owned) {
      ++num_reserve;
      for (uint32_t slice = 0; slice < s.records_per_large; ++slice) {
        const BlockRecord& record = s.record_at({l, slice});
        require(record.ref_count == 0 && !record.has_hash() && record.key.flags == 0,
                "a slice of the reserve is in use", l);
      }
      continue;
    }
    require(l < s.first_unused, "a large block beyond the used ones has an owner", l);
    num_keys += check_large_block(s, l);
    Sums& sum = sums[block.owner];
    sum.used += block.num_used;
    if (block.num_used != 0) sum.partly_free += s.groups[block.owner].slices() - block.num_used;
    sum.roomy += s.num_empty(l) != 0;
    sum.aged += block.num_used != 0 && block.num_cached != 0;
    num_whole += block.num_used == 0;
    for (uint32_t slice = 0; slice < s.groups[block.owner].slices(); ++slice) {
      num_watched += (s.record_at({l, slice}).key.flags & BlockRecord::kWatched) != 0;
    }
  }
  require(num_watched == s.watchers.size(), "somebody watches a slice that does not know it", 0);
  for (const auto& [block, nodes] : s.secondary_keys_of) num_keys += nodes.size();
  s.check_index(num_keys);

  const size_t num_returned = check_list(s, s.returned, [&](uint32_t l) {
    require(!s.large[l].is_owned, "a large block of the reserve has an owner", l);
  });
  require(num_returned + s.num_large - s.first_unused == num_reserve,
          "a large block is neither owned nor in the reserve", 0);
  require(num_reserve == s.num_reserve, "the count of the reserve is wrong", 0);
  require(num_reserve + num_whole == s.num_free_large, "the count of free large blocks is wrong",
          0);

  const auto check_age = [&](auto& list, LargeBlock::AgeList kind, const SlicedGroup* group) {
    uint64_t stamp = 0;
    return check_list(s, list, [&](uint32_t l) {
      const LargeBlock& block = s.large[l];
      require(block.age_list == kind && block.num_cached != 0, "a wrong list of ages", l);
      require((block.num_used == 0) == (kind == LargeBlock::AgeList::kWhole),
              "a large block's use and its list disagree", l);
      require(group == nullptr || &s.groups[block.owner] == group, "another group's list", l);
      require(block.stamp > stamp && block.stamp <= s.clock, "ages are not in order", l);
      stamp = block.stamp;
    });
  };
  require(check_age(s.aged_whole, LargeBlock::AgeList::kWhole, nullptr) == num_whole,
          "an unused large block is not in the list of ages", 0);
  for (size_t g = 0; g < s.groups.size(); ++g) {
    const SlicedGroup& group = s.groups[g];
    const auto number = static_cast<uint32_t>(g);
    require(group.num_used == sums[g].used, "the used slices of a group are miscounted", number);
    require(group.num_partly_free == sums[g].partly_free,
            "the free slices of a group are miscounted", number);
    require(check_age(group.aged, LargeBlock::AgeList::kGroup, &group) == sums[g].aged,
            "a large block with cached slices is not in the list of ages", number);
    require(check_buckets(s, group.roomy, number,
                          [&](const LargeBlock& block) {
                            return block.num_used + block.num_cached != group.slices();
                          }) == sums[g].roomy,
            "a large block with room is in no bucket", number);
    require(check_buckets(s, group.evictable, number,
                          [](const LargeBlock& block) {
                            return block.num_used != 0 && block.num_cached != 0;
                          }) == sums[g].aged,
            "a large block with cached slices is in no bucket", number);
  }
}

}  // namespace kvplan
