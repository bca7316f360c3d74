#include <unordered_map>

#include "block_pool/invariant.h"
#include "cache_manager/manager_state.h"
#include "kvplan/cache_manager.h"

namespace kvplan {

using detail::require;

void CacheManager::check_invariants() const {
  const detail::ManagerState& s = *state_;
  // By group, where that says which block an id means.
  std::vector<std::unordered_map<BlockId, int32_t>> holders(s.pool.is_sliced() ? num_groups() : 1);
  const auto hold = [&](size_t group, BlockId block) {
    if (block != kNullBlock) ++holders[s.pool.is_sliced() ? group : 0][block];
  };
  size_t num_used = 0;
  for (size_t i = 0; i < s.requests.size(); ++i) {
    const detail::Request& request = s.requests[i];
    const auto id = static_cast<uint32_t>(i);
    num_used += request.in_use;
    for (size_t t = 0; t < request.tables.size(); ++t) {
      const detail::BlockTables& table = request.tables[t];
      require(request.in_use || table.length == 0, "a removed request holds blocks", id);
      require(
          table.ids.size() == static_cast<size_t>(table.length) * s.layout.tables[t].num_columns,
          "a block table has another size than its blocks", id);
    }
    require(request.in_use || request.held.empty(), "a removed request holds a prefix", id);
    for (size_t g = 0; g < request.held.size(); ++g) {
      for (const BlockId block : request.held[g]) hold(g, block);
    }
    for (size_t g = 0; g < request.groups.size(); ++g) {
      const detail::GroupPolicy& group = s.layout.groups[g];
      const detail::BlockTables& table = request.tables[group.table];
      const int64_t length = table.length;
      const size_t stride = s.layout.tables[group.table].num_columns;
      for (size_t at = group.column; at < table.ids.size(); at += stride) {
        const BlockId block = table.ids[at];
        require(block >= 0 && block < s.pool.num_ids(static_cast<PoolGroupId>(g)),
                "a block table leaves the pool", static_cast<uint32_t>(block));
        hold(g, block);
      }
      require(request.groups[g].num_cached <= length, "blocks are cached that are not held", id);
      require(request.groups[g].shared_tail < length, "a shared tail lies behind the table", id);
    }
  }
  require(num_used == num_requests(), "requests in use and unused handles disagree", 0);
  for (const auto& copies : s.copies) {
    for (const BlockCopy& copy : copies) {
      hold(static_cast<size_t>(copy.group), copy.source);
      hold(static_cast<size_t>(copy.group), copy.destination);
    }
  }
  for (const detail::Retained& retained : s.retained) {
    for (size_t g = 0; g < retained.blocks.size(); ++g) {
      for (const BlockId block : retained.blocks[g]) hold(g, block);
    }
  }
  // Others may hold blocks besides: a pool can be shared, and the caller can hold blocks himself.
  for (size_t g = 0; g < holders.size(); ++g) {
    for (const auto& [block, count] : holders[g]) {
      require(s.pool.ref_count(static_cast<PoolGroupId>(g), block) >= count,
              "a block has fewer holders than requests", static_cast<uint32_t>(block));
    }
  }
}

}  // namespace kvplan
