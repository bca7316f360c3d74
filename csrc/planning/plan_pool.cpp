#include "kvplan/plan_pool.h"

#include <vector>

#include "kvplan/errors.h"
#include "kvplan/planning/placement.h"

namespace kvplan {

BlockPool make_pool(const Plan& plan, BlockPoolOptions options) {
  validate(plan);
  if (is_sliced(plan.groups)) {
    throw InvalidArgument("the plan's groups cut blocks into slices: use make_sliced_pool");
  }
  return BlockPool(plan.num_blocks, options);
}

SlicedBlockPool make_sliced_pool(const Plan& plan, SlicedBlockPoolOptions options) {
  validate(plan);
  std::vector<int64_t> slices;
  for (const KVCacheGroup& g : plan.groups) slices.push_back(g.slices);
  return SlicedBlockPool(plan.num_blocks, slices, options);
}

}  // namespace kvplan
