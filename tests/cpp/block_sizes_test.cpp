#include <gtest/gtest.h>

#include "kvplan/kvplan.h"
#include "model_builder.h"

namespace kvplan::testing {
namespace {

TEST(BlockSizes, OneGroupUsesTheConfiguredBlock) {
  Steps steps(ModelBuilder().add(2, full(8, 128)));
  PlanningConfig c = config(128);
  c.decode_context_parallel_size = 2;
  const BlockSizes sizes = resolve_kv_cache_block_sizes(steps.ctx(), c, steps.groups(c));
  EXPECT_EQ(sizes.scheduler_block_size, 32);
  EXPECT_EQ(sizes.hash_block_size, 32);
  c.prefix_match_unit = 16;
  EXPECT_THROW(resolve_kv_cache_block_sizes(steps.ctx(), c, steps.groups(c)), InvalidArgument);
}

TEST(BlockSizes, SeveralGroupsMeetAtTheLeastCommonMultiple) {
  Steps steps(ModelBuilder().add(2, full(8, 128, 48)).add(2, sliding(8, 192, 64, 32)));
  PlanningConfig c = config(128);
  const KVCacheGroups groups = steps.groups(c);
  ASSERT_EQ(groups.size(), 2u);
  const BlockSizes sizes = resolve_kv_cache_block_sizes(steps.ctx(), c, groups);
  EXPECT_EQ(sizes.scheduler_block_size, 96);
  EXPECT_EQ(sizes.hash_block_size, 16);
  c.prefix_match_unit = 5;
  EXPECT_THROW(resolve_kv_cache_block_sizes(steps.ctx(), c, groups), InvalidArgument);
  c.enable_prefix_caching = false;
  EXPECT_EQ(resolve_kv_cache_block_sizes(steps.ctx(), c, groups).hash_block_size, 96);
}

}  // namespace
}  // namespace kvplan::testing
