#include <algorithm>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cache_manager/manager_state.h"
#include "kvplan/errors.h"

namespace kvplan::detail {
namespace {

using Demand = CacheManager::Demand;

std::span<const BlockId> blocks_of(const PrefixHit* hit, size_t group) {
  return hit == nullptr ? std::span<const BlockId>() : hit->blocks[group];
}

/// Whether a hit ends inside a block, which others then share.
bool ends_inside(const GroupPolicy& group, std::span<const BlockId> hit, int64_t num_local) {
  return !hit.empty() && num_local % group.block_size != 0;
}

/// Whether a backend can export the state at `position` in a step from `start` to `end`.
/// Mirrors vllm/v1/kv_cache_interface.py::is_mamba_prefill_checkpoint_valid (0.33).
bool can_export(const ManagerLayout& layout, const GroupPolicy& group, int64_t start, int64_t end,
                int64_t position) {
  const int64_t first_column = start == 0 ? -1 : (start - 1) / group.block_size;
  const int64_t column = checked::cdiv(end, group.block_size) - 2;
  return start % layout.hash_block_size == 0 && column > first_column &&
         start + layout.hash_block_size <= position && position < end &&
         (position - start) % group.checkpoint_alignment == 0;
}

/// What one group of a request needs: new blocks, and those of the hit that it will hold. Mirrors
/// the `get_num_blocks_to_allocate` methods of vllm/v1/core/single_type_kv_cache_manager.py (0.33).
class GroupDemand {
 public:
  GroupDemand(ManagerState& state, Request& request, size_t group, const Demand& demand,
              std::span<const BlockId> hit)
      : state_(state),
        request_(request),
        group_id_(group),
        group_(state.layout.groups[group]),
        demand_(demand),
        hit_(hit),
        held_(request.tables[group_.table].length) {}

  SliceDemand count() {
    const int64_t num_new = count_new();
    return {.group_id = static_cast<PoolGroupId>(group_id_), .found = found_, .num_new = num_new};
  }

 private:
  /// Sets `found_`, too.
  int64_t count_new() {
    switch (group_.kind) {
      case CacheKind::kCircularBuffer:
        return held_ == 0 ? 1 : 0;
      case CacheKind::kCrossAttention:
        return checked::cdiv(demand_.num_encoder_tokens, group_.block_size) > held_
                   ? checked::cdiv(demand_.num_encoder_tokens, group_.block_size) - held_
                   : 0;
      case CacheKind::kMamba:
        // A state of this very step is not written yet: wait for the next.
        if (is_cached_this_step()) {
          return state_.pool.num_ids(static_cast<PoolGroupId>(group_id_)) + 1;
        }
        return group_.mamba_align
                   ? count_states()
                   : count_blocks(demand_.num_tokens +
                                  group_.spec_block_size * group_.num_speculative_blocks);
      default:
        return count_blocks(demand_.num_tokens);
    }
  }

  bool is_cached_this_step() const {
    if (hit_.empty() || hit_.back() == kNullBlock || state_.cached_this_step.empty()) return false;
    const std::string_view hash =
        state_.pool.block_hash(static_cast<PoolGroupId>(group_id_), hit_.back());
    return !hash.empty() && state_.cached_this_step.contains(state_.step_key(hash, group_id_));
  }

  int64_t count_blocks(int64_t num_tokens) {
    int64_t required = checked::cdiv(num_tokens, group_.block_size);
    if (demand_.apply_admission_cap) required = std::min(required, group_.admission_cap);
    if (request_.groups[group_id_].is_known()) return std::max<int64_t>(required - held_, 0);
    const int64_t skipped = group_.skipped_blocks(demand_.total_computed_tokens);
    const int64_t num_hit = static_cast<int64_t>(hit_.size());
    const int64_t fresh = std::max<int64_t>(required - std::max(skipped, num_hit + held_), 0);
    const int64_t skipped_hit = std::clamp<int64_t>(skipped - held_, 0, num_hit);
    const int64_t copied = ends_inside(group_, hit_, demand_.num_local_computed_tokens) ? 1 : 0;
    found_ = hit_.subspan(static_cast<size_t>(skipped_hit));
    return fresh + copied;
  }

  int64_t count_states() {
    StateProgress& state = request_.states[group_.state];
    const int64_t end = demand_.num_tokens_main_model;
    int64_t fresh = checked::cdiv(end, group_.block_size) + group_.num_speculative_blocks -
                    static_cast<int64_t>(hit_.size()) - held_;
    const bool copied = ends_inside(group_, hit_, demand_.num_local_computed_tokens) ||
                        request_.groups[group_id_].has_shared_tail();
    if (copied) fresh = std::max<int64_t>(fresh, 0) + 1;
    const int64_t position = state_.layout.checkpoint_position(end, state_.layout.hit_alignment);
    const bool exports = position > 0 && exports_state(state, position);
    if (!demand_.apply_admission_cap) {
      state.checkpoint_block =
          exports ? static_cast<int32_t>(checked::cdiv(end, group_.block_size) - 2) : -1;
      state.checkpoint_tokens = exports ? static_cast<int32_t>(position) : 0;
    }
    if (fresh > 0) {
      int64_t cap = 1 + (copied ? 1 : 0) + (exports ? 1 : 0);
      if (!state.has_allocated) cap += group_.num_speculative_blocks;
      fresh = std::min(fresh, cap);
    }
    found_ = hit_;
    return fresh;
  }

