#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "block_pool/block_record.h"
#include "block_pool/hash_index.h"
#include "kvplan/block_pool.h"

namespace kvplan::detail {

/// A key that comes from a caller: checked, zero-padded, and hashed.
struct LookupKey {
  CachedKey key;
  uint32_t hash = 0;
};

/// A key besides a block's primary one. Rare, so it lies outside the block's record.
struct SecondaryKey {
  CachedKey key;
  uint32_t block = 0;
};

inline uint64_t multiply_fold(uint64_t a, uint64_t b) {
  __extension__ using Product = unsigned __int128;
  const Product product = static_cast<Product>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

/// Numbers that nobody outside can know, so that nobody can make keys that collide.
struct HashSeed {
  HashSeed();
  uint64_t words[4];
};

/// Throws `InvalidArgument` for a hash of a length that no block record can hold.
void check_hash(std::string_view hash);
CachedKey to_key(std::string_view hash, PoolGroupId group_id);
/// Throws `InvalidArgument` for a parent hash of such a length; empty means none.
void check_parent(std::string_view parent_hash);
/// Throws `InvalidArgument` unless there is room for a block of each group.
void check_room_for_groups(size_t num_groups, size_t room);
/// Throws `InvalidArgument` for what no prefix has.
int32_t checked_tokens(int64_t num_tokens);
/// Which block records have which keys, and the records that a key leads to. Knows nothing of
/// holders and free lists. Record 0 never has a key.
struct PrefixKeys {
  PrefixKeys(BlockRecord* records_, uint32_t num_records_, BlockPoolOptions options);
  virtual ~PrefixKeys() = default;
  PrefixKeys(const PrefixKeys&) = delete;
  PrefixKeys& operator=(const PrefixKeys&) = delete;

  BlockRecord* records;
  const uint32_t num_records;
  const bool enable_events;
  const size_t max_events;
  const HashSeed seed;

  // Nodes of the index: a block's number for its primary key, num_records + i for secondary key i.
  HashIndex index;
  std::vector<SecondaryKey> secondary_keys;
  std::vector<uint32_t> unused_secondary_keys;
  std::unordered_map<uint32_t, std::vector<uint32_t>> secondary_keys_of;  // by block, oldest first
  std::vector<BlockPoolEvent> events;
  std::vector<int64_t> block_size_of;  // by group, as it was stored last; for events

  /// The id by which callers know the block of a record.
  virtual BlockId block_id(uint16_t group, uint32_t record) const = 0;

  /// Mixes all bytes: keys need not be cryptographic hashes.
  uint32_t hash_key(const CachedKey& key) const {
    const uint64_t tail = static_cast<uint64_t>(key.group) << 8 | key.hash_size;
    const uint64_t h =
        multiply_fold(key.word(0) ^ seed.words[0], key.word(1) ^ seed.words[1]) ^
        multiply_fold(key.word(2) ^ seed.words[2], key.word(3) ^ tail ^ seed.words[3]);
    return static_cast<uint32_t>(h ^ h >> 32);
  }
  LookupKey lookup_key(std::string_view hash, PoolGroupId group_id) const {
    LookupKey result;
    result.key = to_key(hash, group_id);
    result.hash = hash_key(result.key);
    return result;
  }

  CachedKey& key_at(uint32_t node) {
    return node < num_records ? records[node].key : secondary_keys[node - num_records].key;
  }
  const CachedKey& key_at(uint32_t node) const {
    return const_cast<PrefixKeys*>(this)->key_at(node);
  }
  uint32_t block_at(uint32_t node) const {
    return node < num_records ? node : secondary_keys[node - num_records].block;
  }

  /// Slot of the index that leads to blocks with this key, or `HashIndex::kNotFound`.
  size_t find_slot(const LookupKey& key) const {
    return index.find(key.hash, [&](uint32_t node) { return key_at(node).same_as(key.key); });
  }
  /// The block first cached under the key; 0 if none.
  uint32_t find_block(const LookupKey& key) const {
    const size_t slot = find_slot(key);
    return slot == HashIndex::kNotFound ? 0 : block_at(index.node_at(slot));
  }
  /// Blocks of the longest cached prefix of `hashes`; `found(i, block)` for each.
  template <typename Found>
  size_t find_prefix(std::span<const std::string_view> hashes, PoolGroupId group_id,
                     Found&& found) const;
  bool block_has_key(uint32_t block, const CachedKey& key) const;

  /// Mirrors vllm/v1/core/block_pool.py::BlockPool._insert_block_hash (0.33).
  void insert_key(uint32_t block, const LookupKey& key, int32_t num_tokens);
  /// `BlockPool::cache_full_blocks`. `record_of(id)` is the number of a block's record; it throws
  /// for an id whose block cannot be cached, and nothing has changed then.
  template <typename RecordOf>
  void cache_full(const FullBlocks& full, RecordOf&& record_of);
  /// `BlockPool::cache_partial_block` of a block that is not the null block.
  bool cache_partial(const PartialBlock& partial, uint32_t block);
  /// Drops all keys of a block, calling `removed(key)` for each before it goes.
  template <typename Removed>
  int64_t remove_keys(uint32_t block, Removed&& removed);
  /// As above, with an event for each key.
  int64_t evict(uint32_t block);
  /// All keys of `from` become those of `to`, which has none. Nothing that a lookup could tell
  /// changes but the block, so there is no event.
  void move_keys(uint32_t from, uint32_t to);
  /// As above, but as if the keys were dropped and cached anew: they come after equal ones.
  void reinsert_keys(uint32_t from, uint32_t to);
  /// Drops every key, with one event.
  void clear();

  /// Throws `BlockPoolError` unless the index leads to exactly the blocks' `num_keys` keys.
  void check_index(size_t num_keys) const;

 private:
  uint32_t new_secondary_key(uint32_t block, const CachedKey& key);
  void link_key(uint32_t node, const LookupKey& key);
  void unlink_key(uint32_t node);
  void check_full(const FullBlocks& full) const;
  void check_new_hash(const FullBlocks& full, size_t i, const BlockRecord& record) const;
  void replace_key(const FullBlocks& full, size_t i, uint32_t block);
  void push_event(BlockPoolEvent event);
  BlockPoolEvent stored_event(PoolGroupId group_id, int64_t block_size,
                              std::string_view parent_hash);
  void push_stored_event(const FullBlocks& full);
};

/// Whether block `i` of the list shall not be cached.
inline bool is_skipped(const FullBlocks& full, size_t i) {
  return full.blocks[i] == kNullBlock || (!full.mask.empty() && full.mask[i] == 0);
}

template <typename RecordOf>
void PrefixKeys::cache_full(const FullBlocks& full, RecordOf&& record_of) {
  check_full(full);
  for (size_t i = 0; i < full.blocks.size(); ++i) {
    const BlockRecord& record = records[record_of(full.blocks[i])];
    if (!is_skipped(full, i)) check_new_hash(full, i, record);
  }
  if (full.blocks.empty()) return;
  for (size_t i = 0; i < full.blocks.size(); ++i) {
    if (!is_skipped(full, i)) replace_key(full, i, record_of(full.blocks[i]));
  }
  if (enable_events) push_stored_event(full);
}

template <typename Removed>
int64_t PrefixKeys::remove_keys(uint32_t block, Removed&& removed) {
  BlockRecord& record = records[block];
  if (!record.has_hash()) return 0;
  int64_t count = 1;
  removed(record.key);
  unlink_key(block);
  record.key.hash_size = 0;
  if (record.key.flags & BlockRecord::kHasSecondary) {
    const auto keys = secondary_keys_of.find(block);
    for (const uint32_t node : keys->second) {
      removed(key_at(node));
      unlink_key(node);
      unused_secondary_keys.push_back(node - num_records);
      ++count;
    }
    secondary_keys_of.erase(keys);
    record.key.flags &= static_cast<uint8_t>(~BlockRecord::kHasSecondary);
  }
  return count;
}

template <typename Found>
size_t PrefixKeys::find_prefix(std::span<const std::string_view> hashes, PoolGroupId group_id,
                               Found&& found) const {
  // Lookups wait for memory, so those of one batch wait together.
  constexpr size_t kBatch = 8;
  LookupKey keys[kBatch];
  for (size_t n = 0; n < hashes.size(); n += kBatch) {
    const size_t size = std::min(kBatch, hashes.size() - n);
    for (size_t i = 0; i < size; ++i) {
      keys[i] = lookup_key(hashes[n + i], group_id);
      index.prefetch(keys[i].hash);
    }
    for (size_t i = 0; i < size; ++i) {
      const uint32_t candidate = index.candidate(keys[i].hash);
      if (candidate < num_records) __builtin_prefetch(&records[candidate]);
    }
    for (size_t i = 0; i < size; ++i) {
      const uint32_t block = find_block(keys[i]);
      if (block == 0) return n + i;
      found(n + i, block);
    }
  }
  return hashes.size();
}

}  // namespace kvplan::detail
