#include <unordered_map>

#include "block_pool/invariant.h"
#include "cache_manager/manager_state.h"
#include "kvplan/cache_manager.h"

namespace kvplan {

using detail::require;

void CacheManager::check_invariants() const {
  const detail::ManagerState& s = *state_;
  std::unordered_map<BlockId, int32_t> holders;
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
      for (const BlockId block : table.ids) {
        require(block >= 0 && block < pool().num_blocks(), "a block table leaves the pool",
                static_cast<uint32_t>(block));
        if (block != kNullBlock) ++holders[block];
      }
    }
    require(request.in_use || request.held.empty(), "a removed request holds a prefix", id);
    for (const BlockId block : request.held) ++holders[block];
    for (size_t g = 0; g < request.groups.size(); ++g) {
      const int64_t length = request.tables[s.layout.groups[g].table].length;
      require(request.groups[g].num_cached <= length, "blocks are cached that are not held", id);
      require(request.groups[g].shared_tail < length, "a shared tail lies behind the table", id);
    }
  }
  require(num_used == num_requests(), "requests in use and unused handles disagree", 0);
  for (const auto& copies : s.copies) {
    for (const BlockCopy& copy : copies) {
      ++holders[copy.source];
      ++holders[copy.destination];
    }
  }
  // Others may hold blocks besides: a pool can be shared, and the caller can hold blocks himself.
  for (const auto& [block, count] : holders) {
    require(pool().ref_count(block) >= count, "a block has fewer holders than requests",
            static_cast<uint32_t>(block));
  }
}

}  // namespace kvplan
