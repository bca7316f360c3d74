#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "clock.h"
#include "program.h"
#include "races.h"

/// Runs PTX on the CPU, one instruction of one warp after the other, and checks what it does.
///
/// Lanes of a warp run together from the least program counter on, those that wait for others (at a
/// barrier or shuffle) last. Thread blocks run one after the other in random order, the warps of a
/// block in random order between barriers. Found are, whichever thread came first:
///
/// - accesses outside of an array (where the address sanitizer is linked in), misaligned ones, and
///   those outside of the parameters or of shared memory;
/// - races: two threads, one place, one of them writes, not both atomic, no barrier between them;
/// - shared memory that is read before it is written;
/// - barriers and shuffles that not all threads reach; division by zero.
namespace ptx {

struct Dimensions {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
};

/// What a kernel did that it must not: its name, the source line, the instruction and the thread.
class Fault : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Machine {
 public:
  explicit Machine(uint64_t seed) : random_(seed) {}

  /// Throws `Fault`. `costs`: null, or where the time of the launch is added up.
  void run(const Program& program, const Kernel& kernel, const Dimensions& grid, unsigned threads,
           const std::vector<std::byte>& parameters, Costs* costs);

 private:
  uint64_t random_;  // a seed, then the next one
  Places places_;
  std::vector<uint64_t> registers_;
};

}  // namespace ptx