  /// Whether this step writes a state at `position` into a block of its own.
  bool exports_state(const StateProgress& state, int64_t position) {
    const int64_t end = demand_.num_tokens_main_model;
    if (!group_.has_prefill_checkpoint || end < demand_.prefill_end ||
        !can_export(state_.layout, group_, demand_.total_computed_tokens, end, position)) {
      return false;
    }
    const int64_t block = checked::cdiv(end, group_.block_size) - 2;
    if (block < 0) return false;
    return block >= held_ || state_.column(request_, group_)[block] == kNullBlock ||
           (state.has_allocated && block >= held_ - group_.num_speculative_blocks);
  }

  ManagerState& state_;
  Request& request_;
  const size_t group_id_;
  const GroupPolicy& group_;
  const Demand& demand_;
  const std::span<const BlockId> hit_;
  const int64_t held_;
  std::span<const BlockId> found_;
};

/// Carries out one allocation, after it is known to fit.
class Grower {
 public:
  struct Sizes {
    int64_t num_local = 0;     // computed tokens: the request's and the hit's
    int64_t num_external = 0;  // and those that a connector loads
    int64_t num_slots = 0;     // all tokens that need a place
    int64_t num_main = 0;      // without lookahead
    int64_t num_encoder = 0;
    int64_t num_total() const { return num_local + num_external; }
  };

  Grower(ManagerState& state, RequestHandle handle, Request& request, const PrefixHit* hit,
         const Sizes& sizes, std::span<const uint16_t> skip_zeroing)
      : state_(state),
        layout_(state.layout),
        handle_(handle),
        request_(request),
        hit_(hit),
        sizes_(sizes),
        skip_zeroing_(skip_zeroing) {}

  /// False, and nothing happens, if the tables would grow by more than `most_new_blocks`.
  bool run(int64_t most_new_blocks) {
    plan();
    if (num_grown_ > most_new_blocks) return false;
    take();
    return true;
  }

 private:
  size_t num_groups() const { return layout_.groups.size(); }
  bool is_known() const {
    return std::any_of(request_.groups.begin(), request_.groups.end(),
                       [](const GroupProgress& progress) { return progress.is_known(); });
  }

  /// Works out every group's growth, and refuses what cannot be done, before anything changes.
  void plan() {
    adopts_ = ((hit_ != nullptr && !hit_->empty()) || sizes_.num_external > 0) && !is_known();
    state_.growths.assign(num_groups(), {});
    for (size_t g = 0; g < num_groups(); ++g) {
      const GroupPolicy& group = layout_.groups[g];
      Growth& growth = state_.growths[g];
      growth.adopted = request_.tables[group.table].length;
      if (adopts_) plan_adoption(g, group, growth);
      plan_growth(g, group, growth);
      num_external_blocks_ += growth.external;
      num_grown_ += growth.length() - growth.adopted;
    }
    check_tables();
    set_demands();
    const int64_t needed = state_.pool.num_needed(state_.demands);
    const int64_t num_free = state_.pool.num_free_blocks();
    if (needed > num_free) {
      throw BlockPoolError("allocate: " + std::to_string(needed) + " blocks are needed and " +
                           std::to_string(num_free) + " are free; nothing was allocated");
    }
  }

  /// What the groups hold and what they load, then what is new.
  void set_demands() {
    std::vector<SliceDemand>& demands = state_.demands;
    demands.clear();
    if (adopts_) {
      for (size_t g = 0; g < num_groups(); ++g) {
        const Growth& growth = state_.growths[g];
        demands.push_back({static_cast<PoolGroupId>(g), kept_hit(g), growth.external});
      }
    }
    for (size_t g = 0; g < num_groups(); ++g) {
      demands.push_back({static_cast<PoolGroupId>(g), {}, state_.growths[g].taken()});
    }
  }

  /// Blocks of the hit that the request will hold.
  std::span<const BlockId> kept_hit(size_t g) const {
    const std::span<const BlockId> hit = blocks_of(hit_, g);
    const auto skipped = static_cast<size_t>(state_.growths[g].skipped);
    return skipped < hit.size() ? hit.subspan(skipped) : std::span<const BlockId>();
  }

  void plan_adoption(size_t g, const GroupPolicy& group, Growth& growth) {
    if (group.kind == CacheKind::kCrossAttention) return;
    if (group.kind == CacheKind::kCircularBuffer) {
      if (growth.adopted == 0 && sizes_.num_external > 0) growth.external = 1;
      return;
    }
    if (growth.adopted != 0) {
      throw InvalidArgument("allocate: group " + std::to_string(g) + " of the request has " +
                            std::to_string(growth.adopted) +
                            " blocks already; computed tokens are taken over before the first");
    }
    const std::span<const BlockId> hit = blocks_of(hit_, g);
    const auto num_hit = static_cast<int64_t>(hit.size());
    const int64_t total = sizes_.num_total();
    growth.skipped = group.skipped_blocks(total);
    growth.adopted = std::max(growth.skipped, num_hit);
    const std::span<const BlockId> kept = kept_hit(g);
    if (ends_inside(group, kept, sizes_.num_local)) check_tail(g, group, growth, kept);
    const int64_t to_load = std::min(total - group.skipped_tokens(total), sizes_.num_external);
    if (to_load > 0) {
      growth.external =
          std::max<int64_t>(0, checked::cdiv(total, group.block_size) - growth.adopted);
    }
  }

