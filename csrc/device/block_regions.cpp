#include "kvplan/device/block_regions.h"

#include <algorithm>
#include <string>

#include "kvplan/checked.h"
#include "kvplan/plan.h"

namespace kvplan::cuda {
namespace {

/// The runs of bytes that hold the pages of one block.
void add_runs(const PlacedLayers& p, KVCacheLayout layout, int64_t buffer_bytes,
              std::vector<BlockRegion>& out) {
  const KVCacheSpec& spec = *p.spec;
  const auto add = [&](int64_t offset, int64_t size) {
    const int64_t end = checked::add(
        checked::add(offset, checked::mul(p.num_blocks - 1, p.block_stride, "page"), "page"), size,
        "page");
    if (end > buffer_bytes) {
      throw InvalidArgument("a page ends at byte " + std::to_string(end) + " of a buffer of " +
                            std::to_string(buffer_bytes));
    }
    out.push_back({offset, p.block_stride, size});
  };
  if (is_block_compact(layout) || !has_layer_views(spec)) {
    const int64_t page = page_size_bytes(spec);
    for (int64_t l = 0; l < p.num_layers; ++l) {
      add(checked::add(p.offset, checked::mul(l, p.layer_stride, "page"), "page"), page);
    }
    return;
  }
  // The heads of a page lie apart.
  const KVCacheView view =
      compute_kv_cache_view(spec, p.num_blocks, layout, p.num_layers, p.layer_stride,
                            p.block_stride, p.offset, buffer_bytes);
  const int64_t head_bytes =
      checked::mul(view.shape[kAxisN], view.shape[kAxisC], "bytes of a head");
  for (int64_t l = 0; l < p.num_layers; ++l) {
    for (int64_t h = 0; h < view.shape[kAxisH]; ++h) {
      add(p.offset + l * p.layer_stride + h * view.strides[kAxisH], head_bytes);
    }
  }
}

/// `group.layers[i]` or the first layer's spec where all have one.
const KVCacheSpec& spec_of(const Plan& plan, const KVCacheGroup& group, LayerId layer) {
  const auto it = std::find(group.layers.begin(), group.layers.end(), layer);
  return (*plan.specs)[layer_spec_id(group, static_cast<size_t>(it - group.layers.begin()))];
}

}  // namespace

std::vector<BlockRegion> block_regions(std::span<const PlacedLayers> layers, KVCacheLayout layout,
                                       int64_t buffer_bytes) {
  std::vector<BlockRegion> runs;
  for (const PlacedLayers& p : layers) add_runs(p, layout, buffer_bytes, runs);
  std::sort(runs.begin(), runs.end(), [](const BlockRegion& a, const BlockRegion& b) {
    return a.offset != b.offset ? a.offset < b.offset : a.size > b.size;
  });
  std::vector<BlockRegion> regions;
  for (const BlockRegion& run : runs) {
    if (run.size == 0) continue;
    if (!regions.empty()) {
      BlockRegion& last = regions.back();
      const int64_t end = last.offset + last.size;
      if (run.block_stride == last.block_stride && run.offset <= end) {
        last.size = std::max(end, run.offset + run.size) - last.offset;
        continue;
      }
      if (run.offset < end) {
        throw InvalidArgument("pages that lie over each other have block strides of " +
                              std::to_string(last.block_stride) + " and " +
                              std::to_string(run.block_stride) +
                              " bytes, so an id is not one block in both; ask for one group");
      }
    }
    regions.push_back(run);
  }
  return regions;
}

std::vector<BlockRegion> block_regions(const Plan& plan, size_t worker,
                                       std::optional<size_t> group) {
  if (worker >= plan.workers.size()) {
    throw InvalidArgument("worker " + std::to_string(worker) + " of " +
                          std::to_string(plan.workers.size()));
  }
  const StagePlan& stage = plan.stage_of(worker);
  if (group && *group >= stage.groups.size()) {
    throw InvalidArgument("group " + std::to_string(*group) + " of " +
                          std::to_string(stage.groups.size()));
  }
  std::vector<PlacedLayers> placed;
  int64_t buffer_bytes = 0;
  for (const KVCacheTensor& t : stage.tensors) {
    if (t.layers.empty()) continue;
    for (size_t g = 0; g < stage.groups.size(); ++g) {
      const std::vector<LayerId>& names = stage.groups[g].layers;
      if (std::find(names.begin(), names.end(), t.layers.front()) == names.end()) continue;
      buffer_bytes = std::max(buffer_bytes, t.size);
      if (group && *group != g) continue;
      placed.push_back(
          {.spec = &spec_of(plan, stage.groups[g], t.layers.front()),
           .num_layers = static_cast<int64_t>(t.layers.size()),
           .layer_stride = t.layer_stride,
           .block_stride = t.block_stride,
           .offset = t.offset,
           .num_blocks = checked::mul(plan.num_blocks, stage.groups[g].slices, "block ids")});
    }
  }
  return block_regions(placed, plan.config.kv_cache_layout, buffer_bytes);
}

}  // namespace kvplan::cuda
