#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "device/step.h"

namespace kvplan::cuda {

// Tests also build smaller teams.
#ifndef KVPLAN_TEAM_THREADS
#define KVPLAN_TEAM_THREADS 1024
#endif
inline constexpr int kTeamThreads = KVPLAN_TEAM_THREADS;
inline constexpr int kWarpThreads = 32;
inline constexpr uint32_t kFullWarp = 0xffffffff;

/// One thread block as the team of steps.h. All threads of the block call the same methods.
template <int threads>
class BlockTeam {
 public:
  static constexpr int kTeamWarps = threads / kWarpThreads;
  static_assert(threads % kWarpThreads == 0 && kTeamWarps <= kWarpThreads);

  /// In shared memory. Two sets: a scan may begin while others still read the sums of the last one.
  struct Storage {
    TwoSums warp_sums[2][kTeamWarps];
  };

  __device__ explicit BlockTeam(Storage& storage) : storage_(storage) {}

  template <class F>
  __device__ void for_each(int64_t n, F f) {
    for (int64_t i = thread(); i < n; i += threads) f(i);
    __syncthreads();
  }

  template <class Value, class Store>
  __device__ auto scan(int64_t n, Value value, Store store) {
    using Sum = decltype(value(n));
    Sum sum{};
    for (int64_t base = 0; base < n; base += threads) {
      const int64_t i = base + thread();
      const Sum v = i < n ? value(i) : Sum{};
      Sum total;
      // Its barrier also lies between the last value of these and the first store.
      const Sum before = exclusive_sum(v, n - base, total);
      if (i < n) store(i, sum + before, v);
      sum = sum + total;
    }
    __syncthreads();
    return sum;
  }

  template <class F>
  __device__ void once(F f) {
    if (thread() == 0) f();
    __syncthreads();
  }

  template <class F>
  __device__ void for_each_tile(int64_t n, F f) {
    for (int64_t t = 0; t < n; ++t) f(t);
  }

  __device__ int32_t fetch_add(int32_t* target, int32_t value) { return atomicAdd(target, value); }
  __device__ int32_t fetch_and(int32_t* target, int32_t bits) { return atomicAnd(target, bits); }
  __device__ int32_t exchange(int32_t* target, int32_t value) { return atomicExch(target, value); }
  __device__ void fetch_max(int32_t* target, int32_t value) { atomicMax(target, value); }
  __device__ void fetch_or(int32_t* target, int32_t bits) { atomicOr(target, bits); }

 protected:
  __device__ static int thread() { return static_cast<int>(threadIdx.x); }

 private:
  __device__ static int64_t from_below(int64_t value, int distance) {
    return __shfl_up_sync(kFullWarp, value, static_cast<unsigned>(distance));
  }
  __device__ static TwoSums from_below(const TwoSums& value, int distance) {
    return {from_below(value.first, distance), from_below(value.second, distance)};
  }
  __device__ static int64_t from_lane(int64_t value, int lane) {
    return __shfl_sync(kFullWarp, value, lane);
  }
  __device__ static TwoSums from_lane(const TwoSums& value, int lane) {
    return {from_lane(value.first, lane), from_lane(value.second, lane)};
  }
  __device__ static void store(TwoSums& place, int64_t sum) { place.first = sum; }
  __device__ static void store(TwoSums& place, const TwoSums& sum) { place = sum; }
  __device__ static void load(int64_t& sum, const TwoSums& place) { sum = place.first; }
  __device__ static void load(TwoSums& sum, const TwoSums& place) { sum = place; }

  /// The sum of the values of the lanes below and of this one, of the first `lanes`.
  template <class Sum>
  __device__ static Sum inclusive_warp_sum(Sum value, int lane, int lanes) {
#pragma unroll
    for (int distance = 1; distance < kWarpThreads; distance *= 2) {
      if (distance >= lanes) break;
      const Sum below = from_below(value, distance);
      if (lane >= distance) value = value + below;
    }
    return value;
  }

  /// The sum of the values of the threads below; `total`: of all threads. One barrier, since every
  /// warp adds up the sums of the warps for itself. `count`: the first threads that have a value.
  template <class Sum>
  __device__ Sum exclusive_sum(const Sum& value, int64_t count, Sum& total) {
    const int lane = thread() % kWarpThreads;
    const int warp = thread() / kWarpThreads;
    const int used = count < threads ? static_cast<int>(count) : threads;
    const int warps = (used + kWarpThreads - 1) / kWarpThreads;
    const Sum in_warp = warp < warps ? inclusive_warp_sum(value, lane, kWarpThreads) : Sum{};
    TwoSums* const sums = storage_.warp_sums[parity_];
    parity_ ^= 1;
    if (lane == kWarpThreads - 1 && warp < warps) store(sums[warp], in_warp);
    __syncthreads();
    Sum of_warps{};
    if (lane < warps) load(of_warps, sums[lane]);
    of_warps = inclusive_warp_sum(of_warps, lane, warps);
    total = from_lane(of_warps, warps - 1);
    const Sum below = from_lane(of_warps, warp == 0 ? 0 : warp - 1);
    return (warp == 0 ? Sum{} : below) + in_warp - value;
  }

  Storage& storage_;
  int parity_ = 0;
};

using CudaTeam = BlockTeam<kTeamThreads>;

/// All thread blocks of a launch as one team.
template <int threads>
class GridTeam : public BlockTeam<threads> {
 public:
  using BlockTeam<threads>::BlockTeam;

  template <class F>
  __device__ void for_each(int64_t n, F f) {
    for (int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x; i < n;
         i += int64_t{gridDim.x} * threads) {
      f(i);
    }
  }

  template <class F>
  __device__ void once(F f) {
    if (blockIdx.x == 0 && threadIdx.x == 0) f();
  }

  template <class F>
  __device__ void for_each_tile(int64_t n, F f) {
    for (int64_t t = blockIdx.x; t < n; t += gridDim.x) f(t);
  }
};

}  // namespace kvplan::cuda
