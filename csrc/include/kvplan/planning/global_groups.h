#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kvplan/config.h"
#include "kvplan/export.h"
#include "kvplan/groups.h"

namespace kvplan {

/// The layers of all workers in order of first appearance, as grouping takes them: windows keep the
/// tokens that several speculative modules read anew. Throws `InconsistentSpec` for a layer whose
/// spec differs between workers, `InvalidArgument` for one that holds no KV cache.
KVPLAN_API LayerSpecs merge_worker_layers(PlanningContext ctx, const PlanningConfig& config,
                                          const std::vector<LayerSpecs>& layer_lists);
/// Checks that the groups hold every layer once, and flags the drafter's.
KVPLAN_API void finish_global_groups(PlanningContext ctx, const PlanningConfig& config,
                                     const LayerSpecs& layers, KVCacheGroups& groups);
/// Groups the model's layers. `pool_bytes` is the smallest memory of a worker that holds layers,
/// where it is known; only sliced grouping asks for it. Mirrors
/// vllm/v1/core/kv_cache_planning.py::get_global_kv_cache_groups (0.33).
KVPLAN_API KVCacheGroups get_global_kv_cache_groups(PlanningContext ctx,
                                                    const PlanningConfig& config,
                                                    const std::vector<LayerSpecs>& layer_lists,
                                                    std::optional<int64_t> pool_bytes = {});

/// As vLLM 0.32 and earlier: the drafter's groups are flagged while grouping, in some of its cases
/// only, and nothing is checked afterwards. Other groupings than vLLM's are as above.
KVPLAN_API KVCacheGroups get_global_kv_cache_groups_before_033(
    PlanningContext ctx, const PlanningConfig& config, const std::vector<LayerSpecs>& layer_lists);
/// The groups of one model by the grouping that the config asks for. vLLM's own changes `layers` as
/// `get_kv_cache_groups` does, and flags no drafter.
KVPLAN_API KVCacheGroups group_as_configured(PlanningContext ctx, const PlanningConfig& config,
                                             LayerSpecs& layers);

}  // namespace kvplan
