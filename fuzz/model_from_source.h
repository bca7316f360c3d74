#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kvplan/kvplan.h"
#include "planning/specs/spec_fields.h"

/// A planning request from a source of numbers: the bytes of a fuzzer, or a seeded generator. Most
/// requests can be planned; some numbers are out of range on purpose.
namespace kvplan::fuzzing {

/// Numbers from the bytes of a fuzzer; zeros once they are used up.
class ByteSource {
 public:
  ByteSource(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  /// A number in [low, high].
  int64_t pick(int64_t low, int64_t high) {
    const auto range = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
    uint64_t value = 0;
    for (uint64_t left = range; left > 0; left >>= 8) value = value << 8 | next();
    const uint64_t offset = range == UINT64_MAX ? value : value % (range + 1);
    return static_cast<int64_t>(static_cast<uint64_t>(low) + offset);
  }

 private:
  uint8_t next() { return at_ < size_ ? data_[at_++] : 0; }
  const uint8_t* data_;
  size_t size_;
  size_t at_ = 0;
};

template <class Source>
class ModelMaker {
 public:
  explicit ModelMaker(Source& source) : source_(source) {}

  PlanningConfig config() {
    PlanningConfig c;
    c.max_model_len = number({1, 128, 4096, 131072, 1000000}, 1, 1 << 20);
    c.auto_fit = flag();
    c.max_in_flight_tokens = number({0, 1, 8192, 65536}, 0, 1 << 17);
    c.max_concurrent_batches = pick(1, 3);
    c.kv_cache_layout = kAllLayouts[static_cast<size_t>(pick(0, 5))];
    c.tensor_parallel_size = pick(1, 8);
    c.decode_context_parallel_size = rarely() ? pick(1, 4) : 1;
    if (rarely()) c.num_gpu_blocks_override = number({0, 1, 2}, 0, 5000);
    c.mamba_cache_mode = static_cast<MambaCacheMode>(pick(0, 2));
    c.disable_hybrid_kv_cache_manager = rarely();
    c.max_num_encoder_input_tokens = number({0, 1500}, 0, 4096);
    c.num_prefill_lookahead_tokens = pick(0, 4);
    c.block_size = 16;
    if (rarely()) {
      c.speculative_method = flag() ? "mtp" : "eagle";
      c.use_eagle = flag();
      c.use_eagle_block_drop = flag();
      if (flag()) c.model_type = "deepseek_v4";
      c.draft_rule = static_cast<DraftRule>(pick(0, 2));
    }
    return c;
  }

  PlanRequest request() {
    PlanRequest r;
    LayerSpecs layers;
    std::vector<SpecId> specs;
    const int64_t num_kinds = pick(1, 5);
    const int64_t block_size = pick(0, 3) == 0 ? 64 : 16;
    const int64_t heads = pick(1, 8);
    const int64_t head_size = number({64, 128, 256, 512, 576}, 1, 600);
    for (int64_t k = 0; k < num_kinds; ++k) {
      std::optional<KVCacheSpec> s = spec(block_size, heads, head_size);
      if (!s) continue;
      const SpecId id = r.add_spec(*s);
      for (int64_t i = pick(1, 12); i > 0; --i) {
        const std::string name = "layer." + std::to_string(layers.size());
        layers.push_back({r.add_layer_name(name), id});
      }
    }
    if (flag()) interleave(layers);
    add_workers(r, layers);
    return r;
  }

 private:
  int64_t pick(int64_t low, int64_t high) { return source_.pick(low, high); }
  bool flag() { return pick(0, 1) == 1; }
  bool rarely() { return pick(0, 7) == 7; }

  /// One of the usual values, seldom any value of a range, and very seldom a hostile one.
  int64_t number(std::vector<int64_t> usual, int64_t low, int64_t high) {
    const int64_t how = pick(0, 1023);
    if (how == 1023) return INT64_MAX - pick(0, 1);
    if (how == 1022) return pick(INT64_MIN, INT64_MAX);
    if (how >= 832) return pick(low, high);
    return usual[static_cast<size_t>(how) % usual.size()];
  }

