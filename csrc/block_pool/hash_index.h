#pragma once

#include <bit>
#include <cstdint>
#include <utility>

#include "block_pool/zeroed_array.h"

namespace kvplan::detail {

/// Flat open-addressing index from keys to node numbers. The keys lie with their owners: a slot
/// holds 32 bits of the key's hash and the node, so probing, deletion and growth read nothing but
/// slots, and only an almost certain hit looks at a key. Linear probing; deletion shifts back, so
/// there are no tombstones. Node 0 marks an empty slot.
class HashIndex {
 public:
  static constexpr size_t kNotFound = SIZE_MAX;

  HashIndex() : HashIndex(0) {}
  /// Room for `num_keys` without growing.
  explicit HashIndex(size_t num_keys)
      : slots_(std::bit_ceil(num_keys + num_keys / 3 + 16)), mask_(slots_.size() - 1) {}

  size_t size() const { return size_; }
  size_t memory_bytes() const { return slots_.size() * sizeof(uint64_t); }

  /// The slot for which `equal(node)` holds, among those of the hash.
  template <typename Equal>
  size_t find(uint32_t hash, Equal&& equal) const {
    for (size_t i = hash & mask_;; i = (i + 1) & mask_) {
      const uint64_t slot = slots_[i];
      if (slot == 0) return kNotFound;
      if (hash_of(slot) == hash && equal(node_of(slot))) return i;
    }
  }

  uint32_t node_at(size_t slot) const { return node_of(slots_[slot]); }

  /// Makes the next `insert` unable to fail.
  void reserve_one() {
    if (4 * (size_ + 1) > 3 * slots_.size()) grow();
  }

  /// The key must not be in the index.
  void insert(uint32_t hash, uint32_t node) {
    reserve_one();
    place(make_slot(hash, node));
    ++size_;
  }

  void erase(size_t hole) {
    for (size_t i = (hole + 1) & mask_; slots_[i] != 0; i = (i + 1) & mask_) {
      const size_t home = hash_of(slots_[i]) & mask_;
      // The entry may fill the hole unless its home lies after it.
      if (((i - home) & mask_) >= ((i - hole) & mask_)) {
        slots_[hole] = slots_[i];
        hole = i;
      }
    }
    slots_[hole] = 0;
    --size_;
  }

  template <typename Visit>
  void for_each(Visit&& visit) const {
    for (size_t i = 0; i < slots_.size(); ++i) {
      if (slots_[i] != 0) visit(node_of(slots_[i]));
    }
  }

  void clear() {
    slots_ = ZeroedArray<uint64_t>(slots_.size());
    size_ = 0;
  }

  void prefetch(uint32_t hash) const { __builtin_prefetch(&slots_[hash & mask_]); }
  /// The node that a lookup will most likely look at; 0 if none.
  uint32_t candidate(uint32_t hash) const { return node_of(slots_[hash & mask_]); }

 private:
  static uint32_t hash_of(uint64_t slot) { return static_cast<uint32_t>(slot >> 32); }
  static uint32_t node_of(uint64_t slot) { return static_cast<uint32_t>(slot); }
  static uint64_t make_slot(uint32_t hash, uint32_t node) {
    return static_cast<uint64_t>(hash) << 32 | node;
  }

  void place(uint64_t slot) {
    size_t i = hash_of(slot) & mask_;
    while (slots_[i] != 0) i = (i + 1) & mask_;
    slots_[i] = slot;
  }

  void grow() {
    ZeroedArray<uint64_t> old = std::exchange(slots_, ZeroedArray<uint64_t>(2 * slots_.size()));
    mask_ = slots_.size() - 1;
    for (size_t i = 0; i < old.size(); ++i) {
      if (old[i] != 0) place(old[i]);
    }
  }

  ZeroedArray<uint64_t> slots_;
  size_t mask_;
  size_t size_ = 0;
};

}  // namespace kvplan::detail
