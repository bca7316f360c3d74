#pragma once

#include <cstdint>

#include "kvplan/export.h"
#include "kvplan/groups.h"

namespace kvplan {

/// Consecutive TP ranks that hold identical KV for every layer.
KVPLAN_API int64_t kv_cache_groups_tp_replicas(PlanningContext ctx, const KVCacheGroups& groups,
                                               int64_t tp_size, int64_t dcp_size = 1);

}  // namespace kvplan
