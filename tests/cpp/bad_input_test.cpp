#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

#include "kvplan/kvplan.h"
#include "model_builder.h"

namespace kvplan::testing {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();

TEST(BadInput, ConfigFieldsAreNamedWithValueAndLimit) {
  ModelBuilder model;
  model.add(1, full(8, 128)).worker(kGiB);
  struct Case {
    const char* field;
    std::function<void(PlanningConfig&, int64_t)> set;
    int64_t bad;
  };
  const Case cases[] = {
      {"max_model_len", [](auto& c, int64_t v) { c.max_model_len = v; }, 0},
      {"max_in_flight_tokens", [](auto& c, int64_t v) { c.max_in_flight_tokens = v; }, -1},
      {"max_concurrent_batches", [](auto& c, int64_t v) { c.max_concurrent_batches = v; }, 0},
      {"tensor_parallel_size", [](auto& c, int64_t v) { c.tensor_parallel_size = v; }, 0},
      {"pipeline_parallel_size", [](auto& c, int64_t v) { c.pipeline_parallel_size = v; }, -3},
      {"decode_context_parallel_size",
       [](auto& c, int64_t v) { c.decode_context_parallel_size = v; }, 0},
      {"num_gpu_blocks_override", [](auto& c, int64_t v) { c.num_gpu_blocks_override = v; }, -1},
      {"max_num_encoder_input_tokens",
       [](auto& c, int64_t v) { c.max_num_encoder_input_tokens = v; }, kMin},
      {"encoder_tokens_per_request", [](auto& c, int64_t v) { c.encoder_tokens_per_request = v; },
       -1},
      {"num_prefill_lookahead_tokens",
       [](auto& c, int64_t v) { c.num_prefill_lookahead_tokens = v; }, -1},
      {"block_size", [](auto& c, int64_t v) { c.block_size = v; }, 0},
      {"prefix_match_unit", [](auto& c, int64_t v) { c.prefix_match_unit = v; }, 0},
      {"max_groups", [](auto& c, int64_t v) { c.max_groups = v; }, 0},
      {"reference_model_len", [](auto& c, int64_t v) { c.reference_model_len = v; }, 0},
  };
  for (const Case& test : cases) {
    PlanningConfig c = config(128);
    test.set(c, test.bad);
    try {
      model.plan(c);
      FAIL() << test.field;
    } catch (const InvalidArgument& e) {
      const std::string text = e.what();
      EXPECT_NE(text.find(test.field), std::string::npos) << text;
      EXPECT_NE(text.find("got " + std::to_string(test.bad)), std::string::npos) << text;
      EXPECT_NE(text.find("at least"), std::string::npos) << text;
    }
  }
}

TEST(BadInput, NoWorkers) {
  ModelBuilder model;
  model.add(1, full(8, 128));
  EXPECT_THROW(model.plan(config(128)), InvalidArgument);
}

TEST(BadInput, LayerNames) {
  PlanRequest r;
  EXPECT_THROW(r.add_layer_name(""), InvalidArgument);
  const SpecId spec = r.add_spec(full(8, 128));
  const LayerId layer = r.add_layer_name("layer");
  EXPECT_EQ(r.add_layer_name("layer"), layer);
  try {
    r.add_layers({{layer, spec}, {layer, spec}});
    FAIL();
  } catch (const InvalidArgument& e) {
    EXPECT_STREQ(e.what(), "layer layer is listed twice for one worker");
  }
}

TEST(BadInput, UnknownIdsAreRefused) {
  PlanRequest r;
  const SpecId spec = r.add_spec(full(8, 128));
  const LayerId layer = r.add_layer_name("layer");
  EXPECT_THROW(r.add_layers({{LayerId(), spec}}), InvalidArgument);
  EXPECT_THROW(r.add_layers({{LayerId(1), spec}}), InvalidArgument);
  EXPECT_THROW(r.add_layers({{layer, SpecId()}}), InvalidArgument);
  EXPECT_THROW(r.add_layers({{layer, SpecId(7)}}), InvalidArgument);
  EXPECT_THROW(r.add_worker(0, kGiB), InvalidArgument);
}

TEST(BadInput, EncoderOnlyLayersHoldNoCache) {
  KVCacheSpec s = attention(SpecKind::kEncoderOnlyAttention, 8, 128);
  finalize(s);
  ModelBuilder model;
  model.add(1, full(8, 128)).add(1, s, "encoder").worker(kGiB);
  try {
    model.plan(config(128));
    FAIL();
  } catch (const InvalidArgument& e) {
    EXPECT_NE(std::string(e.what()).find("encoder.1"), std::string::npos) << e.what();
  }
}

TEST(BadInput, NamesOfEnumerationsListWhatIsKnown) {
  const auto message = [](auto parse) {
    try {
      parse("nonsense");
    } catch (const InvalidArgument& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_NE(message(parse_mamba_cache_mode).find("none, align, all"), std::string::npos);
  EXPECT_NE(message(parse_grouping).find("vllm, compact, sliced"), std::string::npos);
  EXPECT_NE(message(parse_draft_rule).find("auto, is_draft, marker"), std::string::npos);
}

TEST(BadInput, SpecsAreFinalizedWhenAdded) {
  PlanRequest r;
  KVCacheSpec spec = attention(SpecKind::kFullAttention, 8, 128);
  const SpecId id = r.add_spec(spec);
  EXPECT_EQ(r.specs()[id].head_size_v, 128);
  EXPECT_EQ(r.specs().page_size_bytes(id), 65536);
  EXPECT_EQ(r.add_spec(full(8, 128)), id);

  KVCacheSpec state = default_spec(SpecKind::kMamba);
  state.block_size = 16;
  state.shapes = {{1024}};
  EXPECT_THROW(r.add_spec(state), InvalidArgument) << "no dtypes";
  EXPECT_THROW(page_size_bytes(state), InvalidArgument);
  state.dtypes = {DType::kUInt8};
  state.mamba_cache_mode = "aling";
  EXPECT_THROW(r.add_spec(state), InvalidArgument);
  spec.block_stride_alignment = {BlockStrideAlignment::Kind::kBytes, 0};
  EXPECT_THROW(r.add_spec(spec), InvalidArgument);
  EXPECT_THROW(layer_block_stride(spec), InvalidArgument);
  EXPECT_EQ(r.specs().size(), 1u);
}

TEST(BadInput, EnumeratorsThatDoNotExist) {
  ModelBuilder model;
  model.add(1, full(8, 128)).worker(kGiB);
  const std::function<void(PlanningConfig&)> changes[] = {
      [](auto& c) { c.kv_cache_layout = static_cast<KVCacheLayout>(6); },
      [](auto& c) { c.mamba_cache_mode = static_cast<MambaCacheMode>(3); },
      [](auto& c) { c.grouping = static_cast<Grouping>(255); },
      [](auto& c) { c.draft_rule = static_cast<DraftRule>(3); },
  };
  for (const auto& change : changes) {
    PlanningConfig c = config(128);
    change(c);
    EXPECT_THROW(model.plan(c), InvalidArgument);
  }
  KVCacheSpec spec = attention(SpecKind::kFullAttention, 8, 128);
  spec.dtype = static_cast<DType>(200);
  EXPECT_THROW(finalize(spec), InvalidArgument);
  spec.dtype = DType::kBFloat16;
  spec.block_stride_alignment = {static_cast<BlockStrideAlignment::Kind>(7), 16};
  EXPECT_THROW(finalize(spec), InvalidArgument);
  spec = attention(static_cast<SpecKind>(99), 8, 128);
  EXPECT_THROW(finalize(spec), InvalidArgument);
}

TEST(BadInput, WhatNoPlannerReturnedIsNoPlan) {
  EXPECT_THROW(explain(Plan{}), InvalidArgument);
  EXPECT_THROW(capacity(Plan{}), InvalidArgument);
  EXPECT_THROW(safe_block_ids(Plan{}), InvalidArgument);
  EXPECT_THROW(worker_max_model_len(Plan{}, 0), InvalidArgument);
  EXPECT_THROW(check(Plan{}), InvalidArgument);
  ModelBuilder model;
  model.add(2, full(8, 128)).worker(kGiB);
  const Plan good = model.plan(config(128));
  EXPECT_THROW(good.stage_of(1), InvalidArgument);
  EXPECT_THROW(worker_max_model_len(good, 1), InvalidArgument);
  const std::function<void(Plan&)> changes[] = {
      [](auto& p) { p.workers[0].stage = 1; },
      [](auto& p) { p.stages.clear(); },
      [](auto& p) { p.stages[0].groups.clear(); },
      [](auto& p) { p.stages[0].bytes_per_block = 0; },
      [](auto& p) { p.groups[0].spec = SpecId(77); },
      [](auto& p) { p.groups[0].layers[0] = LayerId(); },
      [](auto& p) { p.stages[0].tensors[0].layers[0] = LayerId(2); },
      [](auto& p) { p.stages[0].groups[0].slices = 0; },
      [](auto& p) { p.config.kv_cache_layout = static_cast<KVCacheLayout>(9); },
  };
  for (size_t i = 0; i < std::size(changes); ++i) {
    Plan bad = good;
    changes[i](bad);
    EXPECT_THROW(explain(bad), InvalidArgument) << i;
    EXPECT_THROW(check(bad), InvalidArgument) << i;
    EXPECT_THROW(safe_block_ids(bad), InvalidArgument) << i;
  }
  PlanRequest request = model.request();
  EXPECT_THROW(request.set_bytes_per_block(1, 4096), InvalidArgument);
}

// vLLM plans it, and so what helps can be computed with memory without end; no pool is made of it.
TEST(BadInput, MoreBlocksThanBlockIds) {
  ModelBuilder model;
  model.add(1, full(1, 1, 1)).worker(kMax);
  const Plan plan = model.plan(config(128));
  try {
    make_pool(plan);
    FAIL();
  } catch (const InvalidArgument& e) {
    EXPECT_NE(std::string(e.what()).find(std::to_string(kMax / 4)), std::string::npos) << e.what();
  }
}

// Numbers of any size end in a plan or in one of kvplan's errors, never in undefined behaviour.
TEST(BadInput, ExtremeNumbers) {
  const int64_t extremes[] = {kMin, -1, 0, 1, 16, 1 << 20, 1LL << 40, kMax - 1, kMax};
  int planned = 0;
  int refused = 0;
  const auto attempt = [&](const std::function<void(PlanningConfig&, KVCacheSpec&)>& change,
                           int64_t memory) {
    PlanningConfig c = config(4096);
    KVCacheSpec window = sliding(8, 128, 1024);
    try {
      change(c, window);
      finalize(window);
      ModelBuilder model;
      model.add(2, full(8, 128)).add(2, window).worker(memory);
      const Plan p = model.plan(c);
      explain(p);
      capacity(p);
      safe_block_ids(p);
      worker_max_model_len(p, 0);
      ++planned;
    } catch (const Error&) {
      ++refused;
    }
  };
  for (int64_t v : extremes) {
    for (int64_t memory : {kGiB, kMax, v}) {
      attempt([&](auto& c, auto&) { c.max_model_len = v; }, memory);
      attempt(
          [&](auto& c, auto&) {
            c.max_model_len = v;
            c.auto_fit = true;
          },
          memory);
      attempt([&](auto& c, auto&) { c.max_in_flight_tokens = v; }, memory);
      attempt([&](auto& c, auto&) { c.num_gpu_blocks_override = v; }, memory);
      attempt([&](auto& c, auto&) { c.num_prefill_lookahead_tokens = v; }, memory);
      attempt([&](auto& c, auto&) { c.tensor_parallel_size = v; }, memory);
      attempt([&](auto&, auto& s) { s.sliding_window = v; }, memory);
      attempt([&](auto&, auto& s) { s.block_size = v; }, memory);
      attempt([&](auto&, auto& s) { s.num_kv_heads = v; }, memory);
      attempt([&](auto&, auto& s) { s.head_size = v; }, memory);
      attempt([&](auto&, auto& s) { s.page_size_padded = v; }, memory);
      attempt([&](auto&, auto& s) { s.extra_retained_tokens = v; }, memory);
      attempt(
          [&](auto&, auto& s) {
            s.block_stride_alignment = {BlockStrideAlignment::Kind::kBytes, v};
          },
          memory);
      attempt(
          [&](auto&, auto& s) {
            s.block_stride_alignment = {BlockStrideAlignment::Kind::kMultipleOf, v};
          },
          memory);
    }
  }
  EXPECT_GT(planned, 50);
  EXPECT_GT(refused, 50);
}

TEST(BadInput, FailureLeavesTheRequestAsItWas) {
  ModelBuilder model;
  model.add(2, full(8, 128)).add(2, sliding(4, 128, 64)).worker(kMiB);
  const size_t specs = model.request().specs().size();
  for (int i = 0; i < 2; ++i) EXPECT_THROW(model.plan(config(1 << 20)), NotEnoughMemory);
  EXPECT_EQ(model.request().specs().size(), specs);
  EXPECT_EQ(model.request().workers()[0].available_bytes, kMiB);
}

}  // namespace
}  // namespace kvplan::testing
