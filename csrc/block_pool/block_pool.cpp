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
using detail::FreeList;
using detail::OperationCheck;

namespace detail {

uint32_t BlockPoolState::checked_id(BlockId id, const char* operation) const {
  if (!is_valid(id)) {
    throw BlockPoolError(std::string(operation) + ": block id " + std::to_string(id) +
                         " is not in the pool, which has ids 0 to " +
                         std::to_string(num_blocks - 1));
  }
  return static_cast<uint32_t>(id);
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
  uint32_t id = free_list.first();
  for (size_t i = 0; i < count; ++i, id = free_list.next(id)) {
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

/// Takes one holder off each block; `released(id)` is called for those that lose the last one.
/// Restores every count and throws if a block is unknown or would be released too often.
template <typename Released>
void release(BlockPoolState& s, std::span<const BlockId> blocks, const char* operation,
             bool null_is_an_error, Released&& released) {
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto id = static_cast<uint32_t>(blocks[i]);
    if (id == 0 && !null_is_an_error) continue;
    if (id != 0 && id < s.num_blocks && s.records[id].ref_count > 0) [[likely]] {
      if (--s.records[id].ref_count == 0) released(id);
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

int64_t BlockPool::memory_bytes() const noexcept {
  return static_cast<int64_t>(sizeof(BlockPoolState) + state_->num_blocks * sizeof(BlockRecord) +
                              state_->index.memory_bytes() +
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
  uint32_t id = s.free_list.first();
  if (s.watchers.empty()) [[likely]] {
    for (BlockId& block : out) {
      BlockRecord& record = s.records[id];
      block = static_cast<BlockId>(id);
      const uint32_t next = s.free_list.next(id);
      if (record.has_hash()) s.evict(id);
      record.ref_count = 1;
      id = next;
    }
    s.free_list.link(0, id);
    s.num_free -= out.size();
  } else {
    for (BlockId& block : out) {
      block = static_cast<BlockId>(id);
      const uint32_t next = s.free_list.next(id);
      s.records[id].key.flags |= BlockRecord::kDetached;
      id = next;
    }
    s.free_list.link(0, id);
    s.num_free -= out.size();
    try {
      for (const BlockId block : out) s.notify_reuse(static_cast<uint32_t>(block));
    } catch (...) {
      attach_free_front(out);
      throw;
    }
    for (const BlockId block : out) {
      BlockRecord& record = s.records[block];
      s.evict(static_cast<uint32_t>(block));
      record.key.flags &= static_cast<uint8_t>(~BlockRecord::kDetached);
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
      s.free_list.remove(id);
      --s.num_free;
    }
  }
  s.note_uses(BlockUse::Kind::kTouched, blocks);
  check.done(*this);
}

void BlockPool::free_blocks(std::span<const BlockId> blocks) {
  BlockPoolState& s = *state_;
  const OperationCheck check(s);
  FreeList::Chain first_out;
  FreeList::Chain last_out;
  size_t num_released = 0;
  // Links of a block in use mean nothing, so the chains can be built before all ids are checked.
  detail::release(s, blocks, "free_blocks", false, [&](uint32_t id) {
    const bool keep = s.records[id].has_hash() && s.options.enable_caching;
    s.free_list.append(keep ? last_out : first_out, id);
    ++num_released;
  });
  s.free_list.push_front(first_out);
  s.free_list.push_back(last_out);
  s.num_free += num_released;
  check.done(*this);
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): a copy goes to every block that is watched
void BlockPool::unpin_blocks(std::span<const BlockId> blocks, ReuseCallback on_reuse) {
  BlockPoolState& s = *state_;
  const OperationCheck check(s);
  if (!on_reuse) throw InvalidArgument("unpin_blocks: on_reuse must be callable");
  FreeList::Chain chain;
  size_t num_released = 0;
  detail::release(s, blocks, "unpin_blocks", true, [&](uint32_t id) {
    s.free_list.append(chain, id);
    ++num_released;
  });
  s.free_list.push_back(chain);
  s.num_free += num_released;
  for (const BlockId block : blocks) s.watchers.add(static_cast<uint32_t>(block), on_reuse);
  check.done(*this);
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
  for (uint32_t id = state_->free_list.first(); id != 0; id = state_->free_list.next(id)) {
    ids.push_back(static_cast<BlockId>(id));
  }
  return ids;
}

std::optional<BlockId> BlockPool::next_free(BlockId block) const {
  if (!is_free(block)) return std::nullopt;
  const uint32_t next = state_->free_list.next(static_cast<uint32_t>(block));
  return next == 0 ? std::nullopt : std::optional(static_cast<BlockId>(next));
}

std::optional<BlockId> BlockPool::prev_free(BlockId block) const {
  if (!is_free(block)) return std::nullopt;
  const uint32_t prev = state_->free_list.prev(static_cast<uint32_t>(block));
  return prev == 0 ? std::nullopt : std::optional(static_cast<BlockId>(prev));
}

std::optional<BlockId> BlockPool::first_free() const {
  const uint32_t first = state_->free_list.first();
  return first == 0 ? std::nullopt : std::optional(static_cast<BlockId>(first));
}

void BlockPool::detach_free(BlockId block) {
  BlockPoolState& s = *state_;
  const OperationCheck check(s);
  if (!is_free(block)) {
    throw BlockPoolError("detach_free: block " + std::to_string(block) + " is not free");
  }
  const auto id = static_cast<uint32_t>(block);
  s.free_list.remove(id);
  s.records[id].key.flags |= BlockRecord::kDetached;
  --s.num_free;
  check.done(*this);
}

namespace detail {
namespace {

FreeList::Chain attach(BlockPoolState& s, std::span<const BlockId> blocks) {
  FreeList::Chain chain;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const bool known = s.is_valid(blocks[i]) && blocks[i] != kNullBlock;
    if (known && (s.records[blocks[i]].key.flags & BlockRecord::kDetached) != 0) {
      s.records[blocks[i]].key.flags &= static_cast<uint8_t>(~BlockRecord::kDetached);
      s.free_list.append(chain, static_cast<uint32_t>(blocks[i]));
      continue;
    }
    for (size_t j = 0; j < i; ++j) s.records[blocks[j]].key.flags |= BlockRecord::kDetached;
    throw BlockPoolError("attach_free: block " + std::to_string(blocks[i]) +
                         " was not taken out of the free list");
  }
  s.num_free += blocks.size();
  return chain;
}

}  // namespace
}  // namespace detail

void BlockPool::attach_free_front(std::span<const BlockId> blocks) {
  const OperationCheck check(*state_);
  state_->free_list.push_front(detail::attach(*state_, blocks));
  check.done(*this);
}

void BlockPool::attach_free_back(std::span<const BlockId> blocks) {
  const OperationCheck check(*state_);
  state_->free_list.push_back(detail::attach(*state_, blocks));
  check.done(*this);
}

}  // namespace kvplan
