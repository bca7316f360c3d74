#include <algorithm>
#include <span>

#include "cache_manager/manager_state.h"

namespace kvplan::detail {
namespace {

/// Looks for the blocks of one class of groups; the hit's lists of these groups are the result.
/// Each member returns the length of the hit in tokens. Mirrors the `find_longest_cache_hit`
/// methods of vllm/v1/core/single_type_kv_cache_manager.py (0.33).
class ClassLookup {
 public:
  ClassLookup(const ManagerState& state, const Request& request, const LookupClass& lookup,
              PrefixHit& hit)
      : state_(state),
        request_(request),
        lookup_(lookup),
        group_(state.layout.groups[static_cast<size_t>(lookup.groups[0])]),
        hit_(hit),
        block_size_(group_.block_size),
        hashes_per_block_(state.layout.hashes_per_block(group_)),
        alignment_(state.layout.is_hybrid ? state.layout.hit_alignment : block_size_),
        num_hashes_(static_cast<int64_t>(state.hash_count(request))) {}

  int64_t find(int64_t max_tokens, bool drop_eagle_block) {
    for (const PoolGroupId g : lookup_.groups) list(g).clear();
    found_.resize(lookup_.groups.size());
    switch (group_.kind) {
      case CacheKind::kFullAttention:
      case CacheKind::kRSWA:
        return find_full(max_tokens, drop_eagle_block);
      case CacheKind::kSlidingWindow:
        return find_window(max_tokens, drop_eagle_block);
      case CacheKind::kChunkedLocal:
        return find_chunk(max_tokens);
      case CacheKind::kMamba:
        return find_state(max_tokens);
      default:
        return 0;
    }
  }

 private:
  std::vector<BlockId>& list(PoolGroupId g) { return hit_.blocks[static_cast<size_t>(g)]; }
  int64_t list_size() { return static_cast<int64_t>(list(lookup_.groups[0]).size()); }
  bool is_fine() const { return alignment_ < block_size_ && block_size_ % alignment_ == 0; }

  /// Whether every group has a block for the first `(i + 1) * hash_block_size` tokens.
  bool found_at_hash(int64_t i) {
    return i < num_hashes_ &&
           state_.pool.find_in_groups(state_.hash_at(request_, i), lookup_.groups, found_);
  }
  bool found_at_block(int64_t i) { return found_at_hash((i + 1) * hashes_per_block_ - 1); }

  void append_found() {
    for (size_t i = 0; i < found_.size(); ++i) list(lookup_.groups[i]).push_back(found_[i]);
  }
  void resize(int64_t num_blocks) {
    for (const PoolGroupId g : lookup_.groups) {
      list(g).resize(static_cast<size_t>(num_blocks), kNullBlock);
    }
  }
  void cut(int64_t num_blocks) {
    if (num_blocks < list_size()) resize(num_blocks);
  }

  int64_t find_full(int64_t max_tokens, bool drop_eagle_block) {
    const int64_t max_blocks = max_tokens / block_size_;
    while (list_size() < max_blocks && found_at_block(list_size())) append_found();
    int64_t length = list_size() * block_size_;
    if (is_fine()) {
      // A boundary inside the first block that is not there as a whole, the last one first.
      const int64_t first = list_size() * hashes_per_block_;
      const int64_t end =
          std::min({first + hashes_per_block_ - 1, max_tokens / alignment_, num_hashes_});
      for (int64_t i = end - 1; i >= first; --i) {
        if (!found_at_hash(i)) continue;
        append_found();
        length = (i + 1) * alignment_;
        break;
      }
    }
    if (drop_eagle_block && length > 0) length -= std::min(alignment_, block_size_);
    length = floor_to(length, alignment_);
    cut(checked::cdiv(length, block_size_));
    return length;
  }

  /// Drops trailing blocks until the hit ends on the alignment.
  void cut_to_alignment() {
    int64_t size = list_size();
    while (size * block_size_ % alignment_ != 0) --size;
    cut(size);
  }

