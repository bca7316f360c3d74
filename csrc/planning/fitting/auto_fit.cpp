#include "kvplan/planning/auto_fit.h"

#include <algorithm>
#include <cctype>
#include <string>
#include <vector>

#include "kvplan/checked.h"
#include "kvplan/page_demand.h"
#include "kvplan/planning/global_groups.h"
#include "kvplan/planning/placement.h"
#include "kvplan/planning/request_demand.h"
#include "planning/fitting/admission.h"

namespace kvplan {
namespace {

std::string device_name(const PlanningConfig& config) {
  if (config.device_type == "cuda") return "GPU";
  std::string name = config.device_type;
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return name;
}

}  // namespace

int64_t auto_fit_max_model_len(PlanningContext ctx, const PlanningConfig& config,
                               std::span<const FitCandidate> workers) {
  const int64_t requested = config.max_model_len;
  int64_t fitted = requested;
  const FitCandidate* limiting = nullptr;  // the first worker that allows least
  const FitCandidate* first = nullptr;
  for (const FitCandidate& w : workers) {
    if (w.groups->empty()) continue;
    if (first == nullptr) first = &w;
    const int64_t length = estimate_max_model_len(RequestDemand(ctx, *w.groups, config),
                                                  w.bytes_per_block, w.available_bytes, requested);
    const bool earlier = limiting != nullptr && length == fitted && w.worker < limiting->worker;
    if (length < fitted || earlier) {
      fitted = length;
      limiting = &w;
    }
  }
  if (first == nullptr) {
    ctx.info("Auto-fit max_model_len: attention-free model, using derived max_model_len=" +
             std::to_string(requested));
    return requested;
  }
  if (fitted <= 0) {
    throw_cannot_auto_fit(config, limiting->worker, limiting->bytes_per_block,
                          limiting->available_bytes);
  }
  const int64_t available = (limiting != nullptr ? limiting : first)->available_bytes;
  const std::string memory =
      " in available KV cache memory (" + format_bytes(available) + " " + device_name(config) + ")";
  if (fitted == requested) {
    ctx.info("Auto-fit max_model_len: full model context length " + std::to_string(requested) +
             " fits" + memory);
  } else {
    ctx.info("Auto-fit max_model_len: reduced from " + std::to_string(requested) + " to " +
             std::to_string(fitted) + " to fit" + memory);
  }
  return fitted;
}

int64_t estimate_max_model_len(SpecList specs, PlanningConfig config, int64_t available_bytes) {
  return largest_that_fits(config.max_model_len, [&](int64_t length) {
    config.max_model_len = length;
    return max_memory_usage_bytes(specs, config) <= available_bytes;
  });
}

void check_layers_admission(PlanningContext ctx, const PlanningConfig& config,
                            const LayerSpecs& layers, int64_t available_bytes) {
  LayerSpecs grouped = layers;
  const KVCacheGroups groups = group_as_configured(ctx, config, grouped);
  const int64_t block = pool_bytes_per_block(ctx, groups, config.kv_cache_layout);
  std::vector<const KVCacheSpec*> specs;
  for (const LayerSpec& l : layers) specs.push_back(&ctx.spec(l));
  const auto bytes = [&](const PlanningConfig& c) { return max_memory_usage_bytes(specs, c); };
  const int64_t usable = checked::add(available_bytes, -block, "usable memory");
  check_enough_kv_cache_memory(config, {0, block, usable, bytes}, bytes(config));
}

}  // namespace kvplan
