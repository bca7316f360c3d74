#pragma once

#include <string_view>

#include "kvplan/spec.h"
#include "planning/field_range.h"

namespace kvplan {

enum class FieldUse : uint8_t { kOptional, kRequired };

/// One field of a spec class: vLLM's name, where the value lives, whether it must be given, which
/// numbers it may hold and what they count.
template <class T>
struct Field {
  Field(std::string_view name_, T KVCacheSpec::*member_, FieldUse use_ = FieldUse::kOptional,
        FieldRange range_ = {}, std::string_view unit_ = "", bool compared_ = true)
      : name(name_), member(member_), use(use_), range(range_), unit(unit_), compared(compared_) {}

  std::string_view name;
  T KVCacheSpec::*member;
  FieldUse use;
  FieldRange range;
  std::string_view unit;
  bool compared;  ///< takes part in equality
};

/// Visits the fields of `kind` in the order of vLLM's dataclass. Checks, equality, hashing,
/// printing, construction from keywords, pickling, JSON and its schema all go through here, so that
/// no list of fields exists twice.
template <class Visitor>
void for_each_field(SpecKind kind, Visitor&& visit) {
  using S = KVCacheSpec;
  constexpr auto kRequired = FieldUse::kRequired;
  constexpr auto kOptional = FieldUse::kOptional;
  visit(Field("block_size", &S::block_size, kRequired, kPositive, "tokens"));
  visit(Field("dcp_sharded", &S::dcp_sharded));
  visit(Field("block_stride_alignment", &S::block_stride_alignment, kOptional, kPositive, "bytes"));
  visit(Field("is_draft", &S::is_draft, kOptional, {}, "", false));
  if (is_attention(kind)) {
    visit(Field("max_tp_shards", &S::max_tp_shards, kOptional, kPositive, "ranks"));
    visit(Field("num_kv_heads", &S::num_kv_heads, kRequired, kPositive, "heads"));
    visit(Field("head_size", &S::head_size, kRequired, kPositive, "elements"));
    visit(Field("dtype", &S::dtype, kRequired));
    visit(Field("head_size_v", &S::head_size_v, kOptional, kCount, "elements"));
    visit(Field("kv_quant_mode", &S::kv_quant_mode, kOptional, {0, 255}));
    visit(Field("page_size_padded", &S::page_size_padded, kOptional, kPositive, "bytes"));
    visit(Field("num_head_slots", &S::num_head_slots, kOptional, kPositive, "heads"));
    visit(Field("state_content_bytes", &S::state_content_bytes, kOptional, kPositive, "bytes"));
    visit(Field("tokens_per_state", &S::tokens_per_state, kOptional, kPositive, "tokens"));
  }
  if (is_full_attention(kind)) {
    visit(Field("sliding_window", &S::sliding_window, kOptional, kPositive, "tokens"));
    visit(Field("attention_chunk_size", &S::attention_chunk_size, kOptional, kPositive, "tokens"));
    visit(Field("non_causal", &S::non_causal));
  }
  if (is_mla(kind)) {
    visit(Field("cache_dtype_str", &S::cache_dtype_str));
    visit(Field("topk_buffer_width", &S::topk_buffer_width, kOptional, kPositive, "elements"));
    visit(Field("alignment", &S::alignment, kOptional, kPositive, "bytes"));
    visit(Field("model_version", &S::model_version));
    visit(Field("cache_role", &S::cache_role));
    visit(Field("is_index_group_leader", &S::is_index_group_leader));
    visit(Field("non_causal_multi_token_decode", &S::non_causal_multi_token_decode));
  }
  switch (kind) {
    case SpecKind::kRSWA:
      visit(Field("rswa_window", &S::rswa_window, kRequired, kPositive, "tokens"));
      break;
    case SpecKind::kSinkFullAttention:
      visit(Field("sink_len", &S::sink_len, kOptional, kCount, "tokens"));
      break;
    case SpecKind::kChunkedLocalAttention:
      visit(
          Field("attention_chunk_size", &S::attention_chunk_size, kRequired, kPositive, "tokens"));
      break;
    case SpecKind::kSlidingWindow:
    case SpecKind::kSlidingWindowMLA:
      visit(Field("sliding_window", &S::sliding_window, kRequired, kPositive, "tokens"));
      visit(Field("extra_retained_tokens", &S::extra_retained_tokens, kOptional, kCount, "tokens"));
      if (kind == SpecKind::kSlidingWindowMLA) {
        visit(Field("cache_dtype_str", &S::cache_dtype_str));
        visit(Field("alignment", &S::alignment, kOptional, kPositive, "bytes"));
        visit(Field("model_version", &S::model_version));
        visit(Field("bounded_replay", &S::bounded_replay));
      }
      break;
    case SpecKind::kMamba:
      visit(Field("shapes", &S::shapes, kRequired, kPositive, "elements"));
      visit(Field("dtypes", &S::dtypes, kRequired));
      visit(Field("page_size_padded", &S::page_size_padded, kOptional, kPositive, "bytes"));
      visit(Field("mamba_type", &S::mamba_type));
      visit(Field("mamba_cache_mode", &S::mamba_cache_mode));
      visit(
          Field("num_speculative_blocks", &S::num_speculative_blocks, kOptional, kCount, "blocks"));
      visit(Field("num_prefill_checkpoint_blocks", &S::num_prefill_checkpoint_blocks, kOptional,
                  kCount, "blocks"));
      visit(Field("prefill_checkpoint_alignment", &S::prefill_checkpoint_alignment, kOptional,
                  kPositive, "tokens"));
      visit(Field("num_heads", &S::num_heads, kOptional, kPositive, "heads"));
      visit(Field("tokens_per_state", &S::tokens_per_state, kOptional, {-1}, "tokens"));
      visit(Field("tp_replicated", &S::tp_replicated));
      break;
    case SpecKind::kHiSparseHot:
      visit(Field("page_size", &S::page_size, kRequired, kPositive, "bytes"));
      visit(Field("blocks_per_request", &S::blocks_per_request, kRequired, kCount, "blocks"));
      break;
    case SpecKind::kHiSparseResident:
      visit(Field("page_size", &S::page_size, kRequired, kPositive, "bytes"));
      break;
    case SpecKind::kCustom:
      visit(Field("page_size", &S::page_size, kRequired, kPositive, "bytes"));
      visit(Field("custom_class", &S::custom_class, kRequired));
      visit(Field("uniform_type_base", &S::uniform_type_base));
      visit(Field("page_scales_with_block_size", &S::page_scales_with_block_size));
      visit(Field("demand", &S::demand, kOptional, kCount, "pages"));
      break;
    default:
      break;
  }
}

}  // namespace kvplan
