#pragma once

#include "kvplan/device/block_ops.h"

namespace kvplan::cuda {

/// The implementation that the program was linked for: its tests are the same.
const BlockOps& tested_ops();
/// `n` rounds of a test, or fewer where the implementation is slow.
int rounds(int n);

}  // namespace kvplan::cuda
