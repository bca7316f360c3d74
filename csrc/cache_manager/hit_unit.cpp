#include <algorithm>

#include "cache_manager/group_policy.h"

namespace kvplan {
namespace detail {
namespace {

/// Tokens of the shortest prompt that caches a prefix of `unit` tokens and finds it.
int64_t shortest_prompt(const ManagerLayout& layout, int64_t unit) {
  // The last token is computed for its logits, and hashes may cover tokens behind their block.
  int64_t shortest = unit + std::max<int64_t>(1, layout.num_hash_lookahead_tokens);
  for (const LookupClass& lookup : layout.lookups) {
    const GroupPolicy& group = layout.groups[static_cast<size_t>(lookup.groups[0])];
    if (group.kind == CacheKind::kMamba) {
      // With EAGLE, the state one boundary before the last is kept.
      if (layout.drops_eagle_checkpoint) {
        const int64_t boundary = layout.partial_hits ? layout.hash_block_size : group.block_size;
        shortest = std::max(shortest, unit + boundary);
      }
      continue;
    }
    // EAGLE matches tokens behind the hit and drops them.
    const int64_t matched = unit + (lookup.use_eagle ? layout.eagle_margin(group) : 0);
    const bool is_late = !layout.is_hybrid || lookup.use_eagle;
    shortest = std::max(shortest, matched + (is_late ? layout.num_reprefillable_tokens : 0));
    if (!layout.is_hybrid) shortest = std::max(shortest, matched + 1);
  }
  return shortest;
}

/// Windows of one token keep no block of a prefix, and a hit needs one.
bool keeps_nothing(const ManagerLayout& layout) {
  return std::any_of(layout.lookups.begin(), layout.lookups.end(), [&](const LookupClass& lookup) {
    const GroupPolicy& group = layout.groups[static_cast<size_t>(lookup.groups[0])];
    return group.kind == CacheKind::kSlidingWindow && group.blocks_for_hit == 0 &&
           !lookup.use_eagle;
  });
}

}  // namespace
}  // namespace detail

std::optional<HitUnit> hit_unit(CacheManagerOptions options, int64_t prefix_replay_tokens) {
  options.num_blocks = 1;
  for (CacheGroup& group : options.groups) group.slices = 1;
  const detail::ManagerLayout layout(options);
  if (!layout.enable_caching || detail::keeps_nothing(layout)) return std::nullopt;
  HitUnit unit;
  unit.tokens = layout.is_hybrid ? layout.hit_alignment : layout.groups[0].block_size;
  const int64_t hit = detail::floor_to(prefix_replay_tokens, unit.tokens) + unit.tokens;
  unit.shortest_prompt = detail::shortest_prompt(layout, hit);
  if (unit.shortest_prompt >= layout.max_model_len) return std::nullopt;
  for (const detail::GroupPolicy& group : layout.groups) {
    options.num_blocks += checked::cdiv(unit.shortest_prompt, group.block_size) +
                          2 * (1 + group.num_speculative_blocks);
  }
  options.enable_events = false;
  CacheManager manager(options);
  const RequestHandle request = manager.add_request();
  const int64_t num_hashes = unit.shortest_prompt / layout.hash_block_size;
  manager.append_hashes(
      request, std::vector<std::byte>(static_cast<size_t>(num_hashes) * layout.hash_bytes));
  manager.allocate(request,
                   {.num_tokens = unit.shortest_prompt, .num_prompt_tokens = unit.shortest_prompt},
                   {.num_new_tokens = unit.shortest_prompt});
  for (size_t g = 0; g < manager.num_groups(); ++g) {
    unit.blocks.push_back(static_cast<int64_t>(manager.new_blocks(g).size()));
  }
  return unit;
}

}  // namespace kvplan
