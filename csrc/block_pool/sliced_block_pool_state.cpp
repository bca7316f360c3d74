#include "block_pool/sliced_block_pool_state.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <string>
#include <utility>

namespace kvplan::detail {

SlicedBlockPoolState::SlicedBlockPoolState(uint32_t num_large_blocks,
                                           std::span<const int64_t> slices, uint32_t most_slices,
                                           SlicedBlockPoolOptions options)
    : SliceMemory(size_t{num_large_blocks} * most_slices),
      PrefixKeys(record_memory.data(), num_large_blocks * most_slices,
                 {.enable_caching = options.enable_caching,
                  .enable_events = options.enable_events,
                  .max_events = options.max_events}),
      OperationState(uint64_t{num_large_blocks} * most_slices),
      num_large(num_large_blocks),
      records_per_large(most_slices),
      enable_caching(options.enable_caching),
      large_memory(num_large_blocks),
      large(large_memory.data()),
      num_reserve(num_large_blocks - 1),
      num_free_large(num_large_blocks - 1),
      admission_new_(slices.size()),
      admission_free_(slices.size()) {
  groups.reserve(slices.size());
  for (const int64_t k : slices) {
    const double most = options.own_first_above * static_cast<double>(num_large_blocks * k);
    groups.emplace_back(static_cast<uint32_t>(k), static_cast<int64_t>(most));
  }
}

uint32_t SlicedBlockPoolState::checked_group(PoolGroupId group_id) const {
  const auto group = static_cast<uint32_t>(group_id);
  if (group >= groups.size()) {
    throw InvalidArgument("group " + std::to_string(group) + " is not in the pool, which has " +
                          std::to_string(groups.size()) + " group(s)");
  }
  return group;
}

SliceRef SlicedBlockPoolState::checked_id(uint32_t group, BlockId id, const char* operation) const {
  const SlicedGroup& g = groups[group];
  const int64_t num_blocks = int64_t{num_large} * g.slices();
  const auto first = static_cast<int64_t>(g.slices());
  if (id != kNullBlock && (id < first || id >= num_blocks)) [[unlikely]] {
    throw BlockPoolError(std::string(operation) + ": block id " + std::to_string(id) +
                         " is not in group " + std::to_string(group) + ", which has ids " +
                         std::to_string(first) + " to " + std::to_string(num_blocks - 1) +
                         " and the null block 0");
  }
  return ref_of(g, id);
}

SliceRef SlicedBlockPoolState::checked_owned(uint32_t group, BlockId id,
                                             const char* operation) const {
  const SliceRef ref = checked_id(group, id, operation);
  if (id != kNullBlock && !owns(group, ref.large)) [[unlikely]] {
    throw BlockPoolError(
        std::string(operation) + ": block " + std::to_string(id) + " of group " +
        std::to_string(group) + " lies in large block " + std::to_string(ref.large) + ", which " +
        (large[ref.large].is_owned ? "belongs to group " + std::to_string(large[ref.large].owner)
                                   : std::string("is in the reserve")));
  }
  return ref;
}

uint32_t SlicedBlockPoolState::record_in_use(uint32_t group, BlockId id,
                                             const char* operation) const {
  const SliceRef ref = checked_owned(group, id, operation);
  if (id == kNullBlock) return 0;
  const uint32_t record = record_of(ref);
  if (records[record].ref_count == 0) [[unlikely]] {
    throw BlockPoolError(std::string(operation) + ": block " + std::to_string(id) + " of group " +
                         std::to_string(group) + " has no holder");
  }
  return record;
}

void SlicedBlockPoolState::open(uint32_t l) {
  const LargeBlock& block = large[l];
  SlicedGroup& group = groups[block.owner];
  if (num_empty(l) != 0 && block.num_used + block.num_cached != 0) group.roomy.remove(large, l);
  if (block.num_used != 0 && block.num_cached != 0) group.evictable.remove(large, l);
  group.num_used -= block.num_used;
  if (block.num_used == 0) {
    --num_free_large;
  } else {
    group.num_partly_free -= group.slices() - block.num_used;
  }
}

void SlicedBlockPoolState::unlist(uint32_t l) {
  LargeBlock& block = large[l];
  if (block.age_list == LargeBlock::AgeList::kGroup) groups[block.owner].aged.remove(large, l);
  if (block.age_list == LargeBlock::AgeList::kWhole) aged_whole.remove(large, l);
  block.age_list = LargeBlock::AgeList::kNone;
}

void SlicedBlockPoolState::close(uint32_t l, bool used) {
  using AgeList = LargeBlock::AgeList;
  LargeBlock& block = large[l];
  SlicedGroup& group = groups[block.owner];
  const AgeList age_list = block.num_cached == 0 ? AgeList::kNone
                           : block.num_used == 0 ? AgeList::kWhole
                                                 : AgeList::kGroup;
  if (age_list != block.age_list || (used && age_list != AgeList::kNone)) {
    unlist(l);
    if (age_list == AgeList::kGroup) group.aged.push_back(large, l);
    if (age_list == AgeList::kWhole) aged_whole.push_back(large, l);
    block.age_list = age_list;
    block.stamp = ++clock;
  }
  group.num_used += block.num_used;
  if (block.num_used == 0) {
    ++num_free_large;
  } else {
    group.num_partly_free += group.slices() - block.num_used;
  }
  if (block.num_used + block.num_cached == 0) {
    block = {};
    returned.push_front(large, l);
    ++num_reserve;
    return;
  }
  if (num_empty(l) != 0) group.roomy.insert(large, l);
  if (block.num_used != 0 && block.num_cached != 0) group.evictable.insert(large, l);
}

uint32_t SlicedBlockPoolState::take_empty(uint32_t l) {
  LargeBlock& block = large[l];
  ++block.num_used;
  if (block.empty_head == 0) return block.first_fresh++;
  const uint32_t slice = block.empty_head - 1;
  block.empty_head = record_at({l, slice}).next_link;
  return slice;
}

void SlicedBlockPoolState::put_empty(uint32_t l, uint32_t slice) {
  LargeBlock& block = large[l];
  record_at({l, slice}).next_link = block.empty_head;
  block.empty_head = slice + 1;
}

void SlicedBlockPoolState::take_cached(uint32_t l, uint32_t slice) {
  LargeBlock& block = large[l];
  const BlockRecord& record = record_at({l, slice});
  const uint32_t next = record.next_link;
  const uint32_t prev = record.prev_link;
  (prev == 0 ? block.cached_first : record_at({l, prev - 1}).next_link) = next;
  (next == 0 ? block.cached_last : record_at({l, next - 1}).prev_link) = prev;
  --block.num_cached;
}

uint32_t SlicedBlockPoolState::take_oldest_cached(uint32_t l) {
  const uint32_t slice = large[l].cached_first - 1;
  take_cached(l, slice);
  return slice;
}

void SlicedBlockPoolState::put_cached(uint32_t l, uint32_t slice) {
  LargeBlock& block = large[l];
  BlockRecord& record = record_at({l, slice});
  record.next_link = 0;
  record.prev_link = block.cached_last;
  (block.cached_last == 0 ? block.cached_first : record_at({l, block.cached_last - 1}).next_link) =
      slice + 1;
  block.cached_last = slice + 1;
  ++block.num_cached;
}

// No pool has as many blocks.
static constexpr int64_t kMost = int64_t{1} << 61;

int64_t SlicedBlockPoolState::large_blocks_needed(const SlicedGroup& group, int64_t num_new,
                                                  int64_t num_partly_free) const {
  const int64_t missing = num_new - num_partly_free;
  return missing <= 0 ? 0 : (missing - 1) / group.slices() + 1;
}

int64_t SlicedBlockPoolState::count_demands(std::span<const SliceDemand> demands,
                                            const char* operation) {
  for (size_t g = 0; g < groups.size(); ++g) {
    admission_new_[g] = 0;
    admission_free_[g] = groups[g].num_partly_free;
  }
  for (const SliceDemand& demand : demands) {
    const uint32_t g = checked_group(demand.group_id);
    if (demand.num_new < 0) {
      throw InvalidArgument("cannot get " + std::to_string(demand.num_new) + " blocks");
    }
    check_touch(g, demand.found, operation);
    admission_new_[g] = std::min(admission_new_[g], kMost) + std::min(demand.num_new, kMost);
  }
  int64_t left = num_free_large;
  for (const SliceDemand& demand : demands) {
    const auto g = static_cast<uint32_t>(demand.group_id);
    for (const BlockId id : demand.found) {
      if (id == kNullBlock) continue;
      const SliceRef ref = ref_of(groups[g], id);
      BlockRecord& record = record_at(ref);
      LargeBlock& block = large[ref.large];
      if (record.ref_count != 0 || (record.key.flags & BlockRecord::kCounted) != 0) continue;
      record.set_flag(BlockRecord::kCounted);
      if (block.num_used == 0 && !block.is_counted) {
        block.is_counted = true;
        admission_free_[g] += groups[g].slices();
        --left;
      }
      --admission_free_[g];
    }
  }
  for (const SliceDemand& demand : demands) {
    for (const BlockId id : demand.found) {
      const SliceRef ref = ref_of(groups[static_cast<uint32_t>(demand.group_id)], id);
      record_at(ref).clear_flag(BlockRecord::kCounted);
      large[ref.large].is_counted = false;
    }
  }
  return left;
}

int64_t SlicedBlockPoolState::count_admission(std::span<const SliceDemand> demands,
                                              const char* operation) {
  int64_t left = count_demands(demands, operation);
  for (size_t g = 0; g < groups.size(); ++g) {
    left -= large_blocks_needed(groups[g], admission_new_[g], admission_free_[g]);
    left = std::max(left, -kMost);
  }
  return left;
}

void SlicedBlockPoolState::check_touch(uint32_t group, std::span<const BlockId> blocks,
                                       const char* operation) const {
  for (const BlockId id : blocks) {
    const SliceRef ref = checked_owned(group, id, operation);
    if (id == kNullBlock) continue;
    const BlockRecord& record = record_at(ref);
    if (record.ref_count == 0 && !record.is_kept()) {
      throw BlockPoolError(std::string(operation) + ": block " + std::to_string(id) + " of group " +
                           std::to_string(group) + " has no holder and nothing cached");
    }
    const auto headroom = std::numeric_limits<int32_t>::max() - record.ref_count;
    if (std::cmp_less(headroom, blocks.size())) {
      throw BlockPoolError(std::string(operation) + ": block " + std::to_string(id) + " has " +
                           std::to_string(record.ref_count) +
                           " holders, as many as can be counted");
    }
  }
}

void SlicedBlockPoolState::touch(uint32_t group, std::span<const BlockId> blocks) {
  uint32_t opened = 0;
  for (const BlockId id : blocks) {
    if (id == kNullBlock) continue;
    const SliceRef ref = ref_of(groups[group], id);
    BlockRecord& record = record_at(ref);
    if (record.ref_count++ != 0) continue;
    if (ref.large != opened) {
      if (opened != 0) close(opened, true);
      open(ref.large);
      opened = ref.large;
    }
    take_cached(ref.large, ref.slice);
    record.set_flag(BlockRecord::kInUse);
    ++large[ref.large].num_used;
  }
  if (opened != 0) close(opened, true);
}

void SlicedBlockPoolState::hold_again(uint32_t group, std::span<const BlockId> blocks) {
  for (const BlockId id : blocks) {
    if (id != kNullBlock) ++record_at(ref_of(groups[group], id)).ref_count;
  }
}

void SlicedBlockPoolState::release(uint32_t group, std::span<const BlockId> blocks,
                                   const char* operation, bool null_is_an_error) {
  const SlicedGroup& g = groups[group];
  const auto restore = [&](size_t count) { hold_again(group, blocks.first(count)); };
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i] == kNullBlock) {
      if (!null_is_an_error) continue;
      restore(i);
      throw BlockPoolError(std::string(operation) + ": the null block is never freed");
    }
    try {
      BlockRecord& record = record_at(checked_owned(group, blocks[i], operation));
      if (record.ref_count > 0) [[likely]] {
        // The link of a slice in use means nothing; `free_unheld` reads it.
        if (--record.ref_count == 0) record.next_link = static_cast<uint32_t>(i);
        continue;
      }
    } catch (...) {
      restore(i);
      throw;
    }
    restore(i);
    const auto times =
        std::count(blocks.begin(), blocks.begin() + static_cast<ptrdiff_t>(i) + 1, blocks[i]);
    throw BlockPoolError(std::string(operation) + ": block " + std::to_string(blocks[i]) +
                         " of group " + std::to_string(group) + " has " +
                         std::to_string(record_at(ref_of(g, blocks[i])).ref_count) +
                         " holder(s) and is released " + std::to_string(times) +
                         " time(s) by this call; nothing was freed");
  }
}

