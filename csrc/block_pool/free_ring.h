#pragma once

#include <bit>
#include <cstdint>

#include "block_pool/block_record.h"
#include "block_pool/zeroed_array.h"

namespace kvplan::detail {

/// The free blocks in the order in which they are handed out: ids in a ring, so that what comes
/// next is known without reading a record. A block that leaves from the middle leaves a hole
/// behind; a record knows its place in `next_link`. Ids and places are stored as distances from
/// what they are at the start, so zeroed memory is a ring of all blocks but 0 in order. Knows
/// places only: counts and reference counts are the pool's.
class FreeRing {
 public:
  /// `records` must be zeroed.
  FreeRing(BlockRecord* records, uint32_t num_blocks)
      : records_(records),
        ids_(std::bit_ceil(size_t{num_blocks} * 2)),
        mask_(ids_.size() - 1),
        end_(kStart + num_blocks - 1) {}

  // Positions grow from the first block on; between `begin` and `end` some may be holes.
  uint64_t begin() const { return begin_; }
  uint64_t end() const { return end_; }
  /// 0 for a hole, and beyond the end.
  uint32_t at(uint64_t position) const {
    if (position >= end_) return 0;
    return stored(position) + static_cast<uint32_t>(position & mask_) + 1;
  }
  uint64_t position_of(uint32_t id) const {
    const uint64_t place = records_[id].next_link + id - 1;
    return begin_ + ((place - begin_) & mask_);
  }

  /// The first block of those at `position` or behind it; 0 if there is none.
  uint32_t next_from(uint64_t position) const {
    for (; position < end_; ++position) {
      if (const uint32_t id = at(position)) return id;
    }
    return 0;
  }
  /// The last block of those before `position`; 0 if there is none.
  uint32_t last_before(uint64_t position) const {
    while (position > begin_) {
      if (const uint32_t id = at(--position)) return id;
    }
    return 0;
  }
  uint32_t first() const { return next_from(begin_); }
  uint32_t next(uint32_t id) const { return next_from(position_of(id) + 1); }
  uint32_t prev(uint32_t id) const { return last_before(position_of(id)); }

  /// The ring must not be empty.
  uint32_t pop_front() {
    while (true) {
      if (const uint32_t id = at(begin_++)) return id;
    }
  }
  void push_front(uint32_t id) {
    make_room();
    put(--begin_, id);
  }
  void push_back(uint32_t id) {
    make_room();
    put(end_++, id);
  }
  size_t memory_bytes() const { return ids_.size() * sizeof(uint32_t); }
  void remove(uint32_t id) { store(position_of(id), 0); }

 private:
  uint32_t& stored(uint64_t position) const { return ids_[position & mask_]; }
  void store(uint64_t position, uint32_t id) {
    stored(position) = id - static_cast<uint32_t>(position & mask_) - 1;
  }
  void put(uint64_t position, uint32_t id) {
    store(position, id);
    records_[id].next_link = static_cast<uint32_t>(position & mask_) - (id - 1);
  }

  /// Holes are closed when the ring has gone round, so at least as many as there are blocks.
  void make_room() {
    if (end_ - begin_ < ids_.size()) return;
    uint64_t to = begin_;
    for (uint64_t from = begin_; from < end_; ++from) {
      if (const uint32_t id = at(from)) put(to++, id);
    }
    end_ = to;
  }

  BlockRecord* records_;
  ZeroedArray<uint32_t> ids_;
  size_t mask_;
  // In the middle, so that neither end of the numbers is ever reached; a multiple of any size.
  static constexpr uint64_t kStart = uint64_t{1} << 62;
  uint64_t begin_ = kStart;
  uint64_t end_;
};

}  // namespace kvplan::detail
