#include "kvplan/block_pool.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "block_pool/block_pool_state.h"

namespace kvplan {

using detail::BlockPoolState;
using detail::BlockRecord;
using detail::OperationCheck;

namespace detail {

void BlockPoolState::refuse_id(BlockId id, const char* operation) const {
  throw BlockPoolError(std::string(operation) + ": block id " + std::to_string(id) +
                       " is not in the pool, which has ids 0 to " + std::to_string(num_blocks - 1));
}

void BlockPoolState::check_ids(std::span<const BlockId> ids, const char* operation) const {
  for (const BlockId id : ids) checked_id(id, operation);
}

void BlockPoolState::notify_reuse(uint32_t block) {
  std::exception_ptr first;
  for (const BlockPool::ReuseCallback& on_reuse : watchers.take(block)) {
    try {
      on_reuse(static_cast<BlockId>(block));
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

void BlockPoolState::announce_evictions(size_t count) {
  std::vector<BlockId> evicted;
  for (uint64_t at = free_ring.begin(); count > 0; ++at) {
    const uint32_t id = free_ring.at(at);
    if (id == 0) continue;
    --count;
    if (records[id].has_hash()) evicted.push_back(static_cast<BlockId>(id));
  }
  if (!evicted.empty()) on_eviction(evicted);
}

namespace {

uint32_t checked_num_blocks(int64_t num_blocks) {
  if (num_blocks < 1 || num_blocks > std::numeric_limits<BlockId>::max()) {
    throw InvalidArgument("a block pool has 1 to 2147483647 blocks, not " +
                          std::to_string(num_blocks) + "; block 0 is the null block");
  }
  return static_cast<uint32_t>(num_blocks);
}

/// Takes one holder off each block; `s.released` says which lose the last one. Restores
/// every count and throws if a block is unknown or would be released too often.
void release(BlockPoolState& s, std::span<const BlockId> blocks, const char* operation,
             bool null_is_an_error) {
  constexpr size_t kAhead = 12;
  s.released.clear();
  s.released.reserve(blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (i + kAhead < blocks.size() && s.is_valid(blocks[i + kAhead])) {
      __builtin_prefetch(&s.records[blocks[i + kAhead]], 1);
    }
    const auto id = static_cast<uint32_t>(blocks[i]);
    if (id == 0 && !null_is_an_error) continue;
    if (id != 0 && id < s.num_blocks && s.records[id].ref_count > 0) [[likely]] {
      if (--s.records[id].ref_count == 0) s.released.push_back(i);
      continue;
    }
    for (size_t j = 0; j < i; ++j) {
      if (blocks[j] != kNullBlock) ++s.records[blocks[j]].ref_count;
    }
    s.checked_id(blocks[i], operation);
    if (id == 0) throw BlockPoolError(std::string(operation) + ": the null block is never freed");
    const auto times =
        std::count(blocks.begin(), blocks.begin() + static_cast<ptrdiff_t>(i) + 1, blocks[i]);
    throw BlockPoolError(std::string(operation) + ": block " + std::to_string(id) + " has " +
                         std::to_string(s.records[id].ref_count) + " holder(s) and is released " +
                         std::to_string(times) + " time(s) by this call; nothing was freed");
  }
  s.num_free += s.released.size();
}

}  // namespace
}  // namespace detail

BlockPool::BlockPool(int64_t num_blocks, BlockPoolOptions options)
    : state_(std::make_unique<BlockPoolState>(detail::checked_num_blocks(num_blocks), options)) {}
BlockPool::~BlockPool() = default;
BlockPool::BlockPool(BlockPool&&) noexcept = default;
BlockPool& BlockPool::operator=(BlockPool&&) noexcept = default;

int64_t BlockPool::num_blocks() const noexcept { return state_->num_blocks; }

int64_t BlockPool::num_free_blocks() const noexcept {
  return static_cast<int64_t>(state_->num_free);
}

double BlockPool::usage() const noexcept {
  const int64_t usable = num_blocks() - 1;
  if (usable == 0) return 0.0;
  return 1.0 - static_cast<double>(num_free_blocks()) / static_cast<double>(usable);
}

bool BlockPool::enable_caching() const noexcept { return state_->options.enable_caching; }
bool BlockPool::enable_events() const noexcept { return state_->options.enable_events; }

int64_t BlockPool::memory_bytes() const noexcept {
  return static_cast<int64_t>(sizeof(BlockPoolState) + state_->num_blocks * sizeof(BlockRecord) +
                              state_->free_ring.memory_bytes() + state_->index.memory_bytes() +
                              state_->entries.memory_bytes() +
                              state_->secondary_keys.capacity() * sizeof(detail::SecondaryKey));
}

void BlockPool::set_eviction_hook(EvictionHook on_eviction) {
  const OperationCheck check(*state_);
  state_->on_eviction = std::move(on_eviction);
}

void BlockPool::get_new_blocks(std::span<BlockId> out) {
  BlockPoolState& s = *state_;
  const OperationCheck check(s);
  if (out.size() > s.num_free) {
    throw BlockPoolError("cannot get " + std::to_string(out.size()) +
                         " blocks: " + std::to_string(s.num_free) + " of the pool's " +
                         std::to_string(s.num_blocks - 1) + " are free");
  }
  if (out.empty()) return;
  if (s.on_eviction) s.announce_evictions(out.size());
  s.expect_uses(out.size());
  s.num_free -= out.size();
  if (s.watchers.empty()) [[likely]] {
    for (BlockId& block : out) {
      const uint32_t id = s.pop_free();
      block = static_cast<BlockId>(id);
      BlockRecord& record = s.records[id];
      if (record.has_hash()) s.evict(id);
      record.ref_count = 1;
    }
  } else {
    for (BlockId& block : out) {
      const uint32_t id = s.pop_free();
      block = static_cast<BlockId>(id);
      s.records[id].set_flag(BlockRecord::kDetached);
    }
    try {
      for (const BlockId block : out) s.notify_reuse(static_cast<uint32_t>(block));
    } catch (...) {
      attach_free_front(out);
      throw;
    }
    for (const BlockId block : out) {
      BlockRecord& record = s.records[block];
      s.evict(static_cast<uint32_t>(block));
      record.clear_flag(BlockRecord::kDetached);
      record.ref_count = 1;
    }
  }
  s.note_uses(BlockUse::Kind::kTaken, out);
  check.done(*this);
}

std::vector<BlockId> BlockPool::get_new_blocks(int64_t num_blocks) {
  if (num_blocks < 0) {
    throw InvalidArgument("cannot get " + std::to_string(num_blocks) + " blocks");
  }
  // Checked before memory is reserved for the ids.
  const auto wanted = static_cast<size_t>(num_blocks);
  std::vector<BlockId> blocks(wanted > state_->num_free ? 0 : wanted);
  get_new_blocks(std::span(blocks.data(), wanted));
  return blocks;
}

void BlockPool::touch(std::span<const BlockId> blocks) {
  BlockPoolState& s = *state_;
  const OperationCheck check(s);
  for (const BlockId id : blocks) {
    const BlockRecord& record = s.records[s.checked_id(id, "touch")];
    const auto headroom = std::numeric_limits<int32_t>::max() - record.ref_count;
    if (std::cmp_less(headroom, blocks.size())) {
      throw BlockPoolError("touch: block " + std::to_string(id) + " has " +
                           std::to_string(record.ref_count) +
                           " holders, as many as can be counted");
    }
    if (record.ref_count == 0 && id != kNullBlock && !record.is_free()) {
      throw BlockPoolError("touch: block " + std::to_string(id) +
                           " has no holder and is not in the free list");
    }
  }
  s.expect_uses(blocks.size());
  for (const BlockId block : blocks) {
    if (block == kNullBlock) continue;
    const auto id = static_cast<uint32_t>(block);
    if (s.records[id].ref_count++ == 0) {
      s.free_ring.remove(id);
      --s.num_free;
    }
  }
  s.note_uses(BlockUse::Kind::kTouched, blocks);
  check.done(*this);
}

void BlockPool::free_blocks(std::span<const BlockId> blocks) {
  const size_t end = blocks.size();
  free_batches(blocks, std::span(&end, 1));
}

void BlockPool::free_batches(std::span<const BlockId> blocks, std::span<const size_t> ends) {
  BlockPoolState& s = *state_;
  const OperationCheck check(s);
  if (ends.empty() ? !blocks.empty()
                   : !std::is_sorted(ends.begin(), ends.end()) || ends.back() != blocks.size()) {
    throw InvalidArgument("free_batches: the ends of the batches must grow, up to " +
                          std::to_string(blocks.size()) + " blocks");
  }
  detail::release(s, blocks, "free_blocks", false);
  const auto id_of = [&](size_t i) { return static_cast<uint32_t>(blocks[s.released[i]]); };
  const auto is_kept = [&](uint32_t id) {
    return s.options.enable_caching && s.records[id].has_hash();
  };
  size_t first = 0;
  for (const size_t end : ends) {
    size_t last = first;
    for (; last < s.released.size() && s.released[last] < end; ++last) {
      if (is_kept(id_of(last))) s.free_ring.push_back(id_of(last));
    }
    for (size_t i = last; i-- > first;) {
      if (!is_kept(id_of(i))) s.free_ring.push_front(id_of(i));
    }
    first = last;
  }
  check.done(*this);
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): a copy goes to every block that is watched
void BlockPool::unpin_blocks(std::span<const BlockId> blocks, ReuseCallback on_reuse) {
  BlockPoolState& s = *state_;
  const OperationCheck check(s);
  if (!on_reuse) throw InvalidArgument("unpin_blocks: on_reuse must be callable");
  detail::release(s, blocks, "unpin_blocks", true);
  for (const size_t i : s.released) s.free_ring.push_back(static_cast<uint32_t>(blocks[i]));
  for (const BlockId block : blocks) s.watchers.add(static_cast<uint32_t>(block), on_reuse);
  check.done(*this);
}

void BlockPool::prefetch(std::span<const BlockId> blocks) const noexcept {
  for (const BlockId id : blocks) {
    if (state_->is_valid(id)) __builtin_prefetch(&state_->records[id], 1);
  }
}

void BlockPool::set_ref_count(BlockId block, int64_t count) {
  BlockPoolState& s = *state_;
  const OperationCheck check(s);
  BlockRecord& record = s.records[s.checked_id(block, "set_ref_count")];
  if (record.ref_count <= 0 || count <= 0 || count > std::numeric_limits<int32_t>::max()) {
    throw BlockPoolError("set_ref_count: block " + std::to_string(block) + " has " +
                         std::to_string(record.ref_count) + " holders and cannot get " +
                         std::to_string(count) +
                         "; use touch and free_blocks to take it from and put it into the free "
                         "list");
  }
  record.ref_count = static_cast<int32_t>(count);
  check.done(*this);
}

int32_t BlockPool::ref_count(BlockId block) const {
  return state_->records[state_->checked_id(block, "ref_count")].ref_count;
}

bool BlockPool::is_free(BlockId block) const {
  return state_->checked_id(block, "is_free") != 0 && state_->records[block].is_free();
}

std::vector<BlockId> BlockPool::free_block_ids() const {
  std::vector<BlockId> ids;
  ids.reserve(state_->num_free);
  const detail::FreeRing& ring = state_->free_ring;
  for (uint64_t position = ring.begin(); position < ring.end(); ++position) {
    if (const uint32_t id = ring.at(position)) ids.push_back(static_cast<BlockId>(id));
  }
  return ids;
}

std::optional<BlockId> BlockPool::next_free(BlockId block) const {
  if (!is_free(block)) return std::nullopt;
  const uint32_t next = state_->free_ring.next(static_cast<uint32_t>(block));
  return next == 0 ? std::nullopt : std::optional(static_cast<BlockId>(next));
}

std::optional<BlockId> BlockPool::prev_free(BlockId block) const {
  if (!is_free(block)) return std::nullopt;
  const uint32_t prev = state_->free_ring.prev(static_cast<uint32_t>(block));
  return prev == 0 ? std::nullopt : std::optional(static_cast<BlockId>(prev));
}

std::optional<BlockId> BlockPool::first_free() const {
  const uint32_t first = state_->free_ring.first();
  return first == 0 ? std::nullopt : std::optional(static_cast<BlockId>(first));
}

void BlockPool::detach_free(BlockId block) {
  BlockPoolState& s = *state_;
  const OperationCheck check(s);
  if (!is_free(block)) {
    throw BlockPoolError("detach_free: block " + std::to_string(block) + " is not free");
  }
  const auto id = static_cast<uint32_t>(block);
  s.free_ring.remove(id);
  s.records[id].set_flag(BlockRecord::kDetached);
  --s.num_free;
  check.done(*this);
}

namespace detail {
namespace {

/// Gives detached blocks back to the count, all or none.
void attach(BlockPoolState& s, std::span<const BlockId> blocks) {
  for (size_t i = 0; i < blocks.size(); ++i) {
    const bool known = s.is_valid(blocks[i]) && blocks[i] != kNullBlock;
    if (known && (s.records[blocks[i]].key.flags & BlockRecord::kDetached) != 0) {
      s.records[blocks[i]].clear_flag(BlockRecord::kDetached);
      continue;
    }
    for (size_t j = 0; j < i; ++j) s.records[blocks[j]].set_flag(BlockRecord::kDetached);
    throw BlockPoolError("attach_free: block " + std::to_string(blocks[i]) +
                         " was not taken out of the free list");
  }
  s.num_free += blocks.size();
}

}  // namespace
}  // namespace detail

void BlockPool::attach_free_front(std::span<const BlockId> blocks) {
  const OperationCheck check(*state_);
  detail::attach(*state_, blocks);
  for (size_t i = blocks.size(); i-- > 0;) {
    state_->free_ring.push_front(static_cast<uint32_t>(blocks[i]));
  }
  check.done(*this);
}

void BlockPool::attach_free_back(std::span<const BlockId> blocks) {
  const OperationCheck check(*state_);
  detail::attach(*state_, blocks);
  for (const BlockId block : blocks) state_->free_ring.push_back(static_cast<uint32_t>(block));
  check.done(*this);
}

}  // namespace kvplan
