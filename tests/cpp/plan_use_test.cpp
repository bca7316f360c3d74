#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "describe_plan.h"
#include "expect_valid.h"
#include "kvplan/kvplan.h"
#include "model_builder.h"

/// What a runtime asks of a finished plan.
namespace kvplan::testing {
namespace {

Plan hybrid_plan(Grouping grouping) {
  ModelBuilder model;
  model.add(4, sliding(8, 128, 1024)).add(2, full(8, 128)).add(2, mamba(60000), "state");
  model.stage(0, 4, 3 * kGiB).stage(4, 8, 2 * kGiB);
  PlanningConfig c = config(65536);
  c.grouping = grouping;
  c.kv_cache_layout = KVCacheLayout::kBLHNC;
  c.attention_kernel_block_sizes = {{16, true}, {32, false}};
  return checked_plan(model.request(), c);
}

TEST(PlanUse, OtherLengths) {
  const Plan plan = hybrid_plan(Grouping::kVllm);
  EXPECT_EQ(request_blocks(plan, 65536), explain(plan).request_blocks);
  EXPECT_DOUBLE_EQ(max_concurrency(plan, 65536), capacity(plan).max_concurrency);
  for (const int64_t length : {1, 1000, 32768, 131072}) {
    PlanningConfig c = plan.config;
    c.max_model_len = length;
    Plan other = plan;
    other.config = c;
    EXPECT_EQ(request_blocks(plan, length), explain(other).request_blocks) << length;
    EXPECT_DOUBLE_EQ(max_concurrency(plan, length), capacity(other).max_concurrency) << length;
  }
  EXPECT_THROW(request_blocks(plan, 0), InvalidArgument);
  EXPECT_THROW(max_concurrency(plan, -1), InvalidArgument);
}

TEST(PlanUse, BlockSizesAreThoseOfTheGroups) {
  ModelBuilder model;
  model.add(2, sliding(8, 128, 1024, 16)).add(2, full(4, 128, 64)).worker(kGiB);
  const BlockSizes sizes = block_sizes(model.plan(config(4096)));
  EXPECT_EQ(sizes.scheduler_block_size, 64);
  EXPECT_EQ(sizes.hash_block_size, 32);  // the window's block grows to the full layers' page
}

TEST(PlanUse, ViewsCoverEveryLayerOfAStage) {
  for (const Grouping grouping : {Grouping::kVllm, Grouping::kSliced}) {
    const Plan plan = hybrid_plan(grouping);
    for (size_t s = 0; s < plan.stages.size(); ++s) {
      const StagePlan& stage = plan.stages[s];
      int64_t layers = 0;
      for (const TensorView& v : views(plan, s)) {
        const KVCacheTensor& tensor = stage.tensors[v.tensor];
        const KVCacheGroup& group = stage.groups[v.group];
        EXPECT_EQ(v.view.shape[kAxisL], static_cast<int64_t>(tensor.layers.size()));
        EXPECT_EQ(v.view.shape[kAxisB], plan.num_blocks * group.slices);
        EXPECT_EQ(v.view.offset, tensor.offset);
        EXPECT_EQ(v.view.strides[kAxisB], tensor.block_stride);
        EXPECT_NE(std::find(group.layers.begin(), group.layers.end(), tensor.layers[0]),
                  group.layers.end());
        layers += v.view.shape[kAxisL];
      }
      EXPECT_EQ(layers, stage.num_layers);
    }
    EXPECT_THROW(views(plan, plan.stages.size()), InvalidArgument);
  }
}

TEST(PlanUse, PoolsHandOutThePlansBlocks) {
  const Plan plan = hybrid_plan(Grouping::kVllm);
  BlockPool pool = make_pool(plan, {.enable_events = true});
  EXPECT_EQ(pool.num_blocks(), plan.num_blocks);
  EXPECT_EQ(make_sliced_pool(plan).num_groups(), static_cast<int64_t>(plan.groups.size()));

  const Plan sliced = hybrid_plan(Grouping::kSliced);
  EXPECT_THROW(make_pool(sliced), InvalidArgument);
  const SlicedBlockPool slices = make_sliced_pool(sliced);
  EXPECT_EQ(slices.num_large_blocks(), sliced.num_blocks);
  for (size_t g = 0; g < sliced.groups.size(); ++g) {
    EXPECT_EQ(slices.slices(PoolGroupId{static_cast<uint16_t>(g)}), sliced.groups[g].slices);
  }
}

TEST(PlanUse, SavedAndLoadedIsTheSamePlan) {
  if (!can_read_json_requests()) {
    EXPECT_THROW(write_json_plan(hybrid_plan(Grouping::kVllm)), NotBuilt);
    EXPECT_THROW(read_json_plan("{}"), NotBuilt);
    return;
  }
  for (const Grouping grouping : {Grouping::kVllm, Grouping::kCompact, Grouping::kSliced}) {
    const Plan plan = hybrid_plan(grouping);
    const std::string text = write_json_plan(plan);
    const Plan loaded = read_json_plan(text);
    EXPECT_EQ(write_json_plan(loaded), text);
    EXPECT_EQ(describe(loaded), describe(plan));
    EXPECT_TRUE(check(loaded).empty());
    EXPECT_EQ(explain(loaded).request_bytes, explain(plan).request_bytes);
    EXPECT_EQ(capacity(loaded).steady_tokens, capacity(plan).steady_tokens);
    EXPECT_EQ(loaded.notices.size(), plan.notices.size());
  }
}

TEST(PlanUse, OtherTextsAreRefusedWithThePlace) {
  if (!can_read_json_requests()) GTEST_SKIP() << "built without a JSON library";
  const std::string text = write_json_plan(hybrid_plan(Grouping::kVllm));
  const auto error_of = [](const std::string& changed) {
    try {
      read_json_plan(changed);
    } catch (const InvalidArgument& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    const size_t at = changed.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return changed.replace(at, from.size(), to);
  };
  const auto has = [](const std::string& message, const char* part) {
    return message.find(part) != std::string::npos;
  };
  EXPECT_TRUE(has(error_of("["), "not a JSON plan"));
  EXPECT_TRUE(has(error_of("{}"), "$: `kvplan_plan` is missing"));
  EXPECT_TRUE(has(error_of(with("\"kvplan_plan\":1", "\"kvplan_plan\":2")), "$.kvplan_plan"));
  EXPECT_TRUE(has(error_of(with("\"slices\":1", "\"slices\":0")), "0 slices"));
  EXPECT_TRUE(has(error_of(with("\"stage\":1", "\"stage\":7")), "stage 7 does not exist"));
  EXPECT_TRUE(has(error_of(with("\"role\":\"default\"", "\"role\":\"best\"")),
                  "$.groups[0].role: unknown value 'best'"));
  EXPECT_TRUE(has(error_of(with("\"num_layers\"", "\"layers_num\"")),
                  "$.stages[0]: `num_layers` is missing"));
}

}  // namespace
}  // namespace kvplan::testing
