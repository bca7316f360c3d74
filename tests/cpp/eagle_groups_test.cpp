#include <gtest/gtest.h>

#include <algorithm>

#include "kvplan/kvplan.h"
#include "model_builder.h"

namespace kvplan::testing {
namespace {

TEST(EagleGroups, FollowTheDraftMark) {
  KVCacheSpec draft = full(8, 128);
  draft.is_draft = true;
  ModelBuilder model;
  model.add(4, sliding(8, 128, 64)).add(2, full(8, 128)).add(1, draft, "draft");
  Steps steps(model);
  KVCacheGroups groups = steps.groups(config(128));
  annotate_eagle_groups_by_is_draft(groups, steps.ctx(), steps.layers());
  for (const KVCacheGroup& g : groups) {
    const bool has_draft =
        std::find(g.layers.begin(), g.layers.end(), LayerId(6)) != g.layers.end();
    EXPECT_EQ(g.is_eagle_group, has_draft);
  }
}

TEST(EagleGroups, TrailingMtpLayer) {
  Steps steps(ModelBuilder().add(4, sliding(8, 128, 64)).add(2, full(8, 128)));
  KVCacheGroups groups = steps.groups(config(128));
  annotate_eagle_groups_by_marker(steps.ctx(), groups, steps.layers(), false);
  for (const KVCacheGroup& g : groups) EXPECT_FALSE(g.is_eagle_group);
  annotate_eagle_groups_by_marker(steps.ctx(), groups, steps.layers(), true);
  for (const KVCacheGroup& g : groups) {
    EXPECT_EQ(g.is_eagle_group, g.layers.back() == LayerId(5));
  }
}

TEST(EagleGroups, TrailingLayersAreThoseOfMtpAndDeepSeekV4) {
  PlanningConfig c = config(128);
  EXPECT_FALSE(uses_trailing_mtp_layers(c));
  c.speculative_method = "mtp";
  EXPECT_FALSE(uses_trailing_mtp_layers(c));
  c.use_eagle = true;
  EXPECT_TRUE(uses_trailing_mtp_layers(c));
  c.speculative_method = "eagle";
  EXPECT_FALSE(uses_trailing_mtp_layers(c));
  c.model_type = "deepseek_v4";
  EXPECT_TRUE(uses_trailing_mtp_layers(c));
}

TEST(EagleGroups, MambaWithoutADraftGroupIsWarnedOf) {
  PlanningConfig c = config(128);
  c.speculative_method = "eagle";
  Steps steps(ModelBuilder().add(2, mamba(65536)).add(2, full(8, 128)));
  KVCacheGroups groups = steps.groups(c);
  warn_if_unannotated_eagle_mamba(steps.ctx(), c, groups);
  EXPECT_EQ(steps.notices().size(), 1u);
  groups[0].is_eagle_group = true;
  warn_if_unannotated_eagle_mamba(steps.ctx(), c, groups);
  EXPECT_EQ(steps.notices().size(), 1u);
}

}  // namespace
}  // namespace kvplan::testing