  int64_t find_window(int64_t max_tokens, bool drop_eagle_block) {
    const int64_t need = group_.blocks_for_hit + (drop_eagle_block ? 1 : 0);
    const int64_t max_blocks = max_tokens / block_size_;
    resize(max_blocks);
    int64_t run = 0;
    bool is_complete = false;
    for (int64_t i = max_blocks - 1; i >= 0; --i) {
      if (!found_at_block(i)) {
        run = 0;
        continue;
      }
      const int64_t blocks_left = drop_eagle_block ? i : i + 1;
      if (run == 0 && blocks_left * block_size_ % alignment_ != 0) continue;
      for (size_t g = 0; g < found_.size(); ++g) {
        list(lookup_.groups[g])[static_cast<size_t>(i)] = found_[g];
      }
      if (++run >= need) {
        resize(i + run);
        is_complete = true;
        break;
      }
    }
    if (!is_complete) {
      // Blocks from the very first on are a hit, though they do not fill the window.
      resize(run);
      cut_to_alignment();
    }
    if (drop_eagle_block && list_size() > 0) {
      resize(list_size() - 1);
      cut_to_alignment();
    }
    return list_size() * block_size_;
  }

  int64_t find_chunk(int64_t max_tokens) {
    // What lies before the chunk of the next token counts as computed.
    resize(group_.skipped_blocks(max_tokens));
    const int64_t max_blocks = max_tokens / block_size_;
    while (list_size() < max_blocks && found_at_block(list_size())) append_found();
    return list_size() * block_size_;
  }

  int64_t find_state(int64_t max_tokens) {
    if (is_fine()) {
      for (int64_t i = std::min(max_tokens / alignment_, num_hashes_) - 1; i >= 0; --i) {
        if (!found_at_hash(i)) continue;
        resize(i / hashes_per_block_);
        append_found();
        return (i + 1) * alignment_;
      }
      return 0;
    }
    for (int64_t i = max_tokens / block_size_ - 1; i >= 0; --i) {
      if ((i + 1) * block_size_ % alignment_ != 0 || !found_at_block(i)) continue;
      resize(i);
      append_found();
      return (i + 1) * block_size_;
    }
    return 0;
  }

  const ManagerState& state_;
  const Request& request_;
  const LookupClass& lookup_;
  const GroupPolicy& group_;
  PrefixHit& hit_;
  const int64_t block_size_;
  const int64_t hashes_per_block_;
  const int64_t alignment_;
  const int64_t num_hashes_;
  std::vector<BlockId> found_;
};

/// Lookup over all classes of groups.
/// Mirrors vllm/v1/core/kv_cache_coordinator.py::HybridKVCacheCoordinator (0.33).
class HybridLookup {
 public:
  HybridLookup(const ManagerState& state, const Request& request, PrefixHit& hit)
      : state_(state), layout_(state.layout), request_(request), hit_(hit) {}

  const GroupPolicy& first_group(const LookupClass& lookup) const {
    return layout_.groups[static_cast<size_t>(lookup.groups[0])];
  }

  /// One class by itself, EAGLE's block matched and dropped where it has one.
  int64_t find_class(const LookupClass& lookup, int64_t max_tokens, bool drop_eagle_block) {
    const GroupPolicy& group = first_group(lookup);
    // A state is never dropped: drafters have none.
    if (drop_eagle_block && group.kind != CacheKind::kMamba) {
      max_tokens =
          std::min(max_tokens + layout_.eagle_margin(group),
                   static_cast<int64_t>(state_.hash_count(request_)) * layout_.hash_block_size);
    }
    return ClassLookup(state_, request_, lookup, hit_).find(max_tokens, drop_eagle_block);
  }

