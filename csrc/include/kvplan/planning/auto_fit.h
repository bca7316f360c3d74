#pragma once

#include <cstdint>
#include <span>

#include "kvplan/config.h"
#include "kvplan/export.h"
#include "kvplan/groups.h"

namespace kvplan {

/// What auto-fit looks at: the groups of one worker and the bytes that its requests may take.
struct FitCandidate {
  const KVCacheGroups* groups;
  int64_t bytes_per_block;
  int64_t available_bytes;  ///< without the null block
  int64_t worker;
};

/// The longest length up to `config.max_model_len` with which one request fits every worker. Throws
/// `NotEnoughMemory` where not even one token fits.
KVPLAN_API int64_t auto_fit_max_model_len(PlanningContext ctx, const PlanningConfig& config,
                                          std::span<const FitCandidate> workers);

/// The longest length up to `config.max_model_len` whose layers, group or no group, fit into
/// `available_bytes`; 0 if none does.
/// Mirrors vllm/v1/core/kv_cache_utils.py::estimate_max_model_len (0.33).
KVPLAN_API int64_t estimate_max_model_len(SpecList specs, PlanningConfig config,
                                          int64_t available_bytes);
/// Throws `NotEnoughMemory` unless a request of `config.max_model_len` tokens fits beside the null
/// block of the layers' groups. Mirrors
/// vllm/v1/core/kv_cache_utils.py::check_enough_kv_cache_memory (0.33).
KVPLAN_API void check_layers_admission(PlanningContext ctx, const PlanningConfig& config,
                                       const LayerSpecs& layers, int64_t available_bytes);

}  // namespace kvplan
