#pragma once

#if defined(__CUDACC__)
#define KVPLAN_STEP __device__
#else
#define KVPLAN_STEP
#endif

#include <bit>
#include <cstdint>

#include "kvplan/device/block_arithmetic.h"

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

/// The owner of `item` where owner i has the items from `starts(i)` to `starts(i + 1)`, for
/// `starts(0) <= item`, and `item` below the end of the last one.
template <class Starts>
KVPLAN_STEP uint32_t owner_by(Starts starts, int64_t num_owners, int64_t item) {
  uint32_t low = 0;  // numbers of owners have 32 bits
  uint32_t high = static_cast<uint32_t>(num_owners) - 1;
  while (low < high) {
    const uint32_t middle = (low + high + 1) / 2;
    if (starts(middle) <= item) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}
KVPLAN_STEP inline uint32_t owner_of(const int64_t* starts, int64_t num_owners, int64_t item) {
  return owner_by([starts](uint32_t i) { return starts[i]; }, num_owners, item);
}

/// Sums of a number for each item, in two levels: within a tile of items, and of the tiles.
struct ItemSums {
  int64_t* before;  ///< [items] in the item's tile
  int64_t* tiles;   ///< [tiles] each tile's sum, then what is before it
  uint32_t shift;   ///< a tile has 2^shift items

  KVPLAN_STEP int64_t start(int64_t item) const {
    return tiles[static_cast<uint32_t>(item) >> shift] + before[item];
  }

  /// The item that has number k, of `num_items`.
  KVPLAN_STEP int64_t owner(int64_t num_items, int64_t k) const {
    const auto items = static_cast<uint32_t>(num_items);
    const uint32_t t = owner_of(tiles, ((items - 1) >> shift) + 1, k);
    const uint32_t first = t << shift;
    const uint32_t left = items - first;
    const uint32_t tile = 1U << shift;
    return first + owner_of(before + first, left < tile ? left : tile, k - tiles[t]);
  }
};

/// Binary digits of a number.
KVPLAN_STEP inline int32_t num_bits(uint32_t x) {
#if defined(__CUDA_ARCH__)
  return 32 - __clz(static_cast<int>(x));
#else
  return static_cast<int32_t>(std::bit_width(x));
#endif
}

}  // namespace kvplan::cuda
