#include "kvplan/report.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "kvplan/checked.h"
#include "kvplan/planning/block_sizes.h"
#include "kvplan/planning/placement.h"
#include "kvplan/planning/request_demand.h"
#include "planning/fitting/admission.h"

namespace kvplan {
namespace {

constexpr int64_t kOffsets32 = int64_t{1} << 31;

/// What a request is charged beyond the tokens that it keeps.
struct Charge {
  int64_t in_flight_tokens;
  int64_t encoder_tokens;
};

/// Reports read the plan and write nothing, but share the planning functions, which take a context.
class PlanView {
 public:
  explicit PlanView(const Plan& plan)
      : plan_(whole(plan)), specs_(*plan.specs), ctx_{*plan.names, specs_, notices_} {}
  PlanningContext ctx() const { return ctx_; }
  RequestDemand demand(const KVCacheGroups& groups, Charge charge) const {
    return RequestDemand(ctx_, groups, config_with(charge));
  }
  int64_t pages_of(const KVCacheGroup& group, Charge charge) const {
    return pages(group_demands(ctx_, group, config_with(charge)), plan_.config.max_model_len);
  }

  /// vLLM's formula: each request all tokens in flight, and the encoder tokens of a whole step.
  Charge by_formula() const {
    return {plan_.config.max_in_flight_tokens, plan_.config.max_num_encoder_input_tokens};
  }
  /// One request of a running server, with all tokens in flight or none.
  Charge running() const { return {plan_.config.max_in_flight_tokens, own_encoder_tokens()}; }
  Charge at_rest() const { return {0, own_encoder_tokens()}; }
  int64_t own_encoder_tokens() const {
    return plan_.config.encoder_tokens_per_request.value_or(
        plan_.config.max_num_encoder_input_tokens);
  }

 private:
  static const Plan& whole(const Plan& plan) {
    validate(plan);
    return plan;
  }
  PlanningConfig config_with(Charge charge) const {
    PlanningConfig config = plan_.config;
    config.max_in_flight_tokens = charge.in_flight_tokens;
    config.max_num_encoder_input_tokens = charge.encoder_tokens;
    return config;
  }

