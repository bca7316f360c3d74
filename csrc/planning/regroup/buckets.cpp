#include "planning/regroup/buckets.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>

#include "kvplan/checked.h"
#include "kvplan/errors.h"

namespace kvplan::compact {
namespace {

constexpr size_t kMaxOptions = 512;  // of one bucket

/// vLLM serves both kinds with one manager of blocks; every other kind has its own.
SpecKind manager_kind(SpecKind kind) {
  return kind == SpecKind::kMLAAttention ? SpecKind::kFullAttention : kind;
}

/// Whether the two need the same blocks of a request, were they of one size.
bool same_demand(const PlanningConfig& config, const KVCacheSpec& a, const KVCacheSpec& b) {
  PageDemand da = page_demand(a, config);
  const PageDemand db = page_demand(b, config);
  da.block_size = db.block_size;
  return da == db;
}

bool may_share_bucket(PlanningContext ctx, const PlanningConfig& config, SpecId a, SpecId b) {
  const KVCacheSpec& sa = ctx.spec(a);
  const KVCacheSpec& sb = ctx.spec(b);
  if (manager_kind(sa.kind) != manager_kind(sb.kind) || sa.is_draft != sb.is_draft) return false;
  if (sa.kind == SpecKind::kHiddenStateCache) return false;  // a block table for each layer
  // A copy of a Mamba state is made by its layer's shape, so groups keep to one.
  if (sa.kind == SpecKind::kMamba) return ctx.specs.equal(a, b);
  return sa.dcp_sharded == sb.dcp_sharded && same_demand(config, sa, sb) &&
         is_uniform_with(sa, sb) && is_uniform_with(sb, sa);
}

int64_t layer_bytes(const KVCacheSpec& spec, KVCacheLayout layout) {
  return is_block_outermost(layout) ? page_size_bytes(spec) : layer_block_stride(spec);
}

Items count_items(const BlockOption& option, size_t part,
                  const std::vector<std::pair<LayerId, size_t>>& layers) {
  std::vector<int64_t> count(option.bytes.size());
  for (const auto& [layer, spec] : layers) ++count[spec];
  std::map<int64_t, int64_t, std::greater<>> by_bytes;
  for (size_t s = 0; s < count.size(); ++s) {
    if (option.part_of[s] == part && count[s] > 0) by_bytes[option.bytes[s]] += count[s];
  }
  Items items;
  for (const auto& [bytes, n] : by_bytes) {
    items.bytes.push_back(bytes);
    items.count.push_back(n);
  }
  return items;
}

BlockOption make_option(PlanningContext ctx, const PlanningConfig& config, const Bucket& bucket,
                        const std::vector<const KVCacheSpec*>& specs) {
  const int64_t length = config.reference_len();
  BlockOption option;
  std::vector<int64_t> block_sizes;
  for (const KVCacheSpec* spec : specs) {
    option.specs.push_back(ctx.specs.intern(*spec));
    option.bytes.push_back(layer_bytes(*spec, config.kv_cache_layout));
    if (is_block_outermost(config.kv_cache_layout)) {
      option.stride_alignment = checked::lcm(
          option.stride_alignment, get_block_stride_alignment(*spec), "block stride alignment");
    }
    const auto it = std::find(block_sizes.begin(), block_sizes.end(), spec->block_size);
    option.part_of.push_back(static_cast<size_t>(it - block_sizes.begin()));
    if (it != block_sizes.end()) continue;
    block_sizes.push_back(spec->block_size);
    option.parts.emplace_back().pages = page_demand(*spec, config).pages(length);
  }
  for (size_t p = 0; p < option.parts.size(); ++p) {
    Part& part = option.parts[p];
    for (const auto& layers : bucket.stages) {
      part.items.push_back(count_items(option, p, layers));
      const Items& items = part.items.back();
      if (items.bytes.empty()) continue;
      part.largest_item =
          std::max(part.largest_item, bucket.splittable ? items.bytes[0] : items.total_bytes());
    }
    option.largest_item = std::max(option.largest_item, part.largest_item);
  }
  return option;
}

/// Every combination, or where those are too many, those of one multiple of all blocks.
bool combine(const std::vector<std::vector<KVCacheSpec>>& choices,
             std::vector<std::vector<const KVCacheSpec*>>& combinations) {
  double num_combinations = 1;
  for (const auto& c : choices) num_combinations *= static_cast<double>(c.size());
  if (num_combinations <= static_cast<double>(kMaxOptions)) {
    std::vector<const KVCacheSpec*> chosen(choices.size());
    const std::function<void(size_t)> extend = [&](size_t i) {
      if (i == choices.size()) {
        combinations.push_back(chosen);
        return;
      }
      for (const KVCacheSpec& spec : choices[i]) {
        chosen[i] = &spec;
        extend(i + 1);
      }
    };
    extend(0);
    return true;
  }
  for (const KVCacheSpec& first : choices[0]) {
    const int64_t base = choices[0].front().block_size;
    std::vector<const KVCacheSpec*> chosen;
    for (const auto& c : choices) {
      const auto it = std::find_if(c.begin(), c.end(), [&](const KVCacheSpec& s) {
        return s.block_size * base == first.block_size * c.front().block_size;
      });
      if (it != c.end()) chosen.push_back(&*it);
    }
    if (chosen.size() == choices.size()) combinations.push_back(std::move(chosen));
  }
  return false;
}

}  // namespace

std::vector<Bucket> make_buckets(PlanningContext ctx, const PlanningConfig& config,
                                 const std::vector<StagedLayer>& layers, size_t num_stages,
                                 bool split_drafts) {
  struct Place {
    size_t bucket;
    size_t spec;
  };
  std::vector<Bucket> buckets;
  std::vector<std::optional<Place>> place_of(ctx.specs.size());
  for (const StagedLayer& l : layers) {
    const SpecId id = l.layer.spec;
    std::optional<Place>& place = place_of[id.pos()];
    if (!place || ctx.spec(id).kind == SpecKind::kHiddenStateCache) {
      const auto it = std::find_if(buckets.begin(), buckets.end(), [&](const Bucket& b) {
        return std::all_of(b.specs.begin(), b.specs.end(),
                           [&](SpecId other) { return may_share_bucket(ctx, config, other, id); });
      });
      place = Place{static_cast<size_t>(it - buckets.begin()), 0};
      if (it == buckets.end()) {
        Bucket& bucket = buckets.emplace_back();
        bucket.stages.resize(num_stages);
        bucket.splittable = !ctx.spec(id).is_draft || split_drafts;
      }
      std::vector<SpecId>& specs = buckets[place->bucket].specs;
      place->spec = specs.size();
      specs.push_back(id);
    }
    buckets[place->bucket].stages[l.stage].emplace_back(l.layer.layer, place->spec);
  }
  return buckets;
}

bool set_options(PlanningContext ctx, const PlanningConfig& config, Bucket& bucket,
                 const std::vector<std::vector<KVCacheSpec>>& choices) {
  std::vector<std::vector<const KVCacheSpec*>> combinations;
  const bool all = combine(choices, combinations);
  for (const auto& specs : combinations) {
    bucket.options.push_back(make_option(ctx, config, bucket, specs));
  }
  const auto in_one_group = [](const BlockOption& o) { return o.parts.size() == 1; };
  if (!bucket.splittable &&
      std::any_of(bucket.options.begin(), bucket.options.end(), in_one_group)) {
    std::erase_if(bucket.options, [&](const BlockOption& o) { return !in_one_group(o); });
  }
  return all;
}

}  // namespace kvplan::compact
