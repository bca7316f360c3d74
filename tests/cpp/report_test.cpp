#include <gtest/gtest.h>

#include "expect_valid.h"
#include "kvplan/kvplan.h"
#include "model_builder.h"

namespace kvplan::testing {
namespace {

TEST(Explain, NamesWorkerGroupAndBytes) {
  ModelBuilder model;
  model.add(2, sliding(8, 128, 1024)).add(2, full(8, 128));
  model.worker(3 * kGiB).worker(2 * kGiB).worker(4 * kGiB);
  PlanningConfig c = config(65536);
  const Plan plan = checked_plan(model.request(), c);
  const Reasons r = explain(plan);
  EXPECT_EQ(r.limiting_worker, 1u);
  EXPECT_EQ(r.limiting_group, 1u);
  EXPECT_EQ(r.bytes_per_block, 131072);
  EXPECT_EQ(r.request_blocks, 4096 + 577);
  EXPECT_EQ(r.request_bytes, r.request_blocks * 131072);
  EXPECT_EQ(r.request_bytes, plan.stages[0].request_bytes);
  EXPECT_EQ(r.fixed_bytes_per_request, 577 * 131072);
  EXPECT_DOUBLE_EQ(r.bytes_per_token, 131072.0 / 16);
  EXPECT_EQ(r.next_token_bytes, 131072) << "65,536 tokens end with a block";
  ASSERT_EQ(r.groups.size(), 2u);
  EXPECT_EQ(r.groups[0].pages_fixed, 577);
  EXPECT_FALSE(r.groups[0].tokens_per_page);
  EXPECT_EQ(r.groups[1].pages_fixed, 0);
  EXPECT_EQ(r.groups[1].tokens_per_page, 16);
  c.max_model_len = 65537;
  EXPECT_EQ(explain(checked_plan(model.request(), c)).next_token_bytes, 0);
}

TEST(Explain, PaddingIsWhatHoldsNoStates) {
  // A narrow group, and a page that is padded.
  ModelBuilder model;
  model.add(3, full(8, 128)).add(2, sliding(8, 128, 1024)).add(2, mamba(60000));
  model.worker(4 * kGiB);
  const Reasons r = explain(checked_plan(model.request(), config(4096)));
  for (const GroupReport& g : r.groups) {
    EXPECT_EQ(g.padding_bytes + g.content_bytes, r.bytes_per_block);
  }
  EXPECT_EQ(r.groups.back().content_bytes, 2 * 60000);
  EXPECT_EQ(r.groups.back().page_size_bytes, 2 * 65536);
}

// Case 9: the figure that vLLM prints, and what can be used of it.
TEST(Capacity, NullBlockIsNotUsable) {
  const KVCacheSpec spec = full(1, 64, 128);
  ModelBuilder model;
  model.add(1, spec).worker(8 * page_size_bytes(spec));
  const Capacity c = capacity(checked_plan(model.request(), config(896)));
  EXPECT_EQ(c.tokens, 1024);
  EXPECT_NEAR(c.max_concurrency, 1.14, 0.005);
  EXPECT_EQ(c.usable_tokens, 896);
  EXPECT_DOUBLE_EQ(c.usable_concurrency, 1.0);
}

TEST(Capacity, FourRequestsWorthOfBlocksRunThree) {
  const KVCacheSpec spec = full(1, 64, 128);
  ModelBuilder model;
  model.add(1, spec).worker(28 * page_size_bytes(spec));
  const Capacity c = capacity(checked_plan(model.request(), config(896)));
  EXPECT_DOUBLE_EQ(c.max_concurrency, 4.0);
  EXPECT_DOUBLE_EQ(c.usable_concurrency, 27.0 / 7);
  EXPECT_EQ(c.usable_tokens, 27 * 128);
}

// Case 13.
TEST(Capacity, InFlightTokensOncePerEngine) {
  ModelBuilder model;
  model.add(7, full(2, 128, 32)).add(35, sliding(2, 128, 512, 32)).add(42, sliding(16, 128, 4, 4));
  model.worker(535530LL * 7 * 32768);
  PlanningConfig config = testing::config(131072);
  config.max_in_flight_tokens = 32768;
  const Plan plan = checked_plan(model.request(), config);
  EXPECT_EQ(plan.num_blocks, 535530);
  EXPECT_EQ(explain(plan).request_blocks, 58465);
  const Capacity c = capacity(plan);
  EXPECT_NEAR(c.max_concurrency, 9.16, 0.005);
  EXPECT_NEAR(c.steady_concurrency, 115, 1);
  EXPECT_EQ(c.steady_tokens, static_cast<int64_t>(c.steady_concurrency * 131072));
}

ModelBuilder encoder_decoder() {
  KVCacheSpec cross = attention(SpecKind::kCrossAttention, 8, 64);
  finalize(cross);
  ModelBuilder model;
  model.add(4, full(8, 64)).add(4, cross).worker(kGiB);
  return model;
}

// A step's encoder tokens are charged to each request by vLLM's formula alone.
TEST(Capacity, SteadyRequestsHoldTheirOwnEncoderTokens) {
  PlanningConfig c = config(448);
  c.max_num_encoder_input_tokens = 8192;
  const Capacity unknown = capacity(checked_plan(encoder_decoder().request(), c));
  EXPECT_EQ(unknown.encoder_tokens_per_request, 8192);
  c.encoder_tokens_per_request = 1500;
  const Plan plan = checked_plan(encoder_decoder().request(), c);
  const Capacity known = capacity(plan);
  EXPECT_EQ(known.encoder_tokens_per_request, 1500);
  EXPECT_DOUBLE_EQ(known.max_concurrency, unknown.max_concurrency);
  EXPECT_DOUBLE_EQ(known.max_concurrency, static_cast<double>(plan.num_blocks) / (28 + 512));
  EXPECT_DOUBLE_EQ(unknown.steady_concurrency,
                   static_cast<double>(plan.num_blocks - 1) / (28 + 512));
  EXPECT_DOUBLE_EQ(known.steady_concurrency, static_cast<double>(plan.num_blocks - 1) / (28 + 94));
  EXPECT_EQ(known.steady_tokens, static_cast<int64_t>(known.steady_concurrency * 448));
}

TEST(Capacity, SlicedSteadyRequestsHoldTheirOwnEncoderTokens) {
  PlanningConfig c = config(448);
  c.kv_cache_layout = KVCacheLayout::kBLNHC;
  c.grouping = Grouping::kSliced;
  c.max_num_encoder_input_tokens = 8192;
  c.encoder_tokens_per_request = 1500;
  const Plan plan = checked_plan(encoder_decoder().request(), c);
  ASSERT_EQ(plan.groups.size(), 2u);
  const int64_t slices[] = {plan.groups[0].slices, plan.groups[1].slices};
  const auto blocks_of = [&](int64_t requests, int64_t encoder_pages) {
    return (requests * 28 + slices[0] - 1) / slices[0] +
           (requests * encoder_pages + slices[1] - 1) / slices[1];
  };
  const auto requests = [&](int64_t num_blocks, int64_t encoder_pages) {
    int64_t fits = 0;
    while (blocks_of(fits + 1, encoder_pages) <= num_blocks) ++fits;
    return fits;
  };
  const Capacity found = capacity(plan);
  EXPECT_EQ(static_cast<int64_t>(found.max_concurrency), requests(plan.num_blocks, 512));
  EXPECT_EQ(static_cast<int64_t>(found.steady_concurrency), requests(plan.num_blocks - 1, 94));
}

TEST(Capacity, OtherModelsHaveNoEncoderTokens) {
  ModelBuilder model;
  model.add(2, full(8, 128)).worker(kGiB);
  PlanningConfig c = config(448);
  const Capacity without = capacity(checked_plan(model.request(), c));
  c.encoder_tokens_per_request = 1500;
  const Capacity with = capacity(checked_plan(model.request(), c));
  EXPECT_FALSE(with.encoder_tokens_per_request);
  EXPECT_DOUBLE_EQ(with.steady_concurrency, without.steady_concurrency);
}

TEST(Capacity, AttentionFreeModelHasNone) {
  ModelBuilder model;
  model.worker(kGiB);
  const Capacity c = capacity(checked_plan(model.request(), config(128)));
  EXPECT_EQ(c.tokens, 0);
  EXPECT_EQ(c.max_concurrency, 0);
}

TEST(Capacity, MaxConcurrencyCountsHostBlocksApart) {
  Steps steps(ModelBuilder().add(2, full(8, 128)).add(2, sliding(8, 128, 64)));
  KVCacheGroups groups = steps.groups(config(1600));
  groups[1].host_resident = true;
  const PlanningConfig c = config(1600);
  EXPECT_DOUBLE_EQ(max_concurrency(steps.ctx(), c, groups, 1000, 10100), 10.0);
  EXPECT_DOUBLE_EQ(max_concurrency(steps.ctx(), c, groups, 1000, 202), 2.0);
  EXPECT_THROW(max_concurrency(steps.ctx(), c, groups, 1000), InconsistentSpec);
  groups[0].host_resident = true;
  EXPECT_THROW(max_concurrency(steps.ctx(), c, groups, 1000, 10), InvalidArgument);
}

// Case 17.
TEST(SafeBlockIds, ElementOffsetsWrapAt65536) {
  ModelBuilder model;
  model.add(1, full(8, 128)).worker(8 * kGiB);
  const SafeBlockIds ids = safe_block_ids(checked_plan(model.request(), config(4096)));
  EXPECT_EQ(ids.elements, 65535);
  EXPECT_EQ(ids.bytes, 32767);
}

TEST(SafeBlockIds, ByteOffsetsWrapAt2143) {
  ModelBuilder model;
  model.add(1, mamba(1'002'240)).worker(4 * kGiB);
  EXPECT_EQ(safe_block_ids(checked_plan(model.request(), config(4096))).bytes, 2142);
}

TEST(WorkerMaxModelLen, IsWhatTheWorkerAloneWouldHold) {
  ModelBuilder model;
  model.add(2, full(8, 128)).worker(200 * 131072).worker(101 * 131072);
  PlanningConfig c = config(1 << 20);
  c.auto_fit = true;
  const Plan plan = checked_plan(model.request(), c);
  EXPECT_EQ(plan.config.max_model_len, 1600);
  EXPECT_EQ(worker_max_model_len(plan, 0), 199 * 16);
  EXPECT_EQ(worker_max_model_len(plan, 1), 1600);
}

}  // namespace
}  // namespace kvplan::testing
