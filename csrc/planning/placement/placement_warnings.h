#pragma once

#include <vector>

#include "kvplan/planning.h"

namespace kvplan {

/// Warns where the placement, which is vLLM's, gives blocks of different groups the same bytes, or
/// a backend another block stride than it asked for.
void warn_of_unsafe_strides(PlanningContext ctx, const PlanningConfig& config,
                            const KVCacheGroups& groups, const std::vector<KVCacheTensor>& tensors);

}  // namespace kvplan
