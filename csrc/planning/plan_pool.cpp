#include "kvplan/plan_pool.h"

#include <algorithm>
#include <vector>

#include "kvplan/errors.h"
#include "kvplan/planning/placement.h"
#include "kvplan/report.h"

namespace kvplan {
namespace {

/// The one spec by which a scheduler sees a group.
/// Mirrors vllm/v1/core/kv_cache_utils.py::generate_scheduler_kv_cache_config (0.33).
SpecId scheduler_spec(const KVCacheGroup& group) {
  return group.is_uniform_type() && !group.layer_specs->empty() ? group.layer_specs->front().spec
                                                                : group.spec;
}

/// Mirrors vllm/v1/kv_cache_interface.py::KVCacheConfig.needs_kv_cache_zeroing (0.33).
bool needs_zeroing(const SpecTable& specs, const KVCacheGroups& groups) {
  const KVCacheSpec* attention = nullptr;
  for (const KVCacheGroup& group : groups) {
    const KVCacheSpec& spec = specs[scheduler_spec(group)];
    if (spec.kind == SpecKind::kMamba) return true;
    if (group.host_resident || !is_attention(spec.kind)) continue;
    if (attention != nullptr &&
        (attention->dtype != spec.dtype || attention->kv_quant_mode != spec.kv_quant_mode)) {
      return true;
    }
    attention = &spec;
  }
  return false;
}

}  // namespace

CacheManagerOptions cache_manager_options(const Plan& plan, bool lookahead_hashes) {
  validate(plan);
  const PlanningConfig& config = plan.config;
  const SpecTable& specs = *plan.specs;
  // The scheduler sees the groups of the first worker.
  const KVCacheGroups& groups = plan.stage_of(0).groups;
  if (groups.empty()) {
    throw InvalidArgument(
        "the plan has no KV cache groups, so there is nothing to manage: its layers keep no cache");
  }
  const BlockSizes sizes = block_sizes(plan);
  CacheManagerOptions options;
  for (const KVCacheGroup& group : groups) {
    const SpecId spec = scheduler_spec(group);
    options.groups.push_back(cache_group(specs[spec], group.is_eagle_group));
    options.groups.back().slices = group.slices;
    for (size_t i = 0; i + 1 < options.groups.size(); ++i) {
      if (!specs.equal(scheduler_spec(groups[i]), spec)) continue;
      options.groups.back().same_spec_as = i;
      break;
    }
  }
  options.num_blocks = plan.num_blocks;
  options.max_model_len = config.max_model_len;
  options.scheduler_block_size = sizes.scheduler_block_size;
  options.hash_block_size = sizes.hash_block_size;
  options.max_in_flight_tokens = config.max_in_flight_tokens;
  options.enable_caching = config.enable_prefix_caching;
  options.num_prefill_lookahead = config.num_prefill_lookahead_tokens;
  options.use_eagle = config.use_eagle_block_drop;
  if (options.use_eagle && lookahead_hashes && options.enable_caching && !config.has_kv_connector &&
      options.num_prefill_lookahead > 0) {
    // They prove the token behind the block, so that none has to be dropped.
    options.num_hash_lookahead_tokens = options.num_prefill_lookahead;
    options.use_eagle = false;
  }
  options.dcp_world_size = config.decode_context_parallel_size;
  options.retention_interval = config.prefix_cache_retention_interval;
  options.needs_zeroing = needs_zeroing(specs, groups);
  return options;
}

BlockPool make_pool(const Plan& plan, BlockPoolOptions options) {
  validate(plan);
  if (is_sliced(plan.groups)) {
    throw InvalidArgument("the plan's groups cut blocks into slices: use make_sliced_pool");
  }
  return BlockPool(plan.num_blocks, options);
}

SlicedBlockPool make_sliced_pool(const Plan& plan, SlicedBlockPoolOptions options) {
  validate(plan);
  std::vector<int64_t> slices;
  for (const KVCacheGroup& g : plan.groups) slices.push_back(g.slices);
  return SlicedBlockPool(plan.num_blocks, slices, options);
}

std::optional<HitUnit> hit_unit(const Plan& plan) {
  if (plan.stage_of(0).groups.empty()) return std::nullopt;
  return hit_unit(cache_manager_options(plan), prefix_replay_tokens(plan));
}

int64_t prefix_replay_tokens(const Plan& plan) {
  int64_t tokens = 0;
  for (const KVCacheGroup& group : plan.groups) {
    for_each_spec(group, [&](SpecId id) {
      tokens = std::max(tokens, prefix_replay_tokens((*plan.specs)[id]));
    });
  }
  return tokens;
}

}  // namespace kvplan
