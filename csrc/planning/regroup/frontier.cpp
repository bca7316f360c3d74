#include <algorithm>
#include <exception>
#include <iterator>
#include <optional>
#include <string>

#include "kvplan/checked.h"
#include "kvplan/compact.h"
#include "kvplan/errors.h"
#include "kvplan/planning/global_groups.h"
#include "kvplan/planning/grouping.h"
#include "planning/fitting/admission.h"
#include "planning/grouping/hidden_state.h"
#include "planning/regroup/block_scaling.h"
#include "planning/regroup/materialize.h"
#include "planning/regroup/stages.h"
#include "planning/specs/uniformity.h"

namespace kvplan {
namespace compact {
namespace {

/// All that is known of a model before its groups are chosen.
class Model {
 public:
  Model(PlanningContext ctx, const PlanningConfig& config, LayerSpecs& layers,
        const std::vector<LayerSpecs>& layer_lists)
      : ctx_(ctx), config_(config), stages_(find_stages(ctx, layers, layer_lists)) {
    lower_bound_bytes_ = compact::lower_bound_bytes(ctx, config, stages_, layers);
    group_like_vllm(layers);
    const bool ideal = layers.empty() || (vllm_ && vllm_->num_groups == 1 &&
                                          vllm_->request_bytes == lower_bound_bytes_);
    // With the hybrid manager disabled all layers are to be alike; HiSparse groups are the
    // builder's.
    const bool fixed = config.disable_hybrid_kv_cache_manager || has_hisparse(layers);
    if (!ideal && !fixed && make_all_buckets(layers)) result_ = search(buckets_);
    proven_ = ideal || (!result_.points.empty() && result_.exact && all_options_);
    if (result_.points.empty() && !vllm_groups_) std::rethrow_exception(vllm_error_);
  }

  const std::optional<GroupingPoint>& vllm() const { return vllm_; }
  int64_t lower_bound_bytes() const { return lower_bound_bytes_; }
  /// Whether every point is proven to be the best for its number of groups.
  bool exact() const { return proven_; }

  /// The points that nothing beats, vLLM's among them where it is one.
  std::vector<GroupingPoint> points() const {
    std::vector<GroupingPoint> points;
    points.reserve(result_.points.size());
    for (const PackedPoint& p : result_.points) {
      points.push_back({.num_groups = p.num_groups,
                        .max_layers_per_group = max_layers_per_group(buckets_, p),
                        .bytes_per_block = p.bytes_per_block,
                        .request_blocks = p.request_blocks,
                        .request_bytes = p.request_bytes,
                        .min_request_bytes = min_request_bytes(p)});
    }
    if (vllm_) {
      const auto beats_vllm = [&](const GroupingPoint& p) {
        return p.num_groups <= vllm_->num_groups && p.request_bytes <= vllm_->request_bytes &&
               (p.num_groups < vllm_->num_groups || p.request_bytes < vllm_->request_bytes);
      };
      if (std::none_of(points.begin(), points.end(), beats_vllm)) {
        std::erase_if(points, [&](const GroupingPoint& p) {
          return p.num_groups >= vllm_->num_groups && p.request_bytes >= vllm_->request_bytes;
        });
        const auto after = std::find_if(points.begin(), points.end(), [&](const GroupingPoint& p) {
          return p.num_groups > vllm_->num_groups;
        });
        points.insert(after, *vllm_);
      }
    }
    for (GroupingPoint& p : points) p.bound_bytes = bound_for(p);
    return points;
  }

  /// The groups of one of `points()`.
  KVCacheGroups groups(const GroupingPoint& point) const {
    if (point.is_vllm) return *vllm_groups_;
    const auto it =
        std::find_if(result_.points.begin(), result_.points.end(), [&](const PackedPoint& p) {
          return p.num_groups == point.num_groups && p.request_bytes == point.request_bytes;
        });
    return materialize(ctx_, config_, buckets_, *it);
  }

