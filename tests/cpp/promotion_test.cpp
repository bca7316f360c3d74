#include <gtest/gtest.h>

#include "kvplan/kvplan.h"
#include "model_builder.h"

namespace kvplan::testing {
namespace {

TEST(Promotion, HybridManagerOffMakesOneType) {
  PlanningConfig c = config(128);
  c.disable_hybrid_kv_cache_manager = true;
  KVCacheSpec window = sliding(8, 128, 1024);
  window.dcp_sharded = true;
  Steps steps(ModelBuilder().add(5, window).add(1, full(8, 128)));
  const KVCacheGroups groups = steps.groups(c);
  ASSERT_EQ(widths(groups), (std::vector<size_t>{6}));
  EXPECT_EQ(steps.spec(groups[0]).kind, SpecKind::kFullAttention);
  EXPECT_EQ(steps.spec(groups[0]).sliding_window, 1024);
  ASSERT_FALSE(steps.notices().empty());
  EXPECT_NE(steps.notices()[0].message.find("Hybrid KV cache manager is disabled"),
            std::string::npos);
}

TEST(Promotion, MambaCannotBePromoted) {
  PlanningConfig c = config(128);
  c.disable_hybrid_kv_cache_manager = true;
  KVCacheSpec state = mamba(1000);
  Steps steps(ModelBuilder().add(5, state).add(1, full(8, 128)));
  EXPECT_THROW(steps.groups(c), InvalidArgument);
}

TEST(Promotion, FullAllocationIsTheWayOutForMLAWithWindows) {
  KVCacheSpec window = sliding(8, 100, 128);  // its page is the larger one, and MLA cannot pad
  window.dcp_sharded = true;
  Steps steps(ModelBuilder().add(2, mla(576)).add(1, window));
  const KVCacheGroups groups = steps.groups(config(128));
  ASSERT_EQ(widths(groups), (std::vector<size_t>{3}));
  EXPECT_TRUE(groups[0].is_uniform_type());
  EXPECT_NE(steps.notices().back().message.find("treating sliding-window layers as full"),
            std::string::npos);
}

// ---------------------------------------------------------------------------------

}  // namespace
}  // namespace kvplan::testing
