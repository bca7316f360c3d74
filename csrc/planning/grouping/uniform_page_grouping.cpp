#include "kvplan/planning/uniform_page_grouping.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include "kvplan/checked.h"
#include "kvplan/planning/uniformity.h"
#include "planning/specs/uniformity.h"

namespace kvplan {
namespace {

/// Layers whose specs merge into one.
struct MergeBucket {
  std::vector<SpecId> specs;  // one of each equality class
  LayerSpecs layers;
};

bool try_add(PlanningContext ctx, MergeBucket& bucket, SpecId spec) {
  bucket.specs.push_back(spec);
  try {
    merge_specs(ctx, bucket.specs);
    return true;
  } catch (const MergeError&) {
  } catch (const InvalidArgument&) {
  }
  bucket.specs.pop_back();
  return false;
}

std::vector<MergeBucket> bucket_by_merge(PlanningContext ctx, const LayerSpecs& layers) {
  // By equality class first, so that each distinct spec is merged once and its layers stay
  // together.
  const std::vector<SpecId> distinct = distinct_specs(ctx, layers);
  std::vector<size_t> class_of(ctx.specs.size());
  for (size_t i = 0; i < distinct.size(); ++i) {
    class_of[ctx.specs.equality_class(distinct[i]).pos()] = i;
  }
  std::vector<LayerSpecs> layers_of(distinct.size());
  for (const LayerSpec& l : layers) {
    layers_of[class_of[ctx.specs.equality_class(l.spec).pos()]].push_back(l);
  }

  std::vector<MergeBucket> buckets;
  detail::PositionIndex by_key;  // of what a bucket's specs have in common
  for (size_t i = 0; i < distinct.size(); ++i) {
    const size_t key = merge_key(ctx.spec(distinct[i]));
    size_t bucket =
        by_key.find(key, [&](size_t b) { return try_add(ctx, buckets[b], distinct[i]); });
    if (bucket == by_key.kNone) {
      bucket = buckets.size();
      buckets.push_back({{distinct[i]}, {}});
      by_key.add(key, bucket);
    }
    LayerSpecs& members = buckets[bucket].layers;
    members.insert(members.end(), layers_of[i].begin(), layers_of[i].end());
  }
  return buckets;
}

// The rarest type sets the width, unless the types are nearly equal in number: then the most
// frequent does, which pads one group instead of splitting one type in two.
size_t choose_group_size(const std::vector<MergeBucket>& buckets) {
  const auto [min, max] = std::minmax_element(
      buckets.begin(), buckets.end(),
      [](const auto& a, const auto& b) { return a.layers.size() < b.layers.size(); });
  return 2 * max->layers.size() < 3 * min->layers.size() ? max->layers.size() : min->layers.size();
}

void warn_padding_layers(PlanningContext ctx, size_t num_layers, size_t group_size) {
  const size_t missing = group_size - num_layers % group_size;
  if (missing == group_size) return;
  char percent[32];
  std::snprintf(percent, sizeof(percent), "%.2f",
                100.0 * static_cast<double>(missing) / static_cast<double>(num_layers));
  ctx.warn("Add " + std::to_string(missing) + " padding layers, may waste at most " + percent +
           "% KV cache memory");
}

}  // namespace

KVCacheGroups get_kv_cache_groups_uniform_page_size(PlanningContext ctx, const LayerSpecs& layers) {
  if (layers.empty()) throw InvalidArgument("no layers to group");
  const std::vector<MergeBucket> buckets = bucket_by_merge(ctx, layers);
  const size_t group_size = choose_group_size(buckets);
  KVCacheGroups groups;
  for (const MergeBucket& bucket : buckets) {
    const size_t num_layers = bucket.layers.size();
    warn_padding_layers(ctx, num_layers, group_size);
    // Dealt out one by one rather than in runs, so that every pipeline stage gets layers of every
    // group.
    const size_t num_groups = (num_layers + group_size - 1) / group_size;
    for (size_t i = 0; i < num_groups; ++i) {
      LayerSpecs members;
      for (size_t j = i; j < num_layers; j += num_groups) members.push_back(bucket.layers[j]);
      groups.push_back(create_kv_cache_group(ctx, members));
    }
  }
  return groups;
}

}  // namespace kvplan
