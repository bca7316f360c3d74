#include "kvplan/planning/packed_grouping.h"

#include <algorithm>
#include <string>

#include "kvplan/checked.h"
#include "kvplan/planning/approximate_gcd.h"
#include "kvplan/planning/uniformity.h"
#include "planning/specs/uniformity.h"

namespace kvplan {
namespace {

/// Layers of one page size, within a bucket.
struct PageClass {
  int64_t page_size_bytes;
  LayerSpecs layers;
};

/// Layers that may share a block table.
struct TypeBucket {
  LayerSpecs layers;
  std::vector<PageClass> pages;  // in order of appearance

  int64_t num_layers() const { return static_cast<int64_t>(layers.size()); }
  /// One layer of each page size makes a repeat; balanced buckets consist of whole repeats.
  bool balanced() const {
    return std::all_of(pages.begin(), pages.end(), [&](const PageClass& p) {
      return p.layers.size() == pages[0].layers.size();
    });
  }
  int64_t max_layers_per_page_size() const {
    size_t n = 0;
    for (const PageClass& p : pages) n = std::max(n, p.layers.size());
    return static_cast<int64_t>(n);
  }
  /// Page bytes of the largest of `n` groups that the bucket splits into.
  int64_t widest_group_bytes(int64_t n) const {
    int64_t bytes = 0;
    for (const PageClass& p : pages) {
      const int64_t n_layers = checked::cdiv(static_cast<int64_t>(p.layers.size()), n);
      bytes = checked::add(bytes, checked::mul(n_layers, p.page_size_bytes, "group width"),
                           "group width");
    }
    return bytes;
  }
};

void add_layer(PlanningContext ctx, TypeBucket& bucket, const LayerSpec& layer) {
  const int64_t page = ctx.page(layer.spec);
  auto it = std::find_if(bucket.pages.begin(), bucket.pages.end(),
                         [&](const PageClass& p) { return p.page_size_bytes == page; });
  if (it == bucket.pages.end()) it = bucket.pages.insert(it, PageClass{page, {}});
  it->layers.push_back(layer);
  bucket.layers.push_back(layer);
}

std::vector<TypeBucket> bucket_by_type(PlanningContext ctx, const LayerSpecs& layers) {
  std::vector<TypeBucket> buckets;
  std::vector<int32_t> bucket_of(ctx.specs.size(), -1);
  for (const LayerSpec& l : layers) {
    int32_t& index = bucket_of[l.spec.pos()];
    if (index < 0) {
      const auto it = std::find_if(buckets.begin(), buckets.end(), [&](const TypeBucket& b) {
        return may_share_group(ctx, b.layers[0].spec, l.spec);
      });
      index = static_cast<int32_t>(it - buckets.begin());
      if (it == buckets.end()) buckets.emplace_back();
    }
    add_layer(ctx, buckets[static_cast<size_t>(index)], l);
  }
  return buckets;
}

bool has_mixed_pages(PlanningContext ctx, const LayerSpecs& layers) {
  return std::any_of(layers.begin(), layers.end(), [&](const LayerSpec& l) {
    return ctx.page(l.spec) != ctx.page(layers[0].spec);
  });
}

/// How many repeats of a bucket one group holds; none where no bucket mixes page sizes in a
/// balanced way, and nothing has to be packed.
std::optional<int64_t> choose_repeats_per_group(const std::vector<TypeBucket>& buckets) {
  // Balanced buckets with several page sizes stay whole, so the largest of them sets the floor;
  // larger buckets of one page size are split down towards it.
  int64_t floor = 0;
  std::vector<int64_t> repeats;
  for (const TypeBucket& b : buckets) {
    if (!b.balanced()) continue;
    repeats.push_back(b.max_layers_per_page_size());
    if (b.pages.size() > 1) floor = std::max(floor, b.max_layers_per_page_size());
  }
  if (floor == 0) return std::nullopt;
  return approximate_gcd(repeats, floor);
}

/// Deals the repeats (one layer of each page size) out to `num_groups` groups. Layers beyond the
/// last whole repeat are left out, which the partition check reports.
void deal_repeats(PlanningContext ctx, const TypeBucket& bucket, int64_t num_groups,
                  KVCacheGroups& groups) {
  size_t num_repeats = bucket.pages[0].layers.size();
  for (const PageClass& p : bucket.pages) num_repeats = std::min(num_repeats, p.layers.size());
  for (size_t i = 0; i < static_cast<size_t>(num_groups); ++i) {
    LayerSpecs members;
    for (size_t r = i; r < num_repeats; r += static_cast<size_t>(num_groups)) {
      for (const PageClass& p : bucket.pages) members.push_back(p.layers[r]);
    }
    // "Same type" is not symmetric: a sliding window takes in the MLA kind, but not the reverse. So
    // a group that begins with another spec than its bucket need not be of one type.
    if (!members.empty() && members[0].spec != bucket.layers[0].spec &&
        !is_uniform_type(ctx, members)) {
      throw InconsistentSpec("layer " + ctx.name(members[0].layer) +
                             " begins a group whose other layers are not of its type (" +
                             std::string(class_name(ctx.spec(members[0]).kind)) + ")");
    }
    groups.push_back(create_uniform_type_group(std::move(members)));
  }
}

}  // namespace

std::optional<KVCacheGroups> get_packed_kv_cache_groups(PlanningContext ctx, KVCacheLayout layout,
                                                        const LayerSpecs& layers) {
  // Pages are asked for even where the layout settles the matter, so that a spec that contradicts
  // itself is reported here, as in vLLM.
  const bool mixed_pages = has_mixed_pages(ctx, layers);
  if (!is_block_outermost(layout) || !mixed_pages) return std::nullopt;

  const std::vector<TypeBucket> buckets = bucket_by_type(ctx, layers);
  const std::optional<int64_t> repeats_per_group = choose_repeats_per_group(buckets);

  const auto num_groups_for = [&](const TypeBucket& b) -> int64_t {
    if (!b.balanced() || !repeats_per_group) return 1;
    return checked::cdiv(b.max_layers_per_page_size(), *repeats_per_group);
  };
  // Buckets that may go down to one state a group, whatever the others do.
  const auto is_state_bucket = [&](const TypeBucket& b) {
    const SpecKind kind = ctx.spec(b.layers[0]).kind;
    if (kind == SpecKind::kMamba || kind == SpecKind::kCircularBuffer) return true;
    return !repeats_per_group && is_sliding_window(kind);
  };

  // What a block must hold in any case. State groups get as many states as fit into that, rather
  // than widen the block.
  int64_t anchor_bytes = 0;
  for (const TypeBucket& b : buckets) {
    const int64_t n = is_state_bucket(b) ? b.num_layers() : num_groups_for(b);
    anchor_bytes = std::max(anchor_bytes, b.widest_group_bytes(n));
  }

  KVCacheGroups groups;
  for (const TypeBucket& b : buckets) {
    int64_t num_groups = num_groups_for(b);
    if (anchor_bytes > 0 && is_state_bucket(b)) {
      const int64_t states_per_block =
          std::max<int64_t>(anchor_bytes / ctx.page(b.layers[0].spec), 1);
      num_groups = std::max(num_groups, checked::cdiv(b.num_layers(), states_per_block));
    }
    if (num_groups == 1) {
      groups.push_back(create_uniform_type_group(b.layers));
    } else {
      deal_repeats(ctx, b, num_groups, groups);
    }
  }
  return groups;
}

}  // namespace kvplan
