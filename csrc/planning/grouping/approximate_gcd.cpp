#include "kvplan/planning/approximate_gcd.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kvplan/checked.h"

namespace kvplan {
namespace {

struct WeightedValue {
  uint64_t value;
  uint64_t count;
};

std::vector<WeightedValue> count_distinct(std::span<const int64_t> values) {
  std::vector<int64_t> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  std::vector<WeightedValue> distinct;
  for (int64_t v : sorted) {
    const auto value = static_cast<uint64_t>(v);
    if (distinct.empty() || distinct.back().value != value) distinct.push_back({value, 0});
    ++distinct.back().count;
  }
  return distinct;
}

// Remainders by 32-bit division where the values allow it: twice as fast.
template <class Word>
uint64_t padding(const std::vector<WeightedValue>& values, uint64_t d) {
  uint64_t total = 0;
  for (const WeightedValue& v : values) {
    const auto remainder = static_cast<Word>(v.value) % static_cast<Word>(d);
    total += remainder == 0 ? 0 : (d - remainder) * v.count;
  }
  return total;
}

/// Keeps the chunk size with the least padding, the larger one on a tie.
template <class Word>
class Best {
 public:
  Best(const std::vector<WeightedValue>& values, uint64_t first)
      : values_(values), d_(first), padding_(padding<Word>(values, first)) {}

  void consider(uint64_t d) {
    const uint64_t p = padding<Word>(values_, d);
    if (p < padding_ || (p == padding_ && d > d_)) {
      padding_ = p;
      d_ = d;
    }
  }
  uint64_t value() const { return d_; }

 private:
  const std::vector<WeightedValue>& values_;
  uint64_t d_;
  uint64_t padding_;
};

// Where every ceil(x / d) stays the same, the padding grows with d, so the minimum lies at the
// lower bound or where some ceil(x / d) just fell: at d = ceil(x / k). For k up to sqrt(x) those
// are listed by k; the rest are at most sqrt(x) small numbers, all of which are tried.
template <class Word>
uint64_t search(const std::vector<WeightedValue>& values, uint64_t lower_bound) {
  const uint64_t max = values.back().value;
  Best<Word> best(values, lower_bound);
  const auto root = static_cast<uint64_t>(std::sqrt(static_cast<double>(max))) + 1;
  for (uint64_t d = lower_bound; d <= std::min(root, max); ++d) best.consider(d);
  for (const WeightedValue& v : values) {
    for (uint64_t k = 1; k <= root; ++k) {
      const uint64_t d = (v.value + k - 1) / k;
      if (d < lower_bound || d <= root) break;
      best.consider(d);
    }
  }
  return best.value();
}

}  // namespace

int64_t approximate_gcd(std::span<const int64_t> values, int64_t lower_bound) {
  if (values.empty()) throw InvalidArgument("values must be non-empty");
  for (int64_t v : values) {
    if (v <= 0) throw InvalidArgument("values must be positive, got: " + std::to_string(v));
  }
  const int64_t max = *std::max_element(values.begin(), values.end());
  lower_bound = std::max<int64_t>(1, lower_bound);
  if (lower_bound > max) return lower_bound;
  checked::mul(max, static_cast<int64_t>(values.size()), "padding of the chunk size search");

  const std::vector<WeightedValue> distinct = count_distinct(values);
  const auto first = static_cast<uint64_t>(lower_bound);
  return static_cast<int64_t>(max <= std::numeric_limits<uint32_t>::max()
                                  ? search<uint32_t>(distinct, first)
                                  : search<uint64_t>(distinct, first));
}

}  // namespace kvplan
