#pragma once

#include <optional>

#include "kvplan/export.h"
#include "kvplan/groups.h"

namespace kvplan {

/// Windowed layers as full attention layers, for allocation only. Throws `InvalidArgument` where
/// that does not make the layers one type.
KVPLAN_API LayerSpecs promote_local_kv_cache_specs(PlanningContext ctx, const LayerSpecs& layers);

/// Changes `layers` in place.
KVPLAN_API void unify_hybrid_kv_cache_specs(PlanningContext ctx, LayerSpecs& layers);

KVPLAN_API std::optional<KVCacheGroups> try_get_full_allocation_fallback_groups(
    PlanningContext ctx, const LayerSpecs& layers);

}  // namespace kvplan
