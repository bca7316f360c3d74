#pragma once

#include "kvplan/config.h"
#include "kvplan/export.h"
#include "kvplan/groups.h"

namespace kvplan {

/// Splits the model's layers into groups. `layers` is changed in place with
/// `disable_hybrid_kv_cache_manager`.
KVPLAN_API KVCacheGroups get_kv_cache_groups(PlanningContext ctx, const PlanningConfig& config,
                                             LayerSpecs& layers);

/// Throws `InconsistentSpec` unless every layer is in exactly one group.
KVPLAN_API void check_exact_partition(PlanningContext ctx, const KVCacheGroups& groups,
                                      const LayerSpecs& layers);

KVPLAN_API bool groups_partition_layers_exactly(const KVCacheGroups& groups,
                                                const LayerSpecs& layers);

}  // namespace kvplan
