#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvplan/device/block_arithmetic.h"
#include "kvplan/device/device_pool.h"
#include "kvplan/export.h"

/// Allocation, block tables and slot mappings in device memory, without the host.
///
/// Arguments are plain values and pointers; what a pointer leads to is in the memory of the
/// implementation's device (`cpu_block_ops`: host memory; `cuda_block_ops`: that of the current
/// CUDA device). Nothing allocates, and nothing waits for the device, so that every operation can
/// be captured into a CUDA graph; the number of launched threads depends on the arguments here
/// alone, never on values in device memory. Both implementations give the same results, bit by bit.
///
/// The functions that take a `BlockOps` check the arguments and throw `InvalidArgument` before
/// anything is launched, `DeviceError` where the launch fails. Values in device memory cannot be
/// checked before: they are checked by the operation, which leaves out what is wrong and says so in
/// a status or in the pool's error bits. It never reads or writes out of bounds for them.
namespace kvplan::cuda {

/// What became of one request.
enum RequestStatus : int32_t {
  kOk = 0,
  kOutOfBlocks = 1,     ///< nothing was taken for it
  kTableTooNarrow = 2,  ///< the table's rows, or the output, have no room for it
  kTooManyTokens = 3,   ///< its tokens go beyond the slot mapping
  kBadRequest = 4,      ///< a row, length or count out of range
};

struct Allocate {
  int32_t num_requests = 0;
  const int32_t* counts = nullptr;  ///< [num_requests] blocks for each
  int64_t ids_capacity = 0;
  int32_t* ids = nullptr;     ///< [ids_capacity] those of request r at starts[r] .. starts[r + 1]
  int64_t* starts = nullptr;  ///< [num_requests + 1]
  int32_t* status = nullptr;  ///< [num_requests] `RequestStatus`
};

/// For a sliced pool: `counts` has what each request takes of each group.
struct AllocateSlices {
  int32_t num_requests = 0;
  const int32_t* counts = nullptr;  ///< [num_requests, num_groups]
  int64_t ids_capacity = 0;
  int32_t* ids = nullptr;     ///< [ids_capacity]
  int64_t* starts = nullptr;  ///< [num_groups * num_requests + 1] ids of group g of request r from
                              ///< starts[g * num_requests + r]
  int32_t* status = nullptr;  ///< [num_requests] `RequestStatus`
  int64_t* workspace = nullptr;  ///< [allocate_slices_workspace(num_requests, num_groups)]
};

/// The block table of one group.
struct GroupTable {
  int32_t* table = nullptr;        ///< [rows, row_stride] block ids, `width` of a row in use
  int32_t* num_entries = nullptr;  ///< [rows] entries of each row
  int64_t row_stride = 0;
  int32_t width = 0;
  int32_t block_size = 0;  ///< tokens
  Window window;
  int32_t extra_entries = 0;  ///< beyond those of the tokens (Mamba: speculative states)
  bool dcp_sharded = false;
  bool slot_mapping = true;  ///< false: slots are all `kPadSlot`
};

/// What a scheduler on the device may want of a step besides. Null or 0: nothing of the kind.
struct StepOptions {
  /// A request with new tokens gets blocks also for so many tokens after them, as far as its row
  /// has room: for drafted tokens, or for as many steps to come.
  int32_t lookahead_tokens = 0;
  /// [num_rows] tokens of each row, read in the place of `context_lens`; the new tokens of a
  /// request that is kOk are added.
  int32_t* row_lens = nullptr;
  int32_t* seq_lens = nullptr;  ///< [max_requests] tokens after the step; 0: padding or not kOk
  /// [lists, new_ids_stride] the blocks that were taken, in one list; of a sliced pool a list for
  /// each group. `num_new_ids`: [lists]; one above the stride: ids were left out, kIdsLeftOut.
  int32_t* new_ids = nullptr;
  int64_t new_ids_stride = 0;
  int32_t* num_new_ids = nullptr;
  /// [kMirrorSize + max_requests] free (large) blocks, the pool's errors, then the statuses: in
  /// memory that the host can read once the step is over.
  int32_t* mirror = nullptr;
};
inline constexpr int32_t kMirrorSize = 2;

/// The step of a batch: request i has `context_lens[i]` tokens in its row and adds
/// `new_tokens[i]`.
template <class PoolType>
struct AppendSlotsTo {
  PoolType pool;
  int32_t num_groups = 0;
  int32_t num_rows = 0;      ///< of every table
  int32_t max_requests = 0;  ///< length of the arrays below
  int64_t max_tokens = 0;    ///< length of a slot mapping
  ContextParallel cp;
  const int32_t* num_requests = nullptr;  ///< [1] or null: all of them
  const int32_t* rows = nullptr;          ///< [max_requests] distinct; -1: padding without blocks
  const int32_t* context_lens = nullptr;  ///< [max_requests]; unused with `options.row_lens`
  const int32_t* new_tokens = nullptr;    ///< [max_requests]
  int32_t* status = nullptr;              ///< [max_requests] `RequestStatus`
  int64_t* slots = nullptr;               ///< [num_groups, slots_stride]; kPadSlot where no state
  int64_t slots_stride = 0;
  int32_t* query_starts = nullptr;  ///< [max_requests + 1] or null: first token of each request
  int64_t* positions = nullptr;     ///< [max_tokens] or null: 0 for padding
  int64_t* workspace = nullptr;     ///< [append_slots_workspace(max_requests, num_groups)]
  GroupTable groups[kMaxGroups];
  /// [num_rows], 0 between calls, or null: that rows are distinct is not checked. Of the requests
  /// with one row all but the first are kBadRequest.
  int32_t* row_claims = nullptr;
  StepOptions options;
};

using AppendSlots = AppendSlotsTo<Pool>;
/// Group g takes slices of group g of the pool.
using AppendSlices = AppendSlotsTo<SlicedPool>;

/// Releases all blocks of some rows, from the last entry to the first, and empties the rows.
template <class PoolType>
struct ReleaseRowsTo {
  PoolType pool;
  int32_t num_groups = 0;
  int32_t num_rows = 0;
  int32_t max_requests = 0;
  const int32_t* rows = nullptr;  ///< [max_requests] distinct; -1 is skipped
  int64_t* workspace = nullptr;   ///< as for `AppendSlots`
  GroupTable groups[kMaxGroups];
  int32_t* row_claims = nullptr;  ///< as for `AppendSlots`; a row named again is kBadBlockId
};

using ReleaseRows = ReleaseRowsTo<Pool>;
using ReleaseSlicedRows = ReleaseRowsTo<SlicedPool>;

/// Copies rows of all tables into tables for one forward pass. An entry of which no token is read
/// becomes null; entries beyond the row's stay as they are; a row of -1 becomes null throughout.
/// Mirrors vllm/v1/worker/gpu/block_table.py::gather_block_tables (0.33).
struct GatherTables {
  int32_t num_groups = 0;
  int32_t num_rows = 0;
  int32_t max_requests = 0;
  ContextParallel cp;
  const int32_t* rows = nullptr;          ///< [max_requests]
  const int32_t* context_lens = nullptr;  ///< [max_requests] or null: no entry becomes null
  int32_t* out[kMaxGroups] = {};          ///< [max_requests, out_stride]
  int64_t out_stride[kMaxGroups] = {};
  GroupTable groups[kMaxGroups];
};

/// Fills all bytes of blocks with zero.
struct ZeroBlocks {
  void* buffer = nullptr;
  const BlockRegion* regions = nullptr;  ///< [num_regions] in device memory
  int32_t num_regions = 0;
  int64_t max_region_bytes = 0;
  int32_t vector_bytes = 1;  ///< 1, 2, 4, 8 or 16: divides the buffer's address and all regions
  int32_t num_blocks = 0;    ///< ids are below
  int64_t num_ids = 0;
  const int32_t* ids = nullptr;       ///< [num_ids]
  const int32_t* ids_used = nullptr;  ///< [1] or null: all of them
  int32_t* errors = nullptr;          ///< [1] or null: gets `PoolError` bits
};

/// Copies all bytes of block `sources[i]` to block `targets[i]`. No target may be another pair's
/// source or target.
struct CopyBlocks {
  const void* source_buffer = nullptr;
  void* target_buffer = nullptr;
  const BlockRegion* regions = nullptr;
  int32_t num_regions = 0;
  int64_t max_region_bytes = 0;
  int32_t vector_bytes = 1;
  int32_t num_blocks = 0;
  int64_t num_pairs = 0;
  const int32_t* sources = nullptr;
  const int32_t* targets = nullptr;
  const int32_t* pairs_used = nullptr;
  int32_t* errors = nullptr;
};

/// Writes `targets[i]` wherever the table of a group has `sources[i]`: after a block has moved.
struct RemapBlocks {
  GroupTable group;
  int32_t num_rows = 0;
  int64_t num_moves = 0;
  const int32_t* sources = nullptr;  ///< [num_moves] ascending, no null block
  const int32_t* targets = nullptr;  ///< [num_moves]
};

inline constexpr int32_t kBlockOpsVersion = 4;

/// One implementation. `stream` is a cudaStream_t, or null for the default stream; the CPU's runs
/// at once. Returns null, or why the launch failed.
struct BlockOps {
  int32_t version = kBlockOpsVersion;
  const char* name = "";
  const char* (*reset_pool)(const Pool&, void* stream) = nullptr;
  const char* (*allocate)(const Pool&, const Allocate&, void* stream) = nullptr;
  const char* (*release)(const Pool&, const int32_t* ids, int64_t num_ids, void* stream) = nullptr;
  const char* (*touch)(const Pool&, const int32_t* ids, int64_t num_ids, void* stream) = nullptr;
  const char* (*append_slots)(const AppendSlots&, void* stream) = nullptr;
  const char* (*release_rows)(const ReleaseRows&, void* stream) = nullptr;
  const char* (*gather_tables)(const GatherTables&, void* stream) = nullptr;
  const char* (*zero_blocks)(const ZeroBlocks&, void* stream) = nullptr;
  const char* (*copy_blocks)(const CopyBlocks&, void* stream) = nullptr;
  const char* (*remap_blocks)(const RemapBlocks&, void* stream) = nullptr;
  const char* (*reset_sliced_pool)(const SlicedPool&, void* stream) = nullptr;
  const char* (*allocate_slices)(const SlicedPool&, const AllocateSlices&, void* stream) = nullptr;
  const char* (*release_slices)(const SlicedPool&, int32_t group, const int32_t* ids,
                                int64_t num_ids, void* stream) = nullptr;
  const char* (*touch_slices)(const SlicedPool&, int32_t group, const int32_t* ids, int64_t num_ids,
                              void* stream) = nullptr;
  const char* (*append_slices)(const AppendSlices&, void* stream) = nullptr;
  const char* (*release_sliced_rows)(const ReleaseSlicedRows&, void* stream) = nullptr;
};

/// The operations on host memory.
KVPLAN_API const BlockOps& cpu_block_ops() noexcept;

/// What is kept of a group while slices are taken.
inline constexpr int64_t kGroupWords = 7;

/// Elements of `AllocateSlices::workspace`.
constexpr int64_t allocate_slices_workspace(int64_t num_requests, int64_t num_groups) {
  return (num_requests * num_groups + 1) + (kGroupWords * num_groups + 1);
}

/// Items (a group of a request) that are added up together.
inline constexpr int64_t kAppendTileItems = 256;

/// Elements of `AppendSlots::workspace`, `AppendSlices::workspace` and those of `ReleaseRows`.
constexpr int64_t append_slots_workspace(int64_t max_requests, int64_t num_groups) {
  const int64_t items = max_requests * num_groups;
  return 4 * (max_requests + 1) + 4 * items + 2 * ceil_div(items, kAppendTileItems) + 4 + items +
         allocate_slices_workspace(max_requests, num_groups);
}

/// Makes all blocks free: the lowest id is handed out first.
KVPLAN_API void reset_pool(const BlockOps& ops, const Pool& pool, void* stream = nullptr);
/// Takes blocks for each request in turn, all that it asks for or none.
KVPLAN_API void allocate(const BlockOps& ops, const Pool& pool, const Allocate& args,
                         void* stream = nullptr);
/// One holder less for each block; null blocks are skipped. A block that nobody holds any more is
/// free.
KVPLAN_API void release(const BlockOps& ops, const Pool& pool, const int32_t* ids, int64_t num_ids,
                        void* stream = nullptr);
/// One holder more for each block in use; null blocks are skipped. Needs reference counts.
KVPLAN_API void touch(const BlockOps& ops, const Pool& pool, const int32_t* ids, int64_t num_ids,
                      void* stream = nullptr);
/// For all requests and groups at once: releases the blocks below the windows, takes the
/// blocks that the new tokens need, for each request in turn all or none, extends the tables, and
/// writes the slot of every token.
KVPLAN_API void append_slots(const BlockOps& ops, const AppendSlots& args, void* stream = nullptr);
KVPLAN_API void release_rows(const BlockOps& ops, const ReleaseRows& args, void* stream = nullptr);
KVPLAN_API void gather_tables(const BlockOps& ops, const GatherTables& args,
                              void* stream = nullptr);
KVPLAN_API void zero_blocks(const BlockOps& ops, const ZeroBlocks& args, void* stream = nullptr);
KVPLAN_API void copy_blocks(const BlockOps& ops, const CopyBlocks& args, void* stream = nullptr);
KVPLAN_API void remap_blocks(const BlockOps& ops, const RemapBlocks& args, void* stream = nullptr);

// The same for a sliced pool. `AllocateSlices` and `AppendSlices`: whether requests get their
// slices is exact, as `kvplan::SlicedBlockPool::can_allocate` is.

KVPLAN_API void reset_pool(const BlockOps& ops, const SlicedPool& pool, void* stream = nullptr);
KVPLAN_API void allocate(const BlockOps& ops, const SlicedPool& pool, const AllocateSlices& args,
                         void* stream = nullptr);
/// `group`: whose blocks the ids are.
KVPLAN_API void release(const BlockOps& ops, const SlicedPool& pool, int32_t group,
                        const int32_t* ids, int64_t num_ids, void* stream = nullptr);
KVPLAN_API void touch(const BlockOps& ops, const SlicedPool& pool, int32_t group,
                      const int32_t* ids, int64_t num_ids, void* stream = nullptr);
KVPLAN_API void append_slots(const BlockOps& ops, const AppendSlices& args, void* stream = nullptr);
KVPLAN_API void release_rows(const BlockOps& ops, const ReleaseSlicedRows& args,
                             void* stream = nullptr);

/// The widest access, in bytes up to 16, that fits the buffer's address and all regions.
KVPLAN_API int32_t vector_bytes(const void* buffer, std::span<const BlockRegion> regions);

}  // namespace kvplan::cuda
