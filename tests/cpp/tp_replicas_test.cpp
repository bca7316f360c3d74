#include <gtest/gtest.h>

#include "kvplan/kvplan.h"
#include "model_builder.h"

namespace kvplan::testing {
namespace {

TEST(TpReplicas, HeadsThatDoNotSplitAreReplicated) {
  KVCacheSpec s = full(1, 128);
  s.max_tp_shards = 2;
  Steps steps(ModelBuilder().add(2, s));
  const KVCacheGroups groups = steps.groups(config(128));
  EXPECT_EQ(kv_cache_groups_tp_replicas(steps.ctx(), groups, 8), 4);
  EXPECT_EQ(kv_cache_groups_tp_replicas(steps.ctx(), groups, 1), 1);
  EXPECT_EQ(kv_cache_groups_tp_replicas(steps.ctx(), groups, 8, 2), 1) << "DCP shards the tokens";
  EXPECT_EQ(kv_cache_groups_tp_replicas(steps.ctx(), {}, 8), 1);
}

}  // namespace
}  // namespace kvplan::testing
