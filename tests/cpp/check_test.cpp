#include "kvplan/check.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <random>
#include <set>

#include "expect_valid.h"
#include "model_builder.h"

namespace kvplan::testing {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

std::vector<LayerId> ids(int first, int count) {
  std::vector<LayerId> result;
  for (int i = first; i < first + count; ++i) result.push_back(LayerId(i));
  return result;
}

/// Two groups of two layers in `layout`: pages of 4 heads x 8 states x 2 bytes, 10 blocks.
CheckedPlacement placement(KVCacheLayout layout) {
  const PageShape page{.heads = 4, .states = 8, .content_bytes = 2, .page_bytes = 64};
  CheckedWorker w;
  w.num_blocks = 10;
  w.buffer_bytes = 2 * 64 * 10;
  for (int l = 0; l < 4; ++l) w.layers.push_back({LayerId(l), page});
  // Strides as an engine derives them: see the shape of each layout.
  int64_t layer_stride = 64 * 10;
  int64_t block_stride = 64;
  if (layout == KVCacheLayout::kLHBNC) block_stride = 16;
  if (is_block_outermost(layout)) {
    layer_stride = layout == KVCacheLayout::kBHLNC ? 16 : 64;
    block_stride = 128;
  }
  for (int g = 0; g < 2; ++g) {
    w.groups.push_back({.layers = ids(2 * g, 2), .spec = g, .block_size = 8});
    w.tensors.push_back({w.buffer_bytes, ids(2 * g, 2), layer_stride, block_stride, 0});
  }
  CheckedPlacement p;
  p.layout = layout;
  p.workers = {w, w};
  return p;
}

std::set<Rule> broken_rules(const CheckedPlacement& p) {
  std::set<Rule> rules;
  for (const Violation& v : check(p)) rules.insert(v.rule);
  return rules;
}

class CheckLayouts : public ::testing::TestWithParam<KVCacheLayout> {
 protected:
  void expect(Rule rule, const std::function<void(CheckedWorker&)>& mutate) {
    CheckedPlacement p = placement(GetParam());
    ASSERT_TRUE(check(p).empty()) << describe(check(p));
    mutate(p.workers[0]);
    EXPECT_TRUE(broken_rules(p).contains(rule)) << "expected " << to_string(rule) << ", got\n"
                                                << describe(check(p));
  }
  // With a second group there, a layer that moved also meets other blocks of that group.
  void expect_overlap(const std::function<void(CheckedWorker&)>& mutate) {
    CheckedPlacement p = placement(GetParam());
    mutate(p.workers[0]);
    const std::set<Rule> rules = broken_rules(p);
    EXPECT_TRUE(rules.contains(Rule::kPagesDisjoint) || rules.contains(Rule::kBlocksDisjoint))
        << describe(check(p));
    // Alone, the group overlaps itself.
    CheckedWorker& w = p.workers[0];
    w.layers.resize(2);
    w.groups.resize(1);
    w.tensors.resize(1);
    p.workers.resize(1);
    EXPECT_TRUE(broken_rules(p).contains(Rule::kPagesDisjoint)) << describe(check(p));
  }
  bool block_outermost() const { return is_block_outermost(GetParam()); }
};

TEST_P(CheckLayouts, AcceptsACorrectPlacement) {
  const auto violations = check(placement(GetParam()));
  EXPECT_TRUE(violations.empty()) << describe(violations);
}

TEST_P(CheckLayouts, CatchesLayersThatOverlap) {
  expect_overlap([](CheckedWorker& w) { w.tensors[0].layer_stride -= 1; });
}

TEST_P(CheckLayouts, CatchesBlocksThatOverlap) {
  expect_overlap([](CheckedWorker& w) { w.tensors[0].block_stride -= 1; });
}

TEST_P(CheckLayouts, CatchesTensorsOfAGroupThatOverlap) {
  expect(Rule::kPagesDisjoint, [](CheckedWorker& w) {
    CheckedWorker::Tensor second = w.tensors[0];
    w.tensors[0].layers.pop_back();
    second.layers = {w.groups[0].layers[1]};
    w.tensors.push_back(second);
  });
}

TEST_P(CheckLayouts, CatchesAGroupThatReachesIntoOtherBlocks) {
  expect(Rule::kBlocksDisjoint, [&](CheckedWorker& w) {
    w.buffer_bytes += 64;
    for (auto& t : w.tensors) t.size = w.buffer_bytes;
    w.tensors[1].offset = block_outermost() ? 64 : w.tensors[1].block_stride;
  });
}

TEST_P(CheckLayouts, CatchesPagesBeyondTheBuffer) {
  expect(Rule::kInsideBuffer, [](CheckedWorker& w) { w.tensors[1].offset = 1; });
  expect(Rule::kInsideBuffer, [](CheckedWorker& w) { w.tensors[1].offset = -1; });
  expect(Rule::kInsideBuffer, [](CheckedWorker& w) {
    for (auto& t : w.tensors) t.size -= 1;
    w.buffer_bytes -= 1;
  });
  expect(Rule::kInsideBuffer, [](CheckedWorker& w) { w.num_blocks += 1; });
}

TEST_P(CheckLayouts, CatchesMisalignedStrides) {
  expect(Rule::kAlignedStride, [](CheckedWorker& w) {
    for (int l : {2, 3}) w.layers[static_cast<size_t>(l)].page.stride_alignment = 48;
  });
}

TEST_P(CheckLayouts, CatchesUnequalSizes) {
  expect(Rule::kEqualSizes, [](CheckedWorker& w) { w.tensors[1].size += 1; });
}

TEST_P(CheckLayouts, CatchesAWorkerWithOtherBlocks) {
  expect(Rule::kWorkersAgree, [](CheckedWorker& w) { w.num_blocks -= 1; });
}

TEST_P(CheckLayouts, CatchesAWorkerWithOtherGroups) {
  expect(Rule::kWorkersAgree, [](CheckedWorker& w) { w.groups[1].spec = 7; });
  expect(Rule::kWorkersAgree, [](CheckedWorker& w) { w.groups[1].block_size = 16; });
  expect(Rule::kWorkersAgree, [](CheckedWorker& w) { w.groups[0].is_eagle_group = true; });
  expect(Rule::kWorkersAgree, [](CheckedWorker& w) { w.groups.pop_back(); });
}

TEST_P(CheckLayouts, CatchesLostAndDoubledLayers) {
  expect(Rule::kOneGroup, [](CheckedWorker& w) { w.groups[0].layers.pop_back(); });
  expect(Rule::kOneGroup, [](CheckedWorker& w) { w.groups[0].layers.push_back(LayerId(2)); });
  expect(Rule::kOneGroup, [](CheckedWorker& w) { w.groups[0].layers.push_back(LayerId(9)); });
  expect(Rule::kOneTensor, [](CheckedWorker& w) { w.tensors[0].layers.pop_back(); });
  expect(Rule::kOneTensor, [](CheckedWorker& w) { w.tensors.pop_back(); });
  expect(Rule::kOneTensor, [](CheckedWorker& w) { w.tensors[0].layers.push_back(LayerId(2)); });
  expect(Rule::kOneTensor, [](CheckedWorker& w) { w.tensors[0].layers.push_back(LayerId(-1)); });
}

TEST_P(CheckLayouts, CatchesTensorsOfSeveralShapesOrGroups) {
  expect(Rule::kOneShape, [](CheckedWorker& w) { w.layers[1].page.heads = 2; });
  expect(Rule::kOneShape,
         [](CheckedWorker& w) { std::swap(w.tensors[0].layers[1], w.tensors[1].layers[1]); });
}

TEST_P(CheckLayouts, CatchesGaps) {
  expect(Rule::kNoGaps, [&](CheckedWorker& w) {
    w.buffer_bytes += w.num_blocks;
    for (auto& t : w.tensors) {
      t.size = w.buffer_bytes;
      if (block_outermost()) t.block_stride += 1;
    }
  });
  // A hole between the layers of a group, made room for at the end of the block or buffer.
  expect(Rule::kNoGaps, [&](CheckedWorker& w) {
    w.buffer_bytes *= 2;
    for (auto& t : w.tensors) {
      t.size = w.buffer_bytes;
      t.layer_stride *= 2;
      if (block_outermost()) t.block_stride *= 2;
    }
  });
}

TEST_P(CheckLayouts, CatchesOverflow) {
  expect(Rule::kOverflow, [](CheckedWorker& w) { w.tensors[0].offset = kMax; });
  expect(Rule::kOverflow, [](CheckedWorker& w) { w.tensors[0].block_stride = kMax; });
  expect(Rule::kOverflow, [](CheckedWorker& w) {
    w.num_blocks = kMax;
    w.buffer_bytes = kMax;
  });
}

TEST_P(CheckLayouts, CatchesNumbersOutOfRange) {
  expect(Rule::kNumbers, [](CheckedWorker& w) { w.num_blocks = 0; });
  expect(Rule::kNumbers, [](CheckedWorker& w) { w.buffer_bytes = -1; });
  expect(Rule::kNumbers, [](CheckedWorker& w) { w.layers[2].page.page_bytes = 0; });
  expect(Rule::kNumbers, [](CheckedWorker& w) { w.layers[2].id = LayerId(0); });
  expect(Rule::kPagesDisjoint, [](CheckedWorker& w) { w.tensors[0].block_stride = 0; });
  expect(Rule::kPagesDisjoint, [](CheckedWorker& w) { w.tensors[0].layer_stride = -64; });
}

TEST_P(CheckLayouts, CatchesABufferBeyondTheMemory) {
  expect(Rule::kBudget, [](CheckedWorker& w) { w.available_bytes = w.buffer_bytes - 1; });
}

TEST_P(CheckLayouts, StopsAtTheLimit) {
  CheckedPlacement p = placement(GetParam());
  for (auto& t : p.workers[0].tensors) t.layers.clear();
  EXPECT_EQ(check(p).size(), 4u);
  EXPECT_EQ(check(p, 2).size(), 2u);
}

INSTANTIATE_TEST_SUITE_P(All, CheckLayouts, ::testing::ValuesIn(kAllLayouts),
                         [](const auto& i) { return std::string(to_string(i.param)); });

TEST(Check, HeadsOfOtherLayersMayLieBetweenTheHeadsOfAPage) {
  // BHLNC: two layers, two heads; the runs of the layers alternate inside a block.
  CheckedPlacement p = placement(KVCacheLayout::kBHLNC);
  ASSERT_TRUE(check(p).empty());
  // Read as BLHNC, where a page is one run, the same strides overlap.
  p.layout = KVCacheLayout::kBLHNC;
  EXPECT_TRUE(broken_rules(p).contains(Rule::kPagesDisjoint));
}

TEST(Check, BlocksOfGroupsWithUnequalStridesCollide) {
  // Equal pages, but one group pads them: its block 1 reaches into the other's block 2.
  CheckedPlacement p = placement(KVCacheLayout::kLBHNC);
  p.no_gaps = false;
  for (CheckedWorker& w : p.workers) {
    for (auto& t : w.tensors) t.size = 2 * 96 * 10;
    w.buffer_bytes = 2 * 96 * 10;
    w.tensors[1].block_stride = 96;
    w.tensors[1].layer_stride = 960;
  }
  EXPECT_EQ(broken_rules(p), std::set{Rule::kBlocksDisjoint});
  // In buffers of their own they would not.
  for (CheckedWorker& w : p.workers) w.groups[1].host_resident = true;
  EXPECT_TRUE(check(p).empty()) << describe(check(p));
}

TEST(Check, InterleavedPagesOfOneGroupAreAllowed) {
  // Two tensors of one group, block by block in turn.
  CheckedPlacement p = placement(KVCacheLayout::kLBHNC);
  p.no_gaps = false;
  for (CheckedWorker& w : p.workers) {
    w.layers.resize(2);
    w.groups.resize(1);
    w.tensors = {{w.buffer_bytes, ids(0, 1), 0, 128, 0}, {w.buffer_bytes, ids(1, 1), 0, 128, 64}};
  }
  EXPECT_TRUE(check(p).empty()) << describe(check(p));
  p.workers[1].tensors[1].offset = 63;
  EXPECT_EQ(broken_rules(p), std::set{Rule::kPagesDisjoint});
}

TEST(Check, SlicesOfAPoolBlockBelongToThatBlock) {
  // Group 1 cuts every block of the pool into two pages, group 0 fills it with one.
  const PageShape large{.content_bytes = 128, .page_bytes = 128};
  const PageShape small{.content_bytes = 64, .page_bytes = 64};
  CheckedWorker w;
  w.num_blocks = 10;
  w.buffer_bytes = 1280;
  w.layers = {{LayerId(0), large}, {LayerId(1), small}};
  w.groups = {{.layers = ids(0, 1), .spec = 0, .block_size = 8},
              {.layers = ids(1, 1), .spec = 1, .block_size = 8, .slices = 2}};
  w.tensors = {{1280, ids(0, 1), 0, 128, 0}, {1280, ids(1, 1), 0, 64, 0}};
  CheckedPlacement p;
  p.layout = KVCacheLayout::kBLHNC;
  p.workers = {w};
  p.no_gaps = false;
  EXPECT_TRUE(check(p).empty()) << describe(check(p));
  // Without slices, page 1 of group 1 is another block than block 0 of group 0.
  p.workers[0].groups[1].slices = 1;
  EXPECT_EQ(broken_rules(p), std::set{Rule::kBlocksDisjoint});
}

TEST(Check, ForeignLayersAreAllowedOnlyOnRequest) {
  CheckedPlacement p = placement(KVCacheLayout::kBLHNC);
  p.workers[1].layers.resize(2);
  p.workers[1].groups[1].layers.clear();
  EXPECT_EQ(broken_rules(p), std::set{Rule::kOneTensor});
  p.allow_foreign_layers = true;
  EXPECT_TRUE(check(p).empty()) << describe(check(p));
}

TEST(Check, NumberOfBlocksDoesNotMatterForTime) {
  CheckedPlacement p = placement(KVCacheLayout::kLHBNC);
  for (CheckedWorker& w : p.workers) {
    w.num_blocks = 1LL << 50;
    w.buffer_bytes = w.num_blocks * 128;
    for (auto& t : w.tensors) {
      t.size = w.buffer_bytes;
      t.layer_stride = w.num_blocks * 64;
    }
  }
  EXPECT_TRUE(check(p).empty()) << describe(check(p));
  p.workers[0].tensors[0].layer_stride -= 1;
  EXPECT_EQ(check(p).size(), 1u);
}

// What the checker says of random small placements must be what marking every byte says.
class ByteMap {
 public:
  explicit ByteMap(const CheckedPlacement& p) : p_(p) {}

