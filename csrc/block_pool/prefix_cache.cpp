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
using detail::HashIndex;
using detail::LookupKey;
using detail::OperationCheck;

namespace detail {

void check_hash(std::string_view hash) {
  if (hash.empty() || hash.size() > kMaxBlockHashBytes) [[unlikely]] {
    throw InvalidArgument("a block hash has 1 to " + std::to_string(kMaxBlockHashBytes) +
                          " bytes, not " + std::to_string(hash.size()) +
                          "; choose a prefix caching hash of at most 256 bits, e.g. sha256");
  }
}

LookupKey lookup_key(std::string_view hash, PoolGroupId group_id) {
  check_hash(hash);
  LookupKey result;
  result.key.group = static_cast<uint16_t>(group_id);
  result.key.hash_size = static_cast<uint8_t>(hash.size());
  std::memcpy(result.key.hash.data(), hash.data(), hash.size());
  result.hash = hash_key(result.key);
  return result;
}

bool BlockPoolState::block_has_key(uint32_t block, const CachedKey& key) const {
  const BlockRecord& record = records[block];
  if (!record.has_hash()) return false;
  if (record.key.same_as(key)) return true;
  if ((record.key.flags & BlockRecord::kHasSecondary) == 0) return false;
  const std::vector<uint32_t>& keys = secondary_keys_of.at(block);
  return std::any_of(keys.begin(), keys.end(),
                     [&](uint32_t node) { return key_at(node).same_as(key); });
}

uint32_t BlockPoolState::new_secondary_key(uint32_t block, const CachedKey& key) {
  uint32_t i;
  if (unused_secondary_keys.empty()) {
    i = static_cast<uint32_t>(secondary_keys.size());
    secondary_keys.push_back({key, block});
    // So that giving a key back cannot fail.
    unused_secondary_keys.reserve(secondary_keys.capacity());
  } else {
    i = unused_secondary_keys.back();
    unused_secondary_keys.pop_back();
    secondary_keys[i] = {key, block};
  }
  secondary_keys_of[block].push_back(num_blocks + i);
  records[block].key.flags |= BlockRecord::kHasSecondary;
  return num_blocks + i;
}

void BlockPoolState::link_key(uint32_t node, const LookupKey& key) {
  CachedKey& mine = key_at(node);
  const size_t slot = find_slot(key);
  if (slot == HashIndex::kNotFound) {
    mine.next_same = mine.prev_same = node;
    index.insert(key.hash, node);
    return;
  }
  const uint32_t oldest = index.node_at(slot);
  const uint32_t newest = key_at(oldest).prev_same;
  mine.prev_same = newest;
  mine.next_same = oldest;
  key_at(newest).next_same = node;
  key_at(oldest).prev_same = node;
}

void BlockPoolState::unlink_key(uint32_t node) {
  const CachedKey& key = key_at(node);
  const uint32_t next = key.next_same;
  if (next == node) {
    index.erase(index.find(hash_key(key), [&](uint32_t other) { return other == node; }));
    return;
  }
  const size_t slot = index.find(hash_key(key), [&](uint32_t other) { return other == node; });
  if (slot != HashIndex::kNotFound) index.replace_node(slot, next);
  key_at(next).prev_same = key.prev_same;
  key_at(key.prev_same).next_same = next;
}

void BlockPoolState::insert_key(uint32_t block, const LookupKey& key, int32_t num_tokens) {
  if (block_has_key(block, key.key)) return;
  index.reserve_one();
  BlockRecord& record = records[block];
  if (record.has_hash()) {
    link_key(new_secondary_key(block, key.key), key);
    return;
  }
  const uint8_t flags = record.key.flags;
  record.key = key.key;
  record.key.flags = flags;
  record.num_tokens = num_tokens;
  link_key(block, key);
}

int64_t BlockPoolState::evict(uint32_t block) {
  if (!options.enable_events) return remove_keys(block, [](const CachedKey&) {});
  return remove_keys(block, [&](const CachedKey& key) {
    events.push_back({.kind = BlockPoolEvent::Kind::kRemoved,
                      .group_id = static_cast<PoolGroupId>(key.group),
                      .hashes = {std::string(key.view())}});
  });
}

namespace {

int32_t checked_tokens(int64_t num_tokens) {
  if (num_tokens < 1 || num_tokens > std::numeric_limits<int32_t>::max()) {
    throw InvalidArgument("a cached prefix has 1 to 2147483647 tokens, not " +
                          std::to_string(num_tokens));
  }
  return static_cast<int32_t>(num_tokens);
}

BlockPool::CachedHash to_cached_hash(const CachedKey& key) {
  return {std::string(key.view()), static_cast<PoolGroupId>(key.group)};
}

std::optional<std::string> to_parent(std::string_view parent_hash) {
  if (parent_hash.empty()) return std::nullopt;
  return std::string(parent_hash);
}

}  // namespace
}  // namespace detail

