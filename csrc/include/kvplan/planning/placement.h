#pragma once

#include <cstdint>
#include <vector>

#include "kvplan/config.h"
#include "kvplan/export.h"
#include "kvplan/groups.h"
#include "kvplan/layout.h"

namespace kvplan {

/// Throws `LayoutError` where pages of several sizes need another layout.
KVPLAN_API void validate_kv_cache_layout(PlanningContext ctx, KVCacheLayout layout,
                                         const KVCacheGroups& groups);

/// What every slice of a pool block that is cut into several is aligned to, beside the stride
/// alignment of its layers: kernels load 16 bytes at once.
inline constexpr int64_t kSliceAlignment = 16;

/// Whether any group has several pages in a block of the pool.
KVPLAN_API bool is_sliced(const KVCacheGroups& groups);

/// Throws `InvalidArgument` for a number of slices out of range, `LayoutError` where the layout
/// cannot cut blocks into slices.
KVPLAN_API void validate_slices(KVCacheLayout layout, const KVCacheGroups& groups);

/// Bytes of one block of the pool: of the widest group. With slices, the smallest number that all
/// groups can cut into their slices, each as large as the group's pages and aligned.
KVPLAN_API int64_t get_kv_cache_bytes_per_block(PlanningContext ctx, const KVCacheGroups& groups,
                                                KVCacheLayout layout);

/// The same over the groups in device memory: what one block id takes from the pool.
KVPLAN_API int64_t pool_bytes_per_block(PlanningContext ctx, const KVCacheGroups& groups,
                                        KVCacheLayout layout);

/// Where a set of same-shaped layers lies: layer l, block b at
/// `offset + l * layer_stride + b * block_stride`.
struct KVCacheTensor {
  int64_t size = 0;  ///< bytes of the backing allocation
  std::vector<LayerId> layers;
  int64_t layer_stride = 0;
  int64_t block_stride = 0;
  int64_t offset = 0;
};

/// Places the groups for exactly `num_blocks` blocks.
KVPLAN_API std::vector<KVCacheTensor> place_kv_cache_groups(PlanningContext ctx,
                                                            const PlanningConfig& config,
                                                            const KVCacheGroups& groups,
                                                            int64_t bytes_per_block,
                                                            int64_t num_blocks);

}  // namespace kvplan
