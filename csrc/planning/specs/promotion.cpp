#include "kvplan/planning/promotion.h"

#include <algorithm>
#include <string>

#include "kvplan/checked.h"
#include "kvplan/planning/uniformity.h"
#include "planning/specs/uniformity.h"

namespace kvplan {
namespace {

std::optional<SpecKind> promoted_kind(SpecKind kind) {
  switch (kind) {
    case SpecKind::kSlidingWindowMLA:
      return SpecKind::kMLAAttention;
    case SpecKind::kSlidingWindow:
    case SpecKind::kChunkedLocalAttention:
      return SpecKind::kFullAttention;
    default:
      return std::nullopt;
  }
}

/// The same cache with blocks for every token: nothing is freed below the window, so the tokens
/// retained beyond it do not matter any more.
KVCacheSpec promote(const KVCacheSpec& spec, SpecKind kind, int64_t block_size) {
  // vLLM 0.33 fails here too: the replay policy has no counterpart in MLAAttentionSpec.
  if (spec.kind == SpecKind::kSlidingWindowMLA) {
    throw Unsupported(
        "SlidingWindowMLASpec cannot be promoted to full attention; leave the hybrid KV cache "
        "manager enabled (disable_hybrid_kv_cache_manager=False)");
  }
  KVCacheSpec promoted = spec;
  promoted.kind = kind;
  promoted.extra_retained_tokens = 0;
  promoted.block_size = block_size;
  if (spec.page_size_padded) {
    const int64_t unpadded =
        checked::mul(unpadded_page_size_bytes(spec), block_size, "promoted page") / spec.block_size;
    promoted.page_size_padded = std::max(*spec.page_size_padded, unpadded);
  }
  finalize(promoted);
  return promoted;
}

bool is_one_type(PlanningContext ctx, const LayerSpecs& layers) {
  return is_kv_cache_spec_uniform(ctx, layers) || is_uniform_type(ctx, layers);
}

template <class Predicate>
bool any_kind(PlanningContext ctx, const std::vector<SpecId>& specs, Predicate predicate) {
  return std::any_of(specs.begin(), specs.end(),
                     [&](SpecId id) { return predicate(ctx.spec(id).kind); });
}

/// The block size of the full attention layers, if they have only one.
std::optional<int64_t> full_attention_block_size(PlanningContext ctx,
                                                 const std::vector<SpecId>& specs) {
  std::optional<int64_t> block_size;
  for (SpecId id : specs) {
    const KVCacheSpec& spec = ctx.spec(id);
    if (!is_full_attention(spec.kind)) continue;
    if (block_size && *block_size != spec.block_size) return std::nullopt;
    block_size = spec.block_size;
  }
  return block_size;
}

}  // namespace

LayerSpecs promote_local_kv_cache_specs(PlanningContext ctx, const LayerSpecs& layers) {
  if (is_one_type(ctx, layers)) return layers;
  const std::vector<SpecId> specs = distinct_specs(ctx, layers);
  LayerSpecs promoted = layers;
  const bool has_local =
      any_kind(ctx, specs, [](SpecKind k) { return promoted_kind(k).has_value(); });
  if (any_kind(ctx, specs, is_full_attention) && has_local) {
    const std::optional<int64_t> block_size = full_attention_block_size(ctx, specs);
    std::vector<SpecId> replaced(ctx.specs.size());
    for (LayerSpec& l : promoted) {
      const std::optional<SpecKind> kind = promoted_kind(ctx.spec(l).kind);
      if (!kind) continue;
      SpecId& id = replaced[l.spec.pos()];
      if (!id.valid()) {
        const KVCacheSpec& spec = ctx.spec(l);
        id = ctx.specs.intern(promote(spec, *kind, block_size.value_or(spec.block_size)));
      }
      l.spec = id;
    }
  }
  if (!is_one_type(ctx, promoted)) {
    throw InvalidArgument("Failed to promote local KV cache specs to one unified type.");
  }
  return promoted;
}

void unify_hybrid_kv_cache_specs(PlanningContext ctx, LayerSpecs& layers) {
  // Layers that DCP shards and layers that it replicates cannot be one type; each kind is promoted
  // by itself.
  const auto is_replicated = [&](const LayerSpec& l) {
    const KVCacheSpec& spec = ctx.spec(l);
    return is_attention(spec.kind) && !spec.dcp_sharded;
  };
  std::vector<bool> sides;
  for (const LayerSpec& l : layers) {
    if (sides.empty() || (sides.size() == 1 && sides[0] != is_replicated(l))) {
      sides.push_back(is_replicated(l));
    }
  }
  for (bool side : sides) {
    LayerSpecs members;
    std::vector<size_t> positions;
    for (size_t i = 0; i < layers.size(); ++i) {
      if (is_replicated(layers[i]) != side) continue;
      members.push_back(layers[i]);
      positions.push_back(i);
    }
    const LayerSpecs promoted = promote_local_kv_cache_specs(ctx, members);
    if (promoted == members) continue;
    ctx.warn(
        "Hybrid KV cache manager is disabled for this hybrid model, This means we do not enable "
        "any optimizations for saving KV cache memory (e.g., dropping the KV cache outside the "
        "sliding window). The compute of layers like sliding window is still saved.");
    for (size_t i = 0; i < positions.size(); ++i) layers[positions[i]] = promoted[i];
  }
}

std::optional<KVCacheGroups> try_get_full_allocation_fallback_groups(PlanningContext ctx,
                                                                     const LayerSpecs& layers) {
  const std::vector<SpecId> specs = distinct_specs(ctx, layers);
  const auto is = [](SpecKind kind) { return [kind](SpecKind k) { return k == kind; }; };
  if (any_kind(ctx, specs, is(SpecKind::kHiddenStateCache)) ||
      any_kind(ctx, specs, is(SpecKind::kSlidingWindowMLA)) ||
      any_kind(ctx, specs, is(SpecKind::kChunkedLocalAttention))) {
    return std::nullopt;
  }
  if (!any_kind(ctx, specs, is_mla) || !any_kind(ctx, specs, is_sliding_window)) {
    return std::nullopt;
  }
  LayerSpecs promoted;
  try {
    promoted = promote_local_kv_cache_specs(ctx, layers);
  } catch (const InvalidArgument&) {
    return std::nullopt;
  }
  if (!is_uniform_type(ctx, promoted)) return std::nullopt;
  ctx.warn(
      "KV cache page sizes cannot be unified; treating sliding-window layers as full attention for "
      "cache allocation. Sliding-window attention compute is unchanged.");
  return KVCacheGroups{create_uniform_type_group(std::move(promoted))};
}

}  // namespace kvplan
