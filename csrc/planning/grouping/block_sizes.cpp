#include "kvplan/planning/block_sizes.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <string>

#include "kvplan/checked.h"

namespace kvplan {
namespace {

template <class Visitor>
void for_each_spec(PlanningContext ctx, const KVCacheGroups& groups, Visitor&& visit) {
  for (const KVCacheGroup& g : groups) {
    kvplan::for_each_spec(g, [&](SpecId id) { visit(ctx.spec(id)); });
  }
}

bool group_prefix_cacheable(PlanningContext ctx, const KVCacheGroup& group) {
  return !any_spec(group, [&](SpecId id) { return !prefix_cacheable(ctx.spec(id)); });
}

// With aligned Mamba states, prefix-cache hits may land inside a scheduler block.
bool partial_hash_hits_enabled(PlanningContext ctx, const KVCacheGroups& groups,
                               int64_t hash_block_size, int64_t dcp) {
  bool enabled = false;
  for_each_spec(ctx, groups, [&](const KVCacheSpec& s) {
    if (s.kind != SpecKind::kMamba || s.mamba_cache_mode != "align") return;
    enabled =
        enabled || (dcp == 1 ? s.block_size > hash_block_size : s.block_size >= hash_block_size);
  });
  return enabled;
}

template <class Range>
std::string join(const Range& values) {
  std::string s;
  for (int64_t v : values) s += (s.empty() ? "" : ", ") + std::to_string(v);
  return "[" + s + "]";
}

BlockSizes single_group(PlanningContext ctx, const PlanningConfig& config,
                        const KVCacheGroups& groups) {
  const bool sharded = groups.empty() || ctx.spec(groups[0].spec).dcp_sharded;
  const int64_t size = checked::mul(
      config.block_size, sharded ? config.decode_context_parallel_size : 1, "scheduler block size");
  const bool hashing = config.enable_prefix_caching || config.has_kv_connector;
  if (config.prefix_match_unit && *config.prefix_match_unit != size && !groups.empty() && hashing) {
    throw InvalidArgument(
        "Invalid prefix_match_unit=" + std::to_string(*config.prefix_match_unit) +
        "; with a single KV cache group, prefix-cache hits land on the block size (" +
        std::to_string(size) + "). Unset it or set it to " + std::to_string(size) + ".");
  }
  return {size, size};
}

}  // namespace

BlockSizes resolve_kv_cache_block_sizes(PlanningContext ctx, const PlanningConfig& config,
                                        const KVCacheGroups& groups) {
  if (groups.size() <= 1) return single_group(ctx, config, groups);

  const int64_t dcp = config.decode_context_parallel_size;
  std::vector<int64_t> sizes;
  std::vector<int64_t> hashing_sizes;
  int64_t scheduler = 1;
  for (const KVCacheGroup& g : groups) {
    const KVCacheSpec& spec = ctx.spec(g.spec);
    sizes.push_back(checked::mul(spec.block_size, spec.dcp_sharded ? dcp : 1, "group block size"));
    scheduler = checked::lcm(scheduler, sizes.back(), "scheduler block size");
    if (group_prefix_cacheable(ctx, g)) hashing_sizes.push_back(sizes.back());
  }
  if (hashing_sizes.empty()) hashing_sizes = sizes;

  if (!config.enable_prefix_caching && !config.has_kv_connector) return {scheduler, scheduler};
  bool unaligned_mamba = false;
  std::set<int64_t> state_alignments;
  for_each_spec(ctx, groups, [&](const KVCacheSpec& s) {
    if (s.kind == SpecKind::kMamba && s.mamba_cache_mode != "align") unaligned_mamba = true;
    const TokensPerState& t = s.tokens_per_state;
    if (prefix_cacheable(s) && t.den == 1 && t.num > 1) state_alignments.insert(t.num);
  });
  if (unaligned_mamba) return {scheduler, scheduler};

  int64_t hash_block = config.prefix_match_unit.value_or(0);
  if (hash_block == 0) {
    for (int64_t size : hashing_sizes) hash_block = std::gcd(hash_block, size);
  }
  for (int64_t size : hashing_sizes) {
    if (size % hash_block == 0) continue;
    throw InvalidArgument("Invalid prefix_match_unit=" + std::to_string(hash_block) +
                          "; prefix-cacheable KV cache group block sizes must be divisible by "
                          "prefix_match_unit. Got group block sizes=" +
                          join(sizes) + ", prefix-cacheable=" + join(hashing_sizes) + ".");
  }
  const int64_t hit_alignment =
      partial_hash_hits_enabled(ctx, groups, hash_block, dcp) ? hash_block : scheduler;
  for (int64_t alignment : state_alignments) {
    if (hit_alignment % alignment == 0) continue;
    throw InvalidArgument("Invalid prefix_match_unit=" + std::to_string(hash_block) +
                          "; prefix-cache boundaries must align with each spec's per-state "
                          "compression. Got alignments=" +
                          join(state_alignments) + ".");
  }
  return {scheduler, hash_block};
}

}  // namespace kvplan
