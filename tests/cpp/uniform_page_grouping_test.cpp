#include <gtest/gtest.h>

#include "kvplan/kvplan.h"
#include "model_builder.h"

namespace kvplan::testing {
namespace {

TEST(UniformPageGrouping, RarestTypeSetsTheWidth) {
  Steps steps(ModelBuilder().add(25, sliding(8, 128, 1024)).add(5, full(8, 128)));
  EXPECT_EQ(widths(steps.groups(config(128))), (std::vector<size_t>{5, 5, 5, 5, 5, 5}));
}

TEST(UniformPageGrouping, NearlyEqualCountsPadOneGroup) {
  // Case 6: gpt-oss with an EAGLE3 drafter, 19 full and 18 sliding.
  Steps steps(ModelBuilder().add(19, full(8, 64)).add(18, sliding(8, 64, 128)));
  EXPECT_EQ(widths(steps.groups(config(128))), (std::vector<size_t>{19, 18}));
  ASSERT_EQ(steps.notices().size(), 1u);
  EXPECT_EQ(steps.notices()[0].message,
            "Add 1 padding layers, may waste at most 5.56% KV cache memory");
}

TEST(UniformPageGrouping, HalfAsManyMoreSplits) {
  Steps steps(ModelBuilder().add(3, full(8, 64)).add(2, sliding(8, 64, 128)));
  EXPECT_EQ(widths(steps.groups(config(128))), (std::vector<size_t>{2, 1, 2}))
      << "2 * 3 < 3 * 2 does not hold";
}

TEST(UniformPageGrouping, LayersAreDealtOutInTurn) {
  Steps steps(ModelBuilder().add(4, sliding(8, 64, 128)).add(2, full(8, 64)));
  const KVCacheGroups groups = steps.groups(config(128));
  ASSERT_EQ(widths(groups), (std::vector<size_t>{2, 2, 2}));
  EXPECT_EQ(groups[0].layers, (std::vector<LayerId>{LayerId(0), LayerId(2)}));
  EXPECT_EQ(groups[1].layers, (std::vector<LayerId>{LayerId(1), LayerId(3)}));
}

// ------------------------------------------------------------------------

}  // namespace
}  // namespace kvplan::testing
