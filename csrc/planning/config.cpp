#include "kvplan/config.h"

#include <string_view>

#include "kvplan/errors.h"

namespace kvplan {
namespace {

void require_at_least(std::string_view field, int64_t value, int64_t min) {
  if (value >= min) return;
  throw InvalidArgument("PlanningConfig: " + std::string(field) + " must be at least " +
                        std::to_string(min) + ", got " + std::to_string(value));
}

void require_at_least(std::string_view field, const std::optional<int64_t>& value, int64_t min) {
  if (value) require_at_least(field, *value, min);
}

}  // namespace

MambaCacheMode parse_mamba_cache_mode(const std::string& name) {
  if (name == "none") return MambaCacheMode::kNone;
  if (name == "align") return MambaCacheMode::kAlign;
  if (name == "all") return MambaCacheMode::kAll;
  throw InvalidArgument("unknown mamba_cache_mode '" + name + "'; known: none, align, all");
}

Grouping parse_grouping(const std::string& name) {
  if (name == "vllm") return Grouping::kVllm;
  if (name == "compact") return Grouping::kCompact;
  if (name == "sliced") return Grouping::kSliced;
  throw InvalidArgument("unknown grouping '" + name + "'; known: vllm, compact, sliced");
}

DraftRule parse_draft_rule(const std::string& name) {
  if (name == "auto") return DraftRule::kAuto;
  if (name == "is_draft") return DraftRule::kIsDraft;
  if (name == "marker") return DraftRule::kMarker;
  throw InvalidArgument("unknown draft_rule '" + name + "'; known: auto, is_draft, marker");
}

void validate(const PlanningConfig& c) {
  require_at_least("max_model_len", c.max_model_len, 1);
  require_at_least("max_in_flight_tokens", c.max_in_flight_tokens, 0);
  require_at_least("max_concurrent_batches", c.max_concurrent_batches, 1);
  require_at_least("tensor_parallel_size", c.tensor_parallel_size, 1);
  require_at_least("pipeline_parallel_size", c.pipeline_parallel_size, 1);
  require_at_least("decode_context_parallel_size", c.decode_context_parallel_size, 1);
  require_at_least("num_gpu_blocks_override", c.num_gpu_blocks_override, 0);
  require_at_least("max_num_encoder_input_tokens", c.max_num_encoder_input_tokens, 0);
  require_at_least("encoder_tokens_per_request", c.encoder_tokens_per_request, 0);
  require_at_least("num_prefill_lookahead_tokens", c.num_prefill_lookahead_tokens, 0);
  require_at_least("block_size", c.block_size, 1);
  require_at_least("prefix_match_unit", c.prefix_match_unit, 1);
  require_at_least("prefix_cache_retention_interval", c.prefix_cache_retention_interval, 0);
  require_at_least("max_groups", c.max_groups, 1);
  require_at_least("reference_model_len", c.reference_model_len, 1);
  require_at_least("min_large_blocks", c.min_large_blocks, 1);
  for (const KernelBlockSize& k : c.attention_kernel_block_sizes) {
    require_at_least("attention_kernel_block_sizes", k.tokens, 1);
  }
  for (const KernelBlockSize& k : c.mla_kernel_block_sizes) {
    require_at_least("mla_kernel_block_sizes", k.tokens, 1);
  }
}

}  // namespace kvplan
