#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "kvplan/export.h"

namespace kvplan {

struct KVCacheSpec;

/// Physical order of the logical axes L(ayer), B(lock), H(ead), N (states of a block), C(ontent).
enum class KVCacheLayout : uint8_t { kLBHNC, kLBNHC, kLHBNC, kBLHNC, kBLNHC, kBHLNC };

inline constexpr std::array kAllLayouts = {KVCacheLayout::kLBHNC, KVCacheLayout::kLBNHC,
                                           KVCacheLayout::kLHBNC, KVCacheLayout::kBLHNC,
                                           KVCacheLayout::kBLNHC, KVCacheLayout::kBHLNC};

enum Axis : uint8_t { kAxisL, kAxisB, kAxisH, kAxisN, kAxisC };

/// `stride_order(layout)[i]` is the logical axis at physical position `i`, outermost first.
KVPLAN_API const std::array<uint8_t, 5>& stride_order(KVCacheLayout layout);
KVPLAN_API std::string_view to_string(KVCacheLayout layout);
/// Throws `InvalidArgument` that lists the six names.
KVPLAN_API KVCacheLayout parse_layout(std::string_view name);

/// L is outermost: each layer is one contiguous region.
inline bool is_layer_compact(KVCacheLayout l) { return stride_order(l)[0] == kAxisL; }
/// B is outermost: every block holds the pages of all layers.
inline bool is_block_outermost(KVCacheLayout l) { return stride_order(l)[0] == kAxisB; }
/// L and B are outermost: the bytes of a page are one contiguous run.
inline bool is_block_compact(KVCacheLayout l) {
  return stride_order(l)[0] + stride_order(l)[1] == kAxisL + kAxisB;
}
/// A page is laid out [H, N, C].
inline bool is_block_contiguous(KVCacheLayout l) {
  return stride_order(l)[2] == kAxisH && stride_order(l)[3] == kAxisN;
}

using Strides = std::array<int64_t, 5>;
using FixedStrides = std::array<std::optional<int64_t>, 5>;

/// Logical shape `(B, H, N, C)` of one layer's cache, C in bytes. With `kernel_block_size`, B
/// counts kernel blocks. Mirrors vllm/v1/kv_cache_interface.py::compute_layer_kv_cache_shape_bytes
/// (0.33).
KVPLAN_API std::array<int64_t, 4> compute_layer_kv_cache_shape_bytes(
    const KVCacheSpec& spec, int64_t num_blocks, std::optional<int64_t> kernel_block_size = {});

/// Byte strides in logical [L, B, H, N, C] order; a set entry of `fixed` replaces the computed
/// stride. A padded page takes its place at the end of the L/B grid.
/// Mirrors vllm/v1/kv_cache_interface.py::compute_layout_strides (0.33).
KVPLAN_API Strides compute_layout_strides(const KVCacheSpec& spec, int64_t num_blocks,
                                          int64_t num_layers, KVCacheLayout layout,
                                          std::optional<int64_t> kernel_block_size = {},
                                          const FixedStrides& fixed = {});

/// Where the states of several same-shaped layers lie in a buffer, in bytes: `[L, B, H, N, C]`.
struct KVCacheView {
  std::array<int64_t, 5> shape{};
  Strides strides{};
  int64_t offset = 0;
};

/// The view of a tensor's layers: `num_layers` layers, layer l of block b at
/// `offset + l * layer_stride + b * block_stride` of a buffer of `buffer_bytes`. With
/// `kernel_block_size`, B counts kernel blocks of that many tokens. Throws `LayoutError` where the
/// blocks are no dense pages and cannot be split into kernel blocks, `InvalidArgument` for a view
/// that ends outside the buffer, and for strides with which pages lie over each other.
/// Mirrors the arithmetic of vllm/v1/kv_cache_interface.py::create_kv_cache_views (0.33).
KVPLAN_API KVCacheView compute_kv_cache_view(const KVCacheSpec& spec, int64_t num_blocks,
                                             KVCacheLayout layout, int64_t num_layers,
                                             int64_t layer_stride, int64_t block_stride,
                                             int64_t offset, int64_t buffer_bytes,
                                             std::optional<int64_t> kernel_block_size = {});

}  // namespace kvplan
