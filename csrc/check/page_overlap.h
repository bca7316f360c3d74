#pragma once

#include <vector>

#include "check/page_runs.h"
#include "check/violations.h"

namespace kvplan::checking {

/// Reports pages that share a byte although they may hold data at the same time: two pages of one
/// group, or two pages of different blocks. Pages of different groups may alias within a block,
/// since a block id belongs to one group at a time. Stops at the first collision and returns false.
///
/// All runs must lie inside the buffer, with positive strides and sizes.
bool check_overlap(const CheckedWorker& worker, size_t worker_index,
                   const std::vector<TensorRuns>& tensors, Violations& violations);

}  // namespace kvplan::checking
