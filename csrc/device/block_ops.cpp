#include "kvplan/device/block_ops.h"

#include <limits>
#include <string>
#include <string_view>

#include "kvplan/checked.h"
#include "kvplan/errors.h"

// Checks before a launch, the same for every implementation.
namespace kvplan::cuda {
namespace {

void need(bool holds, std::string_view what, std::string_view rule, int64_t value) {
  if (holds) return;
  throw InvalidArgument(std::string(what) + " must be " + std::string(rule) + ", got " +
                        std::to_string(value));
}

void need_pointer(const void* pointer, std::string_view what) {
  if (pointer == nullptr) throw InvalidArgument(std::string(what) + " is null");
}

void run(const char* error, std::string_view operation, const BlockOps& ops) {
  if (error == nullptr) return;
  throw DeviceError(std::string(operation) + " (" + ops.name + "): " + error);
}

void check(const Pool& pool) {
  need(pool.num_blocks >= 1, "pool.num_blocks", "at least 1, the null block", pool.num_blocks);
  need_pointer(pool.free_ids, "pool.free_ids");
  need_pointer(pool.state, "pool.state");
  if (pool.ref_counts != nullptr) need_pointer(pool.last_use, "pool.last_use");
}

void check(const SlicedPool& pool) {
  need(pool.num_large_blocks >= 1, "pool.num_large_blocks", "at least 1, the null block",
       pool.num_large_blocks);
  need(pool.num_groups >= 1 && pool.num_groups <= kMaxGroups, "pool.num_groups",
       "in [1, " + std::to_string(kMaxGroups) + "]", pool.num_groups);
  const int32_t most = std::numeric_limits<int32_t>::max() / pool.num_large_blocks;
  for (int32_t g = 0; g < pool.num_groups; ++g) {
    need(pool.slices[g] >= 1 && pool.slices[g] <= most, "pool.slices[" + std::to_string(g) + "]",
         "in [1, " + std::to_string(most) + "], for 32-bit block ids", pool.slices[g]);
    need(pool.slices[g] <= pool.max_slices, "pool.max_slices", "the most of pool.slices",
         pool.max_slices);
  }
  need_pointer(pool.free_large, "pool.free_large");
  need_pointer(pool.listed, "pool.listed");
  need_pointer(pool.state, "pool.state");
  need_pointer(pool.large, "pool.large");
  need_pointer(pool.used_slices, "pool.used_slices");
}

void check_group(const SlicedPool& pool, int32_t group) {
  need(group >= 0 && group < pool.num_groups, "group",
       "in [0, " + std::to_string(pool.num_groups) + ")", group);
}

/// The tables must be those of the pool's groups.
void check_same_groups(const Pool&, int32_t) {}
void check_same_groups(const SlicedPool& pool, int32_t num_groups) {
  need(num_groups == pool.num_groups, "num_groups",
       "that of the pool, " + std::to_string(pool.num_groups), num_groups);
}

void check(const ContextParallel& cp) {
  need(cp.size >= 1, "cp.size", "at least 1", cp.size);
  need(cp.rank >= 0 && cp.rank < cp.size, "cp.rank", "in [0, " + std::to_string(cp.size) + ")",
       cp.rank);
  need(cp.interleave >= 1, "cp.interleave", "at least 1", cp.interleave);
}

void check_groups(const GroupTable* groups, int32_t num_groups, const ContextParallel& cp) {
  need(num_groups >= 1 && num_groups <= kMaxGroups, "num_groups",
       "in [1, " + std::to_string(kMaxGroups) + "]", num_groups);
  for (int32_t i = 0; i < num_groups; ++i) {
    const GroupTable& g = groups[i];
    const std::string name = "groups[" + std::to_string(i) + "].";
    need_pointer(g.table, name + "table");
    need_pointer(g.num_entries, name + "num_entries");
    need(g.width >= 1, name + "width", "at least 1", g.width);
    need(g.row_stride >= g.width, name + "row_stride", "at least the width", g.row_stride);
    need(g.block_size >= 1, name + "block_size", "at least 1", g.block_size);
    need(g.extra_entries >= 0, name + "extra_entries", "at least 0", g.extra_entries);
    need(g.window.kind == WindowKind::kNone || g.window.tokens >= 0, name + "window.tokens",
         "at least 0", g.window.tokens);
    need(g.window.kind != WindowKind::kChunked || g.window.tokens >= 1, name + "window.tokens",
         "at least 1 for a chunk", g.window.tokens);
    if (g.dcp_sharded && cp.size > 1) {
      need(g.block_size % cp.interleave == 0, name + "block_size",
           "a multiple of cp.interleave=" + std::to_string(cp.interleave), g.block_size);
    }
  }
}

void check_regions(const BlockRegion* regions, int32_t num_regions, int64_t max_region_bytes,
                   int32_t vector_bytes, int32_t num_blocks, int64_t num_ids) {
  need(num_regions >= 0, "num_regions", "at least 0", num_regions);
  if (num_regions > 0) {
    need_pointer(regions, "regions");
    need(max_region_bytes >= 1, "max_region_bytes", "at least 1", max_region_bytes);
  }
  need(vector_bytes == 1 || vector_bytes == 2 || vector_bytes == 4 || vector_bytes == 8 ||
           vector_bytes == 16,
       "vector_bytes", "1, 2, 4, 8 or 16", vector_bytes);
  need(num_blocks >= 1, "num_blocks", "at least 1", num_blocks);
  if (num_regions > 0) {
    checked::mul(checked::mul(num_ids, num_regions, "tiles"),
                 ceil_div(max_region_bytes, kTileBytes), "tiles");
  }
}

void check_aligned(const void* buffer, int32_t vector_bytes, std::string_view what) {
  if (reinterpret_cast<uintptr_t>(buffer) % static_cast<uintptr_t>(vector_bytes) != 0) {
    throw InvalidArgument(std::string(what) +
                          " is not aligned to vector_bytes=" + std::to_string(vector_bytes));
  }
}

/// Items, a group of a request each, are counted in 31 bits.
void check_items(int64_t max_requests, int64_t num_groups) {
  const int64_t most = std::numeric_limits<int32_t>::max() / num_groups;
  need(max_requests <= most, "max_requests",
       "at most " + std::to_string(most) + " with " + std::to_string(num_groups) + " groups",
       max_requests);
}

template <class Args>
void check_append(const Args& a) {
  check(a.pool);
  check(a.cp);
  check_groups(a.groups, a.num_groups, a.cp);
  check_same_groups(a.pool, a.num_groups);
  need(a.num_rows >= 1, "num_rows", "at least 1", a.num_rows);
  need(a.max_requests >= 1, "max_requests", "at least 1", a.max_requests);
  check_items(a.max_requests, a.num_groups);
  need(a.max_tokens >= 1 && a.max_tokens <= std::numeric_limits<int32_t>::max(), "max_tokens",
       "in [1, 2^31)", a.max_tokens);
  need(a.slots_stride >= a.max_tokens, "slots_stride", "at least max_tokens", a.slots_stride);
  need_pointer(a.rows, "rows");
  const StepOptions& o = a.options;
  if (o.row_lens == nullptr) need_pointer(a.context_lens, "context_lens");
  need_pointer(a.new_tokens, "new_tokens");
  need_pointer(a.status, "status");
  need_pointer(a.slots, "slots");
  need_pointer(a.workspace, "workspace");
  need(o.lookahead_tokens >= 0, "options.lookahead_tokens", "at least 0", o.lookahead_tokens);
  need(o.new_ids_stride >= 0, "options.new_ids_stride", "at least 0", o.new_ids_stride);
  if (o.new_ids != nullptr) need_pointer(o.num_new_ids, "options.num_new_ids");
}

template <class Args>
void check_release_rows(const Args& a) {
  check(a.pool);
  check_groups(a.groups, a.num_groups, {});
  check_same_groups(a.pool, a.num_groups);
  need(a.num_rows >= 1, "num_rows", "at least 1", a.num_rows);
  need(a.max_requests >= 1, "max_requests", "at least 1", a.max_requests);
  check_items(a.max_requests, a.num_groups);
  need_pointer(a.rows, "rows");
  need_pointer(a.workspace, "workspace");
}

}  // namespace

void reset_pool(const BlockOps& ops, const Pool& pool, void* stream) {
  check(pool);
  run(ops.reset_pool(pool, stream), "reset_pool", ops);
}

void allocate(const BlockOps& ops, const Pool& pool, const Allocate& args, void* stream) {
  check(pool);
  need(args.num_requests >= 0, "num_requests", "at least 0", args.num_requests);
  need(args.ids_capacity >= 0, "ids_capacity", "at least 0", args.ids_capacity);
  need_pointer(args.starts, "starts");
  if (args.num_requests > 0) {
    need_pointer(args.counts, "counts");
    need_pointer(args.status, "status");
  }
  if (args.ids_capacity > 0) need_pointer(args.ids, "ids");
  run(ops.allocate(pool, args, stream), "allocate", ops);
}

void release(const BlockOps& ops, const Pool& pool, const int32_t* ids, int64_t num_ids,
             void* stream) {
  check(pool);
  need(num_ids >= 0 && num_ids < std::numeric_limits<int32_t>::max(), "num_ids", "in [0, 2^31 - 1)",
       num_ids);
  if (num_ids == 0) return;
  need_pointer(ids, "ids");
  run(ops.release(pool, ids, num_ids, stream), "release", ops);
}

void touch(const BlockOps& ops, const Pool& pool, const int32_t* ids, int64_t num_ids,
           void* stream) {
  check(pool);
  if (pool.ref_counts == nullptr) {
    throw InvalidArgument("touch: the pool has no reference counts (pool.ref_counts is null)");
  }
  need(num_ids >= 0, "num_ids", "at least 0", num_ids);
  if (num_ids == 0) return;
  need_pointer(ids, "ids");
  run(ops.touch(pool, ids, num_ids, stream), "touch", ops);
}

void append_slots(const BlockOps& ops, const AppendSlots& a, void* stream) {
  check_append(a);
  run(ops.append_slots(a, stream), "append_slots", ops);
}

void append_slots(const BlockOps& ops, const AppendSlices& a, void* stream) {
  check_append(a);
  run(ops.append_slices(a, stream), "append_slots", ops);
}

void release_rows(const BlockOps& ops, const ReleaseRows& a, void* stream) {
  check_release_rows(a);
  run(ops.release_rows(a, stream), "release_rows", ops);
}

void release_rows(const BlockOps& ops, const ReleaseSlicedRows& a, void* stream) {
  check_release_rows(a);
  run(ops.release_sliced_rows(a, stream), "release_rows", ops);
}

void reset_pool(const BlockOps& ops, const SlicedPool& pool, void* stream) {
  check(pool);
  run(ops.reset_sliced_pool(pool, stream), "reset_pool", ops);
}

void allocate(const BlockOps& ops, const SlicedPool& pool, const AllocateSlices& args,
              void* stream) {
  check(pool);
  need(args.num_requests >= 0, "num_requests", "at least 0", args.num_requests);
  need(args.ids_capacity >= 0, "ids_capacity", "at least 0", args.ids_capacity);
  need_pointer(args.starts, "starts");
  need_pointer(args.workspace, "workspace");
  if (args.num_requests > 0) {
    need_pointer(args.counts, "counts");
    need_pointer(args.status, "status");
  }
  if (args.ids_capacity > 0) need_pointer(args.ids, "ids");
  run(ops.allocate_slices(pool, args, stream), "allocate", ops);
}

void release(const BlockOps& ops, const SlicedPool& pool, int32_t group, const int32_t* ids,
             int64_t num_ids, void* stream) {
  check(pool);
  check_group(pool, group);
  need(num_ids >= 0 && num_ids < std::numeric_limits<int32_t>::max(), "num_ids", "in [0, 2^31 - 1)",
       num_ids);
  if (num_ids == 0) return;
  need_pointer(ids, "ids");
  run(ops.release_slices(pool, group, ids, num_ids, stream), "release", ops);
}

void touch(const BlockOps& ops, const SlicedPool& pool, int32_t group, const int32_t* ids,
           int64_t num_ids, void* stream) {
  check(pool);
  check_group(pool, group);
  if (pool.ref_counts == nullptr) {
    throw InvalidArgument("touch: the pool has no reference counts (pool.ref_counts is null)");
  }
  need(num_ids >= 0, "num_ids", "at least 0", num_ids);
  if (num_ids == 0) return;
  need_pointer(ids, "ids");
  run(ops.touch_slices(pool, group, ids, num_ids, stream), "touch", ops);
}

void remap_blocks(const BlockOps& ops, const RemapBlocks& a, void* stream) {
  check_groups(&a.group, 1, {});
  need(a.num_rows >= 1, "num_rows", "at least 1", a.num_rows);
  need(a.num_moves >= 0, "num_moves", "at least 0", a.num_moves);
  if (a.num_moves == 0) return;
  need_pointer(a.sources, "sources");
  need_pointer(a.targets, "targets");
  run(ops.remap_blocks(a, stream), "remap_blocks", ops);
}

void gather_tables(const BlockOps& ops, const GatherTables& a, void* stream) {
  check(a.cp);
  check_groups(a.groups, a.num_groups, a.cp);
  need(a.num_rows >= 1, "num_rows", "at least 1", a.num_rows);
  need(a.max_requests >= 0, "max_requests", "at least 0", a.max_requests);
  if (a.max_requests == 0) return;
  need_pointer(a.rows, "rows");
  for (int32_t g = 0; g < a.num_groups; ++g) {
    const std::string name = "out[" + std::to_string(g) + "]";
    need_pointer(a.out[g], name);
    need(a.out_stride[g] >= a.groups[g].width, name + " row stride",
         "at least the table's width " + std::to_string(a.groups[g].width), a.out_stride[g]);
  }
  run(ops.gather_tables(a, stream), "gather_tables", ops);
}

void zero_blocks(const BlockOps& ops, const ZeroBlocks& a, void* stream) {
  check_regions(a.regions, a.num_regions, a.max_region_bytes, a.vector_bytes, a.num_blocks,
                a.num_ids);
  need(a.num_ids >= 0, "num_ids", "at least 0", a.num_ids);
  if (a.num_ids == 0 || a.num_regions == 0) return;
  need_pointer(a.buffer, "buffer");
  need_pointer(a.ids, "ids");
  check_aligned(a.buffer, a.vector_bytes, "buffer");
  run(ops.zero_blocks(a, stream), "zero_blocks", ops);
}

void copy_blocks(const BlockOps& ops, const CopyBlocks& a, void* stream) {
  check_regions(a.regions, a.num_regions, a.max_region_bytes, a.vector_bytes, a.num_blocks,
                a.num_pairs);
  need(a.num_pairs >= 0, "num_pairs", "at least 0", a.num_pairs);
  if (a.num_pairs == 0 || a.num_regions == 0) return;
  need_pointer(a.source_buffer, "source_buffer");
  need_pointer(a.target_buffer, "target_buffer");
  need_pointer(a.sources, "sources");
  need_pointer(a.targets, "targets");
  check_aligned(a.source_buffer, a.vector_bytes, "source_buffer");
  check_aligned(a.target_buffer, a.vector_bytes, "target_buffer");
  run(ops.copy_blocks(a, stream), "copy_blocks", ops);
}

int32_t vector_bytes(const void* buffer, std::span<const BlockRegion> regions) {
  // The lowest bit set in any of the numbers is the largest power of two that divides all.
  uint64_t bits = reinterpret_cast<uintptr_t>(buffer) | 16U;
  for (const BlockRegion& r : regions) {
    bits |= static_cast<uint64_t>(r.offset) | static_cast<uint64_t>(r.block_stride) |
            static_cast<uint64_t>(r.size);
  }
  return static_cast<int32_t>(bits & (~bits + 1));
}

}  // namespace kvplan::cuda