std::optional<BlockId> BlockPool::find(std::string_view hash, PoolGroupId group_id) const {
  const uint32_t block = state_->find_block(detail::lookup_key(hash, group_id));
  return block == 0 ? std::nullopt : std::optional(static_cast<BlockId>(block));
}

bool BlockPool::find_in_groups(std::string_view hash, std::span<const PoolGroupId> group_ids,
                               std::span<BlockId> out) const {
  for (size_t i = 0; i < group_ids.size(); ++i) {
    const uint32_t block = state_->find_block(detail::lookup_key(hash, group_ids[i]));
    if (block == 0) return false;
    out[i] = static_cast<BlockId>(block);
  }
  return true;
}

int64_t BlockPool::find_prefix(std::span<const std::string_view> hashes, PoolGroupId group_id,
                               std::span<BlockId> out) const {
  // Lookups wait for memory, so those of one batch wait together.
  constexpr size_t kBatch = 8;
  LookupKey keys[kBatch];
  const size_t most = std::min(hashes.size(), out.size());
  for (size_t n = 0; n < most; n += kBatch) {
    const size_t size = std::min(kBatch, most - n);
    for (size_t i = 0; i < size; ++i) {
      keys[i] = detail::lookup_key(hashes[n + i], group_id);
      state_->index.prefetch(keys[i].hash);
    }
    for (size_t i = 0; i < size; ++i) {
      const uint32_t candidate = state_->index.candidate(keys[i].hash);
      if (candidate < state_->num_blocks) __builtin_prefetch(&state_->records[candidate]);
    }
    for (size_t i = 0; i < size; ++i) {
      const uint32_t block = state_->find_block(keys[i]);
      if (block == 0) return static_cast<int64_t>(n + i);
      out[n + i] = static_cast<BlockId>(block);
    }
  }
  return static_cast<int64_t>(most);
}

