#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "planning/regroup/buckets.h"

namespace kvplan::compact {

/// How one bucket is packed.
struct BucketChoice {
  size_t option = 0;                ///< block sizes, an index into `Bucket::options`
  std::vector<int64_t> num_groups;  ///< that each part is spread over
};

/// One way to pack all buckets into blocks of `bytes_per_block`.
struct PackedPoint {
  int64_t num_groups = 0;
  int64_t request_blocks = 0;
  int64_t bytes_per_block = 0;
  int64_t request_bytes = 0;
  std::vector<BucketChoice> choices;  ///< parallel to the buckets
};

struct SearchResult {
  std::vector<PackedPoint> points;  ///< fewest groups first, bytes strictly falling
  bool exact = true;
  /// Groups to bytes: what an exact packing might have reached where it was not found in time.
  std::map<int64_t, int64_t> relaxed;
  bool all_widths = true;  ///< false: some widths were left out, and `relaxed` bounds nothing
};

/// Minimises `bytes_per_block x pages of a request` for every number of groups at once.
///
/// For a given block size in bytes each bucket on its own takes the fewest groups, so the search is
/// over block sizes. Only those matter at which some bucket begins to need fewer groups: the sums
/// of pages that one of its groups can hold.
SearchResult search(const std::vector<Bucket>& buckets);

}  // namespace kvplan::compact
