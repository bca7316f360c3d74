#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

/// PTX as nvcc writes it for kvplan's kernels: an instruction that they do not use is refused.
namespace ptx {

enum class Op : uint8_t {
  kAdd,
  kSub,
  kMul,      // the low half
  kMulWide,  // twice as wide as its sources
  kMad,
  kMadWide,
  kDiv,
  kRem,
  kAnd,
  kOr,
  kXor,
  kNot,
  kNeg,
  kMin,
  kMax,
  kShiftLeft,
  kShiftRight,
  kFunnelShiftLeft,
  kInsertBits,
  kPopulationCount,
  kLeadingZeros,
  kCompare,
  kSelect,
  kConvert,
  kMove,
  kPack,    // two 32-bit registers to one
  kUnpack,  // and back
  kBranch,
  kReturn,
  kLoad,
  kStore,
  kAtomic,
  kBarrier,
  kShuffle,
  kVote,
  kNothing,
};
enum class Type : uint8_t { kU8, kS8, kU16, kS16, kU32, kS32, kU64, kS64, kPredicate };
enum class Space : uint8_t { kGlobal, kShared, kParameter };
enum class Comparison : uint8_t { kEq, kNe, kLt, kLe, kGt, kGe };
enum class Atomic : uint8_t { kAdd, kOr, kAnd, kExchange, kMin, kMax };
enum class Special : uint8_t {
  kThread,
  kBlockX,
  kBlockY,
  kBlockZ,
  kThreads,
  kGridX,
  kGridY,
  kGridZ,
  kLane
};

constexpr unsigned size_of(Type type) {
  return type == Type::kPredicate ? 1 : 1U << (static_cast<unsigned>(type) / 2);
}

struct Operand {
  enum Kind : uint8_t { kNone, kRegister, kImmediate, kSpecial } kind = kNone;
  int number = -1;  ///< a register, or a `Special`
  int64_t immediate = 0;
};

struct Instruction {
  Op op = Op::kNothing;
  Type type = Type::kU32;
  Type from = Type::kU32;  ///< kConvert
  Space space = Space::kGlobal;
  Comparison comparison = Comparison::kEq;
  Atomic atomic = Atomic::kAdd;
  bool is_atomic = false;  ///< kAtomic, and loads and stores that may meet those of others
  bool is_up = false;      ///< kShuffle: from a lane below, not from lane `b`
  int predicate = -1;      ///< a register, or -1: always
  bool negated = false;
  std::vector<int> targets;      ///< registers that are written
  std::vector<Operand> sources;  ///< kLoad, kStore, kAtomic: address, offset, values
  int jump = -1;                 ///< kBranch: index of an instruction
  int line = 0;
  int file = 0;
  std::string text;
  mutable bool is_reached = false;  ///< a warp has run it
};

struct Kernel {
  struct Parameter {
    size_t offset;
    size_t size;
  };
  std::string name;
  std::vector<Instruction> code;
  int num_registers = 0;
  std::vector<Parameter> parameters;
  size_t parameter_bytes = 0;
  size_t shared_bytes = 0;
};

struct Program {
  std::map<std::string, Kernel, std::less<>> kernels;
  std::map<int, std::string> files;
  std::string target;  ///< "sm_90"
};

/// Throws std::runtime_error, with the line, for what it does not know.
Program parse(std::string_view text);

}  // namespace ptx
