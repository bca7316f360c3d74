#pragma once

#include <bit>
#include <cstdint>
#include <vector>

namespace kvplan::detail {

/// A set of small numbers that knows its largest member: one bit each, and one bit in the level
/// above for each word that is not zero. Three levels reach 262,144 numbers.
class HighestBit {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  explicit HighestBit(uint32_t size) {
    do {
      size = (size + 63) / 64;
      levels_.emplace_back(size, 0);
    } while (size > 1);
  }

  void insert(uint32_t i) {
    for (std::vector<uint64_t>& level : levels_) {
      uint64_t& word = level[i / 64];
      const bool was_empty = word == 0;
      word |= uint64_t{1} << i % 64;
      if (!was_empty) return;
      i /= 64;
    }
  }

  void erase(uint32_t i) {
    for (std::vector<uint64_t>& level : levels_) {
      uint64_t& word = level[i / 64];
      word &= ~(uint64_t{1} << i % 64);
      if (word != 0) return;
      i /= 64;
    }
  }

  uint32_t highest() const {
    if (levels_.back()[0] == 0) return kNone;
    uint32_t i = 0;
    for (size_t level = levels_.size(); level-- > 0;) {
      i = i * 64 + 63 - static_cast<uint32_t>(std::countl_zero(levels_[level][i]));
    }
    return i;
  }

 private:
  std::vector<std::vector<uint64_t>> levels_;
};

}  // namespace kvplan::detail
