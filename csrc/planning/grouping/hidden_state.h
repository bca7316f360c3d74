#pragma once

#include "kvplan/planning.h"

namespace kvplan {

/// Adds a group for each hidden-state layer, its page aligned to the common page of `groups`.
void append_hidden_state_groups(const PlanningContext& ctx, const LayerSpecs& hidden_layers,
                                KVCacheGroups& groups);

}  // namespace kvplan
