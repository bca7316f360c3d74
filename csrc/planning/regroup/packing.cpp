#include "planning/regroup/packing.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

#include "kvplan/checked.h"

namespace kvplan::compact {
namespace {

constexpr int64_t kPackBudget = int64_t{1} << 26;

/// One copy of every class in turn, for as long as there are any: bytes of the fullest bin.
int64_t fullest_when_dealt(const Items& items, int64_t bins) {
  int64_t bytes = 0;
  for (size_t c = 0; c < items.bytes.size(); ++c) {
    bytes += checked::cdiv(items.count[c], bins) * items.bytes[c];
  }
  return bytes;
}

/// The fewest bins into which dealing fits; none where one copy of each class is too much.
std::optional<int64_t> bins_when_dealt(const Items& items, int64_t capacity) {
  int64_t low = 1;
  int64_t high = items.num_layers();
  if (fullest_when_dealt(items, high) > capacity) return std::nullopt;
  while (low < high) {
    const int64_t mid = low + (high - low) / 2;
    if (fullest_when_dealt(items, mid) <= capacity) {
      high = mid;
    } else {
      low = mid + 1;
    }
  }
  return low;
}

/// Fills one bin after the other, largest items first: first-fit decreasing. `visit(pattern, n)`
/// is told of n equal bins at once, so that its time does not grow with the number of layers.
template <class Visitor>
int64_t first_fit_decreasing(const Items& items, int64_t capacity, Visitor&& visit) {
  std::vector<int64_t> left = items.count;
  std::vector<int64_t> pattern(left.size());
  int64_t remaining = items.num_layers();
  int64_t bins = 0;
  while (remaining > 0) {
    int64_t room = capacity;
    int64_t repeats = std::numeric_limits<int64_t>::max();
    for (size_t c = 0; c < left.size(); ++c) {
      pattern[c] = std::min(left[c], room / items.bytes[c]);
      room -= pattern[c] * items.bytes[c];
      if (pattern[c] > 0) repeats = std::min(repeats, left[c] / pattern[c]);
    }
    for (size_t c = 0; c < left.size(); ++c) {
      left[c] -= pattern[c] * repeats;
      remaining -= pattern[c] * repeats;
    }
    bins += repeats;
    visit(pattern, repeats);
  }
  return bins;
}

/// Whether a number of bins suffices, decided exactly. A state says how many items of every class
/// but the smallest are placed; its value is the most small items that the same bins can take
/// besides, since those fill whatever room is left.
class ExactPacking {
 public:
  ExactPacking(const Items& items, int64_t capacity) : items_(items) {
    const size_t large = items.bytes.size() - 1;
    stride_.resize(large);
    for (size_t c = 0; c < large; ++c) {
      stride_[c] = num_states_;
      num_states_ = checked::mul(num_states_, items.count[c] + 1, "packing states");
    }
    add_patterns(0, 0, capacity, std::vector<int64_t>(large));
  }

  int64_t steps_per_bin() const {
    return checked::mul(num_states_, static_cast<int64_t>(patterns_.size()), "packing steps");
  }

  /// Adds bins until all items are placed, up to `limit` bins; none if those do not suffice.
  std::optional<int64_t> run(int64_t limit) {
    constexpr int64_t kUnreached = -1;
    levels_.assign(1, std::vector<Cell>(static_cast<size_t>(num_states_), Cell{kUnreached, 0}));
    levels_[0][0].small = 0;
    for (int64_t bins = 1; bins <= limit; ++bins) {
      levels_.emplace_back(static_cast<size_t>(num_states_), Cell{kUnreached, 0});
      const std::vector<Cell>& from = levels_[levels_.size() - 2];
      std::vector<Cell>& to = levels_.back();
      for (int64_t state = 0; state < num_states_; ++state) {
        const int64_t small = from[static_cast<size_t>(state)].small;
        if (small == kUnreached) continue;
        for (size_t p = 0; p < patterns_.size(); ++p) {
          if (!fits_state(state, patterns_[p])) continue;
          Cell& cell = to[static_cast<size_t>(state + patterns_[p].offset)];
          const int64_t value = small + patterns_[p].small;
          if (value > cell.small) cell = {value, static_cast<int32_t>(p)};
        }
      }
      if (to.back().small >= items_.count.back()) return bins;
    }
    return std::nullopt;
  }

  /// The packing that the last successful `run` found.
  Packing packing() const {
    Packing bins;
    int64_t state = num_states_ - 1;
    int64_t small = items_.count.back();
    for (size_t level = levels_.size() - 1; level > 0; --level) {
      const Pattern& p =
          patterns_[static_cast<size_t>(levels_[level][static_cast<size_t>(state)].pattern)];
      std::vector<int64_t> bin = p.large;
      bin.push_back(std::min(small, p.small));
      small -= bin.back();
      state -= p.offset;
      bins.push_back(std::move(bin));
    }
    return bins;
  }

 private:
  struct Pattern {
    std::vector<int64_t> large;
    int64_t small;
    int64_t offset;
  };
  struct Cell {
    int64_t small;
    int32_t pattern;
  };

