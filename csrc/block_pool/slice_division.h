#pragma once

#include <bit>
#include <cstdint>

namespace kvplan::detail {

/// Division of block ids below 2^31 by a group's slices: one multiplication by the rounded-up
/// reciprocal of `bit_width` more bits than the divisor has, which is exact for them.
class SliceDivision {
 public:
  explicit SliceDivision(uint32_t divisor)
      : divisor_(divisor), shift_(31 + static_cast<uint32_t>(std::bit_width(divisor - 1))) {
    __extension__ using Wide = unsigned __int128;
    multiplier_ = static_cast<uint64_t>(((Wide{1} << shift_) + divisor - 1) / divisor);
  }

  uint32_t divisor() const { return divisor_; }
  uint32_t quotient(uint32_t n) const { return static_cast<uint32_t>(n * multiplier_ >> shift_); }

 private:
  uint64_t multiplier_;
  uint32_t divisor_;
  uint32_t shift_;
};

}  // namespace kvplan::detail
