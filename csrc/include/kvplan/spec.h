#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvplan/export.h"
#include "kvplan/types.h"

namespace kvplan {

/// The spec classes of vllm/v1/kv_cache_interface.py (0.33), and one that is numbers only.
enum class SpecKind : uint8_t {
  kFullAttention,
  kMLAAttention,
  kHiddenStateCache,
  kRSWA,
  kSinkFullAttention,
  kChunkedLocalAttention,
  kSlidingWindow,
  kSlidingWindowMLA,
  kCircularBuffer,
  kEncoderOnlyAttention,
  kCrossAttention,
  kMamba,
  kHiSparseHot,
  kHiSparseResident,
  kCustom,
};
inline constexpr int kNumSpecKinds = static_cast<int>(SpecKind::kCustom) + 1;

/// vLLM's class name, e.g. `MLAAttentionSpec`.
KVPLAN_API std::string_view class_name(SpecKind kind);
KVPLAN_API SpecKind parse_spec_kind(std::string_view class_name);

// vLLM's subclass relations.
constexpr bool is_full_attention(SpecKind k) { return k <= SpecKind::kSinkFullAttention; }
constexpr bool is_mla(SpecKind k) {
  return k == SpecKind::kMLAAttention || k == SpecKind::kHiddenStateCache;
}
constexpr bool is_sliding_window(SpecKind k) {
  return k == SpecKind::kSlidingWindow || k == SpecKind::kSlidingWindowMLA;
}
constexpr bool is_attention(SpecKind k) { return k <= SpecKind::kCrossAttention; }
constexpr bool is_hisparse(SpecKind k) {
  return k == SpecKind::kHiSparseHot || k == SpecKind::kHiSparseResident;
}

/// Tokens that one stored state covers: 1, an integer > 1 (compression), a fraction < 1 (several
/// states a token), or -1 (one state, whatever the block size).
struct TokensPerState {
  int64_t num = 1;
  int64_t den = 1;
  bool operator==(const TokensPerState&) const = default;
};

/// What the stride between two blocks must be a multiple of.
struct BlockStrideAlignment {
  enum class Kind : uint8_t {
    kNone,
    kBytes,       ///< `value` bytes
    kMultipleOf,  ///< whole kernel blocks of up to `value` tokens
  };
  Kind kind = Kind::kNone;
  int64_t value = 0;
  bool operator==(const BlockStrideAlignment&) const = default;
};

/// How many pages a request of L tokens holds, for a `kCustom` spec:
/// `cdiv(min(cap, L), block_size) + extra_pages`, with L divided by the DCP size first where
/// `dcp_sharded`, and `cap = cap_tokens (+ in-flight tokens)`.
struct CustomDemand {
  std::optional<int64_t> cap_tokens;  ///< none: grows with L without bound
  bool cap_includes_in_flight = false;
  int64_t extra_pages = 0;
  bool operator==(const CustomDemand&) const = default;
};

/// One layer's cache format: a plain value. Which fields a kind has, and their defaults, is written
/// down once in `planning/spec_fields.h`; the others keep their initial values.
struct KVCacheSpec {
  SpecKind kind = SpecKind::kFullAttention;

  int64_t block_size = 0;  ///< tokens of a block
  bool dcp_sharded = false;
  BlockStrideAlignment block_stride_alignment;
  bool is_draft = false;  ///< takes no part in equality

  // Attention.
  std::optional<int64_t> max_tp_shards;
  int64_t num_kv_heads = 0;
  int64_t head_size = 0;
  DType dtype = DType::kBFloat16;
  int64_t head_size_v = -1;  ///< -1 until the default is known
  int32_t kv_quant_mode = 0;
  std::optional<int64_t> page_size_padded;  ///< bytes; also Mamba
  std::optional<int64_t> num_head_slots;
  std::optional<int64_t> state_content_bytes;
  TokensPerState tokens_per_state;  ///< also Mamba

  // Full attention, sliding window, chunked local.
  std::optional<int64_t> sliding_window;
  std::optional<int64_t> attention_chunk_size;
  bool non_causal = false;
  int64_t extra_retained_tokens = 0;

  // MLA.
  std::optional<std::string> cache_dtype_str;
  std::optional<int64_t> topk_buffer_width;
  std::optional<int64_t> alignment;
  std::optional<std::string> model_version;
  std::string cache_role = "sparse";
  bool is_index_group_leader = false;
  bool non_causal_multi_token_decode = false;
  bool bounded_replay = false;

  std::optional<int64_t> rswa_window;
  std::optional<int64_t> sink_len;

