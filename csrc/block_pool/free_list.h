#pragma once

#include <cstdint>

#include "block_pool/block_record.h"

namespace kvplan::detail {

/// Circular doubly linked list over block records; record 0 (the null block is never free) is the
/// sentinel. Links are distances from the neighbours `id + 1` and `id - 1`, so zeroed records are a
/// list of all blocks in order. Knows links only: counts and reference counts are the pool's.
class FreeList {
 public:
  FreeList() = default;
  /// All blocks but 0, in order. `records` must be zeroed.
  FreeList(BlockRecord* records, uint32_t num_blocks) : records_(records) {
    link(num_blocks - 1, 0);
  }

  uint32_t next(uint32_t id) const { return id + 1 + records_[id].next_link; }
  uint32_t prev(uint32_t id) const { return id - 1 + records_[id].prev_link; }
  uint32_t first() const { return next(0); }

  void link(uint32_t left, uint32_t right) {
    records_[left].next_link = right - left - 1;
    records_[right].prev_link = left - right + 1;
  }

  void remove(uint32_t id) { link(prev(id), next(id)); }

  /// A run of blocks, already linked to each other, that is on its way into the list.
  struct Chain {
    uint32_t first = 0;
    uint32_t last = 0;
  };

  void append(Chain& chain, uint32_t id) {
    if (chain.first == 0) {
      chain.first = id;
    } else {
      link(chain.last, id);
    }
    chain.last = id;
  }

  void push_front(const Chain& chain) {
    if (chain.first == 0) return;
    const uint32_t old_first = first();
    link(0, chain.first);
    link(chain.last, old_first);
  }

  void push_back(const Chain& chain) {
    if (chain.first == 0) return;
    const uint32_t old_last = prev(0);
    link(old_last, chain.first);
    link(chain.last, 0);
  }

 private:
  BlockRecord* records_ = nullptr;
};

}  // namespace kvplan::detail
