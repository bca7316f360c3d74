#pragma once

#include <cstdint>
#include <vector>

#include "block_pool/highest_bit.h"

namespace kvplan::detail {

/// A large block of a sliced pool. Slices are named by their number plus one, so that all-zero
/// memory is a block of the reserve and construction need not touch it. A slice that nobody holds
/// is cached if it has a hash or was unpinned, else it is empty.
struct alignas(64) LargeBlock {
  enum class AgeList : uint8_t {
    kNone,   // no cached slice
    kGroup,  // some slices in use, some cached
    kWhole,  // no slice in use, some cached
  };
  struct Links {
    uint32_t next = 0;
    uint32_t prev = 0;
  };

  uint32_t num_used;
  uint32_t num_cached;
  uint32_t first_fresh;   // slices from here on were not yet used by this owner; they are empty
  uint32_t empty_head;    // of the stack of other empty slices
  uint32_t cached_first;  // list of cached slices, first freed first
  uint32_t cached_last;
  uint16_t owner;  // group, if `is_owned`
  bool is_owned;
  AgeList age_list;
  bool is_counted;  // by the admission in progress
  Links roomy;      // among blocks of the group with an empty slice and as many in use
  Links evictable;  // among those partly in use with a cached free slice and as many in use
  Links age;        // in the list that `age_list` names
  uint64_t stamp;   // when it came to the end of that list
};
static_assert(sizeof(LargeBlock) == 64);

/// A doubly linked list of large blocks, through one of their links. Block 0 is none.
template <LargeBlock::Links LargeBlock::*kLinks>
struct LargeBlockList {
  uint32_t first = 0;
  uint32_t last = 0;

  void push_back(LargeBlock* blocks, uint32_t id) {
    blocks[id].*kLinks = {0, last};
    (last == 0 ? first : (blocks[last].*kLinks).next) = id;
    last = id;
  }
  void push_front(LargeBlock* blocks, uint32_t id) {
    blocks[id].*kLinks = {first, 0};
    (first == 0 ? last : (blocks[first].*kLinks).prev) = id;
    first = id;
  }
  void remove(LargeBlock* blocks, uint32_t id) {
    const LargeBlock::Links links = blocks[id].*kLinks;
    (links.prev == 0 ? first : (blocks[links.prev].*kLinks).next) = links.next;
    (links.next == 0 ? last : (blocks[links.next].*kLinks).prev) = links.prev;
  }
};

/// Large blocks of a group by the number of slices in use, most recently changed first.
template <LargeBlock::Links LargeBlock::*kLinks>
class LargeBlockBuckets {
 public:
  explicit LargeBlockBuckets(uint32_t slices) : lists_(slices + 1), occupied_(slices + 1) {}

  void insert(LargeBlock* blocks, uint32_t id) {
    const uint32_t used = blocks[id].num_used;
    if (lists_[used].first == 0) occupied_.insert(used);
    lists_[used].push_front(blocks, id);
  }
  void remove(LargeBlock* blocks, uint32_t id) {
    const uint32_t used = blocks[id].num_used;
    lists_[used].remove(blocks, id);
    if (lists_[used].first == 0) occupied_.erase(used);
  }
  /// 0 if there is none.
  uint32_t fullest() const {
    const uint32_t used = occupied_.highest();
    return used == HighestBit::kNone ? 0 : lists_[used].first;
  }

  const std::vector<LargeBlockList<kLinks>>& lists() const { return lists_; }
  const HighestBit& occupied() const { return occupied_; }

 private:
  std::vector<LargeBlockList<kLinks>> lists_;
  HighestBit occupied_;
};

}  // namespace kvplan::detail
