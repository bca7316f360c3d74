#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kvplan/block_pool.h"
#include "kvplan/cache_manager.h"
#include "kvplan/sliced_block_pool.h"

namespace kvplan::detail {

/// Blocks that leave a request, in batches of one group each that the pool takes in their order.
struct FreedBlocks {
  std::vector<BlockId> ids;
  std::vector<size_t> ends;
  std::vector<PoolGroupId> groups;

  void clear() {
    ids.clear();
    ends.clear();
    groups.clear();
  }
  void end_batch(PoolGroupId group) {
    if (ids.size() == (ends.empty() ? 0 : ends.back())) return;
    ends.push_back(ids.size());
    groups.push_back(group);
  }
};

/// What the manager asks of its pool, which is a plain or a sliced one. Only with slices does the
/// group say which block an id means, and are the blocks that are counted large ones.
class ManagerPool {
 public:
  /// Makes the pool that the options ask for, unless one is given.
  ManagerPool(const CacheManagerOptions& options, std::shared_ptr<BlockPool> plain,
              std::shared_ptr<SlicedBlockPool> sliced);

  bool is_sliced() const { return sliced_ != nullptr; }
  /// Throw `Unsupported` where it is the other.
  const std::shared_ptr<BlockPool>& share_plain() const;
  const std::shared_ptr<SlicedBlockPool>& share_sliced() const;
  BlockPool& plain() const { return *share_plain(); }
  SlicedBlockPool& sliced() const { return *share_sliced(); }

  int64_t num_blocks() const { return plain_ ? plain_->num_blocks() : sliced_->num_large_blocks(); }
  int64_t num_free_blocks() const {
    return plain_ ? plain_->num_free_blocks() : sliced_->num_free_large_blocks();
  }
  /// Block ids of a group.
  int64_t num_ids(PoolGroupId group) const {
    return plain_ ? plain_->num_blocks() : sliced_->num_blocks(group);
  }
  double usage() const { return plain_ ? plain_->usage() : sliced_->usage(); }
  bool enable_events() const { return plain_ ? plain_->enable_events() : sliced_->enable_events(); }
  int64_t num_cached_hashes() const {
    return plain_ ? plain_->num_cached_hashes() : sliced_->num_cached_hashes();
  }

  // Blocks.

  /// Blocks that the demands take off the free ones.
  int64_t num_needed(std::span<const SliceDemand> demands) const;
  /// Holds what was found and takes the new blocks, demand by demand, all or none. A plain pool
  /// asks no demand for its number. `frugal`: as for the sliced pool.
  void allocate(std::span<const SliceDemand> demands, std::span<BlockId> out, bool frugal) const;
  void touch(PoolGroupId group, std::span<const BlockId> blocks) const {
    plain_ ? plain_->touch(blocks) : sliced_->touch(group, blocks);
  }
  /// One more holder for a block in use, of whom residency metrics know nothing.
  void hold(PoolGroupId group, BlockId block) const;
  void free_blocks(PoolGroupId group, std::span<const BlockId> blocks) const {
    plain_ ? plain_->free_blocks(blocks) : sliced_->free_blocks(group, blocks);
  }
  void free_batches(const FreedBlocks& freed) const;
  void prefetch(std::span<const BlockId> blocks) const {
    if (plain_) plain_->prefetch(blocks);
  }
  int32_t ref_count(PoolGroupId group, BlockId block) const {
    return plain_ ? plain_->ref_count(block) : sliced_->ref_count(group, block);
  }

  // Prefix cache.

  bool find_in_groups(std::string_view hash, std::span<const PoolGroupId> groups,
                      std::span<BlockId> out) const {
    return plain_ ? plain_->find_in_groups(hash, groups, out)
                  : sliced_->find_in_groups(hash, groups, out);
  }
  void cache_full_blocks(const FullBlocks& full, const FullBlockColumns& columns) const {
    plain_ ? plain_->cache_full_blocks(full, columns) : sliced_->cache_full_blocks(full, columns);
  }
  bool cache_partial_block(const PartialBlock& partial) const {
    return plain_ ? plain_->cache_partial_block(partial) : sliced_->cache_partial_block(partial);
  }
  void move_block_hashes(PoolGroupId group, BlockId src, BlockId dst) const {
    plain_ ? plain_->move_block_hashes(src, dst) : sliced_->move_block_hashes(group, src, dst);
  }
  void evict_blocks(PoolGroupId group, std::span<const BlockId> blocks) const {
    plain_ ? plain_->evict_blocks(blocks) : sliced_->evict_blocks(group, blocks);
  }
  bool reset_prefix_cache() const {
    return plain_ ? plain_->reset_prefix_cache() : sliced_->reset_prefix_cache();
  }
  std::string_view block_hash(PoolGroupId group, BlockId block) const {
    return plain_ ? plain_->block_hash(block) : sliced_->block_hash(group, block);
  }
  std::optional<int64_t> block_hash_num_tokens(PoolGroupId group, BlockId block) const {
    return plain_ ? plain_->block_hash_num_tokens(block)
                  : sliced_->block_hash_num_tokens(group, block);
  }
  void emit_stored_event(std::span<const std::string_view> hashes, int64_t block_size,
                         PoolGroupId group) const {
    plain_ ? plain_->emit_stored_event(hashes, block_size, group)
           : sliced_->emit_stored_event(hashes, block_size, group);
  }
  std::vector<BlockPoolEvent> take_events() const {
    return plain_ ? plain_->take_events() : sliced_->take_events();
  }

 private:
  std::shared_ptr<BlockPool> plain_;
  std::shared_ptr<SlicedBlockPool> sliced_;  // of the two, one
};

}  // namespace kvplan::detail
