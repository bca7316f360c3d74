#include "planning/regroup/search.h"

#include <algorithm>
#include <limits>

#include "kvplan/checked.h"

namespace kvplan::compact {
namespace {

constexpr int64_t kMaxSums = 20000;  // subset sums of one bucket
constexpr size_t kMaxWidths = 8192;  // block sizes that are tried
constexpr int64_t kPackingSteps = int64_t{1} << 22;

/// Bytes for a number of groups, none beaten by another.
using Pareto = std::map<int64_t, int64_t>;

bool beaten(const Pareto& pareto, int64_t groups, int64_t bytes) {
  auto it = pareto.upper_bound(groups);
  return it != pareto.begin() && std::prev(it)->second <= bytes;
}

void insert(Pareto& pareto, int64_t groups, int64_t bytes) {
  auto it = pareto.upper_bound(groups);
  while (it != pareto.end() && it->second >= bytes) it = pareto.erase(it);
  pareto[groups] = bytes;
}

/// Adds every sum of at most `count[c]` items of each class.
void add_all_sums(const Items& items, std::vector<int64_t>& widths) {
  std::vector<int64_t> sums = {0};
  for (size_t c = 0; c < items.bytes.size(); ++c) {
    std::vector<int64_t> more;
    for (int64_t sum : sums) {
      for (int64_t n = 0; n <= items.count[c]; ++n) more.push_back(sum + n * items.bytes[c]);
    }
    std::sort(more.begin(), more.end());
    more.erase(std::unique(more.begin(), more.end()), more.end());
    sums = std::move(more);
  }
  widths.insert(widths.end(), sums.begin(), sums.end());
}

/// Calls `visit` with every value that `ceil(count / n)` takes, largest first.
template <class Visitor>
void for_each_quotient(int64_t count, Visitor&& visit) {
  for (int64_t n = 1; n <= count;) {
    const int64_t q = checked::cdiv(count, n);
    visit(q, n);
    if (q == 1) return;
    n = checked::cdiv(count, q - 1);  // the first n with a smaller quotient
  }
}

/// The widths at which the items begin to fit into fewer groups. False if some may be missing.
bool add_critical_widths(const Items& items, bool splittable, std::vector<int64_t>& widths) {
  if (items.bytes.empty()) return true;
  if (!splittable) {
    widths.push_back(items.total_bytes());
    return true;
  }
  if (items.bytes.size() == 1) {
    for_each_quotient(items.count[0],
                      [&](int64_t q, int64_t) { widths.push_back(q * items.bytes[0]); });
    return true;
  }
  int64_t sums = 1;
  for (int64_t n : items.count) {
    if (sums > kMaxSums) break;
    sums *= n + 1;
  }
  if (sums <= kMaxSums) {
    add_all_sums(items, widths);
    return true;
  }
  // What dealing out needs, and each class alone.
  for (size_t c = 0; c < items.bytes.size(); ++c) {
    for_each_quotient(items.count[c], [&](int64_t q, int64_t n) {
      widths.push_back(q * items.bytes[c]);
      int64_t dealt = 0;
      for (size_t k = 0; k < items.bytes.size(); ++k) {
        dealt += checked::cdiv(items.count[k], n) * items.bytes[k];
      }
      widths.push_back(dealt);
    });
  }
  return false;
}

/// A bucket's groups and the pages that a request holds in all of them, at one width.
struct Alternative {
  int64_t groups;
  int64_t pages;
  size_t option;
};

/// Drops alternatives that another beats in both numbers.
void keep_best(std::vector<Alternative>& alternatives) {
  std::sort(alternatives.begin(), alternatives.end(),
            [](const Alternative& a, const Alternative& b) {
              return a.groups != b.groups ? a.groups < b.groups : a.pages < b.pages;
            });
  size_t kept = 0;
  for (const Alternative& a : alternatives) {
    if (kept == 0 || a.pages < alternatives[kept - 1].pages) alternatives[kept++] = a;
  }
  alternatives.resize(kept);
}

class Search {
 public:
  explicit Search(const std::vector<Bucket>& buckets) : buckets_(buckets) {
    // Blocks of other sizes that would ask for a coarser stride are left out.
    for (const Bucket& b : buckets_) {
      alignment_ = checked::lcm(alignment_, b.options[0].stride_alignment, "block stride");
    }
  }

