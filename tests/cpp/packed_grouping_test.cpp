#include <gtest/gtest.h>

#include "kvplan/kvplan.h"
#include "model_builder.h"

namespace kvplan::testing {
namespace {

PlanningConfig block_outermost() {
  PlanningConfig c = config(128);
  c.kv_cache_layout = KVCacheLayout::kBLHNC;
  return c;
}

TEST(PackedGrouping, OnlyForBlockOutermostLayoutsWithSeveralPages) {
  Steps mixed(ModelBuilder().add(4, full(8, 128)).add(4, sliding(8, 64, 128)));
  EXPECT_FALSE(get_packed_kv_cache_groups(mixed.ctx(), KVCacheLayout::kLBNHC, mixed.layers()));
  EXPECT_TRUE(get_packed_kv_cache_groups(mixed.ctx(), KVCacheLayout::kBLHNC, mixed.layers()));
  Steps equal(ModelBuilder().add(4, full(8, 128)).add(4, sliding(8, 128, 128)));
  EXPECT_FALSE(get_packed_kv_cache_groups(equal.ctx(), KVCacheLayout::kBLHNC, equal.layers()));
}

TEST(PackedGrouping, BalancedPatternsSetTheFloor) {
  // Pairs of a latent and an indexer: 3 repeats. 7 sliding layers go down to groups of 3 or more.
  ModelBuilder model;
  for (int i = 0; i < 3; ++i) model.add(1, mla(576), "latent").add(1, mla(132), "indexer");
  model.add(7, sliding(1, 128, 128), "window");
  Steps steps(model);
  const KVCacheGroups groups = steps.groups(block_outermost());
  EXPECT_EQ(widths(groups), (std::vector<size_t>{6, 4, 3}));
}

TEST(PackedGrouping, StateBucketsDoNotWidenTheBlock) {
  ModelBuilder model;
  model.add(2, full(8, 128)).add(10, mamba(50000));
  Steps steps(model);
  const KVCacheGroups groups = steps.groups(block_outermost());
  // Two pages of 65,536 bytes hold two states.
  EXPECT_EQ(widths(groups), (std::vector<size_t>{2, 2, 2, 2, 2, 2}));
  EXPECT_EQ(get_kv_cache_bytes_per_block(steps.ctx(), groups, KVCacheLayout::kBLHNC), 131072);
}

// ---------------------------------------------------------------------------

}  // namespace
}  // namespace kvplan::testing