  const Plan& plan_;
  SpecTable specs_;
  Notices notices_;
  PlanningContext ctx_;
};

/// `requests` x `length`, cut off at the 64-bit range.
int64_t tokens_of(double requests, double length) {
  const double tokens = requests * length;
  constexpr double kLimit = 9223372036854775808.0;  // 2^63
  return tokens < kLimit ? static_cast<int64_t>(tokens) : std::numeric_limits<int64_t>::max();
}

void require_length(int64_t model_len) {
  if (model_len >= 1) return;
  throw InvalidArgument("model_len must be positive, got " + std::to_string(model_len));
}

/// The worker whose blocks hold the fewest requests, by its own memory.
size_t limiting_worker(const Plan& plan) {
  size_t limiting = 0;
  double fewest = std::numeric_limits<double>::infinity();
  for (size_t w = 0; w < plan.workers.size(); ++w) {
    const StagePlan& stage = plan.stage_of(w);
    if (stage.groups.empty() || stage.request_bytes == 0) continue;
    const double requests =
        static_cast<double>(plan.workers[w].effective_bytes - stage.bytes_per_block) /
        static_cast<double>(stage.request_bytes);
    if (requests < fewest) {
      fewest = requests;
      limiting = w;
    }
  }
  return limiting;
}

GroupReport report_group(PlanningContext ctx, const PlanningConfig& config,
                         const KVCacheGroup& group, int64_t bytes_per_block) {
  GroupReport r;
  r.slices = group.slices;
  // A stage without layers of the group need not cut its blocks evenly.
  r.slice_bytes = bytes_per_block / group.slices;
  for (size_t i = 0; i < group.layers.size(); ++i) {
    const SpecId id = layer_spec_id(group, i);
    r.page_size_bytes = checked::add(r.page_size_bytes, ctx.page(id), "group page");
    r.content_bytes =
        checked::add(r.content_bytes, unpadded_page_size_bytes(ctx.spec(id)), "group content");
  }
  r.padding_bytes = r.slice_bytes - r.content_bytes;
  const std::vector<PageDemand> demands = group_demands(ctx, group, config);
  r.pages_per_request = pages(demands, config.max_model_len);
  r.pool_blocks_per_request = checked::cdiv(r.pages_per_request, group.slices);
  int64_t tokens_per_page = 0;
  for (const PageDemand& d : demands) {
    if (d.grows_without_bound()) {
      const int64_t tokens = checked::mul(d.block_size, d.shards, "tokens of a page");
      tokens_per_page = tokens_per_page == 0 ? tokens : std::min(tokens_per_page, tokens);
    }
  }
  if (tokens_per_page > 0) {
    r.tokens_per_page = tokens_per_page;
  } else {
    r.pages_fixed = r.pages_per_request;
  }
  return r;
}

/// The largest safe ids of each group, over all stages.
std::vector<SafeBlockIds> safe_ids_of_groups(const Plan& plan) {
  constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
  std::vector<SafeBlockIds> ids(plan.groups.size(), SafeBlockIds{kAny, kAny});
  std::vector<size_t> group_of(plan.names->size());
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    for (LayerId layer : plan.groups[g].layers) group_of[layer.pos()] = g;
  }
  const auto last_below = [](int64_t stride) { return (kOffsets32 - 1) / stride; };
  const bool block_outermost = is_block_outermost(plan.config.kv_cache_layout);
  for (const StagePlan& stage : plan.stages) {
    for (const KVCacheTensor& t : stage.tensors) {
      if (t.block_stride <= 0 || t.layers.empty()) continue;
      int64_t& bytes = ids[group_of[t.layers[0].pos()]].bytes;
      bytes = std::min(bytes, last_below(t.block_stride));
    }
    for (size_t g = 0; g < stage.groups.size(); ++g) {
      const KVCacheGroup& group = stage.groups[g];
      for (size_t i = 0; i < group.layers.size(); ++i) {
        const KVCacheSpec& spec = (*plan.specs)[layer_spec_id(group, i)];
        const int64_t element = is_attention(spec.kind) ? dtype_size(spec.dtype) : 1;
        const int64_t stride =
            block_outermost ? stage.bytes_per_block / group.slices : layer_block_stride(spec);
        ids[g].elements =
            std::min(ids[g].elements, last_below(std::max<int64_t>(stride / element, 1)));
      }
    }
  }
  return ids;
}

/// Pages of a request in one group, and slices of the group in a block of the pool.
struct Held {
  int64_t charged;    ///< by vLLM's formula
  int64_t kept;       ///< by a running server's request, without the tokens in flight
  int64_t in_flight;  ///< in addition with them
  int64_t slices;
};

std::vector<Held> held_by_request(const PlanView& view, const KVCacheGroups& groups) {
  std::vector<Held> held;
  for (const KVCacheGroup& g : groups) {
    if (g.host_resident) continue;
    const int64_t kept = view.pages_of(g, view.at_rest());
    held.push_back({view.pages_of(g, view.by_formula()), kept,
                    view.pages_of(g, view.running()) - kept, g.slices});
  }
  return held;
}

/// Blocks of the pool for `requests` at once, whole ones for each group; with `steady`, the
/// in-flight tokens counted once.
int64_t pool_blocks(const std::vector<Held>& groups, int64_t requests, bool steady) {
  int64_t blocks = 0;
  for (const Held& g : groups) {
    int64_t pages = checked::mul(requests, steady ? g.kept : g.charged, "pages");
    if (steady) pages = checked::add(pages, g.in_flight, "pages");
    blocks = checked::add(blocks, checked::cdiv(pages, g.slices), "blocks of requests");
  }
  return blocks;
}

bool has_cross_attention(const Plan& plan) {
  return std::any_of(plan.groups.begin(), plan.groups.end(), [&](const KVCacheGroup& group) {
    return any_spec(group,
                    [&](SpecId id) { return (*plan.specs)[id].kind == SpecKind::kCrossAttention; });
  });
}

/// Requests that `num_blocks` hold: those that fit whole, and of the next one the part that the
/// blocks left over are. Without slices this is the division that vLLM makes.
double requests_in(int64_t num_blocks, const std::vector<Held>& groups, bool steady) {
  if (num_blocks < pool_blocks(groups, 0, steady)) return 0;
  int64_t beyond = 1;
  while (pool_blocks(groups, beyond, steady) <= num_blocks) {
    beyond = checked::mul(beyond, 2, "requests");
  }
  const int64_t fits = largest_that_fits(
      beyond - 1, [&](int64_t n) { return pool_blocks(groups, n, steady) <= num_blocks; });
  const int64_t used = pool_blocks(groups, fits, steady);
  return static_cast<double>(fits) +
         static_cast<double>(num_blocks - used) /
             static_cast<double>(pool_blocks(groups, fits + 1, steady) - used);
}

}  // namespace

