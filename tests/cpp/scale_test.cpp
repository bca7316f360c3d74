#include <gtest/gtest.h>

#include "expect_valid.h"
#include "kvplan/kvplan.h"
#include "model_builder.h"

namespace kvplan::testing {
namespace {

// Far larger than any model: what grows faster than layers or workers would not end here.
constexpr int64_t kLayers = 100'000;

TEST(Scale, HundredThousandEqualLayers) {
  ModelBuilder model;
  model.add(kLayers, full(8, 128)).worker(kLayers * 65536 * 100);
  const Plan plan = checked_plan(model.request(), config(1024));
  EXPECT_EQ(plan.num_blocks, 100);
  EXPECT_EQ(plan.stages[0].tensors[0].layers.size(), static_cast<size_t>(kLayers));
}

TEST(Scale, HundredThousandLayersOfSeveralKinds) {
  for (KVCacheLayout layout : kAllLayouts) {
    ModelBuilder model;
    for (int i = 0; i < 100; ++i) {
      model.add(kLayers / 200, full(8, 128))
          .add(kLayers / 400, sliding(8, 128, 1024))
          .add(kLayers / 400, chunked(8, 128, 8192));
    }
    model.worker(1LL << 50);
    PlanningConfig c = config(4096);
    c.kv_cache_layout = layout;
    const Plan plan = checked_plan(model.request(), c);
    EXPECT_EQ(plan.groups.size(), 4u);
  }
}

TEST(Scale, HundredThousandLayersPackedByBlock) {
  ModelBuilder model;
  for (int i = 0; i < 1000; ++i) {
    model.add(kLayers / 4000, mla(576))
        .add(kLayers / 4000, mla(132))
        .add(kLayers / 2000, sliding(1, 128, 128));
  }
  model.worker(1LL << 50);
  PlanningConfig c = config(4096);
  c.kv_cache_layout = KVCacheLayout::kBLHNC;
  const Plan plan = checked_plan(model.request(), c);
  EXPECT_EQ(plan.groups.size(), 3u);
}

TEST(Scale, HundredThousandLayersOverAThousandWorkers) {
  ModelBuilder model;
  model.add(kLayers / 2, full(8, 128)).add(kLayers / 2, sliding(8, 128, 1024), "window");
  for (int64_t stage = 0; stage < 8; ++stage) {
    LayerSpecs own;
    for (int64_t i = stage; i < kLayers; i += 8) {
      own.push_back(model.layers()[static_cast<size_t>(i)]);
    }
    for (int rank = 0; rank < 128; ++rank) model.worker_with(own, 1LL << 50);
  }
  const Plan plan = checked_plan(model.request(), config(4096));
  EXPECT_EQ(plan.workers.size(), 1024u);
  EXPECT_EQ(plan.stages.size(), 8u) << "ranks of a stage are planned once";
}

TEST(Scale, ManyDistinctSpecs) {
  ModelBuilder model;
  for (int64_t i = 1; i <= 5000; ++i) model.add(2, sliding(1, 64, i));
  model.worker(1LL << 40);
  const Plan plan = checked_plan(model.request(), config(4096));
  EXPECT_EQ(plan.groups.size(), 5000u);
}

TEST(Scale, LongestLengthIsFoundQuickly) {
  ModelBuilder model;
  model.add(1, full(1, 1, 1)).worker(INT64_MAX);
  PlanningConfig c = config(INT64_MAX);
  c.auto_fit = true;
  EXPECT_EQ(checked_plan(model.request(), c).config.max_model_len, INT64_MAX / 4 - 1);
}

}  // namespace
}  // namespace kvplan::testing
