#include "emulated_gpu.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

// This file is built without the thread sanitizer's instrumentation: what it does is not what the
// emulated threads do.
#if EMULATION_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if EMULATION_THREAD_SANITIZER
#include <sanitizer/tsan_interface.h>
#endif

namespace emulation {
namespace {

constexpr size_t kStackBytes = 256 << 10;

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "emulated GPU: %s\n", what);
  std::_Exit(1);  // a signal would hide the message from CTest
}

/// One stack with what runs on it.
struct Context {
  ucontext_t registers{};
  const void* stack = nullptr;
  size_t stack_bytes = 0;
  void* asan_stack = nullptr;
  void* tsan_fiber = nullptr;
};

/// `left` gets the bounds of the stack that was switched from.
void finish_switch([[maybe_unused]] void* saved, [[maybe_unused]] Context* left) {
#if EMULATION_ADDRESS_SANITIZER
  const void* stack = nullptr;
  size_t bytes = 0;
  __sanitizer_finish_switch_fiber(saved, &stack, &bytes);
  if (left != nullptr) {
    left->stack = stack;
    left->stack_bytes = bytes;
  }
#endif
}

void switch_to(Context& from, Context& to) {
#if EMULATION_ADDRESS_SANITIZER
  __sanitizer_start_switch_fiber(&from.asan_stack, to.stack, to.stack_bytes);
#endif
#if EMULATION_THREAD_SANITIZER
  __tsan_switch_to_fiber(to.tsan_fiber, __tsan_switch_to_fiber_no_sync);
#endif
  if (swapcontext(&from.registers, &to.registers) != 0) fail("no switch of stacks");
}

// What the thread sanitizer is to know of order: a release happens before each later acquire of the
// same address.
void release([[maybe_unused]] void* address) {
#if EMULATION_THREAD_SANITIZER
  __tsan_release(address);
#endif
}

void acquire([[maybe_unused]] void* address) {
#if EMULATION_THREAD_SANITIZER
  __tsan_acquire(address);
#endif
}

enum class State { kReady, kAtBarrier, kInWarp, kDone };
enum class WarpCall { kBarrier, kExchange, kBallot };

struct Fiber {
  Context context;
  State state = State::kDone;
  Index3 thread;
  unsigned num_barriers = 0;
  unsigned num_warp_barriers = 0;
  // The warp operation it waits in, and what it got from it.
  WarpCall call{};
  uint32_t mask = 0;
  uint64_t value = 0;
  unsigned source = 0;
  uint64_t result = 0;
};

/// What one launch is to all of its threads.
struct Grid {
  Index3 size;
  unsigned threads;
  const std::function<void()>* kernel;
  char begin = 0;  // addresses for release and acquire
  char end = 0;
};

class Multiprocessor {
 public:
  Multiprocessor(Grid& grid, std::vector<std::unique_ptr<Fiber>>& fibers, uint64_t seed)
      : grid_(grid), fibers_(fibers), random_(seed), warps_((grid.threads + 31) / 32 * 2) {
#if EMULATION_THREAD_SANITIZER
    scheduler_.tsan_fiber = __tsan_get_current_fiber();
#endif
  }

  void run_block(const Index3& block);

  Grid& grid_;
  std::vector<std::unique_ptr<Fiber>>& fibers_;
  Context scheduler_;
  Fiber* running_ = nullptr;
  Index3 block_;
  // Addresses for release and acquire, two in turn: a thread that is still to leave a barrier comes
  // after what the others did before it, not after what they have done since.
  char barriers_[2] = {};
  // The next block of a multiprocessor has its shared memory again, so it comes after this one.
  char block_done_[2] = {};
  unsigned num_blocks_ = 0;

  void wait(State state) {
    Fiber& fiber = *running_;
    fiber.state = state;
    switch_to(fiber.context, scheduler_);
    resumed(fiber);
  }
  /// In a fiber that runs again, perhaps on another multiprocessor.
  static void resumed(Fiber& fiber);
  char* warp_barrier_of(const Fiber& fiber) {
    return &warps_[fiber.thread.x / kWarpSize * 2 + fiber.num_warp_barriers % 2];
  }

 private:
  void finish_warp_call(const Fiber& last);

  std::mt19937_64 random_;
  std::vector<unsigned> ready_;
  std::vector<char> warps_;
};