Reasons explain(const Plan& plan) {
  const PlanView view(plan);
  Reasons reasons;
  reasons.limiting_worker = limiting_worker(plan);
  const StagePlan& stage = plan.stage_of(reasons.limiting_worker);
  reasons.bytes_per_block = stage.bytes_per_block;
  const std::vector<SafeBlockIds> safe_ids = safe_ids_of_groups(plan);
  double most = -1;
  for (size_t g = 0; g < stage.groups.size(); ++g) {
    const KVCacheGroup& group = stage.groups[g];
    GroupReport r = report_group(view.ctx(), plan.config, group, stage.bytes_per_block);
    r.safe_block_ids = safe_ids[g];
    reasons.request_blocks =
        checked::add(reasons.request_blocks, r.pool_blocks_per_request, "request");
    reasons.fixed_bytes_per_request =
        checked::add(reasons.fixed_bytes_per_request,
                     checked::mul(checked::cdiv(r.pages_fixed, group.slices), stage.bytes_per_block,
                                  "fixed bytes"),
                     "fixed bytes");
    const auto slices = static_cast<double>(group.slices);
    if (r.tokens_per_page) {
      reasons.bytes_per_token += static_cast<double>(stage.bytes_per_block) / slices /
                                 static_cast<double>(*r.tokens_per_page);
    }
    const double held = static_cast<double>(r.pages_per_request) / slices;
    if (held > most) {
      most = held;
      reasons.limiting_group = g;
    }
    reasons.groups.push_back(r);
  }
  reasons.request_bytes =
      checked::mul(reasons.request_blocks, stage.bytes_per_block, "bytes of one request");
  if (plan.config.max_model_len < std::numeric_limits<int64_t>::max()) {
    const RequestDemand demand = view.demand(stage.groups, view.by_formula());
    const int64_t more = demand.total_blocks(plan.config.max_model_len + 1) -
                         demand.total_blocks(plan.config.max_model_len);
    reasons.next_token_bytes = checked::mul(more, stage.bytes_per_block, "bytes of the next token");
  }
  return reasons;
}

int64_t auto_fit_memory(const Plan& plan) {
  const PlanView view(plan);
  const auto usable = [&](size_t w) {
    return plan.workers[w].effective_bytes - plan.stage_of(w).bytes_per_block;
  };
  const int64_t fitted = plan.config.max_model_len;
  if (fitted >= plan.requested_max_model_len) return usable(0);
  std::vector<int64_t> needed(plan.stages.size(), -1);
  for (size_t w = 0; w < plan.workers.size(); ++w) {
    const StagePlan& stage = plan.stage_of(w);
    if (stage.groups.empty()) continue;
    int64_t& bytes = needed[plan.workers[w].stage];
    if (bytes < 0) {
      const RequestDemand demand(view.ctx(), stage.groups, plan.config);
      bytes = checked::mul(demand.total_blocks(fitted + 1), stage.bytes_per_block,
                           "bytes of one request");
    }
    if (bytes > usable(w)) return usable(w);
  }
  return usable(0);
}

