#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kvplan/config.h"
#include "kvplan/export.h"
#include "kvplan/plan.h"

/// `grouping="sliced"`: one group for each kind of cache, and blocks of the pool that every group
/// cuts into slices of its own. docs/sliced.md states the problem and its limits.
namespace kvplan {

/// How the sliced grouping cuts the blocks of a model's pool.
struct SlicedPoint {
  int64_t num_groups = 0;
  int64_t max_layers_per_group = 0;  ///< on one pipeline stage
  int64_t bytes_per_block = 0;       ///< of the pool, on the widest pipeline stage
  std::vector<int64_t> slices;       ///< of each group, in group order
  int64_t request_bytes = 0;         ///< slices of a request of the reference length
  int64_t request_blocks = 0;        ///< whole blocks of the pool for one of `max_model_len` tokens
  int64_t min_request_bytes = 0;     ///< slices of a request of one token
  bool exact = true;                 ///< whether no other slices of these groups are cheaper

  bool operator==(const SlicedPoint&) const = default;
};

/// What a sliced grouping needs to know of the workers' memory: the smallest of them, in bytes.
/// None where it is not known; a pool that holds one request of the reference length is then
/// assumed, the smallest that planning would accept. More than 64 requests count as 64.
using PoolBytes = std::optional<int64_t>;

/// The layers in one group for each kind of cache, with their slices. `layers` are the model's,
/// `layer_lists` say which of them lie together on a pipeline stage. Falls back to vLLM's own
/// grouping, with a notice, where there is nothing to cut: one kind of cache, the hybrid KV cache
/// manager disabled, HiSparse. Throws `LayoutError` unless the layout is block-outermost.
KVPLAN_API KVCacheGroups get_sliced_kv_cache_groups(PlanningContext ctx,
                                                    const PlanningConfig& config,
                                                    LayerSpecs& layers,
                                                    const std::vector<LayerSpecs>& layer_lists,
                                                    PoolBytes pool_bytes = {});

/// What that grouping costs; none where it falls back or the layout cannot be sliced.
KVPLAN_API std::optional<SlicedPoint> sliced_point(const PlanRequest& request,
                                                   const PlanningConfig& config);

}  // namespace kvplan