  void check_tail(size_t g, const GroupPolicy& group, Growth& growth,
                  std::span<const BlockId> kept) {
    growth.copied = true;
    if (sizes_.num_local / group.block_size == growth.adopted - 1 && kept.back() != kNullBlock) {
      return;
    }
    throw InvalidArgument("allocate: " + std::to_string(sizes_.num_local) +
                          " computed tokens end inside a block of group " + std::to_string(g) +
                          ", and the hit's " + std::to_string(growth.adopted) +
                          " blocks do not end with it");
  }

  void plan_growth(size_t g, const GroupPolicy& group, Growth& growth) {
    const int64_t length = growth.adopted + growth.external;
    switch (group.kind) {
      case CacheKind::kCircularBuffer:
        growth.fresh = length == 0 ? 1 : 0;
        return;
      case CacheKind::kCrossAttention:
        growth.fresh = blocks_missing(sizes_.num_encoder, group, length);
        return;
      case CacheKind::kMamba:
        if (group.mamba_align) return plan_states(g, group, growth);
        growth.fresh = blocks_missing(
            sizes_.num_slots + group.block_size * group.num_speculative_blocks, group, length);
        return;
      default:
        growth.fresh = blocks_missing(sizes_.num_slots, group, length);
    }
  }

  static int64_t blocks_missing(int64_t num_tokens, const GroupPolicy& group, int64_t length) {
    return std::max<int64_t>(0, checked::cdiv(num_tokens, group.block_size) - length);
  }

  /// Blocks of the sequence, null but for the last state, the exported one, and speculative ones at
  /// the end.
  void plan_states(size_t g, const GroupPolicy& group, Growth& growth) {
    const StateProgress& state = request_.states[group.state];
    growth.copied |= request_.groups[g].has_shared_tail();
    const int64_t exported = state.has_checkpoint() ? 1 : 0;
    const int64_t speculative = group.num_speculative_blocks;
    const int64_t length = growth.adopted + growth.external;
    const int64_t required = checked::cdiv(sizes_.num_main, group.block_size) + speculative;
    if (required <= length && !growth.copied && exported == 0) return;
    const int64_t first_kept = required - speculative - 1 - exported;
    if (length < required - speculative - 1) {
      growth.nulls = std::max<int64_t>(0, first_kept - length);
    }
    if (state.has_allocated) {
      growth.relocated = std::clamp<int64_t>(std::min(length, first_kept) - (length - speculative),
                                             0, speculative);
    }
    Column blocks = state_.column(request_, group);
    for (int64_t i = 0; i < growth.relocated; ++i) {
      check_scratch(g, blocks[length - speculative + i]);
    }
    growth.fresh = std::max<int64_t>(0, required - (length + growth.nulls + growth.relocated));
    int64_t most = 1 + exported;
    if (!state.has_allocated) most += speculative;
    if (growth.fresh > most) {
      throw BlockPoolError("allocate: " + std::to_string(growth.fresh) + " new states in group " +
                           std::to_string(g) + ", where a step has " + std::to_string(most));
    }
  }

  /// A speculative block moves only while nobody else can see it.
  void check_scratch(size_t g, BlockId block) const {
    const auto id = static_cast<PoolGroupId>(g);
    if (block != kNullBlock && state_.pool.ref_count(id, block) == 1 &&
        state_.pool.block_hash(id, block).empty()) {
      return;
    }
    throw BlockPoolError("allocate: speculative block " + std::to_string(block) + " of group " +
                         std::to_string(g) + " is shared or cached, and cannot be moved");
  }

  /// Groups that share tables must end with equally many blocks.
  void check_tables() {
    state_.lengths.assign(layout_.tables.size(), -1);
    for (size_t g = 0; g < num_groups(); ++g) {
      int64_t& length = state_.lengths[layout_.groups[g].table];
      if (length < 0) length = state_.growths[g].length();
      if (length == state_.growths[g].length()) continue;
      throw InvalidArgument("allocate: the hit has " + std::to_string(blocks_of(hit_, g).size()) +
                            " blocks of group " + std::to_string(g) + ", more than " +
                            std::to_string(sizes_.num_local) + " computed tokens fill");
    }
  }

  void take() {
    for (const Growth& growth : state_.growths) num_taken_ += growth.taken();
    state_.ids.resize(static_cast<size_t>(num_external_blocks_ + num_taken_));
    state_.pool.allocate(state_.demands, state_.ids, state_.is_alone(handle_));
    for (size_t t = 0; t < layout_.tables.size(); ++t) grow_table(t);
    if (adopts_) {
      for (size_t g = 0; g < num_groups(); ++g) adopt(g);
    }
    if (num_external_blocks_ > 0) place_external();
    place_new();
  }

  void grow_table(size_t t) {
    BlockTables& table = request_.tables[t];
    table.length = state_.lengths[t];
    table.ids.resize(static_cast<size_t>(table.length) * layout_.tables[t].num_columns, kNullBlock);
  }

  void adopt(size_t g) {
    const GroupPolicy& group = layout_.groups[g];
    if (group.kind == CacheKind::kCrossAttention || group.kind == CacheKind::kCircularBuffer) {
      return;
    }
    const Growth& growth = state_.growths[g];
    const std::span<const BlockId> hit = blocks_of(hit_, g);
    Column blocks = state_.column(request_, group);
    for (auto i = static_cast<size_t>(growth.skipped); i < hit.size(); ++i) {
      blocks[static_cast<int64_t>(i)] = hit[i];
    }
    GroupProgress& progress = request_.groups[g];
    progress.num_cached = static_cast<int32_t>(growth.adopted);
    if (growth.copied) {
      progress.shared_tail = progress.num_cached = static_cast<int32_t>(growth.adopted - 1);
      progress.tail_source = hit.back();
    }
  }

