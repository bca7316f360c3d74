#include <algorithm>
#include <array>
#include <string>

#include "cache_manager/manager_state.h"
#include "kvplan/errors.h"

namespace kvplan::detail {
namespace {

/// Tokens at which a request with the same prompt, or one that shares a prefix, resumes.
/// Mirrors vllm/v1/core/kv_cache_coordinator.py::replay_boundaries (0.33).
class ResumePoints {
 public:
  ResumePoints(const ManagerLayout& layout, const GroupPolicy& group, const RequestTokens& tokens) {
    const int64_t prompt = tokens.num_prompt_tokens;
    if (layout.drops_eagle_block) {
      const int64_t unit = layout.scheduler_block_size;
      // EAGLE matches the block above and drops it.
      add(std::max<int64_t>(0, floor_to(std::max<int64_t>(0, prompt - 1), unit) - unit));
      add(std::max<int64_t>(0, floor_to(prompt, unit) - unit));
    } else {
      add(prompt - 1);
    }
    if (const int64_t shared = tokens.shared_prefix_boundary; shared != 0) {
      add(shared);
      // One that leaves right after cannot match the block above.
      if (group.use_eagle) add(shared - group.block_size);
    }
  }
  std::span<const int64_t> tokens() const { return std::span(points_).first(size_); }

 private:
  void add(int64_t tokens) { points_[size_++] = tokens; }

  std::array<int64_t, 4> points_{};
  size_t size_ = 0;
};

/// Whether a group caches more than full blocks.
bool caches_inside_blocks(const ManagerLayout& layout, const GroupPolicy& group) {
  return group.mamba_align || (group.is_full && group.block_size != layout.hash_block_size);
}

/// Caches what one group of a request has besides full blocks. Mirrors the `cache_blocks` methods
/// of vllm/v1/core/single_type_kv_cache_manager.py (0.33).
class GroupCommit {
 public:
  GroupCommit(ManagerState& state, RequestHandle handle, Request& request, size_t group)
      : state_(state),
        layout_(state.layout),
        handle_(handle),
        request_(request),
        group_id_(group),
        id_(static_cast<PoolGroupId>(group)),
        group_(layout_.groups[group]),
        progress_(request.groups[group]),
        blocks_(state.column(request, group_)) {}

  /// What a group caches besides full blocks, of which it had `first_new`.
  void run(int64_t num_tokens, int64_t first_new) {
    const int64_t end_new = std::max(progress_.num_cached, 0);
    if (group_.mamba_align) {
      if (cache_state_boundary(num_tokens)) remember_boundary();
      remember_new_states(first_new, end_new);
    } else {
      cache_prompt_tail(num_tokens);
    }
  }

 private:
  int64_t num_hashes() const { return static_cast<int64_t>(state_.hash_count(request_)); }

  bool cache_boundary(BlockId block, int64_t num_tokens, bool replace) {
    const int64_t index = num_tokens / layout_.hash_block_size - 1;
    return state_.pool.cache_partial_block(
        {.block = block,
         .hash = state_.hash_at(request_, index),
         .num_tokens = num_tokens,
         .hash_block_size = layout_.hash_block_size,
         .group_id = id_,
         .parent_hash = index == 0 ? std::string_view() : state_.hash_at(request_, index - 1),
         .replace_existing = replace});
  }

  /// The last hash boundary of the prompt, where it lies inside a block.
  void cache_prompt_tail(int64_t num_tokens) {
    const int64_t limit = request_.tokens.num_prompt_tokens - (group_.use_eagle ? 0 : 1);
    if (limit <= 0) return;
    const int64_t boundary =
        std::min(limit / layout_.hash_block_size, num_hashes()) * layout_.hash_block_size;
    if (boundary == 0 || boundary > num_tokens || boundary % group_.block_size == 0) return;
    const int64_t index = boundary / group_.block_size;
    if (index < blocks_.size()) cache_boundary(blocks_[index], boundary, false);
  }

  // States.

  bool has_boundary(BlockId block, int64_t num_tokens) const {
    return state_.pool.block_hash_num_tokens(id_, block) == num_tokens;
  }

