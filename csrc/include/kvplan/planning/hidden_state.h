#pragma once

#include <cstdint>

#include "kvplan/export.h"
#include "kvplan/groups.h"

namespace kvplan {

/// Scales the groups' blocks until the common page holds one token of every hidden-state layer.
/// Returns the common page.
KVPLAN_API int64_t ensure_min_page_size(PlanningContext ctx, KVCacheGroups& groups,
                                        int64_t common_page, const LayerSpecs& hidden_layers);

}  // namespace kvplan
