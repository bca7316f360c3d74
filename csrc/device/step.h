#pragma once

#if defined(__CUDACC__)
#define KVPLAN_STEP __device__
#else
#define KVPLAN_STEP
#endif

#include <cstdint>

namespace kvplan::cuda {

/// Two numbers that are added up together.
struct TwoSums {
  int64_t first;
  int64_t second;

  KVPLAN_STEP friend TwoSums operator+(const TwoSums& a, const TwoSums& b) {
    return {a.first + b.first, a.second + b.second};
  }
  KVPLAN_STEP friend TwoSums operator-(const TwoSums& a, const TwoSums& b) {
    return {a.first - b.first, a.second - b.second};
  }
};

}  // namespace kvplan::cuda
