#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "block_pool/block_pool_state.h"
#include "kvplan/block_pool.h"

namespace kvplan {

using detail::BlockPoolState;
using detail::BlockRecord;
using detail::CachedKey;
using detail::OperationCheck;

std::optional<BlockId> BlockPool::find(std::string_view hash, PoolGroupId group_id) const {
  const uint32_t block = state_->find_block(hash, group_id);
  return block == 0 ? std::nullopt : std::optional(static_cast<BlockId>(block));
}

bool BlockPool::find_in_groups(std::string_view hash, std::span<const PoolGroupId> group_ids,
                               std::span<BlockId> out) const {
  detail::check_room_for_groups(group_ids.size(), out.size());
  return state_->find_in_groups(
      hash, group_ids, [&](size_t i, uint32_t block) { out[i] = static_cast<BlockId>(block); });
}

int64_t BlockPool::find_prefix(std::span<const std::string_view> hashes, PoolGroupId group_id,
                               std::span<BlockId> out) const {
  const size_t most = std::min(hashes.size(), out.size());
  return static_cast<int64_t>(
      state_->find_prefix(hashes.first(most), group_id,
                          [&](size_t i, uint32_t block) { out[i] = static_cast<BlockId>(block); }));
}

void BlockPool::cache_full_blocks(const FullBlocks& full) {
  BlockPoolState& s = *state_;
  const OperationCheck check(s);
  s.cache_full(full,
               [&](PoolGroupId, BlockId id) { return s.checked_id(id, "cache_full_blocks"); });
  check.done(*this);
}

void BlockPool::cache_full_blocks(const FullBlocks& full, const FullBlockColumns& columns) {
  BlockPoolState& s = *state_;
  const OperationCheck check(s);
  s.cache_full(full, columns,
               [&](PoolGroupId, BlockId id) { return s.checked_id(id, "cache_full_blocks"); });
  check.done(*this);
}

bool BlockPool::cache_partial_block(const PartialBlock& partial) {
  BlockPoolState& s = *state_;
  const OperationCheck check(s);
  const uint32_t id = s.checked_id(partial.block, "cache_partial_block");
  if (id == 0) return false;
  const bool is_reachable = s.cache_partial(partial, id);
  check.done(*this);
  return is_reachable;
}

void BlockPool::insert_hash(BlockId block, std::string_view hash, PoolGroupId group_id,
                            std::optional<int64_t> num_tokens) {
  BlockPoolState& s = *state_;
  const OperationCheck check(s);
  const uint32_t id = s.checked_id(block, "insert_hash");
  if (id == 0) throw BlockPoolError("insert_hash: the null block is never cached");
  const int32_t tokens =
      num_tokens ? detail::checked_tokens(*num_tokens) : BlockRecord::kUnknownTokens;
  s.insert_key(id, s.lookup_hash(hash), group_id, tokens);
  check.done(*this);
}

void BlockPool::move_block_hashes(BlockId src, BlockId dst) {
  BlockPoolState& s = *state_;
  const OperationCheck check(s);
  const uint32_t from = s.checked_id(src, "move_block_hashes");
  const uint32_t to = s.checked_id(dst, "move_block_hashes");
  if (to == 0 || s.records[to].has_hash()) {
    throw BlockPoolError("move_block_hashes: block " + std::to_string(dst) +
                         (to == 0 ? " is the null block" : " already has a hash"));
  }
  s.reinsert_keys(from, to);
  check.done(*this);
}

int64_t BlockPool::evict_block(BlockId block) {
  const OperationCheck check(*state_);
  const uint32_t id = state_->checked_id(block, "evict_block");
  state_->expect_uses(1);
  const int64_t count = state_->evict(id);
  state_->note_uses(BlockUse::Kind::kEvicted, std::span(&block, 1));
  check.done(*this);
  return count;
}

void BlockPool::evict_blocks(std::span<const BlockId> blocks) {
  const OperationCheck check(*state_);
  state_->check_ids(blocks, "evict_blocks");
  state_->expect_uses(blocks.size());
  for (const BlockId block : blocks) state_->evict(static_cast<uint32_t>(block));
  state_->note_uses(BlockUse::Kind::kEvicted, blocks);
  check.done(*this);
}

std::vector<BlockPool::CachedHash> BlockPool::remove_hashes(BlockId block) {
  const OperationCheck check(*state_);
  std::vector<CachedHash> removed;
  state_->remove_keys(state_->checked_id(block, "remove_hashes"), [&](const CachedKey& key) {
    removed.push_back(state_->to_cached_hash(key));
  });
  check.done(*this);
  return removed;
}

bool BlockPool::reset_prefix_cache() {
  BlockPoolState& s = *state_;
  const OperationCheck check(s);
  if (s.num_free != s.num_blocks - 1) return false;
  s.clear();
  for (const uint32_t block : s.watchers.blocks()) s.notify_reuse(block);
  check.done(*this);
  return true;
}

void BlockPool::emit_stored_event(std::span<const std::string_view> hashes, int64_t block_size,
                                  PoolGroupId group_id) {
  state_->push_stored_prefix(hashes, block_size, group_id);
}

std::vector<BlockPoolEvent> BlockPool::take_events() { return std::exchange(state_->events, {}); }

bool BlockPool::has_events() const noexcept { return !state_->events.empty(); }

std::vector<BlockUse> BlockPool::take_uses() { return std::exchange(state_->uses, {}); }

bool BlockPool::has_hash(BlockId block) const {
  return state_->records[state_->checked_id(block, "has_hash")].has_hash();
}

std::string_view BlockPool::block_hash(BlockId block) const {
  return state_->hash_of(state_->records[state_->checked_id(block, "block_hash")].key);
}

std::optional<PoolGroupId> BlockPool::block_hash_group(BlockId block) const {
  const BlockRecord& record = state_->records[state_->checked_id(block, "block_hash_group")];
  if (!record.has_hash()) return std::nullopt;
  return static_cast<PoolGroupId>(record.key.group);
}

std::optional<int64_t> BlockPool::block_hash_num_tokens(BlockId block) const {
  return state_->records[state_->checked_id(block, "block_hash_num_tokens")].hashed_tokens();
}

std::vector<BlockPool::CachedHash> BlockPool::secondary_hashes(BlockId block) const {
  const uint32_t id = state_->checked_id(block, "secondary_hashes");
  std::vector<CachedHash> hashes;
  const auto keys = state_->secondary_keys_of.find(id);
  if (keys == state_->secondary_keys_of.end()) return hashes;
  for (const uint32_t node : keys->second) {
    hashes.push_back(state_->to_cached_hash(state_->key_at(node)));
  }
  return hashes;
}

bool BlockPool::has_key(BlockId block, std::string_view hash, PoolGroupId group_id) const {
  const uint32_t id = state_->checked_id(block, "has_key");
  return state_->block_has_key(id, state_->find_entry(state_->lookup_hash(hash)), group_id);
}

int64_t BlockPool::num_cached_hashes() const noexcept {
  return static_cast<int64_t>(state_->num_distinct);
}

}  // namespace kvplan
