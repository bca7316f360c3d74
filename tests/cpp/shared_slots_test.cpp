#include <gtest/gtest.h>

#include "kvplan/kvplan.h"
#include "model_builder.h"

namespace kvplan::testing {
namespace {

TEST(SharedSlots, BlockIsTheSumOverPageSizes) {
  // Groups [A A B] and [A B B B]: two slots of A and three of B, not three tuples of both.
  ModelBuilder model;
  model.add(1, full(1, 64)).add(1, full(2, 64));
  Steps steps(model);
  const SpecId a = steps.layers()[0].spec;
  const SpecId b = steps.layers()[1].spec;
  int32_t next = 0;
  const auto group = [&](std::initializer_list<SpecId> specs) {
    LayerSpecs layers;
    for (SpecId s : specs) layers.push_back({LayerId(next++), s});
    return create_uniform_type_group(layers);
  };
  const KVCacheGroups groups = {group({a, a, b}), group({a, b, b, b})};
  const auto buckets = bucket_layers_by_page_size(steps.ctx(), groups);
  ASSERT_EQ(buckets.size(), 2u);
  EXPECT_EQ(buckets[0].page_size_bytes, 4096);
  EXPECT_EQ(buckets[0].slots.size(), 2u);
  EXPECT_EQ(buckets[0].slots[0], (std::vector<LayerId>{LayerId(0), LayerId(3)}));
  EXPECT_EQ(buckets[1].slots.size(), 3u);
  EXPECT_EQ(shared_slot_bytes_per_block(buckets), 2 * 4096 + 3 * 8192);
}

}  // namespace
}  // namespace kvplan::testing