  bool is_loaded(size_t g) const {
    return std::find(skip_zeroing_.begin(), skip_zeroing_.end(), g) != skip_zeroing_.end();
  }

  void place_external() {
    size_t next = 0;
    for (size_t g = 0; g < num_groups(); ++g) {
      const Growth& growth = state_.growths[g];
      Column blocks = state_.column(request_, layout_.groups[g]);
      for (int64_t i = 0; i < growth.external; ++i) {
        const BlockId block = state_.ids[next++];
        blocks[growth.adopted + i] = block;
        if (layout_.groups[g].records_new && !is_loaded(g)) {
          state_.new_block_ids[g].push_back(block);
        }
      }
    }
  }

  void place_new() {
    NewBlocks& result = state_.new_blocks;
    result.clear();
    std::span<const BlockId> taken = std::span(state_.ids).last(static_cast<size_t>(num_taken_));
    for (size_t g = 0; g < num_groups(); ++g) {
      const Growth& growth = state_.growths[g];
      const auto count = static_cast<size_t>(growth.taken());
      if (layout_.groups[g].mamba_align) {
        place_states(g, growth, taken.first(count));
      } else if (count > 0) {
        place(g, growth, taken.first(count));
      }
      taken = taken.subspan(count);
      result.begins[g + 1] = result.ids.size();
    }
  }

  void place(size_t g, const Growth& growth, std::span<const BlockId> taken) {
    const GroupPolicy& group = layout_.groups[g];
    Column blocks = state_.column(request_, group);
    std::vector<BlockId>& result = state_.new_blocks.ids;
    result.insert(result.end(), taken.begin(), taken.end());
    if (growth.copied) {
      redirect_tail(g, blocks, taken[0]);
      state_.new_block_ids[g].push_back(taken[0]);
      taken = taken.subspan(1);
    }
    const int64_t end = growth.length() - growth.fresh;
    for (size_t i = 0; i < taken.size(); ++i) blocks[end + static_cast<int64_t>(i)] = taken[i];
    if (group.records_new) {
      std::vector<BlockId>& zeroed = state_.new_block_ids[g];
      zeroed.insert(zeroed.end(), taken.begin(), taken.end());
    }
  }

  /// The request continues in a copy of the block that it shares. Both ends stay held until the
  /// copy is made.
  void redirect_tail(size_t g, Column& blocks, BlockId copy) {
    GroupProgress& progress = request_.groups[g];
    blocks[progress.shared_tail] = copy;
    state_.copies[g].push_back(
        {.source = progress.tail_source, .destination = copy, .group = static_cast<int32_t>(g)});
    state_.pool.hold(static_cast<PoolGroupId>(g), copy);
    progress.shared_tail = -1;
  }

  void place_states(size_t g, const Growth& growth, std::span<const BlockId> taken) {
    const GroupPolicy& group = layout_.groups[g];
    StateProgress& state = request_.states[group.state];
    const bool had_allocated = state.has_allocated;
    state.has_allocated = true;
    const int64_t length = growth.adopted + growth.external;
    if (growth.length() == length && taken.empty() && !state.has_checkpoint() &&
        !request_.groups[g].has_shared_tail()) {
      return;
    }
    if (had_allocated) {
      state.last_state = static_cast<int32_t>(length - 1 - group.num_speculative_blocks);
    } else if (length > 0) {
      state.last_state = static_cast<int32_t>(length - 1);
    }
    Column blocks = state_.column(request_, group);
    int64_t end = length + growth.nulls;
    const int64_t first_speculative = length - group.num_speculative_blocks;
    for (int64_t i = 0; i < growth.relocated; ++i) {
      blocks[end++] = std::exchange(blocks[first_speculative + i], kNullBlock);
    }
    std::vector<BlockId>& result = state_.new_blocks.ids;
    if (growth.copied) {
      const BlockId copy = taken[0];
      taken = taken.subspan(1);
      if (had_allocated) {
        move_tail_hashes(g, copy);
      } else {
        redirect_tail(g, blocks, copy);
        result.push_back(copy);
      }
    }
    for (size_t i = 0; i < taken.size(); ++i) blocks[end + static_cast<int64_t>(i)] = taken[i];
    for (int64_t i = length; i < growth.length(); ++i) result.push_back(blocks[i]);
  }

  /// A running request goes on in the block that it has, since its worker's table only grows: the
  /// cache gets the copy.
  void move_tail_hashes(size_t g, BlockId copy) {
    GroupProgress& progress = request_.groups[g];
    StateProgress& state = request_.states[layout_.groups[g].state];
    const BlockId source = progress.tail_source;
    const auto id = static_cast<PoolGroupId>(g);
    state_.pool.move_block_hashes(id, source, copy);
    state_.copies[g].push_back(
        {.source = source, .destination = copy, .group = static_cast<int32_t>(g)});
    state_.pool.hold(id, source);
    if (state.producer_block != kNullBlock) {
      state_.boundary_states[g].push_back({.request = handle_,
                                           .group = static_cast<uint16_t>(g),
                                           .block = copy,
                                           .num_tokens = state.producer_tokens});
      state.producer_block = kNullBlock;
    }
    // Only this step's copy fills the block.
    if (const std::string_view hash = state_.pool.block_hash(id, copy); !hash.empty()) {
      state_.cached_this_step.insert(state_.step_key(hash, g));
    }
    progress.shared_tail = -1;
  }

