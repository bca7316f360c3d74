// grouping="sliced": the choice of the slices against an exhaustive search, and whole plans.

#include "kvplan/sliced.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "../../fuzz/model_from_source.h"
#include "describe_plan.h"
#include "expect_valid.h"
#include "kvplan/errors.h"
#include "kvplan/report.h"
#include "model_builder.h"
#include "planning/regroup/slice_search.h"
#include "random_source.h"

namespace kvplan::testing {
namespace {

using sliced::SliceChoice;
using sliced::SliceKind;
using sliced::SliceProblem;

/// The lowest price of all blocks and all slices, one by one.
double exhaustive_price(const SliceProblem& problem, int64_t widest_block) {
  double best = INFINITY;
  for (int64_t block = 1; block <= widest_block; ++block) {
    std::vector<int64_t> slices;
    for (const SliceKind& kind : problem.kinds) {
      int64_t most = 0;
      for (int64_t k = 1; k * kind.slice_bytes <= block; ++k) {
        if (block % k == 0 && (block / k) % kind.alignment == 0) most = k;
      }
      if (most == 0) break;
      slices.push_back(most);
    }
    if (slices.size() < problem.kinds.size()) continue;
    best = std::min(best, sliced::price(problem, block, slices));
  }
  return best;
}

TEST(SliceSearch, FindsWhatAnExhaustiveSearchFinds) {
  std::mt19937_64 rng(1);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(rng);
  };
  for (int round = 0; round < 400; ++round) {
    SliceProblem problem;
    int64_t widest = 0;
    int64_t common = 1;
    for (int64_t n = pick(2, 5); n > 0; --n) {
      SliceKind kind;
      kind.alignment = std::vector<int64_t>{1, 2, 3, 4, 8, 12}[static_cast<size_t>(pick(0, 5))];
      kind.slice_bytes = kind.alignment * pick(1, 300 / kind.alignment);
      kind.pages = pick(0, 3) == 0 ? pick(0, 3) : pick(1, 5000);
      problem.kinds.push_back(kind);
      widest = std::max(widest, kind.slice_bytes);
      common = std::lcm(common, kind.alignment);
    }
    problem.max_block_bytes = pick(1, 4000);
    problem.pool_bytes = pick(1, 4) == 1 ? pick(2000, 20000) : int64_t{1} << 40;
    const int64_t narrowest = (widest + common - 1) / common * common;
    const int64_t limit = std::max(problem.max_block_bytes, narrowest + narrowest / 4);
    const SliceChoice choice = sliced::choose_slices(problem);
    EXPECT_TRUE(choice.exact);
    EXPECT_LE(choice.block_bytes, limit);
    for (size_t i = 0; i < problem.kinds.size(); ++i) {
      const SliceKind& kind = problem.kinds[i];
      ASSERT_EQ(choice.block_bytes % choice.slices[i], 0);
      const int64_t slice = choice.block_bytes / choice.slices[i];
      EXPECT_EQ(slice % kind.alignment, 0);
      EXPECT_GE(slice, kind.slice_bytes);
    }
    const double best = exhaustive_price(problem, limit);
    EXPECT_NEAR(choice.cost, sliced::price(problem, choice.block_bytes, choice.slices),
                1e-9 * choice.cost);
    EXPECT_NEAR(choice.cost, best, 1e-9 * best) << "round " << round;
  }
}

TEST(SliceSearch, WideBlocksAreSearchedWithinReason) {
  // Seven kinds whose pages have no common divisor, in blocks of 64 MiB: the budget must suffice.
  SliceProblem problem;
  for (int64_t page : {6'815'744, 1'310'720, 540'672, 137'664, 45'888, 37'440, 2'112}) {
    problem.kinds.push_back({1000 + page % 977, page, 16});
  }
  problem.pool_bytes = 40LL << 30;
  problem.max_block_bytes = 64LL << 20;
  const SliceChoice choice = sliced::choose_slices(problem);
  EXPECT_TRUE(choice.exact);
  double unpadded = 0;
  for (const SliceKind& k : problem.kinds) unpadded += static_cast<double>(k.pages * k.slice_bytes);
  EXPECT_LT(choice.cost, 1.03 * unpadded) << "unused slices are priced, too";
}

PlanningConfig sliced_config(int64_t max_model_len) {
  PlanningConfig c = config(max_model_len);
  c.grouping = Grouping::kSliced;
  c.kv_cache_layout = KVCacheLayout::kBLHNC;
  return c;
}

bool has_notice(const Plan& plan, const std::string& text) {
  return std::any_of(plan.notices.begin(), plan.notices.end(),
                     [&](const Notice& n) { return n.message.find(text) != std::string::npos; });
}

std::vector<int64_t> slices(const KVCacheGroups& groups) {
  std::vector<int64_t> result;
  for (const KVCacheGroup& g : groups) result.push_back(g.slices);
  return result;
}

ModelBuilder gemma_3_27b(int64_t heads = 16) {
  ModelBuilder model;
  model.add(10, full(heads, 128)).add(52, sliding(heads, 128, 1024));
  return model;
}

TEST(Sliced, Gemma27BHasTwoGroupsAndNoPadding) {
  ModelBuilder model = gemma_3_27b();
  model.worker(40 * kGiB);
  const Plan plan = checked_plan(model.request(), sliced_config(131072));
  EXPECT_EQ(plan.groups.size(), 2u);
  EXPECT_EQ(slices(plan.groups), (std::vector<int64_t>{26, 5}));
  for (const GroupReport& g : explain(plan).groups) EXPECT_EQ(g.padding_bytes, 0);
  EXPECT_GE(plan.num_blocks, plan.config.min_large_blocks);
}

TEST(Sliced, MinLargeBlocksBoundsTheBlock) {
  ModelBuilder model = gemma_3_27b();
  model.worker(40 * kGiB);
  PlanningConfig c = sliced_config(131072);
  c.min_large_blocks = 2000;
  const Plan plan = checked_plan(model.request(), c);
  EXPECT_GE(plan.num_blocks, 2000);
  EXPECT_EQ(slices(plan.groups)[1], 3) << "of 52 pages: 156 in a block of at most 163";
}

/// Prices every combination of slices up to a limit by the planner's own functions.
TEST(Sliced, NoOtherSlicesOfTheGroupsAreCheaper) {
  std::mt19937_64 rng(3);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(rng);
  };
  int compared = 0;
  for (int round = 0; round < 300; ++round) {
    ModelBuilder model;
    model.add(pick(1, 3), full(pick(1, 3), 8 * pick(1, 4)));
    model.add(pick(1, 6), sliding(pick(1, 4), 8 * pick(1, 4), 64 * pick(1, 4)));
    if (pick(0, 1) == 1) model.add(pick(1, 3), mamba(16 * pick(10, 400)));
    const int64_t memory = pick(200'000, 4'000'000);
    const auto layers = static_cast<size_t>(model.layers().size());
    if (pick(0, 2) == 0 && layers >= 4) {
      model.stage(0, layers / 2, memory).stage(layers / 2, layers, memory);
    } else {
      model.worker(memory);
    }
    PlanningConfig c = sliced_config(64 * pick(1, 20));
    c.max_in_flight_tokens = 16 * pick(0, 20);
    c.min_large_blocks = pick(1, 100);
    // Scaled blocks would have other pages, whose slices are not the same.
    c.attention_kernel_block_sizes = {{16, false}};
    std::optional<Plan> made;
    try {
      made = checked_plan(model.request(), c);
    } catch (const NotEnoughMemory&) {
      continue;
    }
    if (!is_sliced(made->groups)) continue;
    SpecTable specs = *made->specs;
    Notices notices;
    const PlanningContext ctx{*made->names, specs, notices};
    const auto block = [&](const KVCacheGroups& groups) {
      int64_t widest = 0;
      for (const LayerSpecs& list : model.request().layer_lists()) {
        const KVCacheGroups own = project_kv_cache_groups_to_worker(ctx, groups, list);
        widest = std::max(widest, get_kv_cache_bytes_per_block(ctx, own, c.kv_cache_layout));
      }
      return widest;
    };
    const auto price = [&](const KVCacheGroups& groups, int64_t bytes) {
      SliceProblem problem;
      for (const KVCacheGroup& g : groups) {
        problem.kinds.push_back({pages(group_demands(ctx, g, c), c.max_model_len), 0, 1});
      }
      problem.pool_bytes = memory;
      return sliced::price(problem, bytes, slices(groups));
    };
    const double chosen = price(made->groups, block(made->groups));
    KVCacheGroups one = made->groups;
    for (KVCacheGroup& g : one) g.slices = 1;
    const int64_t bound = std::max(memory / c.min_large_blocks, block(one));
    const bool same_kinds = made->stages.size() == 1 || [&] {
      for (const StagePlan& s : made->stages) {
        for (const KVCacheGroup& g : s.groups) {
          if (g.layers.empty()) return false;
        }
      }
      return true;
    }();
    // Where a stage lacks a kind its blocks need not be cut for it, which the search does not use.
    const double slack = same_kinds ? 1 + 1e-9 : 1.03;
    KVCacheGroups other = one;
    const auto most = made->groups.size() == 2 ? 40 : 14;
    for (;;) {
      size_t g = 0;
      while (g < other.size() && ++other[g].slices > most) other[g++].slices = 1;
      if (g == other.size()) break;
      if (!is_sliced(other)) continue;
      const int64_t bytes = block(other);
      if (bytes > bound) continue;
      ASSERT_LE(chosen, price(other, bytes) * slack)
          << "round " << round << "\n"
          << describe(*made) << "better: " << other[0].slices << ", " << other[1].slices;
      ++compared;
    }
  }
  EXPECT_GT(compared, 10'000);
}

TEST(Sliced, AdmissionCapacityAndAutoFitCountWholeBlocks) {
  ModelBuilder model = gemma_3_27b(1);
  model.worker(kGiB);
  PlanningConfig c = sliced_config(4096);
  const Plan plan = checked_plan(model.request(), c);
  const Reasons why = explain(plan);
  int64_t blocks = 0;
  for (const GroupReport& g : why.groups) {
    EXPECT_EQ(g.pool_blocks_per_request, (g.pages_per_request + g.slices - 1) / g.slices);
    EXPECT_EQ(g.slice_bytes * g.slices, why.bytes_per_block);
    blocks += g.pool_blocks_per_request;
  }
  EXPECT_EQ(why.request_blocks, blocks);
  EXPECT_EQ(why.request_bytes, blocks * why.bytes_per_block);
  // As many requests as the figure says fit in whole blocks, and not one more.
  const Capacity room = capacity(plan);
  const auto held = [&](int64_t requests) {
    int64_t n = 0;
    for (const GroupReport& g : why.groups) {
      n += (requests * g.pages_per_request + g.slices - 1) / g.slices;
    }
    return n;
  };
  const auto requests = static_cast<int64_t>(room.max_concurrency);
  EXPECT_LE(held(requests), plan.num_blocks);
  EXPECT_GT(held(requests + 1), plan.num_blocks);
  EXPECT_GE(room.steady_concurrency, room.max_concurrency * 0.99);
  EXPECT_LE(room.usable_tokens, room.tokens);

  // The fitted length is the longest whose whole blocks fit.
  c.max_model_len = 10'000'000;
  c.auto_fit = true;
  const Plan fitted = checked_plan(model.request(), c);
  const int64_t length = fitted.config.max_model_len;
  EXPECT_LT(length, 10'000'000);
  SpecTable specs = *fitted.specs;
  Notices notices;
  const PlanningContext ctx{*fitted.names, specs, notices};
  const RequestDemand demand(ctx, fitted.groups, fitted.config);
  EXPECT_LE(demand.total_blocks(length), fitted.num_blocks - 1);
  EXPECT_GT(demand.total_blocks(length + 1), fitted.num_blocks - 1);
  EXPECT_EQ(worker_max_model_len(fitted, 0), length);
}

TEST(Sliced, SafeBlockIdsAreThoseOfTheGroup) {
  ModelBuilder model = gemma_3_27b();
  model.worker(40 * kGiB);
  const Plan plan = checked_plan(model.request(), sliced_config(131072));
  const Reasons why = explain(plan);
  constexpr int64_t kOffsets = int64_t{1} << 31;
  for (const GroupReport& g : why.groups) {
    EXPECT_EQ(g.safe_block_ids.bytes, (kOffsets - 1) / g.slice_bytes);
    EXPECT_EQ(g.safe_block_ids.elements, (kOffsets - 1) / (g.slice_bytes / 2));
  }
  // All ids of a safe block of the pool are safe.
  const SafeBlockIds pool = safe_block_ids(plan);
  for (const GroupReport& g : why.groups) {
    EXPECT_LE((pool.bytes + 1) * g.slices - 1, g.safe_block_ids.bytes);
  }
  EXPECT_GT((pool.bytes + 2) * why.bytes_per_block, kOffsets - why.bytes_per_block);
}

TEST(Sliced, OneKindIsGroupedAsVllmDoesAndSaysSo) {
  ModelBuilder model;
  model.add(32, full(8, 128)).worker(kGiB);
  for (KVCacheLayout layout : kAllLayouts) {
    PlanningConfig c = sliced_config(1024);
    c.kv_cache_layout = layout;
    const Plan plan = checked_plan(model.request(), c);
    EXPECT_EQ(plan.groups.size(), 1u);
    EXPECT_EQ(plan.groups[0].slices, 1);
    EXPECT_TRUE(has_notice(plan, "one kind of cache"));
  }
}

TEST(Sliced, HybridManagerDisabledIsGroupedAsVllmDoes) {
  ModelBuilder model;
  model.add(4, full(8, 128)).add(4, sliding(8, 128, 128)).worker(kGiB);
  PlanningConfig c = sliced_config(1024);
  c.disable_hybrid_kv_cache_manager = true;
  const Plan plan = checked_plan(model.request(), c);
  EXPECT_FALSE(is_sliced(plan.groups));
  EXPECT_TRUE(has_notice(plan, "disable_hybrid_kv_cache_manager"));
}

template <class Exception>
std::string message_of(const PlanRequest& request, const PlanningConfig& c) {
  try {
    plan(request, c);
  } catch (const Exception& e) {
    return e.what();
  }
  ADD_FAILURE() << "was planned";
  return {};
}

TEST(Sliced, LayerOutermostLayoutsAreRefused) {
  ModelBuilder model = gemma_3_27b();
  model.worker(40 * kGiB);
  for (KVCacheLayout layout :
       {KVCacheLayout::kLBHNC, KVCacheLayout::kLBNHC, KVCacheLayout::kLHBNC}) {
    PlanningConfig c = sliced_config(1024);
    c.kv_cache_layout = layout;
    const std::string message = message_of<LayoutError>(model.request(), c);
    EXPECT_NE(message.find(to_string(layout)), std::string::npos) << message;
    EXPECT_NE(message.find("VLLM_KV_CACHE_LAYOUT"), std::string::npos) << message;
    EXPECT_FALSE(sliced_point(model.request(), c));
  }
}

TEST(Sliced, PoolOfTwoBlocksHoldsNoRequestOfTwoKinds) {
  ModelBuilder model = gemma_3_27b();
  PlanningConfig c = sliced_config(16);
  c.num_gpu_blocks_override = 2;
  model.worker(40 * kGiB);
  const std::string message = message_of<NotEnoughMemory>(model.request(), c);
  EXPECT_NE(message.find("whole blocks"), std::string::npos) << message;
  EXPECT_NE(message.find("num_gpu_blocks_override=2"), std::string::npos) << message;
  // A block for the full layers, two for the window, the null block.
  c.num_gpu_blocks_override = 4;
  const Plan plan = checked_plan(model.request(), c);
  EXPECT_TRUE(has_notice(plan, "min_large_blocks=700"));
}

TEST(Sliced, NoMemoryIsAnErrorThatNamesTheBlock) {
  for (int64_t memory : {int64_t{0}, int64_t{-5}, kMiB}) {
    ModelBuilder model = gemma_3_27b();
    model.worker(memory);
    EXPECT_NE(message_of<NotEnoughMemory>(model.request(), sliced_config(1024)).find("null block"),
              std::string::npos);
    PlanningConfig c = sliced_config(1024);
    c.auto_fit = true;
    message_of<NotEnoughMemory>(model.request(), c);
  }
}

TEST(Sliced, MoreSlicesThan32BitIdsAreRefused) {
  ModelBuilder model;
  model.add(1, full(1, 8)).add(60, sliding(8, 128, 128)).worker(int64_t{1} << 50);
  const std::string message = message_of<InvalidArgument>(model.request(), sliced_config(1024));
  EXPECT_NE(message.find("num_gpu_blocks_override"), std::string::npos) << message;
  EXPECT_NE(message.find("2147483647"), std::string::npos) << message;
  EXPECT_NE(message.find("block_size"), std::string::npos) << message;
}

TEST(Sliced, AlignmentsWithoutACommonBlockAreRefused) {
  for (int64_t other : {int64_t{1'000'003}, (int64_t{1} << 61) - 1}) {
    ModelBuilder model;
    KVCacheSpec a = full(1, 64);
    a.block_stride_alignment = {BlockStrideAlignment::Kind::kBytes, 999'983};
    KVCacheSpec b = sliding(1, 64, 128);
    b.block_stride_alignment = {BlockStrideAlignment::Kind::kBytes, other};
    finalize(a);
    finalize(b);
    model.add(2, a).add(2, b).worker(kGiB);
    try {
      plan(model.request(), sliced_config(64));
      FAIL() << "was planned";
    } catch (const InvalidArgument& e) {
      EXPECT_NE(std::string(e.what()).find("block_stride_alignment"), std::string::npos)
          << e.what();
    } catch (const Overflow& e) {
      EXPECT_NE(std::string(e.what()).find("alignment"), std::string::npos) << e.what();
    }
  }
}

// Each window is a kind of its own, and each layer count a slice of its own size.
TEST(Sliced, ThousandsOfKindsArePlannedInTime) {
  for (const int64_t layers_of_a_kind : {1, 3}) {
    ModelBuilder model;
    for (int64_t i = 0; i < 2048 / layers_of_a_kind; ++i) {
      model.add(static_cast<int>(1 + i % layers_of_a_kind), sliding(8, 128, 1024 + 16 * i),
                "window" + std::to_string(i));
    }
    model.worker(4096 * kGiB);
    PlanningConfig c = config(65536);
    c.kv_cache_layout = KVCacheLayout::kBLHNC;
    c.grouping = Grouping::kSliced;
    const Plan plan = checked_plan(model.request(), c);
    EXPECT_EQ(static_cast<int64_t>(plan.groups.size()), 2048 / layers_of_a_kind);
  }
}

TEST(Sliced, WorseThanVllmIsSaid) {
  // vLLM puts the drafter's layer, whose cache equals the model's, into the model's group: 4 pages
  // of 64 KiB in one group. By itself it takes whole slices, which 3 layers cannot be cut into.
  ModelBuilder model;
  KVCacheSpec d = full(8, 128);
  d.is_draft = true;
  model.add(1, sliding(8, 128, 64)).add(3, full(8, 128)).add(1, d);
  model.worker(512 * kMiB);
  PlanningConfig c = sliced_config(4096);
  c.max_in_flight_tokens = 64;
  const Plan plan = checked_plan(model.request(), c);
  const auto point = sliced_point(model.request(), c);
  ASSERT_TRUE(point);
  PlanningConfig v = c;
  v.grouping = Grouping::kVllm;
  const bool worse = point->request_bytes > explain(checked_plan(model.request(), v)).request_bytes;
  EXPECT_EQ(has_notice(plan, "takes more bytes"), worse);
}

TEST(Sliced, StagesShareTheSlices) {
  ModelBuilder model = gemma_3_27b();
  // The first stage has all full layers; the second none.
  model.stage(0, 30, 20 * kGiB).stage(30, 62, 30 * kGiB);
  const Plan plan = checked_plan(model.request(), sliced_config(32768));
  ASSERT_EQ(plan.stages.size(), 2u);
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    EXPECT_EQ(plan.stages[0].groups[g].slices, plan.stages[1].groups[g].slices);
  }
  EXPECT_EQ(plan.num_blocks, std::min(20 * kGiB / plan.stages[0].bytes_per_block,
                                      30 * kGiB / plan.stages[1].bytes_per_block));
}

TEST(Sliced, BlocksAreScaledWhereThatUnitesAKind) {
  // MLA layers of 64 and of 128 tokens a block, at kernels that take multiples of 64.
  ModelBuilder model;
  model.add(4, mla(576, 64)).add(4, mla(576, 128)).add(8, sliding(8, 128, 128)).worker(kGiB);
  PlanningConfig c = sliced_config(4096);
  EXPECT_EQ(checked_plan(model.request(), c).groups.size(), 3u);
  c.mla_kernel_block_sizes = {{64, true}};
  const Plan plan = checked_plan(model.request(), c);
  EXPECT_EQ(plan.groups.size(), 2u);
  EXPECT_EQ((*plan.specs)[plan.groups[0].spec].block_size, 128);
}

TEST(Sliced, BlocksAreScaledWhereTheirPagesThenPadLess) {
  // 584 bytes a token, padded to 576: 9,792 instead of 9,344 bytes at 16 tokens, 37,440 at 64.
  ModelBuilder model;
  KVCacheSpec s = mla(512, 16);
  s.dtype = DType::kUInt8;
  s.state_content_bytes = 584;
  s.alignment = 576;
  finalize(s);
  model.add(4, s).add(30, sliding(8, 128, 128)).worker(8 * kGiB);
  const Plan plan = checked_plan(model.request(), sliced_config(65536));
  EXPECT_EQ((*plan.specs)[plan.groups[0].spec].block_size, 64);
}

/// Pipeline stages, DCP, padded pages, hidden states, drafts, Mamba, plugins' specs: whatever is
/// asked for, the answer is an error or a plan that keeps the contract.
TEST(Sliced, RandomModelsAreCorrectOrRefused) {
  int cut = 0;
  int whole = 0;
  int staged = 0;
  std::set<SpecKind> kinds;
  std::set<KVCacheLayout> layouts;
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    RandomSource source(seed);
    fuzzing::ModelMaker maker(source);
    PlanningConfig config = maker.config();
    config.grouping = Grouping::kSliced;
    constexpr KVCacheLayout kSliceable[] = {KVCacheLayout::kBLHNC, KVCacheLayout::kBLNHC,
                                            KVCacheLayout::kBHLNC};
    config.kv_cache_layout = kSliceable[seed % 3];
    std::optional<Plan> made;
    try {
      const PlanRequest request = maker.request();
      made = plan(request, config);
    } catch (const Error& e) {
      EXPECT_GT(std::string(e.what()).size(), 10u) << "seed " << seed;
      continue;
    }
    const std::vector<Violation> violations = check(*made);
    EXPECT_TRUE(violations.empty()) << "seed " << seed << "\n"
                                    << describe(violations) << describe(*made);
    try {
      const Reasons why = explain(*made);
      capacity(*made);
      safe_block_ids(*made);
      int64_t blocks = 0;
      for (const GroupReport& g : why.groups) {
        blocks += g.pool_blocks_per_request;
        EXPECT_GE(g.padding_bytes, 0) << "seed " << seed;
      }
      EXPECT_EQ(blocks, why.request_blocks);
      EXPECT_LE(blocks, made->num_blocks - 1) << "seed " << seed;
      for (size_t w = 0; w < made->workers.size(); ++w) {
        EXPECT_GE(worker_max_model_len(*made, w), made->config.max_model_len) << "seed " << seed;
      }
    } catch (const Overflow&) {
      // A number of a hostile size was accepted, but one of the reports leaves the range.
    }
    ++(is_sliced(made->groups) ? cut : whole);
    if (!is_sliced(made->groups)) continue;
    staged += made->stages.size() > 1 ? 1 : 0;
    layouts.insert(config.kv_cache_layout);
    for (const KVCacheGroup& g : made->groups) kinds.insert((*made->specs)[g.spec].kind);
  }
  EXPECT_GT(cut, 300);
  EXPECT_GT(whole, 100);
  EXPECT_GT(staged, 30);
  EXPECT_EQ(layouts.size(), 3u);
  EXPECT_GT(kinds.size(), 7u);
}

}  // namespace
}  // namespace kvplan::testing
