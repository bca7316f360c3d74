#pragma once

#include <vector>

#include "planning/regroup/search.h"

namespace kvplan::compact {

/// The groups that a point of the search stands for.
KVCacheGroups materialize(PlanningContext ctx, const PlanningConfig& config,
                          const std::vector<Bucket>& buckets, const PackedPoint& point);

/// Layers of the largest group on one stage.
int64_t max_layers_per_group(const std::vector<Bucket>& buckets, const PackedPoint& point);

}  // namespace kvplan::compact
