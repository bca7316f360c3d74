#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kvplan/device/block_arithmetic.h"
#include "kvplan/export.h"
#include "kvplan/layout.h"

namespace kvplan {
struct Plan;
}

namespace kvplan::cuda {

/// Layers of one spec and where they lie: a `KVCacheTensor` with what it needs.
struct PlacedLayers {
  const KVCacheSpec* spec = nullptr;
  int64_t num_layers = 0;
  int64_t layer_stride = 0;
  int64_t block_stride = 0;
  int64_t offset = 0;
  int64_t num_blocks = 0;  ///< block ids of the group
};

/// The bytes that belong to a block id: every page of the layers, padding included, each byte once.
/// Pages side by side are one region. Throws `InvalidArgument` where layers that lie over each
/// other have different block strides (groups with different slices: ask for one group), or where a
/// page ends outside the buffer.
KVPLAN_API std::vector<BlockRegion> block_regions(std::span<const PlacedLayers> layers,
                                                  KVCacheLayout layout, int64_t buffer_bytes);
/// The same for a worker of a plan, all groups together or one of them.
KVPLAN_API std::vector<BlockRegion> block_regions(const Plan& plan, size_t worker,
                                                  std::optional<size_t> group = {});

}  // namespace kvplan::cuda
