#pragma once

#include "kvplan/config.h"
#include "planning/field_range.h"

namespace kvplan {

/// One field of the config: its name in Python and in JSON, where the value lives, which numbers it
/// may hold, and what they count.
template <class T>
struct ConfigField {
  ConfigField(const char* name_, T PlanningConfig::*member_, FieldRange range_ = {},
              const char* unit_ = "")
      : name(name_), member(member_), range(range_), unit(unit_) {}

  const char* name;
  T PlanningConfig::*member;
  FieldRange range;
  const char* unit;
};

/// Visits every field; `max_model_len` is the only one without a default. Checks, Python, JSON and
/// its schema all go through here, so that no list of fields exists twice.
template <class Visitor>
void for_each_config_field(Visitor&& visit) {
  using C = PlanningConfig;
  visit(ConfigField("max_model_len", &C::max_model_len, kPositive, "tokens"));
  visit(ConfigField("auto_fit", &C::auto_fit));
  visit(ConfigField("max_in_flight_tokens", &C::max_in_flight_tokens, kCount, "tokens"));
  visit(ConfigField("max_concurrent_batches", &C::max_concurrent_batches, kPositive, "batches"));
  visit(ConfigField("kv_cache_layout", &C::kv_cache_layout));
  visit(ConfigField("tensor_parallel_size", &C::tensor_parallel_size, kPositive, "ranks"));
  visit(ConfigField("pipeline_parallel_size", &C::pipeline_parallel_size, kPositive, "stages"));
  visit(ConfigField("decode_context_parallel_size", &C::decode_context_parallel_size, kPositive,
                    "ranks"));
  visit(ConfigField("num_gpu_blocks_override", &C::num_gpu_blocks_override, kCount, "blocks"));
  visit(ConfigField("mamba_cache_mode", &C::mamba_cache_mode));
  visit(ConfigField("disable_hybrid_kv_cache_manager", &C::disable_hybrid_kv_cache_manager));
  visit(ConfigField("max_num_encoder_input_tokens", &C::max_num_encoder_input_tokens, kCount,
                    "tokens"));
  visit(
      ConfigField("encoder_tokens_per_request", &C::encoder_tokens_per_request, kCount, "tokens"));
  visit(ConfigField("num_prefill_lookahead_tokens", &C::num_prefill_lookahead_tokens, kCount,
                    "tokens"));
  visit(ConfigField("block_size", &C::block_size, kPositive, "tokens"));
  visit(ConfigField("enable_prefix_caching", &C::enable_prefix_caching));
  visit(ConfigField("has_kv_connector", &C::has_kv_connector));
  visit(ConfigField("prefix_match_unit", &C::prefix_match_unit, kPositive, "tokens"));
  visit(ConfigField("prefix_cache_retention_interval", &C::prefix_cache_retention_interval, kCount,
                    "tokens"));
  visit(ConfigField("device_type", &C::device_type));
  visit(ConfigField("speculative_method", &C::speculative_method));
  visit(ConfigField("use_eagle", &C::use_eagle));
  visit(ConfigField("use_eagle_block_drop", &C::use_eagle_block_drop));
  visit(ConfigField("model_type", &C::model_type));
  visit(ConfigField("draft_rule", &C::draft_rule));
  visit(ConfigField("place_foreign_layers", &C::place_foreign_layers));
  visit(ConfigField("grouping", &C::grouping));
  visit(ConfigField("max_groups", &C::max_groups, kPositive, "groups"));
  visit(ConfigField("reference_model_len", &C::reference_model_len, kPositive, "tokens"));
  visit(ConfigField("min_large_blocks", &C::min_large_blocks, kPositive, "blocks"));
  visit(ConfigField("attention_kernel_block_sizes", &C::attention_kernel_block_sizes, kPositive,
                    "tokens"));
  visit(ConfigField("mla_kernel_block_sizes", &C::mla_kernel_block_sizes, kPositive, "tokens"));
}

}  // namespace kvplan
