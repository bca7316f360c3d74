#include "kvplan/plan.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "kvplan/checked.h"
#include "planning/fitting/admission.h"
#include "planning/placement/placement_warnings.h"

namespace kvplan {
namespace {

/// A pipeline stage while it is being planned.
struct Stage {
  KVCacheGroups groups;
  int64_t bytes_per_block = 0;
  size_t first_worker = 0;
  bool has_worker = false;
  bool placed_elsewhere = false;  // by a builder, which says what a block takes

  /// Whether its workers hold memory for blocks: none does in a model without attention, and a
  /// stage without layers of its own holds none beside others that do.
  bool holds_blocks() const { return bytes_per_block > 0; }
};

/// Groups from outside may hold anything.
void validate_groups(const PlanRequest& request, const KVCacheGroups& groups) {
  std::vector<bool> grouped(request.names()->size());
  const auto require_spec = [&](SpecId spec) {
    if (spec.valid() && spec.pos() < request.specs().size()) return;
    throw InvalidArgument("a KV cache group names spec " + std::to_string(spec.value) +
                          "; the request has " + std::to_string(request.specs().size()));
  };
  const auto require_layer = [&](LayerId layer) {
    if (layer.valid() && layer.pos() < grouped.size()) return;
    throw InvalidArgument("a KV cache group names layer " + std::to_string(layer.value) +
                          "; the request has " + std::to_string(grouped.size()));
  };
  for (const KVCacheGroup& g : groups) {
    require_spec(g.spec);
    for (LayerId layer : g.layers) {
      require_layer(layer);
      if (grouped[layer.pos()]) {
        throw InconsistentSpec("KV cache group overlaps: layer " +
                               std::string((*request.names())[layer]) + " is in two groups.");
      }
      grouped[layer.pos()] = true;
    }
    if (!g.is_uniform_type()) continue;
    for (const LayerSpec& l : *g.layer_specs) {
      require_layer(l.layer);
      require_spec(l.spec);
    }
  }
}

void validate_request(const PlanRequest& request, const PlanningConfig& config) {
  validate(config);
  if (request.workers().empty()) throw InvalidArgument("no workers to plan for");
  if (request.groups()) validate_groups(request, *request.groups());
}

/// Projects the groups to a stage and places one block, so that a layout that cannot express the
/// model is reported before anything is sized.
Stage prepare_stage(PlanningContext ctx, const PlanningConfig& config, const KVCacheGroups& groups,
                    const LayerSpecs& layers, size_t worker,
                    std::optional<int64_t> bytes_per_block) {
  Stage stage;
  stage.groups = project_kv_cache_groups_to_worker(ctx, groups, layers);
  stage.first_worker = worker;
  stage.has_worker = true;
  size_t grouped = 0;
  for (const KVCacheGroup& g : stage.groups) grouped += g.layers.size();
  if (grouped != layers.size()) {
    throw InconsistentSpec("Some layers are not assigned to any group: worker " +
                           std::to_string(worker) + " owns " + std::to_string(layers.size()) +
                           " layers, of which the groups hold " + std::to_string(grouped) + ".");
  }
  if (stage.groups.empty()) return stage;
  if (bytes_per_block) {
    stage.bytes_per_block = *bytes_per_block;
    stage.placed_elsewhere = true;
    return stage;
  }
  if (layers.empty()) return stage;
  validate_slices(config.kv_cache_layout, stage.groups);
  validate_kv_cache_layout(ctx, config.kv_cache_layout, stage.groups);
  stage.bytes_per_block = pool_bytes_per_block(ctx, stage.groups, config.kv_cache_layout);
  if (stage.bytes_per_block == 0) {
    throw InvalidArgument("worker " + std::to_string(worker) +
                          " holds no KV cache group in device memory");
  }
  warn_of_unsafe_strides(
      ctx, config, stage.groups,
      place_kv_cache_groups(ctx, config, stage.groups, stage.bytes_per_block, 1));
  return stage;
}

std::vector<Stage> prepare_stages(PlanningContext ctx, const PlanningConfig& config,
                                  const PlanRequest& request, const KVCacheGroups& groups) {
  std::vector<Stage> stages(request.layer_lists().size());
  for (size_t w = 0; w < request.workers().size(); ++w) {
    const size_t list = request.workers()[w].layers_index;
    if (stages[list].has_worker) continue;
    stages[list] = prepare_stage(ctx, config, groups, request.layer_lists()[list], w,
                                 request.bytes_per_block(list));
  }
  return stages;
}

/// A worker's memory, as the checks see it.
struct WorkerMemory {
  int64_t effective_bytes;  ///< with a block override, what the override takes
  int64_t usable_bytes;     ///< without the null block, which the pool holds back for good
};

std::vector<WorkerMemory> effective_memory(PlanningContext ctx, const PlanningConfig& config,
                                           const PlanRequest& request,
                                           const std::vector<Stage>& stages) {
  std::vector<WorkerMemory> memory;
  memory.reserve(request.workers().size());
  int64_t last_logged = -1;
  for (const PlanRequest::Worker& w : request.workers()) {
    const Stage& stage = stages[w.layers_index];
    int64_t effective = w.available_bytes;
    if (config.num_gpu_blocks_override && stage.holds_blocks()) {
      const int64_t own = w.available_bytes / stage.bytes_per_block;
      if (own != last_logged) {
        ctx.info(
            "Overriding num_gpu_blocks=" + std::to_string(own) +
            " with num_gpu_blocks_override=" + std::to_string(*config.num_gpu_blocks_override));
        last_logged = own;
      }
      effective = checked::mul(*config.num_gpu_blocks_override, stage.bytes_per_block,
                               "bytes of the block override");
    }
    memory.push_back({effective, checked::add(effective, -stage.bytes_per_block, "usable memory")});
  }
  return memory;
}

/// The worker with the least usable memory of each stage: what fits it fits the stage's others.
std::vector<size_t> tightest_workers(const PlanRequest& request, const std::vector<Stage>& stages,
                                     const std::vector<WorkerMemory>& memory) {
  std::vector<size_t> tightest(stages.size());
  for (size_t s = 0; s < stages.size(); ++s) tightest[s] = stages[s].first_worker;
  for (size_t w = 0; w < memory.size(); ++w) {
    size_t& t = tightest[request.workers()[w].layers_index];
    if (memory[w].usable_bytes < memory[t].usable_bytes) t = w;
  }
  return tightest;
}

int64_t fit_length(PlanningContext ctx, const PlanningConfig& config, const PlanRequest& request,
                   const std::vector<Stage>& stages, const std::vector<WorkerMemory>& memory) {
  const std::vector<size_t> tightest = tightest_workers(request, stages, memory);
  std::vector<FitCandidate> candidates;
  for (size_t s = 0; s < stages.size(); ++s) {
    if (!stages[s].has_worker || !(stages[s].holds_blocks() || stages[s].groups.empty())) continue;
    candidates.push_back({&stages[s].groups, stages[s].bytes_per_block,
                          memory[tightest[s]].usable_bytes, static_cast<int64_t>(tightest[s])});
  }
  return auto_fit_max_model_len(ctx, config, candidates);
}

/// Checks every worker and returns what a request holds on each stage.
std::vector<int64_t> check_admission(PlanningContext ctx, const PlanningConfig& config,
                                     const PlanRequest& request, const std::vector<Stage>& stages,
                                     const std::vector<WorkerMemory>& memory) {
  std::vector<int64_t> needed(stages.size());
  for (size_t s = 0; s < stages.size(); ++s) {
    if (!stages[s].has_worker || !stages[s].holds_blocks()) continue;
    needed[s] = max_memory_usage_bytes_from_groups(ctx, stages[s].groups, config,
                                                   stages[s].bytes_per_block);
  }
  for (size_t w = 0; w < memory.size(); ++w) {
    const size_t s = request.workers()[w].layers_index;
    const Stage& stage = stages[s];
    if (!stage.holds_blocks()) continue;
    if (memory[w].usable_bytes > 0 && needed[s] <= memory[w].usable_bytes) continue;
    const auto request_bytes = [&](const PlanningConfig& c) {
      return max_memory_usage_bytes_from_groups(ctx, stage.groups, c, stage.bytes_per_block);
    };
    check_enough_kv_cache_memory(
        config,
        {static_cast<int64_t>(w), stage.bytes_per_block, memory[w].usable_bytes, request_bytes,
         request.workers()[w].available_bytes / stage.bytes_per_block, is_sliced(stage.groups)},
        needed[s]);
  }
  return needed;
}

/// Blocks that each worker's memory gives; one that holds none takes as many as the others give.
std::vector<int64_t> worker_num_blocks(const PlanningConfig& config, const PlanRequest& request,
                                       const std::vector<Stage>& stages,
                                       const std::vector<WorkerMemory>& memory) {
  std::vector<int64_t> blocks(memory.size(), 0);
  int64_t smallest = std::numeric_limits<int64_t>::max();
  for (size_t w = 0; w < memory.size(); ++w) {
    const Stage& stage = stages[request.workers()[w].layers_index];
    if (!stage.holds_blocks()) continue;
    blocks[w] =
        config.num_gpu_blocks_override.value_or(memory[w].effective_bytes / stage.bytes_per_block);
    smallest = std::min(smallest, blocks[w]);
  }
  // Where nobody holds any, the block pool still needs its null block.
  const int64_t others = smallest == std::numeric_limits<int64_t>::max() ? 1 : smallest;
  for (size_t w = 0; w < memory.size(); ++w) {
    if (!stages[request.workers()[w].layers_index].holds_blocks()) blocks[w] = others;
  }
  return blocks;
}

StagePlan finish_stage(PlanningContext ctx, const PlanningConfig& config, Stage stage,
                       size_t num_layers, int64_t num_blocks, int64_t request_bytes) {
  StagePlan result;
  if (!stage.placed_elsewhere && stage.holds_blocks()) {
    result.tensors =
        place_kv_cache_groups(ctx, config, stage.groups, stage.bytes_per_block, num_blocks);
  }
  result.kv_tp_replicas = kv_cache_groups_tp_replicas(
      ctx, stage.groups, config.tensor_parallel_size, config.decode_context_parallel_size);
  result.num_layers = static_cast<int64_t>(num_layers);
  result.bytes_per_block = stage.bytes_per_block;
  result.request_bytes = request_bytes;
  result.groups = std::move(stage.groups);
  return result;
}

/// Block tables hold 32-bit ids, of which a group with slices has several for each block.
void check_block_ids(const Plan& plan) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    const int64_t slices = plan.groups[g].slices;
    if (slices == 1 || plan.num_blocks <= kMost / slices) continue;
    throw InvalidArgument(
        "KV cache group " + std::to_string(g) + " cuts each of " + std::to_string(plan.num_blocks) +
        " blocks into " + std::to_string(slices) + " slices, more than the " +
        std::to_string(kMost) + " block ids of 32 bits. Set num_gpu_blocks_override to at most " +
        std::to_string(kMost / slices) +
        ", or raise block_size, so that the group has fewer slices.");
  }
}