std::vector<int64_t> blocks_without_override(const Plan& plan) {
  validate(plan);
  std::vector<int64_t> blocks;
  for (const WorkerPlan& w : plan.workers) {
    const StagePlan& stage = plan.stages[w.stage];
    if (stage.groups.empty()) continue;
    int64_t own = w.available_bytes / stage.bytes_per_block;
    if (w.available_bytes % stage.bytes_per_block < 0) --own;  // as Python rounds
    blocks.push_back(own);
  }
  return blocks;
}

double max_concurrency(PlanningContext ctx, const PlanningConfig& config,
                       const KVCacheGroups& groups, int64_t num_blocks,
                       std::optional<int64_t> host_num_blocks) {
  int64_t device = 0;
  int64_t host = 0;
  std::vector<Held> held;
  for (const KVCacheGroup& g : groups) {
    const int64_t pages = kvplan::pages(group_demands(ctx, g, config), config.max_model_len);
    int64_t& blocks = g.host_resident ? host : device;
    blocks = checked::add(blocks, pages, "blocks of a request");
    if (!g.host_resident) held.push_back({pages, pages, 0, g.slices});
  }
  if (device == 0) {
    throw InvalidArgument("a request holds no KV cache blocks, so its concurrency has no limit");
  }
  double limit = is_sliced(groups) ? requests_in(num_blocks, held, false)
                                   : static_cast<double>(num_blocks) / static_cast<double>(device);
  if (host > 0) {
    if (!host_num_blocks) throw InconsistentSpec("host groups need hisparse_host_num_blocks");
    limit = std::min(limit, static_cast<double>(*host_num_blocks) / static_cast<double>(host));
  }
  return limit;
}

Capacity capacity(const Plan& plan) {
  const PlanView view(plan);
  Capacity c;
  if (plan.groups.empty()) return c;
  const KVCacheGroups& groups = plan.stages[plan.workers[0].stage].groups;
  const auto length = static_cast<double>(plan.config.max_model_len);
  const auto blocks_of = [&](Charge charge) {
    return view.demand(groups, charge).total_blocks(plan.config.max_model_len);
  };
  const int64_t blocks = blocks_of(view.by_formula());
  const int64_t kept = blocks_of(view.at_rest());
  if (has_cross_attention(plan)) c.encoder_tokens_per_request = view.own_encoder_tokens();
  if (blocks == 0) return c;
  if (is_sliced(groups)) {
    const std::vector<Held> held = held_by_request(view, groups);
    c.max_concurrency = requests_in(plan.num_blocks, held, false);
    c.usable_concurrency = requests_in(plan.num_blocks - 1, held, false);
    c.usable_tokens = tokens_of(c.usable_concurrency, length);
    if (kept > 0) c.steady_concurrency = requests_in(plan.num_blocks - 1, held, true);
    c.tokens = tokens_of(c.max_concurrency, length);
    c.steady_tokens = tokens_of(c.steady_concurrency, length);
    return c;
  }
  c.max_concurrency = static_cast<double>(plan.num_blocks) / static_cast<double>(blocks);
  c.tokens = tokens_of(c.max_concurrency, length);
  const auto usable = static_cast<double>(plan.num_blocks - 1);
  c.usable_concurrency = usable / static_cast<double>(blocks);
  c.usable_tokens = tokens_of(c.usable_concurrency, length);
  if (kept > 0) {
    // What the in-flight tokens take is counted once; each request then holds only what it keeps.
    const int64_t in_flight = blocks_of(view.running()) - kept;
    c.steady_concurrency =
        std::max(0.0, (usable - static_cast<double>(in_flight)) / static_cast<double>(kept));
    c.steady_tokens = tokens_of(c.steady_concurrency, length);
  }
  return c;
}

