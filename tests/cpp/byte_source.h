#pragma once

#include <cstdint>
#include <random>

namespace kvplan::testing {

/// What a driver's decisions come from: a fuzzer's input, or random numbers.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual uint8_t next() = 0;
  int below(int n) { return n <= 1 ? 0 : (next() << 8 | next()) % n; }
};

class RandomBytes : public ByteSource {
 public:
  explicit RandomBytes(uint64_t seed) : random_(seed) {}
  uint8_t next() override { return static_cast<uint8_t>(random_() >> 7); }

 private:
  std::mt19937_64 random_;
};

}  // namespace kvplan::testing
