#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "kvplan/block_pool.h"

// Items are blocks, so `items_per_second` is blocks a second; its inverse is the time per block.

namespace kvplan {
namespace {

constexpr int64_t kNumBlocks = 200'000;
constexpr PoolGroupId kGroup{0};

/// Distinct 32-byte hashes that look like SHA-256.
std::vector<std::string> make_hashes(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::string> hashes(static_cast<size_t>(count), std::string(32, '\0'));
  for (std::string& hash : hashes) {
    for (size_t i = 0; i < 32; i += 8) {
      const uint64_t word = random();
      std::memcpy(hash.data() + i, &word, 8);
    }
  }
  return hashes;
}

std::vector<std::string_view> views(const std::vector<std::string>& hashes) {
  return {hashes.begin(), hashes.end()};
}

/// A pool whose blocks are all cached and free, least recently used first.
BlockPool full_cache(const std::vector<std::string_view>& hashes) {
  BlockPool pool(static_cast<int64_t>(hashes.size()) + 1);
  const std::vector<BlockId> blocks = pool.get_new_blocks(static_cast<int64_t>(hashes.size()));
  pool.cache_full_blocks(
      {.blocks = blocks, .hashes = hashes, .block_size = 16, .group_id = kGroup});
  pool.free_blocks(blocks);
  return pool;
}

/// Construction together with the first use of every block, which is when its memory is paid for.
void construct_and_use_all(benchmark::State& state) {
  for (auto _ : state) {
    BlockPool pool(state.range(0));
    benchmark::DoNotOptimize(pool.get_new_blocks(state.range(0) - 1));
  }
}
BENCHMARK(construct_and_use_all)
    ->Arg(10'000)
    ->Arg(200'000)
    ->Arg(2'000'000)
    ->Unit(benchmark::kMicrosecond);

void allocate_and_free(benchmark::State& state) {
  BlockPool pool(kNumBlocks);
  std::vector<BlockId> blocks(static_cast<size_t>(state.range(0)));
  for (auto _ : state) {
    pool.get_new_blocks(blocks);
    pool.free_blocks(blocks);
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(allocate_and_free)->Arg(1)->Arg(8)->Arg(1000);

/// As above, walking through a free list in random order: freed blocks go to its end.
void allocate_and_free_shuffled(benchmark::State& state) {
  BlockPool pool(kNumBlocks);
  std::vector<BlockId> all = pool.get_new_blocks(kNumBlocks - 1);
  std::shuffle(all.begin(), all.end(), std::mt19937(1));
  pool.free_blocks(all);
  std::vector<BlockId> blocks(static_cast<size_t>(state.range(0)));
  for (auto _ : state) {
    for (BlockId& block : blocks) {
      block = *pool.first_free();
      pool.detach_free(block);
    }
    pool.attach_free_back(blocks);
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(allocate_and_free_shuffled)->Arg(1000);

/// Blocks that evict what they cached, are cached under a new hash, and are freed.
void allocate_cache_and_free(benchmark::State& state) {
  const std::vector<std::string> hashes = make_hashes(kNumBlocks - 1, 1);
  BlockPool pool = full_cache(views(hashes));
  const std::vector<std::string> more = make_hashes(1 << 20, 2);
  const std::vector<std::string_view> fresh = views(more);
  const auto n = static_cast<size_t>(state.range(0));
  std::vector<BlockId> blocks(n);
  size_t at = 0;
  for (auto _ : state) {
    pool.get_new_blocks(blocks);
    pool.cache_full_blocks({.blocks = blocks,
                            .hashes = std::span(fresh).subspan(at, n),
                            .block_size = 16,
                            .group_id = kGroup});
    pool.free_blocks(blocks);
    at = at + 2 * n <= fresh.size() ? at + n : 0;
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(allocate_cache_and_free)->Arg(1)->Arg(8)->Arg(1000);

void touch_and_free(benchmark::State& state) {
  const std::vector<std::string> hashes = make_hashes(kNumBlocks - 1, 1);
  BlockPool pool = full_cache(views(hashes));
  std::vector<BlockId> blocks(static_cast<size_t>(state.range(0)));
  std::iota(blocks.begin(), blocks.end(), 1000);
  for (auto _ : state) {
    pool.touch(blocks);
    pool.free_blocks(blocks);
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(touch_and_free)->Arg(1)->Arg(8)->Arg(1000);

/// Lookups in random order among as many entries as the pool has blocks. The keys themselves are
/// read in order: a server has just computed them.
void find(benchmark::State& state, bool hit) {
  const std::vector<std::string> hashes = make_hashes(kNumBlocks - 1, 1);
  const BlockPool pool = full_cache(views(hashes));
  std::vector<std::string> keys = hit ? hashes : make_hashes(kNumBlocks - 1, 2);
  std::shuffle(keys.begin(), keys.end(), std::mt19937(3));
  std::string in_order;
  for (const std::string& key : keys) in_order += key;
  size_t at = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(pool.find({in_order.data() + at, 32}, kGroup));
    at += 32;
    if (at == in_order.size()) at = 0;
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK_CAPTURE(find, hit, true);
BENCHMARK_CAPTURE(find, miss, false);

/// The same 1,000 entries of a full pool again and again: a popular prefix.
/// Hashes of so many bytes, all of them in the processor's cache, so that nothing but the work on
/// the key is measured.
void find_of_size(benchmark::State& state) {
  std::vector<std::string> hashes = make_hashes(1000, 1);
  for (std::string& hash : hashes) hash.resize(static_cast<size_t>(state.range(0)));
  const BlockPool pool = full_cache(views(hashes));
  size_t at = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(pool.find(hashes[at], kGroup));
    at = (at + 1) % hashes.size();
  }
}
BENCHMARK(find_of_size)->Arg(32)->Arg(8)->Arg(16)->Arg(20)->Arg(28);

void find_hot(benchmark::State& state) {
  const std::vector<std::string> hashes = make_hashes(kNumBlocks - 1, 1);
  const BlockPool pool = full_cache(views(hashes));
  size_t at = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(pool.find(hashes[50'000 + at], kGroup));
    if (++at == 1000) at = 0;
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(find_hot);

/// The longest cached prefix of one request of 1,000 blocks.
void find_prefix(benchmark::State& state) {
  const std::vector<std::string> hashes = make_hashes(kNumBlocks - 1, 1);
  const std::vector<std::string_view> all = views(hashes);
  const BlockPool pool = full_cache(all);
  std::vector<BlockId> found(1000);
  size_t at = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(pool.find_prefix(std::span(all).subspan(at, 1000), kGroup, found));
    at = (at + 1000) % 199'000;
  }
  state.SetItemsProcessed(state.iterations() * 1000);
}
BENCHMARK(find_prefix);

}  // namespace
}  // namespace kvplan
