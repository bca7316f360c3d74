#pragma once

#include "kvplan/block_pool.h"
#include "kvplan/export.h"
#include "kvplan/plan.h"
#include "kvplan/sliced_block_pool.h"

namespace kvplan {

/// The pool that hands out the blocks of a plan. Throws `InvalidArgument` for one whose groups cut
/// blocks into slices.
KVPLAN_API BlockPool make_pool(const Plan& plan, BlockPoolOptions options = {});
/// The same for any plan; without slices each block of the pool is one block of one group.
KVPLAN_API SlicedBlockPool make_sliced_pool(const Plan& plan, SlicedBlockPoolOptions options = {});

}  // namespace kvplan
