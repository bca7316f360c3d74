#include <algorithm>
#include <string>
#include <utility>

#include "block_pool/sliced_block_pool_state.h"
#include "kvplan/sliced_block_pool.h"

namespace kvplan {

using detail::OperationCheck;
using detail::SlicedBlockPoolState;
using detail::SliceRef;

std::optional<BlockId> SlicedBlockPool::find(std::string_view hash, PoolGroupId group_id) const {
  const SlicedBlockPoolState& s = *state_;
  const uint32_t group = s.checked_group(group_id);
  const uint32_t record = s.find_block(hash, group_id);
  if (record == 0) return std::nullopt;
  return s.id_of_record(s.groups[group], record);
}

bool SlicedBlockPool::find_in_groups(std::string_view hash, std::span<const PoolGroupId> group_ids,
                                     std::span<BlockId> out) const {
  detail::check_room_for_groups(group_ids.size(), out.size());
  const SlicedBlockPoolState& s = *state_;
  for (const PoolGroupId group_id : group_ids) s.checked_group(group_id);
  return s.find_in_groups(hash, group_ids, [&](size_t i, uint32_t record) {
    out[i] = s.id_of_record(s.groups[static_cast<size_t>(group_ids[i])], record);
  });
}

int64_t SlicedBlockPool::find_prefix(std::span<const std::string_view> hashes, PoolGroupId group_id,
                                     std::span<BlockId> out) const {
  const SlicedBlockPoolState& s = *state_;
  const detail::SlicedGroup& group = s.groups[s.checked_group(group_id)];
  const size_t most = std::min(hashes.size(), out.size());
  return static_cast<int64_t>(
      s.find_prefix(hashes.first(most), group_id,
                    [&](size_t i, uint32_t record) { out[i] = s.id_of_record(group, record); }));
}

void SlicedBlockPool::cache_full_blocks(const FullBlocks& full) {
  SlicedBlockPoolState& s = *state_;
  const OperationCheck check(s);
  s.checked_group(full.group_id);
  s.cache_full(full, s.records_in_use("cache_full_blocks"));
  check.done(*this);
}

void SlicedBlockPool::cache_full_blocks(const FullBlocks& full, const FullBlockColumns& columns) {
  SlicedBlockPoolState& s = *state_;
  const OperationCheck check(s);
  for (const PoolGroupId group_id : columns.groups) s.checked_group(group_id);
  s.cache_full(full, columns, s.records_in_use("cache_full_blocks"));
  check.done(*this);
}

bool SlicedBlockPool::cache_partial_block(const PartialBlock& partial) {
  SlicedBlockPoolState& s = *state_;
  const OperationCheck check(s);
  const uint32_t group = s.checked_group(partial.group_id);
  const uint32_t record = s.record_in_use(group, partial.block, "cache_partial_block");
  if (record == 0) return false;
  const bool is_reachable = s.cache_partial(partial, record);
  check.done(*this);
  return is_reachable;
}

void SlicedBlockPool::evict_blocks(PoolGroupId group_id, std::span<const BlockId> blocks) {
  SlicedBlockPoolState& s = *state_;
  const OperationCheck check(s);
  const uint32_t group = s.checked_group(group_id);
  for (const BlockId id : blocks) s.checked_owned(group, id, "evict_blocks");
  for (const BlockId id : blocks) {
    const SliceRef ref = s.ref_of(s.groups[group], id);
    if (s.evict(s.record_of(ref)) != 0) s.settle(ref);
  }
  check.done(*this);
}

void SlicedBlockPool::move_block_hashes(PoolGroupId group_id, BlockId src, BlockId dst) {
  SlicedBlockPoolState& s = *state_;
  const OperationCheck check(s);
  const uint32_t group = s.checked_group(group_id);
  const SliceRef from = s.checked_owned(group, src, "move_block_hashes");
  const uint32_t to = s.record_in_use(group, dst, "move_block_hashes");
  if (to == 0 || s.records[to].has_hash()) {
    throw BlockPoolError("move_block_hashes: block " + std::to_string(dst) + " of group " +
                         std::to_string(group) +
                         (to == 0 ? " is the null block" : " already has a hash"));
  }
  if (s.record_at(from).has_hash()) {
    s.reinsert_keys(s.record_of(from), to);
    s.settle(from);
  }
  check.done(*this);
}

bool SlicedBlockPool::reset_prefix_cache() {
  SlicedBlockPoolState& s = *state_;
  const OperationCheck check(s);
  if (s.num_free_large != s.num_large - 1) return false;
  s.clear();
  for (const uint32_t number : s.watchers.blocks()) {
    s.unwatch({number / s.records_per_large, number % s.records_per_large});
  }
  while (const uint32_t l = s.aged_whole.first) {
    s.open(l);
    s.large[l].num_cached = 0;
    s.close(l, false);
  }
  s.tell_reused();
  check.done(*this);
  return true;
}

void SlicedBlockPool::emit_stored_event(std::span<const std::string_view> hashes,
                                        int64_t block_size, PoolGroupId group_id) {
  state_->checked_group(group_id);
  state_->push_stored_prefix(hashes, block_size, group_id);
}

std::vector<BlockPoolEvent> SlicedBlockPool::take_events() {
  return std::exchange(state_->events, {});
}

bool SlicedBlockPool::has_events() const noexcept { return !state_->events.empty(); }

std::string_view SlicedBlockPool::block_hash(PoolGroupId group_id, BlockId block) const {
  const SlicedBlockPoolState& s = *state_;
  const uint32_t group = s.checked_group(group_id);
  const SliceRef ref = s.checked_id(group, block, "block_hash");
  return s.owns(group, ref.large) ? s.hash_of(s.record_at(ref).key) : std::string_view();
}

std::optional<int64_t> SlicedBlockPool::block_hash_num_tokens(PoolGroupId group_id,
                                                              BlockId block) const {
  const SlicedBlockPoolState& s = *state_;
  const uint32_t group = s.checked_group(group_id);
  const SliceRef ref = s.checked_id(group, block, "block_hash_num_tokens");
  return s.owns(group, ref.large) ? s.record_at(ref).hashed_tokens() : std::nullopt;
}

int64_t SlicedBlockPool::num_cached_hashes() const noexcept {
  return static_cast<int64_t>(state_->num_distinct);
}

}  // namespace kvplan
