#include "machine.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <type_traits>

// Linked in with -fsanitize=address: the beginning of what may not be accessed, or null.
extern "C" void* __asan_region_is_poisoned(void* begin, size_t size) __attribute__((weak));

namespace ptx {
namespace {

constexpr unsigned kLanes = 32;
constexpr int kEnded = -1;

/// Calls f with a value of the C++ type.
template <class F>
void with_type(Type type, F f) {
  switch (type) {
    case Type::kU8:
      return f(uint8_t{});
    case Type::kS8:
      return f(int8_t{});
    case Type::kU16:
      return f(uint16_t{});
    case Type::kS16:
      return f(int16_t{});
    case Type::kU32:
      return f(uint32_t{});
    case Type::kS32:
      return f(int32_t{});
    case Type::kU64:
      return f(uint64_t{});
    case Type::kS64:
      return f(int64_t{});
    case Type::kPredicate:
      return f(bool{});
  }
}

/// A register holds 64 bits, those of a signed value sign-extended; a reader takes the low ones.
template <class T>
uint64_t bits(T value) {
  return static_cast<uint64_t>(value);
}

bool waits_for_others(Op op) { return op == Op::kBarrier || op == Op::kShuffle || op == Op::kVote; }

struct Warp {
  int pc[kLanes];
  unsigned lanes;  // of it that exist
  bool at_barrier = false;
  uint64_t* registers;  // [register, lane]
};

/// One thread block of a launch.
class ThreadBlock {
 public:
  ThreadBlock(const Program& program, const Kernel& kernel, const Dimensions& grid,
              unsigned threads, uint32_t number, const std::vector<std::byte>& parameters,
              Places& places, uint64_t granule, std::vector<uint64_t>& registers, Clock* clock)
      : program_(program),
        kernel_(kernel),
        grid_(grid),
        number_(number),
        threads_(threads),
        parameters_(parameters),
        places_(places),
        granule_(granule),
        clock_(clock),
        shared_(kernel.shared_bytes, std::byte{0xa5}),
        shared_places_((kernel.shared_bytes + 3) / 4),
        warps_((threads + kLanes - 1) / kLanes) {
    const size_t of_warp = static_cast<size_t>(kernel.num_registers) * kLanes;
    // Not cleared: what nothing was written to holds anything.
    registers.resize(std::max(registers.size(), warps_.size() * of_warp));
    for (unsigned w = 0; w < warps_.size(); ++w) {
      warps_[w].lanes = std::min(kLanes, threads - w * kLanes);
      warps_[w].registers = registers.data() + w * of_warp;
      std::fill_n(warps_[w].pc, kLanes, kEnded);
      std::fill_n(warps_[w].pc, warps_[w].lanes, 0);
    }
  }

  void run(std::mt19937_64& random) {
    std::vector<unsigned> order(warps_.size());
    std::iota(order.begin(), order.end(), 0U);
    for (;;) {
      if (clock_ != nullptr) {
        run_by_the_clock();
      } else {
        std::shuffle(order.begin(), order.end(), random);
        for (unsigned w : order) {
          while (!warps_[w].at_barrier && next(warps_[w]) != kEnded) step(w);
        }
      }
      size_t waiting = 0;
      for (const Warp& warp : warps_) waiting += warp.at_barrier ? 1 : 0;
      if (waiting == 0) return;
      if (waiting != warps_.size()) fail("a barrier that other warps have ended without");
      for (Warp& warp : warps_) warp.at_barrier = false;
      if (clock_ != nullptr) clock_->barrier();
      ++epoch_;
    }
  }

 private:
  /// Runs the warp that can issue first, until all wait or have ended.
  void run_by_the_clock() {
    constexpr double kNever = std::numeric_limits<double>::infinity();
    std::vector<double> ready(warps_.size());
    const auto look_at = [&](unsigned w) {
      const int pc = warps_[w].at_barrier ? kEnded : next(warps_[w]);
      ready[w] = pc == kEnded ? kNever : clock_->ready(w, kernel_.code[static_cast<size_t>(pc)]);
    };
    for (unsigned w = 0; w < warps_.size(); ++w) look_at(w);
    for (;;) {
      unsigned first = 0;
      now_ = kNever;
      for (unsigned w = 0; w < warps_.size(); ++w) {
        const double time = std::max(ready[w], clock_->free(w));
        if (time < now_) {
          now_ = time;
          first = w;
        }
      }
      if (now_ == kNever) return;
      addresses_.clear();
      step(first);
      look_at(first);
    }
  }

