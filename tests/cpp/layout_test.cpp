#include "kvplan/layout.h"

#include <gtest/gtest.h>

#include "kvplan/errors.h"
#include "model_builder.h"

namespace kvplan::testing {
namespace {

TEST(Layout, NamesAreTheOrderOfTheAxes) {
  for (KVCacheLayout layout : kAllLayouts) {
    const std::string_view name = to_string(layout);
    ASSERT_EQ(name.size(), 5u);
    EXPECT_EQ(parse_layout(name), layout);
    for (size_t i = 0; i < 5; ++i) EXPECT_EQ("LBHNC"[stride_order(layout)[i]], name[i]);
  }
}

TEST(Layout, UnknownNameListsTheKnownOnes) {
  for (const char* name : {"", "lbhnc", "NLBHC", "LBHNCX"}) {
    try {
      parse_layout(name);
      FAIL() << name;
    } catch (const InvalidArgument& e) {
      EXPECT_NE(std::string(e.what()).find("LBHNC, LBNHC, LHBNC, BLHNC, BLNHC, BHLNC"),
                std::string::npos);
    }
  }
}

TEST(Layout, Traits) {
  using enum KVCacheLayout;
  const auto of = [](bool (*trait)(KVCacheLayout)) {
    std::string names;
    for (KVCacheLayout l : kAllLayouts) {
      if (trait(l)) names += std::string(to_string(l)) + " ";
    }
    return names;
  };
  EXPECT_EQ(of(is_layer_compact), "LBHNC LBNHC LHBNC ");
  EXPECT_EQ(of(is_block_outermost), "BLHNC BLNHC BHLNC ");
  EXPECT_EQ(of(is_block_compact), "LBHNC LBNHC BLHNC BLNHC ");
  EXPECT_EQ(of(is_block_contiguous), "LBHNC BLHNC ");
}

// 3 layers, 5 blocks, 2 heads, 16 states of 8 bytes.
struct StrideCase {
  KVCacheLayout layout;
  Strides strides;  // L, B, H, N, C
};

class LayoutStrides : public ::testing::TestWithParam<StrideCase> {};

TEST_P(LayoutStrides, AreByHand) {
  const KVCacheSpec spec = full(2, 2);
  EXPECT_EQ(compute_layout_strides(spec, 5, 3, GetParam().layout), GetParam().strides);
}

INSTANTIATE_TEST_SUITE_P(
    All, LayoutStrides,
    ::testing::Values(StrideCase{KVCacheLayout::kLBHNC, {1280, 256, 128, 8, 1}},
                      StrideCase{KVCacheLayout::kLBNHC, {1280, 256, 8, 16, 1}},
                      StrideCase{KVCacheLayout::kLHBNC, {1280, 128, 640, 8, 1}},
                      StrideCase{KVCacheLayout::kBLHNC, {256, 768, 128, 8, 1}},
                      StrideCase{KVCacheLayout::kBLNHC, {256, 768, 8, 16, 1}},
                      StrideCase{KVCacheLayout::kBHLNC, {128, 768, 384, 8, 1}}),
    [](const auto& i) { return std::string(to_string(i.param.layout)); });

TEST(Layout, KernelBlocksSplitTheBlock) {
  const KVCacheSpec spec = full(2, 2, 64);
  EXPECT_EQ(compute_layer_kv_cache_shape_bytes(spec, 5), (std::array<int64_t, 4>{5, 2, 64, 8}));
  EXPECT_EQ(compute_layer_kv_cache_shape_bytes(spec, 5, 16),
            (std::array<int64_t, 4>{20, 2, 16, 8}));
  EXPECT_EQ(compute_layout_strides(spec, 5, 1, KVCacheLayout::kLBHNC, 16)[kAxisB], 256);
  EXPECT_THROW(compute_layer_kv_cache_shape_bytes(spec, 5, 48), InconsistentSpec);
  EXPECT_THROW(compute_layer_kv_cache_shape_bytes(spec, 5, 0), InconsistentSpec);
}

TEST(Layout, FixedStridesReplaceComputedOnes) {
  FixedStrides fixed;
  fixed[kAxisB] = 1000;
  const Strides s = compute_layout_strides(full(2, 2), 5, 3, KVCacheLayout::kLBHNC, {}, fixed);
  EXPECT_EQ(s[kAxisB], 1000);
  EXPECT_EQ(s[kAxisL], 5000) << "what lies outside follows";
  fixed[kAxisB] = 0;
  EXPECT_THROW(compute_layout_strides(full(2, 2), 5, 3, KVCacheLayout::kLBHNC, {}, fixed),
               InconsistentSpec);
}

TEST(Layout, PaddedPagesEndTheGridOfLayersAndBlocks) {
  KVCacheSpec spec = full(2, 2);
  spec.page_size_padded = 300;
  finalize(spec);
  EXPECT_EQ(compute_layout_strides(spec, 5, 3, KVCacheLayout::kLBNHC)[kAxisB], 300);
  EXPECT_EQ(compute_layout_strides(spec, 5, 3, KVCacheLayout::kBLNHC)[kAxisL], 300);
  EXPECT_EQ(compute_layout_strides(spec, 5, 3, KVCacheLayout::kBLNHC)[kAxisB], 900);
  // With heads outside the page, a padded page has no single end.
  EXPECT_THROW(compute_layout_strides(spec, 5, 3, KVCacheLayout::kLHBNC), InconsistentSpec);
  EXPECT_THROW(compute_layout_strides(spec, 5, 3, KVCacheLayout::kBHLNC), InconsistentSpec);
  EXPECT_THROW(compute_layout_strides(spec, 5, 3, KVCacheLayout::kLBNHC, 8), InconsistentSpec);
  spec.num_kv_heads = 1;
  EXPECT_EQ(compute_layout_strides(spec, 5, 3, KVCacheLayout::kLHBNC)[kAxisB], 300);
}

TEST(Layout, StridesAreChecked) {
  EXPECT_THROW(compute_layout_strides(full(8, 128), INT64_MAX / 1000, 80, KVCacheLayout::kLBNHC),
               Overflow);
}

}  // namespace
}  // namespace kvplan::testing