  SearchResult run() {
    for (int64_t width : candidate_widths()) try_width(width);
    for (auto& [groups, point] : best_points_) result_.points.push_back(std::move(point));
    return std::move(result_);
  }

 private:
  /// A partial packing of the first buckets.
  struct Node {
    int64_t groups;
    int64_t pages;
    int32_t parent;
    int32_t alternative;
  };

  bool usable(const BlockOption& option, int64_t width) const {
    return option.largest_item <= width && alignment_ % option.stride_alignment == 0;
  }

  std::vector<int64_t> candidate_widths() {
    int64_t narrowest = 0;
    int64_t widest = 0;
    for (const Bucket& b : buckets_) {
      narrowest = std::max(narrowest, b.options[0].largest_item);
      for (const BlockOption& option : b.options) {
        for (const Part& part : option.parts) {
          for (const Items& items : part.items) widest = std::max(widest, items.total_bytes());
        }
      }
    }
    std::vector<int64_t> widths = {widest};
    for (const Bucket& b : buckets_) {
      for (const BlockOption& option : b.options) {
        if (!usable(option, widest)) continue;
        for (const Part& part : option.parts) {
          for (const Items& items : part.items) {
            if (!add_critical_widths(items, b.splittable, widths)) result_.all_widths = false;
          }
        }
      }
    }
    for (int64_t& w : widths) w = checked::round_up(std::max(w, narrowest), alignment_, "width");
    std::sort(widths.begin(), widths.end(), std::greater<>());
    widths.erase(std::unique(widths.begin(), widths.end()), widths.end());
    if (widths.size() > kMaxWidths) {
      thin_out(widths);
      result_.all_widths = false;
    }
    result_.exact = result_.all_widths;
    return widths;
  }

  static void thin_out(std::vector<int64_t>& widths) {
    std::vector<int64_t> kept;
    for (size_t i = 0; i < kMaxWidths; ++i) kept.push_back(widths[i * widths.size() / kMaxWidths]);
    kept.push_back(widths.back());
    widths = std::move(kept);
  }

  /// Groups of a part at this width; with `relaxed`, `at_least` is quick to find.
  BinCount bins(const Bucket& bucket, const Part& part, int64_t width, bool relaxed) {
    BinCount most{1, 1};
    if (!bucket.splittable) return most;
    for (const Items& items : part.items) {
      WorkBudget none{0};
      const BinCount n = min_bins(items, width, relaxed ? none : budget_);
      most.bins = std::max(most.bins, n.bins);
      most.at_least = std::max(most.at_least, n.at_least);
    }
    return most;
  }

  void try_width(int64_t width) {
    if (hopeless(width)) return;
    bool exact = true;
    std::vector<std::vector<Alternative>> alternatives(buckets_.size());
    for (size_t b = 0; b < buckets_.size(); ++b) {
      const Bucket& bucket = buckets_[b];
      for (size_t o = 0; o < bucket.options.size(); ++o) {
        const BlockOption& option = bucket.options[o];
        if (!usable(option, width)) continue;
        Alternative a{0, 0, o};
        for (const Part& part : option.parts) {
          const BinCount n = bins(bucket, part, width, false);
          exact = exact && n.exact();
          a.groups += n.bins;
          a.pages = checked::add(a.pages, checked::mul(n.bins, part.pages, "pages"), "pages");
        }
        alternatives[b].push_back(a);
      }
      keep_best(alternatives[b]);
    }
    if (!exact) note_relaxed(width);
    combine(width, alternatives);
  }

