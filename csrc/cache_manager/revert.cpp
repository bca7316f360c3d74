#include <algorithm>
#include <string>

#include "cache_manager/manager_state.h"
#include "kvplan/cache_manager.h"
#include "kvplan/errors.h"

namespace kvplan {

void CacheManager::revert(RequestHandle handle, int64_t num_computed_tokens) {
  detail::ManagerState& s = *state_;
  const detail::ManagerOperation check(s);
  detail::Request& request = s.request_of(handle);
  s.refuse_states("revert");
  detail::check_count("revert", "num_computed_tokens", num_computed_tokens);
  const auto follows_tokens = [&](const detail::GroupPolicy& group) {
    return group.covers_tokens && group.kind != CacheKind::kCircularBuffer;
  };
  const auto kept_length = [&](const detail::GroupPolicy& group) {
    return std::min(request.tables[group.table].length,
                    checked::cdiv(num_computed_tokens, group.block_size));
  };
  for (size_t g = 0; g < num_groups(); ++g) {
    const detail::GroupPolicy& group = s.layout.groups[g];
    if (!follows_tokens(group)) continue;
    detail::Column blocks = s.column(request, group);
    const int64_t prompt = request.tokens.num_prompt_tokens;
    int64_t first = group.skipped_blocks(num_computed_tokens);
    if (group.kind == CacheKind::kSlidingWindow) {
      // A hit has no blocks for what is retained behind the window.
      first = std::max(first, num_computed_tokens / group.block_size - group.blocks_for_hit);
    }
    for (int64_t i = first; i < kept_length(group); ++i) {
      const bool is_gap = group.kind == CacheKind::kRSWA && i * group.block_size >= prompt &&
                          (i + 1) * group.block_size <= num_computed_tokens - group.window;
      if (blocks[i] != kNullBlock || is_gap) continue;
      throw InvalidArgument("revert: block " + std::to_string(i) + " of group " +
                            std::to_string(g) + ", which " + std::to_string(num_computed_tokens) +
                            " tokens need, was let go");
    }
  }
  std::vector<int64_t> lengths(s.layout.tables.size());
  for (size_t t = 0; t < lengths.size(); ++t) lengths[t] = request.tables[t].length;
  for (size_t g = 0; g < num_groups(); ++g) {
    const detail::GroupPolicy& group = s.layout.groups[g];
    if (!follows_tokens(group)) continue;
    detail::Column blocks = s.column(request, group);
    detail::GroupProgress& progress = request.groups[g];
    const auto id = static_cast<PoolGroupId>(g);
    const int64_t num_full = num_computed_tokens / group.block_size;
    for (int64_t i = num_full; i < blocks.size(); ++i) {
      if (s.pool.block_hash_num_tokens(id, blocks[i]).value_or(0) <= num_computed_tokens) continue;
      s.pool.evict_blocks(id, std::span(&blocks[i], 1));
    }
    if (progress.is_known()) {
      progress.num_cached = static_cast<int32_t>(std::min<int64_t>(progress.num_cached, num_full));
    }
    lengths[group.table] = kept_length(group);
    s.ids.clear();
    for (int64_t i = blocks.size(); i-- > lengths[group.table];) {
      if (blocks[i] != kNullBlock) s.ids.push_back(blocks[i]);
    }
    s.pool.free_blocks(id, s.ids);
  }
  for (size_t t = 0; t < lengths.size(); ++t) {
    detail::BlockTables& table = request.tables[t];
    table.length = lengths[t];
    table.ids.resize(static_cast<size_t>(table.length) * s.layout.tables[t].num_columns);
  }
  s.quiet_until[static_cast<size_t>(handle)] = 0;
  check.done(*this);
}

}  // namespace kvplan