void warn_of_few_blocks(PlanningContext ctx, const Plan& plan) {
  if (!is_sliced(plan.groups) || plan.num_blocks >= plan.config.min_large_blocks) return;
  ctx.warn("The pool has " + std::to_string(plan.num_blocks) + " blocks to be cut into slices, " +
           "fewer than min_large_blocks=" + std::to_string(plan.config.min_large_blocks) +
           ": blocks that are used in part will take more of it than planned for.");
}

/// What `validate` finds wrong with a plan.
[[noreturn]] void reject(const std::string& what) { throw InvalidArgument("not a plan: " + what); }

void require_below(const std::string& what, int64_t index, size_t size) {
  if (index >= 0 && std::cmp_less(index, size)) return;
  reject(what + " " + std::to_string(index) + " does not exist; there are " + std::to_string(size));
}

void validate_groups(const Plan& plan, const KVCacheGroups& groups) {
  const auto require_spec = [&](SpecId id) { require_below("spec", id.value, plan.specs->size()); };
  const auto require_layer = [&](LayerId id) {
    require_below("layer", id.value, plan.names->size());
  };
  for (const KVCacheGroup& g : groups) {
    require_spec(g.spec);
    for (LayerId layer : g.layers) require_layer(layer);
    if (g.slices < 1) reject("a group has " + std::to_string(g.slices) + " slices");
    if (!g.is_uniform_type()) continue;
    for (const LayerSpec& l : *g.layer_specs) {
      require_layer(l.layer);
      require_spec(l.spec);
    }
  }
}

}  // namespace

