#pragma once

#include "kvplan/export.h"
#include "kvplan/groups.h"

namespace kvplan {

KVPLAN_API KVCacheGroups get_kv_cache_groups_uniform_page_size(PlanningContext ctx,
                                                               const LayerSpecs& layers);

}  // namespace kvplan
