#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define KVPLAN_HOST_DEVICE __host__ __device__
#else
#define KVPLAN_HOST_DEVICE
#endif

/// Where a token's state lies: arithmetic that kernels, the CPU implementation and tests share.
/// Positions and slots are 64-bit, block ids 32-bit. Arguments are in range; nothing is checked.
namespace kvplan::cuda {

/// Slot of a token that writes no state.
inline constexpr int64_t kPadSlot = -1;
/// Table entry without a block of its own.
inline constexpr int32_t kNullEntry = 0;

/// Decode context parallelism: tokens of a block are dealt to `size` ranks, `interleave` at a time.
struct ContextParallel {
  int32_t size = 1;
  int32_t rank = 0;
  int32_t interleave = 1;
};

/// Which tokens below the first one that is computed now stay readable.
enum class WindowKind : int32_t {
  kNone = 0,     ///< all
  kSliding = 1,  ///< the last `tokens`
  kChunked = 2,  ///< those of the chunk of `tokens` that the next token is in
};

struct Window {
  WindowKind kind = WindowKind::kNone;
  int32_t tokens = 0;
};

KVPLAN_HOST_DEVICE constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Tokens of a request that one table entry stands for, on all ranks together.
KVPLAN_HOST_DEVICE constexpr int64_t tokens_per_entry(int32_t block_size, bool dcp_sharded,
                                                      const ContextParallel& cp) {
  return dcp_sharded ? static_cast<int64_t>(block_size) * cp.size : block_size;
}

/// Table entries that hold `num_tokens` tokens; `extra` more for a request that has any.
KVPLAN_HOST_DEVICE constexpr int64_t required_entries(int64_t num_tokens, int64_t entry_tokens,
                                                      int32_t extra) {
  return num_tokens > 0 ? ceil_div(num_tokens, entry_tokens) + extra : 0;
}

/// Tokens that no token from position `context_len` on reads.
/// Mirrors get_num_skipped_tokens of vllm/v1/core/single_type_kv_cache_manager.py (0.33).
KVPLAN_HOST_DEVICE constexpr int64_t skipped_tokens(const Window& window, int64_t context_len) {
  if (window.kind == WindowKind::kSliding) {
    return context_len > window.tokens ? context_len - window.tokens : 0;
  }
  if (window.kind == WindowKind::kChunked) return context_len / window.tokens * window.tokens;
  return 0;
}

/// Leading table entries of which no token is read any more.
KVPLAN_HOST_DEVICE constexpr int64_t leading_null_entries(const Window& window, int64_t context_len,
                                                          int64_t entry_tokens) {
  return skipped_tokens(window, context_len) / entry_tokens;
}

/// Where the token at `position` lies among the tokens that one rank stores.
struct LocalPosition {
  int64_t position;
  bool is_local;  ///< false: another rank stores it, and `position` means nothing
};

/// Mirrors the kernel of vllm/v1/worker/gpu/block_table.py::_compute_slot_mappings_kernel (0.33).
KVPLAN_HOST_DEVICE constexpr LocalPosition local_position(int64_t position, int32_t block_size,
                                                          bool dcp_sharded,
                                                          const ContextParallel& cp) {
  if (!dcp_sharded || cp.size == 1) return {position, true};
  const int64_t entry_tokens = tokens_per_entry(block_size, true, cp);
  const int64_t entry = position / entry_tokens;
  const int64_t offset = position % entry_tokens;
  const int64_t round_tokens = static_cast<int64_t>(cp.size) * cp.interleave;
  const bool is_local = offset / cp.interleave % cp.size == cp.rank;
  const int64_t local_offset = offset / round_tokens * cp.interleave + offset % cp.interleave;
  return {entry * block_size + local_offset, is_local};
}

/// The state `offset` of block `block_id`, counted over all blocks of the group.
KVPLAN_HOST_DEVICE constexpr int64_t slot_of(int32_t block_id, int32_t block_size, int64_t offset) {
  return static_cast<int64_t>(block_id) * block_size + offset;
}

/// Bytes that a block id names in a buffer: `size` bytes at `offset + id * block_stride`.
struct BlockRegion {
  int64_t offset = 0;
  int64_t block_stride = 0;
  int64_t size = 0;
};

KVPLAN_HOST_DEVICE constexpr int64_t region_begin(const BlockRegion& region, int32_t block_id) {
  return region.offset + static_cast<int64_t>(block_id) * region.block_stride;
}

/// Work on blocks is cut into tiles of this many bytes of one region of one block.
inline constexpr int64_t kTileBytes = 4096;

/// One tile of the work on `num_ids` blocks.
struct Tile {
  int64_t id_index;
  int32_t region;
  int64_t begin;  ///< first byte within the region
};

/// `tiles_per_region`: of the largest region; smaller ones have empty tiles at their end.
KVPLAN_HOST_DEVICE constexpr Tile tile_at(int64_t index, int32_t num_regions,
                                          int64_t tiles_per_region) {
  const int64_t page = index / tiles_per_region;
  return {page / num_regions, static_cast<int32_t>(page % num_regions),
          index % tiles_per_region * kTileBytes};
}

}  // namespace kvplan::cuda
