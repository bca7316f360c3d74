#include <cuda_runtime.h>

#include <algorithm>

#include "cuda/cuda_team.cuh"
#include "cuda/steps.h"
#include "kvplan/cuda/cuda_block_ops.h"

namespace kvplan::cuda {
namespace {

constexpr int kTileThreads = 256;
constexpr int kGatherThreads = 256;
// Enough thread blocks in flight to keep the memory busy.
constexpr int kTileBlocksPerMultiprocessor = 8;

__global__ void __launch_bounds__(kTeamThreads)
    reset_pool_kernel(const __grid_constant__ Pool pool) {
  __shared__ CudaTeam::Storage storage;
  CudaTeam team(storage);
  reset_pool_steps(team, pool);
}

__global__ void __launch_bounds__(kTeamThreads)
    allocate_kernel(const __grid_constant__ Pool pool, const __grid_constant__ Allocate args) {
  __shared__ CudaTeam::Storage storage;
  CudaTeam team(storage);
  allocate_steps(team, pool, args);
}

__global__ void __launch_bounds__(kTeamThreads)
    release_kernel(const __grid_constant__ Pool pool, const int32_t* ids, int64_t num_ids) {
  __shared__ CudaTeam::Storage storage;
  CudaTeam team(storage);
  release_steps(team, pool, num_ids, [ids](int64_t k) { return ids[k]; });
}

__global__ void __launch_bounds__(kTeamThreads)
    touch_kernel(const __grid_constant__ Pool pool, const int32_t* ids, int64_t num_ids) {
  __shared__ CudaTeam::Storage storage;
  CudaTeam team(storage);
  touch_steps(team, pool, ids, num_ids);
}

__global__ void __launch_bounds__(kTeamThreads)
    append_slots_kernel(const __grid_constant__ AppendSlots args) {
  __shared__ CudaTeam::Storage storage;
  CudaTeam team(storage);
  append_slots_steps(team, args);
}

__global__ void __launch_bounds__(kTeamThreads)
    release_rows_kernel(const __grid_constant__ ReleaseRows args) {
  __shared__ CudaTeam::Storage storage;
  CudaTeam team(storage);
  release_rows_steps(team, args);
}

/// One thread block a row of one group's table.
__global__ void __launch_bounds__(kGatherThreads)
    gather_tables_kernel(const __grid_constant__ GatherTables args) {
  const int64_t request = blockIdx.x;
  const int32_t group = static_cast<int32_t>(blockIdx.y);
  int32_t* const out = args.out[group] + request * args.out_stride[group];
  for (int64_t j = threadIdx.x; j < args.groups[group].width; j += kGatherThreads) {
    int32_t entry;
    if (!gathered_entry(args, group, request, j, entry)) break;
    out[j] = entry;
  }
}

__device__ int64_t used(const int32_t* count, int64_t limit) {
  if (count == nullptr) return limit;
  const int64_t n = *count;
  return n < 0 ? 0 : (n > limit ? limit : n);
}

__device__ bool in_pool(int32_t id, int32_t num_blocks) { return id >= 0 && id < num_blocks; }

__device__ void report_bad_block(int32_t* errors) {
  if (errors != nullptr && threadIdx.x == 0) atomicOr(errors, kBadBlockId);
}

/// Writes `value_at(i)` to the i-th vector of a tile, four vectors a thread in flight.
template <class Vector, class ValueAt>
__device__ void for_vectors(char* target, int64_t bytes, ValueAt value_at) {
  constexpr int kInFlight = 4;
  const int64_t count = bytes / static_cast<int64_t>(sizeof(Vector));
  Vector* const out = reinterpret_cast<Vector*>(target);
  for (int64_t base = threadIdx.x; base < count; base += kInFlight * kTileThreads) {
    Vector values[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const int64_t i = base + k * kTileThreads;
      if (i < count) values[k] = value_at(i);
    }
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const int64_t i = base + k * kTileThreads;
      if (i < count) out[i] = values[k];
    }
  }
}

__device__ int64_t tile_bytes(const BlockRegion& region, const Tile& tile) {
  const int64_t left = region.size - tile.begin;
  return left < kTileBytes ? left : kTileBytes;  // not positive: the region has no such tile
}

template <class Vector>
__global__ void __launch_bounds__(kTileThreads)
    zero_blocks_kernel(const __grid_constant__ ZeroBlocks a, int64_t tiles_per_region) {
  const int64_t num_tiles = used(a.ids_used, a.num_ids) * a.num_regions * tiles_per_region;
  for (int64_t t = blockIdx.x; t < num_tiles; t += gridDim.x) {
    const Tile tile = tile_at(t, a.num_regions, tiles_per_region);
    const int32_t id = a.ids[tile.id_index];
    if (!in_pool(id, a.num_blocks)) {
      report_bad_block(a.errors);
      continue;
    }
    const BlockRegion region = a.regions[tile.region];
    char* const target = static_cast<char*>(a.buffer) + region_begin(region, id) + tile.begin;
    for_vectors<Vector>(target, tile_bytes(region, tile), [](int64_t) { return Vector{}; });
  }
}

template <class Vector>
__global__ void __launch_bounds__(kTileThreads)
    copy_blocks_kernel(const __grid_constant__ CopyBlocks a, int64_t tiles_per_region) {
  const int64_t num_tiles = used(a.pairs_used, a.num_pairs) * a.num_regions * tiles_per_region;
  for (int64_t t = blockIdx.x; t < num_tiles; t += gridDim.x) {
    const Tile tile = tile_at(t, a.num_regions, tiles_per_region);
    const int32_t source = a.sources[tile.id_index];
    const int32_t target = a.targets[tile.id_index];
    if (!in_pool(source, a.num_blocks) || !in_pool(target, a.num_blocks)) {
      report_bad_block(a.errors);
      continue;
    }
    const BlockRegion region = a.regions[tile.region];
    const char* const from =
        static_cast<const char*>(a.source_buffer) + region_begin(region, source) + tile.begin;
    char* const to =
        static_cast<char*>(a.target_buffer) + region_begin(region, target) + tile.begin;
    for_vectors<Vector>(to, tile_bytes(region, tile),
                        [from](int64_t i) { return reinterpret_cast<const Vector*>(from)[i]; });
  }
}

const char* message(cudaError_t error) {
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

template <class... Parameters, class... Arguments>
const char* launch(void (*kernel)(Parameters...), dim3 grid, int threads, void* stream,
                   const Arguments&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = static_cast<cudaStream_t>(stream);
  return message(cudaLaunchKernelEx(&config, kernel, arguments...));
}

/// Launches `kernel` with one thread block a tile, as long as that is not more than the device has
/// room for.
template <class... Parameters, class Args>
const char* launch_tiles(void (*kernel)(Parameters...), const Args& args, int64_t num_blocks,
                         void* stream) {
  int device = 0;
  int multiprocessors = 0;
  if (const char* error = message(cudaGetDevice(&device))) return error;
  if (const char* error = message(
          cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device))) {
    return error;
  }
  const int64_t tiles_per_region = ceil_div(args.max_region_bytes, kTileBytes);
  const int64_t num_tiles = num_blocks * args.num_regions * tiles_per_region;
  const int64_t limit = int64_t{multiprocessors} * kTileBlocksPerMultiprocessor;
  const auto grid = static_cast<unsigned>(std::min(num_tiles, limit));
  return launch(kernel, dim3(grid), kTileThreads, stream, args, tiles_per_region);
}

/// Calls `launch` with a value of the type that a thread moves at once.
template <class Launch>
const char* with_vector(int32_t vector_bytes, Launch launch) {
  switch (vector_bytes) {
    case 16:
      return launch(uint4{});
    case 8:
      return launch(uint2{});
    case 4:
      return launch(uint32_t{});
    case 2:
      return launch(uint16_t{});
    default:
      return launch(uint8_t{});
  }
}

namespace launchers {

const char* reset_pool(const Pool& pool, void* stream) {
  return launch(reset_pool_kernel, dim3(1), kTeamThreads, stream, pool);
}

const char* allocate(const Pool& pool, const Allocate& args, void* stream) {
  return launch(allocate_kernel, dim3(1), kTeamThreads, stream, pool, args);
}

const char* release(const Pool& pool, const int32_t* ids, int64_t num_ids, void* stream) {
  return launch(release_kernel, dim3(1), kTeamThreads, stream, pool, ids, num_ids);
}

const char* touch(const Pool& pool, const int32_t* ids, int64_t num_ids, void* stream) {
  return launch(touch_kernel, dim3(1), kTeamThreads, stream, pool, ids, num_ids);
}

const char* append_slots(const AppendSlots& args, void* stream) {
  return launch(append_slots_kernel, dim3(1), kTeamThreads, stream, args);
}

const char* release_rows(const ReleaseRows& args, void* stream) {
  return launch(release_rows_kernel, dim3(1), kTeamThreads, stream, args);
}

const char* gather_tables(const GatherTables& args, void* stream) {
  const dim3 grid(static_cast<unsigned>(args.max_requests), static_cast<unsigned>(args.num_groups));
  return launch(gather_tables_kernel, grid, kGatherThreads, stream, args);
}

const char* zero_blocks(const ZeroBlocks& args, void* stream) {
  return with_vector(args.vector_bytes, [&](auto vector) {
    return launch_tiles(zero_blocks_kernel<decltype(vector)>, args, args.num_ids, stream);
  });
}

const char* copy_blocks(const CopyBlocks& args, void* stream) {
  return with_vector(args.vector_bytes, [&](auto vector) {
    return launch_tiles(copy_blocks_kernel<decltype(vector)>, args, args.num_pairs, stream);
  });
}

}  // namespace launchers
}  // namespace

const BlockOps& cuda_block_ops() noexcept {
  static constexpr BlockOps ops{kBlockOpsVersion,         "cuda",
                                launchers::reset_pool,    launchers::allocate,
                                launchers::release,       launchers::touch,
                                launchers::append_slots,  launchers::release_rows,
                                launchers::gather_tables, launchers::zero_blocks,
                                launchers::copy_blocks};
  return ops;
}

}  // namespace kvplan::cuda

const kvplan::cuda::BlockOps* kvplan_cuda_block_ops() noexcept {
  return &kvplan::cuda::cuda_block_ops();
}