const StagePlan& Plan::stage_of(size_t worker) const {
  require_below("worker", static_cast<int64_t>(worker), workers.size());
  require_below("stage", static_cast<int64_t>(workers[worker].stage), stages.size());
  return stages[workers[worker].stage];
}

void validate(const Plan& plan) {
  validate(plan.config);
  if (!plan.names || !plan.specs) reject("it has no tables of names and specs");
  if (plan.workers.empty()) reject("it has no workers");
  if (plan.num_blocks < 0) reject("num_blocks is " + std::to_string(plan.num_blocks));
  validate_groups(plan, plan.groups);
  for (size_t w = 0; w < plan.workers.size(); ++w) {
    const StagePlan& stage = plan.stage_of(w);
    if (stage.groups.size() == plan.groups.size()) continue;
    reject("worker " + std::to_string(w) + " has " + std::to_string(stage.groups.size()) +
           " groups, the model " + std::to_string(plan.groups.size()));
  }
  for (const StagePlan& stage : plan.stages) {
    validate_groups(plan, stage.groups);
    if (stage.bytes_per_block < 0 || (stage.bytes_per_block == 0 && stage.num_layers > 0)) {
      reject("a block takes " + std::to_string(stage.bytes_per_block) + " bytes");
    }
    for (const KVCacheTensor& t : stage.tensors) {
      for (LayerId layer : t.layers) require_below("layer", layer.value, plan.names->size());
    }
  }
}

