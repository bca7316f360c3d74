#include "kvplan/planning/auto_fit.h"

#include <algorithm>
#include <cctype>
#include <string>

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

int64_t auto_fit_max_model_len(const PlanningContext& ctx, const PlanningConfig& config,
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

}  // namespace kvplan
