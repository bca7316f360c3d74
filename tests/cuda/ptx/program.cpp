#include "program.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <stdexcept>

namespace ptx {
namespace {

template <class Value>
using Names = std::map<std::string, Value, std::less<>>;

template <class Value>
Value named(const Names<Value>& names, const std::string& name, const std::string& line) {
  const auto found = names.find(name);
  if (found == names.end()) throw std::runtime_error("PTX: unknown '" + name + "' in: " + line);
  return found->second;
}

const Names<Type> kTypes{{"u8", Type::kU8},    {"s8", Type::kS8},         {"b8", Type::kU8},
                         {"u16", Type::kU16},  {"s16", Type::kS16},       {"b16", Type::kU16},
                         {"u32", Type::kU32},  {"s32", Type::kS32},       {"b32", Type::kU32},
                         {"u64", Type::kU64},  {"s64", Type::kS64},       {"b64", Type::kU64},
                         {"b128", Type::kU64}, {"pred", Type::kPredicate}};
const Names<Comparison> kComparisons{{"eq", Comparison::kEq}, {"ne", Comparison::kNe},
                                     {"lt", Comparison::kLt}, {"lo", Comparison::kLt},
                                     {"le", Comparison::kLe}, {"ls", Comparison::kLe},
                                     {"gt", Comparison::kGt}, {"hi", Comparison::kGt},
                                     {"ge", Comparison::kGe}, {"hs", Comparison::kGe}};
const Names<Atomic> kAtomics{{"add", Atomic::kAdd}, {"or", Atomic::kOr},
                             {"and", Atomic::kAnd}, {"exch", Atomic::kExchange},
                             {"min", Atomic::kMin}, {"max", Atomic::kMax}};
const Names<Space> kSpaces{
    {"global", Space::kGlobal}, {"shared", Space::kShared}, {"param", Space::kParameter}};
const Names<Special> kSpecials{
    {"%tid.x", Special::kThread},   {"%ctaid.x", Special::kBlockX}, {"%ctaid.y", Special::kBlockY},
    {"%ctaid.z", Special::kBlockZ}, {"%ntid.x", Special::kThreads}, {"%nctaid.x", Special::kGridX},
    {"%nctaid.y", Special::kGridY}, {"%nctaid.z", Special::kGridZ}, {"%laneid", Special::kLane}};
// Instructions of the form `op.type target, sources`.
const Names<Op> kArithmetic{{"add", Op::kAdd},          {"sub", Op::kSub},
                            {"div", Op::kDiv},          {"rem", Op::kRem},
                            {"and", Op::kAnd},          {"or", Op::kOr},
                            {"xor", Op::kXor},          {"not", Op::kNot},
                            {"neg", Op::kNeg},          {"min", Op::kMin},
                            {"max", Op::kMax},          {"shl", Op::kShiftLeft},
                            {"shr", Op::kShiftRight},   {"selp", Op::kSelect},
                            {"cvta", Op::kMove},        {"popc", Op::kPopulationCount},
                            {"clz", Op::kLeadingZeros}, {"shf", Op::kFunnelShiftLeft},
                            {"bfi", Op::kInsertBits}};

std::string trimmed(std::string_view s) {
  while (!s.empty() && std::isspace(static_cast<unsigned char>(s.back())) != 0) s.remove_suffix(1);
  while (!s.empty() && std::isspace(static_cast<unsigned char>(s.front())) != 0) s.remove_prefix(1);
  return std::string(s);
}

/// The parts between separators that are not in brackets.
std::vector<std::string> split(std::string_view s, char separator) {
  std::vector<std::string> parts;
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i <= s.size(); ++i) {
    if (i < s.size() && (s[i] == '{' || s[i] == '[')) ++depth;
    if (i < s.size() && (s[i] == '}' || s[i] == ']')) --depth;
    if (i < s.size() && (s[i] != separator || depth > 0)) continue;
    if (std::string part = trimmed(s.substr(begin, i - begin)); !part.empty()) {
      parts.push_back(std::move(part));
    }
    begin = i + 1;
  }
  return parts;
}

int64_t number(const std::string& s) {
  return s[0] == '-' ? std::stoll(s, nullptr, 0) : static_cast<int64_t>(std::stoull(s, nullptr, 0));
}

/// Reads the lines of one kernel's body.
class KernelReader {
 public:
  explicit KernelReader(Kernel& kernel) : kernel_(kernel) {}

  void parameter(const std::string& line) {  // .param .align 8 .b8 name[40]  or  .param .u64 name
    const std::vector<std::string> words = split(line, ' ');
    std::string name = words.back();
    if (name.back() == ',') name.pop_back();
    size_t align = 0;
    size_t size = 0;
    if (const size_t bracket = name.find('['); bracket != std::string::npos) {
      align = static_cast<size_t>(number(words[2]));
      size = static_cast<size_t>(std::stoull(name.substr(bracket + 1)));
      name.resize(bracket);
    } else {
      align = size = size_of(named(kTypes, words[1].substr(1), line));
    }
    const size_t offset = (kernel_.parameter_bytes + align - 1) / align * align;
    kernel_.parameters.push_back({offset, size});
    kernel_.parameter_bytes = offset + size;
    symbols_[name] = static_cast<int64_t>(offset);
  }

