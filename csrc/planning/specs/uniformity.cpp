#include "kvplan/planning/uniformity.h"

#include "kvplan/errors.h"
#include "planning/specs/uniformity.h"

namespace kvplan {

std::vector<SpecId> distinct_specs(PlanningContext ctx, const LayerSpecs& layers) {
  std::vector<SpecId> distinct;
  std::vector<bool> seen(ctx.specs.size());
  SpecId last;
  for (const LayerSpec& l : layers) {
    if (l.spec == last) continue;
    last = l.spec;
    const SpecId key = ctx.specs.equality_class(l.spec);
    if (seen[key.pos()]) continue;
    seen[key.pos()] = true;
    distinct.push_back(l.spec);
  }
  return distinct;
}

namespace {

std::vector<const KVCacheSpec*> specs_of(PlanningContext ctx, const std::vector<SpecId>& ids) {
  std::vector<const KVCacheSpec*> specs;
  specs.reserve(ids.size());
  for (SpecId id : ids) specs.push_back(&ctx.spec(id));
  return specs;
}

}  // namespace

KVCacheSpec merge_specs(PlanningContext ctx, const std::vector<SpecId>& ids) {
  return merge(specs_of(ctx, ids));
}

bool may_share_group(PlanningContext ctx, SpecId first, SpecId other) {
  const KVCacheSpec& a = ctx.spec(first);
  const KVCacheSpec& b = ctx.spec(other);
  return a.block_size == b.block_size && a.dcp_sharded == b.dcp_sharded && is_uniform_with(a, b);
}

bool is_kv_cache_spec_uniform(PlanningContext ctx, const LayerSpecs& layers) {
  if (layers.empty()) return true;
  const std::vector<SpecId> distinct = distinct_specs(ctx, layers);
  for (SpecId id : distinct) {
    if (!kinds_merge(ctx.spec(distinct[0]), ctx.spec(id))) return false;
  }
  try {
    merge_specs(ctx, distinct);
  } catch (const MergeError&) {
    return false;
  }
  return true;
}

bool is_uniform_type(PlanningContext ctx, const LayerSpecs& layers) {
  return is_uniform_type(specs_of(ctx, distinct_specs(ctx, layers)));
}

KVCacheGroup create_kv_cache_group(PlanningContext ctx, const LayerSpecs& layers) {
  KVCacheGroup group;
  group.layers.reserve(layers.size());
  for (const LayerSpec& l : layers) group.layers.push_back(l.layer);
  group.spec = ctx.specs.intern(merge_specs(ctx, distinct_specs(ctx, layers)));
  return group;
}

KVCacheGroup create_uniform_type_group(LayerSpecs layers) {
  if (layers.empty()) throw InconsistentSpec("a KV cache group came out without layers");
  KVCacheGroup group;
  group.layers.reserve(layers.size());
  for (const LayerSpec& l : layers) group.layers.push_back(l.layer);
  group.spec = layers[0].spec;
  group.layer_specs = std::make_shared<const LayerSpecs>(std::move(layers));
  return group;
}

}  // namespace kvplan
