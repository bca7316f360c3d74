#include "kvplan/sliced.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

#include "kvplan/checked.h"
#include "kvplan/errors.h"
#include "kvplan/planning/global_groups.h"
#include "kvplan/planning/grouping.h"
#include "kvplan/planning/placement.h"
#include "kvplan/planning/request_demand.h"
#include "kvplan/planning/uniformity.h"
#include "planning/fitting/admission.h"
#include "planning/regroup/block_scaling.h"
#include "planning/regroup/buckets.h"
#include "planning/regroup/slice_search.h"
#include "planning/regroup/stages.h"
#include "planning/specs/uniformity.h"

namespace kvplan {
namespace sliced {
namespace {

using compact::BlockOption;
using compact::Bucket;
using compact::Stages;

/// What another block size must save of a bucket's bytes to be looked at.
constexpr double kWorthScaling = 0.002;
/// How much wider than the narrowest a kind's page may be for that, or to unite layers: the pool's
/// blocks are at least as wide.
constexpr int64_t kMostWidening = 4;
constexpr size_t kMaxOptionsOfBucket = 4;
constexpr size_t kMaxCombinations = 64;
constexpr int64_t kFewScales = 16;  // of a block, but where more unites layers
constexpr int64_t kMaxScale = 1024;
constexpr size_t kMaxBlocksOfSpec = 16;

/// A larger pool asks for no wider blocks: the prefix cache loses a whole block at a time.
constexpr int64_t kMostRequests = 64;

/// Blocks of one size of a bucket: a group to be.
SliceKind slice_kind(PlanningContext ctx, const BlockOption& option, size_t part) {
  SliceKind kind;
  kind.pages = option.parts[part].pages;
  kind.alignment = kSliceAlignment;
  for (size_t s = 0; s < option.specs.size(); ++s) {
    if (option.part_of[s] != part) continue;
    kind.alignment = checked::lcm(
        kind.alignment, get_block_stride_alignment(ctx.spec(option.specs[s])), "slice alignment");
  }
  for (const compact::Items& items : option.parts[part].items) {
    kind.slice_bytes = std::max(kind.slice_bytes, items.total_bytes());
  }
  kind.slice_bytes = checked::round_up(kind.slice_bytes, kind.alignment, "bytes of a slice");
  return kind;
}

/// Leaves what `useful_options` may want: of a single spec the smallest blocks, of several also the
/// smallest that all have in common.
void keep_small_blocks(std::vector<std::vector<KVCacheSpec>>& choices) {
  if (choices.size() == 1) {
    if (choices[0].size() > kMaxBlocksOfSpec) choices[0].resize(kMaxBlocksOfSpec);
    return;
  }
  const auto has = [](const std::vector<KVCacheSpec>& list, int64_t block_size) {
    return std::any_of(list.begin(), list.end(),
                       [&](const KVCacheSpec& s) { return s.block_size == block_size; });
  };
  // All combinations of these are looked at.
  const size_t most = choices.size() <= 3 ? 4 : choices.size() <= 5 ? 2 : 1;
  std::vector<int64_t> common;
  for (const KVCacheSpec& s : choices[0]) {
    if (common.size() == most) break;
    if (std::all_of(choices.begin(), choices.end(),
                    [&](const auto& list) { return has(list, s.block_size); })) {
      common.push_back(s.block_size);
    }
  }
  for (std::vector<KVCacheSpec>& list : choices) {
    const int64_t own = list.front().block_size;
    std::erase_if(list, [&](const KVCacheSpec& s) {
      return s.block_size != own &&
             std::find(common.begin(), common.end(), s.block_size) == common.end();
    });
  }
}

/// A choice of block sizes of one bucket.
struct KindOption {
  size_t option;
  std::vector<SliceKind> kinds;  // of its parts

