#pragma once

#include "kvplan/config.h"

namespace kvplan {

/// Visits every field by its name in Python and in JSON; `max_model_len` is the only one without a
/// default.
template <class Visitor>
void for_each_config_field(Visitor&& visit) {
  using C = PlanningConfig;
  visit("max_model_len", &C::max_model_len);
  visit("auto_fit", &C::auto_fit);
  visit("max_in_flight_tokens", &C::max_in_flight_tokens);
  visit("max_concurrent_batches", &C::max_concurrent_batches);
  visit("kv_cache_layout", &C::kv_cache_layout);
  visit("tensor_parallel_size", &C::tensor_parallel_size);
  visit("pipeline_parallel_size", &C::pipeline_parallel_size);
  visit("decode_context_parallel_size", &C::decode_context_parallel_size);
  visit("num_gpu_blocks_override", &C::num_gpu_blocks_override);
  visit("mamba_cache_mode", &C::mamba_cache_mode);
  visit("disable_hybrid_kv_cache_manager", &C::disable_hybrid_kv_cache_manager);
  visit("max_num_encoder_input_tokens", &C::max_num_encoder_input_tokens);
  visit("encoder_tokens_per_request", &C::encoder_tokens_per_request);
  visit("num_prefill_lookahead_tokens", &C::num_prefill_lookahead_tokens);
  visit("block_size", &C::block_size);
  visit("enable_prefix_caching", &C::enable_prefix_caching);
  visit("has_kv_connector", &C::has_kv_connector);
  visit("prefix_match_unit", &C::prefix_match_unit);
  visit("prefix_cache_retention_interval", &C::prefix_cache_retention_interval);
  visit("device_type", &C::device_type);
  visit("speculative_method", &C::speculative_method);
  visit("use_eagle", &C::use_eagle);
  visit("use_eagle_block_drop", &C::use_eagle_block_drop);
  visit("model_type", &C::model_type);
  visit("draft_rule", &C::draft_rule);
  visit("place_foreign_layers", &C::place_foreign_layers);
  visit("grouping", &C::grouping);
  visit("max_groups", &C::max_groups);
  visit("reference_model_len", &C::reference_model_len);
  visit("min_large_blocks", &C::min_large_blocks);
  visit("attention_kernel_block_sizes", &C::attention_kernel_block_sizes);
  visit("mla_kernel_block_sizes", &C::mla_kernel_block_sizes);
}

}  // namespace kvplan