  void shared(const std::string& line) {  // .shared .align 8 .b8 name[512];
    const size_t bracket = line.find('[');
    const size_t space = line.rfind(' ', bracket);
    const auto align = static_cast<size_t>(number(split(line, ' ')[2]));
    kernel_.shared_bytes = (kernel_.shared_bytes + align - 1) / align * align;
    symbols_[line.substr(space + 1, bracket - space - 1)] =
        static_cast<int64_t>(kernel_.shared_bytes);
    kernel_.shared_bytes += static_cast<size_t>(std::stoull(line.substr(bracket + 1)));
  }

  void label(const std::string& name) { labels_[name] = static_cast<int>(kernel_.code.size()); }

  void instruction(std::string line, int source_file, int source_line) {
    if (line.starts_with("{ .reg")) {  // { .reg .b32 tmp; mov.b64 {tmp, %r1}, %rd1; }
      line = trimmed(line.substr(line.find(';') + 1));
      line = trimmed(line.substr(0, line.rfind('}')));
    }
    if (line.back() == ';') line.pop_back();
    line_ = line;
    Instruction i;
    i.text = line;
    i.file = source_file;
    i.line = source_line;
    if (line[0] == '@') {
      const size_t space = line.find_first_of(" \t");
      i.negated = line[1] == '!';
      i.predicate = register_of(line.substr(i.negated ? 2 : 1, space - (i.negated ? 2 : 1)));
      line = trimmed(line.substr(space));
    }
    const size_t space = line.find_first_of(" \t");
    const std::vector<std::string> names = split(line.substr(0, space), '.');
    const std::vector<std::string> arguments =
        space == std::string::npos ? std::vector<std::string>{} : split(line.substr(space), ',');
    decode(i, names, arguments);
    kernel_.code.push_back(std::move(i));
  }

  void end() {
    for (const auto& [index, label] : jumps_) {
      kernel_.code[index].jump = named(labels_, label, label);
    }
    kernel_.num_registers = static_cast<int>(registers_.size());
  }

 private:
  int register_of(const std::string& name) {
    return registers_.try_emplace(name, static_cast<int>(registers_.size())).first->second;
  }

  Operand operand(const std::string& s) {
    if (const auto special = kSpecials.find(s); special != kSpecials.end()) {
      return {Operand::kSpecial, static_cast<int>(special->second), 0};
    }
    if (s.find('.') != std::string::npos) refuse();  // another special register
    if (s[0] == '%' || s == "tmp") return {Operand::kRegister, register_of(s), 0};
    if (std::isdigit(static_cast<unsigned char>(s[0])) != 0 || s[0] == '-') {
      return {Operand::kImmediate, -1, number(s)};
    }
    return {Operand::kImmediate, -1, named(symbols_, s, line_)};
  }

  /// `[base+offset]` as two sources.
  void address(Instruction& i, const std::string& s) {
    const std::string inner = trimmed(s.substr(1, s.size() - 2));
    const size_t plus = inner.find('+', 1);
    i.sources.push_back(operand(trimmed(inner.substr(0, plus))));
    const int64_t offset = plus == std::string::npos ? 0 : number(trimmed(inner.substr(plus + 1)));
    i.sources.push_back({Operand::kImmediate, -1, offset});
  }

  /// `a` or `{a, b}`.
  static std::vector<std::string> vector(const std::string& s) {
    return s[0] == '{' ? split(s.substr(1, s.size() - 2), ',') : std::vector{s};
  }

