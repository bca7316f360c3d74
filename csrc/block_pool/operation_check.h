#pragma once

#include <atomic>
#include <thread>

#include "kvplan/errors.h"

#ifndef KVPLAN_CHECKS
#define KVPLAN_CHECKS 0
#endif

namespace kvplan::detail {

#if KVPLAN_CHECKS
/// Who is inside a pool.
struct OperationState {
  explicit OperationState(uint64_t num_blocks) : check_each(num_blocks <= 4096) {}

  const bool check_each;  // operation; else now and then
  std::atomic<std::thread::id> writer{};
  int writer_depth = 0;
  uint64_t num_operations = 0;
};

/// Marks the calling thread as the writer for its lifetime; a second thread is refused. Callbacks
/// may call the pool again.
class OperationCheck {
 public:
  explicit OperationCheck(OperationState& state) : state_(state) {
    const std::thread::id me = std::this_thread::get_id();
    std::thread::id expected{};
    if (!state_.writer.compare_exchange_strong(expected, me) && expected != me) {
      throw BlockPoolError("two threads are inside one block pool; calls must not overlap");
    }
    ++state_.writer_depth;
  }
  ~OperationCheck() {
    if (--state_.writer_depth == 0) state_.writer.store(std::thread::id{});
  }
  OperationCheck(const OperationCheck&) = delete;
  OperationCheck& operator=(const OperationCheck&) = delete;
  /// Verifies all invariants, of a large pool only now and then.
  template <typename Pool>
  void done(const Pool& pool) const {
    constexpr uint64_t kEvery = 1024;
    if (state_.writer_depth > 1) return;
    if (!state_.check_each && state_.num_operations++ % kEvery != 0) return;
    pool.check_invariants();
  }

 private:
  OperationState& state_;
};
#else
struct OperationState {
  explicit OperationState(uint64_t) {}
};

class OperationCheck {
 public:
  explicit OperationCheck(OperationState&) {}
  template <typename Pool>
  void done(const Pool&) const {}
};
#endif

}  // namespace kvplan::detail
