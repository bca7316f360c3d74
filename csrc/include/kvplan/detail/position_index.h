#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvplan::detail {

/// Finds entries of a table by hash. The table is its owner's and only grows; this holds positions
/// in it, by open addressing in one allocation.
class PositionIndex {
 public:
  static constexpr size_t kNone = static_cast<size_t>(-1);

  /// The position of an entry with this hash that `matches(position)`, in the order of adding;
  /// `kNone` if there is none.
  template <class Matches>
  size_t find(size_t hash, Matches&& matches) const {
    if (slots_.empty()) return kNone;
    const uint32_t tag = tag_of(hash);
    const size_t mask = slots_.size() - 1;
    for (size_t i = tag & mask; slots_[i].position >= 0; i = (i + 1) & mask) {
      if (slots_[i].tag != tag) continue;
      const auto position = static_cast<size_t>(slots_[i].position);
      if (matches(position)) return position;
    }
    return kNone;
  }

  void add(size_t hash, size_t position) {
    reserve(size_ + 1);
    insert({tag_of(hash), static_cast<int32_t>(position)});
    ++size_;
  }

  /// Makes room for `count` entries in all.
  void reserve(size_t count) {
    if (2 * count <= slots_.size()) return;
    std::vector<Slot> old(std::bit_ceil(std::max<size_t>(2 * count, 16)));
    old.swap(slots_);
    // From a gap on, so that equal hashes keep their order.
    size_t gap = 0;
    while (gap < old.size() && old[gap].position >= 0) ++gap;
    for (size_t i = 0; i < old.size(); ++i) {
      const Slot& slot = old[(gap + i) & (old.size() - 1)];
      if (slot.position >= 0) insert(slot);
    }
  }

 private:
  struct Slot {
    uint32_t tag = 0;
    int32_t position = -1;
  };

  static uint32_t tag_of(size_t hash) {
    return static_cast<uint32_t>((hash * 0x9e3779b97f4a7c15ULL) >> 32);
  }

  void insert(Slot slot) {
    const size_t mask = slots_.size() - 1;
    size_t i = slot.tag & mask;
    while (slots_[i].position >= 0) i = (i + 1) & mask;
    slots_[i] = slot;
  }

  std::vector<Slot> slots_;  // a power of two, at most half of them taken
  size_t size_ = 0;
};

}  // namespace kvplan::detail
