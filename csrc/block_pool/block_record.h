#pragma once

#include <cstdint>
#include <optional>

#include "kvplan/block_pool.h"

namespace kvplan::detail {

/// That a block is found by a hash, as one of a group. Keys with one hash and group form a ring in
/// the order in which they were cached; the hash's entry holds the oldest.
struct CachedKey {
  uint32_t entry = 0;  // of `HashEntries`; 0: no key
  uint32_t next_same = 0;
  uint32_t prev_same = 0;
  uint16_t group = 0;
  uint16_t flags = 0;  // of the block, in a BlockRecord (kept here for the sake of its size)

  bool same_as(const CachedKey& other) const {
    return entry == other.entry && group == other.group;
  }
};

/// Everything about one block, in half a cache line.
///
/// All-zero memory is a valid initial state, so construction need not touch the records. What the
/// links mean is the list's that the block is in.
struct alignas(32) BlockRecord {
  static constexpr uint16_t kDetached = 1;      // without a holder, yet not in the free list
  static constexpr uint16_t kHasSecondary = 2;  // there are keys besides `key`
  static constexpr uint16_t kInUse = 4;         // of a slice: not in a list of free slices
  static constexpr uint16_t kCounted = 8;       // of a slice: seen by the admission in progress
  static constexpr uint16_t kWatched = 16;      // of a slice: `unpin_blocks` has released it

  uint32_t next_link;
  uint32_t prev_link;
  int32_t ref_count;
  int32_t num_tokens;  // of the prefix that `key` covers; kUnknownTokens if not told
  CachedKey key;

  static constexpr int32_t kUnknownTokens = -1;

  bool has_hash() const { return key.entry != 0; }
  /// Tokens of the prefix that its primary hash covers, if known.
  std::optional<int64_t> hashed_tokens() const {
    return has_hash() && num_tokens != kUnknownTokens ? std::optional<int64_t>(num_tokens)
                                                      : std::nullopt;
  }
  /// Of a slice: whether its contents are of use to somebody while nobody holds it.
  bool is_kept() const { return has_hash() || (key.flags & kWatched) != 0; }
  bool is_free() const { return ref_count == 0 && (key.flags & kDetached) == 0; }
  void set_flag(uint16_t flag) { key.flags |= flag; }
  void clear_flag(uint16_t flag) { key.flags &= static_cast<uint16_t>(~flag); }
};
static_assert(sizeof(BlockRecord) == 32);

}  // namespace kvplan::detail
