#include "kvplan/check.h"
#include "kvplan/errors.h"
#include "kvplan/plan.h"

namespace kvplan {
namespace {

PageShape page_shape(const KVCacheSpec& spec) {
  PageShape page;
  page.page_bytes = page_size_bytes(spec);
  page.stride_alignment = get_block_stride_alignment(spec);
  if (!has_layer_views(spec)) {  // raw bytes without heads and states
    page.content_bytes = page.page_bytes;
    return page;
  }
  page.heads = num_heads(spec);
  page.states = num_states(spec, spec.block_size);
  page.content_bytes = state_content_size_bytes(spec);
  return page;
}

CheckedWorker checked_worker(const Plan& plan, const StagePlan& stage) {
  const SpecTable& specs = *plan.specs;
  CheckedWorker worker;
  worker.num_blocks = plan.num_blocks;
  if (__builtin_mul_overflow(stage.bytes_per_block, plan.num_blocks, &worker.buffer_bytes)) {
    worker.buffer_bytes = -1;  // which the check rejects
  }
  std::vector<std::optional<PageShape>> pages(specs.size());
  for (const KVCacheGroup& g : stage.groups) {
    CheckedWorker::Group group;
    group.layers = g.layers;
    if (!g.is_uniform_type()) group.spec = specs.equality_class(g.spec).value;
    group.block_size = specs[g.spec].block_size;
    group.is_eagle_group = g.is_eagle_group;
    group.host_resident = g.host_resident;
    group.slices = g.slices;
    worker.groups.push_back(std::move(group));
    for (size_t i = 0; i < g.layers.size(); ++i) {
      const SpecId id = layer_spec_id(g, i);
      std::optional<PageShape>& page = pages[id.pos()];
      if (!page) page = page_shape(specs[id]);
      worker.layers.push_back({g.layers[i], *page});
    }
  }
  for (const KVCacheTensor& t : stage.tensors) {
    worker.tensors.push_back({t.size, t.layers, t.layer_stride, t.block_stride, t.offset});
  }
  return worker;
}

}  // namespace

// The layers of a stage are taken from its groups, whose number the plan states separately: a
// layer that is lost or doubled shows as a different count.
std::vector<Violation> check(const Plan& plan, size_t max_violations) {
  validate(plan);
  CheckedPlacement placement;
  placement.layout = plan.config.kv_cache_layout;
  placement.allow_foreign_layers = plan.config.place_foreign_layers;
  for (size_t i = 0; i < plan.names->size(); ++i) {
    placement.layer_names.emplace_back((*plan.names)[LayerId(i)]);
  }
  std::vector<Violation> found;
  std::vector<std::optional<int64_t>> smallest_budget(plan.stages.size());
  std::vector<size_t> first_worker(plan.stages.size());
  for (size_t w = 0; w < plan.workers.size(); ++w) {
    const WorkerPlan& worker = plan.workers[w];
    std::optional<int64_t>& budget = smallest_budget[worker.stage];
    if (!budget) first_worker[worker.stage] = w;
    if (!budget || worker.effective_bytes < *budget) budget = worker.effective_bytes;
    if (worker.num_blocks < plan.num_blocks) {
      found.push_back({Rule::kWorkersAgree, w,
                       "the plan takes " + std::to_string(plan.num_blocks) +
                           " blocks, this worker has " + std::to_string(worker.num_blocks)});
    }
  }
  std::vector<size_t> worker_of;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const StagePlan& stage = plan.stages[s];
    if (!smallest_budget[s]) continue;
    const bool placed_elsewhere = stage.tensors.empty() && stage.num_layers > 0;
    if (placed_elsewhere) continue;
    CheckedWorker worker = checked_worker(plan, stage);
    worker.available_bytes = smallest_budget[s];
    if (static_cast<int64_t>(worker.layers.size()) != stage.num_layers) {
      found.push_back({Rule::kOneGroup, first_worker[s],
                       "the groups hold " + std::to_string(worker.layers.size()) +
                           " layers, the worker has " + std::to_string(stage.num_layers)});
    }
    placement.workers.push_back(std::move(worker));
    worker_of.push_back(first_worker[s]);
  }
  for (Violation& v : check(placement, max_violations)) {
    v.worker = worker_of[v.worker];
    found.push_back(std::move(v));
  }
  if (found.size() > max_violations) found.resize(max_violations);
  return found;
}

}  // namespace kvplan
