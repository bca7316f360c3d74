#pragma once

#include <cstdint>

namespace kvplan::cuda {

inline constexpr int32_t kMaxGroups = 64;

/// Bits of `state[kPoolErrors]`; they stay until the pool is reset.
enum PoolError : int32_t {
  kBadBlockId = 1,     ///< an id that is not of the pool was left out
  kBlockNotInUse = 2,  ///< a block that nobody holds was released or touched (plain pools: only
                       ///< with reference counts)
  kTooManyFree = 4,    ///< more blocks released than the pool has (plain, no reference counts)
  kIdsLeftOut = 8,     ///< a step took more blocks than its list of new ids has room for
};

enum PoolStateIndex : int32_t {
  kNumFree = 0,
  kPoolErrors = 1,
  kNumListed = 2,  ///< of a sliced pool
  kPoolStateSize = 4,
};

/// A pool of block ids. Block 0 is the null block and never handed out. What is released last is
/// handed out first, in the order in which it was released: the order of `kvplan::BlockPool`
/// without prefix caching.
struct Pool {
  int32_t num_blocks = 0;         ///< with the null block
  int32_t* free_ids = nullptr;    ///< [num_blocks] a stack of `state[kNumFree]` ids
  int32_t* state = nullptr;       ///< [kPoolStateSize]
  int32_t* ref_counts = nullptr;  ///< [num_blocks], or null: a block has one holder
  int32_t* last_use = nullptr;    ///< [num_blocks] scratch, with `ref_counts`
};

/// What a sliced pool knows of a large block.
struct alignas(16) LargeBlock {
  int32_t owner;      ///< the group that it belongs to, or -1: it is in the reserve
  int32_t num_used;   ///< slices in use
  int32_t is_listed;  ///< 1: it is in `SlicedPool::listed`
  int32_t scratch;    ///< 0 between operations

  friend bool operator==(const LargeBlock&, const LargeBlock&) = default;
};

/// A pool whose large blocks each group cuts into slices of its own: block `large_id * slices[g] +
/// slice` of group g. Mirrors `kvplan::SlicedBlockPool` without prefix caching: a large block
/// belongs to one group from its first slice in use to its last; large block 0 is the null block of
/// all groups, so that blocks 1 to slices[g] - 1 do not exist.
///
/// What must hold: `free_large` has exactly the large blocks without a slice in use; `listed` has
/// each large block at most once, and every one that has both a used slice and an unused one;
/// `state[kPoolStateSize + g]` counts the unused slices of the large blocks of group g.
struct SlicedPool {
  int32_t num_large_blocks = 0;  ///< with the null block
  int32_t num_groups = 0;
  int32_t max_slices = 0;          ///< at least all of `slices`
  int32_t* free_large = nullptr;   ///< [num_large_blocks] a stack of `state[kNumFree]` ids
  int32_t* listed = nullptr;       ///< [num_large_blocks] `state[kNumListed]` ids
  int32_t* state = nullptr;        ///< [kPoolStateSize + num_groups]
  LargeBlock* large = nullptr;     ///< [num_large_blocks]
  int32_t* used_slices = nullptr;  ///< [num_large_blocks, slice_words(max_slices)] a bit a slice
  int32_t* ref_counts = nullptr;   ///< [num_large_blocks, max_slices], or null: one holder a block
  int32_t slices[kMaxGroups] = {};
};

/// 32-bit words for a bit a slice.
constexpr int64_t slice_words(int64_t max_slices) { return (max_slices + 31) / 32; }

}  // namespace kvplan::cuda