  int64_t widest() const {
    int64_t bytes = 0;
    for (const SliceKind& k : kinds) bytes = std::max(bytes, k.slice_bytes);
    return bytes;
  }
  double request_bytes() const {
    double bytes = 0;
    for (const SliceKind& k : kinds) {
      bytes += static_cast<double>(k.pages) * static_cast<double>(k.slice_bytes);
    }
    return bytes;
  }
};

/// The block sizes worth a look: those with the fewest groups, narrow pages first.
///
/// A block of x times the tokens in k slices takes what the block itself takes in `x * k` slices,
/// or more. So larger blocks are of use only where they unite layers in one group, or where their
/// pages are padded less to what a kernel asks for.
std::vector<KindOption> useful_options(PlanningContext ctx, const Bucket& bucket) {
  std::vector<KindOption> all;
  int64_t narrowest = std::numeric_limits<int64_t>::max();
  for (size_t i = 0; i < bucket.options.size(); ++i) {
    const BlockOption& option = bucket.options[i];
    KindOption& k = all.emplace_back(KindOption{i, {}});
    for (size_t p = 0; p < option.parts.size(); ++p) {
      k.kinds.push_back(slice_kind(ctx, option, p));
    }
    narrowest = std::min(narrowest, k.widest());
  }
  std::erase_if(all, [&](const KindOption& k) { return k.widest() / kMostWidening > narrowest; });
  size_t fewest = all[0].kinds.size();
  for (const KindOption& k : all) fewest = std::min(fewest, k.kinds.size());
  std::erase_if(all, [&](const KindOption& k) { return k.kinds.size() != fewest; });
  std::stable_sort(all.begin(), all.end(), [](const KindOption& a, const KindOption& b) {
    return a.widest() != b.widest() ? a.widest() < b.widest()
                                    : a.request_bytes() < b.request_bytes();
  });
  std::vector<KindOption> useful;
  for (KindOption& o : all) {
    if (useful.size() == kMaxOptionsOfBucket) break;
    if (useful.empty() || o.request_bytes() < useful.back().request_bytes() * (1 - kWorthScaling)) {
      useful.push_back(std::move(o));
    }
  }
  return useful;
}

/// The alignments of all groups must have a common multiple that a block can be.
void require_common_alignment(const std::vector<SliceKind>& kinds, int64_t pool_bytes) {
  int64_t widest = 0;
  for (const SliceKind& k : kinds) widest = std::max(widest, k.slice_bytes);
  const int64_t limit = std::max(pool_bytes, widest);
  int64_t common = 1;
  for (const SliceKind& k : kinds) {
    const int64_t factor = k.alignment / std::gcd(common, k.alignment);
    if (factor > limit / common) {
      throw InvalidArgument(
          "no block of at most " + std::to_string(limit) +
          " bytes can be cut into aligned slices for all groups: their block strides are to be "
          "multiples of " +
          std::to_string(common) + " and of " + std::to_string(k.alignment) +
          " bytes. Lower the layers' block_stride_alignment, or choose grouping=\"vllm\" with a "
          "layer-outermost layout.");
    }
    common *= factor;
  }
}

/// The kinds of cache of a model, and the best way to cut blocks for them.
class Model {
 public:
  Model(PlanningContext ctx, const PlanningConfig& config, const LayerSpecs& layers,
        const std::vector<LayerSpecs>& layer_lists, PoolBytes pool_bytes)
      : ctx_(ctx), config_(config), stages_(compact::find_stages(ctx, layers, layer_lists)) {
    if (layers.empty()) return;
    lower_bound_bytes_ = compact::lower_bound_bytes(ctx, config, stages_, layers);
    pool_bytes_ = pool_bytes.value_or(lower_bound_bytes_);
    if (lower_bound_bytes_ <= pool_bytes_ / kMostRequests) {
      pool_bytes_ = lower_bound_bytes_ * kMostRequests;
    }
    make_kinds(layers);
    for (const std::vector<KindOption>& o : options_) num_kinds_ += o[0].kinds.size();
  }

  size_t num_kinds() const { return num_kinds_; }
  const Stages& stages() const { return stages_; }
  int64_t lower_bound_bytes() const { return lower_bound_bytes_; }
  bool exact() const { return choice_.exact; }

