#include <cuda_runtime.h>

#include <algorithm>
#include <type_traits>

#include "device/cuda/cuda_team.cuh"
#include "device/steps.h"
#include "kvplan/device/cuda_block_ops.h"

namespace kvplan::cuda {
namespace {

constexpr int kTileThreads = 256;
constexpr int kGatherThreads = 256;
constexpr int kGatherWarps = kGatherThreads / kWarpThreads;
constexpr int64_t kGatherEntries = 1024;  // of a row that a warp goes through
// A step of the whole device: one thread block counts a tile.
constexpr int kItemThreads = kAppendTileItems;
using ItemTeam = GridTeam<kItemThreads>;
constexpr int kFewThreads = std::min(256, kTeamThreads / 2);
constexpr int64_t kTokensOfFewThreads = 8192;
// Up to here one thread block does all of a step: two more launches cost more than what they save.
constexpr int64_t kItemsOfOneLaunch = 512;
constexpr int64_t kSlotsOfOneLaunch = 1024;
// Enough thread blocks in flight to keep the memory busy.
constexpr int kBlocksPerMultiprocessor = 8;

__device__ int lane() { return static_cast<int>(threadIdx.x % kWarpThreads); }

template <class PoolType>
__global__ void __launch_bounds__(kTeamThreads)
    reset_pool_kernel(const __grid_constant__ PoolType pool) {
  __shared__ CudaTeam::Storage storage;
  CudaTeam team(storage);
  reset_pool_steps(team, pool);
}

template <class PoolType, class Args>
__global__ void __launch_bounds__(kTeamThreads)
    allocate_kernel(const __grid_constant__ PoolType pool, const __grid_constant__ Args args) {
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
    release_slices_kernel(const __grid_constant__ SlicedPool pool, int32_t group,
                          const int32_t* ids, int64_t num_ids) {
  __shared__ CudaTeam::Storage storage;
  CudaTeam team(storage);
  release_steps(team, pool, num_ids, [group, ids](int64_t k) { return Slice{group, ids[k]}; });
}

__global__ void __launch_bounds__(kTeamThreads)
    touch_kernel(const __grid_constant__ Pool pool, const int32_t* ids, int64_t num_ids) {
  __shared__ CudaTeam::Storage storage;
  CudaTeam team(storage);
  touch_steps(team, pool, ids, num_ids);
}

__global__ void __launch_bounds__(kTeamThreads)
    touch_slices_kernel(const __grid_constant__ SlicedPool pool, int32_t group, const int32_t* ids,
                        int64_t num_ids) {
  __shared__ CudaTeam::Storage storage;
  CudaTeam team(storage);
  touch_steps(team, pool, group, ids, num_ids);
}

template <class Args>
__global__ void __launch_bounds__(kTeamThreads)
    append_slots_kernel(const __grid_constant__ AppendStep<Args> step) {
  __shared__ CudaTeam::Storage storage;
  CudaTeam team(storage);
  append_slots_steps(team, step);
}

template <class Args>
__global__ void __launch_bounds__(kItemThreads)
    count_items_kernel(const __grid_constant__ AppendStep<Args> step) {
  __shared__ ItemTeam::Storage storage;
  ItemTeam team(storage);
  claim_rows(team, step);
  count_items(team, step, [&](int64_t, const RequestView& q) {
    return q.row >= 0 && own_status(step, q) == kOk;
  });
}

template <class Args, int threads>
__global__ void __launch_bounds__(threads)
    admit_kernel(const __grid_constant__ AppendStep<Args> step) {
  __shared__ typename BlockTeam<threads>::Storage storage;
  BlockTeam<threads> team(storage);
  admit(team, step, true);
}

template <class Args>
__global__ void __launch_bounds__(kItemThreads)
    fill_kernel(const __grid_constant__ AppendStep<Args> step) {
  __shared__ ItemTeam::Storage storage;
  ItemTeam team(storage);
  fill(team, step);
}

template <class Args>
__global__ void __launch_bounds__(kTeamThreads)
    release_rows_kernel(const __grid_constant__ Args args) {
  __shared__ CudaTeam::Storage storage;
  CudaTeam team(storage);
  release_rows_steps(team, args);
}

/// One thread block a row.
__global__ void __launch_bounds__(kGatherThreads)
    remap_blocks_kernel(const __grid_constant__ RemapBlocks args) {
  const auto row = static_cast<int32_t>(blockIdx.x);
  int32_t* const entries = table_row(args.group, row);
  const int64_t n = entries_in_use(args.group, row);
  for (int64_t j = threadIdx.x; j < n; j += kGatherThreads) {
    const int32_t block = entries[j];
    const int32_t now = remapped(args, block);
    if (now != block) entries[j] = now;
  }
}

/// One warp a piece of a row of one group's table; four entries at a time where both rows allow it.
__global__ void __launch_bounds__(kGatherThreads)
    gather_tables_kernel(const __grid_constant__ GatherTables args) {
  const int64_t request = int64_t{blockIdx.x} * kGatherWarps + threadIdx.x / kWarpThreads;
  if (request >= args.max_requests) return;
  const int32_t group = static_cast<int32_t>(blockIdx.y);
  int32_t* const out = args.out[group] + request * args.out_stride[group];
  const GatheredRow row = gathered_row(args, group, request);
  const bool is_aligned =
      (reinterpret_cast<uintptr_t>(out) | reinterpret_cast<uintptr_t>(row.entries)) %
          sizeof(int4) ==
      0;
  for (int64_t begin = int64_t{blockIdx.z} * kGatherEntries; begin < row.count;
       begin += int64_t{gridDim.z} * kGatherEntries) {
    const int64_t end = begin + kGatherEntries < row.count ? begin + kGatherEntries : row.count;
    const int64_t vectors = is_aligned ? end / 4 : begin / 4;
    for (int64_t i = begin / 4 + lane(); i < vectors; i += kWarpThreads) {
      int4 v = reinterpret_cast<const int4*>(row.entries)[i];
      v = {row.entry(4 * i, v.x), row.entry(4 * i + 1, v.y), row.entry(4 * i + 2, v.z),
           row.entry(4 * i + 3, v.w)};
      reinterpret_cast<int4*>(out)[i] = v;
    }
    for (int64_t j = 4 * vectors + lane(); j < end; j += kWarpThreads) {
      out[j] = row.entry(j, row.entries[j]);
    }
  }
}

__device__ int64_t used(const int32_t* count, int64_t limit) {
  if (count == nullptr) return limit;
  const int64_t n = *count;
  return n < 0 ? 0 : (n > limit ? limit : n);
}

__device__ bool in_pool(int32_t id, int32_t num_blocks) { return id >= 0 && id < num_blocks; }

// Every warp has tiles of its own: what a tile costs besides its bytes is paid once for 32 threads,
// so that small regions are bound by memory, too.
constexpr int kTileWarps = kTileThreads / kWarpThreads;

__device__ void report_bad_block(int32_t* errors) {
  if (errors != nullptr && lane() == 0) atomicOr(errors, kBadBlockId);
}

/// Writes `value_at(i)` to the i-th vector of a warp's tile, four vectors a thread in flight.
template <class Vector, class ValueAt>
__device__ void for_vectors(char* target, int64_t bytes, ValueAt value_at) {
  constexpr int kInFlight = 4;
  const auto count = static_cast<int>(bytes / static_cast<int64_t>(sizeof(Vector)));
  Vector* const out = reinterpret_cast<Vector*>(target);
  for (int base = lane(); base < count; base += kInFlight * kWarpThreads) {
    Vector values[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const int i = base + k * kWarpThreads;
      if (i < count) values[k] = value_at(i);
    }
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const int i = base + k * kWarpThreads;
      if (i < count) out[i] = values[k];
    }
  }
}

__device__ int64_t tile_bytes(const BlockRegion& region, const Tile& tile) {
  const int64_t left = region.size - tile.begin;
  return left < kTileBytes ? left : kTileBytes;  // not positive: the region has no such tile
}

/// Calls f(t) for the tiles of the calling warp.
template <class F>
__device__ void for_tiles(int64_t num_tiles, F f) {
  const int64_t stride = int64_t{gridDim.x} * kTileWarps;
  for (int64_t t = int64_t{blockIdx.x} * kTileWarps + threadIdx.x / kWarpThreads; t < num_tiles;
       t += stride) {
    f(t);
  }
}

template <class Vector>
__global__ void __launch_bounds__(kTileThreads)
    zero_blocks_kernel(const __grid_constant__ ZeroBlocks a, int64_t tiles_per_region) {
  for_tiles(used(a.ids_used, a.num_ids) * a.num_regions * tiles_per_region, [&](int64_t t) {
    const Tile tile = tile_at(t, a.num_regions, tiles_per_region);
    const int32_t id = a.ids[tile.id_index];
    if (!in_pool(id, a.num_blocks)) return report_bad_block(a.errors);
    const BlockRegion region = a.regions[tile.region];
    char* const target = static_cast<char*>(a.buffer) + region_begin(region, id) + tile.begin;
    for_vectors<Vector>(target, tile_bytes(region, tile), [](int) { return Vector{}; });
  });
}

template <class Vector>
__global__ void __launch_bounds__(kTileThreads)
    copy_blocks_kernel(const __grid_constant__ CopyBlocks a, int64_t tiles_per_region) {
  for_tiles(used(a.pairs_used, a.num_pairs) * a.num_regions * tiles_per_region, [&](int64_t t) {
    const Tile tile = tile_at(t, a.num_regions, tiles_per_region);
    const int32_t source = a.sources[tile.id_index];
    const int32_t target = a.targets[tile.id_index];
    if (!in_pool(source, a.num_blocks) || !in_pool(target, a.num_blocks)) {
      return report_bad_block(a.errors);
    }
    const BlockRegion region = a.regions[tile.region];
    const char* const from =
        static_cast<const char*>(a.source_buffer) + region_begin(region, source) + tile.begin;
    char* const to =
        static_cast<char*>(a.target_buffer) + region_begin(region, target) + tile.begin;
    for_vectors<Vector>(to, tile_bytes(region, tile),
                        [from](int i) { return reinterpret_cast<const Vector*>(from)[i]; });
  });
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

/// Thread blocks for `work` of them: not more than the device has room for.
const char* grid_for(int64_t work, dim3& grid) {
  int device = 0;
  int multiprocessors = 0;
  if (const char* error = message(cudaGetDevice(&device))) return error;
  if (const char* error = message(
          cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device))) {
    return error;
  }
  const int64_t limit = int64_t{multiprocessors} * kBlocksPerMultiprocessor;
  grid = dim3(static_cast<unsigned>(std::min(work, limit)));
  return nullptr;
}

template <class... Parameters, class Args>
const char* launch_tiles(void (*kernel)(Parameters...), const Args& args, int64_t num_blocks,
                         void* stream) {
  const int64_t tiles_per_region = ceil_div(args.max_region_bytes, kTileBytes);
  dim3 grid;
  const int64_t tiles = num_blocks * args.num_regions * tiles_per_region;
  if (const char* error = grid_for(ceil_div(tiles, kTileWarps), grid)) return error;
  return launch(kernel, grid, kTileThreads, stream, args, tiles_per_region);
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

/// Loads kernels that a step runs: the runtime loads one at its first launch, which may be while a
/// stream is captured, where loading is not allowed to wait for the device.
template <class... Kernels>
const char* load(Kernels*... kernels) {
  cudaError_t error = cudaSuccess;
  cudaFuncAttributes attributes;
  const auto load_one = [&](auto* kernel) {
    if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, kernel);
  };
  (load_one(kernels), ...);
  return message(error);
}

const char* load_common_kernels() {
  return load(gather_tables_kernel, remap_blocks_kernel, zero_blocks_kernel<uint4>,
              zero_blocks_kernel<uint2>, zero_blocks_kernel<uint32_t>, zero_blocks_kernel<uint16_t>,
              zero_blocks_kernel<uint8_t>, copy_blocks_kernel<uint4>, copy_blocks_kernel<uint2>,
              copy_blocks_kernel<uint32_t>, copy_blocks_kernel<uint16_t>,
              copy_blocks_kernel<uint8_t>);
}

namespace launchers {

const char* load_kernels_for(const Pool&) {
  return load(allocate_kernel<Pool, Allocate>, release_kernel, touch_kernel,
              append_slots_kernel<AppendSlots>, count_items_kernel<AppendSlots>,
              admit_kernel<AppendSlots, kFewThreads>, admit_kernel<AppendSlots, kTeamThreads>,
              fill_kernel<AppendSlots>, release_rows_kernel<ReleaseRows>);
}

const char* load_kernels_for(const SlicedPool&) {
  return load(allocate_kernel<SlicedPool, AllocateSlices>, release_slices_kernel,
              touch_slices_kernel, append_slots_kernel<AppendSlices>,
              count_items_kernel<AppendSlices>, admit_kernel<AppendSlices, kFewThreads>,
              admit_kernel<AppendSlices, kTeamThreads>, fill_kernel<AppendSlices>,
              release_rows_kernel<ReleaseSlicedRows>);
}

template <class PoolType>
const char* reset_pool(const PoolType& pool, void* stream) {
  if (const char* error = load_common_kernels()) return error;
  if (const char* error = load_kernels_for(pool)) return error;
  return launch(reset_pool_kernel<PoolType>, dim3(1), kTeamThreads, stream, pool);
}

template <class PoolType, class Args>
const char* allocate(const PoolType& pool, const Args& args, void* stream) {
  return launch(allocate_kernel<PoolType, Args>, dim3(1), kTeamThreads, stream, pool, args);
}

const char* release(const Pool& pool, const int32_t* ids, int64_t num_ids, void* stream) {
  return launch(release_kernel, dim3(1), kTeamThreads, stream, pool, ids, num_ids);
}

const char* release_slices(const SlicedPool& pool, int32_t group, const int32_t* ids,
                           int64_t num_ids, void* stream) {
  return launch(release_slices_kernel, dim3(1), kTeamThreads, stream, pool, group, ids, num_ids);
}

const char* touch(const Pool& pool, const int32_t* ids, int64_t num_ids, void* stream) {
  return launch(touch_kernel, dim3(1), kTeamThreads, stream, pool, ids, num_ids);
}

const char* touch_slices(const SlicedPool& pool, int32_t group, const int32_t* ids, int64_t num_ids,
                         void* stream) {
  return launch(touch_slices_kernel, dim3(1), kTeamThreads, stream, pool, group, ids, num_ids);
}

template <class Args>
const char* append_slots(const Args& args, void* stream) {
  const int64_t items = int64_t{args.max_requests} * args.num_groups;
  const int64_t slots = args.max_tokens * args.num_groups;
  if (items <= kItemsOfOneLaunch && slots <= kSlotsOfOneLaunch) {
    constexpr uint32_t tile = std::max<uint32_t>(kTeamThreads, kAppendTileItems);
    return launch(append_slots_kernel<Args>, dim3(1), kTeamThreads, stream,
                  append_step(args, tile));
  }
  const AppendStep<Args> step = append_step(args, kAppendTileItems);
  dim3 tiles;
  dim3 places;
  if (const char* error = grid_for(ceil_div(items, kItemThreads), tiles)) return error;
  if (const char* error = grid_for(ceil_div(num_pieces(args), kItemThreads), places)) {
    return error;
  }
  if (const char* error = launch(count_items_kernel<Args>, tiles, kItemThreads, stream, step)) {
    return error;
  }
  // A barrier and a sum cost by the warps that take part.
  auto* admit = admit_kernel<Args, kTeamThreads>;
  int threads = kTeamThreads;
  // Lists of slices are longer with more groups, and many tokens may leave many blocks to drop.
  const bool has_list = std::is_same_v<Args, AppendSlices>;
  if (args.max_requests <= kFewThreads && args.max_tokens <= kTokensOfFewThreads &&
      (!has_list || items <= 4 * kFewThreads)) {
    admit = admit_kernel<Args, kFewThreads>;
    threads = kFewThreads;
  }
  if (const char* error = launch(admit, dim3(1), threads, stream, step)) return error;
  return launch(fill_kernel<Args>, places, kItemThreads, stream, step);
}

template <class Args>
const char* release_rows(const Args& args, void* stream) {
  return launch(release_rows_kernel<Args>, dim3(1), kTeamThreads, stream, args);
}

const char* remap_blocks(const RemapBlocks& args, void* stream) {
  return launch(remap_blocks_kernel, dim3(static_cast<unsigned>(args.num_rows)), kGatherThreads,
                stream, args);
}

const char* gather_tables(const GatherTables& args, void* stream) {
  int64_t widest = 1;
  for (int32_t g = 0; g < args.num_groups; ++g) {
    widest = std::max<int64_t>(widest, args.groups[g].width);
  }
  const int64_t pieces = std::min<int64_t>(ceil_div(widest, kGatherEntries), 65535);
  const dim3 grid(static_cast<unsigned>(ceil_div(args.max_requests, kGatherWarps)),
                  static_cast<unsigned>(args.num_groups), static_cast<unsigned>(pieces));
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
  static constexpr BlockOps ops{.version = kBlockOpsVersion,
                                .name = "cuda",
                                .reset_pool = launchers::reset_pool,
                                .allocate = launchers::allocate,
                                .release = launchers::release,
                                .touch = launchers::touch,
                                .append_slots = launchers::append_slots,
                                .release_rows = launchers::release_rows,
                                .gather_tables = launchers::gather_tables,
                                .zero_blocks = launchers::zero_blocks,
                                .copy_blocks = launchers::copy_blocks,
                                .remap_blocks = launchers::remap_blocks,
                                .reset_sliced_pool = launchers::reset_pool,
                                .allocate_slices = launchers::allocate,
                                .release_slices = launchers::release_slices,
                                .touch_slices = launchers::touch_slices,
                                .append_slices = launchers::append_slots,
                                .release_sliced_rows = launchers::release_rows};
  return ops;
}

}  // namespace kvplan::cuda

const kvplan::cuda::BlockOps* kvplan_cuda_block_ops() noexcept {
  return &kvplan::cuda::cuda_block_ops();
}
