#include "kvplan/planning/placement.h"

#include <algorithm>
#include <limits>
#include <set>
#include <string>

#include "kvplan/checked.h"

namespace kvplan {
namespace {

/// Layers of a group that share a spec, and so a shape.
struct SpecLayers {
  SpecId spec;
  std::vector<LayerId> layers;
};

std::vector<SpecLayers> layers_by_spec(PlanningContext ctx, const PlanningConfig& config,
                                       const KVCacheGroup& group) {
  if (!group.is_uniform_type()) {
    if (group.layers.empty()) return {};
    return {{group.spec, group.layers}};
  }
  std::vector<SpecLayers> result;
  std::vector<int32_t> index_of(ctx.specs.size(), -1);
  const auto add = [&](LayerId layer, SpecId spec) {
    int32_t& index = index_of[ctx.specs.equality_class(spec).pos()];
    if (index < 0) {
      index = static_cast<int32_t>(result.size());
      result.push_back({spec, {}});
    }
    result[static_cast<size_t>(index)].layers.push_back(layer);
  };
  if (config.place_foreign_layers) {
    for (const LayerSpec& l : *group.layer_specs) add(l.layer, l.spec);
  } else {
    for (size_t i = 0; i < group.layers.size(); ++i) add(group.layers[i], layer_spec_id(group, i));
  }
  return result;
}

/// Calls `visit(spec, count)` for runs of layers that share a spec, in the group's order.
template <class Visit>
void for_each_run(const KVCacheGroup& group, Visit&& visit) {
  if (!group.is_uniform_type()) {
    if (!group.layers.empty()) visit(group.spec, static_cast<int64_t>(group.layers.size()));
    return;
  }
  for (size_t i = 0; i < group.layers.size(); ++i) visit(layer_spec_id(group, i), int64_t{1});
}

template <class Bytes>
int64_t widest_group(const KVCacheGroups& groups, Bytes bytes_of_spec) {
  int64_t widest = 0;
  for (const KVCacheGroup& g : groups) {
    int64_t width = 0;
    for_each_run(g, [&](SpecId spec, int64_t count) {
      const int64_t bytes = checked::mul(bytes_of_spec(spec), count, "bytes per block");
      width = checked::add(width, bytes, "bytes per block");
    });
    widest = std::max(widest, width);
  }
  return widest;
}

/// Caches a number of each spec for the time of one call.
template <class Compute>
auto memoized(PlanningContext ctx, Compute compute) {
  return [ctx, compute, cache = std::vector<int64_t>(ctx.specs.size(), -1)](SpecId id) mutable {
    int64_t& value = cache[id.pos()];
    if (value < 0) value = compute(ctx.spec(id));
    return value;
  };
}

/// What the stride between two pages of a group must be a multiple of.
template <class StrideAlignment>
int64_t group_stride_alignment(PlanningContext ctx, const KVCacheGroup& g,
                               StrideAlignment& stride_alignment) {
  int64_t alignment = 1;
  if (!g.is_uniform_type() && ctx.spec(g.spec).kind == SpecKind::kHiSparseHot) {
    alignment = ctx.page(g.spec);
  }
  for_each_run(g, [&](SpecId spec, int64_t) {
    alignment = checked::lcm(alignment, stride_alignment(spec), "block stride alignment");
  });
  return alignment;
}

/// The smallest W that every group g of the stage cuts into `slices` aligned slices, each as large
/// as the group's pages. A stage without layers of a group cuts nothing for it.
int64_t sliced_bytes_per_block(PlanningContext ctx, const KVCacheGroups& groups) {
  auto stride_alignment = memoized(ctx, get_block_stride_alignment);
  int64_t widest = 0;
  int64_t unit = 1;
  for (const KVCacheGroup& g : groups) {
    if (g.layers.empty()) continue;
    int64_t page = 0;
    for (size_t i = 0; i < g.layers.size(); ++i) {
      page = checked::add(page, ctx.page(layer_spec_id(g, i)), "bytes of a slice");
    }
    const int64_t alignment = checked::lcm(group_stride_alignment(ctx, g, stride_alignment),
                                           kSliceAlignment, "slice alignment");
    const int64_t slice = checked::round_up(page, alignment, "bytes of a slice");
    widest = std::max(widest, checked::mul(slice, g.slices, "bytes per block"));
    unit = checked::lcm(unit, checked::mul(alignment, g.slices, "slice alignment"),
                        "bytes per block that all groups can cut into aligned slices");
  }
  return checked::round_up(widest, unit, "bytes per block");
}

}  // namespace

void validate_kv_cache_layout(PlanningContext ctx, KVCacheLayout layout,
                              const KVCacheGroups& groups) {
  std::set<int64_t> page_sizes;
  int64_t last = 0;
  for (const KVCacheGroup& g : groups) {
    for_each_run(g, [&](SpecId spec, int64_t) {
      const int64_t page = ctx.page(spec);
      if (page != last) page_sizes.insert(page);
      last = page;
    });
  }
  if (page_sizes.size() == 1) return;
  // Pages of several sizes lie side by side in a block, so each must be one run of bytes, and with
  // several groups the layers must lie inside the block.
  if (is_block_compact(layout) && !(groups.size() > 1 && is_layer_compact(layout))) return;
  std::string sizes;
  for (int64_t size : page_sizes) sizes += (sizes.empty() ? "" : ", ") + std::to_string(size);
  throw LayoutError("KV cache layout " + std::string(to_string(layout)) +
                    " cannot express this model's mixed page sizes ([" + sizes +
                    "]); a backend should declare block-outermost supported layouts (e.g. BLHNC), "
                    "or set VLLM_KV_CACHE_LAYOUT=BLHNC.");
}

bool is_sliced(const KVCacheGroups& groups) {
  return std::any_of(groups.begin(), groups.end(),
                     [](const KVCacheGroup& g) { return g.slices != 1; });
}

void validate_slices(KVCacheLayout layout, const KVCacheGroups& groups) {
  for (size_t g = 0; g < groups.size(); ++g) {
    const int64_t slices = groups[g].slices;
    if (slices == 1) continue;
    const std::string group = "KV cache group " + std::to_string(g);
    // Block tables hold ids of 32 bits, and block 0 of the pool takes as many as it has slices.
    if (slices < 1 || slices > std::numeric_limits<int32_t>::max()) {
      throw InvalidArgument(group + " has slices=" + std::to_string(slices) +
                            "; a block has 1 to " +
                            std::to_string(std::numeric_limits<int32_t>::max()));
    }
    if (groups[g].host_resident) {
      throw InvalidArgument(group + " lies in host memory, whose blocks are not cut: slices is " +
                            std::to_string(slices) + ", must be 1");
    }
    if (is_block_outermost(layout)) continue;
    throw LayoutError(
        "KV cache layout " + std::string(to_string(layout)) +
        " keeps each layer in a region of its own, so a block cannot be cut into the " +
        std::to_string(slices) + " slices of " + group +
        "; set VLLM_KV_CACHE_LAYOUT (kv_cache_layout) to a block-outermost layout, "
        "e.g. BLHNC, or use another grouping.");
  }
}

int64_t get_kv_cache_bytes_per_block(PlanningContext ctx, const KVCacheGroups& groups,
                                     KVCacheLayout layout) {
  if (is_sliced(groups)) {
    validate_slices(layout, groups);
    return sliced_bytes_per_block(ctx, groups);
  }
  if (!is_block_outermost(layout)) {
    // Each layer has its own region, strided by its padded page.
    return widest_group(groups, memoized(ctx, layer_block_stride));
  }
  const int64_t widest = widest_group(groups, [&](SpecId id) { return ctx.page(id); });
  if (widest == 0) return 0;
  int64_t alignment = 1;
  auto stride_alignment = memoized(ctx, get_block_stride_alignment);
  for (const KVCacheGroup& g : groups) {
    alignment = checked::lcm(alignment, group_stride_alignment(ctx, g, stride_alignment),
                             "block stride alignment");
  }
  return checked::round_up(widest, alignment, "bytes per block");
}

int64_t pool_bytes_per_block(PlanningContext ctx, const KVCacheGroups& groups,
                             KVCacheLayout layout) {
  if (std::none_of(groups.begin(), groups.end(),
                   [](const KVCacheGroup& g) { return g.host_resident; })) {
    return get_kv_cache_bytes_per_block(ctx, groups, layout);
  }
  KVCacheGroups device;
  for (const KVCacheGroup& g : groups) {
    if (!g.host_resident) device.push_back(g);
  }
  return get_kv_cache_bytes_per_block(ctx, device, layout);
}

// Groups alias from byte 0, since a block id belongs to one group at a time.
//
//   block-outermost (each block repeats the packing):
//     group 0:  | block 0 [ A | B | pad ] | block 1 [ A | B | pad ] | ...
//     group 1:  | block 0 [   C   |  D  ] | block 1 [   C   |  D  ] | ...
//               |<--- bytes per block --->|
//
//   block-outermost with slices (group 1 has three pages in a block, with ids 0 to 2, 3 to 5, ...):
//     group 0:  | block 0 [ A | B | pad ] | block 1 [ A | B | pad ] | ...
//     group 1:  | [ C ][ C ][ C ]         | [ C ][ C ][ C ]         | ...
//
//   layer-outermost (one page size, or one group):
//     group 0:  | A [ block 0 | block 1 | ... ] | B [ block 0 | block 1 | ... ] |
//     group 1:  | C [ block 0 | block 1 | ... ] | D [ block 0 | block 1 | ... ] |
std::vector<KVCacheTensor> place_kv_cache_groups(PlanningContext ctx, const PlanningConfig& config,
                                                 const KVCacheGroups& groups,
                                                 int64_t bytes_per_block, int64_t num_blocks) {
  const KVCacheLayout layout = config.kv_cache_layout;
  const int64_t size = checked::mul(bytes_per_block, num_blocks, "KV cache buffer");
  std::vector<KVCacheTensor> tensors;
  for (const KVCacheGroup& group : groups) {
    const int64_t num_pages = checked::mul(num_blocks, group.slices, "block ids of a group");
    int64_t offset = 0;
    for (SpecLayers& members : layers_by_spec(ctx, config, group)) {
      const KVCacheSpec& spec = ctx.spec(members.spec);
      const int64_t page = ctx.page(members.spec);
      const int64_t padded_page = layer_block_stride(spec);
      FixedStrides fixed;
      if (is_block_outermost(layout)) {
        fixed[kAxisB] = bytes_per_block / group.slices;
      } else if (padded_page != page) {
        if (!is_block_compact(layout)) {
          throw InconsistentSpec(std::string(to_string(layout)) + " cannot pad pages: a page of " +
                                 std::to_string(page) + " bytes needs a block stride of " +
                                 std::to_string(padded_page));
        }
        fixed[kAxisB] = padded_page;
      }
      const auto num_layers = static_cast<int64_t>(members.layers.size());
      const Strides strides =
          compute_layout_strides(spec, num_pages, num_layers, layout, {}, fixed);
      tensors.push_back({.size = size,
                         .layers = std::move(members.layers),
                         .layer_stride = strides[kAxisL],
                         .block_stride = strides[kAxisB],
                         .offset = offset});
      const int64_t step = is_block_outermost(layout) ? page : strides[kAxisL];
      offset =
          checked::add(offset, checked::mul(num_layers, step, "tensor offset"), "tensor offset");
    }
  }
  return tensors;
}

}  // namespace kvplan
