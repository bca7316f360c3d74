#pragma once

#include <cstdint>
#include <limits>

#include "kvplan/checked.h"
#include "kvplan/config.h"
#include "kvplan/spec.h"

namespace kvplan {

/// How many pages one request holds, as a function of its length: one closed form for every kind of
/// cache, so that a candidate length costs nanoseconds and a plugin's own spec enters as numbers.
struct PageDemand {
  static constexpr int64_t kNoCap = std::numeric_limits<int64_t>::max();

  int64_t block_size = 1;
  int64_t shards = 1;           ///< ranks that share the tokens (DCP)
  int64_t cap_tokens = kNoCap;  ///< tokens that are ever held at once
  int64_t extra_pages = 0;      ///< held whatever the length

  /// `cdiv(min(cdiv(L, shards), cap), block_size) + extra`
  int64_t pages(int64_t model_len) const {
    const int64_t tokens = shards == 1 ? model_len : checked::cdiv(model_len, shards);
    const int64_t held = tokens < cap_tokens ? tokens : cap_tokens;
    return checked::add(checked::cdiv(held, block_size), extra_pages, "pages of a request");
  }

  bool grows_without_bound() const { return cap_tokens == kNoCap; }
  bool operator==(const PageDemand&) const = default;
};

/// Mirrors `max_memory_usage_bytes` of the spec classes divided by the page (0.33). Throws
/// `InconsistentSpec` for a DCP-sharded sliding window, which vLLM does not support.
KVPLAN_API PageDemand page_demand(const KVCacheSpec& spec, const PlanningConfig& config);

/// Bytes that one request of `config.max_model_len` holds in one layer with this spec.
/// Mirrors `KVCacheSpec.max_memory_usage_bytes` (0.33).
KVPLAN_API int64_t max_memory_usage_bytes(const KVCacheSpec& spec, const PlanningConfig& config);

/// Block table entries of one request of `max_len` tokens.
/// Mirrors `KVCacheSpec.max_num_blocks_per_req` (0.33).
KVPLAN_API int64_t max_num_blocks_per_req(const KVCacheSpec& spec, const PlanningConfig& config,
                                          int64_t max_len);

/// The same of layers that share a block table; throws `InconsistentSpec` where they differ.
KVPLAN_API int64_t max_num_blocks_per_req(SpecList specs, const PlanningConfig& config,
                                          int64_t max_len);
/// The same of several layers, group or no group: the sum. Mirrors
/// vllm/v1/core/kv_cache_utils.py::max_memory_usage_bytes (0.33).
KVPLAN_API int64_t max_memory_usage_bytes(SpecList specs, const PlanningConfig& config);
/// Pages that one request of `config.max_model_len` holds in the layer that needs most.
KVPLAN_API int64_t max_pages(SpecList specs, const PlanningConfig& config);

/// The runtime's admission cap, in blocks, of windowed kinds; throws `Unsupported` for others.
/// Mirrors `max_admission_blocks_per_request` (0.33).
KVPLAN_API int64_t max_admission_blocks_per_request(const KVCacheSpec& spec,
                                                    int64_t max_in_flight_tokens,
                                                    int64_t max_model_len);

}  // namespace kvplan