  /// The least program counter of the lanes that need not wait, else of those that do.
  int next(const Warp& warp) const {
    int least = std::numeric_limits<int>::max();
    int waiting = least;
    int last = kEnded;
    bool last_waits = false;
    for (unsigned lane = 0; lane < warp.lanes; ++lane) {
      const int pc = warp.pc[lane];
      if (pc == kEnded) continue;
      if (pc != last) {
        last = pc;
        last_waits = waits_for_others(kernel_.code[static_cast<size_t>(pc)].op);
      }
      int& so_far = last_waits ? waiting : least;
      so_far = std::min(so_far, pc);
    }
    if (least != std::numeric_limits<int>::max()) return least;
    return waiting != std::numeric_limits<int>::max() ? waiting : kEnded;
  }

  [[noreturn]] void fail(const std::string& what, unsigned lane = 0) const {
    std::string message = kernel_.name + ": " + what;
    if (current_ != nullptr) {
      const auto file = program_.files.find(current_->file);
      message += "\n  at " + (file == program_.files.end() ? "?" : file->second) + ":" +
                 std::to_string(current_->line) + ", " + current_->text + "\n  block " +
                 std::to_string(number_) + ", thread " +
                 std::to_string(warp_index_ * kLanes + lane) + ", epoch " + std::to_string(epoch_);
    }
    throw Fault(message);
  }

  uint64_t& reg(int number, unsigned lane) {
    return warp_->registers[static_cast<size_t>(number) * kLanes + lane];
  }

  uint64_t source(size_t k, unsigned lane) {
    const Operand& o = current_->sources[k];
    switch (o.kind) {
      case Operand::kRegister:
        return reg(o.number, lane);
      case Operand::kImmediate:
        return bits(o.immediate);
      default:
        break;
    }
    switch (static_cast<Special>(o.number)) {
      case Special::kThread:
        return warp_index_ * kLanes + lane;
      case Special::kLane:
        return lane;
      case Special::kBlockX:
        return number_ % grid_.x;
      case Special::kBlockY:
        return number_ / grid_.x % grid_.y;
      case Special::kBlockZ:
        return number_ / grid_.x / grid_.y;
      case Special::kThreads:
        return threads_;
      case Special::kGridX:
        return grid_.x;
      case Special::kGridY:
        return grid_.y;
      case Special::kGridZ:
        return grid_.z;
    }
    return 0;
  }

  template <class T>
  T get(size_t k, unsigned lane) {
    if constexpr (std::is_same_v<T, bool>) {
      return (source(k, lane) & 1) != 0;
    } else {
      return static_cast<T>(source(k, lane));
    }
  }

  void set(size_t k, unsigned lane, uint64_t value) { reg(current_->targets[k], lane) = value; }

  template <class F>
  void for_lanes(uint32_t lanes, F f) const {
    for (; lanes != 0; lanes &= lanes - 1) f(static_cast<unsigned>(std::countr_zero(lanes)));
  }

  uint32_t all_lanes() const { return warp_->lanes == kLanes ? ~0U : (1U << warp_->lanes) - 1; }

  /// Runs one instruction of the lanes that are there.
  void step(unsigned w) {
    warp_ = &warps_[w];
    warp_index_ = w;
    const int pc = next(*warp_);
    const Instruction& i = kernel_.code[static_cast<size_t>(pc)];
    current_ = &i;
    uint32_t here = 0;
    for (unsigned lane = 0; lane < warp_->lanes; ++lane) {
      here |= warp_->pc[lane] == pc ? 1U << lane : 0;
    }
    uint32_t active = here;
    if (i.predicate >= 0) {
      for_lanes(here, [&](unsigned lane) {
        if (((reg(i.predicate, lane) & 1) != 0) == i.negated) active &= ~(1U << lane);
      });
    }
    for_lanes(here, [&](unsigned lane) { warp_->pc[lane] = pc + 1; });
    i.is_reached = true;
    execute(i, active);
    if (clock_ != nullptr) clock_->issue(w, i, now_, addresses_);
  }

