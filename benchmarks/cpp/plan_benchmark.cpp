#include <benchmark/benchmark.h>

#include <cmath>
#include <string>
#include <vector>

#include "kvplan/kvplan.h"

namespace {

using namespace kvplan;

KVCacheSpec attention(SpecKind kind, int64_t heads, int64_t head_size, int64_t block_size = 16) {
  KVCacheSpec s = default_spec(kind);
  s.block_size = block_size;
  s.num_kv_heads = heads;
  s.head_size = head_size;
  return s;
}

KVCacheSpec full(int64_t heads, int64_t head_size) {
  KVCacheSpec s = attention(SpecKind::kFullAttention, heads, head_size);
  finalize(s);
  return s;
}

KVCacheSpec sliding(int64_t heads, int64_t head_size, int64_t window) {
  KVCacheSpec s = attention(SpecKind::kSlidingWindow, heads, head_size);
  s.dcp_sharded = false;
  s.sliding_window = window;
  finalize(s);
  return s;
}

/// DeepSeek-V4.1-Flash's three formats of a cache.
KVCacheSpec deepseek(SpecKind kind, int64_t block_size, int64_t bytes, int64_t ratio,
                     int64_t window) {
  KVCacheSpec s = attention(kind, 1, 512, block_size);
  s.dtype = DType::kUInt8;
  s.state_content_bytes = bytes;
  s.alignment = 576;
  s.tokens_per_state = {ratio, 1};
  if (kind == SpecKind::kSlidingWindowMLA) {
    s.dcp_sharded = false;
    s.sliding_window = window;
  }
  finalize(s);
  return s;
}

class Model {
 public:
  explicit Model(int64_t max_model_len) { config.max_model_len = max_model_len; }

  void add(const KVCacheSpec& spec) {
    const LayerId layer = request.add_layer_name("layers." + std::to_string(layers.size()));
    layers.push_back({layer, request.add_spec(spec)});
  }
  /// `workers` ranks over `stages` pipeline stages.
  void add_workers(int64_t workers, int64_t stages, int64_t bytes) {
    const auto n = static_cast<int64_t>(layers.size());
    for (int64_t s = 0; s < stages; ++s) {
      const size_t list = request.add_layers(
          LayerSpecs(layers.begin() + n * s / stages, layers.begin() + n * (s + 1) / stages));
      for (int64_t w = 0; w < workers / stages; ++w) request.add_worker(list, bytes);
    }
  }

  PlanRequest request;
  LayerSpecs layers;
  PlanningConfig config;
};

Model equal_layers(int64_t num_layers, int64_t workers) {
  Model m(131072);
  for (int64_t i = 0; i < num_layers; ++i) m.add(full(8, 128));
  m.add_workers(workers, 1, 1LL << 46);
  return m;
}

Model gemma_3(int64_t workers) {
  Model m(131072);
  for (int i = 0; i < 62; ++i) m.add(i % 6 == 5 ? full(16, 128) : sliding(16, 128, 1024));
  m.add_workers(workers, 1, 64LL << 30);
  return m;
}

/// 237 caches of 7 kinds in a block-outermost layout, with auto-fit.
Model caches_of_7_kinds(int64_t workers) {
  constexpr SpecKind kMla = SpecKind::kMLAAttention;
  Model m(1 << 20);
  for (int i = 0; i < 79; ++i) {
    m.add(deepseek(SpecKind::kSlidingWindowMLA, 64, 584, 1, i < 76 ? 128 : 192));
    if (i % 2 == 0) {
      m.add(deepseek(kMla, 256, 584, 4, 0));
      m.add(deepseek(kMla, 256, 132, 4, 0));
    } else {
      m.add(deepseek(kMla, 256, 584, 128, 0));
      m.add(deepseek(SpecKind::kSlidingWindowMLA, 4, 2048, 1, 8));
    }
  }
  m.config.kv_cache_layout = KVCacheLayout::kBLHNC;
  m.config.auto_fit = true;
  m.add_workers(workers, workers >= 8 ? 8 : 1, 8LL << 30);
  return m;
}

void run(benchmark::State& state, const Model& m) {
  for (auto _ : state) benchmark::DoNotOptimize(plan(m.request, m.config));
}

void BM_EqualLayers(benchmark::State& state) { run(state, equal_layers(80, state.range(0))); }
void BM_Gemma3(benchmark::State& state) { run(state, gemma_3(state.range(0))); }
void BM_CachesOf7Kinds(benchmark::State& state) { run(state, caches_of_7_kinds(state.range(0))); }

/// Far beyond any model, as `scale` of `kvplan bench`: half full attention, half windows, over 8
/// pipeline stages whose ranks share a list of layers.
void BM_Scale(benchmark::State& state) {
  Model m(131072);
  for (int64_t i = 0; i < state.range(0); ++i) {
    m.add(i % 2 == 0 ? full(8, 128) : sliding(8, 128, 1024));
  }
  m.add_workers(state.range(1), 8, 1LL << 50);
  run(state, m);
}

void BM_Check(benchmark::State& state) {
  const Model m = caches_of_7_kinds(8);
  const Plan made = plan(m.request, m.config);
  for (auto _ : state) benchmark::DoNotOptimize(check(made));
}

/// From specs and names to the plan: what a caller pays who builds the request as well.
void BM_RequestAndPlan(benchmark::State& state) {
  for (auto _ : state) {
    const Model m = equal_layers(80, 1);
    benchmark::DoNotOptimize(plan(m.request, m.config));
  }
}

void BM_ApproximateGcd(benchmark::State& state) {
  const int64_t max = state.range(0);
  const std::vector<int64_t> values = {max, max - max / 7, max - max / 3};
  for (auto _ : state) benchmark::DoNotOptimize(approximate_gcd(values));
  state.SetComplexityN(max);
}

BENCHMARK(BM_EqualLayers)->Arg(1)->Arg(8)->Arg(64)->Arg(512)->Arg(1024);
BENCHMARK(BM_Gemma3)->Arg(1)->Arg(8)->Arg(64)->Arg(512)->Arg(1024);
BENCHMARK(BM_CachesOf7Kinds)->Arg(1)->Arg(8)->Arg(64)->Arg(512)->Arg(1024);
BENCHMARK(BM_Scale)
    ->ArgsProduct({{100, 1000, 10000, 100000}, {8}})
    ->ArgsProduct({{8000}, {8, 64, 512, 1024}})
    ->Args({100000, 1024});
BENCHMARK(BM_Check);
BENCHMARK(BM_RequestAndPlan);
BENCHMARK(BM_ApproximateGcd)
    ->RangeMultiplier(10)
    ->Range(100, 1000000000)
    ->Complexity([](benchmark::IterationCount n) { return std::sqrt(static_cast<double>(n)); });

}  // namespace