  /// The longest length that all classes accept: each accepts the candidate or shortens it, until
  /// none shortens it any more.
  void find(int64_t max_tokens) {
    const std::vector<LookupClass>& lookups = layout_.lookups;
    const bool one_round = lookups.size() == 2 && first_group(lookups[0]).is_full;
    std::vector<int64_t> full_length(lookups.size(), -1);
    std::vector<uint8_t> is_dropped(lookups.size(), 0);
    int64_t longest = 0;
    int64_t length = max_tokens;
    while (true) {
      int64_t candidate = length;
      for (size_t i = 0; i < lookups.size(); ++i) {
        if (full_length[i] >= 0) {
          candidate = std::min(candidate, full_length[i]);
          continue;
        }
        // EAGLE's block is dropped once for each candidate.
        const bool drop = lookups[i].use_eagle && !is_dropped[i];
        const int64_t found = find_class(lookups[i], candidate, drop);
        if (drop) {
          is_dropped[i] = 1;
        } else if (found < candidate) {
          std::fill(is_dropped.begin(), is_dropped.end(), 0);
        }
        candidate = found;
        if (first_group(lookups[i]).is_full) full_length[i] = found;
        longest = std::max(longest, candidate);
      }
      if (candidate >= length) break;
      length = candidate;
      if (one_round) break;
    }
    for (const LookupClass& lookup : lookups) {
      if (first_group(lookup).is_full) cut(lookup, length);
    }
    hit_.num_tokens = length;
    hit_.shared_prefix_boundary = longest > length ? longest : 0;
  }

 private:
  void cut(const LookupClass& lookup, int64_t num_tokens) {
    const auto size =
        static_cast<size_t>(checked::cdiv(num_tokens, first_group(lookup).block_size));
    for (const PoolGroupId g : lookup.groups) {
      std::vector<BlockId>& blocks = hit_.blocks[static_cast<size_t>(g)];
      if (blocks.size() > size) blocks.resize(size);
    }
  }

  const ManagerState& state_;
  const ManagerLayout& layout_;
  const Request& request_;
  PrefixHit& hit_;
};

void clear(PrefixHit& hit, size_t num_groups) {
  hit.num_tokens = 0;
  hit.shared_prefix_boundary = 0;
  hit.diverged = false;
  hit.blocks.resize(num_groups);
  for (std::vector<BlockId>& blocks : hit.blocks) blocks.clear();
}

}  // namespace

void ManagerState::find_prefix(const Request& request, int64_t max_tokens, PrefixHit& hit) const {
  clear(hit, layout.groups.size());
  if (!layout.enable_caching || max_tokens <= 0) return;
  if (layout.is_hybrid) {
    HybridLookup(*this, request, hit).find(max_tokens);
  } else {
    const LookupClass& lookup = layout.lookups[0];
    hit.num_tokens = ClassLookup(*this, request, lookup, hit).find(max_tokens, lookup.use_eagle);
  }
}

void ManagerState::find_prefix_for_connector(const Request& request, int64_t max_tokens,
                                             PrefixHit& hit) const {
  const std::optional<size_t> full =
      layout.has_mamba && layout.is_hybrid ? layout.full_attention_group() : std::nullopt;
  if (!full || max_tokens <= 0) return find_prefix(request, max_tokens, hit);
  clear(hit, layout.groups.size());
  HybridLookup lookup(*this, request, hit);
  int64_t full_length = 0;
  int64_t longest = 0;
  // A group without a prefix cache has a hit of no tokens.
  int64_t shortest = kNever;
  for (const GroupPolicy& group : layout.groups) {
    if (!group.prefix_cacheable) shortest = 0;
  }
  for (size_t i = 0; i < layout.lookups.size(); ++i) {
    const LookupClass& groups = layout.lookups[i];
    const int64_t length = lookup.find_class(groups, max_tokens, groups.use_eagle);
    if (i == 0) full_length = length;
    longest = std::max(longest, length);
    shortest = std::min(shortest, length);
  }
  // Full attention that lost its blocks: take what every group agrees on.
  if (longest > full_length) return find_prefix(request, max_tokens, hit);
  hit.num_tokens = full_length;
  hit.diverged = shortest < full_length;
}

}  // namespace kvplan::detail
