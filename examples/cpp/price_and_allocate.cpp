// One immutable plan that prices and allocates: seats, length and blocks resolved together, and the
// result proved to be the largest: P(N) <= budget < P(N + 1).

#include <kvplan/kvplan.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

#include "kvplan/report.h"

namespace {

/// What the operator asked for. A block count wins over bytes, bytes win over a fraction.
struct Wish {
  std::optional<int64_t> num_blocks;
  std::optional<int64_t> bytes;
  double fraction = 0.9;
  int64_t seats = 8;  ///< requests that must be able to run at once
  int64_t max_model_len = 32768;
};

int64_t budget_of(const Wish& wish, int64_t free_bytes) {
  if (wish.bytes) return *wish.bytes;
  return static_cast<int64_t>(static_cast<double>(free_bytes) * wish.fraction);
}

/// A hybrid model: recurrent states are priced in, as pages like all others.
kvplan::PlanRequest hybrid_model(int64_t bytes) {
  kvplan::PlanRequest request;
  kvplan::KVCacheSpec full = kvplan::default_spec(kvplan::SpecKind::kFullAttention);
  full.block_size = 528;
  full.num_kv_heads = 2;
  full.head_size = 256;
  kvplan::finalize(full);
  kvplan::KVCacheSpec state = kvplan::default_spec(kvplan::SpecKind::kMamba);
  state.block_size = 528;
  state.shapes = {{1'060'864}, {5120}};
  state.dtypes = {kvplan::DType::kUInt8, kvplan::DType::kFloat32};
  kvplan::finalize(state);
  const kvplan::SpecId full_id = request.add_spec(full);
  const kvplan::SpecId state_id = request.add_spec(state);
  kvplan::LayerSpecs layers;
  for (int i = 0; i < 40; ++i) {
    const kvplan::LayerId layer = request.add_layer_name("layers." + std::to_string(i));
    layers.push_back({layer, i % 4 == 3 ? full_id : state_id});
  }
  request.add_worker(request.add_layers(layers), bytes);
  return request;
}

struct Answer {
  kvplan::Plan plan;
  int64_t seats;
  int64_t blocks_per_seat;
};

/// The longest length at which all seats are full of the longest requests.
std::optional<Answer> resolve(const Wish& wish, int64_t budget) {
  const kvplan::PlanRequest request = hybrid_model(budget);
  kvplan::PlanningConfig config;
  config.max_model_len = wish.max_model_len;
  config.num_gpu_blocks_override = wish.num_blocks;
  config.auto_fit = true;
  std::optional<Answer> best;
  const kvplan::Plan first = kvplan::plan(request, config);  // throws where no request fits
  int64_t low = 1;
  int64_t high = first.config.max_model_len;
  config.auto_fit = false;
  while (low <= high) {
    config.max_model_len = low + (high - low) / 2;
    kvplan::Plan plan = kvplan::plan(request, config);
    const int64_t per_seat = kvplan::explain(plan).request_blocks;
    const bool fits = per_seat * wish.seats <= plan.num_blocks - 1;
    if (fits) {
      low = config.max_model_len + 1;
      best = Answer{std::move(plan), wish.seats, per_seat};
    } else {
      high = config.max_model_len - 1;
    }
  }
  return best;
}

bool report(const char* title, const Wish& wish, int64_t free_bytes) {
  const int64_t budget = budget_of(wish, free_bytes);
  const std::optional<Answer> answer = resolve(wish, budget);
  if (!answer) {
    std::printf("%s: no length fits %lld seats\n", title, static_cast<long long>(wish.seats));
    return false;
  }
  const kvplan::Plan& plan = answer->plan;
  const kvplan::Reasons why = kvplan::explain(plan);
  const int64_t effective = plan.workers[0].effective_bytes;
  const int64_t price = plan.num_blocks * why.bytes_per_block;
  const int64_t next_price = price + why.bytes_per_block;
  std::printf(
      "%s: %lld seats x %lld tokens; %lld blocks x %lld bytes\n"
      "  a request: %lld blocks, of these %lld bytes whatever its length, %.1f bytes a token\n"
      "  P(N) = %lld <= %lld < P(N + 1) = %lld\n",
      title, static_cast<long long>(answer->seats),
      static_cast<long long>(plan.config.max_model_len), static_cast<long long>(plan.num_blocks),
      static_cast<long long>(why.bytes_per_block), static_cast<long long>(answer->blocks_per_seat),
      static_cast<long long>(why.fixed_bytes_per_request), why.bytes_per_token,
      static_cast<long long>(price), static_cast<long long>(effective),
      static_cast<long long>(next_price));
  // The plan allocates what it priced: a pool of exactly these blocks seats all requests at once.
  kvplan::BlockPool pool(plan.num_blocks);
  for (int64_t seat = 0; seat < answer->seats; ++seat) {
    pool.get_new_blocks(answer->blocks_per_seat);
  }
  return price <= effective && effective < next_price;
}

}  // namespace

int main() try {
  constexpr int64_t kFreeBytes = int64_t{20} << 30;
  Wish by_fraction;
  Wish by_bytes;
  by_bytes.bytes = int64_t{4} << 30;
  Wish by_count = by_bytes;
  by_count.num_blocks = 600;
  const bool proved = report("fraction", by_fraction, kFreeBytes) &&
                      report("bytes", by_bytes, kFreeBytes) &&
                      report("count", by_count, kFreeBytes);
  return proved ? EXIT_SUCCESS : EXIT_FAILURE;
} catch (const kvplan::Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return EXIT_FAILURE;
}
