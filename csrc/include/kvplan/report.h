#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kvplan/export.h"
#include "kvplan/layout.h"
#include "kvplan/plan.h"

namespace kvplan {

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
  double usable_concurrency = 0;  ///< the same without the null block: what starts and runs
  int64_t usable_tokens = 0;      ///< usable concurrency x length
  double steady_concurrency = 0;  ///< in-flight tokens counted once per engine
  int64_t steady_tokens = 0;
  /// What the steady figures charge each request of an encoder's tokens; none without cross
  /// attention.
  std::optional<int64_t> encoder_tokens_per_request;
};

// Reports on a finished plan, computed when asked for.
KVPLAN_API Reasons explain(const Plan& plan);
KVPLAN_API Capacity capacity(const Plan& plan);
KVPLAN_API SafeBlockIds safe_block_ids(const Plan& plan);
/// The longest length that this worker's blocks would hold.
KVPLAN_API int64_t worker_max_model_len(const Plan& plan, size_t worker);

// The plan at other lengths, and what a runtime asks of it.

/// Blocks of the pool that one request of `model_len` tokens holds, whole ones for each group.
KVPLAN_API int64_t request_blocks(const Plan& plan, int64_t model_len);
/// Requests of `model_len` tokens at once, by vLLM's formula as in `Capacity`.
KVPLAN_API double max_concurrency(const Plan& plan, int64_t model_len);
/// Tokens between scheduler decisions, and tokens of a block hash.
KVPLAN_API BlockSizes block_sizes(const Plan& plan);

/// One of a stage's tensors as kernels take it.
struct TensorView {
  size_t tensor = 0;  ///< in `StagePlan::tensors`, which has the layers
  size_t group = 0;
  SpecId spec;       ///< of all its layers
  KVCacheView view;  ///< `[L, B, H, N, C]` in bytes; B counts the group's block ids
};
/// All tensors of a stage, but those of HiSparse pages, which have no such shape. Throws
/// `InvalidArgument` for a stage that the plan does not have.
KVPLAN_API std::vector<TensorView> views(const Plan& plan, size_t stage);

/// The memory that vLLM's message of the fitted length names: of the first worker that allows
/// least, or of worker 0 where all allow the full length. Bytes, without the null block.
KVPLAN_API int64_t auto_fit_memory(const Plan& plan);
/// For each worker with a KV cache, the blocks that its memory would give without
/// `num_gpu_blocks_override`, as vLLM's message says.
KVPLAN_API std::vector<int64_t> blocks_without_override(const Plan& plan);

/// Requests of `config.max_model_len` tokens that `num_blocks` hold, by vLLM's formula.
/// Mirrors vllm/v1/core/kv_cache_utils.py::get_max_concurrency_for_kv_cache_config (0.33).
KVPLAN_API double max_concurrency(PlanningContext ctx, const PlanningConfig& config,
                                  const KVCacheGroups& groups, int64_t num_blocks,
                                  std::optional<int64_t> host_num_blocks = {});

}  // namespace kvplan