void SlicedBlockPoolState::free_unheld(uint32_t group, std::span<const BlockId> blocks) {
  uint32_t opened = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i] == kNullBlock) continue;
    const SliceRef ref = ref_of(groups[group], blocks[i]);
    const uint32_t number = record_of(ref);
    BlockRecord& record = records[number];
    // A block may come twice; it is freed where it lost its last holder, as in the plain pool.
    if (record.ref_count != 0 || (record.key.flags & BlockRecord::kInUse) == 0 ||
        record.next_link != i) {
      continue;
    }
    if (ref.large != opened) {
      if (opened != 0) close(opened, true);
      open(ref.large);
      opened = ref.large;
    }
    record.clear_flag(BlockRecord::kInUse);
    --large[ref.large].num_used;
    if (!enable_caching) evict(number);
    if (record.is_kept()) {
      put_cached(ref.large, ref.slice);
    } else {
      put_empty(ref.large, ref.slice);
    }
  }
  if (opened != 0) close(opened, true);
}

uint32_t SlicedBlockPoolState::take_reserve(uint32_t group) {
  uint32_t l = returned.first;
  --num_reserve;
  if (l != 0) {
    returned.remove(large, l);
  } else {
    l = first_unused++;
  }
  large[l].owner = static_cast<uint16_t>(group);
  large[l].is_owned = true;
  return l;
}

