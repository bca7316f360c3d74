// cuda_block_ops_test [replays of a captured step, 10,000] [steps of random batches, 200]
// Exit code 77: no GPU. docs/device.md says how to run it under compute-sanitizer.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

#include "block_ops_cases.h"

int main(int argc, char** argv) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("skipped: no GPU");
    return 77;
  }
  run_block_ops_cases(argc > 1 ? std::atoi(argv[1]) : 10000, argc > 2 ? std::atoi(argv[2]) : 200);
  std::puts("all right");
}
