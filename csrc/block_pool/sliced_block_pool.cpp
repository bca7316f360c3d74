#include "kvplan/sliced_block_pool.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "block_pool/sliced_block_pool_state.h"

namespace kvplan {

using detail::BlockRecord;
using detail::OperationCheck;
using detail::SlicedBlockPoolState;
using detail::SlicedGroup;
using detail::SliceRef;

namespace {

std::unique_ptr<SlicedBlockPoolState> make_state(int64_t num_large_blocks,
                                                 std::span<const int64_t> slices,
                                                 SlicedBlockPoolOptions options) {
  constexpr int64_t kMaxId = std::numeric_limits<BlockId>::max();
  if (num_large_blocks < 1 || num_large_blocks > kMaxId) {
    throw InvalidArgument("a sliced block pool has 1 to 2147483647 large blocks, not " +
                          std::to_string(num_large_blocks) +
                          "; large block 0 is the null block of every group");
  }
  if (slices.empty() || slices.size() > 65536) {
    throw InvalidArgument("a sliced block pool has 1 to 65536 groups, not " +
                          std::to_string(slices.size()));
  }
  for (size_t g = 0; g < slices.size(); ++g) {
    if (slices[g] >= 1 && slices[g] <= kMaxId / num_large_blocks) continue;
    throw InvalidArgument(
        "group " + std::to_string(g) + " cuts each of " + std::to_string(num_large_blocks) +
        " large blocks into " + std::to_string(slices[g]) + " slices; 1 to " +
        std::to_string(kMaxId / num_large_blocks) + " are possible with 32-bit block ids");
  }
  if (!(options.own_first_above >= 0 && options.own_first_above <= 1)) {
    throw InvalidArgument("own_first_above is a share of the pool, 0 to 1, not " +
                          std::to_string(options.own_first_above));
  }
  const int64_t most_slices = *std::max_element(slices.begin(), slices.end());
  return std::make_unique<SlicedBlockPoolState>(static_cast<uint32_t>(num_large_blocks), slices,
                                                static_cast<uint32_t>(most_slices), options);
}

}  // namespace

SlicedBlockPool::SlicedBlockPool(int64_t num_large_blocks, std::span<const int64_t> slices,
                                 SlicedBlockPoolOptions options)
    : state_(make_state(num_large_blocks, slices, options)) {}
SlicedBlockPool::~SlicedBlockPool() = default;
SlicedBlockPool::SlicedBlockPool(SlicedBlockPool&&) noexcept = default;
SlicedBlockPool& SlicedBlockPool::operator=(SlicedBlockPool&&) noexcept = default;

int64_t SlicedBlockPool::num_large_blocks() const noexcept { return state_->num_large; }

int64_t SlicedBlockPool::num_groups() const noexcept {
  return static_cast<int64_t>(state_->groups.size());
}

int64_t SlicedBlockPool::slices(PoolGroupId group_id) const {
  return state_->groups[state_->checked_group(group_id)].slices();
}

int64_t SlicedBlockPool::num_blocks(PoolGroupId group_id) const {
  return slices(group_id) * state_->num_large;
}

int64_t SlicedBlockPool::num_free_large_blocks() const noexcept { return state_->num_free_large; }

int64_t SlicedBlockPool::num_empty_large_blocks() const noexcept { return state_->num_reserve; }

int64_t SlicedBlockPool::num_free_blocks(PoolGroupId group_id) const {
  const SlicedGroup& group = state_->groups[state_->checked_group(group_id)];
  return group.num_partly_free + int64_t{state_->num_free_large} * group.slices();
}

int64_t SlicedBlockPool::num_used_blocks(PoolGroupId group_id) const {
  return state_->groups[state_->checked_group(group_id)].num_used;
}

std::optional<PoolGroupId> SlicedBlockPool::owner(int64_t large_id) const {
  if (large_id < 0 || large_id >= state_->num_large) {
    throw BlockPoolError("owner: large block " + std::to_string(large_id) +
                         " is not in the pool, which has " + std::to_string(state_->num_large));
  }
  const detail::LargeBlock& block = state_->large[large_id];
  if (!block.is_owned) return std::nullopt;
  return PoolGroupId{block.owner};
}

double SlicedBlockPool::usage() const noexcept {
  const int64_t usable = num_large_blocks() - 1;
  if (usable == 0) return 0.0;
  return 1.0 - static_cast<double>(num_free_large_blocks()) / static_cast<double>(usable);
}

double SlicedBlockPool::slice_usage() const noexcept {
  const int64_t usable = num_large_blocks() - 1;
  if (usable == 0) return 0.0;
  double used = 0.0;
  for (const SlicedGroup& group : state_->groups) {
    used += static_cast<double>(group.num_used) / group.slices();
  }
  return used / static_cast<double>(usable);
}

bool SlicedBlockPool::enable_caching() const noexcept { return state_->enable_caching; }

bool SlicedBlockPool::enable_events() const noexcept { return state_->enable_events; }

int64_t SlicedBlockPool::memory_bytes() const noexcept {
  return static_cast<int64_t>(sizeof(SlicedBlockPoolState) +
                              state_->num_records * sizeof(BlockRecord) +
                              state_->num_large * sizeof(detail::LargeBlock) +
                              state_->index.memory_bytes() + state_->entries.memory_bytes() +
                              state_->secondary_keys.capacity() * sizeof(detail::SecondaryKey));
}

bool SlicedBlockPool::can_allocate(std::span<const SliceDemand> demands) const {
  return state_->count_admission(demands, "can_allocate") >= 0;
}

int64_t SlicedBlockPool::num_large_blocks_needed(std::span<const SliceDemand> demands) const {
  return state_->num_free_large - state_->count_admission(demands, "num_large_blocks_needed");
}

void SlicedBlockPool::allocate(std::span<const SliceDemand> demands, std::span<BlockId> out,
                               bool frugal) {
  SlicedBlockPoolState& s = *state_;
  const OperationCheck check(s);
  const bool fits = s.count_admission(demands, "allocate") >= 0;
  if (!fits) {
    std::string wanted;
    for (size_t g = 0; g < s.groups.size(); ++g) {
      if (s.admission_new_[g] == 0) continue;
      wanted += (wanted.empty() ? "" : ", ") + std::to_string(s.admission_new_[g]) + " of group " +
                std::to_string(g) + " (" + std::to_string(s.groups[g].num_partly_free) +
                " free in its large blocks, " + std::to_string(s.groups[g].slices()) +
                " in a new one)";
    }
    throw BlockPoolError("cannot get blocks " + wanted + ": " + std::to_string(s.num_free_large) +
                         " of the pool's " + std::to_string(s.num_large - 1) +
                         " large blocks are free, before those that hold what was found");
  }
  const std::span<const BlockId> all = out;
  int64_t total = 0;
  for (const SliceDemand& demand : demands) total += demand.num_new;
  if (std::cmp_not_equal(total, out.size())) {
    throw InvalidArgument("allocate: the demands are for " + std::to_string(total) +
                          " new blocks, and there is room for " + std::to_string(out.size()) +
                          " ids");
  }
  for (const SliceDemand& demand : demands) {
    s.touch(static_cast<uint32_t>(demand.group_id), demand.found);
  }
  // Large blocks that the groups together must get; a group's own share is not kept from it.
  const auto needed = [&](uint32_t g) {
    return s.large_blocks_needed(s.groups[g], s.admission_new_[g], s.groups[g].num_partly_free);
  };
  int64_t num_needed = 0;
  for (uint32_t g = 0; g < s.groups.size(); ++g) num_needed += needed(g);
  for (const SliceDemand& demand : demands) {
    const auto g = static_cast<uint32_t>(demand.group_id);
    const int64_t own = needed(g);
    num_needed -= own;
    s.take(g, out.first(static_cast<size_t>(demand.num_new)),
           frugal ? s.num_free_large - own : num_needed);
    out = out.subspan(static_cast<size_t>(demand.num_new));
    s.admission_new_[g] -= demand.num_new;
    num_needed += needed(g);
  }
  try {
    s.tell_reused();
  } catch (...) {
    std::span<const BlockId> taken = all;
    for (const SliceDemand& demand : demands) {
      const auto count = static_cast<size_t>(demand.num_new);
      free_blocks(demand.group_id, taken.first(count));
      free_blocks(demand.group_id, demand.found);
      taken = taken.subspan(count);
    }
    throw;
  }
  check.done(*this);
}

void SlicedBlockPool::get_new_blocks(PoolGroupId group_id, std::span<BlockId> out) {
  SlicedBlockPoolState& s = *state_;
  const OperationCheck check(s);
  const int64_t num_free = num_free_blocks(group_id);
  if (std::cmp_greater(out.size(), num_free)) {
    throw BlockPoolError("cannot get " + std::to_string(out.size()) + " blocks of group " +
                         std::to_string(static_cast<uint32_t>(group_id)) + ": " +
                         std::to_string(num_free) + " are free, in " +
                         std::to_string(s.num_free_large) + " free large blocks of " +
                         std::to_string(slices(group_id)) + " and in the group's own");
  }
  s.take(static_cast<uint32_t>(group_id), out, 0);
  try {
    s.tell_reused();
  } catch (...) {
    free_blocks(group_id, out);
    throw;
  }
  check.done(*this);
}

std::vector<BlockId> SlicedBlockPool::get_new_blocks(PoolGroupId group_id, int64_t num_blocks) {
  if (num_blocks < 0) {
    throw InvalidArgument("cannot get " + std::to_string(num_blocks) + " blocks");
  }
  // Checked before memory is reserved for the ids.
  std::vector<BlockId> blocks(
      num_blocks > num_free_blocks(group_id) ? 0 : static_cast<size_t>(num_blocks));
  get_new_blocks(group_id, std::span(blocks.data(), static_cast<size_t>(num_blocks)));
  return blocks;
}

void SlicedBlockPool::touch(PoolGroupId group_id, std::span<const BlockId> blocks) {
  const OperationCheck check(*state_);
  const uint32_t group = state_->checked_group(group_id);
  state_->check_touch(group, blocks, "touch");
  state_->touch(group, blocks);
  check.done(*this);
}

void SlicedBlockPool::free_blocks(PoolGroupId group_id, std::span<const BlockId> blocks) {
  const GroupBlocks batch{group_id, blocks};
  free_blocks(std::span(&batch, 1));
}

void SlicedBlockPool::free_blocks(std::span<const GroupBlocks> batches) {
  SlicedBlockPoolState& s = *state_;
  const OperationCheck check(s);
  size_t num_released = 0;
  try {
    for (const GroupBlocks& batch : batches) {
      s.release(s.checked_group(batch.group_id), batch.blocks, "free_blocks", false);
      ++num_released;
    }
  } catch (...) {
    for (const GroupBlocks& batch : batches.first(num_released)) {
      s.hold_again(static_cast<uint32_t>(batch.group_id), batch.blocks);
    }
    throw;
  }
  for (const GroupBlocks& batch : batches) {
    s.free_unheld(static_cast<uint32_t>(batch.group_id), batch.blocks);
  }
  check.done(*this);
}

void SlicedBlockPool::unpin_blocks(PoolGroupId group_id, std::span<const BlockId> blocks,
                                   // A copy goes to every block that is watched.
                                   // NOLINTNEXTLINE(performance-unnecessary-value-param)
                                   ReuseCallback on_reuse) {
  SlicedBlockPoolState& s = *state_;
  const OperationCheck check(s);
  const uint32_t group = s.checked_group(group_id);
  if (!on_reuse) throw InvalidArgument("unpin_blocks: on_reuse must be callable");
  s.release(group, blocks, "unpin_blocks", true);
  for (const BlockId id : blocks) {
    const uint32_t number = s.record_of(s.ref_of(s.groups[group], id));
    s.watchers.add(number, on_reuse);
    s.records[number].set_flag(BlockRecord::kWatched);
  }
  s.free_unheld(group, blocks);
  check.done(*this);
}

int32_t SlicedBlockPool::ref_count(PoolGroupId group_id, BlockId block) const {
  const uint32_t group = state_->checked_group(group_id);
  const SliceRef ref = state_->checked_id(group, block, "ref_count");
  return state_->owns(group, ref.large) ? state_->record_at(ref).ref_count : 0;
}

bool SlicedBlockPool::is_free(PoolGroupId group_id, BlockId block) const {
  return ref_count(group_id, block) == 0 && block != kNullBlock;
}

}  // namespace kvplan
