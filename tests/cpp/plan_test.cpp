#include "kvplan/plan.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "expect_valid.h"
#include "kvplan/kvplan.h"
#include "model_builder.h"

namespace kvplan::testing {
namespace {

double gib(int64_t bytes) { return static_cast<double>(bytes) / static_cast<double>(kGiB); }

TEST(Plan, OneGroupOfEqualLayers) {
  ModelBuilder model;
  model.add(80, full(8, 128)).worker(60 * kGiB);
  const Plan plan = checked_plan(model.request(), config(131072));
  EXPECT_EQ(plan.stages[0].bytes_per_block, 80 * 65536);
  EXPECT_EQ(plan.num_blocks, 60 * kGiB / (80 * 65536));
  EXPECT_EQ(plan.stages[0].tensors.size(), 1u);
  EXPECT_EQ(plan.stages[0].num_layers, 80);
  EXPECT_EQ(plan.config.max_model_len, 131072);
}

TEST(Plan, RequestIsNotChanged) {
  ModelBuilder model;
  model.add(3, full(8, 128)).add(3, sliding(4, 128, 64)).worker(kGiB);
  const size_t specs = model.request().specs().size();
  const Plan first = checked_plan(model.request(), config(4096));
  const Plan second = checked_plan(model.request(), config(4096));
  EXPECT_EQ(model.request().specs().size(), specs);
  EXPECT_EQ(first.num_blocks, second.num_blocks);
  EXPECT_GT(first.specs->size(), specs) << "unified specs are the plan's own";
}

TEST(Plan, CopiesOfARequestAreIndependent) {
  ModelBuilder model;
  model.add(2, full(8, 128)).worker(kGiB);
  const PlanRequest original = model.request();
  const Plan plan = kvplan::plan(original, config(128));
  std::vector<PlanRequest> copies(2, original);
  std::vector<std::thread> threads;
  for (PlanRequest& copy : copies) {
    threads.emplace_back([&copy] {
      for (int i = 0; i < 1000; ++i) {
        const std::string name = "more." + std::to_string(i);
        EXPECT_EQ(copy.add_layer_name(name), LayerId(2 + i));
      }
      copy.add_worker(copy.add_layers({{LayerId(1001), SpecId(0)}}), kGiB);
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(original.names()->size(), 2u);
  EXPECT_EQ(plan.names->size(), 2u);
  for (const PlanRequest& copy : copies) {
    EXPECT_EQ(copy.names()->size(), 1002u);
    EXPECT_EQ(copy.workers().size(), 2u);
  }
  PlanRequest more = copies[0];
  const std::string_view kept = (*plan.names)[LayerId(0)];
  more = original;
  EXPECT_EQ(more.add_layer_name("x"), LayerId(2));
  EXPECT_EQ((*more.names())[LayerId(0)], kept);
  EXPECT_EQ(more.names()->find("more.0"), LayerId());
}

TEST(Plan, AttentionFreeModel) {
  ModelBuilder model;
  model.worker(kGiB).worker(kGiB);
  PlanningConfig c = config(4096);
  c.auto_fit = true;
  const Plan plan = checked_plan(model.request(), c);
  EXPECT_EQ(plan.num_blocks, 1) << "the pool needs its null block";
  EXPECT_TRUE(plan.groups.empty());
  EXPECT_EQ(plan.config.max_model_len, 4096);
  EXPECT_TRUE(plan.stages[0].tensors.empty());
}

TEST(Plan, AStageWithoutLayersBesideOthersHoldsNothing) {
  for (const bool auto_fit : {false, true}) {
    for (const Grouping grouping : {Grouping::kVllm, Grouping::kCompact, Grouping::kSliced}) {
      PlanningConfig c = config(4096);
      c.auto_fit = auto_fit;
      c.grouping = grouping;
      c.kv_cache_layout = KVCacheLayout::kBLNHC;
      ModelBuilder without, with;
      for (ModelBuilder* model : {&without, &with}) {
        model->add(2, full(8, 128)).add(2, sliding(8, 128, 64)).stage(0, 2, 2 * kGiB);
      }
      with.stage(2, 2, 1000);  // however little its memory is
      without.stage(2, 4, kGiB);
      with.stage(2, 4, kGiB);
      const Plan expected = checked_plan(without.request(), c);
      const Plan plan = checked_plan(with.request(), c);
      EXPECT_EQ(plan.num_blocks, expected.num_blocks);
      EXPECT_EQ(plan.config.max_model_len, expected.config.max_model_len);
      ASSERT_EQ(plan.stages.size(), 3u);
      EXPECT_TRUE(plan.stages[1].tensors.empty());
      EXPECT_EQ(plan.stages[1].bytes_per_block, 0);
      EXPECT_EQ(plan.stages[1].groups.size(), plan.groups.size());
      EXPECT_EQ(plan.workers[1].num_blocks, plan.num_blocks);
      c.num_gpu_blocks_override = 5000;
      EXPECT_EQ(checked_plan(with.request(), c).num_blocks, 5000);
    }
  }
}

TEST(Plan, AllWorkersTakeTheSmallestCount) {
  ModelBuilder model;
  model.add(4, full(8, 128)).worker(3 * kGiB).worker(2 * kGiB).worker(4 * kGiB);
  const Plan plan = checked_plan(model.request(), config(4096));
  EXPECT_EQ(plan.num_blocks, 2 * kGiB / (4 * 65536));
  EXPECT_EQ(plan.stages.size(), 1u) << "workers with the same layers share a stage";
  EXPECT_EQ(plan.workers[2].num_blocks, 4 * kGiB / (4 * 65536));
  EXPECT_EQ(plan.stages[0].tensors[0].size, plan.num_blocks * plan.stages[0].bytes_per_block);
}

// Case 11.
TEST(Plan, UnevenPipelineStages) {
  const auto gib_bytes = [](double g) { return static_cast<int64_t>(g * kGiB); };
  ModelBuilder model;
  model.add(48, full(4, 128)).stage(0, 16, gib_bytes(3.18)).stage(16, 48, gib_bytes(6.37));
  PlanningConfig c = config(262144);
  try {
    checked_plan(model.request(), c);
    FAIL();
  } catch (const NotEnoughMemory& e) {
    EXPECT_EQ(e.numbers().worker, 0);
    EXPECT_EQ(e.numbers().needed_bytes, 8 * kGiB);
  }
  c.auto_fit = true;
  const Plan fitted = checked_plan(model.request(), c);
  EXPECT_EQ(fitted.config.max_model_len, 104176);
  EXPECT_EQ(fitted.requested_max_model_len, 262144);
  EXPECT_EQ(explain(fitted).limiting_worker, 0u);
}

TEST(Plan, TensorsShrinkWithTheSmallestStage) {
  ModelBuilder model;
  model.add(64, full(4, 128)).stage(0, 56, 8 * kGiB).stage(56, 64, 8 * kGiB);
  const Plan plan = checked_plan(model.request(), config(8192));
  EXPECT_EQ(plan.num_blocks, 8 * kGiB / (56 * 32768));
  EXPECT_EQ(plan.workers[1].num_blocks, 8 * kGiB / (8 * 32768));
  EXPECT_EQ(plan.stages[1].tensors[0].size, plan.num_blocks * 8 * 32768);
}

TEST(Plan, LayerSpecsMustAgreeAcrossWorkers) {
  ModelBuilder model;
  model.add(1, full(8, 128));
  const LayerId layer = model.layers()[0].layer;
  const SpecId other = model.request().add_spec(full(4, 128));
  model.worker(kGiB).worker_with({{layer, other}}, kGiB);
  try {
    checked_plan(model.request(), config(128));
    FAIL();
  } catch (const InconsistentSpec& e) {
    EXPECT_NE(std::string(e.what()).find("layer.0"), std::string::npos) << e.what();
  }
}

TEST(Plan, GroupsMayBeGiven) {
  ModelBuilder model;
  model.add(4, full(8, 128)).worker(kGiB);
  KVCacheGroups groups(2);
  groups[0].layers = {LayerId(0), LayerId(1)};
  groups[1].layers = {LayerId(2), LayerId(3)};
  groups[0].spec = groups[1].spec = model.layers()[0].spec;
  model.request().set_groups(groups);
  const Plan plan = checked_plan(model.request(), config(4096));
  EXPECT_EQ(widths(plan.groups), (std::vector<size_t>{2, 2}));
  EXPECT_EQ(plan.stages[0].bytes_per_block, 2 * 65536);

  groups[1].layers = {LayerId(2)};
  model.request().set_groups(groups);
  EXPECT_THROW(model.plan(config(4096)), InconsistentSpec) << "a layer is in no group";
  groups[1].layers = {LayerId(2), LayerId(2)};
  model.request().set_groups(groups);
  EXPECT_THROW(model.plan(config(4096)), InconsistentSpec) << "a layer is there twice";
  groups[1].layers = {LayerId(2), LayerId(99)};
  model.request().set_groups(groups);
  EXPECT_THROW(model.plan(config(4096)), InvalidArgument);
  groups[1].layers = {LayerId(2), LayerId(3)};
  groups[1].spec = SpecId(99);
  model.request().set_groups(groups);
  EXPECT_THROW(model.plan(config(4096)), InvalidArgument);
  groups[1].spec = groups[0].spec;
  groups[0].host_resident = groups[1].host_resident = true;
  model.request().set_groups(groups);
  EXPECT_THROW(model.plan(config(4096)), InvalidArgument) << "nothing is left on the device";
}

TEST(Plan, LookaheadTokensAreRetainedByWindows) {
  ModelBuilder model;
  model.add(2, full(8, 128)).add(2, sliding(8, 128, 1024)).worker(4 * kGiB);
  PlanningConfig c = config(65536);
  c.num_prefill_lookahead_tokens = 3;
  const Plan plan = checked_plan(model.request(), c);
  for (const KVCacheGroup& g : plan.groups) {
    const KVCacheSpec& spec = (*plan.specs)[g.spec];
    if (spec.kind == SpecKind::kSlidingWindow) {
      EXPECT_EQ(spec.extra_retained_tokens, 2);
    }
  }
}

TEST(Plan, AutoFitIsTheLongestThatFits) {
  for (int64_t bytes : {10 * kMiB, 100 * kMiB, 999 * kMiB}) {
    ModelBuilder model;
    model.add(4, full(8, 64)).add(4, sliding(8, 64, 512)).worker(bytes);
    PlanningConfig c = config(1 << 20);
    c.max_in_flight_tokens = 512;
    c.auto_fit = true;
    const int64_t fitted = checked_plan(model.request(), c).config.max_model_len;
    ASSERT_LT(fitted, 1 << 20);
    c.auto_fit = false;
    c.max_model_len = fitted;
    EXPECT_NO_THROW(checked_plan(model.request(), c));
    c.max_model_len = fitted + 1;
    EXPECT_THROW(checked_plan(model.request(), c), NotEnoughMemory);
  }
}

// Case 1.
KVCacheSpec deepseek_window(int64_t window) {
  KVCacheSpec s = attention(SpecKind::kSlidingWindowMLA, 1, 512, 64);
  s.dcp_sharded = false;
  s.dtype = DType::kUInt8;
  s.state_content_bytes = 584;
  s.alignment = 576;
  s.sliding_window = window;
  finalize(s);
  return s;
}

KVCacheSpec deepseek_latent(int64_t block_size, int64_t ratio) {
  KVCacheSpec s = attention(SpecKind::kMLAAttention, 1, 512, block_size);
  s.dtype = DType::kUInt8;
  s.state_content_bytes = 584;
  s.alignment = 576;
  s.tokens_per_state = {ratio, 1};
  finalize(s);
  return s;
}

KVCacheSpec deepseek_indexer(int64_t block_size, int64_t ratio) {
  KVCacheSpec s = attention(SpecKind::kMLAAttention, 1, 132, block_size);
  s.dtype = DType::kUInt8;
  s.alignment = 576;
  s.tokens_per_state = {ratio, 1};
  finalize(s);
  return s;
}

ModelBuilder deepseek_v41_flash() {
  ModelBuilder model;
  for (int i = 0; i < 43; ++i) {
    model.add(1, deepseek_window(i < 40 ? 128 : 192), "window");
    if (i == 2 || i == 8 || i == 14) {
      model.add(1, deepseek_latent(128, 2), "latent").add(1, deepseek_indexer(128, 2), "indexer");
    }
    if (i == 20) {
      model.add(1, deepseek_latent(64, 1), "latent").add(1, deepseek_indexer(64, 1), "indexer");
    }
  }
  return model;
}

TEST(ReportedCases, DeepSeekV41Flash) {
  ModelBuilder model = deepseek_v41_flash();
  model.worker(4'509'715'660);
  PlanningConfig c = config(524288);
  c.max_in_flight_tokens = 16384;
  c.kv_cache_layout = KVCacheLayout::kBLHNC;
  const Plan plan = checked_plan(model.request(), c);
  EXPECT_EQ(plan.groups.size(), 17u);
  EXPECT_EQ(plan.stages[0].bytes_per_block, 138240);
  EXPECT_EQ(plan.num_blocks, 32622);
  EXPECT_EQ(capacity(plan).tokens, 1057457);
}

// Case 12.
TEST(ReportedCases, StageWithoutSomeGroup) {
  ModelBuilder model = deepseek_v41_flash();
  LayerSpecs first;
  LayerSpecs rest;
  for (const LayerSpec& l : model.layers()) (first.size() < 2 ? first : rest).push_back(l);
  model.worker_with(first, kGiB).worker_with(rest, 4 * kGiB);
  PlanningConfig c = config(65536);
  c.kv_cache_layout = KVCacheLayout::kBLHNC;
  const Plan plan = checked_plan(model.request(), c);
  std::vector<LayerId> placed;
  for (const KVCacheTensor& t : plan.stages[0].tensors) {
    placed.insert(placed.end(), t.layers.begin(), t.layers.end());
  }
  EXPECT_EQ(placed, (std::vector<LayerId>{LayerId(0), LayerId(1)}));
  EXPECT_EQ(plan.stages[0].groups.size(), plan.groups.size());
}

// Case 2.
TEST(ReportedCases, OneOddLayer) {
  ModelBuilder model;
  model.add(30, mamba(1081344, 528))
      .add(10, full(2, 256, 528))
      .add(5, sliding(2, 256, 4096, 528))
      .add(1, full(4, 128, 528))
      .worker(40 * kGiB);
  const Plan plan = checked_plan(model.request(), config(262144));
  EXPECT_EQ(plan.groups.size(), 46u);
  EXPECT_EQ(plan.stages[0].bytes_per_block, 1081344);
  EXPECT_NEAR(gib(plan.stages[0].request_bytes), 5.66, 0.005);
}

// Case 3.
TEST(ReportedCases, MiMoWithDrafter) {
  const auto of = [](int64_t heads, std::optional<int64_t> window) {
    KVCacheSpec s =
        attention(window ? SpecKind::kSlidingWindow : SpecKind::kFullAttention, heads, 192);
    s.dcp_sharded = !window;
    s.head_size_v = 128;
    s.sliding_window = window;
    finalize(s);
    return s;
  };
  ModelBuilder model;
  model.add(9, of(2, {})).add(39, of(4, 128)).add(5, of(4, 1024)).worker(40 * kGiB);
  const Plan plan = checked_plan(model.request(), config(262144));
  EXPECT_EQ(plan.groups.size(), 11u);
  EXPECT_EQ(plan.stages[0].bytes_per_block, 5 * 40960);
  EXPECT_NEAR(gib(plan.stages[0].request_bytes), 4.03, 0.005);
}

// Case 4.
TEST(ReportedCases, ScalesInlineInFp8Pages) {
  KVCacheSpec window = sliding(8, 256, 1024);
  window.state_content_bytes = 2 * 256 + 2 * 4;
  KVCacheSpec global = full(2, 512);
  global.state_content_bytes = 2 * 512 + 2 * 4;
  ModelBuilder model;
  model.add(25, window).add(5, global).worker(static_cast<int64_t>(15.18 * kGiB));
  const Plan plan = checked_plan(model.request(), config(32768));
  EXPECT_EQ(page_size_bytes(window), 66560);
  EXPECT_EQ(page_size_bytes(global), 33024);
  EXPECT_NEAR(capacity(plan).max_concurrency, 9.93, 0.005);
}

// Case 5.
TEST(ReportedCases, AttentionInAMambaPage) {
  ModelBuilder model;
  model.add(6, full(1, 128, 64)).add(23, mamba(540672, 64)).worker(40 * kGiB);
  const Plan plan = checked_plan(model.request(), config(131072));
  EXPECT_NEAR(gib(plan.stages[0].request_bytes), 6.20, 0.005);
}

// Case 7.
TEST(ReportedCases, LlamaScout) {
  constexpr int64_t kLength = 10'485'760;
  ModelBuilder all_full;
  all_full.add(48, full(1, 128)).worker(300 * kGiB);
  PlanningConfig c = config(kLength);
  c.max_in_flight_tokens = 16384;
  EXPECT_EQ(checked_plan(all_full.request(), c).stages[0].request_bytes, 240 * kGiB);

  ModelBuilder small;
  small.add(48, full(1, 128)).worker(static_cast<int64_t>(88.38 * kGiB));
  PlanningConfig auto_fit = c;
  auto_fit.auto_fit = true;
  EXPECT_EQ(checked_plan(small.request(), auto_fit).config.max_model_len, 3'861'360);

  ModelBuilder in_chunks;
  in_chunks.add(12, full(1, 128)).add(36, chunked(1, 128, 8192)).worker(80 * kGiB);
  const Plan plan = checked_plan(in_chunks.request(), c);
  EXPECT_NEAR(gib(plan.stages[0].request_bytes), 60.42, 0.005);
}

}  // namespace
}  // namespace kvplan::testing