  void execute(const Instruction& i, uint32_t active) {
    switch (i.op) {
      case Op::kNothing:
        return;
      case Op::kBranch:
        return for_lanes(active, [&](unsigned lane) { warp_->pc[lane] = i.jump; });
      case Op::kReturn:
        return for_lanes(active, [&](unsigned lane) { warp_->pc[lane] = kEnded; });
      case Op::kBarrier:
        if (active != all_lanes()) fail("a barrier that not all lanes of a warp reach");
        warp_->at_barrier = true;
        return;
      case Op::kShuffle:
        return shuffle(i, active);
      case Op::kVote:
        return vote(active);
      case Op::kPack:
        return for_lanes(active, [&](unsigned lane) {
          set(0, lane, get<uint32_t>(0, lane) | bits(get<uint32_t>(1, lane)) << 32);
        });
      case Op::kUnpack:
        return for_lanes(active, [&](unsigned lane) {
          const uint64_t value = source(0, lane);
          set(0, lane, value & 0xffffffff);
          set(1, lane, value >> 32);
        });
      case Op::kConvert:
        return with_type(i.from, [&]<class From>(From) {
          with_type(i.type, [&]<class To>(To) {
            for_lanes(active, [&](unsigned lane) {
              set(0, lane, bits(static_cast<To>(get<From>(0, lane))));
            });
          });
        });
      case Op::kLoad:
      case Op::kStore:
        return with_type(i.type, [&]<class T>(T) {
          for_lanes(active, [&](unsigned lane) { move<T>(i, lane); });
        });
      case Op::kAtomic:
        return with_type(i.type, [&]<class T>(T) {
          for_lanes(active, [&](unsigned lane) { atomic<T>(i, lane); });
        });
      default:
        return with_type(i.type, [&]<class T>(T) {
          for_lanes(active, [&](unsigned lane) { arithmetic<T>(i, lane); });
        });
    }
  }

  template <class T>
  void arithmetic(const Instruction& i, unsigned lane) {
    using Unsigned = std::conditional_t<std::is_same_v<T, bool>, std::type_identity<bool>,
                                        std::make_unsigned<T>>::type;
    const auto a = [&] { return get<T>(0, lane); };
    const auto b = [&] { return get<T>(1, lane); };
    // As unsigned, where an overflow is defined and gives the same bits.
    const auto result = [&](uint64_t value) {
      set(0, lane, bits(static_cast<T>(static_cast<Unsigned>(value))));
    };
    const uint64_t x = source(0, lane);
    const uint64_t y = i.sources.size() > 1 ? source(1, lane) : 0;
    switch (i.op) {
      case Op::kAdd:
        return result(x + y);
      case Op::kSub:
        return result(x - y);
      case Op::kMul:
        return result(x * y);
      case Op::kMad:
        return result(x * y + source(2, lane));
      case Op::kMulWide:
        return set(0, lane, bits(a()) * bits(b()));
      case Op::kMadWide:
        return set(0, lane, bits(a()) * bits(b()) + source(2, lane));
      case Op::kDiv:
      case Op::kRem:
        if constexpr (!std::is_same_v<T, bool>) {
          if (b() == 0) fail("division by zero", lane);
          if (std::is_signed_v<T> &&
              b() == static_cast<T>(-1)) {  // the least value has no negative
            return result(i.op == Op::kDiv ? 0 - x : 0);
          }
          return result(bits(static_cast<T>(i.op == Op::kDiv ? a() / b() : a() % b())));
        }
        return;
      case Op::kAnd:
        return result(x & y);
      case Op::kOr:
        return result(x | y);
      case Op::kXor:
        return result(x ^ y);
      case Op::kNot:
        return std::is_same_v<T, bool> ? set(0, lane, bits(!a())) : result(~x);
      case Op::kNeg:
        return result(0 - x);
      case Op::kMin:
        return result(bits(std::min(a(), b())));
      case Op::kMax:
        return result(bits(std::max(a(), b())));
      case Op::kShiftLeft: {
        const auto by = static_cast<uint32_t>(y);
        return result(by >= 8 * sizeof(T) ? 0 : x << by);
      }
      case Op::kShiftRight: {
        const uint32_t by =
            std::min(static_cast<uint32_t>(y), 8 * static_cast<uint32_t>(sizeof(T)));
        const T value = a();
        if (by == 8 * sizeof(T)) return result(value < T{0} ? ~uint64_t{0} : 0);
        return result(bits(static_cast<T>(value >> by)));
      }
      case Op::kFunnelShiftLeft: {
        const uint64_t both = bits(get<uint32_t>(1, lane)) << 32 | get<uint32_t>(0, lane);
        return result(both << (source(2, lane) & 31) >> 32);
      }
      case Op::kInsertBits: {
        const auto at = get<uint32_t>(2, lane) & 0xff;
        const auto count = get<uint32_t>(3, lane) & 0xff;
        if (at >= 8 * sizeof(T) || count == 0) return result(y);
        const uint64_t mask = ~uint64_t{0} >> (64 - std::min(count, 64U)) << at;
        return result((x << at & mask) | (y & ~mask));
      }
      case Op::kPopulationCount:
        return set(0, lane, bits(std::popcount(static_cast<Unsigned>(a()) + uint64_t{0})));
      case Op::kLeadingZeros:
        return set(0, lane,
                   bits(std::countl_zero(static_cast<Unsigned>(a()) + uint64_t{0})) -
                       (64 - 8 * sizeof(T)));
      case Op::kCompare:
        return set(0, lane, bits(holds(i.comparison, a(), b())));
      case Op::kSelect:
        return result((source(2, lane) & 1) != 0 ? x : y);
      case Op::kMove:
        return set(0, lane, bits(a()));
      default:
        fail("an instruction that the machine does not know");
    }
  }

