#include "clock.h"

#include <algorithm>

namespace ptx {
namespace {

constexpr double kCyclesPerSlot = 1.3;  // a scheduler rarely issues in every cycle
constexpr double kMultiprocessors = 132;
constexpr double kLaunchGap =
    kCyclesPerMicrosecond;  // from the end of a kernel to the next one's start in a graph

struct Cost {
  double slots;
  double latency;
};

/// What ptxas makes of an instruction: issue slots, and cycles until its result can be read.
Cost cost_of(const Instruction& i) {
  const bool wide = size_of(i.type) == 8;
  switch (i.op) {
    case Op::kAdd:
    case Op::kSub:
    case Op::kNeg:
    case Op::kNot:
      return wide ? Cost{2, 9} : Cost{1, 5};
    case Op::kAnd:
    case Op::kOr:
    case Op::kXor:
    case Op::kSelect:
      return {wide ? 2.0 : 1.0, 5};
    case Op::kShiftLeft:
    case Op::kShiftRight:
    case Op::kInsertBits:
      return wide ? Cost{2, 8} : Cost{1, 5};
    case Op::kMin:
    case Op::kMax:
    case Op::kMul:
      return wide ? Cost{4, 14} : Cost{1, 5};
    case Op::kMulWide:
    case Op::kMad:
    case Op::kMadWide:
      return {1, 6};
    case Op::kDiv:
    case Op::kRem:
      return wide ? Cost{90, 380} : Cost{17, 75};
    case Op::kCompare:
      return wide ? Cost{2, 14} : Cost{1, 9};
    case Op::kConvert:
      return {0.5, 4};
    case Op::kPack:
    case Op::kUnpack:
    case Op::kNothing:
      return {0, 0};
    case Op::kMove:
      return {wide ? 0.6 : 0.4, 3};
    case Op::kBranch:
      return i.predicate < 0 ? Cost{0.5, 5} : Cost{2, 10};
    case Op::kReturn:
      return {1, 1};
    case Op::kShuffle:
    case Op::kVote:
    case Op::kBarrier:
      return {1, 24};
    case Op::kPopulationCount:
    case Op::kLeadingZeros:
      return {1, 12};
    default:
      return {1, 5};
  }
}

}  // namespace

Clock::Clock(unsigned warps, int registers)
    : warps_(warps, Warp{0, std::vector<double>(static_cast<size_t>(registers), 0)}) {}

double Clock::ready(unsigned warp, const Instruction& i) const {
  const Warp& w = warps_[warp];
  double time = w.time;
  const auto needs = [&](int number) {
    if (number >= 0) time = std::max(time, w.ready[static_cast<size_t>(number)]);
  };
  needs(i.predicate);
  for (const Operand& source : i.sources) {
    if (source.kind == Operand::kRegister) needs(source.number);
  }
  return time;
}

void Clock::issue(unsigned warp, const Instruction& i, double now,
                  const std::vector<uint64_t>& addresses) {
  auto [slots, latency] = cost_of(i);
  double transactions = 0;
  const auto distinct = [&](uint64_t bytes) {
    std::vector<uint64_t> lines(addresses);
    for (uint64_t& a : lines) a /= bytes;
    std::sort(lines.begin(), lines.end());
    lines.erase(std::unique(lines.begin(), lines.end()), lines.end());
    return lines;
  };
  if (i.op == Op::kLoad && i.space == Space::kParameter) {
    if (i.sources[0].kind == Operand::kImmediate) {
      slots = 0.3;
      latency = 4;
    } else {
      const auto distinct_addresses = static_cast<double>(distinct(1).size());
      slots = distinct_addresses > 1 ? 2 : 1;
      latency = 26 + 4 * distinct_addresses;
    }
    for (uint64_t line : distinct(64)) {
      if (parameters_.insert(line).second) latency = std::max(latency, 120.0);
    }
  } else if (i.space == Space::kShared && (i.op == Op::kLoad || i.op == Op::kStore)) {
    latency = 30;
    transactions = 1;
  } else if (i.op == Op::kLoad && !addresses.empty()) {
    bool missed = i.is_atomic;
    for (uint64_t sector : distinct(32)) missed = missed || !l1_.contains(sector);
    const std::vector<uint64_t> lines = distinct(128);
    for (uint64_t line : lines) {
      for (uint64_t k = 0; k < 4; ++k) l1_.insert(line * 4 + k);
    }
    latency = missed ? 265 : 35;
    transactions = static_cast<double>(lines.size());
  } else if (i.op == Op::kStore && !addresses.empty()) {
    transactions = static_cast<double>(distinct(128).size());
  } else if (i.op == Op::kAtomic && !addresses.empty()) {
    const std::vector<uint64_t> sectors = distinct(32);
    for (uint64_t sector : sectors) l1_.erase(sector);
    latency = 350;
    transactions = 2 * static_cast<double>(sectors.size());
  } else if (i.op == Op::kShuffle) {
    transactions = 1;
  }

  double queue = 0;
  if (transactions > 0) {
    queue = std::max(0.0, memory_pipe_ - now);
    memory_pipe_ = std::max(memory_pipe_, now) + transactions;
  }
  const double issued = now + std::max(1.0, slots * kCyclesPerSlot);
  schedulers_[warp % 4] = std::max(schedulers_[warp % 4], now) + slots * kCyclesPerSlot;
  Warp& w = warps_[warp];
  w.time = issued + (i.op == Op::kBranch ? latency : 0);
  for (int target : i.targets) w.ready[static_cast<size_t>(target)] = issued + latency + queue;
  slots_ += slots;
  ++instructions_;
  slots_of_line_[{i.file, i.line}] += slots;
}

void Clock::barrier() {
  const double time = now() + 24;
  for (Warp& w : warps_) w.time = time;
  ++barriers_;
}

double Clock::now() const {
  double time = 0;
  for (const Warp& w : warps_) time = std::max(time, w.time);
  return time;
}

double issue_microseconds(double slots) {
  return slots * kCyclesPerSlot / 4 / kMultiprocessors / kCyclesPerMicrosecond;
}

void add_launch(const std::string& kernel, const std::vector<Clock>& blocks, Costs& costs) {
  const auto slowest =
      std::max_element(blocks.begin(), blocks.end(),
                       [](const Clock& a, const Clock& b) { return a.now() < b.now(); });
  double slots = 0;
  for (const Clock& block : blocks) {
    slots += block.slots();
    costs.instructions += block.instructions();
    for (const auto& [line, of_line] : block.slots_of_line()) costs.slots_of_line[line] += of_line;
  }
  costs.slots += slots;
  costs.critical_slots += slowest->slots();
  costs.barriers += slowest->barriers();
  const double cycles = std::max(slowest->now(), issue_microseconds(slots) * kCyclesPerMicrosecond);
  costs.kernels.emplace_back(kernel, cycles);
  costs.cycles += cycles;
  if (costs.launches++ > 0) costs.cycles += kLaunchGap;
}

}  // namespace ptx
