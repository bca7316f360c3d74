#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvplan/block_pool.h"
#include "kvplan/sliced_block_pool.h"

// Items are blocks, so `items_per_second` is blocks a second; its inverse is the time per block.
// The sliced pool stands beside the plain one, with as many blocks.

namespace kvplan {
namespace {

constexpr int64_t kNumBlocks = 200'000;
constexpr int64_t kNumLarge = 20'000;
constexpr int64_t kSlices[] = {10, 3};
constexpr PoolGroupId kGroup{0};

/// One interface for both pools.
struct Plain {
  static constexpr int64_t kUsable = kNumBlocks - 1;
  BlockPool pool{kNumBlocks};
  void take(std::span<BlockId> out) { pool.get_new_blocks(out); }
  void free(std::span<const BlockId> ids) { pool.free_blocks(ids); }
  void touch(std::span<const BlockId> ids) { pool.touch(ids); }
};
struct Sliced {
  static constexpr int64_t kUsable = (kNumLarge - 1) * kSlices[0];
  SlicedBlockPool pool{kNumLarge, kSlices};
  void take(std::span<BlockId> out) { pool.get_new_blocks(kGroup, out); }
  void free(std::span<const BlockId> ids) { pool.free_blocks(kGroup, ids); }
  void touch(std::span<const BlockId> ids) { pool.touch(kGroup, ids); }
};

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

/// Makes all blocks of a pool cached and free, least recently used first.
template <class Pool>
void fill_cache(Pool& pool, const std::vector<std::string_view>& hashes) {
  std::vector<BlockId> blocks(hashes.size());
  pool.take(blocks);
  pool.pool.cache_full_blocks(
      {.blocks = blocks, .hashes = hashes, .block_size = 16, .group_id = kGroup});
  pool.free(blocks);
}

BlockPool full_cache(const std::vector<std::string_view>& hashes) {
  Plain plain{BlockPool(static_cast<int64_t>(hashes.size()) + 1)};
  fill_cache(plain, hashes);
  return std::move(plain.pool);
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

template <class Pool>
void allocate_and_free(benchmark::State& state) {
  Pool pool;
  std::vector<BlockId> blocks(static_cast<size_t>(state.range(0)));
  for (auto _ : state) {
    pool.take(blocks);
    pool.free(blocks);
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(allocate_and_free<Plain>)->Name("allocate_and_free")->Arg(1)->Arg(8)->Arg(1000);
BENCHMARK(allocate_and_free<Sliced>)->Arg(1)->Arg(8)->Arg(1000);

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

/// Requests of a few blocks each that end in random order, so that large blocks are used unevenly:
/// one is freed and one is made in each iteration.
template <typename Pool>
void allocate_and_free_unevenly(benchmark::State& state) {
  Pool pool;
  const auto n = static_cast<size_t>(state.range(0));
  std::vector<std::vector<BlockId>> requests(Pool::kUsable / n * 9 / 10, std::vector<BlockId>(n));
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
BENCHMARK(allocate_and_free_unevenly<Plain>)->Arg(1)->Arg(8)->Arg(1000);
BENCHMARK(allocate_and_free_unevenly<Sliced>)->Arg(1)->Arg(8)->Arg(1000);

/// Blocks that evict what they cached, are cached under a new hash, and are freed.
template <class Pool>
void allocate_cache_and_free(benchmark::State& state) {
  const std::vector<std::string> hashes = make_hashes(Pool::kUsable, 1);
  Pool pool;
  fill_cache(pool, views(hashes));
  const std::vector<std::string> more = make_hashes(1 << 20, 2);
  const std::vector<std::string_view> fresh = views(more);
  const auto n = static_cast<size_t>(state.range(0));
  std::vector<BlockId> blocks(n);
  size_t at = 0;
  for (auto _ : state) {
    pool.take(blocks);
    pool.pool.cache_full_blocks({.blocks = blocks,
                                 .hashes = std::span(fresh).subspan(at, n),
                                 .block_size = 16,
                                 .group_id = kGroup});
    pool.free(blocks);
    at = at + 2 * n <= fresh.size() ? at + n : 0;
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(allocate_cache_and_free<Plain>)
    ->Name("allocate_cache_and_free")
    ->Arg(1)
    ->Arg(8)
    ->Arg(1000);
BENCHMARK(allocate_cache_and_free<Sliced>)->Arg(1)->Arg(8)->Arg(1000);

template <class Pool>
void touch_and_free(benchmark::State& state) {
  const std::vector<std::string> hashes = make_hashes(Pool::kUsable, 1);
  Pool pool;
  fill_cache(pool, views(hashes));
  std::vector<BlockId> blocks(static_cast<size_t>(state.range(0)));
  std::iota(blocks.begin(), blocks.end(), 1000);
  for (auto _ : state) {
    pool.touch(blocks);
    pool.free(blocks);
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(touch_and_free<Plain>)->Name("touch_and_free")->Arg(1)->Arg(8)->Arg(1000);
BENCHMARK(touch_and_free<Sliced>)->Arg(1)->Arg(8)->Arg(1000);

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
