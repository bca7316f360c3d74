#include "tested_ops.h"

#include "kvplan/device/cuda_block_ops.h"

namespace kvplan::cuda {

const BlockOps& tested_ops() { return cuda_block_ops(); }
int rounds(int n) { return n / 4; }

}  // namespace kvplan::cuda
