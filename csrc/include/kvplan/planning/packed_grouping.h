#pragma once

#include <optional>

#include "kvplan/export.h"
#include "kvplan/groups.h"
#include "kvplan/layout.h"

namespace kvplan {

/// No value where the layout is not block-outermost or one page size serves all layers.
KVPLAN_API std::optional<KVCacheGroups> get_packed_kv_cache_groups(PlanningContext ctx,
                                                                   KVCacheLayout layout,
                                                                   const LayerSpecs& layers);

}  // namespace kvplan