  template <class T>
  static bool holds(Comparison comparison, T a, T b) {
    switch (comparison) {
      case Comparison::kEq:
        return a == b;
      case Comparison::kNe:
        return a != b;
      case Comparison::kLt:
        return a < b;
      case Comparison::kLe:
        return a <= b;
      case Comparison::kGt:
        return a > b;
      case Comparison::kGe:
        return a >= b;
    }
    return false;
  }

  void shuffle(const Instruction& i, uint32_t active) {
    if (active != ~0U) fail("a shuffle that not all lanes reach");
    uint64_t values[kLanes];
    for_lanes(active, [&](unsigned lane) {
      values[lane] = source(0, lane);
      if (get<uint32_t>(3, lane) != ~0U) fail("a shuffle of some lanes only", lane);
    });
    for_lanes(active, [&](unsigned lane) {
      const uint32_t b = get<uint32_t>(1, lane);
      const bool in_range = !i.is_up || lane >= b;
      const unsigned from = !i.is_up ? b % kLanes : in_range ? lane - b : lane;
      set(0, lane, values[from] & 0xffffffff);
      if (i.targets.size() > 1) set(1, lane, bits(in_range));
    });
  }

  void vote(uint32_t active) {
    if (active != ~0U) fail("a vote that not all lanes reach");
    uint64_t ballot = 0;
    for_lanes(active, [&](unsigned lane) { ballot |= (source(0, lane) & 1) << lane; });
    for_lanes(active, [&](unsigned lane) { set(0, lane, ballot); });
  }

  Actor actor(unsigned lane, bool is_atomic) const {
    return {number_, warp_index_ * kLanes + lane, epoch_, is_atomic};
  }

  /// The bytes at an address, after all checks.
  std::byte* access(const Instruction& i, uint64_t address, size_t size, unsigned lane) {
    if (clock_ != nullptr) addresses_.push_back(address);
    const bool writes = i.op != Op::kLoad;
    if (address % size != 0) fail("misaligned address", lane);
    const auto check = [&](Place& place) {
      const bool ordered =
          writes ? place.write(actor(lane, i.is_atomic)) : place.read(actor(lane, i.is_atomic));
      if (!ordered) fail("a race with another thread", lane);
    };
    if (i.space == Space::kParameter) {
      if (address + size > parameters_.size()) fail("outside of the parameters", lane);
      return const_cast<std::byte*>(parameters_.data()) + address;
    }
    if (i.space == Space::kShared) {
      if (address + size > shared_.size()) fail("outside of shared memory", lane);
      for (uint64_t at = address / 4; at < (address + size + 3) / 4; ++at) {
        if (!writes && !shared_places_[at].is_written()) {
          fail("shared memory that nobody has written", lane);
        }
        check(shared_places_[at]);
      }
      return shared_.data() + address;
    }
    auto* const bytes = reinterpret_cast<std::byte*>(address);
    if (address < 4096 || (__asan_region_is_poisoned != nullptr &&
                           __asan_region_is_poisoned(bytes, size) != nullptr)) {
      fail("outside of an array", lane);
    }
    for (uint64_t at = address / granule_; at < (address + size - 1) / granule_ + 1; ++at) {
      check(places_.at(at));
    }
    return bytes;
  }

