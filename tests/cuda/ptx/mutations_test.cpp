// Whether the checks bite: the cases for a GPU fail, by a fault or by a difference from the CPU,
// once a barrier is left out of a kernel, an atomic operation is none, or a store goes to the next
// place.
//
// ptx_mutations_test [every n-th: 1]. What counts is a line of source: it may have become
// several instructions, in several kernels, and one of them must be found. Each try is a process of
// its own. What no case reaches is counted; what is reached and not found is listed and makes the
// test fail.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "block_ops_cases.h"
#include "runtime.h"

namespace {

constexpr int kReplays = 1;
constexpr int kSteps = 6;

using Kernel = ptx::Kernel;

/// Whether a kernel can touch memory after an instruction.
bool goes_on(const Kernel& kernel, size_t from) {
  std::vector<bool> seen(kernel.code.size());
  std::vector<size_t> next{from + 1};
  while (!next.empty()) {
    const size_t at = next.back();
    next.pop_back();
    if (at >= kernel.code.size() || seen[at]) continue;
    seen[at] = true;
    const ptx::Instruction& i = kernel.code[at];
    if (i.op == ptx::Op::kLoad || i.op == ptx::Op::kStore || i.op == ptx::Op::kAtomic) {
      if (i.space != ptx::Space::kParameter) return true;
    }
    if (i.jump >= 0) next.push_back(static_cast<size_t>(i.jump));
    if (i.predicate >= 0 || (i.op != ptx::Op::kBranch && i.op != ptx::Op::kReturn)) {
      next.push_back(at + 1);
    }
  }
  return false;
}

bool can_change(const Kernel& kernel, size_t at) {
  const ptx::Instruction& i = kernel.code[at];
  return (i.op == ptx::Op::kBarrier && goes_on(kernel, at)) || i.op == ptx::Op::kAtomic ||
         (i.op == ptx::Op::kStore && i.space == ptx::Space::kGlobal);
}

void change(ptx::Instruction& i, bool drop) {
  if (drop) {
    i.op = ptx::Op::kNothing;
  } else if (i.op == ptx::Op::kAtomic) {
    i.is_atomic = false;
  } else {
    i.sources[1].immediate += static_cast<int64_t>((i.sources.size() - 2) * size_of(i.type));
  }
}

using Cases = std::vector<std::function<void()>>;

/// Runs cases in another process, changed by `before`; true if they pass.
template <class Before>
bool passes(const Cases& cases, Before before) {
  const pid_t child = fork();
  if (child == 0) {
    if (std::freopen("/dev/null", "w", stderr) == nullptr) std::_Exit(2);
    before();
    for (const auto& run : cases) run();
    std::_Exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/// An instruction and the cases that reach it: no other can notice a change.
struct Place {
  ptx::Instruction* instruction;
  Cases reaching;
};

/// Whether one of the instructions of a line is missed.
bool is_noticed(const std::vector<Place>& places) {
  return std::any_of(places.begin(), places.end(), [](const Place& place) {
    ptx::Instruction& i = *place.instruction;
    const bool is_barrier = i.op == ptx::Op::kBarrier;
    return !passes(place.reaching, [&] { change(i, is_barrier); }) ||
           (i.op == ptx::Op::kStore && !passes(place.reaching, [&] { change(i, true); }));
  });
}

}  // namespace

int main(int argc, char** argv) {
  const size_t every = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1;
  std::map<std::tuple<ptx::Op, int, int>, std::vector<Place>> lines;
  for (auto& [name, kernel] : ptx::program().kernels) {
    for (size_t at = 0; at < kernel.code.size(); ++at) {
      ptx::Instruction& i = kernel.code[at];
      if (!can_change(kernel, at)) continue;
      lines[{i.op, i.file, i.line}].push_back({&i, {}});
    }
  }
  for (const auto& run : block_ops_cases(kReplays, kSteps)) {
    run();
    for (auto& [line, places] : lines) {
      for (Place& place : places) {
        if (place.instruction->is_reached) place.reaching.push_back(run);
        place.instruction->is_reached = false;
      }
    }
  }
  std::vector<std::vector<Place>> reached;
  for (auto& [line, places] : lines) {
    std::erase_if(places, [](const Place& place) { return place.reaching.empty(); });
    if (!places.empty()) reached.push_back(places);
  }
  // Every process goes through its share of the lines.
  const size_t num_processes = std::max(1U, std::thread::hardware_concurrency());
  std::vector<pid_t> processes;
  for (size_t p = 0; p < num_processes; ++p) {
    processes.push_back(fork());
    if (processes.back() != 0) continue;
    int missed = 0;
    for (size_t line = p * every; line < reached.size(); line += num_processes * every) {
      if (is_noticed(reached[line])) continue;
      ++missed;
      const ptx::Instruction& i = *reached[line][0].instruction;
      std::printf("not found: %s:%d %s\n", ptx::program().files[i.file].c_str(), i.line,
                  i.text.c_str());
      std::fflush(stdout);
    }
    std::_Exit(missed == 0 ? 0 : 1);
  }
  bool all_found = true;
  for (const pid_t process : processes) {
    int status = 0;
    waitpid(process, &status, 0);
    all_found = all_found && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  std::printf("%zu lines tried of %zu; %zu not reached\n", (reached.size() + every - 1) / every,
              reached.size(), lines.size() - reached.size());
  return all_found ? 0 : 1;
}