  bool runnable(const KVCacheGroups& groups) const {
    return is_runnable(ctx_, config_, stages_, groups);
  }

  /// `points()` that the configuration allows, best first. vLLM's own is always among them: what
  /// beats it may be nothing that vLLM can run.
  std::vector<GroupingPoint> candidates() const {
    std::vector<GroupingPoint> points = this->points();
    const auto is_vllm = [](const GroupingPoint& p) { return p.is_vllm; };
    if (vllm_ && std::none_of(points.begin(), points.end(), is_vllm)) points.push_back(*vllm_);
    const int64_t limit = max_groups();
    std::erase_if(points, [&](const GroupingPoint& p) { return p.num_groups > limit; });
    if (config_.max_groups) {
      const auto fewer_bytes = [](const GroupingPoint& a, const GroupingPoint& b) {
        return a.request_bytes < b.request_bytes;
      };
      std::stable_sort(points.begin(), points.end(), fewer_bytes);
      return points;
    }
    if (vllm_) {
      std::erase_if(points,
                    [&](const GroupingPoint& p) { return p.request_bytes > vllm_->request_bytes; });
    }
    const auto priced = [](const GroupingPoint& p) {
      return static_cast<double>(p.request_bytes) *
             (1 + kGroupPrice * static_cast<double>(p.num_groups));
    };
    std::stable_sort(
        points.begin(), points.end(),
        [&](const GroupingPoint& a, const GroupingPoint& b) { return priced(a) < priced(b); });
    return points;
  }

  int64_t max_groups() const {
    if (config_.max_groups) return *config_.max_groups;
    return std::max(kDefaultMaxGroups,
                    vllm_ ? vllm_->num_groups : result_.points.front().num_groups);
  }

  /// Why no candidate can be run.
  std::string no_candidate() const {
    std::optional<int64_t> fewest;
    if (vllm_) fewest = vllm_->num_groups;
    for (const PackedPoint& p : result_.points) {
      if (fewest && p.num_groups >= *fewest) break;
      if (runnable(materialize(ctx_, config_, buckets_, p))) fewest = p.num_groups;
    }
    if (!fewest) {
      return "No grouping of this model's caches passes vLLM's checks of layout, placement and "
             "block sizes. Choose another kv_cache_layout, block_size, prefix_match_unit or "
             "prefix_cache_retention_interval.";
    }
    return "max_groups is " + std::to_string(max_groups()) +
           ", but this model's caches need at least " + std::to_string(*fewest) +
           " groups that vLLM can run. Raise max_groups.";
  }

  const Notices& vllm_notices() const { return vllm_notices_; }

 private:
  PlanningContext quiet(Notices& notices) const { return {ctx_.names, ctx_.specs, notices}; }

  bool has_hisparse(const LayerSpecs& layers) const {
    return std::any_of(layers.begin(), layers.end(),
                       [&](const LayerSpec& l) { return is_hisparse(ctx_.spec(l).kind); });
  }

  void group_like_vllm(LayerSpecs& layers) {
    const PlanningContext ctx = quiet(vllm_notices_);
    try {
      vllm_groups_ = get_kv_cache_groups(ctx, config_, layers);
      if (!groups_partition_layers_exactly(*vllm_groups_, layers)) {
        throw InconsistentSpec("vLLM's grouping leaves layers out");
      }
      vllm_ = evaluate(ctx_, config_, stages_, *vllm_groups_);
      vllm_->is_vllm = true;
    } catch (const Error&) {
      vllm_groups_.reset();
      vllm_error_ = std::current_exception();
    }
  }

  /// vLLM's drafters mostly want all of their layers in one group. Where vLLM's own grouping
  /// spreads them, this one can do without.
  bool drafts_may_split() const {
    if (!vllm_groups_) return false;
    int64_t groups = 0;
    for (const KVCacheGroup& g : *vllm_groups_) {
      bool draft = false;
      for (size_t i = 0; i < g.layers.size() && !draft; ++i) draft = is_draft(g.layers[i]);
      groups += draft ? 1 : 0;
    }
    return groups > 1;
  }

