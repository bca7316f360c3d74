#pragma once

#include <functional>
#include <limits>
#include <string>

#include "kvplan/planning.h"

namespace kvplan {

/// One worker's side of the admission check.
struct AdmissionCheck {
  int64_t worker;
  int64_t bytes_per_block;
  int64_t available_bytes;  ///< without the null block
  /// Bytes of one request of `max_model_len` tokens; asked again only to name the knobs that help.
  std::function<int64_t(const PlanningConfig&)> request_bytes;
  /// Blocks that the worker's memory holds, whatever the block override says.
  int64_t memory_blocks = std::numeric_limits<int64_t>::max();
  bool sliced = false;  ///< whether blocks are cut into slices, which are counted in whole blocks
};

/// Throws `NotEnoughMemory` unless one request of `config.max_model_len` tokens fits. The message
/// says what was compared, how long a request would fit, and which knobs would help, with their
/// values.
void check_enough_kv_cache_memory(const PlanningConfig& config, const AdmissionCheck& check,
                                  int64_t needed_bytes);

[[noreturn]] void throw_cannot_auto_fit(const PlanningConfig& config, int64_t worker,
                                        int64_t bytes_per_block, int64_t available_bytes);

/// The largest value in [1, upper] for which `fits` holds, given that it holds up to some value and
/// not beyond; 0 if it does not hold for 1.
template <class Fits>
int64_t largest_that_fits(int64_t upper, Fits&& fits) {
  if (upper < 1 || !fits(1)) return 0;
  int64_t left = 1;
  int64_t right = upper;
  while (left < right) {
    const int64_t mid = left + (right - left + 1) / 2;
    if (fits(mid)) {
      left = mid;
    } else {
      right = mid - 1;
    }
  }
  return left;
}

/// Bytes with the unit that shows them, and where two values are compared, with the digits that
/// tell them apart: "49.00 GiB".
std::string format_bytes(int64_t bytes, int64_t compared_with = 0);

/// A number of things: "1 group", "7 groups".
std::string counted(int64_t number, const char* thing);

}  // namespace kvplan
