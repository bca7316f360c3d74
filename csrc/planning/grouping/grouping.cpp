#include "kvplan/planning/grouping.h"

#include <algorithm>
#include <string>

#include "kvplan/errors.h"
#include "kvplan/planning/packed_grouping.h"
#include "kvplan/planning/page_size.h"
#include "kvplan/planning/promotion.h"
#include "kvplan/planning/uniform_page_grouping.h"
#include "kvplan/planning/uniformity.h"
#include "planning/grouping/hidden_state.h"

namespace kvplan {
KVCacheGroups get_kv_cache_groups(PlanningContext ctx, const PlanningConfig& config,
                                  LayerSpecs& layers) {
  if (config.disable_hybrid_kv_cache_manager) unify_hybrid_kv_cache_specs(ctx, layers);
  if (layers.empty()) return {};  // attention-free: the KV cache manager takes no groups
  if (is_kv_cache_spec_uniform(ctx, layers)) return {create_kv_cache_group(ctx, layers)};
  if (is_uniform_type(ctx, layers)) return {create_uniform_type_group(layers)};

  // Hidden-state layers have a block table of their own and must not be absorbed into a bucket of
  // compatible attention layers.
  LayerSpecs hidden;
  LayerSpecs attention;
  for (const LayerSpec& l : layers) (is_hidden_state(ctx, l) ? hidden : attention).push_back(l);

  if (auto packed = get_packed_kv_cache_groups(ctx, config.kv_cache_layout, attention)) {
    // Blocks are strided by the widest group, so hidden-state pages need no alignment.
    for (const LayerSpec& l : hidden) {
      KVCacheGroup group;
      group.layers = {l.layer};
      group.spec = l.spec;
      packed->push_back(std::move(group));
    }
    return *std::move(packed);
  }

  LayerSpecs unified;
  try {
    unified = unify_kv_cache_spec_page_size(ctx, attention);
  } catch (const PageSizeError&) {
    // Each layer keeps its own cache semantics where possible; full allocation is the way out.
    auto fallback = try_get_full_allocation_fallback_groups(ctx, layers);
    if (!fallback) throw;
    return *std::move(fallback);
  }
  KVCacheGroups groups = get_kv_cache_groups_uniform_page_size(ctx, unified);
  if (!hidden.empty()) append_hidden_state_groups(ctx, hidden, groups);
  return groups;
}

bool groups_partition_layers_exactly(const KVCacheGroups& groups, const LayerSpecs& layers) {
  std::vector<LayerId> grouped;
  for (const KVCacheGroup& g : groups)
    grouped.insert(grouped.end(), g.layers.begin(), g.layers.end());
  if (grouped.size() != layers.size()) return false;
  std::vector<LayerId> expected;
  expected.reserve(layers.size());
  for (const LayerSpec& l : layers) expected.push_back(l.layer);
  std::sort(grouped.begin(), grouped.end());
  std::sort(expected.begin(), expected.end());
  return grouped == expected;
}

void check_exact_partition(PlanningContext ctx, const KVCacheGroups& groups,
                           const LayerSpecs& layers) {
  std::vector<char> grouped(ctx.names.size());
  for (const KVCacheGroup& g : groups) {
    for (LayerId layer : g.layers) {
      if (grouped[layer.pos()]) {
        throw InconsistentSpec("KV cache group overlaps: layer " + ctx.name(layer) +
                               " is in two groups.");
      }
      grouped[layer.pos()] = true;
    }
  }
  std::string missing;
  int count = 0;
  for (const LayerSpec& l : layers) {
    if (grouped[l.layer.pos()]) continue;
    if (++count <= 5) missing += (missing.empty() ? "" : ", ") + ctx.name(l.layer);
  }
  if (count > 5) missing += " and " + std::to_string(count - 5) + " more";
  if (count > 0) throw InconsistentSpec("KV cache groups miss layers: " + missing + ".");
}

}  // namespace kvplan
