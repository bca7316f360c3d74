#include <algorithm>

#include "cache_manager/manager_state.h"

namespace kvplan::detail {
namespace {

/// Frees blocks of a request that nobody reads any more, last first, and leaves null blocks.
class Remover {
 public:
  Remover(ManagerState& state, Request& request, const GroupPolicy& group)
      : state_(state), group_(group), blocks_(state.column(request, group)) {}

  /// Blocks `[first, last)`. What lies before a null block was freed before.
  void remove(int64_t first, int64_t last) {
    state_.ids.clear();
    for (int64_t i = std::min(last, blocks_.size()) - 1; i >= first; --i) {
      if (blocks_[i] == kNullBlock) break;
      take(i);
    }
    free_taken();
  }

  /// States that nobody continues from: there are gaps between those of a prefill.
  void remove_states(StateProgress& state, int64_t num_skipped, int64_t num_processed) {
    const int64_t last = std::min(num_skipped, blocks_.size());
    if (state.num_retired < last) {
      state_.ids.clear();
      for (int64_t i = last - 1; i >= state.num_retired; --i) {
        if (blocks_[i] != kNullBlock) take(i);
      }
      free_taken();
      state.num_retired = static_cast<int32_t>(last);
    }
    // The step before copied its state from here; now it is that step's own that is read.
    if (state.last_state >= 0 &&
        state.last_state < checked::cdiv(num_processed, group_.block_size) - 1 &&
        blocks_[state.last_state] != kNullBlock) {
      state_.ids.clear();
      take(state.last_state);
      free_taken();
    }
  }

 private:
  void take(int64_t i) {
    state_.ids.push_back(blocks_[i]);
    blocks_[i] = kNullBlock;
  }
  void free_taken() {
    if (!state_.ids.empty()) state_.pool->free_blocks(state_.ids);
  }

  ManagerState& state_;
  const GroupPolicy& group_;
  Column blocks_;
};

}  // namespace

namespace {

/// Whether the last of the first `count` blocks is still there: those before it go with it.
bool has_block_before(Request& request, const ManagerLayout& layout, const GroupPolicy& group,
                      int64_t count) {
  Column blocks(request, layout, group);
  const int64_t last = std::min(count, blocks.size()) - 1;
  return last >= 0 && blocks[last] != kNullBlock;
}

}  // namespace

void ManagerState::remove_skipped(Request& request, int64_t num_processed,
                                  std::optional<int64_t> num_prompt_tokens) {
  for (const GroupPolicy& group : layout.groups) {
    if (group.kind == CacheKind::kRSWA && num_prompt_tokens) {
      const int64_t window_start = std::max(*num_prompt_tokens, num_processed - group.window);
      Remover(*this, request, group)
          .remove(checked::cdiv(*num_prompt_tokens, group.block_size),
                  window_start / group.block_size);
      continue;
    }
    const int64_t num_skipped = group.skipped_blocks(num_processed);
    if (group.mamba_align) {
      Remover(*this, request, group)
          .remove_states(request.states[group.state], num_skipped, num_processed);
    } else if (num_skipped > 0 && has_block_before(request, layout, group, num_skipped)) {
      Remover(*this, request, group).remove(0, num_skipped);
    }
  }
}

void ManagerState::pop_blocks(RequestHandle handle, Request& request, const PopGroup& pop_group) {
  for (size_t g = 0; g < layout.groups.size(); ++g) {
    Column blocks = column(request, layout.groups[g]);
    ids.clear();
    for (int64_t i = 0; i < blocks.size(); ++i) {
      if (blocks[i] != kNullBlock || !ids.empty()) ids.push_back(blocks[i]);
    }
    pop_group(ids);
    // A block that may hold something else by then is not to be offered.
    std::erase_if(boundary_states[g],
                  [&](const BoundaryState& offered) { return offered.request == handle; });
  }
  for (BlockTables& table : request.tables) {
    table.ids.clear();
    table.length = 0;
  }
  std::fill(request.groups.begin(), request.groups.end(), GroupProgress{});
  std::fill(request.states.begin(), request.states.end(), StateProgress{});
  quiet_until[static_cast<size_t>(handle)] = 0;
}

}  // namespace kvplan::detail
