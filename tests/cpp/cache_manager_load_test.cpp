#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>

#include "cache_manager_driver.h"

namespace kvplan {
namespace {

/// KVPLAN_LOAD_REQUESTS sets how many requests are served in all.
int64_t num_requests() {
  const char* wanted = std::getenv("KVPLAN_LOAD_REQUESTS");
  return wanted == nullptr ? 10'000 : std::atoll(wanted);
}

TEST(CacheManagerLoad, EveryRequestReadsItsOwnAndNothingLeaks) {
  std::map<std::string, int64_t> seen;
  int64_t num_finished = 0;
  for (uint64_t seed = 0; num_finished < num_requests(); ++seed) {
    testing::RandomBytes bytes(seed);
    testing::CacheManagerDriver driver(bytes);
    try {
      for (int i = 0; i < 2000; ++i) driver.step();
      driver.drain();
    } catch (const std::exception& error) {
      FAIL() << "seed " << seed << ": " << error.what();
    }
    num_finished += driver.num_finished;
    for (const auto& [path, count] : driver.seen) seen[path] += count;
  }
  for (const char* path : {"copy", "copy a slice", "evict", "evict a slice", "fork", "hit",
                           "hit in slices", "hold", "preemption", "refused", "reset", "revert"}) {
    EXPECT_GT(seen[path], 0) << path;
    RecordProperty(path, std::to_string(seen[path]));
  }
}

}  // namespace
}  // namespace kvplan