  std::optional<KVCacheSpec> spec(int64_t block_size, int64_t heads, int64_t head_size) {
    auto kind = static_cast<SpecKind>(pick(0, kNumSpecKinds - 1));
    const bool cannot_be_planned = kind == SpecKind::kEncoderOnlyAttention || is_hisparse(kind);
    if (cannot_be_planned && !rarely()) kind = SpecKind::kSlidingWindow;
    KVCacheSpec s = default_spec(kind);
    s.block_size = rarely() ? number({8, 32, 48, 128}, 1, 256) : block_size;
    s.num_kv_heads = is_mla(kind) || kind == SpecKind::kSlidingWindowMLA ? 1
                     : flag()                                            ? heads
                                                                         : pick(1, 8);
    s.head_size = flag() ? head_size : number({64, 96, 128, 192, 512}, 1, 1024);
    if (rarely()) s.head_size_v = pick(0, 512);
    s.dtype = rarely() ? static_cast<DType>(pick(0, 18)) : DType::kBFloat16;
    s.is_draft = rarely();
    if (is_sliding_window(kind)) {
      s.dcp_sharded = rarely();
      s.sliding_window = number({4, 128, 1024}, 1, 8192);
    }
    if (kind == SpecKind::kChunkedLocalAttention) s.attention_chunk_size = number({8192}, 1, 9000);
    if (kind == SpecKind::kRSWA) s.rswa_window = pick(1, 512);
    if (kind == SpecKind::kSinkFullAttention) s.sink_len = pick(0, 16);
    if (is_mla(kind) || kind == SpecKind::kSlidingWindowMLA) {
      if (flag()) s.alignment = 576;
      // A hidden state belongs to one token: blocks may shrink to that.
      const bool one_token = kind == SpecKind::kHiddenStateCache;
      if (rarely() && !one_token) s.tokens_per_state = {pick(1, 4), pick(1, 2)};
    }
    if (kind == SpecKind::kMamba) {
      s.shapes = {{number({1000, 540672, 1 << 20}, 1, 1 << 21)}, {pick(1, 100), 16}};
      s.dtypes = {DType::kUInt8, DType::kFloat32};
      s.num_speculative_blocks = pick(0, 2);
    }
    if (rarely()) {
      s.block_stride_alignment = {
          flag() ? BlockStrideAlignment::Kind::kBytes : BlockStrideAlignment::Kind::kMultipleOf,
          number({8, 64, 256}, 1, 1000)};
    }
    s.page_size = number({4096, 32768}, 1, 1 << 20);
    s.blocks_per_request = pick(0, 8);
    if (kind == SpecKind::kCustom) {
      s.custom_class = flag() ? "PluginSpec" : "OtherSpec";
      if (flag()) s.demand.cap_tokens = pick(0, 4096);
      s.demand.cap_includes_in_flight = flag();
      s.demand.extra_pages = pick(0, 3);
    }
    if (!rarely()) s = own_fields(s);
    try {
      finalize(s);
      if (rarely() && !is_hisparse(kind)) {
        s.page_size_padded = checked::add(page_size_bytes(s), pick(0, 4096), "padded page");
        finalize(s);
      }
    } catch (const Error&) {
      return std::nullopt;
    }
    return s;
  }

  /// Without what the kind has no field for, which is refused.
  static KVCacheSpec own_fields(const KVCacheSpec& spec) {
    KVCacheSpec own = default_spec(spec.kind);
    for_each_field(spec.kind, [&](const auto& field) { own.*field.member = spec.*field.member; });
    return own;
  }

  void interleave(LayerSpecs& layers) {
    for (size_t i = layers.size(); i > 1; --i) {
      std::swap(layers[i - 1], layers[static_cast<size_t>(pick(0, static_cast<int64_t>(i) - 1))]);
    }
  }

  void add_workers(PlanRequest& r, const LayerSpecs& layers) {
    const int64_t stages = flag() ? 1 : pick(1, 4);
    const auto n = static_cast<int64_t>(layers.size());
    std::vector<int64_t> cuts = {0};
    for (int64_t s = 1; s < stages; ++s) cuts.push_back(rarely() ? pick(0, n) : n * s / stages);
    cuts.push_back(n);
    std::sort(cuts.begin(), cuts.end());
    const int64_t tp = pick(1, 3);
    for (size_t s = 0; s + 1 < cuts.size(); ++s) {
      LayerSpecs own(layers.begin() + cuts[s], layers.begin() + cuts[s + 1]);
      const size_t list = r.add_layers(std::move(own));
      for (int64_t i = 0; i < tp; ++i) {
        r.add_worker(list, number({1LL << 20, 1LL << 28, 1LL << 32, 80LL << 30}, 0, 1LL << 34));
      }
    }
  }

  Source& source_;
};

}  // namespace kvplan::fuzzing
