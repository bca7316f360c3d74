// Kernels with a fault each, and one without, to see that the machine finds it (faults_test.cpp).
#include "fault_kernels.h"

namespace {

constexpr int kThreads = 64;

/// A ring of values handed on through shared memory, right or with a barrier left out.
template <int barriers>
__global__ void hand_on(int* out) {
  __shared__ int ring[kThreads];
  const unsigned i = threadIdx.x;
  for (int round = 0; round < 2; ++round) {
    ring[i] = static_cast<int>(i) + round;
    if (barriers > 0) __syncthreads();
    out[i] = ring[(i + 1) % kThreads];
    if (barriers > 1) __syncthreads();
  }
  out[i] += __shfl_sync(~0U, out[i], 3);
}

__global__ void ends_before_barrier(int* out) {
  if (threadIdx.x < 32) return;
  out[threadIdx.x] = 1;
  __syncthreads();
}

__global__ void lane_misses_barrier(int* out) {
  if (threadIdx.x != 5) __syncthreads();
  out[threadIdx.x] = 1;
}

__global__ void lane_misses_shuffle(int* out) {
  if (threadIdx.x != 5) out[threadIdx.x] = __shfl_sync(~0U, out[threadIdx.x], 0);
}

__global__ void shuffle_of_some(int* out) {
  if (threadIdx.x % 32 < 16) out[threadIdx.x] = __shfl_sync(0xffff, out[threadIdx.x], 0);
}

__global__ void shuffle_is_no_barrier(int* out) {
  __shared__ int values[kThreads];
  const unsigned i = threadIdx.x;
  values[i] = static_cast<int>(i);
  (void)__shfl_sync(~0U, 1, 0);
  out[i] = values[i ^ 1];
}

__global__ void not_written(int* out) {
  __shared__ int values[kThreads];
  if (threadIdx.x > 0) values[threadIdx.x] = 1;
  __syncthreads();
  out[threadIdx.x] = values[threadIdx.x];
}

__global__ void blocks_share_a_place(int* out) {
  if (threadIdx.x == 0) out[0] = static_cast<int>(blockIdx.x);
}

__global__ void half_atomic(int* out) {
  if (threadIdx.x == 0) atomicAdd(out, 1);
  if (threadIdx.x == 33) out[0] = 0;
}

__global__ void one_too_far(int* out) { out[threadIdx.x + 1] = 0; }

__global__ void misaligned_vector(int* out) {
  if (threadIdx.x == 0) *reinterpret_cast<uint4*>(out + 1) = uint4{};
}

__global__ void divides_by_zero(int* out) {
  if (threadIdx.x == 0) out[0] = 7 / out[1];
}

}  // namespace

const std::map<std::string, void (*)(int*)>& fault_kernels() {
  static const std::map<std::string, void (*)(int*)> kernels{
      {"no fault", hand_on<2>},
      {"no barrier", hand_on<0>},
      {"one barrier missing", hand_on<1>},
      {"warp ends before a barrier", ends_before_barrier},
      {"lane misses a barrier", lane_misses_barrier},
      {"lane misses a shuffle", lane_misses_shuffle},
      {"shuffle of some lanes", shuffle_of_some},
      {"shuffle is no barrier", shuffle_is_no_barrier},
      {"shared memory not written", not_written},
      {"blocks share a place", blocks_share_a_place},
      {"half atomic", half_atomic},
      {"beyond an array", one_too_far},
      {"misaligned vector", misaligned_vector},
      {"division by zero", divides_by_zero},
  };
  return kernels;
}
