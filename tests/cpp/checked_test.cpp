#include "kvplan/checked.h"

#include <gtest/gtest.h>

namespace kvplan::checked {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

TEST(Checked, ThrowsInsteadOfWrapping) {
  EXPECT_EQ(add(kMax - 1, 1, "sum"), kMax);
  EXPECT_THROW(add(kMax, 1, "sum"), Overflow);
  EXPECT_THROW(mul(kMax / 2, 3, "product"), Overflow);
  EXPECT_THROW(round_up(kMax, 2, "page"), Overflow);
}

TEST(Checked, MessageNamesTheQuantity) {
  try {
    mul(kMax, 2, "bytes per block");
    FAIL();
  } catch (const Overflow& e) {
    EXPECT_STREQ(e.what(), "bytes per block leaves the 64-bit range: 9223372036854775807 * 2");
  }
}

TEST(Checked, Divisions) {
  EXPECT_EQ(cdiv(0, 3), 0);
  EXPECT_EQ(cdiv(1, 3), 1);
  EXPECT_EQ(cdiv(kMax, 1), kMax);
  EXPECT_EQ(round_up(577, 576, "page"), 1152);
  EXPECT_EQ(lcm(4, 6, "stride"), 12);
}

}  // namespace
}  // namespace kvplan::checked
