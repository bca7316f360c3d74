#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "kvplan/kvplan.h"

/// Short spellings of specs, and a request that is built layer by layer.
namespace kvplan::testing {

inline constexpr int64_t kKiB = 1LL << 10;
inline constexpr int64_t kMiB = 1LL << 20;
inline constexpr int64_t kGiB = 1LL << 30;

inline KVCacheSpec attention(SpecKind kind, int64_t heads, int64_t head_size,
                             int64_t block_size = 16) {
  KVCacheSpec s = default_spec(kind);
  s.block_size = block_size;
  s.num_kv_heads = heads;
  s.head_size = head_size;
  return s;
}

inline KVCacheSpec full(int64_t heads, int64_t head_size, int64_t block_size = 16) {
  KVCacheSpec s = attention(SpecKind::kFullAttention, heads, head_size, block_size);
  finalize(s);
  return s;
}

/// Sliding-window layers are replicated across DCP ranks.
inline KVCacheSpec sliding(int64_t heads, int64_t head_size, int64_t window,
                           int64_t block_size = 16) {
  KVCacheSpec s = attention(SpecKind::kSlidingWindow, heads, head_size, block_size);
  s.dcp_sharded = false;
  s.sliding_window = window;
  finalize(s);
  return s;
}

inline KVCacheSpec chunked(int64_t heads, int64_t head_size, int64_t chunk,
                           int64_t block_size = 16) {
  KVCacheSpec s = attention(SpecKind::kChunkedLocalAttention, heads, head_size, block_size);
  s.attention_chunk_size = chunk;
  finalize(s);
  return s;
}

inline KVCacheSpec mla(int64_t head_size, int64_t block_size = 16) {
  KVCacheSpec s = attention(SpecKind::kMLAAttention, 1, head_size, block_size);
  finalize(s);
  return s;
}

/// A recurrent state of `bytes` bytes.
inline KVCacheSpec mamba(int64_t bytes, int64_t block_size = 16) {
  KVCacheSpec s = default_spec(SpecKind::kMamba);
  s.block_size = block_size;
  s.shapes = {{bytes}};
  s.dtypes = {DType::kUInt8};
  finalize(s);
  return s;
}

inline KVCacheSpec hidden_state(int64_t hidden_size, int64_t block_size = 16) {
  KVCacheSpec s = attention(SpecKind::kHiddenStateCache, 1, hidden_size, block_size);
  finalize(s);
  return s;
}

/// A plugin's own cache: a page, and a demand in numbers.
inline KVCacheSpec custom(std::string_view name, int64_t page_size, int64_t block_size = 16) {
  KVCacheSpec s = default_spec(SpecKind::kCustom);
  s.block_size = block_size;
  s.page_size = page_size;
  s.custom_class = name;
  finalize(s);
  return s;
}

inline PlanningConfig config(int64_t max_model_len) {
  PlanningConfig c;
  c.max_model_len = max_model_len;
  return c;
}

/// Layers of one spec after another, named `prefix.i`.
class ModelBuilder {
 public:
  ModelBuilder& add(int64_t count, const KVCacheSpec& spec, const std::string& prefix = "layer") {
    const SpecId id = request_.add_spec(spec);
    for (int64_t i = 0; i < count; ++i) {
      const std::string name = prefix + "." + std::to_string(layers_.size());
      layers_.push_back({request_.add_layer_name(name), id});
    }
    return *this;
  }
  /// A worker that owns all layers.
  ModelBuilder& worker(int64_t available_bytes) {
    return stage(0, layers_.size(), available_bytes);
  }
  /// A worker that owns layers [begin, end).
  ModelBuilder& stage(size_t begin, size_t end, int64_t available_bytes) {
    LayerSpecs layers(layers_.begin() + static_cast<int64_t>(begin),
                      layers_.begin() + static_cast<int64_t>(end));
    return worker_with(std::move(layers), available_bytes);
  }
  ModelBuilder& worker_with(LayerSpecs layers, int64_t available_bytes) {
    request_.add_worker(request_.add_layers(std::move(layers)), available_bytes);
    return *this;
  }

  const LayerSpecs& layers() const { return layers_; }
  PlanRequest& request() { return request_; }
  const PlanRequest& request() const { return request_; }
  Plan plan(const PlanningConfig& c) const { return kvplan::plan(request_, c); }

 private:
  PlanRequest request_;
  LayerSpecs layers_;
};

/// The tables that single planning steps work on.
class Steps {
 public:
  explicit Steps(ModelBuilder model) : model_(std::move(model)), layers_(model_.layers()) {}

  PlanningContext ctx() { return {*model_.request().names(), model_.request().specs(), notices_}; }
  LayerSpecs& layers() { return layers_; }
  const Notices& notices() const { return notices_; }
  const KVCacheSpec& spec(const KVCacheGroup& g) { return model_.request().specs()[g.spec]; }
  KVCacheGroups groups(const PlanningConfig& c) { return get_kv_cache_groups(ctx(), c, layers_); }

 private:
  ModelBuilder model_;
  LayerSpecs layers_;
  Notices notices_;
};

/// Layers of each group.
inline std::vector<size_t> widths(const KVCacheGroups& groups) {
  std::vector<size_t> w;
  for (const KVCacheGroup& g : groups) w.push_back(g.layers.size());
  return w;
}

}  // namespace kvplan::testing
