#pragma once

#include <atomic>
#include <bit>
#include <functional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "block_pool/block_record.h"
#include "block_pool/free_list.h"
#include "block_pool/hash_index.h"
#include "block_pool/zeroed_array.h"
#include "kvplan/block_pool.h"

#ifndef KVPLAN_CHECKS
#define KVPLAN_CHECKS 0
#endif

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

struct ReuseWatcher {
  uint64_t order = 0;  // of its first registration, as in an insertion-ordered dict
  BlockPool::ReuseCallback callback;
};

inline uint64_t multiply_fold(uint64_t a, uint64_t b) {
  __extension__ using Product = unsigned __int128;
  const Product product = static_cast<Product>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

/// Mixes all bytes: keys need not be cryptographic hashes.
inline uint32_t hash_key(const CachedKey& key) {
  uint64_t w[4];
  std::memcpy(w, key.hash.data(), sizeof(w));
  const uint64_t tail = static_cast<uint64_t>(key.group) << 8 | key.hash_size;
  const uint64_t h = multiply_fold(w[0] ^ 0x9e3779b97f4a7c15u, w[1] ^ 0xbf58476d1ce4e5b9u) ^
                     multiply_fold(w[2] ^ 0x94d049bb133111ebu, w[3] ^ tail ^ 0xd6e8feb86659fd93u);
  return static_cast<uint32_t>(h ^ h >> 32);
}

/// Throws `InvalidArgument` for a hash of a length that no block record can hold.
void check_hash(std::string_view hash);
LookupKey lookup_key(std::string_view hash, PoolGroupId group_id);

struct BlockPoolState {
  BlockPoolState(uint32_t num_blocks_, BlockPoolOptions options_)
      : num_blocks(num_blocks_),
        options(options_),
        record_memory(num_blocks_),
        records(record_memory.data()),
        free_list(records, num_blocks_),
        num_free(num_blocks_ - 1),
        index(options_.enable_caching ? num_blocks_ : 0) {}

  const uint32_t num_blocks;
  const BlockPoolOptions options;
  ZeroedArray<BlockRecord> record_memory;
  BlockRecord* records;
  FreeList free_list;
  size_t num_free;

  // Nodes of the index: a block's number for its primary key, num_blocks + i for secondary key i.
  HashIndex index;
  std::vector<SecondaryKey> secondary_keys;
  std::vector<uint32_t> unused_secondary_keys;
  std::unordered_map<uint32_t, std::vector<uint32_t>> secondary_keys_of;  // by block, oldest first

  std::unordered_map<uint32_t, ReuseWatcher> watchers;
  uint64_t num_watches = 0;
  std::vector<BlockPoolEvent> events;

  CachedKey& key_at(uint32_t node) {
    return node < num_blocks ? records[node].key : secondary_keys[node - num_blocks].key;
  }
  const CachedKey& key_at(uint32_t node) const {
    return const_cast<BlockPoolState*>(this)->key_at(node);
  }
  uint32_t block_at(uint32_t node) const {
    return node < num_blocks ? node : secondary_keys[node - num_blocks].block;
  }

  bool is_valid(BlockId id) const { return static_cast<uint32_t>(id) < num_blocks; }
  /// Throws `BlockPoolError` for an id that is not in the pool.
  uint32_t checked_id(BlockId id, const char* operation) const;
  void check_ids(std::span<const BlockId> ids, const char* operation) const;

  /// Slot of the index that leads to blocks with this key, or `HashIndex::kNotFound`.
  size_t find_slot(const LookupKey& key) const {
    return index.find(key.hash, [&](uint32_t node) { return key_at(node).same_as(key.key); });
  }
  /// The block first cached under the key; 0 if none.
  uint32_t find_block(const LookupKey& key) const {
    const size_t slot = find_slot(key);
    return slot == HashIndex::kNotFound ? 0 : block_at(index.node_at(slot));
  }
  bool block_has_key(uint32_t block, const CachedKey& key) const;

  /// Mirrors vllm/v1/core/block_pool.py::BlockPool._insert_block_hash (0.33).
  void insert_key(uint32_t block, const LookupKey& key, int32_t num_tokens);
  /// Drops all keys of a block, calling `removed(key)` for each before it goes.
  template <typename Removed>
  int64_t remove_keys(uint32_t block, Removed&& removed);
  /// As above, with an event for each key.
  int64_t evict(uint32_t block);

  void notify_reuse(uint32_t block);

 private:
  uint32_t new_secondary_key(uint32_t block, const CachedKey& key);
  void link_key(uint32_t node, const LookupKey& key);
  void unlink_key(uint32_t node);

#if KVPLAN_CHECKS
 public:
  std::atomic<std::thread::id> writer{};
  int writer_depth = 0;
  uint64_t num_operations = 0;
#endif
};

template <typename Removed>
int64_t BlockPoolState::remove_keys(uint32_t block, Removed&& removed) {
  BlockRecord& record = records[block];
  if (!record.has_hash()) return 0;
  int64_t count = 1;
  removed(record.key);
  unlink_key(block);
  record.key.hash_size = 0;
  record.retired_tokens = 0;
  if (record.key.flags & BlockRecord::kHasSecondary) {
    const auto keys = secondary_keys_of.find(block);
    for (const uint32_t node : keys->second) {
      removed(key_at(node));
      unlink_key(node);
      unused_secondary_keys.push_back(node - num_blocks);
      ++count;
    }
    secondary_keys_of.erase(keys);
    record.key.flags &= static_cast<uint8_t>(~BlockRecord::kHasSecondary);
  }
  return count;
}

#if KVPLAN_CHECKS
/// Marks the calling thread as the writer for its lifetime; a second thread is refused. Callbacks
/// may call the pool again.
class OperationCheck {
 public:
  explicit OperationCheck(BlockPoolState& state) : state_(state) {
    const std::thread::id me = std::this_thread::get_id();
    std::thread::id expected{};
    if (!state_.writer.compare_exchange_strong(expected, me) && expected != me) {
      throw BlockPoolError("two threads are inside one block pool; calls must not overlap");
    }
    ++state_.writer_depth;
  }
  ~OperationCheck() {
    if (--state_.writer_depth == 0) state_.writer.store(std::thread::id{});
  }
  OperationCheck(const OperationCheck&) = delete;
  OperationCheck& operator=(const OperationCheck&) = delete;
  /// Verifies all invariants, of a large pool only now and then.
  void done(const BlockPool& pool) const {
    constexpr uint32_t kAlwaysUpTo = 4096;
    constexpr uint64_t kEvery = 1024;
    if (state_.writer_depth > 1) return;
    if (state_.num_blocks > kAlwaysUpTo && state_.num_operations++ % kEvery != 0) return;
    pool.check_invariants();
  }

 private:
  BlockPoolState& state_;
};
#else
class OperationCheck {
 public:
  explicit OperationCheck(BlockPoolState&) {}
  void done(const BlockPool&) const {}
};
#endif

}  // namespace kvplan::detail