Plan plan(const PlanRequest& request, const PlanningConfig& config) {
  validate_request(request, config);
  // The request stays as it is: new specs go into a copy.
  auto specs = std::make_shared<SpecTable>(request.specs());
  Plan result;
  result.config = config;
  result.requested_max_model_len = config.max_model_len;
  result.names = request.share_names();
  const PlanningContext ctx{*request.names(), *specs, result.notices};

  result.groups = request.groups() ? *request.groups()
                                   : get_global_kv_cache_groups(ctx, config, request.layer_lists(),
                                                                smallest_memory(request));
  std::vector<Stage> stages = prepare_stages(ctx, config, request, result.groups);
  const std::vector<WorkerMemory> memory = effective_memory(ctx, config, request, stages);
  if (config.auto_fit) {
    result.config.max_model_len = fit_length(ctx, config, request, stages, memory);
  }
  const std::vector<int64_t> needed = check_admission(ctx, result.config, request, stages, memory);

  const std::vector<int64_t> blocks = worker_num_blocks(config, request, stages, memory);
  result.num_blocks = *std::min_element(blocks.begin(), blocks.end());
  result.workers.reserve(memory.size());
  for (size_t w = 0; w < memory.size(); ++w) {
    const PlanRequest::Worker& worker = request.workers()[w];
    result.workers.push_back(
        {worker.layers_index, worker.available_bytes, memory[w].effective_bytes, blocks[w]});
  }
  check_block_ids(result);
  warn_of_few_blocks(ctx, result);
  // All workers take the smallest count, and their buffers shrink with it.
  for (size_t s = 0; s < stages.size(); ++s) {
    result.stages.push_back(stages[s].has_worker
                                ? finish_stage(ctx, result.config, std::move(stages[s]),
                                               request.layer_lists()[s].size(), result.num_blocks,
                                               needed[s])
                                : StagePlan{});
  }
  result.specs = std::move(specs);
  return result;
}

}  // namespace kvplan
