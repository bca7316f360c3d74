#include "kvplan/layout.h"

#include <algorithm>
#include <string>

#include "kvplan/checked.h"
#include "kvplan/spec.h"

namespace kvplan {
namespace {

using Order = std::array<uint8_t, 5>;

struct LayoutInfo {
  std::string_view name;
  Order order;
};

constexpr LayoutInfo kLayouts[] = {
    {"LBHNC", {kAxisL, kAxisB, kAxisH, kAxisN, kAxisC}},
    {"LBNHC", {kAxisL, kAxisB, kAxisN, kAxisH, kAxisC}},
    {"LHBNC", {kAxisL, kAxisH, kAxisB, kAxisN, kAxisC}},
    {"BLHNC", {kAxisB, kAxisL, kAxisH, kAxisN, kAxisC}},
    {"BLNHC", {kAxisB, kAxisL, kAxisN, kAxisH, kAxisC}},
    {"BHLNC", {kAxisB, kAxisH, kAxisL, kAxisN, kAxisC}},
};

const LayoutInfo& info(KVCacheLayout layout) {
  const auto number = static_cast<size_t>(layout);
  if (number < std::size(kLayouts)) return kLayouts[number];
  throw InvalidArgument("no KV cache layout has the number " + std::to_string(number));
}

}  // namespace

const Order& stride_order(KVCacheLayout layout) { return info(layout).order; }

std::string_view to_string(KVCacheLayout layout) { return info(layout).name; }

KVCacheLayout parse_layout(std::string_view name) {
  for (KVCacheLayout layout : kAllLayouts) {
    if (to_string(layout) == name) return layout;
  }
  throw InvalidArgument("unknown KV cache layout '" + std::string(name) +
                        "'; known: LBHNC, LBNHC, LHBNC, BLHNC, BLNHC, BHLNC");
}

std::array<int64_t, 4> compute_layer_kv_cache_shape_bytes(
    const KVCacheSpec& spec, int64_t num_blocks, std::optional<int64_t> kernel_block_size) {
  const int64_t kernel_block = kernel_block_size.value_or(spec.block_size);
  if (kernel_block <= 0 || spec.block_size % kernel_block != 0) {
    throw InconsistentSpec("Kernel block size " + std::to_string(kernel_block) +
                           " must divide KV cache block size " + std::to_string(spec.block_size) +
                           ".");
  }
  return {checked::mul(num_blocks, spec.block_size / kernel_block, "number of kernel blocks"),
          num_heads(spec), num_states(spec, kernel_block), state_content_size_bytes(spec)};
}

Strides compute_layout_strides(const KVCacheSpec& spec, int64_t num_blocks, int64_t num_layers,
                               KVCacheLayout layout, std::optional<int64_t> kernel_block_size,
                               const FixedStrides& fixed) {
  for (const auto& stride : fixed) {
    if (stride && *stride <= 0) {
      throw InconsistentSpec("a fixed stride must be positive, got " + std::to_string(*stride));
    }
  }
  const auto [b, h, n, c] = compute_layer_kv_cache_shape_bytes(spec, num_blocks, kernel_block_size);
  const std::array<int64_t, 5> shape = {num_layers, b, h, n, c};
  const Order& order = stride_order(layout);

  // A page is padded behind its last byte, so nothing of the page may lie outside the L/B grid.
  int page_grid_end = -1;
  if (spec.page_size_padded) {
    if (kernel_block_size && *kernel_block_size != spec.block_size) {
      throw InconsistentSpec("Padded KV pages do not support kernel block splitting.");
    }
    int64_t grid = 1;
    for (int i = 0, seen = 0; seen < 2; ++i) {
      grid = checked::mul(grid, shape[order[i]], "page grid");
      if (order[i] == kAxisL || order[i] == kAxisB) ++seen;
      page_grid_end = i + 1;
    }
    if (grid != checked::mul(num_layers, num_blocks, "page grid")) {
      throw InconsistentSpec("layout " + std::string(to_string(layout)) +
                             " puts heads outside the page, so a page padded to " +
                             std::to_string(*spec.page_size_padded) + " bytes has no single end");
    }
  }

  Strides strides{};
  int64_t current = 1;
  for (int i = 4; i >= 0; --i) {
    const uint8_t axis = order[static_cast<size_t>(i)];
    if (i == page_grid_end - 1) {
      current = std::max(current, *spec.page_size_padded);
      if (current % *spec.page_size_padded != 0) {
        throw InconsistentSpec("a page of " + std::to_string(current) +
                               " bytes is not a multiple of its padded size " +
                               std::to_string(*spec.page_size_padded));
      }
    }
    strides[axis] = fixed[axis].value_or(current);
    current = checked::mul(strides[axis], shape[axis], "layout stride");
  }
  return strides;
}

namespace {

/// Each axis steps over all that lies within it, so that no byte belongs to two pages.
void require_distinct_bytes(const KVCacheView& view, int64_t layer_stride, int64_t block_stride) {
  std::array<size_t, 5> axes = {kAxisL, kAxisB, kAxisH, kAxisN, kAxisC};
  std::sort(axes.begin(), axes.end(),
            [&](size_t a, size_t b) { return view.strides[a] < view.strides[b]; });
  int64_t within = 1;
  for (const size_t axis : axes) {
    if (view.shape[axis] == 1) continue;
    if (view.strides[axis] < within) {
      throw InvalidArgument(
          "pages lie over each other with layer_stride=" + std::to_string(layer_stride) +
          " and block_stride=" + std::to_string(block_stride) + ": a step of " +
          std::to_string(view.strides[axis]) + " bytes has " + std::to_string(within) +
          " bytes to pass");
    }
    within += (view.shape[axis] - 1) * view.strides[axis];
  }
}

}  // namespace

KVCacheView compute_kv_cache_view(const KVCacheSpec& spec, int64_t num_blocks, KVCacheLayout layout,
                                  int64_t num_layers, int64_t layer_stride, int64_t block_stride,
                                  int64_t offset, int64_t buffer_bytes,
                                  std::optional<int64_t> kernel_block_size) {
  if (num_blocks < 1 || num_layers < 1 || offset < 0 || layer_stride < 1 || block_stride < 1) {
    throw InvalidArgument("a view needs blocks, layers and positive strides, got num_blocks=" +
                          std::to_string(num_blocks) + ", " + std::to_string(num_layers) +
                          " layers, offset=" + std::to_string(offset) +
                          ", layer_stride=" + std::to_string(layer_stride) +
                          ", block_stride=" + std::to_string(block_stride));
  }
  const auto [b, h, n, c] = compute_layer_kv_cache_shape_bytes(spec, num_blocks, kernel_block_size);
  const int64_t ratio = b / num_blocks;
  if (ratio > 1) {
    // Kernel blocks lie a constant stride apart only if nothing lies between the blocks.
    const int64_t states = num_states(spec, spec.block_size);
    const int64_t dense_page = checked::mul(h, checked::mul(states, c, "page"), "page");
    if (checked::mul(ratio, n, "states") > states) {
      throw LayoutError("the " + std::to_string(states) + " states of a block of " +
                        std::to_string(spec.block_size) + " tokens cannot be split into " +
                        std::to_string(ratio) + " kernel blocks of " +
                        std::to_string(*kernel_block_size) + " tokens");
    }
    // Where the heads of a block lie outside its layers, so do the heads of each kernel block.
    const bool heads_apart = layout == KVCacheLayout::kBHLNC && h > 1;
    if (block_stride != dense_page || heads_apart) {
      throw LayoutError(
          "layout " + std::string(to_string(layout)) + " stores blocks " +
          std::to_string(block_stride) + " bytes apart, a page has " + std::to_string(dense_page) +
          (heads_apart ? ", in heads with other layers between them" : "") + ": a block of " +
          std::to_string(spec.block_size) + " tokens cannot be split into " +
          std::to_string(ratio) + " kernel blocks of " + std::to_string(*kernel_block_size) +
          " tokens; use --block-size " + std::to_string(*kernel_block_size) +
          " or a layer-compact layout (VLLM_KV_CACHE_LAYOUT=LBNHC)");
    }
    block_stride /= ratio;
  }
  FixedStrides fixed;
  fixed[kAxisL] = layer_stride;
  fixed[kAxisB] = block_stride;
  KVCacheView view;
  view.shape = {num_layers, b, h, n, c};
  view.strides =
      compute_layout_strides(spec, num_blocks, num_layers, layout, kernel_block_size, fixed);
  view.offset = offset;
  int64_t end = checked::add(offset, 1, "end of the view");
  for (size_t i = 0; i < view.shape.size(); ++i) {
    if (view.shape[i] == 0) return view;  // no states, no bytes
    end = checked::add(end, checked::mul(view.shape[i] - 1, view.strides[i], "end of the view"),
                       "end of the view");
  }
  if (end > buffer_bytes) {
    throw InvalidArgument("the view of " + std::to_string(num_layers) + " layers and " +
                          std::to_string(num_blocks) + " blocks ends at byte " +
                          std::to_string(end) + " of a buffer of " + std::to_string(buffer_bytes));
  }
  require_distinct_bytes(view, layer_stride, block_stride);
  return view;
}

}  // namespace kvplan
