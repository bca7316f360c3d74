#include <algorithm>
#include <unordered_map>

#include "kvplan/checked.h"
#include "kvplan/errors.h"
#include "kvplan/spec.h"

namespace kvplan {

std::string_view uniform_type_base(const KVCacheSpec& spec) {
  if (is_full_attention(spec.kind)) return class_name(SpecKind::kFullAttention);
  if (spec.kind == SpecKind::kEncoderOnlyAttention) return {};
  if (spec.kind != SpecKind::kCustom) return class_name(spec.kind);
  return spec.uniform_type_base.empty() ? spec.custom_class : spec.uniform_type_base;
}

bool is_uniform_with(const KVCacheSpec& first, const KVCacheSpec& other) {
  switch (first.kind) {
    case SpecKind::kChunkedLocalAttention:
      return other.kind == SpecKind::kChunkedLocalAttention &&
             other.attention_chunk_size == first.attention_chunk_size;
    case SpecKind::kSlidingWindow:
      return is_sliding_window(other.kind) && other.sliding_window == first.sliding_window;
    case SpecKind::kSlidingWindowMLA:
      return other.kind == SpecKind::kSlidingWindowMLA &&
             other.sliding_window == first.sliding_window &&
             other.bounded_replay == first.bounded_replay;
    case SpecKind::kMamba:
      return other.kind == SpecKind::kMamba &&
             other.num_speculative_blocks == first.num_speculative_blocks &&
             other.num_prefill_checkpoint_blocks == first.num_prefill_checkpoint_blocks &&
             other.prefill_checkpoint_alignment == first.prefill_checkpoint_alignment &&
             page_size_bytes(other) == page_size_bytes(first) &&
             other.tp_replicated == first.tp_replicated;
    case SpecKind::kEncoderOnlyAttention:
      throw InconsistentSpec(
          "EncoderOnlyAttentionSpec is not registered for grouping: encoder-only layers hold no "
          "KV cache");
    default:
      return uniform_type_base(other) == uniform_type_base(first);
  }
}

bool is_uniform_type(SpecList specs) {
  if (specs.empty()) throw InvalidArgument("no layers to compare");
  const KVCacheSpec& first = *specs[0];
  for (const KVCacheSpec* s : specs) {
    if (s->block_size != first.block_size || s->dcp_sharded != first.dcp_sharded) return false;
  }
  return std::all_of(specs.begin(), specs.end(),
                     [&](const KVCacheSpec* s) { return is_uniform_with(first, *s); });
}

int64_t page_size_bytes(SpecList specs) {
  int64_t bytes = 0;
  for (const KVCacheSpec* s : specs) bytes = checked::add(bytes, page_size_bytes(*s), "page size");
  return bytes;
}

int64_t max_layers_per_page_size(SpecList specs) {
  std::unordered_map<int64_t, int64_t> counts;
  int64_t most = 0;
  for (const KVCacheSpec* s : specs) most = std::max(most, ++counts[page_size_bytes(*s)]);
  return most;
}

}  // namespace kvplan
