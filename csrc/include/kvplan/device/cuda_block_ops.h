#pragma once

#include "kvplan/device/block_ops.h"

namespace kvplan::cuda {

/// The operations on the memory of the current CUDA device. In the library `kvplan::cuda`.
KVPLAN_API const BlockOps& cuda_block_ops() noexcept;

}  // namespace kvplan::cuda

/// The same for who opens the library at run time; check `BlockOps::version` before use.
extern "C" KVPLAN_API const kvplan::cuda::BlockOps* kvplan_cuda_block_ops() noexcept;
