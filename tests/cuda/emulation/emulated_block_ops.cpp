// The kernels' own source as C++: <cuda_runtime.h> is the emulation's.
#include "device/cuda/cuda_block_ops.cu"