  void add_patterns(size_t c, int64_t offset, int64_t room, std::vector<int64_t> large) {
    if (c == large.size()) {
      const int64_t small = std::min(items_.count.back(), room / items_.bytes.back());
      patterns_.push_back({std::move(large), small, offset});
      return;
    }
    const int64_t most = std::min(items_.count[c], room / items_.bytes[c]);
    for (int64_t n = 0; n <= most; ++n) {
      large[c] = n;
      add_patterns(c + 1, offset + n * stride_[c], room - n * items_.bytes[c], large);
    }
  }

  bool fits_state(int64_t state, const Pattern& p) const {
    for (size_t c = 0; c < stride_.size(); ++c) {
      const int64_t placed = state / stride_[c] % (items_.count[c] + 1);
      if (placed + p.large[c] > items_.count[c]) return false;
    }
    return true;
  }

  const Items& items_;
  int64_t num_states_ = 1;
  std::vector<int64_t> stride_;
  std::vector<Pattern> patterns_;
  std::vector<std::vector<Cell>> levels_;
};

/// Whether the state space is small enough to be built at all.
bool worth_exact(const Items& items, int64_t capacity, int64_t bins, int64_t budget) {
  double states = 1;
  double patterns = 1;
  for (size_t c = 0; c + 1 < items.bytes.size(); ++c) {
    states *= static_cast<double>(items.count[c] + 1);
    patterns *= static_cast<double>(std::min(items.count[c], capacity / items.bytes[c]) + 1);
  }
  return states * patterns * static_cast<double>(bins) <= static_cast<double>(budget);
}

bool fits(const Items& items, const Packing& packing, int64_t capacity) {
  return std::all_of(packing.begin(), packing.end(), [&](const std::vector<int64_t>& bin) {
    int64_t bytes = 0;
    for (size_t c = 0; c < bin.size(); ++c) bytes += bin[c] * items.bytes[c];
    return bytes <= capacity;
  });
}

/// Every class in turn; with `rotate`, one class begins where the one before ended.
Packing deal(const Items& items, int64_t bins, bool rotate) {
  Packing packing(static_cast<size_t>(bins), std::vector<int64_t>(items.bytes.size()));
  int64_t first = 0;
  for (size_t c = 0; c < items.bytes.size(); ++c) {
    for (int64_t b = 0; b < bins; ++b) {
      const int64_t more = b < items.count[c] % bins ? 1 : 0;
      packing[static_cast<size_t>((first + b) % bins)][c] = items.count[c] / bins + more;
    }
    if (rotate) first = (first + items.count[c]) % bins;
  }
  return packing;
}

}  // namespace

int64_t Items::total_bytes() const {
  int64_t total = 0;
  for (size_t c = 0; c < bytes.size(); ++c) {
    total = checked::add(total, checked::mul(bytes[c], count[c], "group width"), "group width");
  }
  return total;
}

int64_t Items::num_layers() const {
  return std::accumulate(count.begin(), count.end(), int64_t{0});
}

BinCount min_bins(const Items& items, int64_t capacity, WorkBudget& budget) {
  const int64_t layers = items.num_layers();
  if (layers == 0) return {0, 0};
  if (items.bytes.size() == 1) {
    const int64_t bins = checked::cdiv(layers, capacity / items.bytes[0]);
    return {bins, bins};
  }
  int64_t lower = checked::cdiv(items.total_bytes(), capacity);
  for (size_t c = 0; c < items.bytes.size(); ++c) {
    lower = std::max(lower, checked::cdiv(items.count[c], capacity / items.bytes[c]));
  }
  int64_t upper = bins_when_dealt(items, capacity).value_or(layers);
  if (upper > lower) {
    upper = std::min(upper, first_fit_decreasing(items, capacity, [](const auto&, int64_t) {}));
  }
  if (upper == lower || !worth_exact(items, capacity, upper - 1, budget.steps)) {
    return {upper, lower};
  }
  ExactPacking exact(items, capacity);
  budget.steps -= exact.steps_per_bin() * (upper - 1);
  const int64_t bins = exact.run(upper - 1).value_or(upper);
  return {bins, bins};
}

Packing pack(const Items& items, int64_t capacity, int64_t bins) {
  for (bool rotate : {false, true}) {
    Packing dealt = deal(items, bins, rotate);
    if (fits(items, dealt, capacity)) return dealt;
  }
  Packing packing;
  const int64_t filled = first_fit_decreasing(
      items, capacity, [&](const std::vector<int64_t>& pattern, int64_t repeats) {
        packing.insert(packing.end(), static_cast<size_t>(repeats), pattern);
      });
  if (filled > bins && worth_exact(items, capacity, bins, kPackBudget)) {
    ExactPacking exact(items, capacity);
    if (exact.run(bins)) packing = exact.packing();
  }
  packing.resize(static_cast<size_t>(bins), std::vector<int64_t>(items.bytes.size()));
  return packing;
}

}  // namespace kvplan::compact