void BlockPool::cache_full_blocks(const FullBlocks& full) {
  BlockPoolState& s = *state_;
  const OperationCheck check(s);
  if (full.hashes.size() < full.blocks.size()) {
    throw InvalidArgument("cache_full_blocks: " + std::to_string(full.blocks.size()) +
                          " blocks but " + std::to_string(full.hashes.size()) + " hashes");
  }
  if (!full.mask.empty() && full.mask.size() != full.blocks.size()) {
    throw InvalidArgument("cache_full_blocks: " + std::to_string(full.blocks.size()) +
                          " blocks but a mask of " + std::to_string(full.mask.size()));
  }
  const auto skipped = [&](size_t i) {
    return full.blocks[i] == kNullBlock || (!full.mask.empty() && full.mask[i] == 0);
  };
  const auto tokens_up_to = [&](size_t i) {
    return (full.first_block + static_cast<int64_t>(i) + 1) * full.block_size;
  };
  const auto num_blocks = static_cast<int64_t>(full.blocks.size());
  constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max();
  if (full.first_block < 0 || full.first_block > kMaxTokens || full.block_size < 1 ||
      full.block_size > kMaxTokens || tokens_up_to(full.blocks.size()) > kMaxTokens) {
    throw InvalidArgument("cache_full_blocks: blocks " + std::to_string(full.first_block) + " to " +
                          std::to_string(full.first_block + num_blocks) + " of " +
                          std::to_string(full.block_size) +
                          " tokens are not within the first 2147483647 tokens");
  }
  size_t num_stored = 0;
  for (size_t i = 0; i < full.blocks.size(); ++i) {
    const BlockRecord& record = s.records[s.checked_id(full.blocks[i], "cache_full_blocks")];
    if (skipped(i)) continue;
    detail::check_hash(full.hashes[i]);
    if (record.has_hash() && (record.num_tokens == BlockRecord::kUnknownTokens ||
                              record.num_tokens >= tokens_up_to(i))) {
      throw BlockPoolError("cache_full_blocks: block " + std::to_string(full.blocks[i]) +
                           " already has a hash, which covers " +
                           (record.num_tokens < 0 ? std::string("an unknown number of")
                                                  : std::to_string(record.num_tokens)) +
                           " tokens, not fewer than the new one's " +
                           std::to_string(tokens_up_to(i)));
    }
    ++num_stored;
  }
  if (full.blocks.empty()) return;
  for (size_t i = 0; i < full.blocks.size(); ++i) {
    if (skipped(i)) continue;
    const auto id = static_cast<uint32_t>(full.blocks[i]);
    BlockRecord& record = s.records[id];
    int32_t retired = 0;
    if (record.has_hash()) {
      retired = record.num_tokens;
      s.evict(id);
    }
    s.insert_key(id, detail::lookup_key(full.hashes[i], full.group_id),
                 static_cast<int32_t>(tokens_up_to(i)));
    record.retired_tokens = retired;
  }
  if (s.options.enable_events) {
    BlockPoolEvent event{.kind = BlockPoolEvent::Kind::kStored,
                         .group_id = full.group_id,
                         .block_size = full.block_size,
                         .parent_hash = detail::to_parent(full.parent_hash)};
    event.hashes.reserve(num_stored);
    for (size_t i = 0; i < full.blocks.size(); ++i) {
      if (!skipped(i)) event.hashes.emplace_back(full.hashes[i]);
    }
    s.events.push_back(std::move(event));
  }
  check.done(*this);
}

bool BlockPool::cache_partial_block(const PartialBlock& partial) {
  BlockPoolState& s = *state_;
  const OperationCheck check(s);
  const uint32_t id = s.checked_id(partial.block, "cache_partial_block");
  if (id == 0) return false;
  const LookupKey key = detail::lookup_key(partial.hash, partial.group_id);
  const int32_t num_tokens = detail::checked_tokens(partial.num_tokens);
  BlockRecord& record = s.records[id];
  bool already_cached = !partial.replace_existing && s.block_has_key(id, key.key);
  int32_t retired = record.has_hash() ? record.retired_tokens : 0;
  if (partial.replace_existing) {
    s.evict(id);
    retired = 0;
  } else if (!already_cached && record.has_hash()) {
    if (num_tokens <= retired) return false;
    if (record.num_tokens != BlockRecord::kUnknownTokens && record.num_tokens < num_tokens) {
      retired = record.num_tokens;
      s.evict(id);
    }
  }
  s.insert_key(id, key, num_tokens);
  record.retired_tokens = retired;
  if (s.options.enable_events && !already_cached) {
    s.events.push_back({.kind = BlockPoolEvent::Kind::kStored,
                        .group_id = partial.group_id,
                        .block_size = partial.hash_block_size,
                        .hashes = {std::string(partial.hash)},
                        .parent_hash = detail::to_parent(partial.parent_hash)});
  }
  check.done(*this);
  return true;
}

void BlockPool::insert_hash(BlockId block, std::string_view hash, PoolGroupId group_id,
                            std::optional<int64_t> num_tokens) {
  BlockPoolState& s = *state_;
  const OperationCheck check(s);
  const uint32_t id = s.checked_id(block, "insert_hash");
  if (id == 0) throw BlockPoolError("insert_hash: the null block is never cached");
  const int32_t tokens =
      num_tokens ? detail::checked_tokens(*num_tokens) : BlockRecord::kUnknownTokens;
  s.insert_key(id, detail::lookup_key(hash, group_id), tokens);
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
  const int32_t num_tokens = s.records[from].num_tokens;
  const int32_t retired = s.records[from].retired_tokens;
  std::vector<LookupKey> keys;
  s.remove_keys(from, [&](const CachedKey& key) {
    LookupKey& copy = keys.emplace_back();
    copy.key = key;
    copy.key.flags = 0;
    copy.hash = detail::hash_key(key);
  });
  for (const LookupKey& key : keys) s.insert_key(to, key, num_tokens);
  if (!keys.empty()) s.records[to].retired_tokens = retired;
  check.done(*this);
}

