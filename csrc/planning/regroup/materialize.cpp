#include "planning/regroup/materialize.h"

#include <algorithm>
#include <numeric>

#include "kvplan/checked.h"
#include "kvplan/planning/uniformity.h"
#include "planning/specs/uniformity.h"

namespace kvplan::compact {
namespace {

/// Puts a stage's layers into the bins that `packing` counts out, class by class and in turn, so
/// that neighbours in the model lie in different groups, as vLLM deals them.
void deal_stage(const BlockOption& option, size_t part, const Items& items, const Packing& packing,
                const std::vector<std::pair<LayerId, size_t>>& layers,
                std::vector<LayerSpecs>& groups) {
  for (size_t c = 0; c < items.bytes.size(); ++c) {
    std::vector<std::pair<LayerId, size_t>> members;
    for (const auto& l : layers) {
      if (option.part_of[l.second] != part) continue;
      if (option.bytes[l.second] == items.bytes[c]) members.push_back(l);
    }
    // Equal specs first, so that as few groups as possible hold several.
    std::stable_sort(members.begin(), members.end(),
                     [](const auto& a, const auto& b) { return a.second < b.second; });
    std::vector<int64_t> left;
    for (const std::vector<int64_t>& bin : packing) left.push_back(bin[c]);
    size_t bin = 0;
    for (const auto& [layer, spec] : members) {
      while (left[bin] == 0) bin = (bin + 1) % left.size();
      groups[bin].push_back({layer, option.specs[spec]});
      --left[bin];
      bin = (bin + 1) % left.size();
    }
  }
}

bool same_page(PlanningContext ctx, const std::vector<Bucket>& buckets, const PackedPoint& point) {
  int64_t page = 0;
  for (size_t b = 0; b < buckets.size(); ++b) {
    for (SpecId id : buckets[b].options[point.choices[b].option].specs) {
      if (page != 0 && ctx.page(id) != page) return false;
      page = ctx.page(id);
    }
  }
  return true;
}

/// One spec for all layers where they merge, as in vLLM's groups of one page size.
KVCacheGroup make_group(PlanningContext ctx, const LayerSpecs& layers, bool try_merge) {
  if (try_merge && is_kv_cache_spec_uniform(ctx, layers)) return create_kv_cache_group(ctx, layers);
  return create_uniform_type_group(layers);
}

int64_t most_layers(const Items& items, int64_t capacity, int64_t num_groups) {
  if (items.bytes.size() == 1) return checked::cdiv(items.count[0], num_groups);
  int64_t most = 0;
  for (const std::vector<int64_t>& bin : pack(items, capacity, num_groups)) {
    most = std::max(most, std::accumulate(bin.begin(), bin.end(), int64_t{0}));
  }
  return most;
}

}  // namespace

KVCacheGroups materialize(PlanningContext ctx, const PlanningConfig& config,
                          const std::vector<Bucket>& buckets, const PackedPoint& point) {
  const bool try_merge =
      !is_block_outermost(config.kv_cache_layout) || same_page(ctx, buckets, point);
  KVCacheGroups result;
  for (size_t b = 0; b < buckets.size(); ++b) {
    const Bucket& bucket = buckets[b];
    const BucketChoice& choice = point.choices[b];
    const BlockOption& option = bucket.options[choice.option];
    for (size_t p = 0; p < option.parts.size(); ++p) {
      std::vector<LayerSpecs> groups(static_cast<size_t>(choice.num_groups[p]));
      for (size_t s = 0; s < bucket.stages.size(); ++s) {
        const Items& items = option.parts[p].items[s];
        if (items.bytes.empty()) continue;
        deal_stage(option, p, items, pack(items, point.bytes_per_block, choice.num_groups[p]),
                   bucket.stages[s], groups);
      }
      for (const LayerSpecs& layers : groups) {
        result.push_back(make_group(ctx, layers, try_merge));
      }
    }
  }
  return result;
}

int64_t max_layers_per_group(const std::vector<Bucket>& buckets, const PackedPoint& point) {
  int64_t most = 0;
  for (size_t b = 0; b < buckets.size(); ++b) {
    const BucketChoice& choice = point.choices[b];
    const std::vector<Part>& parts = buckets[b].options[choice.option].parts;
    for (size_t p = 0; p < parts.size(); ++p) {
      for (const Items& items : parts[p].items) {
        if (items.bytes.empty()) continue;
        most = std::max(most, most_layers(items, point.bytes_per_block, choice.num_groups[p]));
      }
    }
  }
  return most;
}

}  // namespace kvplan::compact
