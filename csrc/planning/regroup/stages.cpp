#include "planning/regroup/stages.h"

#include <algorithm>

#include "kvplan/checked.h"
#include "kvplan/errors.h"
#include "kvplan/planning/block_sizes.h"
#include "kvplan/planning/placement.h"
#include "kvplan/planning/projection.h"
#include "kvplan/planning/request_demand.h"

namespace kvplan::compact {

Stages find_stages(PlanningContext ctx, const LayerSpecs& layers,
                   const std::vector<LayerSpecs>& layer_lists) {
  Stages stages;
  for (const LayerSpecs& list : layer_lists) {
    if (list.empty()) continue;
    if (std::find(stages.lists.begin(), stages.lists.end(), list) == stages.lists.end()) {
      stages.lists.push_back(list);
    }
  }
  constexpr size_t kNone = static_cast<size_t>(-1);
  stages.stage_of.assign(ctx.names.size(), kNone);
  stages.count = stages.lists.size();
  for (size_t s = 0; s < stages.lists.size(); ++s) {
    for (const LayerSpec& l : stages.lists[s]) {
      if (stages.stage_of[l.layer.pos()] != kNone) stages.count = 1;
      stages.stage_of[l.layer.pos()] = s;
    }
  }
  if (stages.count <= 1) {
    stages.count = 1;
    for (const LayerSpec& l : layers) stages.stage_of[l.layer.pos()] = 0;
  }
  return stages;
}

int64_t lower_bound_bytes(PlanningContext ctx, const PlanningConfig& config, const Stages& stages,
                          const LayerSpecs& layers) {
  std::vector<int64_t> bytes(stages.count);
  std::vector<int64_t> of_spec(ctx.specs.size(), -1);
  for (const LayerSpec& l : layers) {
    int64_t& own = of_spec[l.spec.pos()];
    if (own < 0) {
      const KVCacheSpec& spec = ctx.spec(l);
      own = checked::mul(unpadded_page_size_bytes(spec),
                         page_demand(spec, config).pages(config.reference_len()), "lower bound");
    }
    int64_t& stage = bytes[stages.stage_of[l.layer.pos()]];
    stage = checked::add(stage, own, "lower bound");
  }
  return *std::max_element(bytes.begin(), bytes.end());
}

GroupingPoint evaluate(PlanningContext ctx, const PlanningConfig& config, const Stages& stages,
                       const KVCacheGroups& groups) {
  GroupingPoint p;
  p.num_groups = static_cast<int64_t>(groups.size());
  for (const LayerSpecs& list : stages.lists) {
    const KVCacheGroups own = project_kv_cache_groups_to_worker(ctx, groups, list);
    p.bytes_per_block =
        std::max(p.bytes_per_block, pool_bytes_per_block(ctx, own, config.kv_cache_layout));
    for (const KVCacheGroup& g : own) {
      p.max_layers_per_group =
          std::max(p.max_layers_per_group, static_cast<int64_t>(g.layers.size()));
    }
  }
  const RequestDemand demand(ctx, groups, config);
  p.request_blocks = demand.total_blocks(config.reference_len());
  p.request_bytes = checked::mul(p.bytes_per_block, p.request_blocks, "bytes of one request");
  p.min_request_bytes = checked::mul(p.bytes_per_block, demand.total_blocks(1), "one token");
  return p;
}

bool is_runnable(PlanningContext ctx, const PlanningConfig& config, const Stages& stages,
                 const KVCacheGroups& groups) {
  try {
    for (const LayerSpecs& list : stages.lists) {
      const KVCacheGroups own = project_kv_cache_groups_to_worker(ctx, groups, list);
      validate_kv_cache_layout(ctx, config.kv_cache_layout, own);
      place_kv_cache_groups(ctx, config, own,
                            pool_bytes_per_block(ctx, own, config.kv_cache_layout), 1);
    }
    const BlockSizes sizes = resolve_kv_cache_block_sizes(ctx, config, groups);
    const std::optional<int64_t>& interval = config.prefix_cache_retention_interval;
    return !interval || *interval % sizes.scheduler_block_size == 0;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace kvplan::compact