thread_local Multiprocessor* multiprocessor = nullptr;

__attribute__((noinline)) Multiprocessor& here() {
  if (multiprocessor == nullptr) fail("a device function was called outside of a kernel");
  return *multiprocessor;
}

void Multiprocessor::resumed(Fiber& fiber) {
  finish_switch(fiber.context.asan_stack, &here().scheduler_);
}

/// What a fiber runs: one thread of a block after the other.
void fiber_main() {
  finish_switch(nullptr, &here().scheduler_);
  for (;;) {
    {
      Multiprocessor& m = here();
      acquire(&m.grid_.begin);
      acquire(&m.block_done_[(m.num_blocks_ + 1) % 2]);
      (*m.grid_.kernel)();
    }
    Multiprocessor& m = here();
    release(&m.block_done_[m.num_blocks_ % 2]);
    release(&m.grid_.end);
    m.wait(State::kDone);
  }
}

std::unique_ptr<Fiber> make_fiber() {
  auto fiber = std::make_unique<Fiber>();
  void* stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stack == MAP_FAILED || getcontext(&fiber->context.registers) != 0) fail("no stack");
  fiber->context.stack = stack;
  fiber->context.stack_bytes = kStackBytes;
  fiber->context.registers.uc_stack.ss_sp = stack;
  fiber->context.registers.uc_stack.ss_size = kStackBytes;
  fiber->context.registers.uc_link = nullptr;
  makecontext(&fiber->context.registers, fiber_main, 0);
#if EMULATION_THREAD_SANITIZER
  fiber->context.tsan_fiber = __tsan_create_fiber(0);
#endif
  return fiber;
}

/// Fibers that no launch uses.
struct FiberStore {
  std::mutex mutex;
  std::vector<std::unique_ptr<Fiber>> fibers;
};

FiberStore store;

std::vector<std::unique_ptr<Fiber>> take_fibers(unsigned count) {
  std::vector<std::unique_ptr<Fiber>> taken;
  const std::lock_guard lock(store.mutex);
  while (taken.size() < count) {
    if (store.fibers.empty()) store.fibers.push_back(make_fiber());
    taken.push_back(std::move(store.fibers.back()));
    store.fibers.pop_back();
  }
  return taken;
}

void put_back(std::vector<std::unique_ptr<Fiber>> fibers) {
  const std::lock_guard lock(store.mutex);
  for (auto& fiber : fibers) store.fibers.push_back(std::move(fiber));
}

void Multiprocessor::run_block(const Index3& block) {
  block_ = block;
  ++num_blocks_;
  for (unsigned i = 0; i < grid_.threads; ++i) {
    fibers_[i]->state = State::kReady;
    fibers_[i]->thread = {i, 0, 0};
    fibers_[i]->num_barriers = 0;
    fibers_[i]->num_warp_barriers = 0;
    ready_.push_back(i);
  }
  unsigned done = 0;
  unsigned at_barrier = 0;
  while (done < grid_.threads) {
    if (ready_.empty()) {
      if (at_barrier != grid_.threads) {
        fail("threads of a block wait for others that ended or wait for something else");
      }
      at_barrier = 0;
      for (unsigned i = 0; i < grid_.threads; ++i) {
        fibers_[i]->state = State::kReady;
        ready_.push_back(i);
      }
    }
    const size_t pick = random_() % ready_.size();
    Fiber& fiber = *fibers_[ready_[pick]];
    ready_[pick] = ready_.back();
    ready_.pop_back();
    running_ = &fiber;
    switch_to(scheduler_, fiber.context);
    finish_switch(scheduler_.asan_stack, nullptr);
    if (fiber.state == State::kDone) ++done;
    if (fiber.state == State::kAtBarrier) ++at_barrier;
    if (fiber.state == State::kInWarp) finish_warp_call(fiber);
  }
}

