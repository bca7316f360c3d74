#pragma once

#include "kvplan/planning.h"

namespace kvplan {

inline bool is_hidden_state(PlanningContext ctx, const LayerSpec& l) {
  return ctx.spec(l).kind == SpecKind::kHiddenStateCache;
}

/// Adds a group for each hidden-state layer, its page aligned to the common page of `groups`.
void append_hidden_state_groups(PlanningContext ctx, const LayerSpecs& hidden_layers,
                                KVCacheGroups& groups);

}  // namespace kvplan
