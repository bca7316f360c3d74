#pragma once

#include <atomic>
#include <memory>

namespace kvplan::detail {

/// A value that its copies share until one of them writes. Whoever writes to one copy needs no
/// other thread to wait: what was shared once is never written again.
template <class T>
class CopyOnWrite {
 public:
  CopyOnWrite() : value_(std::make_shared<T>()) {}
  CopyOnWrite(const CopyOnWrite& other) : value_(other.value_), is_shared_(true) {
    other.is_shared_.store(true, std::memory_order_relaxed);
  }
  CopyOnWrite& operator=(const CopyOnWrite& other) {
    other.is_shared_.store(true, std::memory_order_relaxed);
    is_shared_.store(true, std::memory_order_relaxed);
    value_ = other.value_;
    return *this;
  }

  const T& operator*() const { return *value_; }
  std::shared_ptr<const T> share() const {
    is_shared_.store(true, std::memory_order_relaxed);
    return value_;
  }
  T& write() {
    if (is_shared_.load(std::memory_order_relaxed)) {
      value_ = std::make_shared<T>(*value_);
      is_shared_.store(false, std::memory_order_relaxed);
    }
    return *value_;
  }

 private:
  std::shared_ptr<T> value_;
  mutable std::atomic<bool> is_shared_ = false;
};

}  // namespace kvplan::detail