  /// Groups and bytes that this width could not fall below, whatever the packing.
  std::pair<int64_t, int64_t> relaxed_point(int64_t width) {
    int64_t groups = 0;
    int64_t pages = 0;
    for (const Bucket& bucket : buckets_) {
      int64_t fewest = std::numeric_limits<int64_t>::max();
      int64_t least = std::numeric_limits<int64_t>::max();
      for (const BlockOption& option : bucket.options) {
        if (!usable(option, width)) continue;
        int64_t option_groups = 0;
        int64_t option_pages = 0;
        for (const Part& part : option.parts) {
          const int64_t n = bins(bucket, part, width, true).at_least;
          option_groups += n;
          option_pages = checked::add(option_pages, checked::mul(n, part.pages, "pages"), "pages");
        }
        fewest = std::min(fewest, option_groups);
        least = std::min(least, option_pages);
      }
      groups += fewest;
      pages = checked::add(pages, least, "pages");
    }
    return {groups, checked::mul(width, pages, "bytes of one request")};
  }

  bool hopeless(int64_t width) {
    const auto [groups, bytes] = relaxed_point(width);
    return beaten(best_, groups, bytes);
  }

  void note_relaxed(int64_t width) {
    result_.exact = false;
    const auto [groups, bytes] = relaxed_point(width);
    if (!beaten(result_.relaxed, groups, bytes)) insert(result_.relaxed, groups, bytes);
  }

  void combine(int64_t width, const std::vector<std::vector<Alternative>>& alternatives) {
    std::vector<std::vector<Node>> levels = {{{0, 0, -1, -1}}};
    for (const std::vector<Alternative>& choices : alternatives) {
      std::vector<Node> next;
      for (size_t i = 0; i < levels.back().size(); ++i) {
        const Node& node = levels.back()[i];
        for (size_t a = 0; a < choices.size(); ++a) {
          next.push_back({node.groups + choices[a].groups,
                          checked::add(node.pages, choices[a].pages, "pages"),
                          static_cast<int32_t>(i), static_cast<int32_t>(a)});
        }
      }
      std::sort(next.begin(), next.end(), [](const Node& x, const Node& y) {
        return x.groups != y.groups ? x.groups < y.groups : x.pages < y.pages;
      });
      size_t kept = 0;
      for (const Node& node : next) {
        if (kept == 0 || node.pages < next[kept - 1].pages) next[kept++] = node;
      }
      next.resize(kept);
      levels.push_back(std::move(next));
    }
    for (const Node& node : levels.back()) {
      const int64_t bytes = checked::mul(width, node.pages, "bytes of one request");
      if (beaten(best_, node.groups, bytes)) continue;
      insert(best_, node.groups, bytes);
      remember(width, bytes, node, levels, alternatives);
    }
  }

  void remember(int64_t width, int64_t bytes, const Node& last,
                const std::vector<std::vector<Node>>& levels,
                const std::vector<std::vector<Alternative>>& alternatives) {
    PackedPoint point{last.groups, last.pages, width, bytes,
                      std::vector<BucketChoice>(buckets_.size())};
    const Node* node = &last;
    for (size_t b = buckets_.size(); b-- > 0;) {
      const Alternative& a = alternatives[b][static_cast<size_t>(node->alternative)];
      point.choices[b].option = a.option;
      for (const Part& part : buckets_[b].options[a.option].parts) {
        point.choices[b].num_groups.push_back(bins(buckets_[b], part, width, false).bins);
      }
      node = &levels[b][static_cast<size_t>(node->parent)];
    }
    auto it = best_points_.lower_bound(last.groups);
    while (it != best_points_.end() && it->second.request_bytes >= bytes) {
      it = best_points_.erase(it);
    }
    best_points_.insert_or_assign(last.groups, std::move(point));
  }

  const std::vector<Bucket>& buckets_;
  int64_t alignment_ = 1;
  WorkBudget budget_{kPackingSteps};
  Pareto best_;
  std::map<int64_t, PackedPoint> best_points_;
  SearchResult result_;
};

}  // namespace

SearchResult search(const std::vector<Bucket>& buckets) { return Search(buckets).run(); }

}  // namespace kvplan::compact