void SlicedBlockPoolState::unwatch(SliceRef ref) {
  const uint32_t number = record_of(ref);
  BlockRecord& record = records[number];
  if ((record.key.flags & BlockRecord::kWatched) == 0) return;
  record.clear_flag(BlockRecord::kWatched);
  const uint16_t owner = large[ref.large].owner;
  for (SlicedBlockPool::ReuseCallback& on_reuse : watchers.take(number)) {
    reused_.push_back({PoolGroupId{owner}, block_id(owner, number), std::move(on_reuse)});
  }
}

void SlicedBlockPoolState::tell_reused() {
  if (reused_.empty()) return;
  // A callback may call the pool, which then tells of more.
  const std::vector<Reuse> reused = std::exchange(reused_, {});
  std::exception_ptr first;
  for (const Reuse& r : reused) {
    try {
      r.on_reuse(r.group_id, r.block);
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

void SlicedBlockPoolState::give_up(SliceRef ref) {
  evict(record_of(ref));
  unwatch(ref);
}

void SlicedBlockPoolState::settle(SliceRef ref) {
  const BlockRecord& record = record_at(ref);
  if (record.ref_count != 0 || record.is_kept()) return;
  open(ref.large);
  take_cached(ref.large, ref.slice);
  put_empty(ref.large, ref.slice);
  close(ref.large, false);
}

void SlicedBlockPoolState::empty_whole(uint32_t l) {
  open(l);
  while (large[l].num_cached != 0) give_up({l, take_oldest_cached(l)});
  close(l, false);
}

/// From an open large block.
void SlicedBlockPoolState::hand_out(uint32_t l, std::span<BlockId> out, bool from_cached) {
  const auto first = static_cast<BlockId>(l * groups[large[l].owner].slices());
  for (BlockId& id : out) {
    uint32_t slice;
    if (from_cached) {
      slice = take_oldest_cached(l);
      give_up({l, slice});
      ++large[l].num_used;
    } else {
      slice = take_empty(l);
    }
    BlockRecord& record = record_at({l, slice});
    record.ref_count = 1;
    record.set_flag(BlockRecord::kInUse);
    id = first + static_cast<BlockId>(slice);
  }
}

SlicedBlockPoolState::Source SlicedBlockPoolState::choose_source(const SlicedGroup& group,
                                                                 size_t num_wanted,
                                                                 bool may_take_large) const {
  using Kind = Source::Kind;
  const uint32_t roomy = group.roomy.fullest();
  const bool roomy_is_in_use = roomy != 0 && large[roomy].num_used != 0;
  // What is asked for together is mostly given back together, so it shall not share large blocks.
  const bool fills_large = may_take_large && num_wanted >= group.slices();
  if (roomy_is_in_use && !fills_large) return {Kind::kEmpty, roomy};
  const uint32_t own = group.aged.first;
  const uint32_t own_by_policy = group.is_fragmented() ? group.evictable.fullest() : own;
  if (own != 0 && !may_take_large) return {Kind::kCached, own_by_policy};
  // A large block that nobody uses, with room beside what it has cached; `roomy` may be in use.
  const uint32_t unused_roomy = group.roomy.lists()[0].first;
  if (unused_roomy != 0) return {Kind::kEmpty, unused_roomy};
  if (has_reserve()) return {Kind::kReserve};
  if (own != 0 && group.is_fragmented()) return {Kind::kCached, own_by_policy};
  if (own != 0 && large[own].stamp < large[aged_whole.first].stamp) return {Kind::kCached, own};
  return {Kind::kWhole, aged_whole.first};
}

void SlicedBlockPoolState::take(uint32_t group, std::span<BlockId> out, int64_t num_others) {
  using Kind = Source::Kind;
  while (!out.empty()) {
    Source source = choose_source(groups[group], out.size(), num_free_large > num_others);
    if (source.kind == Kind::kWhole) {
      empty_whole(source.large);
      continue;
    }
    const bool from_cached = source.kind == Kind::kCached;
    const uint32_t l = source.kind == Kind::kReserve ? take_reserve(group) : source.large;
    open(l);
    const uint32_t num_there = from_cached ? large[l].num_cached : num_empty(l);
    const size_t n = std::min<size_t>(out.size(), num_there);
    hand_out(l, out.first(n), from_cached);
    close(l, false);
    out = out.subspan(n);
  }
}

}  // namespace kvplan::detail
