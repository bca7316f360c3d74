#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "kvplan/block_pool.h"
#include "kvplan/sliced_block_pool.h"

// The sliced pool beside the plain one, with as many blocks. Items are blocks, so the inverse of
// `items_per_second` is the time per block.

namespace kvplan {
namespace {

constexpr int64_t kNumLarge = 20'000;
constexpr int64_t kSlices[] = {10, 3};
constexpr PoolGroupId kGroup{0};
constexpr int64_t kNumBlocks = (kNumLarge - 1) * kSlices[0];

/// One interface for both pools.
struct Plain {
  BlockPool pool{kNumBlocks + 1};
  void take(std::span<BlockId> out) { pool.get_new_blocks(out); }
  void free(std::span<const BlockId> ids) { pool.free_blocks(ids); }
  void touch(std::span<const BlockId> ids) { pool.touch(ids); }
  void cache(const FullBlocks& full) { pool.cache_full_blocks(full); }
};
struct Sliced {
  SlicedBlockPool pool{kNumLarge, kSlices};
  void take(std::span<BlockId> out) { pool.get_new_blocks(kGroup, out); }
  void free(std::span<const BlockId> ids) { pool.free_blocks(kGroup, ids); }
  void touch(std::span<const BlockId> ids) { pool.touch(kGroup, ids); }
  void cache(const FullBlocks& full) { pool.cache_full_blocks(full); }
};

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

template <typename Pool>
void allocate_and_free(benchmark::State& state) {
  Pool pool;
  std::vector<BlockId> blocks(static_cast<size_t>(state.range(0)));
  for (auto _ : state) {
    pool.take(blocks);
    pool.free(blocks);
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(allocate_and_free<Plain>)->Arg(1)->Arg(8)->Arg(1000);
BENCHMARK(allocate_and_free<Sliced>)->Arg(1)->Arg(8)->Arg(1000);

/// Requests of a few blocks each that end in random order, so that large blocks are used unevenly:
/// one is freed and one is made in each iteration.
template <typename Pool>
void allocate_and_free_shuffled(benchmark::State& state) {
  Pool pool;
  const auto n = static_cast<size_t>(state.range(0));
  std::vector<std::vector<BlockId>> requests(kNumBlocks / n * 9 / 10, std::vector<BlockId>(n));
  for (std::vector<BlockId>& blocks : requests) pool.take(blocks);
  std::mt19937 random(1);
  std::vector<size_t> order(1 << 16);
  for (size_t& i : order) i = random() % requests.size();
  size_t at = 0;
  for (auto _ : state) {
    std::vector<BlockId>& blocks = requests[order[at++ % order.size()]];
    pool.free(blocks);
    pool.take(blocks);
    std::swap(blocks, requests[order[at % order.size()]]);
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(allocate_and_free_shuffled<Plain>)->Arg(1)->Arg(8)->Arg(1000);
BENCHMARK(allocate_and_free_shuffled<Sliced>)->Arg(1)->Arg(8)->Arg(1000);

/// A pool whose blocks are all cached and free.
template <typename Pool>
void fill_cache(Pool& pool, std::span<const std::string_view> hashes) {
  std::vector<BlockId> blocks(hashes.size());
  pool.take(blocks);
  pool.cache({.blocks = blocks, .hashes = hashes, .block_size = 16, .group_id = kGroup});
  pool.free(blocks);
}

/// Blocks that evict what was cached, are cached under a new hash, and are freed.
template <typename Pool>
void allocate_cache_and_free(benchmark::State& state) {
  const std::vector<std::string> hashes = make_hashes(kNumBlocks, 1);
  const std::vector<std::string_view> views(hashes.begin(), hashes.end());
  Pool pool;
  fill_cache(pool, views);
  const std::vector<std::string> more = make_hashes(1 << 20, 2);
  const std::vector<std::string_view> fresh(more.begin(), more.end());
  const auto n = static_cast<size_t>(state.range(0));
  std::vector<BlockId> blocks(n);
  size_t at = 0;
  for (auto _ : state) {
    pool.take(blocks);
    pool.cache({.blocks = blocks,
                .hashes = std::span(fresh).subspan(at, n),
                .block_size = 16,
                .group_id = kGroup});
    pool.free(blocks);
    at = at + 2 * n <= fresh.size() ? at + n : 0;
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(allocate_cache_and_free<Plain>)->Arg(1)->Arg(8)->Arg(1000);
BENCHMARK(allocate_cache_and_free<Sliced>)->Arg(1)->Arg(8)->Arg(1000);

template <typename Pool>
void touch_and_free(benchmark::State& state) {
  const std::vector<std::string> hashes = make_hashes(kNumBlocks, 1);
  const std::vector<std::string_view> views(hashes.begin(), hashes.end());
  Pool pool;
  fill_cache(pool, views);
  std::vector<BlockId> blocks(static_cast<size_t>(state.range(0)));
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<BlockId>(1000 + i);
  for (auto _ : state) {
    pool.touch(blocks);
    pool.free(blocks);
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(touch_and_free<Plain>)->Arg(1)->Arg(8)->Arg(1000);
BENCHMARK(touch_and_free<Sliced>)->Arg(1)->Arg(8)->Arg(1000);

/// Whether a request with some blocks in each group fits.
void can_allocate(benchmark::State& state) {
  const std::vector<int64_t> slices(static_cast<size_t>(state.range(0)), 10);
  SlicedBlockPool pool(kNumLarge, slices);
  std::vector<SliceDemand> demands;
  for (size_t g = 0; g < slices.size(); ++g) {
    demands.push_back({.group_id = PoolGroupId{static_cast<uint16_t>(g)}, .num_new = 25});
  }
  for (auto _ : state) benchmark::DoNotOptimize(pool.can_allocate(demands));
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(can_allocate)->Arg(2)->Arg(8);

/// Per move, and per call that empties one large block of `state.range(0)` slices: of a pool of
/// which 30 % are in use, scattered.
void make_room(benchmark::State& state) {
  const int64_t slices[] = {state.range(0), 1};
  const std::vector<SliceDemand> demand = {{.group_id = PoolGroupId{1}, .num_new = 1}};
  std::optional<SlicedBlockPool> pool;
  int64_t num_moves = 0;
  for (auto _ : state) {
    std::optional<std::vector<SliceMove>> moves;
    if (pool) moves = pool->make_room(demand);
    if (!moves) {
      state.PauseTiming();
      pool.emplace(kNumLarge, slices);
      std::vector<BlockId> ids = pool->get_new_blocks(kGroup, (kNumLarge - 1) * slices[0]);
      std::shuffle(ids.begin(), ids.end(), std::mt19937(1));
      pool->free_blocks(kGroup, std::span(ids).first(ids.size() * 7 / 10));
      for (int64_t n = pool->num_free_large_blocks(); n > 0; --n) {
        pool->get_new_blocks(PoolGroupId{1}, 1);
      }
      state.ResumeTiming();
      moves = pool->make_room(demand);
    }
    num_moves += static_cast<int64_t>(moves->size());
    pool->get_new_blocks(PoolGroupId{1}, 1);  // next to nothing
  }
  state.SetItemsProcessed(num_moves);
}
BENCHMARK(make_room)->Arg(8)->Arg(64);

}  // namespace
}  // namespace kvplan
