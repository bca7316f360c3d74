#include "kvplan/page_demand.h"

#include <gtest/gtest.h>

#include <limits>

#include "kvplan/errors.h"
#include "model_builder.h"

namespace kvplan::testing {
namespace {

int64_t pages_of(const KVCacheSpec& spec, int64_t length, PlanningConfig c = config(1)) {
  return page_demand(spec, c).pages(length);
}

PlanningConfig in_flight(int64_t tokens) {
  PlanningConfig c = config(1);
  c.max_in_flight_tokens = tokens;
  return c;
}

TEST(PageDemand, FullAttentionGrowsWithTheLength) {
  EXPECT_EQ(pages_of(full(8, 128), 1), 1);
  EXPECT_EQ(pages_of(full(8, 128), 16), 1);
  EXPECT_EQ(pages_of(full(8, 128), 17), 2);
  EXPECT_EQ(pages_of(mla(576), 131072), 8192);
  EXPECT_TRUE(page_demand(full(8, 128), config(1)).grows_without_bound());
}

TEST(PageDemand, DcpSplitsTheTokensOfShardedCaches) {
  PlanningConfig c = config(1);
  c.decode_context_parallel_size = 4;
  EXPECT_EQ(pages_of(full(8, 128), 1024, c), 16);
  EXPECT_EQ(pages_of(full(8, 128), 1025, c), 17);
  KVCacheSpec replicated = full(8, 128);
  replicated.dcp_sharded = false;
  EXPECT_EQ(pages_of(replicated, 1024, c), 64);
  EXPECT_EQ(pages_of(full(8, 128), std::numeric_limits<int64_t>::max(), c), 1LL << 57);
}

TEST(PageDemand, SlidingWindowHoldsTheWindowAndWhatIsInFlight) {
  EXPECT_EQ(pages_of(sliding(8, 128, 1024), 1 << 20, in_flight(8192)), 577);
  EXPECT_EQ(pages_of(sliding(8, 128, 1024), 1 << 20, in_flight(0)), 65);
  EXPECT_EQ(pages_of(sliding(8, 128, 1024), 100, in_flight(8192)), 8) << "7 pages and one more";
  KVCacheSpec retained = sliding(8, 128, 1024);
  retained.extra_retained_tokens = 16;
  EXPECT_EQ(pages_of(retained, 1 << 20, in_flight(8192)), 578);
  EXPECT_FALSE(page_demand(retained, config(1)).grows_without_bound());
}

TEST(PageDemand, SlidingWindowUnderDcpIsRefused) {
  KVCacheSpec s = sliding(8, 128, 1024);
  s.dcp_sharded = true;
  PlanningConfig c = config(1);
  EXPECT_NO_THROW(page_demand(s, c));
  c.decode_context_parallel_size = 2;
  EXPECT_THROW(page_demand(s, c), InconsistentSpec);
}

TEST(PageDemand, ChunkedLocal) {
  EXPECT_EQ(pages_of(chunked(1, 128, 8192), 1 << 20, in_flight(16384)), 1536);
  EXPECT_EQ(pages_of(chunked(1, 128, 8192), 100, in_flight(16384)), 7);
}

TEST(PageDemand, MambaHoldsItsStates) {
  KVCacheSpec s = mamba(100);
  EXPECT_EQ(pages_of(s, 1 << 20), 1);
  s.num_speculative_blocks = 3;
  EXPECT_EQ(pages_of(s, 1), 4);
  PlanningConfig c = config(1);
  c.mamba_cache_mode = MambaCacheMode::kAlign;
  s.num_prefill_checkpoint_blocks = 1;
  EXPECT_EQ(pages_of(s, 1, c), 6);
}

TEST(PageDemand, FixedKinds) {
  KVCacheSpec cross = attention(SpecKind::kCrossAttention, 8, 64);
  finalize(cross);
  PlanningConfig c = config(1);
  c.max_num_encoder_input_tokens = 1500;
  EXPECT_EQ(pages_of(cross, 1 << 20, c), 94);
  KVCacheSpec ring = attention(SpecKind::kCircularBuffer, 8, 64);
  finalize(ring);
  EXPECT_EQ(pages_of(ring, 1 << 20), 1);
  KVCacheSpec encoder = attention(SpecKind::kEncoderOnlyAttention, 8, 64);
  finalize(encoder);
  EXPECT_EQ(pages_of(encoder, 1 << 20), 0);
  KVCacheSpec hot = default_spec(SpecKind::kHiSparseHot);
  hot.block_size = 64;
  hot.page_size = 1000;
  hot.blocks_per_request = 12;
  finalize(hot);
  EXPECT_EQ(pages_of(hot, 1 << 20), 12);
}

TEST(PageDemand, CustomIsNumbers) {
  KVCacheSpec s = custom("PluginSpec", 4096);
  EXPECT_EQ(pages_of(s, 1600), 100);
  s.demand = {.cap_tokens = 160, .cap_includes_in_flight = false, .extra_pages = 2};
  EXPECT_EQ(pages_of(s, 1600), 12);
  s.demand.cap_includes_in_flight = true;
  EXPECT_EQ(pages_of(s, 1600, in_flight(32)), 14);
}

TEST(PageDemand, ArithmeticIsChecked) {
  const int64_t max = std::numeric_limits<int64_t>::max();
  EXPECT_THROW(page_demand(sliding(8, 128, max), in_flight(8192)), Overflow);
  KVCacheSpec s = custom("PluginSpec", 4096, 1);
  s.demand.extra_pages = max;
  EXPECT_THROW(pages_of(s, 1), Overflow);
  EXPECT_THROW(max_memory_usage_bytes(full(8, 128, 1), config(max)), Overflow);
}

TEST(PageDemand, MaxMemoryOfALayer) {
  EXPECT_EQ(max_memory_usage_bytes(full(8, 128), config(1024)), 64 * 65536);
}

TEST(PageDemand, BlockTableRows) {
  PlanningConfig c = config(4096);
  EXPECT_EQ(max_num_blocks_per_req(full(8, 128), c, 4096), 256);
  c.decode_context_parallel_size = 2;
  EXPECT_EQ(max_num_blocks_per_req(full(8, 128), c, 4096), 128);
  EXPECT_EQ(max_num_blocks_per_req(sliding(8, 128, 64), c, 4096), 256);
  EXPECT_EQ(max_num_blocks_per_req(mamba(100), c, 4096), 1);
  c.mamba_cache_mode = MambaCacheMode::kAlign;
  EXPECT_EQ(max_num_blocks_per_req(mamba(100), c, 4096), 256);
}

TEST(PageDemand, RuntimeAdmissionCap) {
  EXPECT_EQ(max_admission_blocks_per_request(sliding(8, 128, 1024), 8192, 1 << 20), 577);
  EXPECT_EQ(max_admission_blocks_per_request(chunked(8, 128, 8192), 16384, 1 << 20), 1536);
  EXPECT_THROW(max_admission_blocks_per_request(full(8, 128), 8192, 1 << 20), Unsupported);
}

}  // namespace
}  // namespace kvplan::testing