  /// Caches the state at a boundary inside or at the end of the block it lies in. Whether it did;
  /// `boundary_` is then its length.
  bool cache_state_boundary(int64_t num_tokens) {
    StateProgress& state = request_.states[group_.state];
    boundary_ = state_.state_boundary(request_, group_, num_tokens);
    if (state.has_checkpoint()) return cache_checkpoint(state);
    if (boundary_ == 0) return false;
    const int64_t index = checked::cdiv(boundary_, group_.block_size) - 1;
    if (index >= blocks_.size()) return false;
    const BlockId block = blocks_[index];
    if (block == kNullBlock || has_boundary(block, boundary_)) return false;
    cache_boundary(block, boundary_, false);
    if (boundary_ % group_.block_size != 0) {
      // The next step overwrites the block: the cache then gets a copy of it.
      progress_.shared_tail = static_cast<int32_t>(index);
      progress_.tail_source = block;
      progress_.num_cached = static_cast<int32_t>(index);
      state.producer_block = block;
      state.producer_tokens = static_cast<int32_t>(boundary_);
    }
    return true;
  }

  /// The block that this step exports a state into is found at that state's boundary.
  bool cache_checkpoint(const StateProgress& state) {
    const BlockId block = blocks_[state.checkpoint_block];
    if (boundary_ == 0) {
      state_.pool.evict_blocks(id_, std::span(&block, 1));
      return false;
    }
    return !has_boundary(block, boundary_) && cache_boundary(block, boundary_, true);
  }

  void remember_boundary() {
    state_.cached_this_step.insert(state_.step_key(
        state_.hash_at(request_, boundary_ / layout_.hash_block_size - 1), group_id_));
  }

  void remember_new_states(int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i) {
      const BlockId block = blocks_[i];
      const std::string_view hash = state_.pool.block_hash(id_, block);
      if (hash.empty()) continue;
      state_.cached_this_step.insert(state_.step_key(hash, group_id_));
      state_.boundary_states[group_id_].push_back(
          {.request = handle_,
           .group = static_cast<uint16_t>(group_id_),
           .block = block,
           .num_tokens = state_.pool.block_hash_num_tokens(id_, block).value_or(0)});
    }
  }

  ManagerState& state_;
  const ManagerLayout& layout_;
  const RequestHandle handle_;
  Request& request_;
  const size_t group_id_;
  const PoolGroupId id_;
  const GroupPolicy& group_;
  GroupProgress& progress_;
  Column blocks_;
  int64_t boundary_ = 0;
};

}  // namespace

int64_t ManagerState::num_full_blocks(const Request& request, const GroupPolicy& group,
                                      int64_t num_tokens) const {
  const int64_t hashed = static_cast<int64_t>(hash_count(request)) * layout.hash_block_size;
  return std::min(num_tokens, hashed) / group.block_size;
}

int64_t ManagerState::state_boundary(const Request& request, const GroupPolicy& group,
                                     int64_t num_tokens) const {
  const RequestTokens& tokens = request.tokens;
  const StateProgress& state = request.states[group.state];
  if (state.has_checkpoint()) {
    const int64_t position = state.checkpoint_tokens;
    const bool is_kept =
        position == layout.checkpoint_position(tokens.num_prompt_tokens, layout.hit_alignment) ||
        position == tokens.shared_prefix_boundary ||
        (position % group.block_size == 0 &&
         Reachable(layout, group, {})(position / group.block_size - 1));
    return is_kept ? position : 0;
  }
  if (num_tokens <= 0 || num_tokens % layout.hash_block_size != 0) return 0;
  const bool is_prompt_end =
      num_tokens == layout.checkpoint_position(tokens.num_prompt_tokens, layout.hash_block_size);
  const bool is_junction =
      layout.shared_prefix_checkpoint && num_tokens == tokens.shared_prefix_boundary &&
      tokens.num_computed_tokens < num_tokens && num_tokens <= tokens.num_prompt_tokens;
  return is_prompt_end || is_junction ? num_tokens : 0;
}

void ManagerState::check_states(const Request& request, int64_t num_computed) const {
  if (layout.num_states == 0) return;
  for (const GroupPolicy& group : layout.groups) {
    if (!group.mamba_align) continue;
    const int64_t boundary =
        state_boundary(request, group, layout.cacheable_tokens(group, num_computed));
    const int64_t hashed = static_cast<int64_t>(hash_count(request)) * layout.hash_block_size;
    if (boundary <= hashed) continue;
    throw InvalidArgument("the state after " + std::to_string(boundary) +
                          " tokens is to be cached, but the request has hashes for " +
                          std::to_string(hashed) + "; append them first");
  }
}