  bool is_draft(LayerId layer) const { return draft_[layer.pos()]; }

  /// False where the layers' pages cannot be made equal and the layout asks for it.
  bool make_all_buckets(const LayerSpecs& layers) {
    draft_.assign(ctx_.names.size(), false);
    LayerSpecs hidden;
    LayerSpecs attention;
    for (const LayerSpec& l : layers) {
      draft_[l.layer.pos()] = ctx_.spec(l).is_draft;
      (ctx_.spec(l).kind == SpecKind::kHiddenStateCache ? hidden : attention).push_back(l);
    }
    if (attention.empty()) return false;
    const bool one_page = !is_block_outermost(config_.kv_cache_layout);
    const int64_t page = one_page ? common_page_size(ctx_, attention, hidden)
                                  : common_page_size(ctx_, attention, {});
    if (one_page && !hidden.empty()) align_hidden(attention, page, hidden);
    std::vector<StagedLayer> staged;
    for (const LayerSpecs* list : {&attention, &hidden}) {
      for (const LayerSpec& l : *list) staged.push_back({l, stages_.stage_of[l.layer.pos()]});
    }
    buckets_ = make_buckets(ctx_, config_, staged, stages_.count, drafts_may_split());
    for (Bucket& b : buckets_) {
      std::vector<std::vector<KVCacheSpec>> choices;
      choices.reserve(b.specs.size());
      for (SpecId id : b.specs) choices.push_back(choices_of(ctx_.spec(id), page));
      if (std::any_of(choices.begin(), choices.end(), [](const auto& c) { return c.empty(); })) {
        return false;
      }
      if (one_page) keep_useful_blocks(choices);
      if (!set_options(ctx_, config_, b, choices)) all_options_ = false;
    }
    return true;
  }

  std::vector<KVCacheSpec> choices_of(const KVCacheSpec& spec, int64_t page) const {
    if (spec.kind == SpecKind::kHiddenStateCache) return {spec};
    std::vector<KVCacheSpec> choices = is_block_outermost(config_.kv_cache_layout)
                                           ? choices_up_to_page(spec, config_, page)
                                           : choices_of_one_page(spec, config_, page);
    // The scheduler's block, a multiple of every group's, has to divide the retention interval.
    if (const std::optional<int64_t>& interval = config_.prefix_cache_retention_interval) {
      const int64_t ranks = spec.dcp_sharded ? config_.decode_context_parallel_size : 1;
      std::erase_if(choices, [&](const KVCacheSpec& c) {
        return c.block_size != spec.block_size &&
               *interval % checked::mul(c.block_size, ranks, "group block size") != 0;
      });
    }
    return choices;
  }

  /// Gives the hidden-state layers the blocks that vLLM would choose beside groups of one page.
  void align_hidden(const LayerSpecs& attention, int64_t page, LayerSpecs& hidden) {
    Notices notices;
    KVCacheGroups groups;
    for (SpecId id : distinct_specs(ctx_, attention)) {
      const std::vector<KVCacheSpec> choices = choices_of_one_page(ctx_.spec(id), config_, page);
      if (choices.empty()) return;
      KVCacheGroup g;
      g.spec = ctx_.specs.intern(choices.back());
      groups.push_back(std::move(g));
    }
    const size_t first = groups.size();
    append_hidden_state_groups(quiet(notices), hidden, groups);
    for (size_t i = 0; i < hidden.size(); ++i) hidden[i].spec = groups[first + i].spec;
  }

  int64_t min_request_bytes(const PackedPoint& p) const {
    int64_t pages = 0;
    for (size_t b = 0; b < buckets_.size(); ++b) {
      const BucketChoice& choice = p.choices[b];
      const SpecId spec = buckets_[b].options[choice.option].specs[0];
      // One token takes equally many pages whatever the block size.
      const int64_t one = page_demand(ctx_.spec(spec), config_).pages(1);
      for (int64_t n : choice.num_groups) pages += one * n;
    }
    return checked::mul(p.bytes_per_block, pages, "one token");
  }

