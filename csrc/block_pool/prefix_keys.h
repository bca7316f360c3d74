#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "block_pool/block_record.h"
#include "block_pool/hash_entries.h"
#include "block_pool/hash_index.h"
#include "kvplan/block_pool.h"

namespace kvplan::detail {

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

/// Throws `InvalidArgument` for a hash of a length that no entry can hold.
void check_hash(std::string_view hash);
HashBytes to_bytes(std::string_view hash);
/// Throws `InvalidArgument` for a parent hash of such a length; empty means none.
void check_parent(std::string_view parent_hash);
/// Throws `InvalidArgument` unless there is room for a block of each group.
void check_room_for_groups(size_t num_groups, size_t room);
/// Throws `InvalidArgument` for what no prefix has.
int32_t checked_tokens(int64_t num_tokens);

/// Tokens of the prefix that block `i` of the list completes.
inline int64_t tokens_up_to(const FullBlocks& full, size_t i) {
  return (full.first_block + static_cast<int64_t>(i) + 1) * full.block_size;
}

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

  HashIndex index;  // of entries
  HashEntries entries;
  std::vector<uint32_t> column_of;  // by group, 1 + the column of its heads; 0 or beyond: none yet
  uint32_t num_columns = 0;
  size_t num_distinct = 0;  // hashes, counted once for each group that has blocks under them
  // Heads and rings name nodes: a block's number for its primary key, num_records + i for
  // secondary key i.
  std::vector<SecondaryKey> secondary_keys;
  std::vector<uint32_t> unused_secondary_keys;
  std::unordered_map<uint32_t, std::vector<uint32_t>> secondary_keys_of;  // by block, oldest first
  std::vector<BlockPoolEvent> events;
  std::vector<int64_t> block_size_of;  // by group, as it was stored last; for events

  /// The id by which callers know the block of a record.
  virtual BlockId block_id(uint16_t group, uint32_t record) const = 0;

