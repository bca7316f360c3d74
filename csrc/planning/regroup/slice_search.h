#pragma once

#include <cstdint>
#include <vector>

namespace kvplan::sliced {

/// One kind of cache, as the search sees it.
struct SliceKind {
  int64_t pages = 0;        ///< that a request of the reference length holds
  int64_t slice_bytes = 0;  ///< the least bytes of a slice: a page of all its layers, aligned
  int64_t alignment = 1;    ///< of a slice, in bytes; divides `slice_bytes`
};

struct SliceProblem {
  std::vector<SliceKind> kinds;
  int64_t max_block_bytes = 0;  ///< bound on the block; a block that holds one page may be larger
  int64_t pool_bytes = 0;       ///< that partly used blocks are a part of
};

struct SliceChoice {
  int64_t block_bytes = 0;
  std::vector<int64_t> slices;  ///< parallel to the kinds
  double cost = 0;              ///< bytes of a request, see `price`
  bool exact = true;            ///< false: the search was cut short
};

/// Slices that a block is cut into at most for one kind.
inline constexpr int64_t kMaxSlices = 65536;

/// Bytes of a request, `block_bytes x sum of pages / slices`, and its share of the blocks that are
/// used in part: one for each kind, whatever the number of requests.
double price(const SliceProblem& problem, int64_t block_bytes, const std::vector<int64_t>& slices);

/// The block and the slices of the least price.
///
/// Let A be the common multiple of the alignments; every block is a multiple of A. For a given
/// block W a kind takes the most slices k that divide `W / alignment` with `W / k >= slice_bytes`,
/// whatever the others take. Without the first condition k is `W / slice_bytes` rounded down, which
/// bounds the price from below; between two multiples of any `slice_bytes` these k do not change
/// and the bound grows with W. So the multiples cut the range of W into intervals, which are
/// searched from the lowest bound up, each from its beginning until the bound exceeds the best
/// price found. Nothing that is left out can be better.
SliceChoice choose_slices(const SliceProblem& problem);

}  // namespace kvplan::sliced
