// Kernels with a fault each, to see that the emulation finds it: emulation_faults NAME.
#include <cuda_runtime.h>

#include <cstdio>
#include <map>
#include <string>

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
  (void)__shfl_sync(~0U, out[i], 3);
}

__global__ void ends_before_barrier(int*) {
  if (threadIdx.x != 5) __syncthreads();
}

__global__ void ends_before_shuffle(int* out) {
  if (threadIdx.x != 5) out[threadIdx.x] = __shfl_sync(~0U, out[threadIdx.x], 0);
}

__global__ void different_calls(int* out) {
  if (threadIdx.x % 2 == 0) {
    __syncwarp();
  } else {
    out[threadIdx.x] = __shfl_sync(~0U, out[threadIdx.x], 0);
  }
}

__global__ void not_in_mask(int* out) { out[threadIdx.x] = __shfl_sync(1U, out[threadIdx.x], 0); }

__global__ void shuffle_between(int* out) {
  __shared__ int values[kThreads];
  const unsigned i = threadIdx.x;
  values[i] = static_cast<int>(i);
  (void)__shfl_sync(~0U, 1, 0);
  out[i] = values[i ^ 1];
}

__global__ void every_block_writes(int* out) {
  if (threadIdx.x == 0) out[0] = static_cast<int>(blockIdx.x);
}

__global__ void one_too_far(int* out) { out[threadIdx.x + 1] = 0; }

__global__ void vector_at_odd_place(int* out) {
  if (threadIdx.x == 0) *reinterpret_cast<uint4*>(out + 1) = uint4{};
}

cudaError_t launch(void (*kernel)(int*), int* out, unsigned blocks = 1,
                   unsigned threads = kThreads) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  return cudaLaunchKernelEx(&config, kernel, out);
}

cudaError_t allocate_while_capturing() {
  cudaStream_t stream;
  int* more;
  cudaGraph_t graph;
  cudaStreamCreate(&stream);
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
  const cudaError_t error = cudaMalloc(&more, 4);
  cudaFree(more);
  cudaStreamEndCapture(stream, &graph);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  return error;
}

}  // namespace

int main(int argc, char** argv) {
  int* out;
  cudaMalloc(&out, kThreads * sizeof(int));
  const std::map<std::string, std::function<cudaError_t()>> faults{
      {"none", [&] { return launch(hand_on<2>, out); }},
      {"shared_memory_without_barrier", [&] { return launch(hand_on<0>, out); }},
      {"second_barrier_missing", [&] { return launch(hand_on<1>, out); }},
      {"barrier_not_reached", [&] { return launch(ends_before_barrier, out); }},
      {"lane_ended", [&] { return launch(ends_before_shuffle, out); }},
      {"lanes_disagree", [&] { return launch(different_calls, out); }},
      {"lane_outside_its_mask", [&] { return launch(not_in_mask, out); }},
      {"shuffle_is_no_barrier", [&] { return launch(shuffle_between, out); }},
      {"blocks_share_a_place", [&] { return launch(every_block_writes, out, 8); }},
      {"beyond_an_array", [&] { return launch(one_too_far, out); }},
      {"misaligned_vector", [&] { return launch(vector_at_odd_place, out); }},
      {"allocation_while_capturing", allocate_while_capturing},
      {"too_many_threads", [&] { return launch(hand_on<2>, out, 1, 1025); }},
  };
  const cudaError_t error = argc == 2 ? faults.at(argv[1])() : cudaErrorInvalidValue;
  std::puts(error == cudaSuccess ? "no fault" : cudaGetErrorString(error));
  cudaFree(out);
}
