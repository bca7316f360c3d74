#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kvplan/config.h"
#include "kvplan/detail/copy_on_write.h"
#include "kvplan/export.h"
#include "kvplan/groups.h"
#include "kvplan/planning.h"

namespace kvplan {

/// What is to be planned: the layers and the memory of every worker. Workers with the same layers
/// (the TP ranks of a pipeline stage) share one layer list, so that their number costs little.
///
/// A value: a copy is independent of what it was copied from, and several threads may plan one
/// request while nobody adds to it.
class KVPLAN_API PlanRequest {
 public:
  /// `finalize`s a copy of the spec, and throws what that throws.
  SpecId add_spec(KVCacheSpec spec);
  LayerId add_layer_name(std::string_view name);
  /// Adds a list of layers, or finds the one that is the same; returns its index. Throws
  /// `InvalidArgument` for a layer that is named twice.
  size_t add_layers(LayerSpecs layers);
  /// Throws `InvalidArgument` for a list that does not exist.
  void add_worker(size_t layers_index, int64_t available_bytes);
  /// Plans with these groups instead of grouping the layers.
  void set_groups(KVCacheGroups groups) { groups_ = std::move(groups); }
  /// Someone else places the groups of the workers with these layers, and says what a block takes.
  /// The plan then has no tensors for them. Throws `InvalidArgument` for a list that does not
  /// exist.
  void set_bytes_per_block(size_t layers_index, int64_t bytes_per_block);

  struct Worker {
    size_t layers_index;
    int64_t available_bytes;
  };

  /// Never null.
  const NameTable* names() const { return &*names_; }
  /// To add many names at once.
  NameTable& own_names() { return names_.write(); }
  /// The names as they are now, whatever is added later.
  std::shared_ptr<const NameTable> share_names() const { return names_.share(); }
  SpecTable& specs() { return specs_; }
  const SpecTable& specs() const { return specs_; }
  const std::vector<LayerSpecs>& layer_lists() const { return layer_lists_; }
  const std::vector<Worker>& workers() const { return workers_; }
  const std::optional<KVCacheGroups>& groups() const { return groups_; }
  std::optional<int64_t> bytes_per_block(size_t layers_index) const;

 private:
  void require_list(size_t layers_index, const std::string& whose) const;

  detail::CopyOnWrite<NameTable> names_;
  SpecTable specs_;
  std::vector<LayerSpecs> layer_lists_;
  detail::PositionIndex lists_by_hash_;
  std::vector<Worker> workers_;
  std::optional<KVCacheGroups> groups_;
  std::unordered_map<size_t, int64_t> bytes_per_block_;
};

/// The plan of all workers that have the same layers.
struct StagePlan {
  KVCacheGroups groups;  ///< the model's groups, with this stage's layers
  std::vector<KVCacheTensor> tensors;
  int64_t num_layers = 0;
  int64_t bytes_per_block = 0;
  int64_t request_bytes = 0;  ///< what one request of the planned length holds
  int64_t kv_tp_replicas = 1;
};

struct WorkerPlan {
  size_t stage;
  int64_t available_bytes;
  int64_t effective_bytes;  ///< with a block override, what the override takes
  int64_t num_blocks;       ///< what this worker alone could have
};

/// The answer for all workers. Immutable.
struct Plan {
  PlanningConfig config;  ///< with the fitted length
  int64_t requested_max_model_len = 0;
  std::shared_ptr<const NameTable> names;
  std::shared_ptr<const SpecTable> specs;
  KVCacheGroups groups;  ///< of the whole model
  int64_t num_blocks = 0;
  std::vector<StagePlan> stages;
  std::vector<WorkerPlan> workers;
  Notices notices;

  /// Throws `InvalidArgument` for a worker that the plan does not have.
  KVPLAN_API const StagePlan& stage_of(size_t worker) const;
};

/// Throws `InvalidArgument` for what no planner returns: a plan without workers or tables, or one
/// whose numbers name a stage, group, layer, spec or enumerator that does not exist. Everything
/// that takes a plan asks this first.
KVPLAN_API void validate(const Plan& plan);

/// The smallest memory of a worker that holds layers; none where there are none, or no memory.
KVPLAN_API std::optional<int64_t> smallest_memory(const PlanRequest& request);

/// Plans the KV cache of all workers. Throws one of the exceptions of errors.h and changes nothing
/// where the request cannot be planned.
/// Mirrors vllm/v1/core/kv_cache_planning.py::get_kv_cache_configs (0.33).
KVPLAN_API Plan plan(const PlanRequest& request, const PlanningConfig& config);

}  // namespace kvplan
