#include "c_api/request.h"

#include <algorithm>

#include "c_api/guard.h"

namespace kvplan::c_api {
namespace {

std::optional<int64_t> unless_zero(int64_t value) {
  return value == 0 ? std::nullopt : std::optional<int64_t>(value);
}

constexpr SpecKind kKinds[] = {SpecKind::kFullAttention,
                               SpecKind::kMLAAttention,
                               SpecKind::kChunkedLocalAttention,
                               SpecKind::kSlidingWindow,
                               SpecKind::kSlidingWindowMLA,
                               SpecKind::kCircularBuffer,
                               SpecKind::kCrossAttention,
                               SpecKind::kMamba,
                               SpecKind::kCustom};

SpecKind kind_of(int32_t number) {
  for (SpecKind kind : kKinds) {
    if (static_cast<int32_t>(kind) == number) return kind;
  }
  throw InvalidArgument("unknown kvplan_spec_kind " + std::to_string(number));
}

static_assert(static_cast<int>(SpecKind::kFullAttention) == KVPLAN_FULL_ATTENTION);
static_assert(static_cast<int>(SpecKind::kMLAAttention) == KVPLAN_MLA);
static_assert(static_cast<int>(SpecKind::kChunkedLocalAttention) == KVPLAN_CHUNKED_LOCAL);
static_assert(static_cast<int>(SpecKind::kSlidingWindow) == KVPLAN_SLIDING_WINDOW);
static_assert(static_cast<int>(SpecKind::kSlidingWindowMLA) == KVPLAN_SLIDING_WINDOW_MLA);
static_assert(static_cast<int>(SpecKind::kCircularBuffer) == KVPLAN_CIRCULAR_BUFFER);
static_assert(static_cast<int>(SpecKind::kCrossAttention) == KVPLAN_CROSS_ATTENTION);
static_assert(static_cast<int>(SpecKind::kMamba) == KVPLAN_MAMBA);
static_assert(static_cast<int>(SpecKind::kCustom) == KVPLAN_CUSTOM);

KVCacheSpec spec_from(const kvplan_spec& c) {
  KVCacheSpec s = default_spec(kind_of(c.kind));
  s.block_size = c.block_size;
  s.dcp_sharded = c.dcp_sharded != 0;
  s.is_draft = c.is_draft != 0;
  s.page_size_padded = unless_zero(c.page_size_padded);
  if (c.block_stride_alignment != 0) {
    s.block_stride_alignment = {BlockStrideAlignment::Kind::kBytes, c.block_stride_alignment};
  }
  if (is_attention(s.kind)) {
    s.num_kv_heads = c.num_kv_heads;
    s.head_size = c.head_size;
    if (c.head_size_v != -1) s.head_size_v = c.head_size_v;
    if (c.dtype != nullptr) s.dtype = parse_dtype(c.dtype);
    s.num_head_slots = unless_zero(c.num_head_slots);
    s.state_content_bytes = unless_zero(c.state_content_bytes);
    s.tokens_per_state = {c.tokens_per_state, 1};
    s.alignment = unless_zero(c.alignment);
  }
  if (is_sliding_window(s.kind)) s.sliding_window = c.window;
  if (s.kind == SpecKind::kChunkedLocalAttention) s.attention_chunk_size = c.window;
  if (s.kind == SpecKind::kMamba) {
    s.shapes = {{c.page_size}};
    s.dtypes = {DType::kUInt8};
    s.num_speculative_blocks = c.num_speculative_blocks;
  }
  if (s.kind == SpecKind::kCustom) {
    s.page_size = c.page_size;
    s.custom_class = &deref(c.custom_class, "kvplan_spec.custom_class");
    if (c.cap_tokens != -1) s.demand.cap_tokens = c.cap_tokens;
    s.demand.cap_includes_in_flight = c.cap_includes_in_flight != 0;
    s.demand.extra_pages = c.extra_pages;
  }
  finalize(s);
  return s;
}

}  // namespace
}  // namespace kvplan::c_api

using kvplan::c_api::deref;
using kvplan::c_api::guarded;

extern "C" {

void kvplan_spec_init(kvplan_spec* spec, kvplan_spec_kind kind) {
  if (spec == nullptr) return;
  *spec = {};
  spec->kind = kind;
  spec->dcp_sharded = kind != KVPLAN_MAMBA && kind != KVPLAN_CUSTOM;
  spec->head_size_v = -1;
  spec->tokens_per_state = 1;
  spec->cap_tokens = -1;
}

kvplan_status kvplan_request_create(kvplan_request** out) {
  return guarded([&] {
    deref(out, "out") = nullptr;
    *out = new kvplan_request;
  });
}

void kvplan_request_destroy(kvplan_request* request) { delete request; }

kvplan_status kvplan_request_add_spec(kvplan_request* request, const kvplan_spec* spec,
                                      int32_t* spec_id) {
  return guarded([&] {
    // Before anything is added: the right side of an assignment comes first.
    int32_t& id = deref(spec_id, "spec_id");
    const kvplan::KVCacheSpec value = kvplan::c_api::spec_from(deref(spec, "spec"));
    id = deref(request, "request").request.add_spec(value).value;
  });
}

kvplan_status kvplan_request_add_layer(kvplan_request* request, const char* name,
                                       int32_t* layer_id) {
  return guarded([&] {
    int32_t& id = deref(layer_id, "layer_id");
    id = deref(request, "request").request.add_layer_name(&deref(name, "name")).value;
  });
}

kvplan_status kvplan_request_add_worker(kvplan_request* request, const int32_t* layers,
                                        const int32_t* specs, size_t count,
                                        int64_t available_bytes) {
  return guarded([&] {
    kvplan::PlanRequest& r = deref(request, "request").request;
    if (count > 0) {
      deref(layers, "layers");
      deref(specs, "specs");
    }
    kvplan::LayerSpecs list;
    list.reserve(std::min<size_t>(count, r.names()->size()));
    for (size_t i = 0; i < count; ++i) {
      list.push_back({kvplan::LayerId(layers[i]), kvplan::SpecId(specs[i])});
    }
    r.add_worker(r.add_layers(std::move(list)), available_bytes);
  });
}
}
