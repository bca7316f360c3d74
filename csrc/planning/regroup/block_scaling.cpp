#include "planning/regroup/block_scaling.h"

#include <algorithm>
#include <set>

#include "kvplan/checked.h"
#include "kvplan/errors.h"

namespace kvplan::compact {
namespace {

/// Where the block size is more than the unit of allocation (how often a state is saved, how long a
/// ring is, what a sink or a retained window is cut into), another one changes the layer.
bool may_scale(const KVCacheSpec& s) {
  switch (s.kind) {
    case SpecKind::kMamba:
    case SpecKind::kCircularBuffer:
    case SpecKind::kSinkFullAttention:
    case SpecKind::kRSWA:
    case SpecKind::kHiddenStateCache:
    case SpecKind::kHiSparseHot:
    case SpecKind::kHiSparseResident:
      return false;
    case SpecKind::kCustom:
      return s.page_scales_with_block_size;
    default:
      return true;
  }
}

/// MLA kernels read pages without gaps, and a plugin's page is only known to scale.
bool may_pad(const KVCacheSpec& s) {
  return s.kind == SpecKind::kMamba || (is_attention(s.kind) && !is_mla(s.kind));
}

/// No block needs to be larger than the whole request.
int64_t largest_scale(const KVCacheSpec& s, const PlanningConfig& config) {
  return checked::cdiv(config.reference_len(), s.block_size);
}

KVCacheSpec scaled(const KVCacheSpec& spec, int64_t scale) {
  return with_block_size(spec, checked::mul(spec.block_size, scale, "block size"));
}

}  // namespace

bool kernel_takes_block(const KVCacheSpec& spec, const PlanningConfig& config, int64_t block_size) {
  if (spec.kind == SpecKind::kCustom) return false;  // its kernels are the plugin's
  const bool mla = is_mla(spec.kind) || spec.kind == SpecKind::kSlidingWindowMLA;
  const std::vector<KernelBlockSize>& taken =
      mla ? config.mla_kernel_block_sizes : config.attention_kernel_block_sizes;
  return std::any_of(taken.begin(), taken.end(), [&](const KernelBlockSize& k) {
    return k.multiples ? block_size % k.tokens == 0 : block_size == k.tokens;
  });
}

int64_t common_page_size(PlanningContext ctx, const LayerSpecs& attention,
                         const LayerSpecs& hidden) {
  int64_t page = 0;
  int64_t unpaddable = 1;
  std::vector<bool> seen(ctx.specs.size());
  for (const LayerSpec& l : attention) {
    if (seen[l.spec.pos()]) continue;
    seen[l.spec.pos()] = true;
    page = std::max(page, ctx.page(l.spec));
    if (!may_pad(ctx.spec(l))) {
      unpaddable = checked::lcm(unpaddable, ctx.page(l.spec), "common page");
    }
  }
  page = checked::round_up(page, unpaddable, "common page");
  int64_t hidden_token = 0;
  for (const LayerSpec& l : hidden) {
    const KVCacheSpec& s = ctx.spec(l);
    const int64_t head = checked::mul(s.head_size, dtype_size(s.dtype), "hidden state");
    hidden_token = std::max(hidden_token, checked::mul(s.num_kv_heads, head, "hidden state"));
  }
  if (page == 0 || hidden_token <= page) return page;
  return checked::mul(page, checked::cdiv(hidden_token, page), "common page");
}

std::vector<KVCacheSpec> choices_of_one_page(const KVCacheSpec& spec, const PlanningConfig& config,
                                             int64_t page_size) {
  // A padded size that was handed in is a floor for the original block only.
  KVCacheSpec bare = spec;
  if (may_pad(spec)) {
    bare.page_size_padded.reset();
    finalize(bare);
  }
  const int64_t own = page_size_bytes(bare);
  const int64_t exact = page_size % own == 0 ? page_size / own : 0;
  std::vector<KVCacheSpec> choices;
  const auto add = [&](int64_t scale, bool pad) {
    KVCacheSpec candidate = scaled(bare, scale);
    if (pad) {
      candidate.page_size_padded = page_size;
      finalize(candidate);
    }
    if (page_size_bytes(candidate) == page_size) choices.push_back(std::move(candidate));
  };
  if (page_size_bytes(spec) == page_size) {
    choices.push_back(spec);
  } else if (exact != 1 && may_pad(spec)) {
    add(1, true);
  }
  if (!may_scale(spec)) return choices;
  if (may_pad(spec)) {
    const int64_t most = std::min(page_size / own, largest_scale(spec, config));
    for (int64_t scale = 2; scale <= most; ++scale) {
      if (scale == exact) continue;
      if (kernel_takes_block(spec, config, spec.block_size * scale)) {
        add(scale, true);
      }
    }
  }
  // Without padding vLLM cuts the block into kernel blocks, which fit the original one already.
  if (exact > 1) add(exact, false);
  return choices;
}

std::vector<KVCacheSpec> choices_up_to_page(const KVCacheSpec& spec, const PlanningConfig& config,
                                            int64_t max_page_size) {
  std::vector<KVCacheSpec> choices = {spec};
  const bool padded = spec.page_size_padded && !spec.alignment;
  if (!may_scale(spec) || padded) return choices;
  const int64_t most = std::min(max_page_size / page_size_bytes(spec), largest_scale(spec, config));
  for (int64_t scale = 2; scale <= most; ++scale) {
    if (kernel_takes_block(spec, config, spec.block_size * scale)) {
      choices.push_back(scaled(spec, scale));
    }
  }
  return choices;
}

void keep_useful_blocks(std::vector<std::vector<KVCacheSpec>>& choices) {
  constexpr size_t kMaxSpecs = 10;  // of which all subsets are looked at
  const auto has = [](const std::vector<KVCacheSpec>& list, int64_t block_size) {
    return std::any_of(list.begin(), list.end(),
                       [&](const KVCacheSpec& s) { return s.block_size == block_size; });
  };
  std::vector<std::set<int64_t>> useful(choices.size());
  for (size_t i = 0; i < choices.size(); ++i) useful[i].insert(choices[i].back().block_size);
  const size_t subsets = size_t{1} << std::min(choices.size(), kMaxSpecs);
  for (size_t subset = 1; subset < subsets; ++subset) {
    std::vector<size_t> members;
    for (size_t i = 0; i < choices.size(); ++i) {
      if (subset >> i & 1) members.push_back(i);
    }
    const std::vector<KVCacheSpec>& first = choices[members[0]];
    const auto largest_common =
        std::find_if(first.rbegin(), first.rend(), [&](const KVCacheSpec& s) {
          return std::all_of(members.begin(), members.end(),
                             [&](size_t i) { return has(choices[i], s.block_size); });
        });
    if (largest_common == first.rend()) continue;
    for (size_t i : members) useful[i].insert(largest_common->block_size);
  }
  for (size_t i = 0; i < choices.size(); ++i) {
    std::erase_if(choices[i],
                  [&](const KVCacheSpec& s) { return !useful[i].contains(s.block_size); });
  }
}

}  // namespace kvplan::compact
