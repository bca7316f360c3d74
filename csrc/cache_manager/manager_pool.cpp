#include "cache_manager/manager_pool.h"

#include <algorithm>
#include <string>
#include <utility>

#include "kvplan/errors.h"

namespace kvplan::detail {

ManagerPool::ManagerPool(const CacheManagerOptions& options, std::shared_ptr<BlockPool> plain,
                         std::shared_ptr<SlicedBlockPool> sliced)
    : plain_(std::move(plain)), sliced_(std::move(sliced)) {
  std::vector<int64_t> slices;
  slices.reserve(options.groups.size());
  for (const CacheGroup& group : options.groups) slices.push_back(group.slices);
  const bool cuts = std::any_of(slices.begin(), slices.end(), [](int64_t k) { return k != 1; });
  if (!plain_ && !sliced_ && cuts) {
    sliced_ = std::make_shared<SlicedBlockPool>(
        options.num_blocks, slices,
        SlicedBlockPoolOptions{.enable_caching = options.enable_caching,
                               .enable_events = options.enable_events});
  } else if (!plain_ && !sliced_) {
    plain_ = std::make_shared<BlockPool>(options.num_blocks,
                                         BlockPoolOptions{.enable_caching = options.enable_caching,
                                                          .enable_events = options.enable_events});
  }
  const bool caches = plain_ ? plain_->enable_caching() : sliced_->enable_caching();
  if (num_blocks() != options.num_blocks || caches != options.enable_caching) {
    throw InvalidArgument("the pool has " + std::to_string(num_blocks()) + " blocks" +
                          (caches ? " and caches" : " and does not cache") +
                          ", unlike the options, which say " + std::to_string(options.num_blocks));
  }
  if (plain_ && cuts) {
    throw InvalidArgument("the groups cut blocks into slices, and the pool is no SlicedBlockPool");
  }
  for (size_t g = 0; sliced_ && g < slices.size(); ++g) {
    const auto id = static_cast<PoolGroupId>(g);
    if (sliced_->num_groups() == std::ssize(slices) && sliced_->slices(id) == slices[g]) continue;
    throw InvalidArgument("group " + std::to_string(g) + " cuts a block into " +
                          std::to_string(slices[g]) + " slices, unlike the pool's groups");
  }
}

const std::shared_ptr<BlockPool>& ManagerPool::share_plain() const {
  if (plain_) return plain_;
  throw Unsupported(
      "the groups cut blocks into slices: their pool is sliced_pool(), where an id means another "
      "block in each group");
}

const std::shared_ptr<SlicedBlockPool>& ManagerPool::share_sliced() const {
  if (sliced_) return sliced_;
  throw Unsupported("no group cuts blocks into slices: the pool is pool()");
}

int64_t ManagerPool::num_needed(std::span<const SliceDemand> demands) const {
  if (sliced_) return sliced_->num_large_blocks_needed(demands);
  int64_t needed = 0;
  for (const SliceDemand& demand : demands) {
    needed += demand.num_new +
              std::count_if(demand.found.begin(), demand.found.end(), [&](BlockId block) {
                return block != kNullBlock && plain_->ref_count(block) == 0;
              });
  }
  return needed;
}

void ManagerPool::allocate(std::span<const SliceDemand> demands, std::span<BlockId> out,
                           bool frugal) const {
  if (sliced_) return sliced_->allocate(demands, out, frugal);
  // Everything that is found is held before anything is taken, which could evict it.
  for (const SliceDemand& demand : demands) {
    if (!demand.found.empty()) plain_->touch(demand.found);
  }
  if (out.empty()) return;
  try {
    plain_->get_new_blocks(out);
  } catch (...) {  // an eviction hook's
    for (const SliceDemand& demand : demands) plain_->free_blocks(demand.found);
    throw;
  }
}

void ManagerPool::hold(PoolGroupId group, BlockId block) const {
  if (sliced_) return sliced_->touch(group, std::span(&block, 1));
  plain_->set_ref_count(block, plain_->ref_count(block) + 1);
}

void ManagerPool::free_batches(const FreedBlocks& freed) const {
  if (freed.ids.empty()) return;
  if (plain_) return plain_->free_batches(freed.ids, freed.ends);
  std::vector<GroupBlocks> batches;
  size_t begin = 0;
  for (size_t i = 0; i < freed.ends.size(); ++i) {
    const std::span<const BlockId> ids(freed.ids);
    batches.push_back({freed.groups[i], ids.subspan(begin, freed.ends[i] - begin)});
    begin = freed.ends[i];
  }
  sliced_->free_blocks(batches);
}

}  // namespace kvplan::detail
