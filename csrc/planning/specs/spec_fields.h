#pragma once

#include <string_view>

#include "kvplan/spec.h"

namespace kvplan {

enum class FieldUse : uint8_t { kOptional, kRequired };

/// One field of a spec class: vLLM's name and where the value lives.
template <class T>
struct Field {
  std::string_view name;
  T KVCacheSpec::*member;
  FieldUse use = FieldUse::kOptional;
  bool compared = true;
};

/// Visits the fields of `kind` in the order of vLLM's dataclass. Equality, hashing, printing,
/// construction from keywords, pickling and JSON all go through here, so that no list of fields
/// exists twice.
template <class Visitor>
void for_each_field(SpecKind kind, Visitor&& visit) {
  using S = KVCacheSpec;
  constexpr auto kRequired = FieldUse::kRequired;
  visit(Field<int64_t>{"block_size", &S::block_size, kRequired});
  visit(Field<bool>{"dcp_sharded", &S::dcp_sharded});
  visit(Field<BlockStrideAlignment>{"block_stride_alignment", &S::block_stride_alignment});
  visit(Field<bool>{"is_draft", &S::is_draft, FieldUse::kOptional, false});
  if (is_attention(kind)) {
    visit(Field<std::optional<int64_t>>{"max_tp_shards", &S::max_tp_shards});
    visit(Field<int64_t>{"num_kv_heads", &S::num_kv_heads, kRequired});
    visit(Field<int64_t>{"head_size", &S::head_size, kRequired});
    visit(Field<DType>{"dtype", &S::dtype, kRequired});
    visit(Field<int64_t>{"head_size_v", &S::head_size_v});
    visit(Field<int32_t>{"kv_quant_mode", &S::kv_quant_mode});
    visit(Field<std::optional<int64_t>>{"page_size_padded", &S::page_size_padded});
    visit(Field<std::optional<int64_t>>{"num_head_slots", &S::num_head_slots});
    visit(Field<std::optional<int64_t>>{"state_content_bytes", &S::state_content_bytes});
    visit(Field<TokensPerState>{"tokens_per_state", &S::tokens_per_state});
  }
  if (is_full_attention(kind)) {
    visit(Field<std::optional<int64_t>>{"sliding_window", &S::sliding_window});
    visit(Field<std::optional<int64_t>>{"attention_chunk_size", &S::attention_chunk_size});
    visit(Field<bool>{"non_causal", &S::non_causal});
  }
  if (is_mla(kind)) {
    visit(Field<std::optional<std::string>>{"cache_dtype_str", &S::cache_dtype_str});
    visit(Field<std::optional<int64_t>>{"topk_buffer_width", &S::topk_buffer_width});
    visit(Field<std::optional<int64_t>>{"alignment", &S::alignment});
    visit(Field<std::optional<std::string>>{"model_version", &S::model_version});
    visit(Field<std::string>{"cache_role", &S::cache_role});
    visit(Field<bool>{"is_index_group_leader", &S::is_index_group_leader});
    visit(Field<bool>{"non_causal_multi_token_decode", &S::non_causal_multi_token_decode});
  }
  switch (kind) {
    case SpecKind::kRSWA:
      visit(Field<std::optional<int64_t>>{"rswa_window", &S::rswa_window, kRequired});
      break;
    case SpecKind::kSinkFullAttention:
      visit(Field<std::optional<int64_t>>{"sink_len", &S::sink_len});
      break;
    case SpecKind::kChunkedLocalAttention:
      visit(Field<std::optional<int64_t>>{"attention_chunk_size", &S::attention_chunk_size,
                                          kRequired});
      break;
    case SpecKind::kSlidingWindow:
    case SpecKind::kSlidingWindowMLA:
      visit(Field<std::optional<int64_t>>{"sliding_window", &S::sliding_window, kRequired});
      visit(Field<int64_t>{"extra_retained_tokens", &S::extra_retained_tokens});
      if (kind == SpecKind::kSlidingWindowMLA) {
        visit(Field<std::optional<std::string>>{"cache_dtype_str", &S::cache_dtype_str});
        visit(Field<std::optional<int64_t>>{"alignment", &S::alignment});
        visit(Field<std::optional<std::string>>{"model_version", &S::model_version});
        visit(Field<bool>{"bounded_replay", &S::bounded_replay});
      }
      break;
    case SpecKind::kMamba:
      visit(Field<std::vector<std::vector<int64_t>>>{"shapes", &S::shapes, kRequired});
      visit(Field<std::vector<DType>>{"dtypes", &S::dtypes, kRequired});
      visit(Field<std::optional<int64_t>>{"page_size_padded", &S::page_size_padded});
      visit(Field<std::string>{"mamba_type", &S::mamba_type});
      visit(Field<std::string>{"mamba_cache_mode", &S::mamba_cache_mode});
      visit(Field<int64_t>{"num_speculative_blocks", &S::num_speculative_blocks});
      visit(Field<int64_t>{"num_prefill_checkpoint_blocks", &S::num_prefill_checkpoint_blocks});
      visit(Field<std::optional<int64_t>>{"prefill_checkpoint_alignment",
                                          &S::prefill_checkpoint_alignment});
      visit(Field<int64_t>{"num_heads", &S::num_heads});
      visit(Field<TokensPerState>{"tokens_per_state", &S::tokens_per_state});
      visit(Field<bool>{"tp_replicated", &S::tp_replicated});
      break;
    case SpecKind::kHiSparseHot:
      visit(Field<int64_t>{"page_size", &S::page_size, kRequired});
      visit(Field<int64_t>{"blocks_per_request", &S::blocks_per_request, kRequired});
      break;
    case SpecKind::kHiSparseResident:
      visit(Field<int64_t>{"page_size", &S::page_size, kRequired});
      break;
    case SpecKind::kCustom:
      visit(Field<int64_t>{"page_size", &S::page_size, kRequired});
      visit(Field<std::string>{"custom_class", &S::custom_class, kRequired});
      visit(Field<std::string>{"uniform_type_base", &S::uniform_type_base});
      visit(Field<bool>{"page_scales_with_block_size", &S::page_scales_with_block_size});
      visit(Field<CustomDemand>{"demand", &S::demand});
      break;
    default:
      break;
  }
}

/// One of a page's numbers: its name, where it lives, and the least that it may be.
struct PageNumber {
  const char* name;
  int64_t PageNumbers::*member;
  int64_t least;
};
/// Python, JSON and checks go through here.
inline constexpr PageNumber kPageNumbers[] = {
    {"num_heads", &PageNumbers::num_heads, 0},
    {"num_states", &PageNumbers::num_states, 0},
    {"state_content_size_bytes", &PageNumbers::state_content_size_bytes, 0},
    {"unpadded_page_size_bytes", &PageNumbers::unpadded_page_size_bytes, 0},
    {"real_page_size_bytes", &PageNumbers::real_page_size_bytes, 0},
    {"page_size_bytes", &PageNumbers::page_size_bytes, 1},
    {"block_stride_alignment", &PageNumbers::block_stride_alignment, 1},
};

}  // namespace kvplan
