#pragma once

#include <cstdint>

#include "kvplan/config.h"
#include "kvplan/export.h"
#include "kvplan/groups.h"

namespace kvplan {

/// Tokens between scheduler decisions, and tokens of a block hash.
/// Mirrors vllm/v1/core/kv_cache_utils.py::resolve_kv_cache_block_sizes (0.33).
struct BlockSizes {
  int64_t scheduler_block_size;
  int64_t hash_block_size;
};

KVPLAN_API BlockSizes resolve_kv_cache_block_sizes(PlanningContext ctx,
                                                   const PlanningConfig& config,
                                                   const KVCacheGroups& groups);

}  // namespace kvplan
