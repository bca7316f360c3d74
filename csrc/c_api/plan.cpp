#include "kvplan/plan.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "c_api/arrays.h"
#include "c_api/plan_handle.h"
#include "c_api/sized_struct.h"
#include "kvplan/check.h"
#include "kvplan/json_plan.h"
#include "kvplan/json_request.h"

namespace kvplan::c_api {
namespace {

std::vector<int32_t> numbers(const std::vector<LayerId>& layers) {
  std::vector<int32_t> result;
  result.reserve(layers.size());
  for (LayerId id : layers) result.push_back(id.value);
  return result;
}

std::unique_ptr<kvplan_plan> make(Plan plan) {
  auto made = std::make_unique<kvplan_plan>();
  made->plan = std::move(plan);
  made->reasons = explain(made->plan);
  made->capacity = capacity(made->plan);
  made->safe_ids = safe_block_ids(made->plan);
  for (const KVCacheGroup& g : made->plan.groups) made->group_layers.push_back(numbers(g.layers));
  for (const StagePlan& stage : made->plan.stages) {
    auto& tensors = made->tensor_layers.emplace_back();
    for (const KVCacheTensor& t : stage.tensors) tensors.push_back(numbers(t.layers));
  }
  return made;
}

std::string_view text_of(const char* json, size_t bytes) {
  const std::span<const char> text = span_of(&deref(json, "json"), bytes, "bytes of JSON");
  return {text.data(), text.size()};
}

}  // namespace
}  // namespace kvplan::c_api

using kvplan::c_api::at;
using kvplan::c_api::deref;
using kvplan::c_api::guarded;
using kvplan::c_api::text_of;
using kvplan::c_api::write_struct;

