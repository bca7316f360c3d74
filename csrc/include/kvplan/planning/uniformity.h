#pragma once

#include "kvplan/export.h"
#include "kvplan/groups.h"

namespace kvplan {

/// Whether all layers merge into one spec. A `InvalidArgument` of the merge (window sizes that
/// differ) goes through, as in vLLM.
KVPLAN_API bool is_kv_cache_spec_uniform(PlanningContext ctx, const LayerSpecs& layers);

/// Whether all layers need the same number of token slots: same block size, same DCP sharding, same
/// type. `layers` must not be empty.
KVPLAN_API bool is_uniform_type(PlanningContext ctx, const LayerSpecs& layers);

/// One group whose spec is the merge of all its layers' specs.
KVPLAN_API KVCacheGroup create_kv_cache_group(PlanningContext ctx, const LayerSpecs& layers);

/// One group with a spec for each layer.
KVPLAN_API KVCacheGroup create_uniform_type_group(LayerSpecs layers);

}  // namespace kvplan