  ManagerState& state_;
  const ManagerLayout& layout_;
  const RequestHandle handle_;
  Request& request_;
  const PrefixHit* const hit_;
  const Sizes sizes_;
  const std::span<const uint16_t> skip_zeroing_;
  bool adopts_ = false;
  int64_t num_external_blocks_ = 0;
  int64_t num_grown_ = 0;
  int64_t num_taken_ = 0;  // without external ones
};

void check_allocation(const ManagerState& state, const RequestTokens& tokens, const Allocation& a) {
  constexpr const char* kCall = "allocate";
  check_tokens(kCall, tokens);
  check_count(kCall, "num_new_tokens", a.num_new_tokens);
  check_count(kCall, "num_new_computed_tokens", a.num_new_computed_tokens);
  check_count(kCall, "num_external_computed_tokens", a.num_external_computed_tokens);
  check_count(kCall, "num_lookahead_tokens", a.num_lookahead_tokens);
  check_count(kCall, "num_encoder_tokens", a.num_encoder_tokens);
  check_count(kCall, "reserved_blocks", a.reserved_blocks);
  if (a.num_new_tokens + a.num_new_computed_tokens + a.num_external_computed_tokens == 0) {
    throw InvalidArgument(
        "allocate: num_new_tokens must be greater than 0 when there are no "
        "computed tokens to adopt");
  }
  for (const uint16_t group : a.skip_zeroing_groups) {
    if (group >= state.layout.groups.size()) {
      throw InvalidArgument("allocate: there is no group " + std::to_string(group));
    }
  }
  const int64_t main = tokens.num_computed_tokens + a.num_new_computed_tokens +
                       a.num_external_computed_tokens + a.num_new_tokens;
  const int64_t limit = state.layout.max_model_len;
  if (std::min(main, tokens.num_tokens) > limit) {
    throw InvalidArgument("allocate: " + std::to_string(std::min(main, tokens.num_tokens)) +
                          " tokens are more than max_model_len = " + std::to_string(limit));
  }
}

}  // namespace

void check_count(const char* call, const char* name, int64_t value) {
  if (value >= 0 && value <= std::numeric_limits<int32_t>::max()) return;
  throw InvalidArgument(std::string(call) + ": " + name + " is 0 to 2147483647, not " +
                        std::to_string(value));
}

void check_tokens(const char* call, const RequestTokens& tokens) {
  check_count(call, "num_tokens", tokens.num_tokens);
  check_count(call, "num_prompt_tokens", tokens.num_prompt_tokens);
  check_count(call, "num_computed_tokens", tokens.num_computed_tokens);
  check_count(call, "num_in_flight_tokens", tokens.num_in_flight_tokens);
  check_count(call, "shared_prefix_boundary", tokens.shared_prefix_boundary);
}

void ManagerState::check_hit(const Request& request, const PrefixHit& hit) const {
  if (hit.blocks.size() != layout.groups.size()) {
    throw InvalidArgument("a hit has the blocks of " + std::to_string(layout.groups.size()) +
                          " groups, not of " + std::to_string(hit.blocks.size()));
  }
  if (hit.empty()) return;
  for (size_t g = 0; g < hit.blocks.size(); ++g) {
    const std::vector<BlockId>& blocks = hit.blocks[g];
    if (blocks.empty()) continue;
    const CacheKind kind = layout.groups[g].kind;
    if (!layout.enable_caching || kind == CacheKind::kCrossAttention ||
        kind == CacheKind::kCircularBuffer) {
      throw InvalidArgument("group " + std::to_string(g) +
                            " is not cached, but the hit has blocks of it");
    }
    for (const BlockId block : blocks) {
      if (block >= 0 && block < pool.num_ids(static_cast<PoolGroupId>(g))) continue;
      throw BlockPoolError("a hit of group " + std::to_string(g) + " names block " +
                           std::to_string(block) + ", which is not in the pool");
    }
    if (std::any_of(request.groups.begin(), request.groups.end(),
                    [](const GroupProgress& progress) { return progress.is_known(); })) {
      throw InvalidArgument("a running request takes over no more computed blocks");
    }
  }
}

/// Blocks that the tables of a running request lack, which takes over nothing; sets `lengths`, and
/// with slices `demands`. None where more has to be done than to append blocks.
std::optional<int64_t> ManagerState::blocks_to_append(const Request& request, int64_t num_computed,
                                                      int64_t num_slots) {
  if (!layout.follows_tokens) return std::nullopt;
  lengths.resize(layout.tables.size());
  int64_t missing = 0;
  for (size_t t = 0; t < layout.tables.size(); ++t) {
    const TableShape& shape = layout.tables[t];
    const int64_t length = request.tables[t].length;
    if (num_computed > length * shape.block_size) return std::nullopt;
    lengths[t] = std::max(length, checked::cdiv(num_slots, shape.block_size));
    missing += (lengths[t] - length) * shape.num_columns;
  }
  demands.clear();
  for (size_t g = 0; pool.is_sliced() && missing > 0 && g < layout.groups.size(); ++g) {
    const uint32_t t = layout.groups[g].table;
    demands.push_back({static_cast<PoolGroupId>(g), {}, lengths[t] - request.tables[t].length});
  }
  return missing;
}

void ManagerState::append_blocks(Request& request, int64_t num_blocks, bool frugal) {
  if (num_blocks == 0 && new_blocks.ids.empty()) return;
  new_blocks.clear();
  if (num_blocks == 0) return;
  // In the order in which the groups take theirs.
  new_blocks.ids.resize(static_cast<size_t>(num_blocks));
  pool.allocate(demands, new_blocks.ids, frugal);
  size_t next = 0;
  for (size_t g = 0; g < layout.groups.size(); ++g) {
    const GroupPolicy& group = layout.groups[g];
    BlockTables& table = request.tables[group.table];
    const size_t num_columns = layout.tables[group.table].num_columns;
    const auto end = static_cast<size_t>(lengths[group.table]);
    table.ids.resize(end * num_columns, kNullBlock);
    for (auto i = static_cast<size_t>(table.length); i < end; ++i) {
      const BlockId block = new_blocks.ids[next++];
      table.ids[i * num_columns + group.column] = block;
      if (group.records_new) new_block_ids[g].push_back(block);
    }
    new_blocks.begins[g + 1] = next;
  }
  for (size_t t = 0; t < lengths.size(); ++t) request.tables[t].length = lengths[t];
}

int64_t ManagerState::blocks_needed(Request& request, const CacheManager::Demand& demand,
                                    const PrefixHit* hit) {
  Demand adjusted = demand;
  // Otherwise every chunk keeps a state, not only the last.
  if (layout.retention_interval != 0) adjusted.prefill_end = 0;
  demands.clear();
  for (size_t g = 0; g < layout.groups.size(); ++g) {
    demands.push_back(GroupDemand(*this, request, g, adjusted, blocks_of(hit, g)).count());
    // A plain pool's sum is vLLM's, which counts a group that needs less than nothing.
    if (pool.is_sliced()) demands.back().num_new = std::max<int64_t>(0, demands.back().num_new);
  }
  return pool.num_needed(demands);
}

void ManagerState::make_way(RequestHandle handle) {
  if (!pool.is_sliced()) return;
  // What is cached may hold a large block each. Refused while something is in use.
  if (pool.reset_prefix_cache()) return;
  for (size_t i = 0; i < requests.size(); ++i) {
    const Request& request = requests[i];
    const bool has_blocks = std::any_of(request.tables.begin(), request.tables.end(),
                                        [](const BlockTables& t) { return t.length > 0; });
    if (i != static_cast<size_t>(handle) && (has_blocks || !request.held.empty())) return;
  }
  alone = handle;
  alone_starts_again = true;
}

StepResult::Stop ManagerState::allocate(RequestHandle handle, const RequestTokens& tokens,
                                        const Allocation& a, const PrefixHit* hit,
                                        int64_t most_new_blocks) {
  using Stop = StepResult::Stop;
  Request& request = request_of(handle);
  check_allocation(*this, tokens, a);
  if (hit != nullptr) check_hit(request, *hit);
  if (alone && !is_alone(handle)) return Stop::kNoBlocks;
  request.tokens = tokens;
  quiet_until[static_cast<size_t>(handle)] = 0;

  Grower::Sizes sizes{
      .num_local = tokens.num_computed_tokens + a.num_new_computed_tokens,
      .num_external = a.num_external_computed_tokens,
      .num_encoder = a.num_encoder_tokens,
  };
  const int64_t computed = std::min(sizes.num_total(), layout.max_model_len);
  const int64_t headroom = a.apply_watermark ? layout.watermark_blocks : 0;
  MakingWay retained_go(*this);
  Demand demand{
      .num_encoder_tokens = a.num_encoder_tokens,
      .num_local_computed_tokens = sizes.num_local,
      .prefill_end = std::max(tokens.num_prompt_tokens, tokens.num_tokens - 1),
  };
  if (a.full_sequence_must_fit) {
    demand.num_tokens = std::min(tokens.num_tokens, layout.max_model_len);
    demand.num_tokens_main_model = demand.num_tokens;
    demand.total_computed_tokens = computed;
    demand.apply_admission_cap = true;
    while (blocks_needed(request, demand, hit) + headroom > pool.num_free_blocks()) {
      if (retained_go.next()) continue;
      make_way(handle);
      return Stop::kNoBlocks;
    }
  }
  sizes.num_main = computed + a.num_new_tokens;
  sizes.num_slots = std::min(sizes.num_main + a.num_lookahead_tokens, layout.max_model_len);

  // Steps in flight still read what lies below their own windows.
  const int64_t processed = std::max<int64_t>(0, computed - tokens.num_in_flight_tokens);
  remove_skipped(request, processed, tokens.num_prompt_tokens);
  demand.num_tokens = sizes.num_slots;
  demand.num_tokens_main_model = sizes.num_main;
  demand.total_computed_tokens = sizes.num_total();
  demand.apply_admission_cap = false;
  const bool adopts = (hit != nullptr && !hit->empty()) || sizes.num_external > 0;
  const std::optional<int64_t> appended =
      adopts ? std::nullopt : blocks_to_append(request, sizes.num_total(), sizes.num_slots);
  const auto num_needed = [&] {
    if (!appended) return blocks_needed(request, demand, hit);
    return demands.empty() ? *appended : pool.num_needed(demands);
  };
  while (num_needed() + headroom > pool.num_free_blocks() - a.reserved_blocks) {
    if (retained_go.next()) continue;
    make_way(handle);
    return Stop::kNoBlocks;
  }

  const bool commits = layout.enable_caching && !a.delay_cache_blocks;
  const int64_t num_cached = commits ? std::min(sizes.num_main, tokens.num_tokens) : 0;
  if (commits) check_states(request, num_cached);
  if (appended) {
    if (*appended > most_new_blocks) return Stop::kNoRoom;
    retained_go.done();
    append_blocks(request, *appended, is_alone(handle));
  } else {
    Grower grower(*this, handle, request, hit, sizes, a.skip_zeroing_groups);
    retained_go.done();
    if (!grower.run(most_new_blocks)) return Stop::kNoRoom;
  }
  if (commits) commit(handle, request, num_cached);
  quiet_until[static_cast<size_t>(handle)] = next_need(request, processed, num_cached);
  return Stop::kDone;
}

namespace {

void check_step(const DecodeStep& step) {
  const size_t size = step.requests.size();
  const auto fits = [&](std::span<const int64_t> array) {
    return array.empty() || array.size() == size;
  };
  if (step.num_computed_tokens.size() != size || !fits(step.num_new_tokens) ||
      !fits(step.num_tokens) || !fits(step.num_in_flight_tokens)) {
    throw InvalidArgument("schedule: the arrays of a step of " + std::to_string(size) +
                          " requests have an element a request, or none where one may be left out");
  }
  if (size > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    throw InvalidArgument("schedule: no more than 2147483647 requests");
  }
}

int64_t at(std::span<const int64_t> array, size_t i, int64_t otherwise) {
  return array.empty() ? otherwise : array[i];
}

int64_t num_new(const DecodeStep& step, size_t row) { return at(step.num_new_tokens, row, 1); }

/// The request of a row as it is in this step.
RequestTokens tokens_of(const DecodeStep& step, size_t row, RequestTokens tokens) {
  tokens.num_computed_tokens = step.num_computed_tokens[row];
  tokens.num_tokens = at(step.num_tokens, row, tokens.num_computed_tokens + num_new(step, row));
  tokens.num_in_flight_tokens = at(step.num_in_flight_tokens, row, 0);
  return tokens;
}

Allocation allocation_of(const DecodeStep& step, size_t row) {
  return {.num_new_tokens = num_new(step, row), .num_lookahead_tokens = step.num_lookahead_tokens};
}

}  // namespace

void ManagerState::find_due(const DecodeStep& step) {
  check_count("schedule", "num_lookahead_tokens", step.num_lookahead_tokens);
  ++num_steps;
  due.clear();
  for (size_t row = 0; row < step.requests.size(); ++row) {
    const auto i = static_cast<size_t>(step.requests[row]);
    const int64_t computed = step.num_computed_tokens[row];
    const int64_t fresh = num_new(step, row);
    // Larger numbers are refused below; these add up without overflow.
    const bool are_counts = ((computed | fresh) & ~int64_t{0x7fffffff}) == 0;
    const bool is_quiet = i < quiet_until.size() && are_counts && fresh > 0 &&
                          computed + fresh + step.num_lookahead_tokens < quiet_until[i];
    if (!is_quiet) {
      const Request& request = request_of(step.requests[row]);
      if (!are_counts) {
        check_count("schedule", "num_computed_tokens", computed);
        check_count("schedule", "num_new_tokens", fresh);
      }
      check_allocation(*this, tokens_of(step, row, request.tokens), allocation_of(step, row));
      due.push_back(row);
    }
    if (std::exchange(last_step[i], num_steps) == num_steps) {
      throw InvalidArgument("schedule: request " + std::to_string(i) + " is named twice; row " +
                            std::to_string(row) + " is the second");
    }
  }
}

StepResult ManagerState::schedule(const DecodeStep& step, std::span<AppendedBlock> appended) {
  check_step(step);
  find_due(step);
  StepResult result;
  for (size_t n = 0; n < due.size(); ++n) {
    for (size_t distance = 1; distance <= kAhead && n + distance < due.size(); ++distance) {
      const size_t ahead = due[n + distance];
      prefetch(step.requests[ahead], step.num_computed_tokens[ahead], distance);
    }
    const size_t row = due[n];
    const RequestHandle handle = step.requests[row];
    const std::span<AppendedBlock> room = appended.subspan(result.num_appended);
    result.stop = allocate(handle, tokens_of(step, row, request_of(handle).tokens),
                           allocation_of(step, row), nullptr, static_cast<int64_t>(room.size()));
    result.num_scheduled = row;
    if (result.stop != StepResult::Stop::kDone) return result;
    result.num_appended += append(static_cast<int32_t>(row), handle, room);
  }
  result.num_scheduled = step.requests.size();
  return result;
}

namespace {

void prefetch_range(const void* first, size_t bytes) {
  for (size_t at = 0; at < bytes; at += 64) {
    __builtin_prefetch(static_cast<const char*>(first) + at, 1);
  }
}

}  // namespace

void ManagerState::prefetch(RequestHandle handle, int64_t num_computed, size_t distance) const {
  const auto i = static_cast<size_t>(handle);
  if (i >= requests.size()) return;
  // Each distance needs what the one before has asked for.
  const Request& request = requests[i];
  if (distance == kAhead) return prefetch_range(&request, sizeof(request));
  if (distance == kAhead - 1) {
    prefetch_range(request.tables.data(), request.tables.size() * sizeof(BlockTables));
    return prefetch_range(request.groups.data(), request.groups.size() * sizeof(GroupProgress));
  }
  const auto look_at_row = [&](const BlockTables& table, int64_t row, size_t num_columns) {
    if (row < 0 || row >= table.length) return;
    const BlockId* first = table.ids.data() + static_cast<size_t>(row) * num_columns;
    if (distance > 1) {
      prefetch_range(first, num_columns * sizeof(BlockId));
    } else {
      pool.prefetch({first, num_columns});
    }
  };
  // The blocks that become full, and those that a window leaves behind.
  for (size_t t = 0; t < layout.tables.size(); ++t) {
    look_at_row(request.tables[t], request.tables[t].length - 1, layout.tables[t].num_columns);
  }
  for (const std::vector<size_t>& alike : layout.alike) {
    const GroupPolicy& group = layout.groups[alike[0]];
    look_at_row(request.tables[group.table], group.skipped_blocks(num_computed) - 1,
                layout.tables[group.table].num_columns);
  }
}

size_t ManagerState::append(int32_t row, RequestHandle handle, std::span<AppendedBlock> out) {
  if (new_blocks.ids.empty()) return 0;
  const Request& request = request_of(handle);
  size_t count = 0;
  for (size_t g = 0; g < layout.groups.size(); ++g) {
    const auto size = static_cast<int64_t>(new_blocks.begins[g + 1] - new_blocks.begins[g]);
    int64_t position = request.tables[layout.groups[g].table].length - size;
    for (int64_t n = 0; n < size; ++n) {
      out[count] = {.row = row,
                    .group = static_cast<int32_t>(g),
                    .position = static_cast<int32_t>(position++),
                    .block = new_blocks.ids[count]};
      ++count;
    }
  }
  return count;
}

namespace {

/// When a group needs something next, in tokens.
class NextNeed {
 public:
  NextNeed(ManagerState& state, Request& request, size_t group, int64_t num_processed,
           int64_t num_cached_tokens)
      : layout_(state.layout),
        request_(request),
        group_(layout_.groups[group]),
        progress_(request.groups[group]),
        blocks_(state.column(request, group_)),
        num_processed_(num_processed),
        cacheable_(layout_.cacheable_tokens(group_, num_cached_tokens)) {}

