#include <cstddef>
#include <cstdint>

#include "cache_manager_driver.h"
#include "input_bytes.h"

/// The input decides the groups and then what a scheduler does. What a request reads must be what
/// was written for it; anything else is an exception that nothing catches.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvplan::testing::InputBytes bytes(data, size);
  kvplan::testing::CacheManagerDriver driver(bytes);
  while (!bytes.empty()) driver.step();
  driver.drain();
  return 0;
}
