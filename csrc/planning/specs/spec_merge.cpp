#include <algorithm>

#include "kvplan/errors.h"
#include "kvplan/spec.h"
#include "planning/specs/spec_fields.h"
#include "planning/specs/uniformity.h"

namespace kvplan {
namespace {

using Specs = std::span<const KVCacheSpec* const>;

void require(bool condition, const char* message) {
  if (!condition) throw MergeError(message);
}

template <class Predicate>
void require_all(Specs specs, Predicate predicate, const char* message) {
  require(std::all_of(specs.begin(), specs.end(),
                      [&](const KVCacheSpec* s) { return predicate(s->kind); }),
          message);
}

template <class T>
void require_same(Specs specs, T KVCacheSpec::*member, const char* message) {
  for (const KVCacheSpec* s : specs) require(s->*member == specs[0]->*member, message);
}

std::optional<int64_t> merge_window_sizes(Specs specs,
                                          std::optional<int64_t> KVCacheSpec::*member) {
  std::optional<int64_t> size;
  for (const KVCacheSpec* s : specs) {
    const std::optional<int64_t>& other = s->*member;
    if (!other) continue;
    if (size && *size != *other) {
      throw InvalidArgument(
          "All attention layers in the same KV cache group must have the same window size.");
    }
    size = other;
  }
  return size;
}

bool any_of(Specs specs, bool KVCacheSpec::*member) {
  return std::any_of(specs.begin(), specs.end(), [&](const KVCacheSpec* s) { return s->*member; });
}

// The fields that every attention spec has, by visiting a kind that adds none of its own.
void require_same_attention_fields(Specs specs, const KVCacheSpec& merged) {
  for_each_field(SpecKind::kCrossAttention, [&](const auto& field) {
    if (!field.compared) return;
    for (const KVCacheSpec* s : specs) {
      require(s->*field.member == merged.*field.member,
              "All attention layers in the same KV cache group must have the same attention spec.");
    }
  });
}

KVCacheSpec merge_full_attention(Specs specs) {
  const KVCacheSpec& first = *specs[0];
  require_all(specs, is_full_attention,
              "All attention layers in the same KV cache group must be FullAttentionSpec.");
  require_all(
      specs, [](SpecKind k) { return !is_mla(k); },
      "MLAAttentionSpec should be merged in MLAAttentionSpec.merge");
  KVCacheSpec merged = first;
  merged.is_draft = false;
  merged.sliding_window = merge_window_sizes(specs, &KVCacheSpec::sliding_window);
  merged.attention_chunk_size = merge_window_sizes(specs, &KVCacheSpec::attention_chunk_size);
  merged.non_causal = any_of(specs, &KVCacheSpec::non_causal);
  // vLLM's sink merge leaves this field at its default, so that other values do not merge.
  if (first.kind == SpecKind::kSinkFullAttention) merged.tokens_per_state = {};
  require_same_attention_fields(specs, merged);
  require(!(merged.sliding_window && merged.attention_chunk_size),
          "Model with both sliding window layers and chunked local attention layers is not "
          "supported.");
  return merged;
}

KVCacheSpec merge_rswa(Specs specs) {
  require_all(
      specs, [](SpecKind k) { return k == SpecKind::kRSWA; },
      "All attention layers in the same KV cache group must be RSWASpec.");
  require_same(specs, &KVCacheSpec::rswa_window,
               "All R-SWA layers must share the same rswa_window");
  return merge_full_attention(specs);
}

KVCacheSpec merge_mla(Specs specs) {
  const KVCacheSpec& first = *specs[0];
  require_all(specs, is_mla,
              "All attention layers in the same KV cache group must be MLAAttentionSpec.");
  constexpr const char* kMessage =
      "All attention layers in the same KV cache group must use the same quantization method, "
      "top-k buffer width, tokens per state, model version, cache role, index-sharing role, and "
      "block stride alignment.";
  require_same(specs, &KVCacheSpec::cache_dtype_str, kMessage);
  require_same(specs, &KVCacheSpec::topk_buffer_width, kMessage);
  require_same(specs, &KVCacheSpec::tokens_per_state, kMessage);
  require_same(specs, &KVCacheSpec::model_version, kMessage);
  require_same(specs, &KVCacheSpec::cache_role, kMessage);
  require_same(specs, &KVCacheSpec::is_index_group_leader, kMessage);
  require_same(specs, &KVCacheSpec::block_stride_alignment, kMessage);
  KVCacheSpec merged = first;
  merged.is_draft = false;
  merged.non_causal_multi_token_decode = any_of(specs, &KVCacheSpec::non_causal_multi_token_decode);
  // vLLM's merge does not carry these over; the padded page keeps the alignment's effect.
  merged.head_size_v = 0;
  merged.sliding_window.reset();
  merged.attention_chunk_size.reset();
  merged.non_causal = false;
  merged.alignment.reset();
  require_same_attention_fields(specs, merged);
  return merged;
}

KVCacheSpec merge_sliding_window_mla(Specs specs) {
  require_all(
      specs, [](SpecKind k) { return k == SpecKind::kSlidingWindowMLA; },
      "All attention layers in the same KV cache group must be SlidingWindowMLASpec.");
  constexpr const char* kMessage =
      "All attention layers in the same KV cache group must use the same quantization method, "
      "tokens per state, model version, sliding window size, retained token count, and replay "
      "policy.";
  require_same(specs, &KVCacheSpec::dcp_sharded, kMessage);
  require_same(specs, &KVCacheSpec::max_tp_shards, kMessage);
  require_same(specs, &KVCacheSpec::cache_dtype_str, kMessage);
  require_same(specs, &KVCacheSpec::tokens_per_state, kMessage);
  require_same(specs, &KVCacheSpec::model_version, kMessage);
  require_same(specs, &KVCacheSpec::sliding_window, kMessage);
  require_same(specs, &KVCacheSpec::extra_retained_tokens, kMessage);
  require_same(specs, &KVCacheSpec::bounded_replay, kMessage);
  require_same(specs, &KVCacheSpec::block_stride_alignment, kMessage);
  KVCacheSpec merged = *specs[0];
  merged.is_draft = false;
  // Not carried over by vLLM's merge, as above.
  merged.head_size_v = 0;
  merged.kv_quant_mode = 0;
  merged.alignment.reset();
  return merged;
}

KVCacheSpec merge_equal(Specs specs) {
  for (const KVCacheSpec* s : specs) {
    require(*s == *specs[0], "All layers in the same KV cache group must be the same.");
  }
  return *specs[0];
}

KVCacheSpec merge_as_first(Specs specs) {
  switch (specs[0]->kind) {
    case SpecKind::kFullAttention:
    case SpecKind::kSinkFullAttention:
      return merge_full_attention(specs);
    case SpecKind::kRSWA:
      return merge_rswa(specs);
    case SpecKind::kMLAAttention:
    case SpecKind::kHiddenStateCache:
      return merge_mla(specs);
    case SpecKind::kSlidingWindowMLA:
      return merge_sliding_window_mla(specs);
    default:
      return merge_equal(specs);
  }
}

}  // namespace

bool kinds_merge(const KVCacheSpec& first, const KVCacheSpec& other) {
  switch (first.kind) {
    case SpecKind::kFullAttention:
    case SpecKind::kSinkFullAttention:
      return is_full_attention(other.kind) && !is_mla(other.kind);
    case SpecKind::kMLAAttention:
    case SpecKind::kHiddenStateCache:
      return is_mla(other.kind);
    default:
      return first.kind == other.kind;
  }
}

size_t merge_key(const KVCacheSpec& spec) {
  if (spec.kind == SpecKind::kSlidingWindowMLA) {
    KVCacheSpec compared = default_spec(spec.kind);
    compared.sliding_window = spec.sliding_window;
    compared.tokens_per_state = spec.tokens_per_state;
    return hash_value(compared);
  }
  if (!is_full_attention(spec.kind)) return hash_value(spec);  // merges with its equals only
  KVCacheSpec compared = default_spec(SpecKind::kCrossAttention);
  for_each_field(compared.kind, [&](const auto& field) {
    if (field.compared) compared.*field.member = spec.*field.member;
  });
  return hash_value(compared) + is_mla(spec.kind);
}

KVCacheSpec merge(Specs specs) {
  if (specs.empty()) throw InvalidArgument("merge needs at least one spec");
  return merge_as_first(specs);
}

}  // namespace kvplan