  int64_t bound_for(const GroupingPoint& p) const {
    if (proven_) return p.request_bytes;
    const int64_t floor = std::min(p.request_bytes, lower_bound_bytes_);
    if (result_.points.empty() || !result_.all_widths || !all_options_) return floor;
    const auto it = result_.relaxed.upper_bound(p.num_groups);
    if (it == result_.relaxed.begin()) return p.request_bytes;
    return std::min(p.request_bytes, std::prev(it)->second);
  }

  PlanningContext ctx_;
  const PlanningConfig& config_;
  Stages stages_;
  std::vector<bool> draft_;
  std::optional<KVCacheGroups> vllm_groups_;
  std::optional<GroupingPoint> vllm_;
  Notices vllm_notices_;
  std::exception_ptr vllm_error_;
  std::vector<Bucket> buckets_;
  SearchResult result_;
  bool all_options_ = true;
  bool proven_ = false;
  int64_t lower_bound_bytes_ = 0;
};

/// The first candidate that vLLM can run, if any.
std::optional<std::pair<GroupingPoint, KVCacheGroups>> choose(const Model& model) {
  for (const GroupingPoint& p : model.candidates()) {
    KVCacheGroups groups = model.groups(p);
    if (p.is_vllm || model.runnable(groups)) return std::pair{p, std::move(groups)};
  }
  return std::nullopt;
}

std::string describe(const GroupingPoint& p) {
  return counted(p.num_groups, "group") + " of at most " +
         counted(p.max_layers_per_group, "layer") + ", " + format_bytes(p.request_bytes);
}

}  // namespace
}  // namespace compact

Frontier frontier(const PlanRequest& request, const PlanningConfig& config) {
  validate(config);
  SpecTable specs = request.specs();
  Notices notices;
  const PlanningContext ctx{*request.names(), specs, notices};
  LayerSpecs layers = merge_worker_layers(ctx, config, request.layer_lists());
  const compact::Model model(ctx, config, layers, request.layer_lists());
  Frontier result;
  result.reference_model_len = config.reference_len();
  result.points = model.points();
  result.vllm = model.vllm();
  result.lower_bound_bytes = model.lower_bound_bytes();
  result.exact = model.exact();
  if (const auto chosen = compact::choose(model)) {
    auto it = std::find(result.points.begin(), result.points.end(), chosen->first);
    if (it == result.points.end()) {
      // vLLM's own, since what beats it is nothing that vLLM can run.
      const auto more_groups = [&](const GroupingPoint& p) {
        return p.num_groups > chosen->first.num_groups;
      };
      it = std::find_if(result.points.begin(), result.points.end(), more_groups);
      it = result.points.insert(it, chosen->first);
    }
    result.chosen = static_cast<size_t>(it - result.points.begin());
  }
  return result;
}

KVCacheGroups get_compact_kv_cache_groups(PlanningContext ctx, const PlanningConfig& config,
                                          LayerSpecs& layers,
                                          const std::vector<LayerSpecs>& layer_lists) {
  const compact::Model model(ctx, config, layers, layer_lists);
  auto chosen = compact::choose(model);
  if (!chosen) throw InvalidArgument(model.no_candidate());
  auto& [point, groups] = *chosen;
  if (point.is_vllm) {
    ctx.notices.insert(ctx.notices.end(), model.vllm_notices().begin(), model.vllm_notices().end());
  }
  if (groups.size() > 1) {
    std::string text = "Compact grouping: " + compact::describe(point) + " for a request of " +
                       std::to_string(config.reference_len()) + " tokens; without padding " +
                       format_bytes(model.lower_bound_bytes());
    if (point.is_vllm) {
      text += "; this is vLLM's own grouping";
    } else if (model.vllm()) {
      text += "; vLLM's own: " + compact::describe(*model.vllm());
    }
    ctx.info(text + ".");
  }
  return std::move(groups);
}

}  // namespace kvplan
