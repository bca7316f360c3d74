#include "check/page_overlap.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

namespace kvplan::checking {
namespace {

/// One run of block 0 of the pool; block b repeats it `b * period` bytes further on.
struct Run {
  int64_t start;
  int64_t bytes;
  int64_t period;
  int64_t blocks;
  int32_t group;
  LayerId layer;
};

/// Part of a run within one period: bytes [begin, end) of period `quotient`.
struct Piece {
  int64_t begin;
  int64_t end;
  int64_t quotient;
  const Run* run;
};

std::vector<Run> runs_of_block_0(const CheckedWorker& worker,
                                 const std::vector<TensorRuns>& tensors) {
  std::vector<Run> runs;
  for (const TensorRuns& t : tensors) {
    const int64_t pool_blocks = t.blocks / t.slices;
    // With one block nothing repeats, and any period beyond the buffer's end says so.
    const int64_t period =
        pool_blocks > 1 ? t.block_stride * t.slices : std::max<int64_t>(worker.buffer_bytes, 1);
    for (int64_t l = 0; l < t.layers; ++l) {
      const LayerId layer = worker.tensors[t.tensor].layers[static_cast<size_t>(l)];
      for (int64_t s = 0; s < t.slices; ++s) {
        for (int64_t h = 0; h < t.heads; ++h) {
          const int64_t start =
              t.offset + l * t.layer_stride + s * t.block_stride + h * t.head_stride;
          runs.push_back({start, t.run_bytes, period, pool_blocks, t.group, layer});
        }
      }
    }
  }
  return runs;
}

class OverlapCheck {
 public:
  OverlapCheck(size_t worker, Violations& violations) : worker_(worker), violations_(violations) {}

  bool run(const std::vector<Run>& runs) {
    std::map<int64_t, std::vector<const Run*>> by_period;
    for (const Run& r : runs) by_period[r.period].push_back(&r);
    for (const auto& [period, members] : by_period) {
      if (!check_one_period(period, members)) return false;
    }
    return by_period.size() <= 1 || check_across_periods(runs);
  }

 private:
  void report(const Run& a, const Run& b, int64_t block_a, int64_t block_b) {
    const bool same_group = a.group == b.group;
    violations_.add(same_group ? Rule::kPagesDisjoint : Rule::kBlocksDisjoint, worker_,
                    violations_.name(a.layer) + " (group " + std::to_string(a.group) + ") block " +
                        std::to_string(block_a) + " shares bytes with " +
                        violations_.name(b.layer) + " (group " + std::to_string(b.group) +
                        ") block " + std::to_string(block_b));
  }

  // Runs a and b meet in blocks i and j exactly if their pieces meet within a period and
  // i + quotient_a = j + quotient_b. So pieces that meet collide if their quotients are less than
  // `blocks` apart, unless they belong to different groups and only equal blocks meet.
  bool check_one_period(int64_t period, const std::vector<const Run*>& runs) {
    std::vector<Piece> pieces;
    pieces.reserve(runs.size());
    for (const Run* r : runs) {
      if (r->bytes > period && r->blocks > 1) {
        report(*r, *r, 0, 1);
        return false;
      }
      const int64_t quotient = r->start / period;
      const int64_t begin = r->start % period;
      const int64_t in_first = std::min(r->bytes, period - begin);
      pieces.push_back({begin, begin + in_first, quotient, r});
      if (in_first < r->bytes) pieces.push_back({0, r->bytes - in_first, quotient + 1, r});
    }
    return sweep(pieces);
  }

  bool sweep(std::vector<Piece>& pieces) {
    std::sort(pieces.begin(), pieces.end(),
              [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
    std::vector<const Piece*> by_end;
    by_end.reserve(pieces.size());
    for (const Piece& p : pieces) by_end.push_back(&p);
    std::sort(by_end.begin(), by_end.end(),
              [](const Piece* a, const Piece* b) { return a->end < b->end; });

    const auto before = [](const Piece* a, const Piece* b) {
      return std::pair(a->quotient, a->run->group) < std::pair(b->quotient, b->run->group);
    };
    std::set<const Piece*, decltype(before)> open(before);
    size_t closed = 0;
    for (const Piece& p : pieces) {
      for (; by_end[closed]->end <= p.begin; ++closed) open.erase(by_end[closed]);
      // Pieces that are open together without a collision have one quotient and different groups,
      // or quotients at least `blocks` apart; so a collision shows at a neighbour in this order.
      const auto at = open.lower_bound(&p);
      if (at != open.end() && collides(**at, p)) return false;
      if (at != open.begin() && collides(**std::prev(at), p)) return false;
      open.insert(&p);
    }
    return true;
  }

  bool collides(const Piece& a, const Piece& b) {
    const int64_t apart = b.quotient - a.quotient;
    const int64_t blocks = std::max(a.run->blocks, b.run->blocks);
    if (apart >= blocks || -apart >= blocks) return false;
    if (apart == 0 && a.run->group != b.run->group) return false;
    report(*a.run, *b.run, std::max<int64_t>(apart, 0), std::max<int64_t>(-apart, 0));
    return true;
  }

  // Rare: block strides that differ within a buffer. Regions that lie apart settle it; what is
  // left is searched block by block.
  bool check_across_periods(const std::vector<Run>& runs) {
    std::vector<const Run*> sorted;
    sorted.reserve(runs.size());
    for (const Run& r : runs) sorted.push_back(&r);
    std::sort(sorted.begin(), sorted.end(),
              [](const Run* a, const Run* b) { return a->start < b->start; });
    std::vector<const Run*> open;
    for (const Run* r : sorted) {
      std::erase_if(open, [&](const Run* o) { return last_byte(*o) < r->start; });
      for (const Run* o : open) {
        if (o->period != r->period && !search_pair(*o, *r)) return false;
      }
      open.push_back(r);
    }
    return true;
  }

  static int64_t last_byte(const Run& r) {
    return r.start + (r.blocks - 1) * r.period + r.bytes - 1;
  }

  /// False once the search is over: a collision was found, or too much was searched.
  bool search_pair(const Run& a, const Run& b) {
    const int64_t first = std::max<int64_t>(0, (b.start - a.start - a.bytes) / a.period);
    for (int64_t i = first; i < a.blocks; ++i) {
      const int64_t begin = a.start + i * a.period;
      const int64_t end = begin + a.bytes;
      if (begin > last_byte(b)) return true;
      if (++steps_ > kMaxSteps) {
        violations_.add(Rule::kBlocksDisjoint, worker_,
                        "block strides of " + std::to_string(a.period) + " and " +
                            std::to_string(b.period) +
                            " bytes interleave too widely to be checked");
        return false;
      }
      // The first block of b that ends beyond `begin`.
      const int64_t beyond = begin - b.start - b.bytes;
      int64_t j = beyond < 0 ? 0 : beyond / b.period + 1;
      if (a.group != b.group && j == i) ++j;
      if (j < b.blocks && b.start + j * b.period < end) {
        report(a, b, i, j);
        return false;
      }
    }
    return true;
  }

  static constexpr int64_t kMaxSteps = 4'000'000;
  size_t worker_;
  Violations& violations_;
  int64_t steps_ = 0;
};

}  // namespace

bool check_overlap(const CheckedWorker& worker, size_t worker_index,
                   const std::vector<TensorRuns>& tensors, Violations& violations) {
  return OverlapCheck(worker_index, violations).run(runs_of_block_0(worker, tensors));
}

}  // namespace kvplan::checking
