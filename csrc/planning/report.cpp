#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "kvplan/checked.h"
#include "kvplan/plan.h"

namespace kvplan {
namespace {

constexpr int64_t kOffsets32 = int64_t{1} << 31;

/// Reports read the plan and write nothing, but share the planning functions, which take a context.
class PlanView {
 public:
  explicit PlanView(const Plan& plan)
      : plan_(plan), specs_(*plan.specs), ctx_{*plan.names, specs_, notices_} {}
  const PlanningContext& ctx() const { return ctx_; }
  RequestDemand demand(const KVCacheGroups& groups, int64_t in_flight) const {
    PlanningConfig config = plan_.config;
    config.max_in_flight_tokens = in_flight;
    return RequestDemand(ctx_, groups, config);
  }

 private:
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

GroupReport report_group(const PlanningContext& ctx, const PlanningConfig& config,
                         const KVCacheGroup& group, int64_t bytes_per_block) {
  GroupReport r;
  for (size_t i = 0; i < group.layers.size(); ++i) {
    const SpecId id = layer_spec_id(group, i);
    r.page_size_bytes = checked::add(r.page_size_bytes, ctx.page(id), "group page");
    r.content_bytes =
        checked::add(r.content_bytes, unpadded_page_size_bytes(ctx.spec(id)), "group content");
  }
  r.padding_bytes = bytes_per_block - r.content_bytes;
  const std::vector<PageDemand> demands = group_demands(ctx, group, config);
  r.pages_per_request = pages(demands, config.max_model_len);
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

}  // namespace

Reasons explain(const Plan& plan) {
  const PlanView view(plan);
  Reasons reasons;
  reasons.limiting_worker = limiting_worker(plan);
  const StagePlan& stage = plan.stage_of(reasons.limiting_worker);
  reasons.bytes_per_block = stage.bytes_per_block;
  int64_t most = -1;
  for (size_t g = 0; g < stage.groups.size(); ++g) {
    const GroupReport r =
        report_group(view.ctx(), plan.config, stage.groups[g], stage.bytes_per_block);
    reasons.groups.push_back(r);
    reasons.request_blocks = checked::add(reasons.request_blocks, r.pages_per_request, "request");
    reasons.fixed_bytes_per_request = checked::add(
        reasons.fixed_bytes_per_request,
        checked::mul(r.pages_fixed, stage.bytes_per_block, "fixed bytes"), "fixed bytes");
    if (r.tokens_per_page) {
      reasons.bytes_per_token +=
          static_cast<double>(stage.bytes_per_block) / static_cast<double>(*r.tokens_per_page);
    }
    if (r.pages_per_request > most) {
      most = r.pages_per_request;
      reasons.limiting_group = g;
    }
  }
  reasons.request_bytes =
      checked::mul(reasons.request_blocks, stage.bytes_per_block, "bytes of one request");
  if (plan.config.max_model_len < std::numeric_limits<int64_t>::max()) {
    const RequestDemand demand = view.demand(stage.groups, plan.config.max_in_flight_tokens);
    const int64_t more = demand.total_blocks(plan.config.max_model_len + 1) -
                         demand.total_blocks(plan.config.max_model_len);
    reasons.next_token_bytes = checked::mul(more, stage.bytes_per_block, "bytes of the next token");
  }
  return reasons;
}

double max_concurrency(const PlanningContext& ctx, const PlanningConfig& config,
                       const KVCacheGroups& groups, int64_t num_blocks,
                       std::optional<int64_t> host_num_blocks) {
  int64_t device = 0;
  int64_t host = 0;
  for (const KVCacheGroup& g : groups) {
    int64_t& blocks = g.host_resident ? host : device;
    blocks = checked::add(blocks, pages(group_demands(ctx, g, config), config.max_model_len),
                          "blocks of a request");
  }
  if (device == 0) {
    throw InvalidArgument("a request holds no KV cache blocks, so its concurrency has no limit");
  }
  double limit = static_cast<double>(num_blocks) / static_cast<double>(device);
  if (host > 0) {
    if (!host_num_blocks) throw InconsistentSpec("host groups need hisparse_host_num_blocks");
    limit = std::min(limit, static_cast<double>(*host_num_blocks) / static_cast<double>(host));
  }
  return limit;
}

Capacity capacity(const Plan& plan) {
  Capacity c;
  if (plan.groups.empty()) return c;
  const PlanView view(plan);
  const KVCacheGroups& groups = plan.stages[plan.workers[0].stage].groups;
  const auto length = static_cast<double>(plan.config.max_model_len);
  const RequestDemand full = view.demand(groups, plan.config.max_in_flight_tokens);
  const RequestDemand alone = view.demand(groups, 0);
  const int64_t blocks = full.total_blocks(plan.config.max_model_len);
  const int64_t steady = alone.total_blocks(plan.config.max_model_len);
  if (blocks == 0) return c;
  c.max_concurrency = static_cast<double>(plan.num_blocks) / static_cast<double>(blocks);
  c.tokens = tokens_of(c.max_concurrency, length);
  const auto usable = static_cast<double>(plan.num_blocks - 1);
  c.usable_tokens = tokens_of(usable / static_cast<double>(blocks), length);
  if (steady > 0) {
    // What the in-flight tokens take is counted once; each request then holds only what it keeps.
    c.steady_concurrency = std::max(
        0.0, (usable - static_cast<double>(blocks - steady)) / static_cast<double>(steady));
    c.steady_tokens = tokens_of(c.steady_concurrency, length);
  }
  return c;
}

SafeBlockIds safe_block_ids(const Plan& plan) {
  SafeBlockIds ids{std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::max()};
  const auto last_below = [](int64_t stride) { return (kOffsets32 - 1) / stride; };
  for (const StagePlan& stage : plan.stages) {
    for (const KVCacheTensor& t : stage.tensors) {
      if (t.block_stride <= 0) continue;
      ids.bytes = std::min(ids.bytes, last_below(t.block_stride));
    }
    for (const KVCacheGroup& g : stage.groups) {
      for (size_t i = 0; i < g.layers.size(); ++i) {
        const KVCacheSpec& spec = (*plan.specs)[layer_spec_id(g, i)];
        const int64_t element = is_attention(spec.kind) ? dtype_size(spec.dtype) : 1;
        const int64_t stride = is_block_outermost(plan.config.kv_cache_layout)
                                   ? stage.bytes_per_block
                                   : layer_block_stride(spec);
        ids.elements = std::min(ids.elements, last_below(std::max<int64_t>(stride / element, 1)));
      }
    }
  }
  return ids;
}

int64_t worker_max_model_len(const Plan& plan, size_t worker) {
  const PlanView view(plan);
  const StagePlan& stage = plan.stage_of(worker);
  if (stage.groups.empty()) return plan.requested_max_model_len;
  return estimate_max_model_len(
      view.demand(stage.groups, plan.config.max_in_flight_tokens), stage.bytes_per_block,
      plan.workers[worker].effective_bytes - stage.bytes_per_block, plan.requested_max_model_len);
}

}  // namespace kvplan