extern "C" {

kvplan_status kvplan_plan_create_from_json(const char* json, size_t bytes, kvplan_plan** out) {
  return guarded([&] {
    deref(out, "out") = nullptr;
    const kvplan::JsonRequest read = kvplan::read_json_request(text_of(json, bytes));
    *out = kvplan::c_api::make(kvplan::plan(read.request, read.config)).release();
  });
}

kvplan_status kvplan_plan_read_json(const char* json, size_t bytes, kvplan_plan** out) {
  return guarded([&] {
    deref(out, "out") = nullptr;
    *out = kvplan::c_api::make(kvplan::read_json_plan(text_of(json, bytes))).release();
  });
}

kvplan_status kvplan_plan_write_json(kvplan_plan* plan, const char** json, size_t* bytes) {
  return guarded([&] {
    std::string& written = deref(plan, "plan").written;
    written = kvplan::write_json_plan(plan->plan);
    deref(json, "json") = written.data();
    deref(bytes, "bytes") = written.size();
  });
}

void kvplan_plan_destroy(kvplan_plan* plan) { delete plan; }

kvplan_status kvplan_plan_summary(const kvplan_plan* plan, kvplan_summary* out) {
  return guarded([&] {
    const kvplan_plan& p = deref(plan, "plan");
    kvplan_summary s = {};
    s.max_model_len = p.plan.config.max_model_len;
    s.num_blocks = p.plan.num_blocks;
    s.num_groups = static_cast<int64_t>(p.plan.groups.size());
    s.num_workers = static_cast<int64_t>(p.plan.workers.size());
    s.limiting_worker = static_cast<int64_t>(p.reasons.limiting_worker);
    s.limiting_group = static_cast<int64_t>(p.reasons.limiting_group);
    s.bytes_per_block = p.reasons.bytes_per_block;
    s.request_blocks = p.reasons.request_blocks;
    s.request_bytes = p.reasons.request_bytes;
    s.fixed_bytes_per_request = p.reasons.fixed_bytes_per_request;
    s.next_token_bytes = p.reasons.next_token_bytes;
    s.capacity_tokens = p.capacity.tokens;
    s.usable_capacity_tokens = p.capacity.usable_tokens;
    s.max_concurrency = p.capacity.max_concurrency;
    s.usable_concurrency = p.capacity.usable_concurrency;
    s.steady_concurrency = p.capacity.steady_concurrency;
    s.max_safe_block_id_bytes = p.safe_ids.bytes;
    s.max_safe_block_id_elements = p.safe_ids.elements;
    write_struct(out, s);
  });
}

kvplan_status kvplan_plan_group(const kvplan_plan* plan, size_t group, kvplan_group* out) {
  return guarded([&] {
    const kvplan_plan& p = deref(plan, "plan");
    const kvplan::KVCacheGroup& g = at(p.plan.groups, group, "group");
    const kvplan::GroupReport& report = at(p.reasons.groups, group, "group");
    write_struct(out,
                 {0, p.group_layers[group].data(), p.group_layers[group].size(),
                  (*p.plan.specs)[g.spec].block_size, g.is_eagle_group ? 1 : 0,
                  static_cast<int32_t>(g.slices), report.pages_per_request, report.padding_bytes});
  });
}

kvplan_status kvplan_plan_worker(const kvplan_plan* plan, size_t worker, kvplan_worker* out) {
  return guarded([&] {
    const kvplan_plan& p = deref(plan, "plan");
    at(p.plan.workers, worker, "worker");
    const kvplan::StagePlan& stage = p.plan.stage_of(worker);
    write_struct(out, {0, stage.tensors.empty() ? 0 : stage.tensors[0].size, stage.bytes_per_block,
                       stage.tensors.size()});
  });
}

kvplan_status kvplan_plan_tensor(const kvplan_plan* plan, size_t worker, size_t tensor,
                                 kvplan_tensor* out) {
  return guarded([&] {
    const kvplan_plan& p = deref(plan, "plan");
    const size_t stage = at(p.plan.workers, worker, "worker").stage;
    const kvplan::KVCacheTensor& t = at(p.plan.stages[stage].tensors, tensor, "tensor");
    const std::vector<int32_t>& layers = p.tensor_layers[stage][tensor];
    write_struct(
        out, {0, layers.data(), layers.size(), t.size, t.layer_stride, t.block_stride, t.offset});
  });
}

kvplan_status kvplan_plan_view(const kvplan_plan* plan, size_t worker, size_t tensor,
                               kvplan_view* out) {
  return guarded([&] {
    const kvplan_plan& p = deref(plan, "plan");
    const size_t stage = at(p.plan.workers, worker, "worker").stage;
    at(p.plan.stages[stage].tensors, tensor, "tensor");
    for (const kvplan::TensorView& found : kvplan::views(p.plan, stage)) {
      if (found.tensor != tensor) continue;
      kvplan_view view = {};
      view.group = found.group;
      std::copy(found.view.shape.begin(), found.view.shape.end(), view.shape);
      std::copy(found.view.strides.begin(), found.view.strides.end(), view.strides);
      view.offset = found.view.offset;
      write_struct(out, view);
      return;
    }
    throw kvplan::InvalidArgument("tensor " + std::to_string(tensor) +
                                  " holds HiSparse pages, which have no such shape");
  });
}

kvplan_status kvplan_plan_at_length(const kvplan_plan* plan, int64_t max_model_len,
                                    int64_t* request_blocks, double* max_concurrency) {
  return guarded([&] {
    const kvplan::Plan& p = deref(plan, "plan").plan;
    const int64_t blocks = kvplan::request_blocks(p, max_model_len);
    const double requests = kvplan::max_concurrency(p, max_model_len);
    if (request_blocks != nullptr) *request_blocks = blocks;
    if (max_concurrency != nullptr) *max_concurrency = requests;
  });
}

kvplan_status kvplan_plan_block_sizes(const kvplan_plan* plan, int64_t* scheduler_block_size,
                                      int64_t* hash_block_size) {
  return guarded([&] {
    const kvplan::BlockSizes sizes = kvplan::block_sizes(deref(plan, "plan").plan);
    deref(scheduler_block_size, "scheduler_block_size") = sizes.scheduler_block_size;
    deref(hash_block_size, "hash_block_size") = sizes.hash_block_size;
  });
}

const char* kvplan_plan_layer_name(const kvplan_plan* plan, int32_t layer_id) {
  if (plan == nullptr || layer_id < 0) return nullptr;
  const kvplan::LayerId id(layer_id);
  return id.pos() < plan->plan.names->size() ? (*plan->plan.names)[id].data() : nullptr;
}

size_t kvplan_plan_num_notices(const kvplan_plan* plan) {
  return plan == nullptr ? 0 : plan->plan.notices.size();
}

const char* kvplan_plan_notice(const kvplan_plan* plan, size_t index) {
  return index < kvplan_plan_num_notices(plan) ? plan->plan.notices[index].message.c_str()
                                               : nullptr;
}

kvplan_status kvplan_plan_check(const kvplan_plan* plan) {
  return guarded([&] {
    const std::vector<kvplan::Violation> broken = kvplan::check(deref(plan, "plan").plan, 1);
    if (!broken.empty()) throw std::runtime_error(broken[0].message);
  });
}
}
