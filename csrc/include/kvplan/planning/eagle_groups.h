#pragma once

#include "kvplan/config.h"
#include "kvplan/export.h"
#include "kvplan/groups.h"

namespace kvplan {

/// vLLM 0.33's rule: a group with a draft layer is an EAGLE group.
KVPLAN_API void annotate_eagle_groups_by_is_draft(KVCacheGroups& groups, PlanningContext ctx,
                                                  const LayerSpecs& layers);

/// The rules before 0.33: the spec marker, then the group of the last registered layer.
KVPLAN_API void annotate_eagle_groups_by_marker(PlanningContext ctx, KVCacheGroups& groups,
                                                const LayerSpecs& layers, bool use_trailing_layer);

/// Whether the drafter's layers are those registered last.
KVPLAN_API bool uses_trailing_mtp_layers(const PlanningConfig& config);

KVPLAN_API void warn_if_unannotated_eagle_mamba(PlanningContext ctx, const PlanningConfig& config,
                                                const KVCacheGroups& groups);

}  // namespace kvplan
