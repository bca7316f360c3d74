#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvplan/config.h"
#include "kvplan/export.h"
#include "kvplan/groups.h"
#include "kvplan/page_demand.h"

namespace kvplan {

/// Page demand of several groups together, evaluated at any length.
class KVPLAN_API RequestDemand {
 public:
  RequestDemand(PlanningContext ctx, const KVCacheGroups& groups, const PlanningConfig& config);
  /// Blocks of the pool that one request of `model_len` tokens holds in all device groups together;
  /// of a group with slices, whole blocks.
  int64_t total_blocks(int64_t model_len) const;

 private:
  struct Entry {
    std::vector<PageDemand> demands;  // of the members; the largest counts
    int64_t slices;
    int64_t count;  // groups with the same demands and slices
  };
  std::vector<Entry> entries_;
};

/// The members' demands of one group, without duplicates.
KVPLAN_API std::vector<PageDemand> group_demands(PlanningContext ctx, const KVCacheGroup& group,
                                                 const PlanningConfig& config);

/// Pages of one request in a group: the largest of its demands.
KVPLAN_API int64_t pages(std::span<const PageDemand> demands, int64_t model_len);

KVPLAN_API int64_t max_memory_usage_bytes_from_groups(PlanningContext ctx,
                                                      const KVCacheGroups& groups,
                                                      const PlanningConfig& config,
                                                      int64_t bytes_per_block);

/// The longest length up to `max_model_len` whose pages fit into `available_bytes`; 0 if none does.
KVPLAN_API int64_t estimate_max_model_len(const RequestDemand& demand, int64_t bytes_per_block,
                                          int64_t available_bytes, int64_t max_model_len);

}  // namespace kvplan
