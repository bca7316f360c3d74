#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "program.h"

namespace ptx {

inline constexpr double kCyclesPerMicrosecond = 1755;

/// What launches cost. Instructions and issue slots are exact counts of what ran, slots by a table
/// of what ptxas makes of an instruction. Cycles are a first-order model of an H200: four
/// schedulers a multiprocessor, one memory pipe, latencies of L1, L2 and parameters; clocks
/// of 1.755 GHz.
struct Costs {
  double cycles = 0;          ///< of the launches one after the other, with the gaps between them
  double slots = 0;           ///< of all thread blocks
  double critical_slots = 0;  ///< of each launch's slowest thread block
  uint64_t instructions = 0;  ///< of warps
  uint64_t barriers = 0;      ///< of the slowest thread blocks
  uint64_t launches = 0;
  std::map<std::pair<int, int>, double> slots_of_line;  ///< by file and line
  std::vector<std::pair<std::string, double>> kernels;  ///< their cycles, in order

  double microseconds() const { return cycles / kCyclesPerMicrosecond; }
};

/// The time on the multiprocessor that runs one thread block.
class Clock {
 public:
  Clock(unsigned warps, int registers);

  /// When what an instruction of a warp needs is there.
  double ready(unsigned warp, const Instruction& instruction) const;
  /// When the scheduler of a warp can issue again.
  double free(unsigned warp) const { return schedulers_[warp % 4]; }
  /// Issues it. addresses: those of the active lanes, of a load, store or atomic operation.
  void issue(unsigned warp, const Instruction& instruction, double now,
             const std::vector<uint64_t>& addresses);
  /// All warps have reached a barrier.
  void barrier();

  double now() const;
  double slots() const { return slots_; }
  uint64_t instructions() const { return instructions_; }
  uint64_t barriers() const { return barriers_; }
  const std::map<std::pair<int, int>, double>& slots_of_line() const { return slots_of_line_; }

 private:
  struct Warp {
    double time = 0;
    std::vector<double> ready;  // when each register can be read
  };
  std::vector<Warp> warps_;
  double schedulers_[4] = {};
  double memory_pipe_ = 0;
  std::unordered_set<uint64_t> l1_;          // sectors
  std::unordered_set<uint64_t> parameters_;  // lines that were read
  double slots_ = 0;
  uint64_t instructions_ = 0;
  uint64_t barriers_ = 0;
  std::map<std::pair<int, int>, double> slots_of_line_;
};

/// What issue slots take at least, if all multiprocessors share them.
double issue_microseconds(double slots);

/// Adds a launch up: the slowest of its thread blocks, or all of them where they fill the device.
void add_launch(const std::string& kernel, const std::vector<Clock>& blocks, Costs& costs);

}  // namespace ptx
