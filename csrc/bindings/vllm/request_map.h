#pragma once

#include <Python.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace kvplan::bindings {

/// Values by the address of a Python object: one multiplication and, as a rule, one comparison a
/// lookup, where a scheduler asks for every request in every step. Borrows the objects.
template <typename Value>
class RequestMap {
 public:
  /// Valid until the next `insert` or `erase`.
  Value* find(PyObject* key) {
    const size_t slot = slot_of(key);
    return slots_[slot].key == key ? &slots_[slot].value : nullptr;
  }
  /// `key` must not be there. Throws std::bad_alloc and changes nothing.
  Value& insert(PyObject* key, Value value) {
    if (2 * (size_ + 1) > slots_.size()) grow();
    Slot& slot = slots_[slot_of(key)];
    slot.key = key;
    slot.value = std::move(value);
    ++size_;
    return slot.value;
  }
  /// `key` must be there.
  Value erase(PyObject* key) {
    size_t hole = slot_of(key);
    Value value = std::move(slots_[hole].value);
    slots_[hole] = {};
    --size_;
    // Who was displaced by it moves up.
    for (size_t i = next(hole); slots_[i].key != nullptr; i = next(i)) {
      const size_t home = home_of(slots_[i].key);
      if (((i - home) & mask()) < ((i - hole) & mask())) continue;
      std::swap(slots_[hole], slots_[i]);
      hole = i;
    }
    return value;
  }
  size_t size() const { return size_; }

 private:
  struct Slot {
    PyObject* key = nullptr;
    Value value{};
  };

  size_t mask() const { return slots_.size() - 1; }
  size_t next(size_t slot) const { return (slot + 1) & mask(); }
  size_t home_of(PyObject* key) const {
    const uint64_t mixed = reinterpret_cast<uintptr_t>(key) * 0x9E3779B97F4A7C15u;
    return mixed >> shift_;
  }
  /// Where `key` is or would be.
  size_t slot_of(PyObject* key) const {
    size_t slot = home_of(key);
    while (slots_[slot].key != key && slots_[slot].key != nullptr) slot = next(slot);
    return slot;
  }
  void grow() {
    std::vector<Slot> old(2 * slots_.size());
    old.swap(slots_);
    --shift_;
    for (Slot& slot : old) {
      if (slot.key != nullptr) slots_[slot_of(slot.key)] = std::move(slot);
    }
  }

  std::vector<Slot> slots_ = std::vector<Slot>(64);
  int shift_ = 64 - std::bit_width(63u);
  size_t size_ = 0;
};

}  // namespace kvplan::bindings
