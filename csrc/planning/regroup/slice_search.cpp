#include "planning/regroup/slice_search.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "kvplan/checked.h"

namespace kvplan::sliced {
namespace {

constexpr int64_t kMaxSteps = 2'000'000;    // divisors and blocks that are tried
constexpr int64_t kMaxPrices = 20'000'000;  // kinds that are looked at for all of these
// Blocks' worth of free slices that a group has when another group needs some, in the middle of
// what a simulated server lost (docs/fragmentation.md).
constexpr double kUnusedBlocks = 8;
constexpr double kEqual = 1e-12;  // relative, below which two prices are the same

/// Price of a block in which a request holds `blocks` blocks.
double price_of(const SliceProblem& problem, int64_t block, double blocks) {
  const auto bytes = static_cast<double>(block);
  const auto pool = static_cast<double>(std::max<int64_t>(problem.pool_bytes, 1));
  const double unused = kUnusedBlocks * static_cast<double>(problem.kinds.size()) * bytes;
  return bytes * blocks * (1 + unused / pool);
}

class SliceSearch {
 public:
  explicit SliceSearch(const SliceProblem& problem) : problem_(problem) {
    merge_kinds();
    by_share_.resize(kinds_.size());
    int64_t widest = 0;
    for (const SliceKind& k : kinds_) {
      alignment_ = checked::lcm(alignment_, k.alignment,
                                "bytes per block that all groups can cut into aligned slices");
      widest = std::max(widest, k.slice_bytes);
    }
    narrowest_block_ = checked::round_up(widest, alignment_, "bytes per block");
    // Even where the pool is too small for the bound, a little room lets the others fit.
    widest_block_ =
        std::max(problem.max_block_bytes,
                 checked::add(narrowest_block_, narrowest_block_ / 4, "bytes per block"));
    // Kinds that hold most come first, so that a block is given up early.
    std::iota(by_share_.begin(), by_share_.end(), size_t{0});
    std::sort(by_share_.begin(), by_share_.end(),
              [&](size_t a, size_t b) { return share(kinds_[a]) > share(kinds_[b]); });
    best_.cost = std::numeric_limits<double>::infinity();
  }

  SliceChoice run() {
    start_with_round_blocks();
    for (const Interval& i : intervals()) search(i);
    std::vector<int64_t> slices;
    slices.reserve(merged_.size());
    for (size_t k : merged_) slices.push_back(best_.slices[k]);
    best_.slices = std::move(slices);
    return std::move(best_);
  }

 private:
  /// Kinds that need the same slices are cut alike, so they are one to the search.
  void merge_kinds() {
    std::map<std::tuple<int64_t, int64_t, bool>, size_t> known;
    for (const SliceKind& k : problem_.kinds) {
      const auto [at, is_new] =
          known.try_emplace({k.slice_bytes, k.alignment, k.pages == 0}, kinds_.size());
      if (is_new) {
        kinds_.push_back(k);
      } else {
        kinds_[at->second].pages = checked::add(kinds_[at->second].pages, k.pages, "pages");
      }
      merged_.push_back(at->second);
    }
  }

  /// Whether the work has become too much; the best so far then stands.
  bool gives_up() {
    prices_ += static_cast<int64_t>(kinds_.size());
    if (prices_ <= kMaxPrices) return false;
    best_.exact = false;
    return true;
  }

  /// Blocks between two multiples of slices.
  struct Interval {
    double bound;
    int64_t begin;
    int64_t end;
  };

  static double share(const SliceKind& k) {
    return static_cast<double>(k.pages) * static_cast<double>(k.slice_bytes);
  }

  double priced(int64_t block, double blocks) const { return price_of(problem_, block, blocks); }

  static int64_t most_slices(const SliceKind& k, int64_t block) {
    return std::min(block / k.slice_bytes, kMaxSlices);
  }

  double bound(int64_t block) const {
    double blocks = 0;
    for (const SliceKind& k : kinds_) {
      blocks += static_cast<double>(k.pages) / static_cast<double>(most_slices(k, block));
    }
    return priced(block, blocks);
  }

