#pragma once

#include <cstdint>
#include <span>

#include "kvplan/export.h"

namespace kvplan {

/// The chunk size d in [lower_bound, max(values)] that minimises the padding
/// `sum(ceil(x / d) * d - x)`; the largest such d. Takes time proportional to the square root of
/// the largest value. Throws `InvalidArgument` for no values or values below 1.
KVPLAN_API int64_t approximate_gcd(std::span<const int64_t> values, int64_t lower_bound = 1);

}  // namespace kvplan
