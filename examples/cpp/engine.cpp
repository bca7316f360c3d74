// A complete small engine: plans a hybrid model, places its caches, and serves requests with a
// prefix cache, windows, recurrent states, speculative tokens, chunked prefill and preemption. Its
// "model" writes what it caches where kvplan says, and reads it back: a wrong block shows.

#include <kvplan/kvplan.h>

#include <cstdio>
#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include "toy_model.h"

namespace {

constexpr int64_t kBlock = 32, kDrafts = 2, kChunk = 128;
constexpr size_t kMaxRunning = 16;

kvplan::Plan make_plan(int64_t bytes) {
  kvplan::PlanRequest request;
  std::vector<kvplan::SpecId> kinds;
  for (const kvplan::KVCacheSpec& spec : toy::specs(kBlock, kDrafts)) {
    kinds.push_back(request.add_spec(spec));
  }
  kvplan::LayerSpecs layers;
  for (size_t i = 0; i < 12; ++i) {
    layers.push_back({request.add_layer_name("layers." + std::to_string(i)), kinds[i % 3]});
  }
  request.add_worker(request.add_layers(layers), bytes);
  kvplan::PlanningConfig config;
  config.max_model_len = 1024;
  config.max_in_flight_tokens = kChunk;
  config.mamba_cache_mode = kvplan::MambaCacheMode::kAlign;
  return kvplan::plan(request, config);
}

struct Sequence {
  std::vector<int32_t> tokens;
  int64_t prompt = 0, target = 0, computed = 0, boundary = 0;
  kvplan::RequestHandle handle{};
  kvplan::TokenHash parent{};
  kvplan::BlockId state_block = kvplan::kNullBlock;  // with the state after the computed tokens
  uint32_t drafter_state = 0;
  int64_t size() const { return std::ssize(tokens); }
};

struct Engine {
  explicit Engine(kvplan::Plan planned)
      : plan(std::move(planned)),
        manager(kvplan::cache_manager_options(plan)),
        hasher(kvplan::TokenHashAlgorithm::kSha256Cbor, manager.hash_block_size()),
        memory(static_cast<size_t>(plan.stages[0].tensors[0].size)),
        layers(toy::layers_of(plan, memory.data())) {}

  void add(std::vector<int32_t> prompt, int64_t num_outputs) {
    Sequence s{.tokens = std::move(prompt), .handle = manager.add_request()};
    s.prompt = s.size();
    s.target = s.prompt + num_outputs;
    s.parent = hasher.none_hash();
    append_hashes(s);
    waiting.push_back(std::move(s));
  }

  void append_hashes(Sequence& s) {
    const int64_t first = manager.num_hashes(s.handle);
    std::vector<kvplan::TokenHash> hashes(static_cast<size_t>(s.size() / kBlock - first));
    if (hashes.empty()) return;
    hasher.hash_blocks(s.parent, std::span(s.tokens).subspan(first * kBlock), hashes);
    manager.append_hashes(s.handle, std::as_bytes(std::span(hashes)));
    s.parent = hashes.back();
  }

  /// A chunk ends where a state is kept; the last one begins after the last whole block.
  int64_t end_of_chunk(const Sequence& s) const {
    const int64_t last_state = (s.size() - 1) / kBlock * kBlock;
    return std::min(s.computed < last_state ? last_state : s.size(), s.computed + kChunk);
  }
  int64_t num_drafts(const Sequence& s) const {
    return s.size() - s.computed == 1 ? std::min(kDrafts, s.target - s.size()) : 0;
  }

  /// False if the blocks of a request's next tokens do not fit.
  bool allocate(Sequence& s, const kvplan::PrefixHit* hit = nullptr) {
    const kvplan::RequestTokens tokens{s.size(), s.prompt, hit ? 0 : s.computed, 0, s.boundary};
    kvplan::Allocation wanted{.num_new_tokens = end_of_chunk(s) - s.computed + num_drafts(s)};
    if (hit) wanted.num_new_computed_tokens = hit->num_tokens;
    wanted.full_sequence_must_fit = hit != nullptr;
    return manager.allocate(s.handle, tokens, wanted, hit);
  }

