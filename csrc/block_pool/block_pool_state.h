#pragma once

#include "block_pool/block_record.h"
#include "block_pool/free_ring.h"
#include "block_pool/operation_check.h"
#include "block_pool/prefix_keys.h"
#include "block_pool/reuse_watchers.h"
#include "block_pool/zeroed_array.h"
#include "kvplan/block_pool.h"

namespace kvplan::detail {

/// The records come before the keys that lie in them.
struct BlockMemory {
  explicit BlockMemory(size_t num_blocks) : record_memory(num_blocks) {}
  ZeroedArray<BlockRecord> record_memory;
};

struct BlockPoolState final : BlockMemory, PrefixKeys, OperationState {
  BlockPoolState(uint32_t num_blocks_, BlockPoolOptions options_)
      : BlockMemory(num_blocks_),
        PrefixKeys(record_memory.data(), num_blocks_, options_),
        OperationState(num_blocks_),
        num_blocks(num_blocks_),
        options(options_),
        free_ring(records, num_blocks_),
        num_free(num_blocks_ - 1) {}

  const uint32_t num_blocks;
  const BlockPoolOptions options;
  FreeRing free_ring;
  size_t num_free;

  ReuseWatchers<BlockPool::ReuseCallback> watchers;
  std::vector<BlockUse> uses;
  BlockPool::EvictionHook on_eviction;

  BlockId block_id(uint16_t, uint32_t record) const override {
    return static_cast<BlockId>(record);
  }
  bool is_valid(BlockId id) const { return static_cast<uint32_t>(id) < num_blocks; }
  /// Throws `BlockPoolError` for an id that is not in the pool.
  uint32_t checked_id(BlockId id, const char* operation) const {
    if (!is_valid(id)) [[unlikely]]
      refuse_id(id, operation);
    return static_cast<uint32_t>(id);
  }
  [[noreturn]] void refuse_id(BlockId id, const char* operation) const;
  void check_ids(std::span<const BlockId> ids, const char* operation) const;

  /// Makes room, so that noting uses cannot fail.
  void expect_uses(size_t count) {
    if (options.log_uses) uses.reserve(uses.size() + count);
  }
  void note_uses(BlockUse::Kind kind, std::span<const BlockId> blocks) {
    if (!options.log_uses) return;
    for (const BlockId block : blocks) {
      if (block != kNullBlock || kind == BlockUse::Kind::kEvicted) uses.push_back({kind, block});
    }
  }

  /// Takes the first block out of the free list, and asks for the memory of those that are next.
  uint32_t pop_free() {
    const uint64_t begin = free_ring.begin();
    __builtin_prefetch(&records[free_ring.at(begin + 40)], 1);
    prefetch_entry(free_ring.at(begin + 24));
    prefetch_slot(free_ring.at(begin + 10));
    return free_ring.pop_front();
  }

  /// Indices of the blocks that the operation in progress has released.
  std::vector<size_t> released;

  /// Tells `on_eviction` which of the next so many free blocks are cached.
  void announce_evictions(size_t count);
  /// Calls all callbacks of the block, then passes on what the first failing one threw.
  void notify_reuse(uint32_t block);
};

}  // namespace kvplan::detail
