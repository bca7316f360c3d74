// ptx_block_ops_test [replays] [steps]: the cases for a GPU; fails where they leave a kernel out.
#include <cstdio>
#include <cstdlib>

#include "block_ops_cases.h"
#include "runtime.h"

int main(int argc, char** argv) {
  run_block_ops_cases(argc > 1 ? std::atoi(argv[1]) : 3, argc > 2 ? std::atoi(argv[2]) : 10);
  for (const auto& [name, kernel] : ptx::program().kernels)
    std::printf("kernel %s\n", name.c_str());
  const auto missing = ptx::not_launched();
  for (const std::string& name : missing) std::printf("never launched: %s\n", name.c_str());
  return missing.empty() ? 0 : 1;
}