void ManagerState::check_commit(Request& request, int64_t num_computed) {
  for (size_t g = 0; g < layout.groups.size(); ++g) {
    const GroupPolicy& group = layout.groups[g];
    if (!group.prefix_cacheable) continue;
    const int64_t held = column(request, group).size();
    if (group.mamba_align && request.states[group.state].checkpoint_block >= held) {
      throw InvalidArgument("commit: the last allocation did not fit, so block " +
                            std::to_string(request.states[group.state].checkpoint_block) +
                            " of group " + std::to_string(g) + " with its state is not there");
    }
    const int64_t full =
        num_full_blocks(request, group, layout.cacheable_tokens(group, num_computed));
    if (full <= held || full <= request.groups[g].num_cached) continue;
    throw InvalidArgument("commit: " + std::to_string(num_computed) + " tokens fill " +
                          std::to_string(full) + " blocks of group " + std::to_string(g) +
                          ", but the request has " + std::to_string(held) +
                          "; allocate them first");
  }
}

void ManagerState::set_commit_batches() {
  for (size_t g = 0; g < layout.groups.size(); ++g) {
    const GroupPolicy& group = layout.groups[g];
    const auto caches_alike = [&](const CommitBatch& batch) {
      const GroupPolicy& other = layout.groups[static_cast<size_t>(batch.groups[0])];
      if (other.alike == group.alike) return true;
      return other.table == group.table && other.prefix_cacheable == group.prefix_cacheable &&
             other.use_eagle == group.use_eagle && Reachable(layout, other, {}).all() &&
             Reachable(layout, group, {}).all();
    };
    auto batch = commit_batches.end();
    if (!pool.enable_events()) {
      batch = std::find_if(commit_batches.begin(), commit_batches.end(), caches_alike);
    }
    if (batch == commit_batches.end()) batch = commit_batches.emplace(batch);
    batch->groups.push_back(static_cast<PoolGroupId>(g));
    batch->columns.push_back(group.column);
  }
}

void ManagerState::commit_full(Request& request, const CommitBatch& batch, int64_t num_tokens) {
  const auto g = static_cast<size_t>(batch.groups[0]);
  const GroupPolicy& group = layout.groups[g];
  const int64_t first = std::max(request.groups[g].num_cached, 0);
  const int64_t end = num_full_blocks(request, group, num_tokens);
  if (!group.prefix_cacheable || first >= end) return;

  const ResumePoints resume_points(layout, group, request.tokens);
  const Reachable is_reachable(layout, group, resume_points.tokens());
  const int64_t hashes_per_block = layout.hashes_per_block(group);
  hash_views.clear();
  mask.clear();
  for (int64_t i = first; i < end; ++i) {
    hash_views.push_back(hash_at(request, (i + 1) * hashes_per_block - 1));
    if (!is_reachable.all()) mask.push_back(is_reachable(i) ? 1 : 0);
  }
  const size_t stride = layout.tables[group.table].num_columns;
  pool.cache_full_blocks(
      {.hashes = hash_views,
       .first_block = first,
       .block_size = group.block_size,
       .parent_hash =
           first == 0 ? std::string_view() : hash_at(request, first * hashes_per_block - 1),
       .mask = mask},
      {.blocks = request.tables[group.table].ids.data() + static_cast<size_t>(first) * stride,
       .stride = stride,
       .groups = batch.groups,
       .columns = batch.columns});
  for (const PoolGroupId id : batch.groups) {
    request.groups[static_cast<size_t>(id)].num_cached = static_cast<int32_t>(end);
  }
}

void ManagerState::commit(RequestHandle handle, Request& request, int64_t num_computed) {
  for (const CommitBatch& batch : commit_batches) {
    const auto progress = [&](PoolGroupId id) -> const GroupProgress& {
      return request.groups[static_cast<size_t>(id)];
    };
    const GroupPolicy& group = layout.groups[static_cast<size_t>(batch.groups[0])];
    const int64_t num_tokens = layout.cacheable_tokens(group, num_computed);
    const int32_t first = progress(batch.groups[0]).num_cached;
    if (std::all_of(batch.groups.begin(), batch.groups.end(),
                    [&](PoolGroupId id) { return progress(id).num_cached == first; })) {
      commit_full(request, batch, num_tokens);
    } else {
      // Their hits ended at different lengths.
      for (size_t i = 0; i < batch.groups.size(); ++i) {
        commit_full(request, {{batch.groups[i]}, {batch.columns[i]}}, num_tokens);
      }
    }
    for (const PoolGroupId id : batch.groups) {
      const auto g = static_cast<size_t>(id);
      if (!caches_inside_blocks(layout, layout.groups[g])) continue;
      GroupCommit(*this, handle, request, g).run(num_tokens, std::max(first, 0));
    }
  }
}

}  // namespace kvplan::detail
