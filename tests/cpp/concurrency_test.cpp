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

// One thread calls the manager, others read its counters.
TEST(Concurrency, CountersAreForAnyThread) {
  CacheManagerOptions options;
  options.groups.emplace_back().block_size = 16;
  options.num_blocks = 100;
  options.max_model_len = 1000;
  CacheManager manager(options);
  std::atomic<bool> done = false;
  std::atomic<int> impossible = 0;
  std::vector<std::thread> readers;
  for (int t = 0; t < 2; ++t) {
    readers.emplace_back([&] {
      while (!done) {
        const CacheManagerCounters now = manager.counters();
        if (now.num_free_blocks < 0 || now.num_free_blocks > 99 || now.num_requests > 1 ||
            now.num_hit_tokens > now.num_queried_tokens) {
          ++impossible;
        }
      }
    });
  }
  for (int i = 0; i < 2000; ++i) {
    const RequestHandle request = manager.add_request();
    RequestTokens tokens;
    tokens.num_tokens = tokens.num_prompt_tokens = 100;
    ASSERT_TRUE(manager.allocate(request, tokens, {.num_new_tokens = 100}));
    manager.record_prefix_cache_stats(100, 48, false);
    manager.remove_request(request);
  }
  done = true;
  for (std::thread& t : readers) t.join();
  EXPECT_EQ(impossible, 0);
  EXPECT_EQ(manager.counters().num_free_blocks, 99);
  EXPECT_EQ(manager.counters().num_hit_tokens, 2000 * 48);
}

}  // namespace
}  // namespace kvplan::testing
