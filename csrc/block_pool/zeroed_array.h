#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace kvplan::detail {

/// Zeroed memory for `size` objects of a type for which zeros are a valid value, aligned for it.
/// Large arrays come from the kernel untouched, so a page costs nothing before its first use.
template <typename T>
class ZeroedArray {
 public:
  ZeroedArray() = default;
  explicit ZeroedArray(size_t size) : size_(size) {
    if (size > (SIZE_MAX - alignof(T)) / sizeof(T)) throw std::bad_alloc();
    memory_.reset(std::calloc(1, size * sizeof(T) + alignof(T)));
    if (!memory_) throw std::bad_alloc();
    void* start = memory_.get();
    size_t space = size * sizeof(T) + alignof(T);
    data_ = static_cast<T*>(std::align(alignof(T), size * sizeof(T), start, space));
    ask_for_huge_pages();
  }

  T* data() const { return data_; }
  size_t size() const { return size_; }
  T& operator[](size_t i) const { return data_[i]; }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };

  /// Blocks are found by hash, so in random order: without huge pages most of the time goes into
  /// address translation. A hint; where the kernel has none to give, nothing changes.
  void ask_for_huge_pages() {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    constexpr uintptr_t kHugePage = uintptr_t{2} << 20;
    const auto begin = (reinterpret_cast<uintptr_t>(data_) + kHugePage - 1) & ~(kHugePage - 1);
    const auto end = reinterpret_cast<uintptr_t>(data_ + size_) & ~(kHugePage - 1);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): of the mapping itself, rounded to whole pages
    if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
  }

  std::unique_ptr<void, Free> memory_;
  T* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace kvplan::detail
