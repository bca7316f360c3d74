#pragma once

#include <vector>

#include "kvplan/planning.h"

namespace kvplan {

/// The layers of all workers in order of first appearance, checked and ready to be grouped.
LayerSpecs global_layers(const PlanningContext& ctx, const PlanningConfig& config,
                         const std::vector<LayerSpecs>& layer_lists);

}  // namespace kvplan
