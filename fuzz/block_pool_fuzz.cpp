#include <cstddef>
#include <cstdint>

#include "block_pool_model.h"
#include "input_bytes.h"

/// The input is a sequence of operations; the pool must do what the model does. A difference is
/// an exception that nothing catches.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvplan::testing::InputBytes bytes(data, size);
  const int num_blocks = 1 + bytes.below(24);
  kvplan::testing::BlockPoolDriver driver(num_blocks, bytes.below(4) != 0);
  while (!bytes.empty()) driver.step(bytes);
  return 0;
}
