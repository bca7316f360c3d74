#include <algorithm>
#include <string>
#include <unordered_set>
#include <vector>

#include "kvplan/block_pool.h"

namespace kvplan {

std::vector<SavedHash> save_prefix_cache(const BlockPool& pool) {
  std::vector<BlockId> blocks = pool.free_block_ids();
  for (BlockId block = 1; block < pool.num_blocks(); ++block) {
    if (pool.ref_count(block) > 0) blocks.push_back(block);
  }
  std::vector<SavedHash> saved;
  for (const BlockId block : blocks) {
    if (!pool.has_hash(block)) continue;
    saved.push_back({.block = block,
                     .group_id = *pool.block_hash_group(block),
                     .num_tokens = pool.block_hash_num_tokens(block),
                     .hash = std::string(pool.block_hash(block))});
    for (BlockPool::CachedHash& other : pool.secondary_hashes(block)) {
      saved.push_back({.block = block, .group_id = other.group_id, .hash = std::move(other.hash)});
    }
  }
  return saved;
}

void restore_prefix_cache(BlockPool& pool, std::span<const SavedHash> saved) {
  if (!pool.enable_caching()) throw BlockPoolError("restore_prefix_cache: the pool does not cache");
  if (pool.num_free_blocks() != pool.num_blocks() - 1 || pool.num_cached_hashes() != 0) {
    throw BlockPoolError("restore_prefix_cache: the pool has blocks in use or cached");
  }
  std::vector<BlockId> order;
  for (const SavedHash& entry : saved) {
    if (entry.block <= kNullBlock || entry.block >= pool.num_blocks()) {
      throw BlockPoolError("restore_prefix_cache: block " + std::to_string(entry.block) +
                           " is not in the pool of " + std::to_string(pool.num_blocks()));
    }
    if (entry.hash.empty() || entry.hash.size() > kMaxBlockHashBytes) {
      throw InvalidArgument("restore_prefix_cache: a hash has 1 to " +
                            std::to_string(kMaxBlockHashBytes) + " bytes, not " +
                            std::to_string(entry.hash.size()));
    }
    if (const int64_t n = entry.num_tokens.value_or(1); n < 1 || n > INT32_MAX) {
      throw InvalidArgument("restore_prefix_cache: a prefix of " +
                            std::to_string(*entry.num_tokens) + " tokens");
    }
    if (order.empty() || order.back() != entry.block) order.push_back(entry.block);
  }
  if (std::unordered_set(order.begin(), order.end()).size() != order.size()) {
    throw BlockPoolError("restore_prefix_cache: the hashes of a block are not side by side");
  }
  for (const BlockId block : order) pool.detach_free(block);
  pool.attach_free_back(order);
  for (const SavedHash& entry : saved) {
    pool.insert_hash(entry.block, entry.hash, entry.group_id, entry.num_tokens);
  }
}

}  // namespace kvplan