  /// Blocks that many numbers divide give a good first price.
  void start_with_round_blocks() {
    constexpr int64_t kRound[] = {1, 12, 60, 720, 5040, 55440, 720720};
    for (const SliceKind& k : kinds_) {
      for (int64_t n = 1; n <= 64 && n <= widest_block_ / k.slice_bytes; ++n) {
        if (prices_ > kMaxPrices / 2) break;  // the rest is for what is worth a look
        for (int64_t round : kRound) {
          if (round > widest_block_ / alignment_) break;
          const int64_t unit = alignment_ * round;
          const int64_t block = std::max(n * k.slice_bytes, narrowest_block_);
          if (block > widest_block_ - unit) break;
          try_block(checked::round_up(block, unit, "bytes per block"));
        }
      }
    }
    try_block(narrowest_block_);
  }

  std::vector<Interval> intervals() {
    std::vector<int64_t> begins = {narrowest_block_};
    for (const SliceKind& k : kinds_) {
      const int64_t most = most_slices(k, widest_block_);
      for (int64_t n = narrowest_block_ / k.slice_bytes + 1; n <= most; ++n) {
        const int64_t block = checked::round_up(n * k.slice_bytes, alignment_, "bytes per block");
        if (block > widest_block_) break;
        begins.push_back(block);
      }
    }
    std::sort(begins.begin(), begins.end());
    begins.erase(std::unique(begins.begin(), begins.end()), begins.end());
    std::vector<Interval> result;
    for (size_t i = 0; i < begins.size() && !gives_up(); ++i) {
      const double lowest = bound(begins[i]);
      if (!better(lowest)) continue;
      result.push_back(
          {lowest, begins[i], i + 1 < begins.size() ? begins[i + 1] : widest_block_ + 1});
    }
    std::sort(result.begin(), result.end(),
              [](const Interval& a, const Interval& b) { return a.bound < b.bound; });
    return result;
  }

  void search(const Interval& interval) {
    if (!better(interval.bound)) return;
    // Within the interval the bound is this many blocks, whatever the block.
    if (gives_up()) return;
    double blocks = 0;
    for (const SliceKind& k : kinds_) {
      blocks += static_cast<double>(k.pages) / static_cast<double>(most_slices(k, interval.begin));
    }
    for (int64_t block = interval.begin; block < interval.end; block += alignment_) {
      if (!better(priced(block, blocks))) return;
      if (gives_up() || steps_ >= kMaxSteps) {
        best_.exact = false;
        return;
      }
      try_block(block);
    }
  }

  bool better(double price) const { return price < best_.cost * (1 - kEqual); }

  void try_block(int64_t block) {
    ++steps_;
    prices_ += static_cast<int64_t>(kinds_.size());
    std::vector<int64_t>& slices = slices_;
    slices.assign(kinds_.size(), 1);
    double blocks = 0;  // of a request; of kinds not looked at yet, the fewest
    for (const SliceKind& k : kinds_) {
      blocks += static_cast<double>(k.pages) / static_cast<double>(most_slices(k, block));
    }
    for (size_t i : by_share_) {
      const SliceKind& k = kinds_[i];
      if (k.pages == 0) continue;
      const int64_t units = block / k.alignment;
      int64_t n = most_slices(k, block);
      const auto pages = static_cast<double>(k.pages);
      const double fewest = pages / static_cast<double>(n);
      for (; units % n != 0; --n) {
        ++steps_;
        if (!better(priced(block, blocks - fewest + pages / static_cast<double>(n)))) return;
      }
      blocks += pages / static_cast<double>(n) - fewest;
      slices[i] = n;
    }
    const double cost = priced(block, blocks);
    if (!better(cost)) return;
    best_.cost = cost;
    best_.block_bytes = block;
    best_.slices = slices;
  }

  const SliceProblem& problem_;
  std::vector<SliceKind> kinds_;  // without duplicates
  std::vector<size_t> merged_;    // for each kind of the problem, which of them
  std::vector<size_t> by_share_;
  int64_t alignment_ = 1;
  int64_t narrowest_block_ = 0;
  int64_t widest_block_ = 0;
  int64_t steps_ = 0;
  int64_t prices_ = 0;
  std::vector<int64_t> slices_;
  SliceChoice best_;
};

}  // namespace

double price(const SliceProblem& problem, int64_t block_bytes, const std::vector<int64_t>& slices) {
  double blocks = 0;
  for (size_t i = 0; i < slices.size(); ++i) {
    blocks += static_cast<double>(problem.kinds[i].pages) / static_cast<double>(slices[i]);
  }
  return price_of(problem, block_bytes, blocks);
}

SliceChoice choose_slices(const SliceProblem& problem) { return SliceSearch(problem).run(); }

}  // namespace kvplan::sliced
