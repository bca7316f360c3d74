// A model without a GPU: attention layers keep each token, recurrent layers a number. Where a layer
// reads something else than was written for its request, it says so.
#pragma once

#include <kvplan/kvplan.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <vector>

namespace toy {

inline void require(bool condition, const char* otherwise) {
  if (!condition) throw std::runtime_error(otherwise);
}

/// The state after one token more, and the token that follows.
inline uint32_t advance(uint32_t state, int32_t token) {
  return state * 31 + static_cast<uint32_t>(token);
}
inline int32_t sample(uint32_t state) { return static_cast<int32_t>(state >> 8) % 1000; }

/// The caches of its three kinds of layers: full attention, a window of two blocks, a state.
inline std::vector<kvplan::KVCacheSpec> specs(int64_t block_size, int64_t num_drafts) {
  using enum kvplan::SpecKind;
  std::vector<kvplan::KVCacheSpec> all;
  for (const kvplan::SpecKind kind : {kFullAttention, kSlidingWindow, kMamba}) {
    kvplan::KVCacheSpec& spec = all.emplace_back(kvplan::default_spec(kind));
    spec.block_size = block_size;
    if (kind == kMamba) {
      spec.shapes = {{4, 1024}};
      spec.dtypes = {kvplan::DType::kFloat32};
      spec.mamba_cache_mode = "align";
      spec.num_speculative_blocks = num_drafts;
    } else {
      spec.num_kv_heads = 2;
      spec.head_size = 64;
      if (kind == kSlidingWindow) spec.sliding_window = 2 * block_size;
    }
  }
  return all;
}

/// Where a layer's pages lie.
struct Layer {
  size_t group;
  const kvplan::KVCacheSpec& spec;
  std::byte* pages;
  int64_t block_stride, token_stride;

  bool is_state() const { return spec.kind == kvplan::SpecKind::kMamba; }
  std::byte* at(kvplan::BlockId block, int64_t token = 0) const {
    require(block != kvplan::kNullBlock, "the null block is used");
    return pages + block * block_stride + token % spec.block_size * token_stride;
  }
  void zero(kvplan::BlockId block) const {
    std::memset(at(block), 0, static_cast<size_t>(kvplan::page_size_bytes(spec)));
  }
};

/// All layers of a plan's first worker, whose buffer is `memory`.
inline std::vector<Layer> layers_of(const kvplan::Plan& plan, std::byte* memory) {
  std::vector<Layer> layers;
  for (const kvplan::TensorView& t : kvplan::views(plan, 0)) {
    for (int64_t i = 0; i < t.view.shape[0]; ++i) {
      layers.push_back({t.group, (*plan.specs)[t.spec],
                        memory + t.view.offset + i * t.view.strides[0], t.view.strides[1],
                        t.view.strides[3]});
    }
  }
  return layers;
}

/// What a request gives the model: its tokens, of which the first `start` are computed, the last
/// `num_drafts` are guesses, and the state after `start` is in `state_block`.
struct Input {
  const std::vector<int32_t>& tokens;
  int64_t start, num_drafts;
  kvplan::BlockId state_block;
  std::function<kvplan::BlockTableView(size_t group)> table;
};

/// The states after each token from `start` on.
inline std::vector<uint32_t> forward(const std::vector<Layer>& layers, const Input& in) {
  const std::vector<int32_t>& tokens = in.tokens;
  const int64_t end = std::ssize(tokens);
  std::vector<uint32_t> states;
  for (const Layer& layer : layers) {
    const kvplan::BlockTableView table = in.table(layer.group);
    const int64_t size = layer.spec.block_size;
    const auto slot = [&](int64_t p) { return layer.at(table[p / size], p); };
    if (!layer.is_state()) {
      for (int64_t p = in.start; p < end; ++p) std::memcpy(slot(p), &tokens[p], 4);
      const int64_t window = layer.spec.sliding_window.value_or(end);
      for (int64_t p = std::max<int64_t>(0, in.start - window + 1); p < end; ++p) {
        require(std::memcmp(slot(p), &tokens[p], 4) == 0, "a key is wrong");
      }
      continue;
    }
    uint32_t state = 0;
    if (in.start > 0) std::memcpy(&state, layer.at(in.state_block), 4);
    states.clear();
    for (int64_t p = in.start; p < end; ++p) states.push_back(state = advance(state, tokens[p]));
    // The state after the known tokens, and in the blocks behind those after each guess.
    for (int64_t i = 0; i <= in.num_drafts; ++i) {
      std::memcpy(layer.at(table[(end - 1) / size + i]),
                  &states[end - in.num_drafts - 1 - in.start + i], 4);
    }
  }
  return states;
}

/// Appends guesses, of which one in five is wrong. `state`: after all tokens but the last.
inline void draft(uint32_t state, int64_t count, std::vector<int32_t>& tokens) {
  for (; count > 0; --count) {
    state = advance(state, tokens.back());
    tokens.push_back(tokens.size() % 5 == 0 ? -1 : sample(state));
  }
}

/// Throws unless each token behind the prompt follows from those before.
inline void check(const std::vector<int32_t>& tokens, int64_t num_prompt_tokens) {
  uint32_t state = 0;
  for (int64_t p = 0; p < std::ssize(tokens); state = advance(state, tokens[p++])) {
    require(p < num_prompt_tokens || tokens[p] == sample(state), "a token is wrong");
  }
}

}  // namespace toy
