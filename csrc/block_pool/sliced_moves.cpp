#include <algorithm>
#include <string>
#include <utility>

#include "block_pool/sliced_block_pool_state.h"
#include "kvplan/sliced_block_pool.h"

namespace kvplan {

namespace detail {

namespace {

struct Candidate {
  uint32_t large = 0;  // 0: none
  uint32_t used = 0;   // slices, those found among them
};

/// Partly used large blocks of a group, emptiest first; of those equally full, the ones with an
/// empty slice come first, so that less is dropped. Marked blocks are passed over; those among
/// them that may be emptied come from `marked`, which is sorted by use.
class EmptiestFirst {
 public:
  EmptiestFirst(const LargeBlock* large, const SlicedGroup& group, std::vector<Candidate> marked)
      : large_(large), group_(group), marked_(std::move(marked)) {}

  Candidate candidate() {
    if (candidate_.large == 0) find_next();
    return candidate_;
  }
  void next() { candidate_ = {}; }

 private:
  void find_next() {
    while (used_ < group_.slices()) {
      if (const uint32_t l = next_unmarked()) {
        candidate_ = {l, used_};
        return;
      }
      if (num_marked_ < marked_.size() && marked_[num_marked_].used == used_) {
        candidate_ = marked_[num_marked_++];
        return;
      }
      ++used_;
      phase_ = Phase::kStart;
    }
  }

  enum class Phase { kStart, kRoomy, kEvictable };

  uint32_t next_unmarked() {
    while (true) {
      if (phase_ == Phase::kStart) {
        at_ = group_.roomy.lists()[used_].first;
        phase_ = Phase::kRoomy;
      } else if (at_ != 0) {
        at_ = phase_ == Phase::kRoomy ? large_[at_].roomy.next : large_[at_].evictable.next;
      }
      if (at_ == 0 && phase_ == Phase::kRoomy) {
        at_ = group_.evictable.lists()[used_].first;
        phase_ = Phase::kEvictable;
      }
      if (at_ == 0) return 0;
      const LargeBlock& block = large_[at_];
      const bool was_roomy = block.num_used + block.num_cached != group_.slices();
      if (!block.is_counted && (phase_ == Phase::kRoomy || !was_roomy)) return at_;
    }
  }

