#include <cstddef>
#include <cstdint>
#include <vector>

#include "input_bytes.h"
#include "sliced_block_pool_model.h"

/// The input is a shape and a sequence of operations; the pool must do what the model does. A
/// difference is an exception that nothing catches.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvplan::testing::InputBytes bytes(data, size);
  const int num_large = 1 + bytes.below(12);
  std::vector<int> slices;
  for (int n = bytes.below(4); n >= 0; --n) slices.push_back(1 + bytes.below(6));
  const bool enable_caching = bytes.below(4) != 0;
  kvplan::testing::SlicedPoolDriver driver(num_large, slices, enable_caching, bytes.below(9) / 8.0);
  while (!bytes.empty()) driver.step(bytes, true);
  return 0;
}