  // Mamba.
  std::vector<std::vector<int64_t>> shapes;
  std::vector<DType> dtypes;
  std::string mamba_type = "mamba2";
  std::string mamba_cache_mode = "none";
  int64_t num_speculative_blocks = 0;
  int64_t num_prefill_checkpoint_blocks = 0;
  std::optional<int64_t> prefill_checkpoint_alignment;
  int64_t num_heads = 1;
  bool tp_replicated = false;

  // HiSparse and custom: the page is a number.
  int64_t page_size = 0;
  int64_t blocks_per_request = 0;
  std::string custom_class;       ///< equality and merging keep to one class
  std::string uniform_type_base;  ///< specs with one base may share a group
  bool page_scales_with_block_size = true;
  CustomDemand demand;
};

/// A spec of `kind` with every field at its default.
KVPLAN_API KVCacheSpec default_spec(SpecKind kind);

/// What vLLM's `__post_init__` does: defaults that depend on other fields, and padding of an MLA
/// page to its alignment. Throws `InvalidArgument` where a field is out of range, or set though the
/// kind does not have it; the message names the field, the value and the limit.
KVPLAN_API void finalize(KVCacheSpec& spec);

/// `finalize`d copy with another block size.
KVPLAN_API KVCacheSpec with_block_size(const KVCacheSpec& spec, int64_t block_size);

/// Equality of vLLM's dataclasses: same class, same fields, `is_draft` ignored.
KVPLAN_API bool operator==(const KVCacheSpec& a, const KVCacheSpec& b);
/// Consistent with `==`.
KVPLAN_API size_t hash_value(const KVCacheSpec& spec);
/// `FullAttentionSpec(block_size=16, ...)`: required fields and those that are not at their
/// default.
KVPLAN_API std::string to_string(const KVCacheSpec& spec);

// Page geometry. H x N x C bytes make one page; C counts K and V together.
KVPLAN_API int64_t num_heads(const KVCacheSpec& spec);
KVPLAN_API int64_t num_states(const KVCacheSpec& spec, int64_t kernel_block_size);
KVPLAN_API int64_t state_content_size_bytes(const KVCacheSpec& spec);
KVPLAN_API int64_t unpadded_page_size_bytes(const KVCacheSpec& spec);
/// Throws `InconsistentSpec` where `page_size_padded` is smaller than the content, or the page
/// holds nothing.
KVPLAN_API int64_t page_size_bytes(const KVCacheSpec& spec);
/// Bytes that the stride between physical blocks must be a multiple of.
KVPLAN_API int64_t get_block_stride_alignment(const KVCacheSpec& spec);
/// The page rounded up to its stride alignment: the block stride of a layer-outermost layout.
KVPLAN_API int64_t layer_block_stride(const KVCacheSpec& spec);

KVPLAN_API bool prefix_cacheable(const KVCacheSpec& spec);
KVPLAN_API int64_t prefix_replay_tokens(const KVCacheSpec& spec);
/// Block tables of vLLM are padded to a multiple of this many tokens; none for fixed-size caches.
KVPLAN_API std::optional<int64_t> block_table_token_alignment(const KVCacheSpec& spec);
KVPLAN_API bool has_layer_views(const KVCacheSpec& spec);
KVPLAN_API bool uses_slot_mapping(const KVCacheSpec& spec);

/// The spec of a group that holds layers of all `specs`; throws `MergeError` (or `InvalidArgument`
/// for window sizes that differ) where they do not belong together. Kinds follow `specs[0]`.
/// Mirrors the `merge` methods of vllm/v1/kv_cache_interface.py (0.33).
KVPLAN_API KVCacheSpec merge(std::span<const KVCacheSpec* const> specs);

/// Whether layers of `other` need the same block table entries as those of `first`, so that one
/// group may hold both. Not symmetric. Mirrors `is_uniform_with_collection` (0.33).
KVPLAN_API bool is_uniform_with(const KVCacheSpec& first, const KVCacheSpec& other);

/// The specs of a group that has one for each layer: vLLM's `UniformTypeKVCacheSpecs`.
using SpecList = std::span<const KVCacheSpec* const>;
/// Whether all need the same number of token slots: same block size, same DCP sharding, same type.
/// There must be one at least. Mirrors `UniformTypeKVCacheSpecs.is_uniform_type` (0.33).
KVPLAN_API bool is_uniform_type(SpecList specs);
/// Bytes of one block of all layers together.
KVPLAN_API int64_t page_size_bytes(SpecList specs);
/// Mirrors `UniformTypeKVCacheSpecs.get_max_layers_per_page_size` (0.33).
KVPLAN_API int64_t max_layers_per_page_size(SpecList specs);

/// The name of the class that decides which specs may share a group; empty if there is none.
KVPLAN_API std::string_view uniform_type_base(const KVCacheSpec& spec);

}  // namespace kvplan
