#pragma once

// The part of the CUDA runtime and language that kvplan's kernels and their tests use, on the CPU.
// Device memory is host memory. Launches run at once; a stream only matters while it is captured.
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "emulated_gpu.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
// A multiprocessor is a thread and runs one block at a time: what is there once for each thread is
// there once for each resident block.
#define __shared__ static thread_local

namespace emulation {
/// An index that is asked for where it is read.
template <Index3 (*index)()>
struct CurrentIndex {
  struct X {
    operator unsigned() const { return index().x; }
  } x;
  struct Y {
    operator unsigned() const { return index().y; }
  } y;
  struct Z {
    operator unsigned() const { return index().z; }
  } z;
};
}  // namespace emulation
inline constexpr emulation::CurrentIndex<emulation::thread_index> threadIdx{};
inline constexpr emulation::CurrentIndex<emulation::block_index> blockIdx{};
inline constexpr emulation::CurrentIndex<emulation::block_size> blockDim{};
inline constexpr emulation::CurrentIndex<emulation::grid_size> gridDim{};

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

struct dim3 : emulation::Index3 {
  dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : Index3{a, b, c} {}
};

inline void __syncthreads() { emulation::block_barrier(); }
inline void __syncwarp(uint32_t mask = ~0U) { emulation::warp_barrier(mask); }

template <class T>
T __shfl_sync(uint32_t mask, T value, int source) {
  static_assert(sizeof(T) <= 8 && std::is_integral_v<T>);
  return static_cast<T>(
      emulation::exchange(mask, static_cast<uint64_t>(value), static_cast<unsigned>(source)));
}

template <class T>
T __shfl_up_sync(uint32_t mask, T value, unsigned delta) {
  const unsigned lane = threadIdx.x % emulation::kWarpSize;
  return __shfl_sync(mask, value, static_cast<int>(lane >= delta ? lane - delta : lane));
}

inline uint32_t __ballot_sync(uint32_t mask, bool value) { return emulation::ballot(mask, value); }

// Relaxed, as on the device: they order nothing but themselves.
template <class T>
T atomicAdd(T* target, std::type_identity_t<T> value) {
  return std::atomic_ref(*target).fetch_add(value, std::memory_order_relaxed);
}
template <class T>
T atomicOr(T* target, std::type_identity_t<T> bits) {
  return std::atomic_ref(*target).fetch_or(bits, std::memory_order_relaxed);
}
template <class T>
T atomicAnd(T* target, std::type_identity_t<T> bits) {
  return std::atomic_ref(*target).fetch_and(bits, std::memory_order_relaxed);
}
template <class T>
T atomicExch(T* target, std::type_identity_t<T> value) {
  return std::atomic_ref(*target).exchange(value, std::memory_order_relaxed);
}
template <class T>
T atomicMax(T* target, std::type_identity_t<T> value) {
  const std::atomic_ref place(*target);
  T before = place.load(std::memory_order_relaxed);
  while (before < value && !place.compare_exchange_weak(before, value, std::memory_order_relaxed)) {
  }
  return before;
}

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorStreamCaptureUnsupported = 900,
};
inline const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    default:
      return "invalid argument";
  }
}

using cudaGraphNodes = std::vector<std::function<void()>>;
struct CUstream_st {
  cudaGraphNodes* captured = nullptr;
};
using cudaStream_t = CUstream_st*;
using cudaGraph_t = cudaGraphNodes*;
using cudaGraphExec_t = cudaGraphNodes*;

namespace emulation {
inline uint64_t launches = 0;      // seeds of the launches' orders
inline int capturing_streams = 0;  // calls that wait or allocate are errors while there are any

inline cudaError_t unless_capturing() {
  return capturing_streams == 0 ? cudaSuccess : cudaErrorStreamCaptureUnsupported;
}
}  // namespace emulation

struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
};

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  static_assert((sizeof(std::decay_t<Parameters>) + ... + 0) <= 32764, "parameters of a kernel");
  const emulation::Index3 grid = config->gridDim;
  const emulation::Index3 block = config->blockDim;
  if (grid.x == 0 || grid.x > 2147483647U || grid.y == 0 || grid.y > 65535U || grid.z == 0 ||
      grid.z > 65535U || block.x == 0 || block.x > 1024U || block.y != 1 || block.z != 1 ||
      config->dynamicSmemBytes != 0) {
    return cudaErrorInvalidConfiguration;
  }
  const auto launch = [kernel, grid, block,
                       values = std::tuple<std::decay_t<Parameters>...>(arguments...)] {
    emulation::run_grid(
        grid, block.x, [&] { std::apply(kernel, values); }, ++emulation::launches);
  };
  if (config->stream != nullptr && config->stream->captured != nullptr) {
    config->stream->captured->push_back(launch);
  } else if (emulation::capturing_streams > 0 && config->stream == nullptr) {
    return cudaErrorStreamCaptureUnsupported;
  } else {
    launch();
  }
  return cudaSuccess;
}

struct cudaFuncAttributes {};
template <class T>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, T* kernel) {
  return kernel == nullptr ? cudaErrorInvalidValue : cudaSuccess;
}

enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount };
inline cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = emulation::kMultiprocessors;
  return cudaSuccess;
}
inline cudaError_t cudaDeviceSynchronize() { return emulation::unless_capturing(); }

template <class T>
cudaError_t cudaMalloc(T** pointer, size_t bytes) {
  // A place of its own for each array: the address sanitizer sees what leaves it.
  if (posix_memalign(reinterpret_cast<void**>(pointer), 256, bytes) != 0) {
    return cudaErrorInvalidValue;
  }
  std::memset(static_cast<void*>(*pointer), 0xa5, bytes);
  return emulation::unless_capturing();
}
inline cudaError_t cudaFree(void* pointer) {
  std::free(pointer);
  return emulation::unless_capturing();
}
enum cudaMemcpyKind { cudaMemcpyDefault };
inline cudaError_t cudaMemcpy(void* target, const void* source, size_t bytes, cudaMemcpyKind) {
  if (emulation::capturing_streams > 0) return cudaErrorStreamCaptureUnsupported;
  if (bytes > 0) std::memcpy(target, source, bytes);
  return cudaSuccess;
}

enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal };
inline cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  *stream = new CUstream_st;
  return cudaSuccess;
}
inline cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return emulation::unless_capturing(); }
inline cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  stream->captured = new cudaGraphNodes;
  ++emulation::capturing_streams;
  return cudaSuccess;
}
inline cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = std::exchange(stream->captured, nullptr);
  --emulation::capturing_streams;
  return cudaSuccess;
}
inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph,
                                        unsigned long long) {
  *exec = new cudaGraphNodes(*graph);
  return cudaSuccess;
}
inline cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t) {
  for (const auto& node : *exec) node();
  return cudaSuccess;
}
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}
inline cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
