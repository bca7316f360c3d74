#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

/// Teams of one CPU thread for the steps of steps.h.
namespace kvplan::cuda {

/// Runs the items of a step in order.
class CpuTeam {
 public:
  template <class F>
  void for_each(int64_t n, F f) {
    for (int64_t i = 0; i < n; ++i) f(i);
  }

  template <class Value, class Store>
  auto scan(int64_t n, Value value, Store store) {
    using Sum = decltype(value(n));
    Sum sum{};
    for (int64_t i = 0; i < n; ++i) {
      const Sum v = value(i);
      store(i, sum, v);
      sum = sum + v;
    }
    return sum;
  }

  template <class F>
  void once(F f) {
    f();
  }

  template <class F>
  void for_each_tile(int64_t n, F f) {
    for (int64_t t = 0; t < n; ++t) f(t);
  }

  int32_t fetch_add(int32_t* target, int32_t value) {
    const int32_t before = *target;
    *target += value;
    return before;
  }
  int32_t fetch_and(int32_t* target, int32_t bits) {
    const int32_t before = *target;
    *target &= bits;
    return before;
  }
  int32_t exchange(int32_t* target, int32_t value) { return std::exchange(*target, value); }
  void fetch_max(int32_t* target, int32_t value) { *target = std::max(*target, value); }
  void fetch_or(int32_t* target, int32_t bits) { *target |= bits; }
};

/// Runs the items of a step in random order, all values of a scan before its first store: results
/// that depend on which thread comes first come out different.
class ShuffledTeam : public CpuTeam {
 public:
  explicit ShuffledTeam(uint64_t seed) : random_(seed) {}

  template <class F>
  void for_each(int64_t n, F f) {
    for (int64_t i : order(n)) f(i);
  }

  template <class Value, class Store>
  auto scan(int64_t n, Value value, Store store) {
    using Sum = decltype(value(n));
    std::vector<Sum> values(static_cast<size_t>(n));
    for (int64_t i : order(n)) values[static_cast<size_t>(i)] = value(i);
    std::vector<Sum> before(values.size());
    std::exclusive_scan(values.begin(), values.end(), before.begin(), Sum{});
    for (int64_t i : order(n)) {
      store(i, before[static_cast<size_t>(i)], values[static_cast<size_t>(i)]);
    }
    return std::accumulate(values.begin(), values.end(), Sum{});
  }

 private:
  std::vector<int64_t> order(int64_t n) {
    std::vector<int64_t> items(static_cast<size_t>(n));
    std::iota(items.begin(), items.end(), int64_t{0});
    std::shuffle(items.begin(), items.end(), random_);
    return items;
  }

  std::mt19937_64 random_;
};

}  // namespace kvplan::cuda
