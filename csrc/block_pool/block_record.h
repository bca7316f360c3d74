#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "kvplan/block_pool.h"

namespace kvplan::detail {

/// A hash under which a block is found. Keys that are equal form a ring in the order in which
/// they were cached; the hash index holds the oldest.
struct CachedKey {
  uint32_t next_same = 0;
  uint32_t prev_same = 0;
  uint16_t group = 0;
  uint8_t hash_size = 0;  // bytes; 0: no key
  uint8_t flags = 0;      // of the block, in a BlockRecord (kept here for the sake of its size)
  std::array<char, kMaxBlockHashBytes> hash{};  // zero-padded, so that all bytes can be compared

  // Written and read by words alone: a load that spans several stores waits for them.
  uint64_t word(size_t i) const {
    uint64_t value;
    std::memcpy(&value, hash.data() + 8 * i, 8);
    return value;
  }
  void set_word(size_t i, uint64_t value) { std::memcpy(hash.data() + 8 * i, &value, 8); }

  bool same_as(const CachedKey& other) const {
    return ((word(0) ^ other.word(0)) | (word(1) ^ other.word(1)) | (word(2) ^ other.word(2)) |
            (word(3) ^ other.word(3))) == 0 &&
           group == other.group && hash_size == other.hash_size;
  }
  std::string_view view() const { return {hash.data(), hash_size}; }
};

/// Everything about one block, in one cache line.
///
/// All-zero memory is a valid initial state, so construction need not touch the records. What the
/// links mean is the list's that the block is in.
struct alignas(64) BlockRecord {
  static constexpr uint8_t kDetached = 1;      // without a holder, yet not in the free list
  static constexpr uint8_t kHasSecondary = 2;  // there are keys besides `key`
  static constexpr uint8_t kInUse = 4;         // of a slice: not in a list of free slices
  static constexpr uint8_t kCounted = 8;       // of a slice: seen by the admission in progress
  static constexpr uint8_t kWatched = 16;      // of a slice: `unpin_blocks` has released it

  uint32_t next_link;
  uint32_t prev_link;
  int32_t ref_count;
  int32_t num_tokens;  // of the prefix that `key` covers; kUnknownTokens if not told
  CachedKey key;

  static constexpr int32_t kUnknownTokens = -1;

  bool has_hash() const { return key.hash_size != 0; }
  /// Of a slice: whether its contents are of use to somebody while nobody holds it.
  bool is_kept() const { return has_hash() || (key.flags & kWatched) != 0; }
  bool is_free() const { return ref_count == 0 && (key.flags & kDetached) == 0; }
};
static_assert(sizeof(BlockRecord) == 64);

}  // namespace kvplan::detail
