#pragma once

#include <cstdint>
#include <vector>

namespace kvplan::compact {

/// Layers to be packed into groups, by the bytes that one layer takes in a block.
struct Items {
  std::vector<int64_t> bytes;  ///< distinct, largest first
  std::vector<int64_t> count;

  int64_t total_bytes() const;
  int64_t num_layers() const;
};

/// How much work the exact packing may still do; shared by all calls of one search.
struct WorkBudget {
  int64_t steps;
};

struct BinCount {
  int64_t bins = 0;      ///< a packing with this many bins exists
  int64_t at_least = 0;  ///< and none with fewer than this
  bool exact() const { return bins == at_least; }
};

/// The fewest bins of `capacity` bytes that hold the items, none of which is larger. Exact unless
/// the budget runs out.
BinCount min_bins(const Items& items, int64_t capacity, WorkBudget& budget);

/// `counts[b][c]`: items of class c in bin b. `bins` must be what `min_bins` found, or more. Dealt
/// out evenly where that fits.
using Packing = std::vector<std::vector<int64_t>>;
Packing pack(const Items& items, int64_t capacity, int64_t bins);

}  // namespace kvplan::compact
