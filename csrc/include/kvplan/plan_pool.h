#pragma once

#include <optional>

#include "kvplan/block_pool.h"
#include "kvplan/cache_manager.h"
#include "kvplan/export.h"
#include "kvplan/plan.h"
#include "kvplan/sliced_block_pool.h"

namespace kvplan {

/// The pool that hands out the blocks of a plan. Throws `InvalidArgument` for one whose groups cut
/// blocks into slices.
KVPLAN_API BlockPool make_pool(const Plan& plan, BlockPoolOptions options = {});
/// The same for any plan; without slices each block of the pool is one block of one group.
KVPLAN_API SlicedBlockPool make_sliced_pool(const Plan& plan, SlicedBlockPoolOptions options = {});

/// What a plan decides about its `CacheManager`: groups and their slices, block sizes, hash unit,
/// tokens in flight, EAGLE, context parallelism, retention and zeroing, as the scheduler of
/// vllm/v1/core/sched/scheduler.py (0.33) takes them from its configuration. The rest (events,
/// watermark, ...) is at its default and the caller's to change.
///
/// `lookahead_hashes`: as vLLM's default, the hash of a block covers the tokens behind it that a
/// drafter reads, `num_hash_lookahead_tokens`, and no matched block is dropped. False: a hash
/// covers its block alone. Without a drafter that drops blocks it is the same.
///
/// Throws `Unsupported` for a group that the manager has no policy for.
KVPLAN_API CacheManagerOptions cache_manager_options(const Plan& plan,
                                                     bool lookahead_hashes = true);

/// How long a prefix must be to be found under a plan, slices or none. Throws `Unsupported` for a
/// group that the manager has no policy for.
KVPLAN_API std::optional<HitUnit> hit_unit(const Plan& plan);
/// Tokens at the end of each hit that are computed again, since a group keeps no window of them.
KVPLAN_API int64_t prefix_replay_tokens(const Plan& plan);

}  // namespace kvplan
