#include <gtest/gtest.h>

#include "kvplan/kvplan.h"
#include "model_builder.h"

namespace kvplan::testing {
namespace {

TEST(HiddenState, LayersHaveGroupsOfTheirOwn) {
  // A hidden state of 4,096 bytes a token, in pages of 65,536.
  Steps steps(ModelBuilder()
                  .add(2, full(8, 128))
                  .add(2, sliding(8, 128, 64))
                  .add(2, hidden_state(2048), "hidden"));
  const KVCacheGroups groups = steps.groups(config(128));
  ASSERT_EQ(widths(groups), (std::vector<size_t>{2, 2, 1, 1}));
  EXPECT_EQ(steps.spec(groups[2]).block_size, 16);
  EXPECT_EQ(page_size_bytes(steps.spec(groups[2])), 65536);
}

TEST(HiddenState, BlockShrinksUntilTheCommonPageHoldsIt) {
  // 12,000 bytes a token: 5 fit into 65,536 bytes, 4 divide 16.
  Steps steps(ModelBuilder()
                  .add(2, full(8, 128))
                  .add(2, sliding(8, 128, 64))
                  .add(1, hidden_state(6000), "hidden"));
  const KVCacheGroups groups = steps.groups(config(128));
  EXPECT_EQ(steps.spec(groups.back()).block_size, 4);
  EXPECT_EQ(steps.notices().back().message,
            "Using block size 4 for hidden-state cache layer hidden.4; page alignment wastes 17536 "
            "bytes (26.76%) per block");
}

TEST(HiddenState, CommonPageGrowsUntilItHoldsAToken) {
  Steps steps(ModelBuilder()
                  .add(2, full(1, 16))
                  .add(2, sliding(1, 16, 64))
                  .add(1, hidden_state(2048), "hidden"));
  const KVCacheGroups groups = steps.groups(config(128));
  // Pages of 1,024 bytes grow fourfold to hold 4,096.
  EXPECT_EQ(steps.spec(groups[0]).block_size, 64);
  EXPECT_EQ(page_size_bytes(steps.spec(groups.back())), 4096);
  EXPECT_EQ(steps.spec(groups.back()).block_size, 1);
}

// --------------------------------------------------------------------------------------

TEST(HiddenState, AbsurdBlocksAreRefusedInsteadOfSearched) {
  const int64_t huge = (1LL << 50) + 37;
  Steps steps(ModelBuilder()
                  .add(2, full(1, 1, huge))
                  .add(2, sliding(1, 1, 64, huge))
                  .add(1, hidden_state(1), "hidden"));
  EXPECT_THROW(steps.groups(config(128)), InvalidArgument);
}

}  // namespace
}  // namespace kvplan::testing
