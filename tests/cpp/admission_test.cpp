#include "planning/fitting/admission.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "expect_valid.h"
#include "kvplan/kvplan.h"
#include "model_builder.h"

namespace kvplan::testing {
namespace {

struct Refusal {
  std::string message;
  NotEnoughMemory::Numbers numbers;
};

/// How the planner refuses the model; none if it fits.
std::optional<Refusal> refusal(const ModelBuilder& model, const PlanningConfig& c) {
  try {
    checked_plan(model.request(), c);
    return std::nullopt;
  } catch (const NotEnoughMemory& e) {
    return Refusal{e.what(), e.numbers()};
  }
}

bool says(const std::string& message, const std::string& part) {
  return message.find(part) != std::string::npos;
}

PlanningConfig fitted(PlanningConfig c) {
  c.auto_fit = true;
  return c;
}

ModelBuilder opt_125m() {
  ModelBuilder model;
  model.add(12, full(12, 64)).worker(kGiB);
  return model;
}

// Gemma-4-31B: 10 full and 50 sliding layers.
ModelBuilder gemma() {
  ModelBuilder model;
  for (int i = 0; i < 10; ++i) model.add(5, sliding(16, 256, 1024)).add(1, full(4, 512));
  model.worker(49 * kGiB);
  return model;
}

PlanningConfig gemma_config(int64_t in_flight) {
  PlanningConfig c = config(262144);
  c.max_in_flight_tokens = in_flight;
  c.max_concurrent_batches = 2;
  return c;
}

// Case 8.
TEST(Admission, InFlightTokensAreTheKnobOfSlidingWindows) {
  const ModelBuilder model = gemma();
  const Plan fits = checked_plan(model.request(), gemma_config(32768));
  EXPECT_EQ(fits.groups.size(), 6u);
  EXPECT_NEAR(static_cast<double>(fits.stages[0].request_bytes) / kGiB, 45.79, 0.005);

  const auto refused = refusal(model, gemma_config(65536));
  ASSERT_TRUE(refused);
  EXPECT_NEAR(static_cast<double>(refused->numbers.needed_bytes) / kGiB, 70.79, 0.005);
  EXPECT_EQ(refused->numbers.estimated_max_len, 58368);
  EXPECT_EQ(refused->numbers.max_in_flight_tokens, 36961);
  EXPECT_TRUE(says(refused->message, "70.79 GiB")) << refused->message;
  EXPECT_TRUE(says(refused->message, "49.00 GiB")) << refused->message;
  EXPECT_TRUE(says(refused->message, "At most 36961 tokens in flight") ||
              says(refused->message, "at most 36961 tokens in flight"))
      << refused->message;
  EXPECT_TRUE(says(refused->message, "max_num_batched_tokens <= 18480 with 2 concurrent batches"))
      << refused->message;
  // The advice holds, and one token more does not.
  EXPECT_FALSE(refusal(model, gemma_config(36961)));
  EXPECT_TRUE(refusal(model, gemma_config(36962)));
  EXPECT_EQ(checked_plan(model.request(), fitted(gemma_config(65536))).config.max_model_len, 58368);
}

// Case 9.
TEST(Admission, NullBlockHoldsNoTokens) {
  ModelBuilder model;
  model.add(1, full(1, 64, 128)).worker(8 * page_size_bytes(full(1, 64, 128)));
  EXPECT_EQ(checked_plan(model.request(), fitted(config(1024))).config.max_model_len, 896);
  const auto refused = refusal(model, config(1024));
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->numbers.estimated_max_len, 896);
  EXPECT_TRUE(says(refused->message, "estimated maximum model length is 896")) << refused->message;
  EXPECT_FALSE(refusal(model, config(896)));
}

// Case 9, the second model, and case 10.
TEST(Admission, BlockOverride) {
  const ModelBuilder model = opt_125m();
  PlanningConfig c = config(2048);
  const auto with_override = [&](int64_t blocks) {
    c.num_gpu_blocks_override = blocks;
    return refusal(model, c);
  };
  const auto one = with_override(1);
  ASSERT_TRUE(one);
  EXPECT_EQ(one->numbers.available_bytes, 0);
  EXPECT_TRUE(says(one->message, "num_gpu_blocks_override=1 sets this limit")) << one->message;
  EXPECT_TRUE(says(one->message, "raise it to at least 129")) << one->message;
  EXPECT_FALSE(says(one->message, "gpu_memory_utilization")) << one->message;
  EXPECT_TRUE(with_override(0));

  EXPECT_EQ(with_override(50)->numbers.estimated_max_len, 784);
  EXPECT_EQ(with_override(128)->numbers.estimated_max_len, 2032);
  EXPECT_FALSE(with_override(129));
  EXPECT_EQ(checked_plan(model.request(), c).num_blocks, 129);
}

TEST(Admission, OverrideMayExceedTheMemory) {
  PlanningConfig c = config(2048);
  c.num_gpu_blocks_override = 1 << 20;
  const Plan plan = checked_plan(opt_125m().request(), c);
  EXPECT_EQ(plan.num_blocks, 1 << 20);
  EXPECT_EQ(plan.workers[0].effective_bytes, plan.stages[0].bytes_per_block << 20);
}

TEST(Admission, AnOverrideIsNotToBeRaisedBeyondTheMemory) {
  PlanningConfig c = config(2048);
  ModelBuilder model = opt_125m();
  c.num_gpu_blocks_override = 50;
  const int64_t block = checked_plan(model.request(), config(16)).stages[0].bytes_per_block;
  ModelBuilder small;
  small.add(12, full(12, 64)).worker(100 * block);
  const auto refused = refusal(small, c);
  ASSERT_TRUE(refused);
  EXPECT_TRUE(says(refused->message, "of the 129 blocks needed the memory holds 100"))
      << refused->message;
  EXPECT_FALSE(says(refused->message, "raise it")) << refused->message;
}

TEST(Admission, OneThingHasNoPlural) {
  EXPECT_EQ(counted(1, "group"), "1 group");
  EXPECT_EQ(counted(2, "group"), "2 groups");
}

// Case 10: a unit that shows the difference.
TEST(Admission, SmallPoolsAreNotComparedInGiB) {
  ModelBuilder model;
  model.add(1, full(1, 16)).worker(9 * 1024);
  const auto refused = refusal(model, config(256));
  ASSERT_TRUE(refused);
  EXPECT_FALSE(says(refused->message, "GiB")) << refused->message;
  EXPECT_TRUE(says(refused->message, "16.00 KiB")) << refused->message;
  EXPECT_TRUE(says(refused->message, "8.00 KiB")) << refused->message;
}

TEST(Admission, UnitsTellTheValuesApart) {
  EXPECT_EQ(format_bytes(49 * kGiB), "49.00 GiB");
  EXPECT_EQ(format_bytes(49 * kGiB, 50 * kGiB), "49.00 GiB");
  EXPECT_EQ(format_bytes(3 * kMiB), "3.00 MiB");
  EXPECT_EQ(format_bytes(100), "100 bytes");
  EXPECT_EQ(format_bytes(0), "0 bytes");
  for (int64_t a : {int64_t{1}, int64_t{1000}, kKiB, kMiB, kGiB, 49 * kGiB, 700 * kGiB}) {
    for (int64_t difference : {int64_t{1}, int64_t{100}, kKiB, kMiB, kGiB}) {
      const int64_t b = a + difference;
      EXPECT_NE(format_bytes(a, b), format_bytes(b, a)) << a << " and " << b;
    }
  }
}

TEST(Admission, NoMemoryAtAll) {
  for (int64_t bytes : {int64_t{0}, int64_t{-5}, int64_t{18432}, int64_t{-kGiB}}) {
    ModelBuilder model;
    model.add(1, mla(576)).worker(bytes);
    const auto refused = refusal(model, config(16));
    ASSERT_TRUE(refused) << bytes;
    EXPECT_TRUE(says(refused->message, "No available memory")) << refused->message;
    EXPECT_LE(refused->numbers.available_bytes, 0);
    const auto auto_fit = refusal(model, fitted(config(16)));
    ASSERT_TRUE(auto_fit) << bytes;
    EXPECT_TRUE(says(auto_fit->message, "Cannot auto-fit")) << auto_fit->message;
    EXPECT_TRUE(says(auto_fit->message, "on worker 0, where nothing is left beside the null"))
        << auto_fit->message;
  }
}

TEST(Admission, NamesTheWorker) {
  ModelBuilder model;
  model.add(2, full(8, 128)).worker(kGiB).worker(kMiB).worker(kGiB);
  const auto refused = refusal(model, config(4096));
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->numbers.worker, 1);
  EXPECT_TRUE(says(refused->message, "of worker 1.")) << refused->message;
  EXPECT_TRUE(says(refused->message, "gpu_memory_utilization")) << refused->message;
}

TEST(Admission, NoAdviceThatDoesNotHelp) {
  ModelBuilder model;
  model.add(1, full(1, 64)).worker(10 * 4096);
  const auto refused = refusal(model, config(4096));
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->numbers.max_in_flight_tokens, 0);
  EXPECT_FALSE(says(refused->message, "tokens in flight")) << refused->message;
}

TEST(Admission, ExactlyEnoughIsEnough) {
  for (int64_t length : {1, 16, 17, 1000, 4096}) {
    ModelBuilder model;
    const int64_t blocks = (length + 15) / 16 + 1;
    model.add(3, full(2, 64)).worker(3 * 8192 * blocks);
    EXPECT_FALSE(refusal(model, config(length))) << length;
    ModelBuilder less;
    less.add(3, full(2, 64)).worker(3 * 8192 * blocks - 1);
    EXPECT_TRUE(refusal(less, config(length))) << length;
  }
}

}  // namespace
}  // namespace kvplan::testing
