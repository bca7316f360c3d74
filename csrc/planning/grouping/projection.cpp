#include "kvplan/planning/projection.h"

namespace kvplan {

KVCacheGroups project_kv_cache_groups_to_worker(PlanningContext ctx, const KVCacheGroups& groups,
                                                const LayerSpecs& worker_layers) {
  std::vector<char> owned(ctx.names.size());
  for (const LayerSpec& l : worker_layers) owned[l.layer.pos()] = true;

  KVCacheGroups projected;
  projected.reserve(groups.size());
  for (const KVCacheGroup& group : groups) {
    projected.push_back(group);
    std::vector<LayerId>& layers = projected.back().layers;
    std::erase_if(layers, [&](LayerId layer) { return !owned[layer.pos()]; });
    if (layers.size() == group.layers.size()) continue;
    // A stage that owns none keeps all specs: the scheduler is set up from any one worker's groups.
    if (!layers.empty() && group.is_uniform_type()) {
      LayerSpecs specs;
      for (size_t i = 0; i < group.layers.size(); ++i) {
        if (owned[group.layers[i].pos()])
          specs.push_back({group.layers[i], layer_spec_id(group, i)});
      }
      projected.back().spec = specs[0].spec;
      projected.back().layer_specs = std::make_shared<const LayerSpecs>(std::move(specs));
    }
  }
  return projected;
}

}  // namespace kvplan
