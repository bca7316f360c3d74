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
#include "kvplan/export.h"
#include "kvplan/groups.h"
#include "kvplan/planning.h"

namespace kvplan {

/// What is to be planned: the layers and the memory of every worker. Workers with the same layers
/// (the TP ranks of a pipeline stage) share one layer list, so that their number costs little.
class KVPLAN_API PlanRequest {
 public:
  PlanRequest();

  SpecId add_spec(const KVCacheSpec& spec) { return specs_.intern(spec); }
  LayerId add_layer_name(std::string_view name) { return names_->intern(name); }
  /// Adds a list of layers, or finds the one that is the same; returns its index. Throws
  /// `InvalidArgument` for a layer that is named twice.
  size_t add_layers(LayerSpecs layers);
  void add_worker(size_t layers_index, int64_t available_bytes);
  /// Plans with these groups instead of grouping the layers.
  void set_groups(KVCacheGroups groups) { groups_ = std::move(groups); }
  /// Someone else places the groups of the workers with these layers, and says what a block takes.
  /// The plan then has no tensors for them.
  void set_bytes_per_block(size_t layers_index, int64_t bytes_per_block);

  struct Worker {
    size_t layers_index;
    int64_t available_bytes;
  };

  const std::shared_ptr<NameTable>& names() const { return names_; }
  SpecTable& specs() { return specs_; }
  const SpecTable& specs() const { return specs_; }
  const std::vector<LayerSpecs>& layer_lists() const { return layer_lists_; }
  const std::vector<Worker>& workers() const { return workers_; }
  const std::optional<KVCacheGroups>& groups() const { return groups_; }
  std::optional<int64_t> bytes_per_block(size_t layers_index) const;

 private:
  std::shared_ptr<NameTable> names_;
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

/// The largest block id whose page begins below 2^31, as a byte and as an element offset.
struct SafeBlockIds {
  int64_t bytes = 0;
  int64_t elements = 0;
};

/// One group's share of a request.
/// A group's block is one of its slices where it cuts the pool's blocks.
struct GroupReport {
  int64_t slices = 1;                      ///< of this group in one block of the pool
  int64_t slice_bytes = 0;                 ///< of one block of the group: its share of a pool block
  int64_t page_size_bytes = 0;             ///< bytes of one block that hold this group's layers
  int64_t padding_bytes = 0;               ///< bytes of one block that hold nothing
  int64_t content_bytes = 0;               ///< bytes of one block that hold states
  int64_t pages_per_request = 0;           ///< at the planned length
  int64_t pool_blocks_per_request = 0;     ///< whole blocks of the pool for these
  int64_t pages_fixed = 0;                 ///< of these, held whatever the length, windows full
  std::optional<int64_t> tokens_per_page;  ///< none for a group that stops growing
  SafeBlockIds safe_block_ids;             ///< of the group's own block ids, on all stages
};

/// Cost of one request of the planned length on the limiting worker, and what limits it.
struct Reasons {
  size_t limiting_worker = 0;  ///< the worker with the fewest blocks for its request
  size_t limiting_group = 0;   ///< the group that holds most of a request
  std::vector<GroupReport> groups;
  int64_t bytes_per_block = 0;
  int64_t request_blocks = 0;  ///< of the pool, whole ones for each group
  int64_t request_bytes = 0;   ///< of these blocks
  int64_t fixed_bytes_per_request = 0;
  double bytes_per_token = 0;    ///< of the groups that grow with the length
  int64_t next_token_bytes = 0;  ///< what a request of one token more holds in addition
};

struct Capacity {
  double max_concurrency = 0;     ///< vLLM's: every request charged the whole in-flight window
  int64_t tokens = 0;             ///< vLLM's: concurrency x length
  int64_t usable_tokens = 0;      ///< the same without the null block
  double steady_concurrency = 0;  ///< in-flight tokens counted once per engine
  int64_t steady_tokens = 0;
  /// What the steady figures charge each request of an encoder's tokens; none without cross
  /// attention.
  std::optional<int64_t> encoder_tokens_per_request;
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

  const StagePlan& stage_of(size_t worker) const { return stages[workers[worker].stage]; }
};

/// The layers of all workers in order of first appearance, as grouping takes them: windows keep the
/// tokens that several speculative modules read anew. Throws `InconsistentSpec` for a layer whose
/// spec differs between workers, `InvalidArgument` for one that holds no KV cache.
KVPLAN_API LayerSpecs merge_worker_layers(const PlanningContext& ctx, const PlanningConfig& config,
                                          const std::vector<LayerSpecs>& layer_lists);
/// Checks that the groups hold every layer once, and flags the drafter's.
KVPLAN_API void finish_global_groups(const PlanningContext& ctx, const PlanningConfig& config,
                                     const LayerSpecs& layers, KVCacheGroups& groups);
/// Groups the model's layers. `pool_bytes` is the smallest memory of a worker that holds layers,
/// where it is known; only sliced grouping asks for it. Mirrors
/// vllm/v1/core/kv_cache_planning.py::get_global_kv_cache_groups (0.33).
KVPLAN_API KVCacheGroups get_global_kv_cache_groups(const PlanningContext& ctx,
                                                    const PlanningConfig& config,
                                                    const std::vector<LayerSpecs>& layer_lists,
                                                    std::optional<int64_t> pool_bytes = {});
/// That memory; none where there are no workers, or no memory.
KVPLAN_API std::optional<int64_t> smallest_memory(const PlanRequest& request);

/// Plans the KV cache of all workers. Throws one of the exceptions of errors.h and changes nothing
/// where the request cannot be planned.
/// Mirrors vllm/v1/core/kv_cache_planning.py::get_kv_cache_configs (0.33).
KVPLAN_API Plan plan(const PlanRequest& request, const PlanningConfig& config);

// Reports on a finished plan, computed when asked for.
KVPLAN_API Reasons explain(const Plan& plan);
KVPLAN_API Capacity capacity(const Plan& plan);
KVPLAN_API SafeBlockIds safe_block_ids(const Plan& plan);
/// The longest length that this worker's blocks would hold.
KVPLAN_API int64_t worker_max_model_len(const Plan& plan, size_t worker);

/// Requests of `config.max_model_len` tokens that `num_blocks` hold, by vLLM's formula.
/// Mirrors vllm/v1/core/kv_cache_utils.py::get_max_concurrency_for_kv_cache_config (0.33).
KVPLAN_API double max_concurrency(const PlanningContext& ctx, const PlanningConfig& config,
                                  const KVCacheGroups& groups, int64_t num_blocks,
                                  std::optional<int64_t> host_num_blocks = {});

}  // namespace kvplan
