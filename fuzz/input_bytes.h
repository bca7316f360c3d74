#pragma once

#include <cstddef>
#include <cstdint>

#include "byte_source.h"

namespace kvplan::testing {

/// A fuzzer's input as the source of a driver's decisions; zeros after its end.
class InputBytes : public ByteSource {
 public:
  InputBytes(const uint8_t* data, size_t size) : data_(data), end_(data + size) {}
  uint8_t next() override { return data_ == end_ ? uint8_t{0} : *data_++; }
  bool empty() const { return data_ == end_; }

 private:
  const uint8_t* data_;
  const uint8_t* end_;
};

}  // namespace kvplan::testing
