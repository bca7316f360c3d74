#include <algorithm>

#include "cache_manager/manager_state.h"

namespace kvplan::detail {
namespace {

/// Takes blocks of a request that nobody reads any more into `freed`, last first, and leaves null
/// blocks.
class Remover {
 public:
  Remover(ManagerState& state, Request& request, size_t group)
      : freed_(state.freed),
        id_(static_cast<PoolGroupId>(group)),
        group_(state.layout.groups[group]),
        blocks_(state.column(request, group_)) {}

  /// Blocks `[first, last)`. What lies before a null block was freed before.
  void remove(int64_t first, int64_t last) {
    for (int64_t i = std::min(last, blocks_.size()) - 1; i >= first; --i) {
      if (blocks_[i] == kNullBlock) break;
      take(i);
    }
    freed_.end_batch(id_);
  }

  /// States that nobody continues from: there are gaps between those of a prefill.
  void remove_states(StateProgress& state, int64_t num_skipped, int64_t num_processed) {
    const int64_t last = std::min(num_skipped, blocks_.size());
    if (state.num_retired < last) {
      for (int64_t i = last - 1; i >= state.num_retired; --i) {
        if (blocks_[i] != kNullBlock) take(i);
      }
      freed_.end_batch(id_);
      state.num_retired = static_cast<int32_t>(last);
    }
    // The step before copied its state from here; now it is that step's own that is read.
    if (state.last_state >= 0 &&
        state.last_state < checked::cdiv(num_processed, group_.block_size) - 1 &&
        blocks_[state.last_state] != kNullBlock) {
      take(state.last_state);
      freed_.end_batch(id_);
    }
  }

 private:
  void take(int64_t i) {
    freed_.ids.push_back(blocks_[i]);
    blocks_[i] = kNullBlock;
  }

  FreedBlocks& freed_;
  const PoolGroupId id_;
  const GroupPolicy& group_;
  Column blocks_;
};

}  // namespace

void ManagerState::remove_skipped(Request& request, int64_t num_processed,
                                  std::optional<int64_t> num_prompt_tokens) {
  freed.clear();
  skipped.clear();
  for (const std::vector<size_t>& alike : layout.alike) {
    skipped.push_back(layout.groups[alike[0]].skipped_blocks(num_processed));
  }
  for (size_t g = 0; g < layout.groups.size(); ++g) {
    const GroupPolicy& group = layout.groups[g];
    const int64_t num_skipped = skipped[group.alike];
    if (group.kind == CacheKind::kRSWA && num_prompt_tokens) {
      const int64_t window_start = std::max(*num_prompt_tokens, num_processed - group.window);
      Remover(*this, request, g)
          .remove(checked::cdiv(*num_prompt_tokens, group.block_size),
                  window_start / group.block_size);
    } else if (group.mamba_align) {
      Remover(*this, request, g)
          .remove_states(request.states[group.state], num_skipped, num_processed);
    } else if (num_skipped > 0) {
      Remover(*this, request, g).remove(0, num_skipped);
    }
  }
  pool.free_batches(freed);
}

void ManagerState::pop_blocks(RequestHandle handle, Request& request, const PopGroup& pop_group) {
  for (size_t g = 0; g < layout.groups.size(); ++g) {
    Column blocks = column(request, layout.groups[g]);
    ids.clear();
    for (int64_t i = 0; i < blocks.size(); ++i) {
      if (blocks[i] != kNullBlock || !ids.empty()) ids.push_back(blocks[i]);
    }
    pop_group(static_cast<PoolGroupId>(g), ids);
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