  template <class T>
  void move(const Instruction& i, unsigned lane) {
    const bool loads = i.op == Op::kLoad;
    const size_t count = loads ? i.targets.size() : i.sources.size() - 2;
    std::byte* bytes = access(i, source(0, lane) + source(1, lane), count * sizeof(T), lane);
    for (size_t k = 0; k < count; ++k, bytes += sizeof(T)) {
      T value;
      if (loads) {
        std::memcpy(&value, bytes, sizeof(T));
        set(k, lane, bits(value));
      } else {
        value = get<T>(2 + k, lane);
        std::memcpy(bytes, &value, sizeof(T));
      }
    }
  }

  template <class T>
  void atomic(const Instruction& i, unsigned lane) {
    std::byte* const bytes = access(i, source(0, lane) + source(1, lane), sizeof(T), lane);
    T before;
    std::memcpy(&before, bytes, sizeof(T));
    const T value = get<T>(2, lane);
    const auto after = [&]() -> T {
      switch (i.atomic) {
        case Atomic::kAdd:
          return static_cast<T>(bits(before) + bits(value));
        case Atomic::kOr:
          return static_cast<T>(before | value);
        case Atomic::kAnd:
          return static_cast<T>(before & value);
        case Atomic::kExchange:
          return value;
        case Atomic::kMin:
          return std::min(before, value);
        case Atomic::kMax:
          return std::max(before, value);
      }
      return before;
    }();
    std::memcpy(bytes, &after, sizeof(T));
    if (!i.targets.empty()) set(0, lane, bits(before));
  }

  const Program& program_;
  const Kernel& kernel_;
  const Dimensions& grid_;
  const uint32_t number_;
  const unsigned threads_;
  const std::vector<std::byte>& parameters_;
  Places& places_;
  const uint64_t granule_;
  Clock* const clock_;
  std::vector<std::byte> shared_;
  std::vector<Place> shared_places_;
  std::vector<Warp> warps_;
  uint32_t epoch_ = 1;
  // The instruction that runs.
  Warp* warp_ = nullptr;
  unsigned warp_index_ = 0;
  const Instruction* current_ = nullptr;
  double now_ = 0;
  std::vector<uint64_t> addresses_;
};

/// Bytes of a place: races of kernels that write single bytes are between bytes.
uint64_t granule_of(const Kernel& kernel) {
  unsigned least = 4;
  for (const Instruction& i : kernel.code) {
    if ((i.op == Op::kLoad || i.op == Op::kStore) && i.space == Space::kGlobal) {
      least = std::min(least, size_of(i.type));
    }
  }
  return least;
}

}  // namespace

void Machine::run(const Program& program, const Kernel& kernel, const Dimensions& grid,
                  unsigned threads, const std::vector<std::byte>& parameters, Costs* costs) {
  std::mt19937_64 random(random_++);
  places_.begin_launch();
  const uint64_t granule = granule_of(kernel);
  std::vector<uint32_t> order(size_t{grid.x} * grid.y * grid.z);
  std::iota(order.begin(), order.end(), 0U);
  std::shuffle(order.begin(), order.end(), random);
  std::vector<Clock> clocks;
  for (uint32_t number : order) {
    if (costs != nullptr)
      clocks.emplace_back((threads + kLanes - 1) / kLanes, kernel.num_registers);
    ThreadBlock(program, kernel, grid, threads, number, parameters, places_, granule, registers_,
                costs != nullptr ? &clocks.back() : nullptr)
        .run(random);
  }
  if (costs != nullptr) add_launch(kernel.name, clocks, *costs);
}

}  // namespace ptx