  int64_t find() {
    switch (group_.kind) {
      case CacheKind::kCrossAttention:
        return kNever;
      case CacheKind::kCircularBuffer:
        return blocks_.size() == 0 ? 0 : kNever;
      case CacheKind::kMamba:
        if (group_.mamba_align) return std::min(next_state(), next_commit());
        return std::min(next_block(), next_drop());
      default:
        return std::min({next_block(), next_drop(), next_commit(), next_tail()});
    }
  }

 private:
  /// A step of at least one new token has at least one token more than are computed.
  static int64_t after_computed(int64_t num_computed) {
    return num_computed == kNever ? kNever : num_computed + 1;
  }
  int64_t next_block() {
    return std::max<int64_t>(0, blocks_.size() - group_.num_speculative_blocks) *
               group_.block_size +
           1;
  }
  int64_t next_drop() {
    if (group_.kind == CacheKind::kRSWA) {
      const int64_t dropped =
          std::max(request_.tokens.num_prompt_tokens, num_processed_ - group_.window) /
          group_.block_size;
      // A hit was taken over with the gap, which the next step lets go.
      if (dropped > checked::cdiv(request_.tokens.num_prompt_tokens, group_.block_size) &&
          dropped <= blocks_.size() && blocks_[dropped - 1] != kNullBlock) {
        return 0;
      }
      return after_computed((dropped + 1) * group_.block_size + group_.window);
    }
    return after_computed(group_.computed_to_skip(group_.skipped_blocks(num_processed_) + 1));
  }
  int64_t next_commit() {
    if (!layout_.enable_caching || !group_.prefix_cacheable) return kNever;
    const int64_t next = std::max(progress_.num_cached, 0) + 1;
    return layout_.computed_to_cache(group_, next * group_.block_size);
  }
  /// The end of the prompt inside a block, cached once the tokens before it are.
  int64_t next_tail() {
    if (!layout_.enable_caching || !group_.is_full ||
        group_.block_size == layout_.hash_block_size) {
      return kNever;
    }
    const int64_t limit = request_.tokens.num_prompt_tokens - (group_.use_eagle ? 0 : 1);
    return next_boundary(floor_to(std::max<int64_t>(0, limit), layout_.hash_block_size));
  }
  int64_t next_boundary(int64_t boundary) {
    return boundary < cacheable_ || boundary == 0 ? kNever
                                                  : layout_.computed_to_cache(group_, boundary);
  }
  int64_t next_state() {
    const StateProgress& state = request_.states[group_.state];
    if (progress_.has_shared_tail() || state.has_checkpoint()) return 0;
    const int64_t size = group_.block_size;
    int64_t next = std::min(next_block(), (state.num_retired + 1) * size + 2);
    if (state.last_state >= 0 && blocks_[state.last_state] != kNullBlock) {
      next = std::min(next, (state.last_state + 1) * size + 2);
    }
    if (!layout_.enable_caching) return next;
    next = std::min(next, next_boundary(layout_.checkpoint_position(
                              request_.tokens.num_prompt_tokens, layout_.hash_block_size)));
    if (layout_.shared_prefix_checkpoint) {
      next = std::min(next, next_boundary(request_.tokens.shared_prefix_boundary));
    }
    return next;
  }

  const ManagerLayout& layout_;
  const Request& request_;
  const GroupPolicy& group_;
  const GroupProgress& progress_;
  Column blocks_;
  const int64_t num_processed_;
  const int64_t cacheable_;
};

}  // namespace

int64_t ManagerState::next_need(Request& request, int64_t num_processed,
                                int64_t num_cached_tokens) {
  int64_t next = kNever;
  for (const std::vector<size_t>& alike : layout.alike) {
    // The one with the fewest cached blocks is the first to have one to cache.
    const size_t group = *std::min_element(alike.begin(), alike.end(), [&](size_t a, size_t b) {
      return request.groups[a].num_cached < request.groups[b].num_cached;
    });
    next = std::min(next, NextNeed(*this, request, group, num_processed, num_cached_tokens).find());
  }
  return next;
}

}  // namespace kvplan::detail