int64_t BlockPool::evict_block(BlockId block) {
  const OperationCheck check(*state_);
  const int64_t count = state_->evict(state_->checked_id(block, "evict_block"));
  check.done(*this);
  return count;
}

void BlockPool::evict_blocks(std::span<const BlockId> blocks) {
  const OperationCheck check(*state_);
  state_->check_ids(blocks, "evict_blocks");
  for (const BlockId block : blocks) state_->evict(static_cast<uint32_t>(block));
  check.done(*this);
}

std::vector<BlockPool::CachedHash> BlockPool::remove_hashes(BlockId block) {
  const OperationCheck check(*state_);
  std::vector<CachedHash> removed;
  state_->remove_keys(state_->checked_id(block, "remove_hashes"), [&](const CachedKey& key) {
    removed.push_back(detail::to_cached_hash(key));
  });
  check.done(*this);
  return removed;
}

bool BlockPool::reset_prefix_cache() {
  BlockPoolState& s = *state_;
  const OperationCheck check(s);
  if (s.num_free != s.num_blocks - 1) return false;
  s.index.clear();
  s.secondary_keys.clear();
  s.unused_secondary_keys.clear();
  s.secondary_keys_of.clear();
  for (uint32_t id = 1; id < s.num_blocks; ++id) {
    // Pages of blocks that were never used stay untouched memory.
    if (!s.records[id].has_hash()) continue;
    s.records[id].key.hash_size = 0;
    s.records[id].retired_tokens = 0;
    s.records[id].key.flags &= static_cast<uint8_t>(~BlockRecord::kHasSecondary);
  }
  if (s.options.enable_events) s.events.push_back({.kind = BlockPoolEvent::Kind::kCleared});
  std::vector<std::pair<uint64_t, uint32_t>> watched;
  for (const auto& [block, watcher] : s.watchers) watched.emplace_back(watcher.order, block);
  std::sort(watched.begin(), watched.end());
  for (const auto& [order, block] : watched) s.notify_reuse(block);
  check.done(*this);
  return true;
}

std::vector<BlockPoolEvent> BlockPool::take_events() { return std::exchange(state_->events, {}); }

bool BlockPool::has_events() const noexcept { return !state_->events.empty(); }

bool BlockPool::has_hash(BlockId block) const {
  return state_->records[state_->checked_id(block, "has_hash")].has_hash();
}

std::string_view BlockPool::block_hash(BlockId block) const {
  return state_->records[state_->checked_id(block, "block_hash")].key.view();
}

std::optional<PoolGroupId> BlockPool::block_hash_group(BlockId block) const {
  const BlockRecord& record = state_->records[state_->checked_id(block, "block_hash_group")];
  if (!record.has_hash()) return std::nullopt;
  return static_cast<PoolGroupId>(record.key.group);
}

std::optional<int64_t> BlockPool::block_hash_num_tokens(BlockId block) const {
  const BlockRecord& record = state_->records[state_->checked_id(block, "block_hash_num_tokens")];
  if (!record.has_hash() || record.num_tokens == BlockRecord::kUnknownTokens) return std::nullopt;
  return record.num_tokens;
}

std::vector<BlockPool::CachedHash> BlockPool::secondary_hashes(BlockId block) const {
  const uint32_t id = state_->checked_id(block, "secondary_hashes");
  std::vector<CachedHash> hashes;
  const auto keys = state_->secondary_keys_of.find(id);
  if (keys == state_->secondary_keys_of.end()) return hashes;
  for (const uint32_t node : keys->second) {
    hashes.push_back(detail::to_cached_hash(state_->key_at(node)));
  }
  return hashes;
}

bool BlockPool::has_key(BlockId block, std::string_view hash, PoolGroupId group_id) const {
  return state_->block_has_key(state_->checked_id(block, "has_key"),
                               detail::lookup_key(hash, group_id).key);
}

int64_t BlockPool::num_cached_hashes() const noexcept {
  return static_cast<int64_t>(state_->index.size());
}

}  // namespace kvplan