  /// The groups with their slices.
  KVCacheGroups groups() {
    choose();
    KVCacheGroups result;
    for (size_t b = 0; b < buckets_.size(); ++b) {
      const KindOption& o = options_[b][chosen_[b]];
      const BlockOption& option = buckets_[b].options[o.option];
      for (size_t p = 0; p < option.parts.size(); ++p) {
        KVCacheGroup group = make_group(buckets_[b], option, p);
        group.slices = choice_.slices[result.size()];
        result.push_back(std::move(group));
      }
    }
    return result;
  }

 private:
  void make_kinds(const LayerSpecs& layers) {
    std::vector<compact::StagedLayer> staged;
    for (const LayerSpec& l : layers) staged.push_back({l, stages_.stage_of[l.layer.pos()]});
    buckets_ = compact::make_buckets(ctx_, config_, staged, stages_.count, false);
    for (Bucket& b : buckets_) {
      int64_t common_block = 1;
      for (SpecId id : b.specs) common_block = common_multiple(common_block, id);
      std::vector<std::vector<KVCacheSpec>> choices;
      choices.reserve(b.specs.size());
      for (SpecId id : b.specs) choices.push_back(choices_of(ctx_.spec(id), common_block));
      keep_small_blocks(choices);
      compact::set_options(ctx_, config_, b, choices);
      options_.push_back(useful_options(ctx_, b));
    }
  }

  /// Cut off where no block would be scaled that far.
  int64_t common_multiple(int64_t block, SpecId id) const {
    const int64_t factor = ctx_.spec(id).block_size / std::gcd(block, ctx_.spec(id).block_size);
    return factor > std::numeric_limits<int64_t>::max() / block ? block : block * factor;
  }

  // Where heads lie outside layers (BHLNC) pages of several sizes cannot lie side by side.
  std::vector<KVCacheSpec> choices_of(const KVCacheSpec& spec, int64_t common_block) const {
    if (spec.kind == SpecKind::kHiddenStateCache) return {spec};
    if (!is_block_compact(config_.kv_cache_layout)) return {spec};
    const int64_t scale = std::min(std::max(kFewScales, common_block / spec.block_size), kMaxScale);
    return compact::choices_up_to_page(
        spec, config_, checked::mul(scale, page_size_bytes(spec), "page of a scaled block"));
  }

  void choose() {
    size_t combinations = 1;
    for (std::vector<KindOption>& o : options_) {
      if (combinations * o.size() > kMaxCombinations) o.resize(1);
      combinations *= o.size();
    }
    std::vector<size_t> odometer(options_.size());
    for (size_t c = 0; c < combinations; ++c) {
      size_t rest = c;
      SliceProblem problem;
      problem.pool_bytes = pool_bytes_;
      problem.max_block_bytes = pool_bytes_ / config_.min_large_blocks;
      for (size_t b = 0; b < options_.size(); ++b) {
        odometer[b] = rest % options_[b].size();
        rest /= options_[b].size();
        const std::vector<SliceKind>& kinds = options_[b][odometer[b]].kinds;
        problem.kinds.insert(problem.kinds.end(), kinds.begin(), kinds.end());
      }
      require_common_alignment(problem.kinds, pool_bytes_);
      SliceChoice choice = choose_slices(problem);
      if (c > 0 && choice.cost >= choice_.cost) continue;
      choice_ = std::move(choice);
      chosen_ = odometer;
    }
  }

  KVCacheGroup make_group(const Bucket& bucket, const BlockOption& option, size_t part) const {
    LayerSpecs layers;
    for (const auto& stage : bucket.stages) {
      for (const auto& [layer, spec] : stage) {
        if (option.part_of[spec] == part) layers.push_back({layer, option.specs[spec]});
      }
    }
    // One spec where all are equal, as in vLLM's groups of one page size.
    const bool equal = std::all_of(layers.begin(), layers.end(), [&](const LayerSpec& l) {
      return ctx_.specs.equal(l.spec, layers[0].spec);
    });
    return equal ? create_kv_cache_group(ctx_, layers) : create_uniform_type_group(layers);
  }

