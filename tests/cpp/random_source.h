#pragma once

#include <cstdint>
#include <random>

namespace kvplan::testing {

/// Numbers for fuzzing::ModelMaker: the same for the same seed.
class RandomSource {
 public:
  explicit RandomSource(uint64_t seed) : rng_(seed) {}
  int64_t pick(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(rng_);
  }

 private:
  std::mt19937_64 rng_;
};

}  // namespace kvplan::testing
