#include <gtest/gtest.h>

#include "kvplan/kvplan.h"
#include "model_builder.h"

namespace kvplan::testing {
namespace {

TEST(Grouping, NoLayersNoGroups) {
  Steps steps{ModelBuilder()};
  EXPECT_TRUE(steps.groups(config(128)).empty());
}

TEST(Grouping, EqualLayersAreOneGroup) {
  Steps steps(ModelBuilder().add(80, full(8, 128)));
  const KVCacheGroups groups = steps.groups(config(128));
  ASSERT_EQ(widths(groups), (std::vector<size_t>{80}));
  EXPECT_FALSE(groups[0].is_uniform_type());
}

TEST(Grouping, MergeableLayersAreOneGroup) {
  KVCacheSpec windowed = full(8, 128);
  windowed.sliding_window = 1024;
  Steps steps(ModelBuilder().add(3, full(8, 128)).add(2, windowed));
  const KVCacheGroups groups = steps.groups(config(128));
  ASSERT_EQ(widths(groups), (std::vector<size_t>{5}));
  EXPECT_EQ(steps.spec(groups[0]).sliding_window, 1024);
}

TEST(Grouping, OneTypeOfSeveralShapesIsOneGroupWithASpecForEachLayer) {
  Steps steps(ModelBuilder().add(3, mla(576)).add(3, mla(132)));
  const KVCacheGroups groups = steps.groups(config(128));
  ASSERT_EQ(widths(groups), (std::vector<size_t>{6}));
  ASSERT_TRUE(groups[0].is_uniform_type());
  EXPECT_EQ(groups[0].layer_specs->size(), 6u);
}

TEST(Grouping, PartitionIsExact) {
  Steps steps(ModelBuilder().add(5, sliding(8, 128, 64)).add(3, full(8, 128)));
  KVCacheGroups groups = steps.groups(config(128));
  EXPECT_TRUE(groups_partition_layers_exactly(groups, steps.layers()));
  EXPECT_NO_THROW(check_exact_partition(steps.ctx(), groups, steps.layers()));
  KVCacheGroups lost = groups;
  lost[0].layers.pop_back();
  EXPECT_FALSE(groups_partition_layers_exactly(lost, steps.layers()));
  EXPECT_THROW(check_exact_partition(steps.ctx(), lost, steps.layers()), InconsistentSpec);
  KVCacheGroups doubled = groups;
  doubled[0].layers.push_back(doubled[1].layers[0]);
  EXPECT_FALSE(groups_partition_layers_exactly(doubled, steps.layers()));
  EXPECT_THROW(check_exact_partition(steps.ctx(), doubled, steps.layers()), InconsistentSpec);
}

TEST(Grouping, MissingLayersAreNamed) {
  Steps steps(ModelBuilder().add(8, full(8, 128), "decoder"));
  KVCacheGroups groups = steps.groups(config(128));
  groups[0].layers.clear();
  try {
    check_exact_partition(steps.ctx(), groups, steps.layers());
    FAIL();
  } catch (const InconsistentSpec& e) {
    EXPECT_STREQ(e.what(),
                 "KV cache groups miss layers: decoder.0, decoder.1, decoder.2, decoder.3, "
                 "decoder.4 and 3 more.");
  }
}

// ----------------------------------------------------------------------------

}  // namespace
}  // namespace kvplan::testing
