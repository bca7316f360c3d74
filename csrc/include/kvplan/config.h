#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvplan/export.h"
#include "kvplan/layout.h"

namespace kvplan {

enum class MambaCacheMode : uint8_t { kNone, kAlign, kAll };
KVPLAN_API MambaCacheMode parse_mamba_cache_mode(const std::string& name);
KVPLAN_API std::string_view to_string(MambaCacheMode mode);

enum class Grouping : uint8_t { kVllm, kCompact, kSliced };
KVPLAN_API Grouping parse_grouping(const std::string& name);
KVPLAN_API std::string_view to_string(Grouping grouping);

/// How the drafter's groups are recognised.
enum class DraftRule : uint8_t {
  kAuto,     ///< `is_draft` where any spec has it, else the spec marker and the trailing MTP layer
  kIsDraft,  ///< `is_draft` alone: vLLM 0.33
  kMarker,   ///< the spec marker, then the trailing MTP layer: vLLM before 0.33
};
KVPLAN_API DraftRule parse_draft_rule(const std::string& name);
KVPLAN_API std::string_view to_string(DraftRule rule);

/// A block size that an attention kernel takes: `tokens`, or every multiple of it.
struct KernelBlockSize {
  int64_t tokens = 1;
  bool multiples = false;
  bool operator==(const KernelBlockSize&) const = default;
};

/// What the planner reads of an engine's configuration. vLLM's name and source in the comments.
struct PlanningConfig {
  int64_t max_model_len = 0;            ///< tokens; with `auto_fit`, the largest length to try
  bool auto_fit = false;                ///< `model_config.original_max_model_len == -1`
  int64_t max_in_flight_tokens = 8192;  ///< tokens scheduled but not settled, all batches together
  int64_t max_concurrent_batches = 1;   ///< divides the above into one batch's budget, in messages
  KVCacheLayout kv_cache_layout = KVCacheLayout::kLBNHC;
  int64_t tensor_parallel_size = 1;
  int64_t pipeline_parallel_size = 1;
  int64_t decode_context_parallel_size = 1;
  std::optional<int64_t> num_gpu_blocks_override;
  MambaCacheMode mamba_cache_mode = MambaCacheMode::kNone;
  bool disable_hybrid_kv_cache_manager = false;
  int64_t max_num_encoder_input_tokens = 0;
  /// Tokens that the encoder makes of one request. vLLM's formula charges each request those of a
  /// whole step, a running server only its own; none: not known, so the steady figures do as well.
  std::optional<int64_t> encoder_tokens_per_request;
  int64_t num_prefill_lookahead_tokens = 0;
  int64_t block_size = 16;  ///< `cache_config.block_size`, the scheduler's for a single group
  bool enable_prefix_caching = true;
  bool has_kv_connector = false;  ///< `kv_transfer_config is not None`
  std::optional<int64_t> prefix_match_unit;
  std::optional<int64_t> prefix_cache_retention_interval;
  std::string device_type = "cuda";

  std::optional<std::string> speculative_method;
  bool use_eagle = false;             ///< `speculative_config.use_eagle()`
  bool use_eagle_block_drop = false;  ///< `speculative_config.use_eagle_block_drop()`
  std::string model_type;             ///< `hf_config.model_type`
  DraftRule draft_rule = DraftRule::kAuto;

  /// vLLM 0.33 gives a pipeline stage that owns no layer of a uniform-type group the other stages'
  /// layers, which lie outside its buffer. Set only where the result must equal vLLM's.
  bool place_foreign_layers = false;

  Grouping grouping = Grouping::kVllm;
  std::optional<int64_t> max_groups;           ///< of `kCompact`; none: `kDefaultMaxGroups`
  std::optional<int64_t> reference_model_len;  ///< of both; none: `max_model_len`
  /// Tokens of the request that `kCompact` and `kSliced` make the least of.
  int64_t reference_len() const { return reference_model_len.value_or(max_model_len); }
  /// Of `kSliced`: blocks that the pool is to have at least. Wider blocks hold less padding, but
  /// more of them are used in part.
  int64_t min_large_blocks = 700;
  /// What the layers' backends publish through `get_supported_kernel_block_sizes`; the defaults are
  /// those of vLLM's FlashAttention and FlashMLA. `kCompact` asks where it scales a block that vLLM
  /// cannot cut into kernel blocks: with a padded page, or in a block-outermost layout.
  std::vector<KernelBlockSize> attention_kernel_block_sizes =
      std::vector(1, KernelBlockSize{16, true});
  std::vector<KernelBlockSize> mla_kernel_block_sizes = std::vector(1, KernelBlockSize{64, false});
};

/// Throws `InvalidArgument` that names the field, its value and the limit.
KVPLAN_API void validate(const PlanningConfig& config);

}  // namespace kvplan
