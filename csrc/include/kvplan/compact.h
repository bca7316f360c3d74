#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kvplan/config.h"
#include "kvplan/export.h"
#include "kvplan/plan.h"

/// `grouping="compact"`: groupings that hold more tokens in the same memory, and the curve of
/// groups against bytes that they lie on. docs/compact.md states the problem and the proof.
namespace kvplan {

/// Groups that a plan may have where `max_groups` is not given; never fewer than vLLM's own count.
inline constexpr int64_t kDefaultMaxGroups = 32;

/// What a group must then save, in parts of a request's bytes: a scheduling step takes longer with
/// every group (benchmarks/compact.py), so a hair's breadth of memory is not worth ten of them.
inline constexpr double kGroupPrice = 0.005;

/// One way to group the model's layers.
struct GroupingPoint {
  int64_t num_groups = 0;
  int64_t max_layers_per_group = 0;  ///< on one pipeline stage
  int64_t bytes_per_block = 0;       ///< on the widest pipeline stage
  int64_t request_blocks = 0;        ///< of the reference length
  int64_t request_bytes = 0;         ///< of the reference length, on the widest stage
  int64_t min_request_bytes = 0;     ///< of one token: every group pins a block at least
  int64_t bound_bytes = 0;           ///< no grouping with as many groups takes less than this
  bool is_vllm = false;              ///< vLLM's own grouping

  bool operator==(const GroupingPoint&) const = default;
};

/// The groupings that no other beats in both groups and bytes, fewest groups first.
struct Frontier {
  int64_t reference_model_len = 0;
  std::vector<GroupingPoint> points;
  std::optional<GroupingPoint> vllm;  ///< none where vLLM cannot group the model
  int64_t lower_bound_bytes = 0;      ///< one request without any padding
  bool exact = true;                  ///< whether every point is proven to be the best
  size_t chosen = 0;                  ///< the point that planning with this configuration takes
};

/// The frontier of a model. Ignores the workers' memory.
KVPLAN_API Frontier frontier(const PlanRequest& request, const PlanningConfig& config);

/// The grouping of fewest bytes with at most `config.max_groups` groups that vLLM can run; vLLM's
/// own is one of the candidates. Without `max_groups`, more groups than needed must be worth their
/// price, and no point with more bytes than vLLM's own is taken. `layers` are the model's,
/// `layer_lists` say which of them lie together on a pipeline stage. Throws `InvalidArgument` where
/// no grouping has so few groups.
KVPLAN_API KVCacheGroups get_compact_kv_cache_groups(PlanningContext ctx,
                                                     const PlanningConfig& config,
                                                     LayerSpecs& layers,
                                                     const std::vector<LayerSpecs>& layer_lists);

}  // namespace kvplan
