#include <gtest/gtest.h>

#include "expect_valid.h"
#include "kvplan/kvplan.h"
#include "model_builder.h"

namespace kvplan::testing {
namespace {

PlanningConfig in_layout(KVCacheLayout layout) {
  PlanningConfig c = config(4096);
  c.kv_cache_layout = layout;
  return c;
}

std::vector<KVCacheTensor> place(Steps& steps, KVCacheLayout layout, int64_t num_blocks) {
  const PlanningConfig c = in_layout(layout);
  const KVCacheGroups groups = steps.groups(c);
  return place_kv_cache_groups(steps.ctx(), c, groups,
                               get_kv_cache_bytes_per_block(steps.ctx(), groups, layout),
                               num_blocks);
}

TEST(Placement, GroupsAliasFromByteZero) {
  // Layers of 65,536 bytes, 5 sliding and 5 full.
  for (KVCacheLayout layout : kAllLayouts) {
    Steps steps(ModelBuilder().add(5, sliding(8, 128, 64)).add(5, full(8, 128)));
    const auto tensors = place(steps, layout, 100);
    ASSERT_EQ(tensors.size(), 2u);
    for (const KVCacheTensor& t : tensors) {
      EXPECT_EQ(t.offset, 0);
      EXPECT_EQ(t.size, 5 * 65536 * 100);
      EXPECT_EQ(t.layers.size(), 5u);
    }
  }
}

TEST(Placement, StridesOfEachLayout) {
  struct Expected {
    KVCacheLayout layout;
    int64_t layer_stride;
    int64_t block_stride;
  };
  for (const Expected& e : {Expected{KVCacheLayout::kLBHNC, 6553600, 65536},
                            Expected{KVCacheLayout::kLBNHC, 6553600, 65536},
                            Expected{KVCacheLayout::kLHBNC, 6553600, 8192},
                            Expected{KVCacheLayout::kBLHNC, 65536, 327680},
                            Expected{KVCacheLayout::kBLNHC, 65536, 327680},
                            Expected{KVCacheLayout::kBHLNC, 8192, 327680}}) {
    Steps steps(ModelBuilder().add(5, full(8, 128)));
    const auto tensors = place(steps, e.layout, 100);
    ASSERT_EQ(tensors.size(), 1u);
    EXPECT_EQ(tensors[0].layer_stride, e.layer_stride) << to_string(e.layout);
    EXPECT_EQ(tensors[0].block_stride, e.block_stride) << to_string(e.layout);
  }
}

TEST(Placement, ShapesOfAGroupLieSideBySide) {
  Steps steps(ModelBuilder().add(3, mla(576)).add(3, mla(132)));
  const auto packed = place(steps, KVCacheLayout::kBLHNC, 100);
  ASSERT_EQ(packed.size(), 2u);
  EXPECT_EQ(packed[1].offset, 3 * 18432);
  EXPECT_EQ(packed[1].layer_stride, 4224);
  EXPECT_EQ(packed[1].block_stride, 3 * (18432 + 4224));
  const auto by_layer = place(steps, KVCacheLayout::kLBHNC, 100);
  ASSERT_EQ(by_layer.size(), 2u);
  EXPECT_EQ(by_layer[1].offset, 3 * 18432 * 100);
  EXPECT_EQ(by_layer[1].block_stride, 4224);
}

TEST(Placement, StrideAlignmentPadsTheBlock) {
  KVCacheSpec spec = mla(132);  // pages of 4,224 bytes
  spec.block_stride_alignment = {BlockStrideAlignment::Kind::kBytes, 576};
  Steps layer_outermost(ModelBuilder().add(2, spec));
  const auto by_layer = place(layer_outermost, KVCacheLayout::kLBHNC, 10);
  EXPECT_EQ(by_layer[0].block_stride, 4608);
  EXPECT_EQ(by_layer[0].layer_stride, 46080);
  Steps block_outermost(ModelBuilder().add(2, spec));
  const auto packed = place(block_outermost, KVCacheLayout::kBLHNC, 10);
  EXPECT_EQ(packed[0].block_stride, 8640) << "8,448 bytes rounded up to 576";
  EXPECT_EQ(packed[0].layer_stride, 4224);
  spec.num_head_slots = 2;
  spec.state_content_bytes = 132;
  Steps heads_outside(ModelBuilder().add(2, spec));
  EXPECT_THROW(place(heads_outside, KVCacheLayout::kLHBNC, 10), InconsistentSpec);
}

TEST(Placement, LayoutMustExpressTheModel) {
  Steps steps(ModelBuilder().add(2, full(8, 128)).add(2, sliding(8, 64, 128)));
  const KVCacheGroups groups = steps.groups(in_layout(KVCacheLayout::kBLHNC));
  ASSERT_EQ(groups.size(), 2u);
  const auto accepts = [&](KVCacheLayout layout) {
    try {
      validate_kv_cache_layout(steps.ctx(), layout, groups);
      return true;
    } catch (const LayoutError& e) {
      EXPECT_NE(std::string(e.what()).find("[32768, 65536]"), std::string::npos) << e.what();
      return false;
    }
  };
  EXPECT_TRUE(accepts(KVCacheLayout::kBLHNC));
  EXPECT_TRUE(accepts(KVCacheLayout::kBLNHC));
  EXPECT_FALSE(accepts(KVCacheLayout::kBHLNC));
  EXPECT_FALSE(accepts(KVCacheLayout::kLBHNC));
  EXPECT_FALSE(accepts(KVCacheLayout::kLBNHC));
  EXPECT_FALSE(accepts(KVCacheLayout::kLHBNC));
}

TEST(Placement, BytesPerBlockAreThoseOfTheWidestGroup) {
  Steps steps(ModelBuilder().add(2, full(8, 128)).add(3, sliding(8, 128, 128)));
  const KVCacheGroups groups = steps.groups(config(128));
  for (KVCacheLayout layout : kAllLayouts) {
    EXPECT_EQ(get_kv_cache_bytes_per_block(steps.ctx(), groups, layout), 2 * 65536);
    EXPECT_EQ(get_kv_cache_bytes_per_block(steps.ctx(), {}, layout), 0);
  }
}

TEST(Placement, HostGroupsTakeNothingFromThePool) {
  Steps steps(ModelBuilder().add(2, full(8, 128)).add(3, sliding(8, 128, 128)));
  KVCacheGroups groups = steps.groups(config(128));
  groups[0].host_resident = true;
  groups[1].layers.resize(1);
  EXPECT_EQ(pool_bytes_per_block(steps.ctx(), groups, KVCacheLayout::kLBNHC), 65536);
}

TEST(Placement, SizesAreChecked) {
  Steps steps(ModelBuilder().add(2, full(8, 128)));
  EXPECT_THROW(place(steps, KVCacheLayout::kLBNHC, INT64_MAX / 65536), Overflow);
}

// Gemma's shapes: 16 heads x 256 and 4 heads x 512 in pages of equal size. With heads outside the
// blocks, block b of the two begins at different bytes.

TEST(Placement, GroupsWithUnequalStridesAreWarnedOf) {
  ModelBuilder model;
  model.add(5, sliding(16, 256, 1024)).add(1, full(4, 512)).worker(kGiB);
  PlanningConfig c = config(4096);
  for (KVCacheLayout layout : kAllLayouts) {
    c.kv_cache_layout = layout;
    if (layout == KVCacheLayout::kBHLNC) continue;  // refuses pages of several sizes
    const Plan plan = model.plan(c);
    const bool shares_bytes = layout == KVCacheLayout::kLHBNC;
    EXPECT_EQ(!check(plan).empty(), shares_bytes) << to_string(layout) << describe(check(plan));
    bool warned = false;
    for (const Notice& n : plan.notices) {
      warned =
          warned || (n.level == Notice::Level::kWarning &&
                     n.message.find("block strides of 16384 and 65536 bytes") != std::string::npos);
    }
    EXPECT_EQ(warned, shares_bytes) << to_string(layout);
  }
}

}  // namespace
}  // namespace kvplan::testing