  bool collides() const {
    const CheckedWorker& w = p_.workers[0];
    struct Owner {
      int group;
      int64_t block;
    };
    std::vector<std::vector<Owner>> owners(static_cast<size_t>(w.buffer_bytes));
    for (size_t t = 0; t < w.tensors.size(); ++t) {
      const auto& tensor = w.tensors[t];
      const PageShape& page = w.layers[tensor.layers[0].pos()].page;
      int group = 0;
      while (std::find(w.groups[static_cast<size_t>(group)].layers.begin(),
                       w.groups[static_cast<size_t>(group)].layers.end(),
                       tensor.layers[0]) == w.groups[static_cast<size_t>(group)].layers.end()) {
        ++group;
      }
      const auto layers = static_cast<int64_t>(tensor.layers.size());
      const bool one_run = page.heads == 1 || is_block_compact(p_.layout);
      const int64_t heads = one_run ? 1 : page.heads;
      const int64_t run = one_run ? page.page_bytes : page.page_bytes / page.heads;
      const int64_t head_stride = p_.layout == KVCacheLayout::kLHBNC
                                      ? tensor.block_stride * w.num_blocks
                                      : tensor.layer_stride * layers;
      for (int64_t l = 0; l < layers; ++l) {
        for (int64_t b = 0; b < w.num_blocks; ++b) {
          for (int64_t h = 0; h < heads; ++h) {
            const int64_t begin =
                tensor.offset + l * tensor.layer_stride + b * tensor.block_stride + h * head_stride;
            for (int64_t byte = begin; byte < begin + run; ++byte) {
              for (const Owner& o : owners[static_cast<size_t>(byte)]) {
                if (o.group == group || o.block != b) return true;
              }
              owners[static_cast<size_t>(byte)].push_back({group, b});
            }
          }
        }
      }
    }
    return false;
  }