  void decode(Instruction& i, const std::vector<std::string>& names,
              const std::vector<std::string>& arguments) {
    const std::string& name = names[0];
    const auto has = [&](const char* modifier) {
      return std::find(names.begin() + 1, names.end(), modifier) != names.end();
    };
    const auto target = [&](const std::string& s) { i.targets.push_back(register_of(s)); };
    const auto sources_from = [&](size_t first) {
      for (size_t k = first; k < arguments.size(); ++k) i.sources.push_back(operand(arguments[k]));
    };
    const auto type = [&] { return named(kTypes, names.back(), line_); };
    if (const auto found = kArithmetic.find(name); found != kArithmetic.end()) {
      i.op = found->second;
      i.type = type();
      if (i.op == Op::kFunnelShiftLeft && !(has("l") && has("wrap"))) refuse();
      target(arguments[0]);
      sources_from(1);
    } else if (name == "mul" || name == "mad") {
      if (has("hi")) refuse();
      i.op = name == "mul" ? (has("wide") ? Op::kMulWide : Op::kMul)
                           : (has("wide") ? Op::kMadWide : Op::kMad);
      i.type = type();
      target(arguments[0]);
      sources_from(1);
    } else if (name == "setp") {
      i.op = Op::kCompare;
      i.comparison = named(kComparisons, names[1], line_);
      i.type = type();
      target(arguments[0]);
      sources_from(1);
    } else if (name == "cvt") {
      i.op = Op::kConvert;
      i.type = named(kTypes, names[names.size() - 2], line_);
      i.from = type();
      target(arguments[0]);
      sources_from(1);
    } else if (name == "mov") {
      i.type = type();
      i.op = arguments[0][0] == '{' ? Op::kUnpack : arguments[1][0] == '{' ? Op::kPack : Op::kMove;
      for (const std::string& s : vector(arguments[0])) target(s);
      for (const std::string& s : vector(arguments[1])) i.sources.push_back(operand(s));
    } else if (name == "bra") {
      i.op = Op::kBranch;
      jumps_.emplace_back(kernel_.code.size(), arguments[0]);
    } else if (name == "ret") {
      i.op = Op::kReturn;
    } else if (name == "bar" && has("sync")) {
      i.op = Op::kBarrier;
    } else if (name == "shfl" && (has("up") || has("idx"))) {
      i.op = Op::kShuffle;
      i.is_up = has("up");
      for (const std::string& s : split(arguments[0], '|')) target(s);
      sources_from(1);
    } else if (name == "vote" && has("ballot")) {
      i.op = Op::kVote;
      target(arguments[0]);
      sources_from(1);
    } else if (name == "ld" || name == "st") {
      i.op = name == "ld" ? Op::kLoad : Op::kStore;
      i.is_atomic = has("relaxed") || has("volatile");
      for (const auto& [space, value] : kSpaces) {
        if (has(space.c_str())) i.space = value;
      }
      i.type = type();
      address(i, arguments[name == "ld" ? 1 : 0]);
      for (const std::string& s : vector(arguments[name == "ld" ? 0 : 1])) {
        if (name == "ld") {
          target(s);
        } else {
          i.sources.push_back(operand(s));
        }
      }
    } else if (name == "atom" || name == "red") {
      i.op = Op::kAtomic;
      i.is_atomic = true;
      for (const auto& [operation, value] : kAtomics) {
        if (has(operation.c_str())) i.atomic = value;
      }
      i.type = type();
      const bool returns = name == "atom";
      if (returns) target(arguments[0]);
      address(i, arguments[returns ? 1 : 0]);
      sources_from(returns ? 2 : 1);
    } else {
      refuse();
    }
  }

  [[noreturn]] void refuse() const { throw std::runtime_error("PTX: unknown: " + line_); }

  Kernel& kernel_;
  std::string line_;
  Names<int> registers_;
  Names<int64_t> symbols_;
  Names<int> labels_;
  std::vector<std::pair<size_t, std::string>> jumps_;
};

}  // namespace

Program parse(std::string_view text) {
  Program program;
  Kernel* kernel = nullptr;
  std::unique_ptr<KernelReader> reader;
  bool in_parameters = false;
  int file = 0;
  int source_line = 0;
  for (const std::string& raw : [&] {
         std::vector<std::string> lines;
         for (size_t begin = 0; begin < text.size();) {
           const size_t end = std::min(text.find('\n', begin), text.size());
           lines.push_back(trimmed(text.substr(begin, end - begin)));
           begin = end + 1;
         }
         return lines;
       }()) {
    const std::string line = trimmed(std::string_view(raw).substr(0, raw.find("//")));
    if (line.empty()) continue;
    if (const size_t entry = line.find(".entry "); entry != std::string::npos) {
      const std::string name = trimmed(line.substr(entry + 7, line.find('(') - entry - 7));
      kernel = &program.kernels[name];
      kernel->name = name;
      reader = std::make_unique<KernelReader>(*kernel);
      in_parameters = line.back() != ')';
    } else if (line.starts_with(".target")) {
      program.target = split(line.substr(7), ',')[0];
    } else if (line.starts_with(".file")) {  // .file 1 "path"
      const std::string path = split(line, '"')[1];
      program.files[std::stoi(line.substr(6))] = path.substr(path.rfind('/') + 1);
    } else if (line.starts_with(".loc")) {
      std::sscanf(line.c_str(), ".loc %d %d", &file, &source_line);
    } else if (kernel == nullptr) {
      continue;
    } else if (in_parameters) {
      if (line == ")") in_parameters = false;
      if (line.starts_with(".param")) reader->parameter(line);
    } else if (line.starts_with(".shared")) {
      reader->shared(line);
    } else if (line == "}") {
      reader->end();
      kernel = nullptr;
    } else if (line.back() == ':') {
      reader->label(line.substr(0, line.size() - 1));
    } else if (line[0] != '.' && line != "{") {
      reader->instruction(line, file, source_line);
    }
  }
  return program;
}

}  // namespace ptx
