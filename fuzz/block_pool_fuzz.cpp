#include <cstddef>
#include <cstdint>

#include "block_pool_model.h"

namespace {

class InputBytes : public kvplan::testing::ByteSource {
 public:
  InputBytes(const uint8_t* data, size_t size) : data_(data), end_(data + size) {}
  uint8_t next() override { return data_ == end_ ? uint8_t{0} : *data_++; }
  bool empty() const { return data_ == end_; }

 private:
  const uint8_t* data_;
  const uint8_t* end_;
};

}  // namespace

/// The input is a sequence of operations; the pool must do what the model does. A difference is
/// an exception that nothing catches.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  InputBytes bytes(data, size);
  const int num_blocks = 1 + bytes.below(24);
  kvplan::testing::BlockPoolDriver driver(num_blocks, bytes.below(4) != 0);
  while (!bytes.empty()) driver.step(bytes);
  return 0;
}