 private:
  const CheckedPlacement& p_;
};

TEST(Check, AgreesWithMarkingEveryByte) {
  std::mt19937 rng(20240607);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(rng);
  };
  int colliding = 0;
  int disjoint = 0;
  for (int round = 0; round < 60000; ++round) {
    CheckedPlacement p;
    p.layout = kAllLayouts[static_cast<size_t>(pick(0, 5))];
    p.no_gaps = false;
    CheckedWorker w;
    w.num_blocks = pick(1, 5);
    w.buffer_bytes = 200;
    int next = 0;
    const int64_t common_stride = pick(1, 40);
    for (int64_t g = pick(1, 2); g > 0; --g) {
      CheckedWorker::Group group;
      for (int64_t t = pick(1, 2); t > 0; --t) {
        const int64_t heads = pick(1, 2);
        const int64_t content = pick(1, 3);
        const PageShape page{
            .heads = heads, .content_bytes = content, .page_bytes = heads * content};
        const auto layers = static_cast<int>(pick(1, 3));
        for (int l = next; l < next + layers; ++l) w.layers.push_back({LayerId(l), page});
        const int64_t block_stride = pick(0, 3) > 0 ? common_stride : pick(1, 40);
        w.tensors.push_back(
            {w.buffer_bytes, ids(next, layers), pick(1, 40), block_stride, pick(0, 30)});
        for (LayerId id : ids(next, layers)) group.layers.push_back(id);
        next += layers;
      }
      w.groups.push_back(group);
    }
    p.workers = {w};
    const std::set<Rule> broken = broken_rules(p);
    if (broken.contains(Rule::kInsideBuffer)) continue;
    const bool found =
        broken.contains(Rule::kPagesDisjoint) || broken.contains(Rule::kBlocksDisjoint);
    const bool expected = ByteMap(p).collides();
    ASSERT_EQ(found, expected) << "round " << round << " layout " << to_string(p.layout) << "\n"
                               << describe(check(p));
    (expected ? colliding : disjoint) += 1;
  }
  EXPECT_GT(colliding, 5000);
  EXPECT_GT(disjoint, 500);
}