/// Gives the lanes of a warp their results when the last of them has come.
void Multiprocessor::finish_warp_call(const Fiber& last) {
  const unsigned first = last.thread.x / kWarpSize * kWarpSize;
  if ((last.mask >> (last.thread.x - first) & 1) == 0) fail("a lane is not in its own mask");
  uint32_t votes = 0;
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    if ((last.mask >> lane & 1) == 0) continue;
    if (first + lane >= grid_.threads) fail("a mask names lanes that the warp does not have");
    const Fiber& other = *fibers_[first + lane];
    if (other.state == State::kDone) fail("a mask names a lane that has ended");
    if (other.state != State::kInWarp) return;  // still to come
    if (other.call != last.call || other.mask != last.mask) fail("lanes of a warp disagree");
    votes |= static_cast<uint32_t>(other.value != 0) << lane;
  }
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    if ((last.mask >> lane & 1) == 0) continue;
    Fiber& fiber = *fibers_[first + lane];
    if (last.call == WarpCall::kExchange) {
      if ((last.mask >> fiber.source & 1) == 0) fail("a lane reads from one outside the mask");
      fiber.result = fibers_[first + fiber.source]->value;
    } else {
      fiber.result = votes;
    }
  }
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    if ((last.mask >> lane & 1) == 0) continue;
    fibers_[first + lane]->state = State::kReady;
    ready_.push_back(first + lane);
  }
}

void run_blocks(Grid& grid, const std::vector<uint64_t>& blocks, uint64_t seed) {
  std::vector<std::unique_ptr<Fiber>> fibers = take_fibers(grid.threads);
  Multiprocessor m(grid, fibers, seed);
  multiprocessor = &m;
  for (const uint64_t b : blocks) {
    m.run_block({static_cast<unsigned>(b % grid.size.x),
                 static_cast<unsigned>(b / grid.size.x % grid.size.y),
                 static_cast<unsigned>(b / grid.size.x / grid.size.y)});
  }
  multiprocessor = nullptr;
  put_back(std::move(fibers));
}

uint64_t warp_call(WarpCall call, uint32_t mask, uint64_t value, unsigned source) {
  Multiprocessor& m = here();
  Fiber& fiber = *m.running_;
  fiber.call = call;
  fiber.mask = mask;
  fiber.value = value;
  fiber.source = source;
  m.wait(State::kInWarp);
  return fiber.result;
}

}  // namespace

void run_grid(const Index3& grid_size, unsigned threads, const std::function<void()>& kernel,
              uint64_t seed) {
  if (multiprocessor != nullptr) fail("a kernel was launched by a kernel");
  Grid grid{grid_size, threads, &kernel};
  const uint64_t num_blocks = uint64_t{grid_size.x} * grid_size.y * grid_size.z;
  std::vector<uint64_t> order(num_blocks);
  for (uint64_t b = 0; b < num_blocks; ++b) order[b] = b;
  std::mt19937_64 random(seed);
  std::shuffle(order.begin(), order.end(), random);
  release(&grid.begin);
  if (num_blocks == 1) {
    run_blocks(grid, order, seed);
  } else {
    std::vector<std::thread> multiprocessors;
    for (int m = 0; m < kMultiprocessors; ++m) {
      std::vector<uint64_t> mine;
      for (size_t i = m; i < order.size(); i += kMultiprocessors) mine.push_back(order[i]);
      multiprocessors.emplace_back(run_blocks, std::ref(grid), std::move(mine), random());
    }
    for (std::thread& thread : multiprocessors) thread.join();
  }
  acquire(&grid.end);
}

Index3 thread_index() { return here().running_->thread; }
Index3 block_index() { return here().block_; }
Index3 block_size() { return {here().grid_.threads, 1, 1}; }
Index3 grid_size() { return here().grid_.size; }

void block_barrier() {
  char* const barrier = &here().barriers_[here().running_->num_barriers++ % 2];
  release(barrier);
  here().wait(State::kAtBarrier);
  acquire(barrier);
}

void warp_barrier(uint32_t mask) {
  if (mask != ~0U) fail("__syncwarp of some lanes only is not emulated");
  Fiber& fiber = *here().running_;
  char* const warp = here().warp_barrier_of(fiber);
  ++fiber.num_warp_barriers;
  release(warp);
  warp_call(WarpCall::kBarrier, mask, 0, 0);
  acquire(warp);
}

uint64_t exchange(uint32_t mask, uint64_t value, unsigned lane) {
  return warp_call(WarpCall::kExchange, mask, value, lane % kWarpSize);
}

uint32_t ballot(uint32_t mask, bool value) {
  return static_cast<uint32_t>(warp_call(WarpCall::kBallot, mask, value ? 1 : 0, 0));
}

}  // namespace emulation