  void step() {
    bool is_full = false;
    for (size_t i = 0; i < running.size(); ++i) {
      for (; i < running.size() && !allocate(running[i]); ++num_preempted) {
        is_full = true;
        manager.free(running.back().handle);  // the newest request makes room, at last this one
        waiting.push_front(std::move(running.back()));
        running.pop_back();
      }
    }
    for (; !is_full && !waiting.empty() && running.size() < kMaxRunning; waiting.pop_front()) {
      Sequence& s = waiting.front();
      manager.find_prefix(s.handle, s.size() - 1, hit);
      s.computed = hit.num_tokens;
      s.boundary = hit.shared_prefix_boundary;
      if (!allocate(s, &hit)) break;
      for (const toy::Layer& layer : layers) {
        if (layer.is_state() && s.computed > 0) s.state_block = hit.blocks[layer.group].back();
      }
      num_found += static_cast<int>(s.computed);
      running.push_back(std::move(s));
    }
    for (const kvplan::BlockId block : manager.take_new_block_ids()) {
      for (const toy::Layer& layer : layers) layer.zero(block);  // groups lie over each other
    }
    toy::require(!manager.has_copies(), "else copy, and free both ends");
    for (Sequence& s : running) run(s);
    manager.new_step_starts();
    const auto ended = std::erase_if(running, [&](const Sequence& s) {
      if (s.size() < s.target) return false;
      toy::check(s.tokens, s.prompt);
      manager.remove_request(s.handle);
      return true;
    });
    num_finished += static_cast<int>(ended);
  }

  /// Computes the tokens of a request, and takes over the drafts that are right.
  void run(Sequence& s) {
    const int64_t start = s.computed, known = end_of_chunk(s), drafts = num_drafts(s);
    std::vector<int32_t> tokens(s.tokens.begin(), s.tokens.begin() + known);
    toy::draft(s.drafter_state, drafts, tokens);
    const std::vector<uint32_t> states =
        toy::forward(layers, {tokens, start, drafts, s.state_block,
                              [&](size_t group) { return manager.block_table(s.handle, group); }});
    const auto state_after = [&](int64_t n) { return states[static_cast<size_t>(n - start - 1)]; };
    s.computed = known;
    if (known == s.size()) {
      while (s.computed < std::ssize(tokens) &&
             tokens[s.computed] == toy::sample(state_after(s.computed))) {
        s.tokens.push_back(tokens[s.computed++]);
        ++num_accepted;
      }
      if (s.size() < s.target) s.tokens.push_back(toy::sample(state_after(s.computed)));
      append_hashes(s);
    }
    s.drafter_state = state_after(s.computed);
    for (const toy::Layer& layer : layers) {
      if (!layer.is_state()) continue;
      const auto table = manager.block_table(s.handle, layer.group);
      const auto block_after = [&](int64_t n) {
        return table[(known + drafts - 1) / kBlock + n - known];
      };
      s.state_block = block_after(s.computed);
      // The state of a whole block belongs where the next request finds it.
      const int64_t whole = s.computed / kBlock * kBlock;
      if (drafts == 0 || whole < known) continue;
      std::memcpy(layer.at(table[whole / kBlock - 1]), layer.at(block_after(whole)), 4);
    }
  }

  void drain() {
    while (!waiting.empty() || !running.empty()) step();
    toy::require(manager.pool().num_free_blocks() == manager.pool().num_blocks() - 1, "a leak");
  }

  const kvplan::Plan plan;
  kvplan::CacheManager manager;
  kvplan::TokenHasher hasher;
  std::vector<std::byte> memory;
  const std::vector<toy::Layer> layers;
  std::deque<Sequence> waiting;
  std::vector<Sequence> running;
  kvplan::PrefixHit hit;
  int num_finished = 0, num_preempted = 0, num_found = 0, num_accepted = 0;
};

}  // namespace

int main() try {
  Engine engine(make_plan(int64_t{8} << 20));
  std::mt19937 random(1);
  std::vector<int32_t> document(600);
  for (int32_t& token : document) token = static_cast<int32_t>(random() % 1000);
  for (int i = 0; i < 200; ++i) {
    std::vector<int32_t> prompt(document.begin(), document.begin() + random() % 600);
    for (int n = 0; n < 20; ++n) prompt.push_back(static_cast<int32_t>(random() % 1000));
    engine.add(std::move(prompt), 1 + static_cast<int64_t>(random() % 200));
  }
  engine.drain();
  std::printf("%d requests, %d preempted, %d tokens found in the cache, %d drafts accepted\n",
              engine.num_finished, engine.num_preempted, engine.num_found, engine.num_accepted);
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
