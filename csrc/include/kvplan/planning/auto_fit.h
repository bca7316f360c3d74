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
KVPLAN_API int64_t auto_fit_max_model_len(const PlanningContext& ctx, const PlanningConfig& config,
                                          std::span<const FitCandidate> workers);

}  // namespace kvplan
