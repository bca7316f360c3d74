#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "../../fuzz/model_from_source.h"
#include "describe_plan.h"
#include "expect_valid.h"
#include "kvplan/kvplan.h"
#include "random_source.h"

namespace kvplan::testing {
namespace {

// vLLM's placement has flaws in LHBNC, which the plan keeps and warns of.
bool has_stride_warning(const Plan& plan) {
  for (const Notice& n : plan.notices) {
    if (n.message.find("block stride") != std::string::npos) return true;
  }
  return false;
}

// Whatever is asked for, the answer is one of kvplan's errors or a plan that keeps the contract,
// and every report on it can be made.
TEST(RandomPlans, AreCorrectOrRefused) {
  int planned = 0;
  int refused = 0;
  int warned = 0;
  std::set<SpecKind> kinds;
  std::set<KVCacheLayout> layouts;
  size_t most_groups = 0;
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    RandomSource source(seed);
    fuzzing::ModelMaker maker(source);
    const PlanningConfig config = maker.config();
    std::optional<Plan> made;
    try {
      const PlanRequest request = maker.request();
      made = plan(request, config);
    } catch (const Error& e) {
      EXPECT_GT(std::string(e.what()).size(), 10u) << "seed " << seed;
      ++refused;
      continue;
    }
    const std::vector<Violation> violations = check(*made);
    if (has_stride_warning(*made)) {
      for (const Violation& v : violations) {
        EXPECT_TRUE(v.rule == Rule::kBlocksDisjoint || v.rule == Rule::kAlignedStride)
            << "seed " << seed << "\n"
            << describe(violations) << describe(*made);
      }
      ++warned;
    } else {
      EXPECT_TRUE(violations.empty()) << "seed " << seed << "\n"
                                      << describe(violations) << describe(*made);
    }
    try {
      explain(*made);
      capacity(*made);
      safe_block_ids(*made);
      for (size_t w = 0; w < made->workers.size(); ++w) {
        EXPECT_GE(worker_max_model_len(*made, w), made->config.max_model_len) << "seed " << seed;
      }
    } catch (const Overflow&) {
      // A number of a hostile size was accepted, but one of the reports leaves the range.
    }
    ++planned;
    layouts.insert(config.kv_cache_layout);
    most_groups = std::max(most_groups, made->groups.size());
    for (const KVCacheGroup& g : made->groups) kinds.insert((*made->specs)[g.spec].kind);
  }
  EXPECT_GT(planned, 1000);
  EXPECT_GT(refused, 300);
  EXPECT_GT(warned, 5);
  EXPECT_LT(warned, planned / 20);
  EXPECT_EQ(layouts.size(), kAllLayouts.size());
  EXPECT_GT(kinds.size(), 9u);
  EXPECT_GT(most_groups, 8u);
}

/// One way to break a plan; false where it does not apply to this tensor.
using Damage = std::function<bool(RandomSource&, Plan&, StagePlan&, KVCacheTensor&)>;

// The checker is worth what it catches: each number that says where pages lie, changed in plans of
// random models, is noticed.
TEST(RandomPlans, ADamagedPlanIsNoticed) {
  const std::map<std::string, Damage> damages = {
      {"a size of its own",
       [](RandomSource& source, Plan&, StagePlan& stage, KVCacheTensor& t) {
         t.size += source.pick(0, 1) == 0 ? -1 : source.pick(1, 1 << 20);
         return stage.tensors.size() > 1;
       }},
      {"a buffer too small",
       [](RandomSource& source, Plan&, StagePlan& stage, KVCacheTensor&) {
         const int64_t less = source.pick(1, stage.tensors[0].size);
         for (KVCacheTensor& t : stage.tensors) t.size -= less;
         return true;
       }},
      {"more blocks than there is room for",
       [](RandomSource& source, Plan& plan, StagePlan&, KVCacheTensor&) {
         plan.num_blocks += source.pick(1, 1000);
         return true;
       }},
      {"beyond the buffer",
       [](RandomSource& source, Plan&, StagePlan&, KVCacheTensor& t) {
         t.offset = source.pick(0, 1) == 0 ? -source.pick(1, 1000) : t.size + source.pick(0, 1000);
         return true;
       }},
      {"layers over each other",
       [](RandomSource&, Plan&, StagePlan&, KVCacheTensor& t) {
         t.layer_stride = 0;
         return t.layers.size() > 1;
       }},
      {"blocks over each other",
       [](RandomSource&, Plan& plan, StagePlan&, KVCacheTensor& t) {
         t.block_stride = 0;
         return plan.num_blocks > 1;
       }},
      {"strides out of range",
       [](RandomSource& source, Plan& plan, StagePlan&, KVCacheTensor& t) {
         t.block_stride = INT64_MAX - source.pick(0, 1000);
         return plan.num_blocks > 1;
       }},
      {"two tensors in one place",
       [](RandomSource& source, Plan& plan, StagePlan& stage, KVCacheTensor& t) {
         const auto other =
             static_cast<size_t>(source.pick(0, static_cast<int64_t>(stage.tensors.size()) - 1));
         const bool same = &stage.tensors[other] == &t;
         for (const KVCacheGroup& g : stage.groups) {
           const auto has = [&](LayerId l) { return std::ranges::count(g.layers, l) > 0; };
           if (same || !has(t.layers[0]) || !has(stage.tensors[other].layers[0])) continue;
           t.offset = stage.tensors[other].offset;
           return plan.num_blocks > 0;
         }
         return false;
       }},
      {"a layer lost",
       [](RandomSource&, Plan&, StagePlan&, KVCacheTensor& t) {
         t.layers.pop_back();
         return true;
       }},
      {"a layer twice",
       [](RandomSource&, Plan&, StagePlan&, KVCacheTensor& t) {
         t.layers.push_back(t.layers[0]);
         return true;
       }},
      {"a group without one of its layers",
       [](RandomSource& source, Plan&, StagePlan& stage, KVCacheTensor&) {
         const auto g = source.pick(0, static_cast<int64_t>(stage.groups.size()) - 1);
         std::vector<LayerId>& layers = stage.groups[static_cast<size_t>(g)].layers;
         if (layers.empty()) return false;
         layers.erase(layers.begin());
         return true;
       }},
  };
  std::map<std::string, int> tried;
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    RandomSource source(seed);
    fuzzing::ModelMaker maker(source);
    std::optional<Plan> made;
    try {
      const PlanningConfig config = maker.config();
      made = plan(maker.request(), config);
    } catch (const Error&) {
      continue;
    }
    if (!check(*made).empty()) continue;
    for (const auto& [name, damage] : damages) {
      Plan damaged = *made;
      const auto stages = static_cast<int64_t>(damaged.stages.size());
      StagePlan& stage = damaged.stages[static_cast<size_t>(source.pick(0, stages - 1))];
      if (stage.tensors.empty()) continue;
      const auto tensors = static_cast<int64_t>(stage.tensors.size());
      KVCacheTensor& tensor = stage.tensors[static_cast<size_t>(source.pick(0, tensors - 1))];
      if (tensor.layers.empty() || !damage(source, damaged, stage, tensor)) continue;
      ++tried[name];
      EXPECT_FALSE(check(damaged, 1).empty()) << "seed " << seed << ": " << name << "\n"
                                              << describe(*made);
    }
  }
  for (const auto& [name, damage] : damages) EXPECT_GT(tried[name], 20) << name;
}

}  // namespace
}  // namespace kvplan::testing
