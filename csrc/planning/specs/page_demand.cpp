#include "kvplan/page_demand.h"

#include <algorithm>
#include <optional>
#include <string>

#include "kvplan/checked.h"

namespace kvplan {
namespace {

PageDemand fixed(const KVCacheSpec& spec, int64_t pages) {
  return {.block_size = spec.block_size, .cap_tokens = 0, .extra_pages = pages};
}

PageDemand window(const KVCacheSpec& spec, int64_t tokens, int64_t in_flight, int64_t extra) {
  return {.block_size = spec.block_size,
          .cap_tokens = checked::add(tokens, in_flight, "window and in-flight tokens"),
          .extra_pages = extra};
}

int64_t retained_tokens(const KVCacheSpec& spec) {
  return checked::add(*spec.sliding_window - 1, spec.extra_retained_tokens, "retained tokens");
}

}  // namespace

PageDemand page_demand(const KVCacheSpec& s, const PlanningConfig& c) {
  const int64_t shards = s.dcp_sharded ? c.decode_context_parallel_size : 1;
  switch (s.kind) {
    case SpecKind::kFullAttention:
    case SpecKind::kMLAAttention:
    case SpecKind::kHiddenStateCache:
    case SpecKind::kRSWA:
    case SpecKind::kSinkFullAttention:
      return {.block_size = s.block_size, .shards = shards};
    case SpecKind::kSlidingWindow:
    case SpecKind::kSlidingWindowMLA:
      if (shards != 1) {
        throw InconsistentSpec("DCP not support sliding window: decode_context_parallel_size is " +
                               std::to_string(shards) + " and the spec has dcp_sharded=True");
      }
      // The window may begin inside a block, hence one page more.
      return window(s, retained_tokens(s), c.max_in_flight_tokens, 1);
    case SpecKind::kChunkedLocalAttention:
      return window(s, *s.attention_chunk_size, c.max_in_flight_tokens, 0);
    case SpecKind::kCircularBuffer:
      return fixed(s, 1);
    case SpecKind::kEncoderOnlyAttention:
      return fixed(s, 0);
    case SpecKind::kCrossAttention:
      return fixed(s, checked::cdiv(c.max_num_encoder_input_tokens, s.block_size));
    case SpecKind::kMamba: {
      const int64_t states = checked::add(1, s.num_speculative_blocks, "Mamba states");
      if (c.mamba_cache_mode != MambaCacheMode::kAlign) return fixed(s, states);
      return fixed(s, checked::add(checked::add(1, s.num_prefill_checkpoint_blocks, "Mamba states"),
                                   states, "Mamba states"));
    }
    case SpecKind::kHiSparseHot:
      return fixed(s, s.blocks_per_request);
    case SpecKind::kHiSparseResident:
      return window(s, 0, c.max_in_flight_tokens, 0);
    case SpecKind::kCustom: {
      PageDemand d{
          .block_size = s.block_size, .shards = shards, .extra_pages = s.demand.extra_pages};
      if (s.demand.cap_tokens) {
        const int64_t in_flight = s.demand.cap_includes_in_flight ? c.max_in_flight_tokens : 0;
        d.cap_tokens = checked::add(*s.demand.cap_tokens, in_flight, "custom cap");
      }
      return d;
    }
  }
  return {};
}

int64_t max_memory_usage_bytes(const KVCacheSpec& spec, const PlanningConfig& config) {
  return checked::mul(page_demand(spec, config).pages(config.max_model_len), page_size_bytes(spec),
                      "bytes of one request in one layer");
}

int64_t max_num_blocks_per_req(const KVCacheSpec& s, const PlanningConfig& c, int64_t max_len) {
  switch (s.kind) {
    case SpecKind::kHiSparseHot:
      return s.blocks_per_request;
    case SpecKind::kCircularBuffer:
      return 1;
    case SpecKind::kMamba:
      // Rows are indexed by position even though only a few states are resident.
      if (c.mamba_cache_mode == MambaCacheMode::kAlign) {
        return checked::add(checked::cdiv(max_len, s.block_size), s.num_speculative_blocks,
                            "block table entries");
      }
      return page_demand(s, c).pages(c.max_model_len);
    default: {
      const int64_t shards =
          is_attention(s.kind) && s.dcp_sharded ? c.decode_context_parallel_size : 1;
      return checked::cdiv(max_len, checked::mul(s.block_size, shards, "tokens of a block"));
    }
  }
}

int64_t max_num_blocks_per_req(SpecList specs, const PlanningConfig& config, int64_t max_len) {
  std::optional<int64_t> width;
  for (const KVCacheSpec* s : specs) {
    const int64_t own = max_num_blocks_per_req(*s, config, max_len);
    if (width && *width != own) {
      throw InconsistentSpec(
          "All layers in the same KV cache group must need the same number of block table entries, "
          "got " +
          std::to_string(*width) + " and " + std::to_string(own) + ".");
    }
    width = own;
  }
  return width.value_or(0);
}

int64_t max_memory_usage_bytes(SpecList specs, const PlanningConfig& config) {
  int64_t total = 0;
  for (const KVCacheSpec* s : specs) {
    total = checked::add(total, max_memory_usage_bytes(*s, config), "bytes of one request");
  }
  return total;
}

int64_t max_pages(SpecList specs, const PlanningConfig& config) {
  int64_t most = 0;
  for (const KVCacheSpec* s : specs) {
    most = std::max(most, page_demand(*s, config).pages(config.max_model_len));
  }
  return most;
}

int64_t max_admission_blocks_per_request(const KVCacheSpec& s, int64_t max_in_flight_tokens,
                                         int64_t max_model_len) {
  switch (s.kind) {
    case SpecKind::kSlidingWindow:
    case SpecKind::kSlidingWindowMLA:
      return window(s, retained_tokens(s), max_in_flight_tokens, 1).pages(max_model_len);
    case SpecKind::kChunkedLocalAttention:
      return window(s, *s.attention_chunk_size, max_in_flight_tokens, 0).pages(max_model_len);
    case SpecKind::kHiSparseResident:
      return window(s, 0, max_in_flight_tokens, 0).pages(max_model_len);
    default:
      throw Unsupported(std::string(class_name(s.kind)) +
                        " has no max_admission_blocks_per_request");
  }
}

}  // namespace kvplan
