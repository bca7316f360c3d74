#include <benchmark/benchmark.h>

#include <array>
#include <cstring>
#include <vector>

#include "kvplan/cache_manager.h"

// One decode step of many requests, beside a free list and a vector of ids a request.
namespace kvplan {
namespace {

constexpr int64_t kBlock = 16;
constexpr int64_t kPrompt = 1000;
constexpr int64_t kSteps = 640;  // then the requests start anew

/// Hashes of `count` blocks that no other request has had.
void append_hashes(CacheManager& manager, RequestHandle request, int64_t count, uint64_t& seed) {
  std::array<std::byte, 32> hash{};
  for (int64_t i = 0; i < count; ++i) {
    // As evenly spread as a real hash.
    uint64_t word = ++seed * 0x9e3779b97f4a7c15u;
    for (size_t w = 0; w < 4; ++w) {
      word = (word ^ word >> 29) * 0xbf58476d1ce4e5b9u + w;
      std::memcpy(hash.data() + 8 * w, &word, 8);
    }
    manager.append_hashes(request, hash);
  }
}

struct Load {
  Load(int64_t num_requests, int64_t num_groups, bool caches)
      : manager(options(num_requests, num_groups, caches)),
        appended(static_cast<size_t>(num_requests * num_groups)) {
    for (int64_t i = 0; i < num_requests; ++i) requests.push_back(manager.add_request());
    computed.resize(requests.size());
    start();
  }

  static CacheManagerOptions options(int64_t num_requests, int64_t num_groups, bool caches) {
    CacheManagerOptions made;
    made.enable_caching = caches;
    for (int64_t g = 0; g < num_groups; ++g) {
      CacheGroup group;
      group.block_size = kBlock;
      if (g % 4 != 0) {
        group.kind = CacheKind::kSlidingWindow;
        group.window = 512;
        group.same_spec_as = 1;
      } else {
        group.same_spec_as = 0;
      }
      made.groups.push_back(group);
    }
    made.max_model_len = 4096;
    made.num_blocks = 1 + num_requests * num_groups * ((kPrompt + kSteps) / kBlock + 2);
    return made;
  }

  void start() {
    for (size_t i = 0; i < requests.size(); ++i) {
      manager.free(requests[i]);
      manager.truncate_hashes(requests[i], 0);
      append_hashes(manager, requests[i], (kPrompt + kSteps) / kBlock, hash_seed);
      // Requests cross their boundaries in different steps.
      const int64_t length = kPrompt + static_cast<int64_t>(i % kBlock);
      RequestTokens tokens;
      tokens.num_tokens = tokens.num_prompt_tokens = length;
      Allocation allocation;
      allocation.num_new_tokens = length;
      manager.allocate(requests[i], tokens, allocation);
      computed[i] = length;
    }
    num_steps = 0;
    // The first steps also let go what the windows left behind in the prompt.
    for (int64_t i = 0; i < kBlock; ++i) step();
  }

  void step() {
    DecodeStep decode;
    decode.requests = requests;
    decode.num_computed_tokens = computed;
    benchmark::DoNotOptimize(manager.schedule(decode, appended));
    for (int64_t& tokens : computed) ++tokens;
    ++num_steps;
  }

  CacheManager manager;
  std::vector<RequestHandle> requests;
  std::vector<int64_t> computed;
  std::vector<AppendedBlock> appended;
  int64_t num_steps = 0;
  uint64_t hash_seed = 0;
};

/// 16 steps, so that every request crosses a boundary once: time a request and step. The pool is
/// full: with caching every new block evicts an old one.
void BM_DecodeStep(benchmark::State& state) {
  Load load(state.range(0), state.range(1), state.range(2) != 0);
  load.start();
  for (auto _ : state) {
    for (int64_t i = 0; i < kBlock; ++i) load.step();
    if (load.num_steps + kBlock > kSteps - kBlock) {
      state.PauseTiming();
      load.start();
      state.ResumeTiming();
    }
  }
  state.SetItemsProcessed(state.iterations() * kBlock * state.range(0));  // requests x steps
}
BENCHMARK(BM_DecodeStep)
    ->ArgsProduct({{256}, {1, 7, 25, 47}, {1, 0}})
    ->ArgNames({"requests", "groups", "caching"});

/// The floor: ids from a list, onto a vector a request and group; nothing is cached, no window.
void BM_FreeListAndVectors(benchmark::State& state) {
  const auto num_requests = static_cast<size_t>(state.range(0));
  const auto num_groups = static_cast<size_t>(state.range(1));
  std::vector<BlockId> free_list;
  std::vector<std::vector<BlockId>> tables(num_requests * num_groups);
  std::vector<int64_t> computed(num_requests);
  const auto start = [&] {
    free_list.clear();
    for (BlockId id = static_cast<BlockId>(tables.size() * 110); id > 0; --id) {
      free_list.push_back(id);
    }
    for (std::vector<BlockId>& table : tables) {
      table.clear();
      for (int64_t i = 0; i < kPrompt / kBlock + 1; ++i) {
        table.push_back(free_list.back());
        free_list.pop_back();
      }
    }
    for (size_t r = 0; r < num_requests; ++r)
      computed[r] = kPrompt + static_cast<int64_t>(r % kBlock);
  };
  start();
  int64_t num_steps = 0;
  for (auto _ : state) {
    for (int64_t i = 0; i < kBlock; ++i) {
      for (size_t r = 0; r < num_requests; ++r) {
        const auto needed = static_cast<size_t>(computed[r]++ / kBlock + 1);
        for (size_t g = 0; g < num_groups; ++g) {
          std::vector<BlockId>& table = tables[r * num_groups + g];
          if (table.size() >= needed) break;
          table.push_back(free_list.back());
          free_list.pop_back();
        }
      }
    }
    benchmark::DoNotOptimize(tables.data());
    num_steps += kBlock;
    if (num_steps > kSteps - 2 * kBlock) {
      state.PauseTiming();
      start();
      num_steps = 0;
      state.ResumeTiming();
    }
  }
  state.SetItemsProcessed(state.iterations() * kBlock * state.range(0));  // requests x steps
}
BENCHMARK(BM_FreeListAndVectors)
    ->ArgsProduct({{256}, {1, 7, 25, 47}})
    ->ArgNames({"requests", "groups"});

}  // namespace
}  // namespace kvplan
