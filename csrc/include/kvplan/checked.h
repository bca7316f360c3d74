#pragma once

#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <string_view>

#include "kvplan/errors.h"

/// 64-bit arithmetic that throws `Overflow` instead of wrapping. `what` names the quantity.
namespace kvplan::checked {

[[noreturn]] KVPLAN_API void throw_overflow(std::string_view what, int64_t a, char op, int64_t b);

inline int64_t add(int64_t a, int64_t b, std::string_view what) {
  int64_t result;
  if (__builtin_add_overflow(a, b, &result)) throw_overflow(what, a, '+', b);
  return result;
}

inline int64_t mul(int64_t a, int64_t b, std::string_view what) {
  int64_t result;
  if (__builtin_mul_overflow(a, b, &result)) throw_overflow(what, a, '*', b);
  return result;
}

/// The smallest integer >= a / b, for a >= 0 and b > 0.
constexpr int64_t cdiv(int64_t a, int64_t b) { return a / b + (a % b != 0); }

/// The smallest multiple of `b` that is >= `a`, for a >= 0 and b > 0.
inline int64_t round_up(int64_t a, int64_t b, std::string_view what) {
  return mul(cdiv(a, b), b, what);
}

inline int64_t lcm(int64_t a, int64_t b, std::string_view what) {
  return mul(a / std::gcd(a, b), b, what);
}

}  // namespace kvplan::checked