SafeBlockIds safe_block_ids(const Plan& plan) {
  validate(plan);
  SafeBlockIds ids{std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::max()};
  const std::vector<SafeBlockIds> of_groups = safe_ids_of_groups(plan);
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    // A block of the pool is safe while the last of its slices is.
    const int64_t slices = plan.groups[g].slices;
    const auto pool_id = [slices](int64_t id) {
      return slices == 1 ? id : (id - slices + 1) / slices;
    };
    ids.bytes = std::min(ids.bytes, pool_id(of_groups[g].bytes));
    ids.elements = std::min(ids.elements, pool_id(of_groups[g].elements));
  }
  return ids;
}

int64_t request_blocks(const Plan& plan, int64_t model_len) {
  require_length(model_len);
  const PlanView view(plan);
  return view.demand(plan.groups, view.by_formula()).total_blocks(model_len);
}

double max_concurrency(const Plan& plan, int64_t model_len) {
  require_length(model_len);
  const PlanView view(plan);
  PlanningConfig config = plan.config;
  config.max_model_len = model_len;
  return max_concurrency(view.ctx(), config, plan.groups, plan.num_blocks);
}

BlockSizes block_sizes(const Plan& plan) {
  const PlanView view(plan);
  return resolve_kv_cache_block_sizes(view.ctx(), plan.config, plan.groups);
}

std::vector<TensorView> views(const Plan& plan, size_t stage) {
  validate(plan);
  if (stage >= plan.stages.size()) {
    throw InvalidArgument("stage " + std::to_string(stage) + " does not exist; there are " +
                          std::to_string(plan.stages.size()));
  }
  const StagePlan& s = plan.stages[stage];
  struct Home {
    size_t group;
    SpecId spec;
  };
  std::vector<std::optional<Home>> homes(plan.names->size());
  for (size_t g = 0; g < s.groups.size(); ++g) {
    for (size_t i = 0; i < s.groups[g].layers.size(); ++i) {
      homes[s.groups[g].layers[i].pos()] = Home{g, layer_spec_id(s.groups[g], i)};
    }
  }
  std::vector<TensorView> result;
  for (size_t t = 0; t < s.tensors.size(); ++t) {
    const KVCacheTensor& tensor = s.tensors[t];
    if (tensor.layers.empty()) continue;
    const std::optional<Home>& home = homes[tensor.layers[0].pos()];
    if (!home) {
      throw InvalidArgument("layer " + std::string((*plan.names)[tensor.layers[0]]) +
                            " is placed on stage " + std::to_string(stage) + " and in no group");
    }
    const KVCacheSpec& spec = (*plan.specs)[home->spec];
    if (!has_layer_views(spec)) continue;
    const int64_t blocks =
        checked::mul(plan.num_blocks, s.groups[home->group].slices, "blocks of a group");
    result.push_back(
        {t, home->group, home->spec,
         compute_kv_cache_view(spec, blocks, plan.config.kv_cache_layout,
                               static_cast<int64_t>(tensor.layers.size()), tensor.layer_stride,
                               tensor.block_stride, tensor.offset, tensor.size)});
  }
  return result;
}

int64_t worker_max_model_len(const Plan& plan, size_t worker) {
  const PlanView view(plan);
  const StagePlan& stage = plan.stage_of(worker);
  if (stage.groups.empty()) return plan.requested_max_model_len;
  return estimate_max_model_len(view.demand(stage.groups, view.by_formula()), stage.bytes_per_block,
                                plan.workers[worker].effective_bytes - stage.bytes_per_block,
                                plan.requested_max_model_len);
}

}  // namespace kvplan
