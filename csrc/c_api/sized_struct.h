#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <type_traits>

#include "c_api/guard.h"

/// Structs that begin with `struct_size`, of callers that know fewer or more members.
namespace kvplan::c_api {

inline void check_struct_size(size_t size, const char* what) {
  constexpr size_t kMost = 1 << 16;
  if (size > sizeof(size_t) && size <= kMost) return;
  throw InvalidArgument(std::string(what) + ": struct_size is the sizeof of the struct, not " +
                        std::to_string(size));
}

/// The struct with what the caller does not know as in `defaults`. Throws `InvalidArgument` where
/// the caller sets something that this library does not know.
template <class T>
T read_struct(const T* in, const char* what, const T& defaults = {}) {
  static_assert(std::is_trivially_copyable_v<T>);
  const size_t size = deref(in, what).struct_size;
  check_struct_size(size, what);
  const auto* bytes = reinterpret_cast<const unsigned char*>(in);
  for (size_t i = sizeof(T); i < size; ++i) {
    if (bytes[i] == 0) continue;
    throw InvalidArgument(std::string(what) + ": this version of kvplan does not know byte " +
                          std::to_string(i) + " of the struct, which is set");
  }
  T result = defaults;
  std::memcpy(&result, in, std::min(size, sizeof(T)));
  result.struct_size = sizeof(T);
  return result;
}

/// Sets what the caller knows; what this library does not know becomes zero.
template <class T>
void write_struct(T* out, T values, const char* what = "out") {
  static_assert(std::is_trivially_copyable_v<T>);
  const size_t size = deref(out, what).struct_size;
  check_struct_size(size, what);
  values.struct_size = size;
  std::memcpy(static_cast<void*>(out), &values, std::min(size, sizeof(T)));
  if (size > sizeof(T)) std::memset(reinterpret_cast<char*>(out) + sizeof(T), 0, size - sizeof(T));
}

}  // namespace kvplan::c_api
