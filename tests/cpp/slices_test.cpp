// Groups that cut a block of the pool into slices: placement, admission, the checker.

#include <gtest/gtest.h>

#include "expect_valid.h"
#include "kvplan/errors.h"
#include "model_builder.h"

namespace kvplan::testing {
namespace {

/// 2 full layers of 64 KiB pages, 6 sliding ones: a block of 6 pages, cut into 3 slices of 2.
struct TwoKinds {
  explicit TwoKinds(int64_t full_slices = 3, int64_t sliding_slices = 1) {
    model.add(2, full(8, 128)).add(6, sliding(8, 128, 128));
    KVCacheGroup f;
    f.layers = {model.layers()[0].layer, model.layers()[1].layer};
    f.spec = model.layers()[0].spec;
    f.slices = full_slices;
    KVCacheGroup s;
    for (size_t i = 2; i < 8; ++i) s.layers.push_back(model.layers()[i].layer);
    s.spec = model.layers()[2].spec;
    s.slices = sliding_slices;
    model.request().set_groups({f, s});
  }
  ModelBuilder model;
};

constexpr int64_t kPage = 64 * kKiB;

PlanningConfig block_outermost(int64_t max_model_len) {
  PlanningConfig c = config(max_model_len);
  c.kv_cache_layout = KVCacheLayout::kBLHNC;
  c.max_in_flight_tokens = 64;
  return c;
}

TEST(Slices, PagesLieAtTheGroupsOwnStride) {
  TwoKinds two;
  two.model.worker(100 * 6 * kPage);
  const Plan plan = checked_plan(two.model.request(), block_outermost(256));
  EXPECT_EQ(plan.num_blocks, 100);
  const StagePlan& stage = plan.stages[0];
  EXPECT_EQ(stage.bytes_per_block, 6 * kPage);
  EXPECT_EQ(stage.tensors[0].block_stride, 2 * kPage);
  EXPECT_EQ(stage.tensors[1].block_stride, 6 * kPage);
  EXPECT_EQ(stage.tensors[0].layer_stride, kPage);
  EXPECT_EQ(stage.tensors[0].size, 600 * kPage);
}

TEST(Slices, RequestsAreCountedInWholeBlocksOfThePool) {
  TwoKinds two;
  two.model.worker(100 * 6 * kPage);
  // 16 pages of 16 tokens of the full layers: 6 blocks; sliding: (127 + 64) / 16 + 1 = 13.
  const Plan plan = checked_plan(two.model.request(), block_outermost(256));
  EXPECT_EQ(plan.stages[0].request_bytes, (6 + 13) * 6 * kPage);
}

TEST(Slices, OneRequestMustFitInWholeBlocks) {
  TwoKinds fits;
  fits.model.worker((1 + 6 + 13) * 6 * kPage);
  checked_plan(fits.model.request(), block_outermost(256));
  TwoKinds short_of_one;
  short_of_one.model.worker((1 + 6 + 13) * 6 * kPage - 1);
  EXPECT_THROW(plan(short_of_one.model.request(), block_outermost(256)), NotEnoughMemory);
}

TEST(Slices, AutoFitCountsWholeBlocks) {
  // 5 blocks are left for the full layers: 15 slices of 16 tokens.
  TwoKinds two;
  two.model.worker((1 + 5 + 13) * 6 * kPage);
  PlanningConfig c = block_outermost(4096);
  c.auto_fit = true;
  EXPECT_EQ(checked_plan(two.model.request(), c).config.max_model_len, 240);
}

TEST(Slices, BlockIsWidenedUntilAllGroupsCutItEvenly) {
  // The sliding group takes 2 slices of 6 pages, the full one 5 of 2: 12 pages, not a multiple of 5
  // slices that are aligned to 16 bytes; 786,432 is rounded up to the next multiple of 160.
  TwoKinds two(5, 2);
  two.model.worker(int64_t{1} << 30);
  const Plan plan = checked_plan(two.model.request(), block_outermost(256));
  EXPECT_EQ(plan.stages[0].bytes_per_block, (12 * kPage + 159) / 160 * 160);
  EXPECT_EQ(plan.stages[0].tensors[0].block_stride * 5, plan.stages[0].bytes_per_block);
  EXPECT_EQ(plan.stages[0].tensors[1].block_stride * 2, plan.stages[0].bytes_per_block);
}

TEST(Slices, StrideAlignmentIsTheGroupsOwn) {
  ModelBuilder model;
  KVCacheSpec aligned = full(1, 100);
  aligned.block_stride_alignment = {BlockStrideAlignment::Kind::kBytes, 4096};
  finalize(aligned);
  model.add(1, aligned).add(1, sliding(8, 128, 128));
  KVCacheGroup f;
  f.layers = {model.layers()[0].layer};
  f.spec = model.layers()[0].spec;
  f.slices = 8;  // a page of 6,400 bytes every 8,192
  KVCacheGroup s;
  s.layers = {model.layers()[1].layer};
  s.spec = model.layers()[1].spec;
  model.request().set_groups({f, s});
  model.worker(int64_t{1} << 30);
  const Plan plan = checked_plan(model.request(), block_outermost(256));
  EXPECT_EQ(plan.stages[0].bytes_per_block, 64 * kKiB);
  EXPECT_EQ(plan.stages[0].tensors[0].block_stride, 8192);
}

TEST(Slices, StagesShareTheSlicesAndHaveBlocksOfTheirOwn) {
  TwoKinds two;
  // Stage 0: one full layer and 3 sliding ones; stage 1: one full and 3 sliding.
  const LayerSpecs& l = two.model.layers();
  two.model.worker_with({l[0], l[2], l[3]}, 90 * 3 * kPage);
  two.model.worker_with({l[1], l[4], l[5], l[6], l[7]}, 80 * 4 * kPage);
  const Plan plan = checked_plan(two.model.request(), block_outermost(256));
  EXPECT_EQ(plan.stages[0].bytes_per_block, 3 * kPage);
  // 4 sliding pages, to be cut into three slices of a page each.
  EXPECT_EQ(plan.stages[1].bytes_per_block, (4 * kPage + 47) / 48 * 48);
  EXPECT_EQ(plan.num_blocks, 79);
}

TEST(Slices, StageWithoutLayersOfAGroupCutsNothingForIt) {
  TwoKinds two(7, 1);
  const LayerSpecs& l = two.model.layers();
  two.model.worker_with({l[0], l[1], l[2]}, int64_t{1} << 30);
  two.model.worker_with({l[3], l[4], l[5], l[6], l[7]}, int64_t{1} << 30);
  const Plan plan = checked_plan(two.model.request(), block_outermost(256));
  EXPECT_EQ(plan.stages[0].bytes_per_block, 14 * kPage);
  EXPECT_EQ(plan.stages[1].bytes_per_block, 5 * kPage);
}

TEST(Slices, LayerOutermostLayoutIsRefused) {
  TwoKinds two;
  two.model.worker(int64_t{1} << 30);
  PlanningConfig c = block_outermost(256);
  c.kv_cache_layout = KVCacheLayout::kLBNHC;
  try {
    plan(two.model.request(), c);
    FAIL() << "a layer-outermost layout was sliced";
  } catch (const LayoutError& e) {
    const std::string message = e.what();
    EXPECT_NE(message.find("LBNHC"), std::string::npos) << message;
    EXPECT_NE(message.find("VLLM_KV_CACHE_LAYOUT"), std::string::npos) << message;
  }
}

TEST(Slices, OutOfRangeNumbersAreRefused) {
  for (int64_t slices : {int64_t{0}, int64_t{-3}, int64_t{1} << 31, int64_t{1} << 61}) {
    TwoKinds two(slices);
    two.model.worker(int64_t{1} << 30);
    EXPECT_THROW(plan(two.model.request(), block_outermost(256)), InvalidArgument) << slices;
  }
  // No block of 64-bit size can be cut into both of two coprime numbers of slices.
  TwoKinds huge((int64_t{1} << 31) - 1, (int64_t{1} << 31) - 3);
  huge.model.worker(int64_t{1} << 30);
  EXPECT_THROW(plan(huge.model.request(), block_outermost(256)), Overflow);
}

TEST(Slices, CheckerSeesAStrideThatIsNotTheSlices) {
  TwoKinds two;
  two.model.worker(100 * 6 * kPage);
  Plan plan = checked_plan(two.model.request(), block_outermost(256));
  plan.stages[0].tensors[0].block_stride = kPage;
  EXPECT_FALSE(check(plan).empty());
  plan.stages[0].tensors[0].block_stride = 3 * kPage;
  EXPECT_FALSE(check(plan).empty());
}

}  // namespace
}  // namespace kvplan::testing
