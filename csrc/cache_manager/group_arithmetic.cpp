#include <algorithm>
#include <limits>

#include "cache_manager/manager_state.h"
#include "kvplan/cache_manager.h"

namespace kvplan {
namespace {

constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max();

detail::GroupPolicy policy_of(const CacheGroup& group, int64_t dcp_world_size) {
  CacheManagerOptions options;
  options.groups = {group};
  options.groups[0].same_spec_as.reset();
  options.num_blocks = 1;
  options.max_model_len = kMaxTokens;
  options.enable_caching = false;
  options.dcp_world_size = dcp_world_size;
  return detail::ManagerLayout(options).groups[0];
}

}  // namespace

int64_t skipped_tokens(const CacheGroup& group, int64_t num_computed_tokens,
                       int64_t dcp_world_size) {
  detail::check_count("skipped_tokens", "num_computed_tokens", num_computed_tokens);
  return policy_of(group, dcp_world_size).skipped_tokens(num_computed_tokens);
}

int64_t blocks_held(const CacheGroup& group, int64_t num_computed_tokens, int64_t num_new_tokens,
                    int64_t dcp_world_size) {
  detail::check_count("blocks_held", "num_computed_tokens", num_computed_tokens);
  detail::check_count("blocks_held", "num_new_tokens", num_new_tokens);
  const int64_t end = num_computed_tokens + num_new_tokens;
  const detail::GroupPolicy policy = policy_of(group, dcp_world_size);
  switch (group.kind) {
    case CacheKind::kCircularBuffer:
      return 1;
    case CacheKind::kCrossAttention:
      return 0;
    case CacheKind::kMamba:
      if (end == 0) return 0;
      if (policy.mamba_align) return 1 + policy.num_speculative_blocks;
      [[fallthrough]];
    default:
      return checked::cdiv(end, policy.block_size) + policy.num_speculative_blocks -
             policy.skipped_blocks(num_computed_tokens);
  }
}

int64_t blocks_for_hit(const CacheGroup& group, int64_t num_tokens, int64_t dcp_world_size) {
  detail::check_count("blocks_for_hit", "num_tokens", num_tokens);
  const detail::GroupPolicy policy = policy_of(group, dcp_world_size);
  const int64_t num_blocks = checked::cdiv(num_tokens, policy.block_size);
  switch (group.kind) {
    case CacheKind::kCircularBuffer:
    case CacheKind::kCrossAttention:
      return 0;
    case CacheKind::kMamba:
      return std::min<int64_t>(num_blocks, 1);
    case CacheKind::kSlidingWindow:
      return std::min(num_blocks, policy.blocks_for_hit);
    default:
      return num_blocks - policy.skipped_blocks(num_tokens);
  }
}

}  // namespace kvplan
