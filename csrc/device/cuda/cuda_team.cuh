#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace kvplan::cuda {

// Tests also build smaller teams.
#ifndef KVPLAN_TEAM_THREADS
#define KVPLAN_TEAM_THREADS 1024
#endif
inline constexpr int kTeamThreads = KVPLAN_TEAM_THREADS;
inline constexpr int kWarpThreads = 32;
inline constexpr int kTeamWarps = kTeamThreads / kWarpThreads;
inline constexpr uint32_t kFullWarp = 0xffffffff;
static_assert(kTeamThreads % kWarpThreads == 0 && kTeamWarps <= kWarpThreads);

/// One thread block as the team of steps.h. All threads of the block call the same methods.
class CudaTeam {
 public:
  /// In shared memory. Two sets: a scan may begin while others still read the sums of the last one.
  struct Storage {
    int64_t warp_sums[2][kTeamWarps];
  };

  __device__ explicit CudaTeam(Storage& storage) : storage_(storage) {}

  template <class F>
  __device__ void for_each(int64_t n, F f) {
    for (int64_t i = thread(); i < n; i += kTeamThreads) f(i);
    __syncthreads();
  }

  template <class Value, class Store>
  __device__ int64_t scan(int64_t n, Value value, Store store) {
    int64_t sum = 0;
    for (int64_t base = 0; base < n; base += kTeamThreads) {
      const int64_t i = base + thread();
      const int64_t v = i < n ? value(i) : 0;
      int64_t total = 0;
      // Its barrier also lies between the last value of these and the first store.
      const int64_t before = exclusive_sum(v, total);
      if (i < n) store(i, sum + before, v);
      sum += total;
    }
    __syncthreads();
    return sum;
  }

  template <class F>
  __device__ void once(F f) {
    if (thread() == 0) f();
    __syncthreads();
  }

  __device__ int32_t fetch_add(int32_t* target, int32_t value) { return atomicAdd(target, value); }
  __device__ int32_t fetch_and(int32_t* target, int32_t bits) { return atomicAnd(target, bits); }
  __device__ int32_t exchange(int32_t* target, int32_t value) { return atomicExch(target, value); }
  __device__ void fetch_max(int32_t* target, int32_t value) { atomicMax(target, value); }
  __device__ void fetch_or(int32_t* target, int32_t bits) { atomicOr(target, bits); }

 private:
  __device__ static int thread() { return static_cast<int>(threadIdx.x); }

  /// The sum of the values of the lanes below and of this one.
  __device__ static int64_t inclusive_warp_sum(int64_t value, int lane) {
#pragma unroll
    for (int distance = 1; distance < kWarpThreads; distance *= 2) {
      const int64_t below = __shfl_up_sync(kFullWarp, value, static_cast<unsigned>(distance));
      if (lane >= distance) value += below;
    }
    return value;
  }

  /// The sum of the values of the threads below; `total`: of all threads. One barrier, since every
  /// warp adds up the sums of the warps for itself.
  __device__ int64_t exclusive_sum(int64_t value, int64_t& total) {
    const int lane = thread() % kWarpThreads;
    const int warp = thread() / kWarpThreads;
    const int64_t in_warp = inclusive_warp_sum(value, lane);
    int64_t* const sums = storage_.warp_sums[parity_];
    parity_ ^= 1;
    if (lane == kWarpThreads - 1) sums[warp] = in_warp;
    __syncthreads();
    const int64_t warps = inclusive_warp_sum(lane < kTeamWarps ? sums[lane] : 0, lane);
    total = __shfl_sync(kFullWarp, warps, kTeamWarps - 1);
    const int64_t below = __shfl_sync(kFullWarp, warps, warp == 0 ? 0 : warp - 1);
    return (warp == 0 ? 0 : below) + in_warp - value;
  }

  Storage& storage_;
  int parity_ = 0;
};

}  // namespace kvplan::cuda