  /// Throws `InvalidArgument` for a length that no entry can hold.
  HashBytes lookup_hash(std::string_view hash) const {
    HashBytes bytes = to_bytes(hash);
    const uint64_t h =
        multiply_fold(bytes.words[0] ^ seed.words[0], bytes.words[1] ^ seed.words[1]) ^
        multiply_fold(bytes.words[2] ^ seed.words[2], bytes.words[3] ^ bytes.size ^ seed.words[3]);
    bytes.mixed = static_cast<uint32_t>(h ^ h >> 32);
    return bytes;
  }
  /// Asks for the memory that dropping the block's keys will need.
  void prefetch_entry(uint32_t block) const {
    const CachedKey& key = records[block].key;
    if (key.entry != 0) entries.prefetch(key.entry, column_of[key.group] - 1);
  }
  /// And then, once the entry is there.
  void prefetch_slot(uint32_t block) const {
    const CachedKey& key = records[block].key;
    if (key.entry != 0 && entries.num_heads(key.entry) <= HashEntries::kFew) {
      index.prefetch(entries.hash(key.entry).mixed);
    }
  }
  std::string_view hash_of(const CachedKey& key) const { return entries.view(key.entry); }
  BlockPool::CachedHash to_cached_hash(const CachedKey& key) const {
    return {std::string(hash_of(key)), static_cast<PoolGroupId>(key.group)};
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

  /// 0 if none.
  uint32_t find_entry(const HashBytes& hash) const {
    const size_t slot =
        index.find(hash.mixed, [&](uint32_t entry) { return entries.has_hash(entry, hash); });
    return slot == HashIndex::kNotFound ? 0 : index.node_at(slot);
  }
  /// The block first cached under the entry's hash; 0 if none.
  uint32_t block_of(uint32_t entry, PoolGroupId group_id) const {
    const auto group = static_cast<size_t>(group_id);
    if (entry == 0 || group >= column_of.size() || column_of[group] == 0) return 0;
    const uint32_t node = entries.head(entry, column_of[group] - 1);
    return node == 0 ? 0 : block_at(node);
  }
  uint32_t find_block(std::string_view hash, PoolGroupId group_id) const {
    return block_of(find_entry(lookup_hash(hash)), group_id);
  }
  /// Calls `found(i, block)` with the block of each group, until one has none; false then.
  template <typename Found>
  bool find_in_groups(std::string_view hash, std::span<const PoolGroupId> group_ids,
                      Found&& found) const {
    const uint32_t entry = group_ids.empty() ? 0 : find_entry(lookup_hash(hash));
    for (size_t i = 0; i < group_ids.size(); ++i) {
      const uint32_t block = block_of(entry, group_ids[i]);
      if (block == 0) return false;
      found(i, block);
    }
    return true;
  }
  /// Blocks of the longest cached prefix of `hashes`; `found(i, block)` for each.
  template <typename Found>
  size_t find_prefix(std::span<const std::string_view> hashes, PoolGroupId group_id,
                     Found&& found) const;
  bool block_has_key(uint32_t block, uint32_t entry, PoolGroupId group_id) const;

  /// Mirrors vllm/v1/core/block_pool.py::BlockPool._insert_block_hash (0.33).
  void insert_key(uint32_t block, const HashBytes& hash, PoolGroupId group_id, int32_t num_tokens);
  /// `BlockPool::cache_full_blocks` for several groups, one after another; blocks and group of
  /// `full` are not read. `record_of(group_id, id)` is the number of a block's record; it throws
  /// for an id whose block cannot be cached, and nothing has changed then.
  template <typename RecordOf>
  void cache_full(const FullBlocks& full, const FullBlockColumns& columns, RecordOf&& record_of);
  template <typename RecordOf>
  void cache_full(const FullBlocks& full, RecordOf&& record_of);
  /// `BlockPool::cache_partial_block` of a block that is not the null block.
  bool cache_partial(const PartialBlock& partial, uint32_t block);
  /// Drops all keys of a block, calling `removed(key)` for each before it goes.
  template <typename Removed>
  int64_t remove_keys(uint32_t block, Removed&& removed);
  /// As above, with an event for each key.
  int64_t evict(uint32_t block) {
    BlockRecord& record = records[block];
    if (!record.has_hash()) return 0;
    if (enable_events || (record.key.flags & BlockRecord::kHasSecondary) != 0) {
      return evict_all(block);
    }
    unlink_key(block, record.key);
    record.key.entry = 0;
    return 1;
  }
  /// All keys of `from` become those of `to`, which has none. Nothing that a lookup could tell
  /// changes but the block, so there is no event.
  void move_keys(uint32_t from, uint32_t to);
  /// As above, but as if the keys were dropped and cached anew: they come after equal ones.
  void reinsert_keys(uint32_t from, uint32_t to);
  /// Drops every key, with one event.
  void clear();
  /// Queues a stored event, where events are enabled, for a request's first blocks.
  void push_stored_prefix(std::span<const std::string_view> hashes, int64_t block_size,
                          PoolGroupId group_id);

  /// Throws `BlockPoolError` unless the index leads to exactly the blocks' `num_keys` keys.
  void check_index(size_t num_keys) const;

 private:
  /// The column of a group's heads, which it has from then on.
  uint32_t make_column(PoolGroupId group_id) {
    const auto group = static_cast<size_t>(group_id);
    const bool is_known = group < column_of.size() && column_of[group] != 0;
    return is_known ? column_of[group] - 1 : add_column(group);
  }
  uint32_t add_column(size_t group);
  uint32_t new_secondary_key(uint32_t block);
  int64_t evict_all(uint32_t block);
  uint32_t make_entry(const HashBytes& hash);
  void link_key(uint32_t node, CachedKey& key, uint32_t entry, uint32_t column);
  void unlink_key(uint32_t node, const CachedKey& key);
  void drop_entry(uint32_t entry);
  void check_full(const FullBlocks& full) const;
  static void check_columns(const FullBlockColumns& columns);
  void check_new_hash(const FullBlocks& full, size_t i, uint32_t block) const {
    const BlockRecord& record = records[block];
    if (record.has_hash() && (record.num_tokens == BlockRecord::kUnknownTokens ||
                              record.num_tokens >= tokens_up_to(full, i))) {
      refuse_new_hash(full, i, block);
    }
  }
  [[noreturn]] void refuse_new_hash(const FullBlocks& full, size_t i, uint32_t block) const;
  void push_event(BlockPoolEvent event);
  BlockPoolEvent stored_event(PoolGroupId group_id, int64_t block_size,
                              std::string_view parent_hash);
  void push_stored_event(const FullBlocks& full, const FullBlockColumns& columns, size_t j);

  /// The hashes of a call, each with its entry once there is one.
  struct HashToCache {
    HashBytes hash;
    uint32_t entry = 0;
  };
  std::vector<HashToCache> to_cache_;
};

inline void PrefixKeys::link_key(uint32_t node, CachedKey& key, uint32_t entry, uint32_t column) {
  key.entry = entry;
  const uint32_t oldest = entries.head(entry, column);
  if (oldest == 0) {
    key.next_same = key.prev_same = node;
    entries.add_head(entry, column, node);
    ++num_distinct;
    return;
  }
  const uint32_t newest = key_at(oldest).prev_same;
  key.prev_same = newest;
  key.next_same = oldest;
  key_at(newest).next_same = node;
  key_at(oldest).prev_same = node;
}

inline void PrefixKeys::unlink_key(uint32_t node, const CachedKey& key) {
  const uint32_t column = column_of[key.group] - 1;
  const uint32_t next = key.next_same;
  if (next == node) {
    --num_distinct;
    if (entries.remove_head(key.entry, column)) drop_entry(key.entry);
    return;
  }
  if (entries.head(key.entry, column) == node) entries.replace_head(key.entry, column, next);
  key_at(next).prev_same = key.prev_same;
  key_at(key.prev_same).next_same = next;
}

/// Whether block `i` of the list, which is `block`, shall not be cached.
inline bool is_skipped(const FullBlocks& full, size_t i, BlockId block) {
  return block == kNullBlock || (!full.mask.empty() && full.mask[i] == 0);
}

template <typename RecordOf>
void PrefixKeys::cache_full(const FullBlocks& full, const FullBlockColumns& columns,
                            RecordOf&& record_of) {
  check_full(full);
  check_columns(columns);
  const size_t num_blocks = full.hashes.size();
  to_cache_.resize(num_blocks);
  for (size_t i = 0; i < num_blocks; ++i) {
    bool is_cached = false;  // a hash that nobody needs may be none
    for (size_t j = 0; j < columns.groups.size(); ++j) {
      const uint32_t block = record_of(columns.groups[j], columns.at(i, j));
      if (is_skipped(full, i, columns.at(i, j))) continue;
      check_new_hash(full, i, block);
      is_cached = true;
    }
    to_cache_[i] = {};
    if (!is_cached) continue;
    to_cache_[i].hash = lookup_hash(full.hashes[i]);
    index.prefetch(to_cache_[i].hash.mixed);
  }
  // An entry that a hash had may be another's, once a block has lost its keys.
  bool is_sure = true;
  for (size_t j = 0; j < columns.groups.size(); ++j) {
    const uint32_t column = make_column(columns.groups[j]);
    for (size_t i = 0; i < num_blocks; ++i) {
      if (is_skipped(full, i, columns.at(i, j))) continue;
      const uint32_t block = record_of(columns.groups[j], columns.at(i, j));
      BlockRecord& record = records[block];
      if (evict(block) != 0) is_sure = false;
      auto& [hash, entry] = to_cache_[i];
      if (entry == 0 || (!is_sure && !entries.has_hash(entry, hash))) entry = make_entry(hash);
      record.num_tokens = static_cast<int32_t>(tokens_up_to(full, i));
      record.key.group = static_cast<uint16_t>(columns.groups[j]);
      link_key(block, record.key, entry, column);
    }
    if (enable_events && num_blocks != 0) push_stored_event(full, columns, j);
  }
}

template <typename RecordOf>
void PrefixKeys::cache_full(const FullBlocks& full, RecordOf&& record_of) {
  if (full.hashes.size() != full.blocks.size()) {
    throw InvalidArgument("cache_full_blocks: " + std::to_string(full.blocks.size()) +
                          " blocks but " + std::to_string(full.hashes.size()) + " hashes");
  }
  constexpr uint32_t kColumn = 0;
  cache_full(full,
             {.blocks = full.blocks.data(),
              .groups = std::span(&full.group_id, 1),
              .columns = std::span(&kColumn, 1)},
             record_of);
}

template <typename Removed>
int64_t PrefixKeys::remove_keys(uint32_t block, Removed&& removed) {
  BlockRecord& record = records[block];
  if (!record.has_hash()) return 0;
  int64_t count = 1;
  removed(record.key);
  unlink_key(block, record.key);
  record.key.entry = 0;
  if (record.key.flags & BlockRecord::kHasSecondary) {
    const auto keys = secondary_keys_of.find(block);
    for (const uint32_t node : keys->second) {
      removed(key_at(node));
      unlink_key(node, key_at(node));
      unused_secondary_keys.push_back(node - num_records);
      ++count;
    }
    secondary_keys_of.erase(keys);
    record.clear_flag(BlockRecord::kHasSecondary);
  }
  return count;
}

template <typename Found>
size_t PrefixKeys::find_prefix(std::span<const std::string_view> hashes, PoolGroupId group_id,
                               Found&& found) const {
  // Lookups wait for memory, so those of one batch wait together.
  constexpr size_t kBatch = 8;
  HashBytes lookups[kBatch];
  for (size_t n = 0; n < hashes.size(); n += kBatch) {
    const size_t size = std::min(kBatch, hashes.size() - n);
    for (size_t i = 0; i < size; ++i) {
      lookups[i] = lookup_hash(hashes[n + i]);
      index.prefetch(lookups[i].mixed);
    }
    for (size_t i = 0; i < size; ++i) {
      if (const uint32_t candidate = index.candidate(lookups[i].mixed)) {
        entries.prefetch(candidate, 0);
      }
    }
    for (size_t i = 0; i < size; ++i) {
      const uint32_t block = block_of(find_entry(lookups[i]), group_id);
      if (block == 0) return n + i;
      found(n + i, block);
    }
  }
  return hashes.size();
}

}  // namespace kvplan::detail
