#include <gtest/gtest.h>

#include "kvplan/kvplan.h"
#include "model_builder.h"

namespace kvplan::testing {
namespace {

TEST(Projection, KeepsGroupsAndTheirOrder) {
  ModelBuilder model;
  model.add(4, sliding(8, 128, 64)).add(2, full(8, 128));
  Steps steps(model);
  const KVCacheGroups groups = steps.groups(config(128));
  const LayerSpecs own = {steps.layers()[0], steps.layers()[3]};
  const KVCacheGroups mine = project_kv_cache_groups_to_worker(steps.ctx(), groups, own);
  EXPECT_EQ(widths(mine), (std::vector<size_t>{1, 1, 0}));
  EXPECT_EQ(mine[0].layers[0], LayerId(0));
  EXPECT_EQ(mine[1].layers[0], LayerId(3));
  EXPECT_EQ(mine[2].spec, groups[2].spec) << "the scheduler reads it from any worker";
}

TEST(Projection, SpecsOfAGroupFollowItsLayers) {
  ModelBuilder model;
  model.add(2, mla(576)).add(2, mla(132));
  Steps steps(model);
  const KVCacheGroups groups = steps.groups(config(128));
  ASSERT_TRUE(groups[0].is_uniform_type());
  const LayerSpecs own = {steps.layers()[2]};
  const KVCacheGroups mine = project_kv_cache_groups_to_worker(steps.ctx(), groups, own);
  ASSERT_EQ(mine[0].layer_specs->size(), 1u);
  EXPECT_EQ(mine[0].layer_specs->front(), own[0]);
  EXPECT_EQ(mine[0].spec, own[0].spec);
  const KVCacheGroups none = project_kv_cache_groups_to_worker(steps.ctx(), groups, {});
  EXPECT_TRUE(none[0].layers.empty());
  EXPECT_EQ(none[0].layer_specs->size(), 4u) << "a stage without layers keeps the model's specs";
}

}  // namespace
}  // namespace kvplan::testing
