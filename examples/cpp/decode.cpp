// From a model's specs and a memory size to placed buffers, a pool, and a simulated decode of
// thousands of requests.

#include <kvplan/kvplan.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include "kvplan/report.h"

namespace {

kvplan::KVCacheSpec full_attention(int64_t kv_heads, int64_t head_size) {
  kvplan::KVCacheSpec spec = kvplan::default_spec(kvplan::SpecKind::kFullAttention);
  spec.block_size = 16;
  spec.num_kv_heads = kv_heads;
  spec.head_size = head_size;
  kvplan::finalize(spec);
  return spec;
}

kvplan::KVCacheSpec sliding_window(int64_t kv_heads, int64_t head_size, int64_t window) {
  kvplan::KVCacheSpec spec = kvplan::default_spec(kvplan::SpecKind::kSlidingWindow);
  spec.block_size = 16;
  spec.dcp_sharded = false;
  spec.num_kv_heads = kv_heads;
  spec.head_size = head_size;
  spec.sliding_window = window;
  kvplan::finalize(spec);
  return spec;
}

/// A request's blocks in each group; of a windowed group, blocks before the window are given back.
struct Sequence {
  int64_t length = 0;
  int64_t target = 0;
  std::vector<std::deque<kvplan::BlockId>> blocks;
};

class Simulation {
 public:
  explicit Simulation(const kvplan::Plan& plan) : pool_(plan.num_blocks) {
    for (const kvplan::KVCacheGroup& group : plan.groups) {
      const kvplan::KVCacheSpec& spec = (*plan.specs)[group.spec];
      groups_.push_back({spec.block_size, spec.sliding_window.value_or(0)});
    }
  }

  /// One token more for a request; false if the pool has no blocks left for it.
  bool grow(Sequence& s) {
    std::vector<size_t> in_need;
    for (size_t g = 0; g < groups_.size(); ++g) {
      if (s.length % groups_[g].block_size == 0) in_need.push_back(g);
    }
    if (pool_.num_free_blocks() < static_cast<int64_t>(in_need.size())) return false;
    for (size_t g : in_need) {
      kvplan::BlockId id = 0;
      pool_.get_new_blocks({&id, 1});
      s.blocks[g].push_back(id);
    }
    ++s.length;
    for (size_t g = 0; g < groups_.size(); ++g) drop_before_window(s, g);
    return true;
  }

  void release(Sequence& s) {
    for (std::deque<kvplan::BlockId>& held : s.blocks) {
      const std::vector<kvplan::BlockId> ids(held.rbegin(), held.rend());
      pool_.free_blocks(ids);
      held.clear();
    }
  }

  Sequence start(int64_t target) const {
    Sequence s;
    s.target = target;
    s.blocks.resize(groups_.size());
    return s;
  }
  const kvplan::BlockPool& pool() const { return pool_; }

 private:
  struct Group {
    int64_t block_size;
    int64_t window;  // 0: everything is kept
  };

  void drop_before_window(Sequence& s, size_t g) {
    if (groups_[g].window == 0) return;
    const int64_t kept = groups_[g].window / groups_[g].block_size + 2;
    while (static_cast<int64_t>(s.blocks[g].size()) > kept) {
      pool_.free_blocks({&s.blocks[g].front(), 1});
      s.blocks[g].pop_front();
    }
  }

  kvplan::BlockPool pool_;
  std::vector<Group> groups_;
};

}  // namespace

int main() try {
  // Gemma-3-like: five sliding layers to a full one, on two ranks of unequal memory.
  kvplan::PlanRequest request;
  const kvplan::SpecId full = request.add_spec(full_attention(4, 128));
  const kvplan::SpecId window = request.add_spec(sliding_window(4, 128, 1024));
  kvplan::LayerSpecs layers;
  for (int i = 0; i < 48; ++i) {
    const kvplan::LayerId id = request.add_layer_name("model.layers." + std::to_string(i));
    layers.push_back({id, i % 6 == 5 ? full : window});
  }
  const size_t list = request.add_layers(layers);
  request.add_worker(list, int64_t{6} << 30);
  request.add_worker(list, int64_t{5} << 30);

  kvplan::PlanningConfig config;
  config.max_model_len = 131072;
  config.auto_fit = true;
  const kvplan::Plan plan = kvplan::plan(request, config);
  const kvplan::Reasons why = kvplan::explain(plan);
  std::printf("length %lld, %lld blocks of %lld bytes in %zu groups; worker %zu limits\n",
              static_cast<long long>(plan.config.max_model_len),
              static_cast<long long>(plan.num_blocks), static_cast<long long>(why.bytes_per_block),
              plan.groups.size(), why.limiting_worker);

  // Where an engine would place its buffers: one allocation a worker, and views into it.
  for (const kvplan::KVCacheTensor& t : plan.stage_of(0).tensors) {
    const std::string_view first = (*plan.names)[t.layers[0]];
    std::printf("  %zu layers from %s: offset %lld, a layer every %lld bytes, a block every %lld\n",
                t.layers.size(), first.data(), static_cast<long long>(t.offset),
                static_cast<long long>(t.layer_stride), static_cast<long long>(t.block_stride));
  }

  Simulation simulation(plan);
  std::mt19937 rng(1);
  std::uniform_int_distribution<int64_t> length(64, 4096);
  std::vector<Sequence> running;
  int64_t waiting = 4000;
  int64_t finished = 0;
  int64_t tokens = 0;
  int64_t preempted = 0;
  size_t most_at_once = 0;
  while (waiting > 0 || !running.empty()) {
    // Some blocks are kept for the requests that run already, so that few must start again.
    const bool has_room = simulation.pool().num_free_blocks() > plan.num_blocks / 10;
    if (waiting > 0 && running.size() < 256 && (has_room || running.empty())) {
      running.push_back(simulation.start(length(rng)));
      --waiting;
    }
    most_at_once = std::max(most_at_once, running.size());
    for (size_t i = 0; i < running.size();) {
      if (!simulation.grow(running[i])) {  // the newest request makes room and starts again
        simulation.release(running.back());
        running.pop_back();
        ++waiting;
        ++preempted;
        continue;
      }
      ++tokens;
      if (running[i].length == running[i].target) {
        simulation.release(running[i]);
        running.erase(running.begin() + static_cast<int64_t>(i));
        ++finished;
        continue;
      }
      ++i;
    }
  }
  std::printf("%lld requests, %lld tokens, at most %zu at once, %lld preempted\n",
              static_cast<long long>(finished), static_cast<long long>(tokens), most_at_once,
              static_cast<long long>(preempted));
  const bool all_back = simulation.pool().num_free_blocks() == plan.num_blocks - 1;
  return finished == 4000 && all_back ? EXIT_SUCCESS : EXIT_FAILURE;
} catch (const kvplan::Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return EXIT_FAILURE;
}
