#include <gtest/gtest.h>

#include <random>
#include <set>

#include "../../fuzz/model_from_source.h"
#include "describe_plan.h"
#include "expect_valid.h"
#include "kvplan/kvplan.h"

namespace kvplan::testing {
namespace {

class RandomSource {
 public:
  explicit RandomSource(uint64_t seed) : rng_(seed) {}
  int64_t pick(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(rng_);
  }

 private:
  std::mt19937_64 rng_;
};

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

}  // namespace
}  // namespace kvplan::testing
