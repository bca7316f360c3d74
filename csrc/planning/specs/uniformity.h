#pragma once

#include <vector>

#include "kvplan/planning.h"

namespace kvplan {

/// The first layer's spec of each equality class, in order of appearance.
std::vector<SpecId> distinct_specs(PlanningContext ctx, const LayerSpecs& layers);

/// Whether the kinds allow `merge`; where not, it throws `MergeError` and looks at nothing else.
bool kinds_merge(const KVCacheSpec& first, const KVCacheSpec& other);
/// Equal for any two specs that merge. Others may have the same.
size_t merge_key(const KVCacheSpec& spec);

KVCacheSpec merge_specs(PlanningContext ctx, const std::vector<SpecId>& ids);

/// Whether a uniform-type group that begins with `first` may take `other`.
bool may_share_group(PlanningContext ctx, SpecId first, SpecId other);

}  // namespace kvplan
