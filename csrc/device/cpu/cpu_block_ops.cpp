#include <algorithm>
#include <cstring>

#include "device/cpu/cpu_team.h"
#include "device/steps.h"
#include "kvplan/device/block_ops.h"

namespace kvplan::cuda {
namespace {

template <class PoolType>
const char* reset_pool(const PoolType& pool, void*) {
  CpuTeam team;
  reset_pool_steps(team, pool);
  return nullptr;
}

template <class PoolType, class Args>
const char* allocate(const PoolType& pool, const Args& args, void*) {
  CpuTeam team;
  allocate_steps(team, pool, args);
  return nullptr;
}

const char* release(const Pool& pool, const int32_t* ids, int64_t num_ids, void*) {
  CpuTeam team;
  release_steps(team, pool, num_ids, [ids](int64_t k) { return ids[k]; });
  return nullptr;
}

const char* release_slices(const SlicedPool& pool, int32_t group, const int32_t* ids,
                           int64_t num_ids, void*) {
  CpuTeam team;
  release_steps(team, pool, num_ids, [=](int64_t k) { return Slice{group, ids[k]}; });
  return nullptr;
}

const char* touch(const Pool& pool, const int32_t* ids, int64_t num_ids, void*) {
  CpuTeam team;
  touch_steps(team, pool, ids, num_ids);
  return nullptr;
}

const char* touch_slices(const SlicedPool& pool, int32_t group, const int32_t* ids, int64_t num_ids,
                         void*) {
  CpuTeam team;
  touch_steps(team, pool, group, ids, num_ids);
  return nullptr;
}

template <class Args>
const char* append_slots(const Args& args, void*) {
  CpuTeam team;
  append_slots_steps(team, append_step(args, kAppendTileItems));
  return nullptr;
}

template <class Args>
const char* release_rows(const Args& args, void*) {
  CpuTeam team;
  release_rows_steps(team, args);
  return nullptr;
}

const char* remap_blocks(const RemapBlocks& a, void*) {
  for (int32_t row = 0; row < a.num_rows; ++row) {
    int32_t* const entries = table_row(a.group, row);
    for (int64_t j = 0; j < entries_in_use(a.group, row); ++j) entries[j] = remapped(a, entries[j]);
  }
  return nullptr;
}

const char* gather_tables(const GatherTables& a, void*) {
  for (int32_t g = 0; g < a.num_groups; ++g) {
    for (int64_t r = 0; r < a.max_requests; ++r) {
      int32_t* const out = a.out[g] + r * a.out_stride[g];
      const GatheredRow row = gathered_row(a, g, r);
      for (int64_t j = 0; j < row.count; ++j) out[j] = row.entry(j, row.entries[j]);
    }
  }
  return nullptr;
}

int64_t used(const int32_t* count, int64_t limit) {
  return count == nullptr ? limit : std::clamp<int64_t>(*count, 0, limit);
}

void report(int32_t* errors, bool bad) {
  if (bad && errors != nullptr) *errors |= kBadBlockId;
}

const char* zero_blocks(const ZeroBlocks& a, void*) {
  for (int64_t i = 0; i < used(a.ids_used, a.num_ids); ++i) {
    const bool bad = a.ids[i] < 0 || a.ids[i] >= a.num_blocks;
    report(a.errors, bad);
    if (bad) continue;
    for (int32_t r = 0; r < a.num_regions; ++r) {
      std::memset(static_cast<char*>(a.buffer) + region_begin(a.regions[r], a.ids[i]), 0,
                  static_cast<size_t>(a.regions[r].size));
    }
  }
  return nullptr;
}

const char* copy_blocks(const CopyBlocks& a, void*) {
  for (int64_t i = 0; i < used(a.pairs_used, a.num_pairs); ++i) {
    const int32_t source = a.sources[i];
    const int32_t target = a.targets[i];
    const bool bad = source < 0 || source >= a.num_blocks || target < 0 || target >= a.num_blocks;
    report(a.errors, bad);
    if (bad) continue;
    for (int32_t r = 0; r < a.num_regions; ++r) {
      std::memmove(static_cast<char*>(a.target_buffer) + region_begin(a.regions[r], target),
                   static_cast<const char*>(a.source_buffer) + region_begin(a.regions[r], source),
                   static_cast<size_t>(a.regions[r].size));
    }
  }
  return nullptr;
}

}  // namespace

const BlockOps& cpu_block_ops() noexcept {
  static constexpr BlockOps ops{.version = kBlockOpsVersion,
                                .name = "cpu",
                                .reset_pool = reset_pool,
                                .allocate = allocate,
                                .release = release,
                                .touch = touch,
                                .append_slots = append_slots,
                                .release_rows = release_rows,
                                .gather_tables = gather_tables,
                                .zero_blocks = zero_blocks,
                                .copy_blocks = copy_blocks,
                                .remap_blocks = remap_blocks,
                                .reset_sliced_pool = reset_pool,
                                .allocate_slices = allocate,
                                .release_slices = release_slices,
                                .touch_slices = touch_slices,
                                .append_slices = append_slots,
                                .release_sliced_rows = release_rows};
  return ops;
}

}  // namespace kvplan::cuda
