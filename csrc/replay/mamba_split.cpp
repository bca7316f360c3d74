#include "replay/mamba_split.h"

#include <algorithm>
#include <initializer_list>

#include "cache_manager/group_policy.h"

namespace kvplan::detail {

std::optional<MambaSplit> MambaSplit::make(const CacheManagerOptions& options,
                                           const CacheManager& manager, Limits limits) {
  MambaSplit split;
  bool any = false;
  split.has_checkpoint_blocks_ = true;
  for (const CacheGroup& group : options.groups) {
    if (group.kind != CacheKind::kMamba) continue;
    if (!group.mamba_align) return std::nullopt;
    split.has_checkpoint_blocks_ &= group.num_prefill_checkpoint_blocks > 0;
    if (!any) split.checkpoint_alignment_ = group.prefill_checkpoint_alignment;
    any = true;
  }
  if (!any) return std::nullopt;
  split.limits_ = limits;
  split.hash_block_size_ = manager.hash_block_size();
  split.scheduler_block_size_ = manager.scheduler_block_size();
  split.partial_hits_ =
      split.hash_block_size_ < split.scheduler_block_size_ && manager.enable_partial_hits();
  split.shared_prefix_checkpoint_ = split.partial_hits_ && manager.mamba_shared_prefix_checkpoint();
  split.drops_eagle_block_ = options.use_eagle;
  split.num_hash_lookahead_tokens_ = options.num_hash_lookahead_tokens;
  return split;
}

int64_t MambaSplit::checkpoint(int64_t num_tokens, int64_t alignment) const {
  const int64_t limit = drops_eagle_block_
                            ? num_tokens
                            : num_tokens - std::max<int64_t>(1, num_hash_lookahead_tokens_);
  if (limit < 0) return 0;
  return std::max<int64_t>(0, floor_to(limit, alignment) - (drops_eagle_block_ ? alignment : 0));
}

int64_t MambaSplit::clip(const RequestTokens& tokens, int64_t start, int64_t num_new) const {
  const int64_t prefill_end = std::max(tokens.num_prompt_tokens, tokens.num_tokens - 1);
  if (start >= prefill_end) return num_new;
  const int64_t size = limits_.block_size;
  int64_t end = start + num_new;

  int64_t last_cached = checkpoint(tokens.num_tokens, size);
  const int64_t position =
      checkpoint(prefill_end, partial_hits_ ? hash_block_size_ : scheduler_block_size_);
  const int64_t first_column = start == 0 ? -1 : (start - 1) / size;
  const int64_t column = checked::cdiv(end, size) - 2;
  const bool saved_inside = has_checkpoint_blocks_ && end >= prefill_end && checkpoint_alignment_ &&
                            start % hash_block_size_ == 0 && column > first_column &&
                            start + hash_block_size_ <= position && start < position &&
                            position < end && (position - start) % *checkpoint_alignment_ == 0;
  if (saved_inside) last_cached = 0;
  if (end < prefill_end) {
    const int64_t aligned = floor_to(end, size);
    if (aligned > start || size <= limits_.max_prefill_tokens) end = aligned;
  }

  const bool inside_block = start % size != 0;
  const int64_t tail =
      partial_hits_ && !saved_inside ? checkpoint(tokens.num_prompt_tokens, hash_block_size_) : 0;
  const int64_t junction = tokens.shared_prefix_boundary;
  const bool junction_inside = start < junction && junction < end;
  const int64_t junction_stop =
      shared_prefix_checkpoint_ && junction <= tokens.num_prompt_tokens
          ? junction
          : start + floor_to(std::max<int64_t>(0, junction - start), size);
  int64_t stop = end;
  for (const int64_t at :
       {inside_block && !saved_inside ? floor_to(start, size) + size : 0, last_cached,
        last_cached < tail && tail < tokens.num_prompt_tokens ? tail : 0,
        junction_inside ? junction_stop : 0}) {
    if (start < at && at < end) stop = std::min(stop, at);
  }
  return std::max<int64_t>(0, stop - start);
}

}  // namespace kvplan::detail