  PlanningContext ctx_;
  const PlanningConfig& config_;
  Stages stages_;
  std::vector<Bucket> buckets_;
  std::vector<std::vector<KindOption>> options_;  // of each bucket
  std::vector<size_t> chosen_;                    // of each bucket
  SliceChoice choice_;
  size_t num_kinds_ = 0;
  int64_t lower_bound_bytes_ = 0;
  int64_t pool_bytes_ = 0;
};

/// vLLM's own groups and what they cost; none where vLLM cannot group the model.
struct VllmGrouping {
  KVCacheGroups groups;
  GroupingPoint point;
  Notices notices;
};

std::optional<VllmGrouping> group_like_vllm(PlanningContext ctx, const PlanningConfig& config,
                                            const Stages& stages, LayerSpecs layers) {
  VllmGrouping own;
  const PlanningContext quiet{ctx.names, ctx.specs, own.notices};
  try {
    own.groups = get_kv_cache_groups(quiet, config, layers);
    if (!groups_partition_layers_exactly(own.groups, layers)) return std::nullopt;
    own.point = compact::evaluate(quiet, config, stages, own.groups);
  } catch (const Error&) {
    return std::nullopt;
  }
  return own;
}

SlicedPoint evaluate_slices(PlanningContext ctx, const PlanningConfig& config, const Stages& stages,
                            const KVCacheGroups& groups) {
  const GroupingPoint whole = compact::evaluate(ctx, config, stages, groups);
  SlicedPoint p;
  p.num_groups = whole.num_groups;
  p.max_layers_per_group = whole.max_layers_per_group;
  p.bytes_per_block = whole.bytes_per_block;
  p.request_blocks = RequestDemand(ctx, groups, config).total_blocks(config.max_model_len);
  const auto slice_bytes = [&](const KVCacheGroup& g, int64_t length) {
    const int64_t held = pages(group_demands(ctx, g, config), length);
    return checked::cdiv(checked::mul(held, p.bytes_per_block, "bytes of one request"), g.slices);
  };
  for (const KVCacheGroup& g : groups) {
    p.slices.push_back(g.slices);
    p.request_bytes =
        checked::add(p.request_bytes, slice_bytes(g, config.reference_len()), "request");
    p.min_request_bytes = checked::add(p.min_request_bytes, slice_bytes(g, 1), "one token");
  }
  return p;
}

std::string list(const std::vector<int64_t>& numbers) {
  std::string text;
  for (int64_t n : numbers) text += (text.empty() ? "" : ", ") + std::to_string(n);
  return text;
}

/// Why a model's blocks are not to be cut; empty if they may be.
std::string nothing_to_cut(PlanningContext ctx, const PlanningConfig& config,
                           const LayerSpecs& layers) {
  if (config.disable_hybrid_kv_cache_manager) {
    return "with disable_hybrid_kv_cache_manager all layers are of one kind";
  }
  for (const LayerSpec& l : layers) {
    if (is_hisparse(ctx.spec(l).kind)) {
      return "layer " + ctx.name(l.layer) + " is HiSparse, whose groups are vLLM's";
    }
  }
  return {};
}

void require_sliceable(const PlanningConfig& config, size_t num_kinds) {
  if (is_block_outermost(config.kv_cache_layout)) return;
  throw LayoutError("KV cache layout " + std::string(to_string(config.kv_cache_layout)) +
                    " keeps each layer in a region of its own, so that grouping=\"sliced\" cannot "
                    "cut blocks for this model's " +
                    std::to_string(num_kinds) +
                    " kinds of cache. Set VLLM_KV_CACHE_LAYOUT (kv_cache_layout) to a "
                    "block-outermost layout, e.g. BLHNC, or choose grouping=\"compact\".");
}

/// The sliced groups of a model and what they cost; `reason` where vLLM's own serve as well.
struct Sliced {
  KVCacheGroups groups;
  SlicedPoint point;
  int64_t lower_bound_bytes = 0;
  std::optional<VllmGrouping> vllm;
  std::string reason;
};

Sliced slice(PlanningContext ctx, const PlanningConfig& config, const LayerSpecs& layers,
             const std::vector<LayerSpecs>& layer_lists, PoolBytes pool_bytes) {
  Sliced s;
  s.reason = nothing_to_cut(ctx, config, layers);
  if (!s.reason.empty()) return s;
  Model model(ctx, config, layers, layer_lists, pool_bytes);
  if (model.num_kinds() <= 1) {
    s.reason = "the model has one kind of cache";
    return s;
  }
  s.vllm = group_like_vllm(ctx, config, model.stages(), layers);
  s.lower_bound_bytes = model.lower_bound_bytes();
  if (s.vllm && s.vllm->groups.size() == 1 && s.vllm->point.request_bytes <= s.lower_bound_bytes) {
    s.reason = "one group holds all layers without padding";
    return s;
  }
  require_sliceable(config, model.num_kinds());
  s.groups = model.groups();
  s.point = evaluate_slices(ctx, config, model.stages(), s.groups);
  s.point.exact = model.exact();
  return s;
}

std::string describe(const Sliced& s, int64_t length) {
  std::string text = "Sliced grouping: " + counted(s.point.num_groups, "group") + ", blocks of " +
                     std::to_string(s.point.bytes_per_block) + " bytes cut into " +
                     list(s.point.slices) + " slices; a request of " + std::to_string(length) +
                     " tokens takes " + format_bytes(s.point.request_bytes) + ", without padding " +
                     format_bytes(s.lower_bound_bytes);
  if (s.vllm) {
    text += ", with vLLM's own " + counted(s.vllm->point.num_groups, "group") + " " +
            format_bytes(s.vllm->point.request_bytes);
  }
  return text + ".";
}

}  // namespace
}  // namespace sliced

KVCacheGroups get_sliced_kv_cache_groups(PlanningContext ctx, const PlanningConfig& config,
                                         LayerSpecs& layers,
                                         const std::vector<LayerSpecs>& layer_lists,
                                         PoolBytes pool_bytes) {
  sliced::Sliced s = sliced::slice(ctx, config, layers, layer_lists, pool_bytes);
  if (!s.reason.empty()) {
    if (!layers.empty()) {
      ctx.info("Sliced grouping: nothing to cut, since " + s.reason + "; grouped as vLLM does.");
    }
    return get_kv_cache_groups(ctx, config, layers);
  }
  ctx.info(sliced::describe(s, config.reference_len()));
  if (s.vllm && s.point.request_bytes > s.vllm->point.request_bytes) {
    ctx.warn("Sliced grouping takes more bytes for a request of " +
             std::to_string(config.reference_len()) + " tokens (" +
             std::to_string(s.point.request_bytes) + ") than vLLM's own grouping (" +
             std::to_string(s.vllm->point.request_bytes) + "), whose groups number " +
             std::to_string(s.vllm->point.num_groups) + " instead of " +
             std::to_string(s.point.num_groups) +
             "; grouping=\"compact\" is never worse than vLLM's.");
  }
  return std::move(s.groups);
}

std::optional<SlicedPoint> sliced_point(const PlanRequest& request, const PlanningConfig& config) {
  validate(config);
  SpecTable specs = request.specs();
  Notices notices;
  const PlanningContext ctx{*request.names(), specs, notices};
  const LayerSpecs layers = merge_worker_layers(ctx, config, request.layer_lists());
  try {
    const sliced::Sliced s =
        sliced::slice(ctx, config, layers, request.layer_lists(), smallest_memory(request));
    if (!s.reason.empty()) return std::nullopt;
    return s.point;
  } catch (const LayoutError&) {
    return std::nullopt;
  }
}

}  // namespace kvplan
