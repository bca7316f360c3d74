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
