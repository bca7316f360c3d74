#pragma once

#include <cstdint>
#include <functional>

/// Kernels as C++ on the CPU, for tests.
///
/// Every thread of a thread block is a fiber of its own, with a stack of its own; a multiprocessor
/// is a thread of the operating system that runs one thread block after the other. Which fiber runs
/// next is random, and so is the order of the thread blocks and who runs them.
///
/// Fibers are threads to the thread sanitizer. Only what orders threads of a GPU orders them: the
/// begin and end of a launch, `__syncthreads`, `__syncwarp`. Anything else that two threads do to
/// one place is a race, whichever of them came first. Barriers that some threads of a block do not
/// reach, and warp operations whose lanes disagree, end the program with a message.
namespace emulation {

struct Index3 {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
};

/// Runs `kernel` in each thread of a grid. `seed` decides the order.
void run_grid(const Index3& grid, unsigned threads, const std::function<void()>& kernel,
              uint64_t seed);

/// Multiprocessors of the emulated device.
inline constexpr int kMultiprocessors = 3;
inline constexpr unsigned kWarpSize = 32;

// Where the calling thread is. Not inlined: a fiber may move to another multiprocessor.
Index3 thread_index();
Index3 block_index();
Index3 block_size();
Index3 grid_size();

// What the calling thread waits for.
void block_barrier();
void warp_barrier(uint32_t mask);
/// The value that lane `lane` of the calling thread's warp gave to the same call.
uint64_t exchange(uint32_t mask, uint64_t value, unsigned lane);
/// One bit for each lane of `mask` that gave true.
uint32_t ballot(uint32_t mask, bool value);

}  // namespace emulation
