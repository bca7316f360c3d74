#include "kvplan/planning/request_demand.h"

#include <algorithm>

#include "kvplan/checked.h"
#include "planning/fitting/admission.h"

namespace kvplan {

std::vector<PageDemand> group_demands(PlanningContext ctx, const KVCacheGroup& group,
                                      const PlanningConfig& config) {
  if (!group.is_uniform_type()) return {page_demand(ctx.spec(group.spec), config)};
  std::vector<PageDemand> demands;
  std::vector<bool> seen(ctx.specs.size());
  for (const LayerSpec& l : *group.layer_specs) {
    if (seen[l.spec.pos()]) continue;
    seen[l.spec.pos()] = true;
    const PageDemand demand = page_demand(ctx.spec(l), config);
    if (std::find(demands.begin(), demands.end(), demand) == demands.end())
      demands.push_back(demand);
  }
  return demands;
}

int64_t pages(std::span<const PageDemand> demands, int64_t model_len) {
  int64_t most = 0;
  for (const PageDemand& d : demands) most = std::max(most, d.pages(model_len));
  return most;
}

RequestDemand::RequestDemand(PlanningContext ctx, const KVCacheGroups& groups,
                             const PlanningConfig& config) {
  for (const KVCacheGroup& g : groups) {
    if (g.host_resident) continue;
    std::vector<PageDemand> demands = group_demands(ctx, g, config);
    const auto same = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) {
      return e.demands == demands && e.slices == g.slices;
    });
    if (same != entries_.end()) {
      ++same->count;
    } else {
      entries_.push_back({std::move(demands), g.slices, 1});
    }
  }
}

int64_t RequestDemand::total_blocks(int64_t model_len) const {
  int64_t total = 0;
  for (const Entry& e : entries_) {
    const int64_t blocks = checked::cdiv(pages(e.demands, model_len), e.slices);
    total = checked::add(total, checked::mul(blocks, e.count, "blocks of a request"),
                         "blocks of a request");
  }
  return total;
}

int64_t max_memory_usage_bytes_from_groups(PlanningContext ctx, const KVCacheGroups& groups,
                                           const PlanningConfig& config, int64_t bytes_per_block) {
  return checked::mul(bytes_per_block,
                      RequestDemand(ctx, groups, config).total_blocks(config.max_model_len),
                      "bytes of one request");
}

int64_t estimate_max_model_len(const RequestDemand& demand, int64_t bytes_per_block,
                               int64_t available_bytes, int64_t max_model_len) {
  if (available_bytes < 0) return 0;
  // Compared in blocks: the bytes of a candidate length may leave the 64-bit range.
  return largest_that_fits(max_model_len, [&](int64_t length) {
    return bytes_per_block <= 0 || demand.total_blocks(length) <= available_bytes / bytes_per_block;
  });
}

}  // namespace kvplan
