#include "kvplan/planning/eagle_groups.h"

#include <algorithm>

#include "kvplan/planning/grouping.h"

namespace kvplan {

void annotate_eagle_groups_by_is_draft(KVCacheGroups& groups, PlanningContext ctx,
                                       const LayerSpecs& layers) {
  std::vector<bool> is_draft(ctx.names.size());
  for (const LayerSpec& l : layers) is_draft[l.layer.pos()] = ctx.spec(l).is_draft;
  for (KVCacheGroup& g : groups) {
    g.is_eagle_group = std::any_of(g.layers.begin(), g.layers.end(),
                                   [&](LayerId layer) { return is_draft[layer.pos()]; });
  }
}

void annotate_eagle_groups_by_marker(PlanningContext ctx, KVCacheGroups& groups,
                                     const LayerSpecs& layers, bool use_trailing_layer) {
  for (KVCacheGroup& g : groups) {
    if (any_spec(g, [&](SpecId id) { return ctx.spec(id).non_causal_multi_token_decode; })) {
      g.is_eagle_group = true;
    }
  }
  if (!use_trailing_layer || layers.empty() || !groups_partition_layers_exactly(groups, layers)) {
    return;
  }
  const LayerId last = layers.back().layer;
  for (KVCacheGroup& g : groups) {
    if (std::find(g.layers.begin(), g.layers.end(), last) == g.layers.end()) continue;
    g.is_eagle_group = true;
    return;
  }
}

bool uses_trailing_mtp_layers(const PlanningConfig& config) {
  if (!config.speculative_method || !config.use_eagle) return false;
  return *config.speculative_method == "mtp" || config.model_type == "deepseek_v4" ||
         config.model_type == "deepseek_v41";
}

void warn_if_unannotated_eagle_mamba(PlanningContext ctx, const PlanningConfig& config,
                                     const KVCacheGroups& groups) {
  const auto is_eagle = [](const KVCacheGroup& g) { return g.is_eagle_group; };
  const auto has_mamba = [&](const KVCacheGroup& g) {
    return any_spec(g, [&](SpecId id) { return ctx.spec(id).kind == SpecKind::kMamba; });
  };
  if (std::any_of(groups.begin(), groups.end(), is_eagle)) return;
  if (std::none_of(groups.begin(), groups.end(), has_mamba)) return;
  ctx.warn("Speculative decoding (method=" + config.speculative_method.value_or("None") +
           ") is enabled but no KV cache group could be identified as the draft model's.");
}

}  // namespace kvplan
