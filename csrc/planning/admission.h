#pragma once

#include "kvplan/planning.h"

namespace kvplan {

/// One worker's side of the admission check.
struct AdmissionCheck {
  int64_t worker;
  const KVCacheGroups& groups;  ///< this worker's
  int64_t bytes_per_block;
  int64_t available_bytes;  ///< without the null block
};

/// Throws `NotEnoughMemory` unless one request of `config.max_model_len` tokens fits. The message
/// says what was compared, how long a request would fit, and which knobs would help, with their
/// values.
void check_enough_kv_cache_memory(const PlanningContext& ctx, const PlanningConfig& config,
                                  const AdmissionCheck& check, int64_t needed_bytes);

[[noreturn]] void throw_cannot_auto_fit(const PlanningConfig& config, const AdmissionCheck& check);

/// Bytes with the unit that shows them, and where two values are compared, with the digits that
/// tell them apart: "49.00 GiB".
std::string format_bytes(int64_t bytes, int64_t compared_with = 0);

}  // namespace kvplan
