#include "kvplan/planning/global_groups.h"

#include <algorithm>
#include <string>

#include "kvplan/compact.h"
#include "kvplan/errors.h"
#include "kvplan/planning/eagle_groups.h"
#include "kvplan/planning/grouping.h"
#include "kvplan/planning/uniformity.h"
#include "kvplan/sliced.h"
#include "planning/grouping/hidden_state.h"

namespace kvplan {
namespace {

/// The layers of all workers in order of first appearance.
LayerSpecs merge_layer_lists(PlanningContext ctx, const std::vector<LayerSpecs>& lists) {
  LayerSpecs merged;
  if (!lists.empty()) merged.reserve(lists[0].size());
  std::vector<SpecId> spec_of(ctx.names.size());
  for (const LayerSpecs& list : lists) {
    for (const LayerSpec& l : list) {
      SpecId& known = spec_of[l.layer.pos()];
      if (!known.valid()) {
        known = l.spec;
        merged.push_back(l);
      } else if (known != l.spec && !ctx.specs.equal(known, l.spec)) {
        throw InconsistentSpec(
            "The KV cache specs for the same layer are different across workers. This is not "
            "supported yet. Layer " +
            ctx.name(l.layer) + " is " + to_string(ctx.spec(known)) + " on one worker and " +
            to_string(ctx.spec(l)) + " on another.");
      }
    }
  }
  return merged;
}

void check_registered(PlanningContext ctx, const LayerSpecs& layers) {
  SpecId last;
  for (const LayerSpec& l : layers) {
    if (l.spec == last) continue;
    last = l.spec;
    if (!uniform_type_base(ctx.spec(l)).empty()) continue;
    throw InvalidArgument("Unsupported KV cache spec type for layer " + ctx.name(l.layer) + ": " +
                          std::string(class_name(ctx.spec(l).kind)) +
                          " holds no KV cache; leave such layers out.");
  }
}

/// Several speculative modules prefill the last tokens anew, so the window keeps some more.
void retain_lookahead_tokens(PlanningContext ctx, const PlanningConfig& config,
                             LayerSpecs& layers) {
  const int64_t extra = std::max<int64_t>(0, config.num_prefill_lookahead_tokens - 1);
  std::vector<SpecId> replaced(ctx.specs.size());
  for (LayerSpec& l : layers) {
    if (!is_sliding_window(ctx.spec(l).kind)) continue;
    SpecId& id = replaced[l.spec.pos()];
    if (!id.valid()) {
      KVCacheSpec spec = ctx.spec(l);
      spec.extra_retained_tokens = extra;
      finalize(spec);
      id = ctx.specs.intern(spec);
    }
    l.spec = id;
  }
}

void annotate_eagle_groups(PlanningContext ctx, const PlanningConfig& config,
                           const LayerSpecs& layers, KVCacheGroups& groups) {
  const bool any_draft = std::any_of(layers.begin(), layers.end(),
                                     [&](const LayerSpec& l) { return ctx.spec(l).is_draft; });
  if (config.draft_rule == DraftRule::kIsDraft ||
      (config.draft_rule == DraftRule::kAuto && any_draft)) {
    annotate_eagle_groups_by_is_draft(groups, ctx, layers);
  } else {
    annotate_eagle_groups_by_marker(ctx, groups, layers, uses_trailing_mtp_layers(config));
  }
}

/// Mirrors vllm/v1/core/kv_cache_utils.py::get_kv_cache_groups (0.32), whose early exits flag no
/// group, and whose packing flags groups before the hidden-state layers join.
void annotate_as_before_033(PlanningContext ctx, const PlanningConfig& config, LayerSpecs layers,
                            KVCacheGroups& groups) {
  if (!config.speculative_method || layers.empty()) return;
  const bool one_uniform_group = groups.size() == 1 && groups[0].is_uniform_type();
  if (one_uniform_group || is_kv_cache_spec_uniform(ctx, layers) || is_uniform_type(ctx, layers)) {
    return;
  }
  const bool packed = std::any_of(groups.begin(), groups.end(),
                                  [](const KVCacheGroup& g) { return g.is_uniform_type(); });
  KVCacheGroups hidden;
  if (packed) {
    const auto split = std::stable_partition(
        layers.begin(), layers.end(), [&](const LayerSpec& l) { return !is_hidden_state(ctx, l); });
    const auto count = layers.end() - split;
    layers.erase(split, layers.end());
    hidden.assign(groups.end() - count, groups.end());
    groups.erase(groups.end() - count, groups.end());
  }
  if (config.use_eagle_block_drop) {
    annotate_eagle_groups_by_marker(ctx, groups, layers, uses_trailing_mtp_layers(config));
  }
  if (config.use_eagle) warn_if_unannotated_eagle_mamba(ctx, config, groups);
  groups.insert(groups.end(), hidden.begin(), hidden.end());
}

}  // namespace

LayerSpecs merge_worker_layers(PlanningContext ctx, const PlanningConfig& config,
                               const std::vector<LayerSpecs>& layer_lists) {
  LayerSpecs layers = merge_layer_lists(ctx, layer_lists);
  check_registered(ctx, layers);
  retain_lookahead_tokens(ctx, config, layers);
  return layers;
}

void finish_global_groups(PlanningContext ctx, const PlanningConfig& config,
                          const LayerSpecs& layers, KVCacheGroups& groups) {
  check_exact_partition(ctx, groups, layers);
  if (!config.speculative_method || !config.use_eagle_block_drop) return;
  annotate_eagle_groups(ctx, config, layers, groups);
  warn_if_unannotated_eagle_mamba(ctx, config, groups);
}

KVCacheGroups get_global_kv_cache_groups(PlanningContext ctx, const PlanningConfig& config,
                                         const std::vector<LayerSpecs>& layer_lists,
                                         std::optional<int64_t> pool_bytes) {
  LayerSpecs layers = merge_worker_layers(ctx, config, layer_lists);
  KVCacheGroups groups;
  switch (config.grouping) {
    case Grouping::kVllm:
      groups = get_kv_cache_groups(ctx, config, layers);
      break;
    case Grouping::kCompact:
      groups = get_compact_kv_cache_groups(ctx, config, layers, layer_lists);
      break;
    case Grouping::kSliced:
      groups = get_sliced_kv_cache_groups(ctx, config, layers, layer_lists, pool_bytes);
      break;
  }
  finish_global_groups(ctx, config, layers, groups);
  return groups;
}

KVCacheGroups get_global_kv_cache_groups_before_033(PlanningContext ctx,
                                                    const PlanningConfig& config,
                                                    const std::vector<LayerSpecs>& layer_lists) {
  if (config.grouping != Grouping::kVllm) {
    return get_global_kv_cache_groups(ctx, config, layer_lists);
  }
  LayerSpecs layers = merge_worker_layers(ctx, config, layer_lists);
  KVCacheGroups groups = get_kv_cache_groups(ctx, config, layers);
  annotate_as_before_033(ctx, config, layers, groups);
  return groups;
}

KVCacheGroups group_as_configured(PlanningContext ctx, const PlanningConfig& config,
                                  LayerSpecs& layers) {
  if (config.grouping == Grouping::kVllm) return get_kv_cache_groups(ctx, config, layers);
  return get_global_kv_cache_groups(ctx, config, {layers});
}

}  // namespace kvplan
