#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

#include "kvplan/kvplan.h"

namespace kvplan {
namespace {

/// Every chunk size in turn; the largest of those with the least padding.
int64_t exhaustive(const std::vector<int64_t>& values, int64_t lower_bound) {
  const int64_t max = *std::max_element(values.begin(), values.end());
  int64_t best = std::max<int64_t>(1, lower_bound);
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int64_t d = best; d <= max; ++d) {
    int64_t padding = 0;
    for (int64_t v : values) padding += (d - v % d) % d;
    if (padding <= least) {
      least = padding;
      best = d;
    }
  }
  return best;
}

TEST(ApproximateGcd, KnownValues) {
  const auto gcd = [](std::vector<int64_t> values, int64_t bound = 1) {
    return approximate_gcd(values, bound);
  };
  EXPECT_EQ(gcd({20, 30}), 10);
  EXPECT_EQ(gcd({20, 31}, 7), 11) << "22 + 33, against 20 + 40 with 10";
  EXPECT_EQ(gcd({12}), 12);
  EXPECT_EQ(gcd({1, 1, 1}), 1);
  EXPECT_EQ(gcd({3, 40, 4}, 3), 4) << "40 splits into tens of 4, 3 is padded by 1";
}

TEST(ApproximateGcd, LowerBoundAboveAllValuesIsTheAnswer) {
  EXPECT_EQ(approximate_gcd(std::vector<int64_t>{3, 5}, 6), 6);
  EXPECT_EQ(approximate_gcd(std::vector<int64_t>{3, 5}, 5), 5);
}

TEST(ApproximateGcd, LowerBoundsBelowOneCountAsOne) {
  EXPECT_EQ(approximate_gcd(std::vector<int64_t>{4, 6}, -3),
            approximate_gcd(std::vector<int64_t>{4, 6}));
}

TEST(ApproximateGcd, TiesGoToTheLargerSize) {
  // 4 and 8 both divide 8 and 16 without padding.
  EXPECT_EQ(approximate_gcd(std::vector<int64_t>{8, 16}), 8);
  EXPECT_EQ(approximate_gcd(std::vector<int64_t>{8, 16}, 2), 8);
}

TEST(ApproximateGcd, EqualsExhaustiveSearchOnAllSmallPairs) {
  for (int64_t a = 1; a <= 40; ++a) {
    for (int64_t b = 1; b <= a; ++b) {
      for (int64_t bound = 0; bound <= a + 1; ++bound) {
        ASSERT_EQ(approximate_gcd(std::vector<int64_t>{a, b}, bound), exhaustive({a, b}, bound))
            << a << ", " << b << " from " << bound;
      }
    }
  }
}

TEST(ApproximateGcd, EqualsExhaustiveSearchOnRandomValues) {
  std::mt19937_64 rng(7);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(rng);
  };
  for (int round = 0; round < 3000; ++round) {
    const int64_t limit = int64_t{1} << pick(1, 12);
    std::vector<int64_t> values;
    for (int64_t n = pick(1, 6); n > 0; --n) values.push_back(pick(1, limit));
    if (round % 3 == 0) values.push_back(values[0]);
    const int64_t bound = pick(0, limit + 2);
    ASSERT_EQ(approximate_gcd(values, bound), exhaustive(values, bound)) << "round " << round;
  }
}

TEST(ApproximateGcd, ValuesBeyond32Bits) {
  const int64_t unit = 3'000'000'019;  // a prime
  EXPECT_EQ(approximate_gcd(std::vector<int64_t>{2 * unit, 3 * unit}), unit);
}

TEST(ApproximateGcd, RejectsWhatHasNoAnswer) {
  EXPECT_THROW(approximate_gcd({}), InvalidArgument);
  EXPECT_THROW(approximate_gcd(std::vector<int64_t>{3, 0}), InvalidArgument);
  EXPECT_THROW(approximate_gcd(std::vector<int64_t>{-1}), InvalidArgument);
  const int64_t max = std::numeric_limits<int64_t>::max();
  EXPECT_THROW(approximate_gcd(std::vector<int64_t>{max, max}), Overflow);
}

}  // namespace
}  // namespace kvplan