  const LargeBlock* large_;
  const SlicedGroup& group_;
  std::vector<Candidate> marked_;
  size_t num_marked_ = 0;
  uint32_t used_ = 1;
  Phase phase_ = Phase::kStart;
  uint32_t at_ = 0;
  Candidate candidate_;
};

/// Large blocks that hold blocks of the demands which nobody else holds, with their use once
/// those are held; by group.
std::vector<std::vector<Candidate>> with_found(const SlicedBlockPoolState& s,
                                               std::span<const SliceDemand> demands) {
  std::vector<std::vector<Candidate>> result(s.groups.size());
  std::vector<std::pair<uint32_t, uint32_t>> found;  // record and group
  for (const SliceDemand& demand : demands) {
    const auto g = static_cast<uint32_t>(demand.group_id);
    for (const BlockId id : demand.found) {
      if (id == kNullBlock) continue;
      const SliceRef ref = s.ref_of(s.groups[g], id);
      if (s.record_at(ref).ref_count == 0) found.emplace_back(s.record_of(ref), g);
    }
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  for (const auto& [record, g] : found) {
    const uint32_t l = record / s.records_per_large;
    std::vector<Candidate>& candidates = result[g];
    if (candidates.empty() || candidates.back().large != l) {
      candidates.push_back({l, s.large[l].num_used});
    }
    ++candidates.back().used;
  }
  return result;
}

/// Large blocks that are passed over, for as long as this lives.
class Marks {
 public:
  explicit Marks(LargeBlock* large) : large_(large) {}
  ~Marks() {
    for (const uint32_t l : marked_) large_[l].is_counted = false;
  }
  Marks(const Marks&) = delete;
  Marks& operator=(const Marks&) = delete;

  bool has(uint32_t l) const { return large_[l].is_counted; }
  void add(uint32_t l) {
    if (has(l)) return;
    marked_.push_back(l);
    large_[l].is_counted = true;
  }

 private:
  LargeBlock* large_;
  std::vector<uint32_t> marked_;
};

}  // namespace

std::optional<int64_t> SlicedBlockPoolState::count_vacancies(std::span<const SliceDemand> demands,
                                                             const MoveOptions& options,
                                                             const char* operation) {
  if (options.max_moves < 0) {
    throw InvalidArgument(std::string(operation) + ": max_moves is 0 or more, not " +
                          std::to_string(options.max_moves));
  }
  for (const GroupBlocks& pinned : options.pinned) {
    const uint32_t g = checked_group(pinned.group_id);
    for (const BlockId id : pinned.blocks) checked_owned(g, id, operation);
  }
  int64_t missing = -count_demands(demands, operation);
  for (uint32_t g = 0; g < groups.size(); ++g) {
    missing += large_blocks_needed(groups[g], admission_new_[g], admission_free_[g]);
    if (missing > int64_t{num_large}) return std::nullopt;
  }
  // A large block less takes k slices from those free in the group's own, wherever they lie.
  int64_t num_possible = 0;
  for (uint32_t g = 0; g < groups.size(); ++g) {
    num_possible += std::max<int64_t>(num_spare(g), 0) / groups[g].slices();
  }
  if (num_possible < missing) return std::nullopt;
  return std::max<int64_t>(missing, 0);
}

std::optional<SlicedBlockPoolState::Vacancies> SlicedBlockPoolState::plan_moves(
    std::span<const SliceDemand> demands, const MoveOptions& options, const char* operation) {
  const std::optional<int64_t> num_vacancies = count_vacancies(demands, options, operation);
  if (!num_vacancies) return std::nullopt;
  Vacancies result;
  if (*num_vacancies == 0) return result;

  std::vector<std::vector<Candidate>> found = with_found(*this, demands);
  Marks marks(large);
  for (const GroupBlocks& pinned : options.pinned) {
    const SlicedGroup& group = groups[static_cast<uint32_t>(pinned.group_id)];
    for (const BlockId id : pinned.blocks) {
      if (id != kNullBlock) marks.add(ref_of(group, id).large);
    }
  }
  for (std::vector<Candidate>& candidates : found) {
    std::erase_if(candidates, [&](const Candidate& c) { return marks.has(c.large); });
  }
  for (const std::vector<Candidate>& candidates : found) {
    for (const Candidate& c : candidates) marks.add(c.large);
  }
  std::vector<EmptiestFirst> emptiest;
  emptiest.reserve(groups.size());
  for (uint32_t g = 0; g < groups.size(); ++g) {
    std::stable_sort(found[g].begin(), found[g].end(),
                     [](const Candidate& a, const Candidate& b) { return a.used < b.used; });
    emptiest.emplace_back(large, groups[g], std::move(found[g]));
  }

  for (int64_t missing = *num_vacancies; missing > 0; --missing) {
    uint32_t best = 0;
    Candidate least;
    for (uint32_t g = 0; g < groups.size(); ++g) {
      if (num_spare(g) < groups[g].slices()) continue;
      const Candidate c = emptiest[g].candidate();
      if (c.large == 0) continue;
      if (least.large == 0 ||
          uint64_t{c.used} * groups[best].slices() < uint64_t{least.used} * groups[g].slices()) {
        best = g;
        least = c;
      }
    }
    if (least.large == 0) return std::nullopt;
    result.num_moves += least.used;
    if (result.num_moves > options.max_moves) return std::nullopt;
    result.large.push_back(least.large);
    admission_free_[best] -= groups[best].slices();
    emptiest[best].next();
  }
  std::stable_sort(result.large.begin(), result.large.end(),
                   [&](uint32_t a, uint32_t b) { return large[a].owner < large[b].owner; });
  return result;
}

void SlicedBlockPoolState::move_slice(SliceRef from, SliceRef to) {
  BlockRecord& source = record_at(from);
  BlockRecord& target = record_at(to);
  move_keys(record_of(from), record_of(to));
  target.ref_count = std::exchange(source.ref_count, 0);
  source.clear_flag(BlockRecord::kInUse);
  target.set_flag(BlockRecord::kInUse);
  if ((source.key.flags & BlockRecord::kWatched) == 0) return;
  source.clear_flag(BlockRecord::kWatched);
  target.set_flag(BlockRecord::kWatched);
  watchers.move(record_of(from), record_of(to));
}

std::vector<SliceRef> SlicedBlockPoolState::watched_and_dropped(
    std::span<const uint32_t> vacated) const {
  std::vector<SliceRef> result;
  const auto look_at = [&](uint32_t l, int64_t most) {
    for (uint32_t at = large[l].cached_first; at != 0 && most > 0; --most) {
      const BlockRecord& record = record_at({l, at - 1});
      if ((record.key.flags & BlockRecord::kWatched) != 0) result.push_back({l, at - 1});
      at = record.next_link;
    }
  };
  const SlicedGroup& group = groups[large[vacated.front()].owner];
  Marks marks(large);
  // Moves that find no empty slice go in place of cached ones, in the order of `aged`.
  int64_t num_left = -group.num_partly_free;
  for (const uint32_t l : vacated) {
    marks.add(l);
    num_left += group.slices();
    look_at(l, large[l].num_cached);
  }
  for (uint32_t l = group.aged.first; l != 0; l = large[l].age.next) {
    if (!marks.has(l)) num_left += large[l].num_cached;
  }
  for (uint32_t l = group.aged.first; l != 0 && num_left > 0; l = large[l].age.next) {
    if (marks.has(l)) continue;
    look_at(l, num_left);
    num_left -= large[l].num_cached;
  }
  return result;
}

void SlicedBlockPoolState::vacate(std::span<const uint32_t> vacated,
                                  std::vector<SliceMove>& moves) {
  const uint16_t owner = large[vacated.front()].owner;
  SlicedGroup& group = groups[owner];
  // First out of all lists, so that nothing moves from one of them to another.
  for (const uint32_t l : vacated) {
    open(l);
    unlist(l);
    while (large[l].num_cached != 0) evict(record_of({l, take_oldest_cached(l)}));
  }
  uint32_t target = 0;
  uint32_t num_left = 0;
  bool from_cached = false;
  for (const uint32_t l : vacated) {
    for (uint32_t slice = 0; large[l].num_used != 0; ++slice) {
      if ((record_at({l, slice}).key.flags & BlockRecord::kInUse) == 0) continue;
      if (num_left == 0) {
        if (target != 0) close(target, false);
        target = group.roomy.fullest();
        from_cached = target == 0 || large[target].num_used == 0;
        if (from_cached) target = group.aged.first;
        open(target);
        num_left = from_cached ? large[target].num_cached : num_empty(target);
      }
      --num_left;
      SliceRef to{target, 0};
      if (from_cached) {
        to.slice = take_oldest_cached(target);
        evict(record_of(to));
        ++large[target].num_used;
      } else {
        to.slice = take_empty(target);
      }
      move_slice({l, slice}, to);
      --large[l].num_used;
      const auto id = static_cast<BlockId>(target * group.slices() + to.slice);
      record_at({l, slice}).next_link = static_cast<uint32_t>(id);
      moves.push_back({.group_id = PoolGroupId{owner},
                       .source = static_cast<BlockId>(l * group.slices() + slice),
                       .destination = id});
    }
  }
  if (target != 0) close(target, false);
  for (const uint32_t l : vacated) close(l, false);
}

namespace {

/// Calls `visit` with the large blocks of each group in turn.
template <typename Visit>
void for_each_owner(const SlicedBlockPoolState& s, std::span<const uint32_t> large, Visit visit) {
  while (!large.empty()) {
    size_t n = 1;
    while (n < large.size() && s.large[large[n]].owner == s.large[large[0]].owner) ++n;
    visit(large.first(n));
    large = large.subspan(n);
  }
}

std::vector<SliceRef> watched_and_dropped(const SlicedBlockPoolState& s,
                                          std::span<const uint32_t> vacated) {
  std::vector<SliceRef> result;
  if (s.watchers.empty()) return result;
  for_each_owner(s, vacated, [&](std::span<const uint32_t> of_group) {
    const std::vector<SliceRef> more = s.watched_and_dropped(of_group);
    result.insert(result.end(), more.begin(), more.end());
  });
  return result;
}

}  // namespace

BlockId SlicedBlockPoolState::moved(uint32_t group, BlockId id) const {
  const SliceRef ref = ref_of(groups[group], id);
  // What is held lies in a large block of the group, unless that one was emptied.
  if (id == kNullBlock || owns(group, ref.large)) return id;
  return static_cast<BlockId>(record_at(ref).next_link);
}

}  // namespace detail

using detail::OperationCheck;
using detail::SlicedBlockPoolState;
using detail::SlicedGroup;
using detail::SliceRef;

int64_t SlicedBlockPool::num_free_large_blocks_after_moves() const noexcept {
  int64_t result = state_->num_free_large;
  for (const SlicedGroup& group : state_->groups) result += group.num_partly_free / group.slices();
  return result;
}

bool SlicedBlockPool::can_make_room(std::span<const SliceDemand> demands,
                                    const MoveOptions& options) const {
  constexpr const char* kName = "can_make_room";
  const std::optional<int64_t> num_vacancies = state_->count_vacancies(demands, options, kName);
  if (!num_vacancies || *num_vacancies == 0) return num_vacancies.has_value();
  const bool is_limited = options.max_moves != MoveOptions{}.max_moves || !options.pinned.empty();
  return !is_limited || state_->plan_moves(demands, options, kName).has_value();
}

std::optional<std::vector<SliceMove>> SlicedBlockPool::make_room(
    std::span<const SliceDemand> demands, const MoveOptions& options) {
  SlicedBlockPoolState& s = *state_;
  const OperationCheck check(s);
  while (true) {
    const auto plan = s.plan_moves(demands, options, "make_room");
    if (!plan) return std::nullopt;
    std::vector<SliceMove> moves;
    if (plan->large.empty()) return moves;
    moves.reserve(static_cast<size_t>(plan->num_moves));
    std::vector<std::vector<BlockId>> held(demands.size());
    for (size_t i = 0; i < demands.size(); ++i) {
      held[i].assign(demands[i].found.rbegin(), demands[i].found.rend());
    }

    // Held meanwhile, as `allocate` will hold them, so that they count as in use.
    for (const SliceDemand& d : demands) s.touch(static_cast<uint32_t>(d.group_id), d.found);
    const std::vector<SliceRef> lost = detail::watched_and_dropped(s, plan->large);
    if (lost.empty()) {
      detail::for_each_owner(s, plan->large, [&](auto vacated) { s.vacate(vacated, moves); });
    }
    for (const SliceRef ref : lost) {
      s.unwatch(ref);
      s.settle(ref);
    }
    for (size_t i = 0; i < demands.size(); ++i) {
      const auto g = static_cast<uint32_t>(demands[i].group_id);
      for (BlockId& id : held[i]) id = s.moved(g, id);
      s.release(g, held[i], "make_room", false);
      s.free_unheld(g, held[i]);
    }
    check.done(*this);
    if (lost.empty()) return moves;
    // Who hears of it may call the pool, or fail; so before anything moves, and then once more.
    s.tell_reused();
  }
}

}  // namespace kvplan
