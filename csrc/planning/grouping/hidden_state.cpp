#include "kvplan/planning/hidden_state.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <string>

#include "kvplan/checked.h"
#include "planning/grouping/hidden_state.h"

namespace kvplan {
namespace {

int64_t bytes_per_token(const KVCacheSpec& spec) {
  return checked::mul(checked::mul(spec.num_kv_heads, spec.head_size, "hidden state"),
                      dtype_size(spec.dtype), "hidden state");
}

// Far beyond any block, and still searched for divisors in a millisecond.
constexpr int64_t kMaxBlockSize = int64_t{1} << 40;

int64_t largest_divisor_at_most(int64_t value, int64_t limit) {
  if (value > kMaxBlockSize) {
    throw InvalidArgument("block_size " + std::to_string(value) +
                          " is too large beside hidden-state layers; the limit is " +
                          std::to_string(kMaxBlockSize));
  }
  int64_t best = 1;
  for (int64_t d = 1; d <= limit && d <= value / d; ++d) {
    if (value % d != 0) continue;
    for (int64_t candidate : {d, value / d}) {
      if (candidate <= limit) best = std::max(best, candidate);
    }
  }
  return best;
}

KVCacheSpec scaled(const KVCacheSpec& spec, int64_t scale) {
  KVCacheSpec copy = spec;
  if (copy.page_size_padded) {
    copy.page_size_padded = checked::mul(*copy.page_size_padded, scale, "padded page");
  }
  return with_block_size(copy, checked::mul(spec.block_size, scale, "block size"));
}

int64_t uniform_page_size(PlanningContext ctx, const KVCacheGroups& groups) {
  const int64_t page = ctx.page(groups[0].spec);
  for (const KVCacheGroup& g : groups) {
    if (ctx.page(g.spec) != page) {
      throw InconsistentSpec("groups have pages of " + std::to_string(page) + " and " +
                             std::to_string(ctx.page(g.spec)) + " bytes");
    }
  }
  return page;
}

}  // namespace

int64_t ensure_min_page_size(PlanningContext ctx, KVCacheGroups& groups, int64_t common_page,
                             const LayerSpecs& hidden_layers) {
  int64_t max_per_token = 0;
  for (const LayerSpec& l : hidden_layers) {
    max_per_token = std::max(max_per_token, bytes_per_token(ctx.spec(l)));
  }
  if (max_per_token <= common_page) return common_page;
  const int64_t scale = checked::cdiv(max_per_token, common_page);
  KVCacheGroups result;
  for (const KVCacheGroup& g : groups) {
    KVCacheGroup copy;
    copy.layers = g.layers;
    copy.spec = ctx.specs.intern(scaled(ctx.spec(g.spec), scale));
    result.push_back(std::move(copy));
  }
  groups = std::move(result);
  return checked::mul(common_page, scale, "common page");
}

void append_hidden_state_groups(PlanningContext ctx, const LayerSpecs& hidden_layers,
                                KVCacheGroups& groups) {
  const int64_t common_page =
      ensure_min_page_size(ctx, groups, uniform_page_size(ctx, groups), hidden_layers);
  int64_t group_block_size = 0;
  for (const KVCacheGroup& g : groups) {
    group_block_size = std::gcd(group_block_size, ctx.spec(g.spec).block_size);
  }
  for (const LayerSpec& l : hidden_layers) {
    const int64_t per_token = bytes_per_token(ctx.spec(l));
    KVCacheSpec aligned = ctx.spec(l);
    aligned.block_size =
        largest_divisor_at_most(group_block_size, std::max<int64_t>(common_page / per_token, 1));
    aligned.page_size_padded = common_page;
    finalize(aligned);

    const int64_t wasted = common_page - aligned.block_size * per_token;
    char percent[32];
    std::snprintf(percent, sizeof(percent), "%.2f",
                  static_cast<double>(wasted) / static_cast<double>(common_page) * 100);
    ctx.info("Using block size " + std::to_string(aligned.block_size) +
             " for hidden-state cache layer " + ctx.name(l.layer) + "; page alignment wastes " +
             std::to_string(wasted) + " bytes (" + percent + "%) per block");

    KVCacheGroup group;
    group.layers = {l.layer};
    group.spec = ctx.specs.intern(aligned);
    groups.push_back(std::move(group));
  }
}

}  // namespace kvplan
