#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvplan/compact.h"
#include "kvplan/planning.h"

namespace kvplan::compact {

/// Distinct lists of layers. A layer that several of them hold would have to be packed on all at
/// once, so such a model counts as one stage, which overstates no plan's memory.
struct Stages {
  std::vector<LayerSpecs> lists;
  std::vector<size_t> stage_of;  // by layer
  size_t count = 0;
};
Stages find_stages(PlanningContext ctx, const LayerSpecs& layers,
                   const std::vector<LayerSpecs>& layer_lists);

/// Bytes of one request's pages on the stage that holds most, without padding of any kind.
int64_t lower_bound_bytes(PlanningContext ctx, const PlanningConfig& config, const Stages& stages,
                          const LayerSpecs& layers);

/// What these groups cost. Their slices are not looked at.
GroupingPoint evaluate(PlanningContext ctx, const PlanningConfig& config, const Stages& stages,
                       const KVCacheGroups& groups);

/// Whether vLLM's checks accept the groups: layout, placement on every stage, block sizes.
bool is_runnable(PlanningContext ctx, const PlanningConfig& config, const Stages& stages,
                 const KVCacheGroups& groups);

}  // namespace kvplan::compact
