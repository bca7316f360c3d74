#pragma once

#include <cstdint>

namespace kvplan {

/// The numbers that a field may hold, where it holds numbers.
struct FieldRange {
  int64_t least = -INT64_MAX;
  int64_t most = INT64_MAX;
};
inline constexpr FieldRange kPositive{1};
inline constexpr FieldRange kCount{0};

}  // namespace kvplan
