#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvplan/export.h"
#include "kvplan/groups.h"

namespace kvplan {

/// The placement before layouts: layers at the same slot of a page size share one tensor, and a
/// block takes the sum over page sizes of page x slots.
/// Mirrors vllm/v1/core/kv_cache_utils.py::_bucket_layers_by_page_size (before 0.30).
struct SlotBucket {
  int64_t page_size_bytes;
  std::vector<std::vector<LayerId>> slots;
};

KVPLAN_API std::vector<SlotBucket> bucket_layers_by_page_size(PlanningContext ctx,
                                                              const KVCacheGroups& groups);

KVPLAN_API int64_t shared_slot_bytes_per_block(std::span<const SlotBucket> buckets);

}  // namespace kvplan
