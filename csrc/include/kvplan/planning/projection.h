#pragma once

#include "kvplan/export.h"
#include "kvplan/groups.h"

namespace kvplan {

/// The groups with only the layers that a worker owns; groups it owns whole are shared.
KVPLAN_API KVCacheGroups project_kv_cache_groups_to_worker(PlanningContext ctx,
                                                           const KVCacheGroups& groups,
                                                           const LayerSpecs& worker_layers);

}  // namespace kvplan
