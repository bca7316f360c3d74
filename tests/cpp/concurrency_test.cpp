#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "expect_valid.h"
#include "kvplan/kvplan.h"
#include "model_builder.h"

namespace kvplan::testing {
namespace {

// One immutable request, planned by several threads at once; the thread sanitizer watches.
TEST(Concurrency, ThreadsShareARequest) {
  ModelBuilder model;
  model.add(25, sliding(8, 256, 1024)).add(5, full(4, 512)).add(3, mamba(70000));
  for (int i = 0; i < 4; ++i) model.worker(8 * kGiB + i * kMiB);
  const PlanRequest& request = model.request();
  const Plan expected = checked_plan(request, config(32768));

  std::atomic<int> different = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        PlanningConfig c = config(32768);
        c.auto_fit = t % 2 == 1;
        const Plan plan = kvplan::plan(request, c);
        if (plan.num_blocks != expected.num_blocks || !check(plan).empty()) ++different;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(different, 0);
}

TEST(Concurrency, ThreadsReadAPlan) {
  ModelBuilder model;
  model.add(25, sliding(8, 256, 1024)).add(5, full(4, 512)).worker(8 * kGiB);
  const Plan plan = checked_plan(model.request(), config(32768));
  const int64_t tokens = capacity(plan).tokens;
  const int64_t request_bytes = explain(plan).request_bytes;

  std::atomic<int> different = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        if (capacity(plan).tokens != tokens) ++different;
        if (explain(plan).request_bytes != request_bytes) ++different;
        if (safe_block_ids(plan).bytes <= 0 || !check(plan).empty()) ++different;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(different, 0);
}

}  // namespace
}  // namespace kvplan::testing