TEST(CheckPlan, AcceptsRealPlansAndCatchesChangedOnes) {
  ModelBuilder model;
  model.add(5, sliding(8, 256, 1024)).add(1, full(4, 512));
  model.worker(4 * kGiB).worker(5 * kGiB);
  const Plan plan = checked_plan(model.request(), config(32768));

  const auto broken = [&](const std::function<void(Plan&)>& mutate) {
    Plan changed = plan;
    mutate(changed);
    std::set<Rule> rules;
    for (const Violation& v : check(changed)) rules.insert(v.rule);
    return rules;
  };
  const auto tensor = [](Plan& p) -> KVCacheTensor& { return p.stages[0].tensors[0]; };
  EXPECT_TRUE(broken([&](Plan& p) { tensor(p).offset += 1; }).contains(Rule::kInsideBuffer));
  EXPECT_TRUE(broken([&](Plan& p) { tensor(p).block_stride -= 1; }).contains(Rule::kPagesDisjoint));
  EXPECT_TRUE(broken([&](Plan& p) { tensor(p).size -= 1; }).contains(Rule::kEqualSizes));
  EXPECT_TRUE(broken([&](Plan& p) { tensor(p).layers.pop_back(); }).contains(Rule::kOneTensor));
  EXPECT_TRUE(
      broken([&](Plan& p) { p.stages[0].groups[0].layers.pop_back(); }).contains(Rule::kOneGroup));
  // Whatever takes a plan counts on a stage having every group.
  EXPECT_THROW(broken([&](Plan& p) { p.stages[0].groups.pop_back(); }), InvalidArgument);
  EXPECT_TRUE(broken([&](Plan& p) { p.num_blocks += 1; }).contains(Rule::kWorkersAgree));
  EXPECT_TRUE(broken([&](Plan& p) { p.num_blocks = kMax; }).contains(Rule::kNumbers));
  EXPECT_TRUE(broken([&](Plan& p) { p.num_blocks /= 2; }).contains(Rule::kEqualSizes));
  EXPECT_TRUE(broken([&](Plan& p) {
                p.workers[0].effective_bytes = p.stages[0].tensors[0].size - 1;
              }).contains(Rule::kBudget));
}

}  // namespace
}  // namespace kvplan::testing
