#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "block_pool_model.h"
#include "kvplan/sliced_block_pool.h"

/// An obvious sliced pool that looks at everything each time, and a driver that applies one
/// sequence of operations to it and to the real pool and compares. Shared by a test and a fuzz
/// target.
namespace kvplan::testing {

/// A callback of `unpin_blocks` that was called: who gave it, and the block.
struct ModelReuse {
  int watcher = 0;
  int group = 0;
  int block = 0;
  friend bool operator==(const ModelReuse&, const ModelReuse&) = default;
};

struct ModelDemand {
  int group = 0;
  std::vector<int> found{};
  int num_new = 0;
};

class SlicedModel {
 public:
  struct Slice {
    int ref_count = 0;
    std::string hash;
    int64_t num_tokens = 0;
    std::vector<std::string> more{};  // hashes besides
    std::vector<int> watchers{};      // who unpinned it, while the contents are there
    uint64_t watched_since = 0;
    bool is_kept() const { return !hash.empty() || !watchers.empty(); }
  };
  enum class Ages { kNone, kGroup, kWhole };
  struct Large {
    int owner = -1;
    std::vector<Slice> slices;
    std::vector<int> unused;  // slices that are empty, the next one last
    std::vector<int> cached;  // other free slices, first freed first
    Ages ages = Ages::kNone;
    uint64_t age = 0;         // when it entered that list
    uint64_t last_touch = 0;  // of any kind
    int used() const { return static_cast<int>(slices.size() - unused.size() - cached.size()); }
  };

  SlicedModel(int num_large, std::vector<int> slices_, bool caching_, double own_first_above_)
      : slices(std::move(slices_)),
        caching(caching_),
        own_first_above(own_first_above_),
        large(static_cast<size_t>(num_large)) {
    for (int l = num_large - 1; l >= 1; --l) reserve.push_back(l);
  }

  int k(int g) const { return slices[static_cast<size_t>(g)]; }
  int num_large() const { return static_cast<int>(large.size()); }
  bool exists(int g, int id) const { return id == 0 || (id >= k(g) && id < k(g) * num_large()); }
  Large& block_of(int g, int id) { return large[static_cast<size_t>(id / k(g))]; }
  const Large& block_of(int g, int id) const { return large[static_cast<size_t>(id / k(g))]; }
  bool owned(int g, int id) const {
    return exists(g, id) && (id == 0 || block_of(g, id).owner == g);
  }
  Slice& slice_of(int g, int id) { return block_of(g, id).slices[static_cast<size_t>(id % k(g))]; }
  /// As seen from outside: free and without a hash if the large block is not the group's.
  Slice seen(int g, int id) const {
    if (id == 0 || !owned(g, id)) return {};
    return block_of(g, id).slices[static_cast<size_t>(id % k(g))];
  }

  int num_free_large() const {
    int count = static_cast<int>(reserve.size());
    for (const Large& b : large) count += b.owner >= 0 && b.used() == 0;
    return count;
  }
  int num_partly_free(int g) const {
    int count = 0;
    for (const Large& b : large) {
      if (b.owner == g && b.used() != 0) count += k(g) - b.used();
    }
    return count;
  }
  int num_used(int g) const {
    int count = 0;
    for (const Large& b : large) count += b.owner == g ? b.used() : 0;
    return count;
  }
  int needed(int g, int num_new) const {
    const int missing = num_new - num_partly_free(g);
    return missing <= 0 ? 0 : (missing + k(g) - 1) / k(g);
  }

  bool can_touch(int g, const std::vector<int>& ids) const {
    return std::all_of(ids.begin(), ids.end(), [&](int id) {
      if (!owned(g, id)) return false;
      const Slice s = seen(g, id);
      return id == 0 || s.ref_count > 0 || s.is_kept();
    });
  }
  bool touch(int g, const std::vector<int>& ids) {
    if (!can_touch(g, ids)) return false;
    for (const int id : ids) {
      if (id == 0 || slice_of(g, id).ref_count++ != 0) continue;
      std::vector<int>& listed = block_of(g, id).cached;
      listed.erase(std::find(listed.begin(), listed.end(), id % k(g)));
      changed(id / k(g), true);
    }
    return true;
  }

  /// `watcher`: of `unpin_blocks`, else 0.
  bool free(int g, const std::vector<int>& ids, int watcher = 0) {
    std::map<int, int> times;
    for (const int id : ids) {
      if (!owned(g, id)) return false;
      if (id == 0 && watcher != 0) return false;
      if (id != 0 && ++times[id] > slice_of(g, id).ref_count) return false;
    }
    for (const auto& [id, n] : times) slice_of(g, id).ref_count -= n;
    for (size_t i = 0; watcher != 0 && i < ids.size(); ++i) {
      Slice& s = slice_of(g, ids[i]);
      if (s.watchers.empty()) s.watched_since = ++clock_;
      s.watchers.push_back(watcher);
    }
    for (const int id : ids) {
      if (id == 0 || --times[id] != 0 || slice_of(g, id).ref_count != 0) continue;
      Large& b = block_of(g, id);
      if (!caching) drop_hash(g, id, true);
      (slice_of(g, id).is_kept() ? b.cached : b.unused).push_back(id % k(g));
      changed(id / k(g), true);
    }
    return true;
  }

  /// Takes blocks until there are `num_new`; leaves `num_others` large blocks to others.
  std::vector<int> take(int g, int num_new, int num_others) {
    std::vector<int> out;
    while (static_cast<int>(out.size()) < num_new) {
      const bool may_take_large = num_free_large() > num_others;
      const int missing = num_new - static_cast<int>(out.size());
      const bool fragmented =
          num_partly_free(g) > static_cast<int64_t>(own_first_above * num_large() * k(g));
      const int roomy = fullest(g, [](const Large& b) { return b.used() && !b.unused.empty(); });
      const int unused = fullest(g, [](const Large& b) { return !b.used() && !b.unused.empty(); });
      const int crowded = fullest(g, [](const Large& b) { return b.used() && !b.cached.empty(); });
      const int own = oldest(Ages::kGroup, g);
      const int whole = oldest(Ages::kWhole, -1);
      int l = 0;
      bool evict = false;
      if (roomy != 0 && !(may_take_large && missing >= k(g))) {
        l = roomy;
      } else if (own != 0 && !may_take_large) {
        l = fragmented ? crowded : own;
        evict = true;
      } else if (unused != 0) {
        l = unused;
      } else if (!reserve.empty()) {
        l = reserve.back();
        reserve.pop_back();
        Large& b = at(l);
        b.owner = g;
        b.slices.resize(static_cast<size_t>(k(g)));
        for (int slice = k(g) - 1; slice >= 0; --slice) b.unused.push_back(slice);
      } else if (own != 0 && fragmented) {
        l = crowded;
        evict = true;
      } else if (own != 0 && (whole == 0 || at(own).age < at(whole).age)) {
        l = own;
        evict = true;
      } else if (whole != 0) {
        Large& b = at(whole);
        for (const int slice : b.cached) give_up(b.owner, whole * k(b.owner) + slice);
        b.unused.insert(b.unused.end(), b.cached.begin(), b.cached.end());
        b.cached.clear();
        changed(whole, false);
        continue;
      } else {
        throw std::logic_error("the model has no block left");
      }
      // All that it has, before another is chosen.
      std::vector<int>& from = evict ? at(l).cached : at(l).unused;
      for (; !from.empty() && static_cast<int>(out.size()) < num_new; changed(l, false)) {
        const int slice = evict ? from.front() : from.back();
        from.erase(evict ? from.begin() : from.end() - 1);
        const int id = l * k(g) + slice;
        give_up(g, id);
        slice_of(g, id).ref_count = 1;
        out.push_back(id);
      }
    }
    return out;
  }

  bool fits(const std::vector<ModelDemand>& demands) const {
    SlicedModel after = *this;
    std::map<int, int> wanted;
    for (const ModelDemand& d : demands) {
      after.touch(d.group, d.found);
      wanted[d.group] += d.num_new;
    }
    int left = after.num_free_large();
    for (const auto& [g, n] : wanted) left -= after.needed(g, n);
    return left >= 0;
  }

  std::optional<std::vector<int>> allocate(const std::vector<ModelDemand>& demands, bool frugal) {
    for (const ModelDemand& d : demands) {
      if (!can_touch(d.group, d.found)) return std::nullopt;
    }
    if (!fits(demands)) return std::nullopt;
    std::map<int, int> wanted;
    for (const ModelDemand& d : demands) {
      touch(d.group, d.found);
      wanted[d.group] += d.num_new;
    }
    std::vector<int> out;
    for (const ModelDemand& d : demands) {
      int others = 0;
      for (const auto& [g, n] : wanted) others += g == d.group ? 0 : needed(g, n);
      if (frugal) others = num_free_large() - needed(d.group, wanted[d.group]);
      for (const int id : take(d.group, d.num_new, others)) out.push_back(id);
      wanted[d.group] -= d.num_new;
    }
    return out;
  }

  /// Large blocks that would have to become free for the demands to fit.
  int num_missing(const std::vector<ModelDemand>& demands) const {
    std::map<int, int> wanted;
    for (const ModelDemand& d : demands) wanted[d.group] += d.num_new;
    int missing = -num_free_large();
    for (const auto& [g, n] : wanted) missing += needed(g, n);
    return missing;
  }

  /// All demands can be touched. Held blocks may not be dropped or lost; nothing happens on
  /// failure. Unpinned slices that would be dropped are given up, until none is left of those.
  std::optional<std::vector<SliceMove>> make_room(const std::vector<ModelDemand>& demands,
                                                  int max_moves,
                                                  const std::vector<std::pair<int, int>>& pinned) {
    while (true) {
      SlicedModel after = *this;
      const auto moves = after.make_room_once(demands, max_moves, pinned);
      const std::vector<ModelReuse> lost(
          after.reused.begin() + static_cast<ptrdiff_t>(reused.size()), after.reused.end());
      if (!moves || lost.empty()) {
        *this = std::move(after);
        return moves;
      }
      for (const ModelDemand& d : demands) touch(d.group, d.found);
      for (const ModelReuse& r : lost) {
        reused.push_back(r);
        std::vector<int>& watchers = slice_of(r.group, r.block).watchers;
        if (watchers.empty()) continue;  // told for another of them already
        watchers.clear();
        settle(r.group, r.block);
      }
      for (const ModelDemand& d : demands) free(d.group, {d.found.rbegin(), d.found.rend()});
    }
  }

  std::optional<std::vector<SliceMove>> make_room_once(
      std::vector<ModelDemand> demands, int max_moves,
      const std::vector<std::pair<int, int>>& pinned) {
    SlicedModel after = *this;
    for (const ModelDemand& d : demands) after.touch(d.group, d.found);
    std::vector<int> victims;
    std::vector<int> num_spare;
    for (int g = 0; g < static_cast<int>(slices.size()); ++g) {
      num_spare.push_back(after.num_partly_free(g));
      for (const ModelDemand& d : demands) num_spare.back() -= d.group == g ? d.num_new : 0;
    }
    int num_moves = 0;
    for (int n = after.num_missing(demands); n > 0; --n) {
      const int l = emptiest(after, victims, num_spare, pinned);
      if (l == 0) return std::nullopt;
      const Large& b = after.at(l);
      num_moves += b.used();
      num_spare[static_cast<size_t>(b.owner)] -= k(b.owner);
      victims.push_back(l);
    }
    if (num_moves > max_moves) return std::nullopt;
    if (victims.empty()) return std::vector<SliceMove>{};
    std::stable_sort(victims.begin(), victims.end(),
                     [&](int a, int b) { return after.at(a).owner < after.at(b).owner; });
    *this = std::move(after);
    std::vector<SliceMove> moves;
    for (size_t i = 0; i < victims.size();) {
      const int g = at(victims[i]).owner;
      size_t end = i;
      for (; end < victims.size() && at(victims[end]).owner == g; ++end) {
        Large& b = at(victims[end]);
        for (const int slice : b.cached) give_up(g, victims[end] * k(g) + slice);
        b.cached.clear();
      }
      for (size_t v = i; v < end; ++v) empty_by_moves(victims[v], victims, moves);
      for (; i < end; ++i) {
        at(victims[i]) = {};
        reserve.push_back(victims[i]);
      }
    }
    for (ModelDemand& d : demands) {
      for (int& id : d.found) id = destination(d.group, id, moves);
      free(d.group, {d.found.rbegin(), d.found.rend()});
    }
    return moves;
  }
  static int destination(int g, int id, const std::vector<SliceMove>& moves) {
    for (const SliceMove& m : moves) {
      if (static_cast<int>(m.group_id) == g && m.source == id) return m.destination;
    }
    return id;
  }

  bool cache_full(int g, const std::vector<int>& ids, const std::vector<std::string>& hashes,
                  int64_t first, int64_t block_size, const std::vector<uint8_t>& mask) {
    const auto skip = [&](size_t i) { return ids[i] == 0 || (!mask.empty() && !mask[i]); };
    const auto tokens = [&](size_t i) {
      return (first + static_cast<int64_t>(i) + 1) * block_size;
    };
    for (size_t i = 0; i < ids.size(); ++i) {
      if (!owned(g, ids[i]) || (ids[i] != 0 && slice_of(g, ids[i]).ref_count == 0)) return false;
      if (skip(i)) continue;
      const Slice& s = slice_of(g, ids[i]);
      if (!s.hash.empty() && s.num_tokens >= tokens(i)) return false;
    }
    BlockPoolEvent stored{.kind = BlockPoolEvent::Kind::kStored,
                          .group_id = PoolGroupId{static_cast<uint16_t>(g)},
                          .block_size = block_size};
    for (size_t i = 0; i < ids.size(); ++i) {
      if (skip(i)) continue;
      Slice& s = slice_of(g, ids[i]);
      drop_hash(g, ids[i], true);
      s.hash = hashes[i];
      s.num_tokens = tokens(i);
      cached[{hashes[i], g}].push_back(ids[i]);
      stored.hashes.push_back(hashes[i]);
      stored.blocks.push_back(ids[i]);
      stored.positions.push_back(first + static_cast<int64_t>(i));
    }
    stored.first = first;
    stored.end = first + static_cast<int64_t>(ids.size());
    if (!ids.empty()) {
      events.push_back(stored);
      block_size_of[g] = block_size;
    }
    return true;
  }

  /// None: refused.
  std::optional<bool> cache_partial(int g, int id, const std::string& hash, int64_t num_tokens,
                                    bool replace) {
    if (!owned(g, id)) return std::nullopt;
    if (id == 0) return false;
    Slice& s = slice_of(g, id);
    if (s.ref_count == 0) return std::nullopt;
    const bool there = !replace && (s.hash == hash ||
                                    std::find(s.more.begin(), s.more.end(), hash) != s.more.end());
    if (replace) {
      drop_hash(g, id, true);
    } else if (!there && !s.hash.empty() && s.num_tokens < num_tokens) {
      drop_hash(g, id, true);
    }
    if (!there) {
      if (s.hash.empty()) {
        s.hash = hash;
        s.num_tokens = num_tokens;
      } else {
        s.more.push_back(hash);
      }
      cached[{hash, g}].push_back(id);
      events.push_back({.kind = BlockPoolEvent::Kind::kStored,
                        .group_id = PoolGroupId{static_cast<uint16_t>(g)},
                        .block_size = 2,
                        .hashes = {hash},
                        .blocks = {id},
                        .positions = {(num_tokens - 1) / 2},
                        .first = (num_tokens - 1) / 2,
                        .end = (num_tokens - 1) / 2 + 1});
      block_size_of[g] = 2;
    }
    return true;
  }

  bool evict(int g, const std::vector<int>& ids) {
    for (const int id : ids) {
      if (!owned(g, id)) return false;
    }
    for (const int id : ids) {
      if (id == 0 || !owned(g, id) || slice_of(g, id).hash.empty()) continue;
      drop_hash(g, id, true);
      settle(g, id);
    }
    return true;
  }

  bool move_hashes(int g, int src, int dst) {
    if (!owned(g, src) || !owned(g, dst) || dst == 0) return false;
    if (slice_of(g, dst).ref_count == 0 || !slice_of(g, dst).hash.empty()) return false;
    if (src == 0 || slice_of(g, src).hash.empty()) return true;
    Slice& from = slice_of(g, src);
    Slice& to = slice_of(g, dst);
    to.hash = from.hash;
    to.more = from.more;
    to.num_tokens = from.num_tokens;
    drop_hash(g, src, false);
    cached[{to.hash, g}].push_back(dst);
    for (const std::string& hash : to.more) cached[{hash, g}].push_back(dst);
    settle(g, src);
    return true;
  }

  bool reset() {
    if (num_free_large() + 1 != num_large()) return false;
    events.push_back({.kind = BlockPoolEvent::Kind::kCleared});
    cached.clear();
    std::map<uint64_t, std::vector<ModelReuse>> watched;
    for (int l = 1; l < num_large(); ++l) {
      const Large& b = at(l);
      for (int slice = 0; slice < static_cast<int>(b.slices.size()); ++slice) {
        const Slice& s = b.slices[static_cast<size_t>(slice)];
        for (const int watcher : s.watchers) {
          watched[s.watched_since].push_back({watcher, b.owner, l * k(b.owner) + slice});
        }
      }
    }
    for (const auto& [since, reuses] : watched) {
      reused.insert(reused.end(), reuses.begin(), reuses.end());
    }
    while (const int l = oldest(Ages::kWhole, -1)) {
      at(l) = {};
      reserve.push_back(l);
    }
    return true;
  }

  std::vector<int> slices;
  bool caching;
  double own_first_above;
  std::vector<Large> large;
  std::vector<int> reserve;  // the next one last
  std::map<std::pair<std::string, int>, std::vector<int>> cached;
  std::vector<BlockPoolEvent> events;
  std::map<int, int64_t> block_size_of;  // as a group's blocks were stored last
  std::vector<ModelReuse> reused;

 private:
  Large& at(int l) { return large[static_cast<size_t>(l)]; }
  const Large& at(int l) const { return large[static_cast<size_t>(l)]; }

  /// The partly used large block with the smallest share in use, when the demands' found blocks
  /// are held (`after`), of a group that can spare one.
  int emptiest(const SlicedModel& after, const std::vector<int>& victims,
               const std::vector<int>& num_spare,
               const std::vector<std::pair<int, int>>& pinned) const {
    // Whether `a` goes before `b`, a large block of the same group or of a later one.
    const auto before = [&](int a, int b) {
      const int left = after.at(a).used() * k(after.at(b).owner);
      const int right = after.at(b).used() * k(after.at(a).owner);
      if (left != right) return left < right;
      if (after.at(a).owner != after.at(b).owner) return after.at(a).owner < after.at(b).owner;
      // Those that hold what was found come last, by number; then those with an empty slice first.
      const bool a_found = at(a).used() != after.at(a).used();
      const bool b_found = at(b).used() != after.at(b).used();
      if (a_found != b_found) return b_found;
      if (a_found) return a < b;
      if (at(a).unused.empty() != at(b).unused.empty()) return at(b).unused.empty();
      return at(a).last_touch > at(b).last_touch;
    };
    int best = 0;
    for (int l = 1; l < num_large(); ++l) {
      const Large& b = after.at(l);
      if (b.owner < 0 || b.used() == 0 || b.used() == k(b.owner)) continue;
      if (num_spare[static_cast<size_t>(b.owner)] < k(b.owner)) continue;
      if (std::find(victims.begin(), victims.end(), l) != victims.end()) continue;
      if (std::any_of(pinned.begin(), pinned.end(),
                      [&](const auto& p) { return p.second / k(p.first) == l; })) {
        continue;
      }
      if (best == 0 || before(l, best)) best = l;
    }
    return best;
  }

  void empty_by_moves(int l, const std::vector<int>& victims, std::vector<SliceMove>& moves) {
    const int g = at(l).owner;
    const auto stays = [&](const Large& b) {
      const auto is = [&](int v) { return &at(v) == &b; };
      return b.used() != 0 && std::none_of(victims.begin(), victims.end(), is);
    };
    for (int slice = 0; slice < k(g); ++slice) {
      Slice& from = at(l).slices[static_cast<size_t>(slice)];
      if (from.ref_count == 0) continue;
      int target = fullest(g, [&](const Large& b) { return stays(b) && !b.unused.empty(); });
      const bool evict = target == 0;
      if (evict) {
        for (int o = 1; o < num_large(); ++o) {
          const Large& b = at(o);
          if (b.owner != g || b.ages != Ages::kGroup || !stays(b)) continue;
          if (target == 0 || b.age < at(target).age) target = o;
        }
      }
      if (target == 0) throw std::logic_error("the model has no slice to move to");
      Large& b = at(target);
      std::vector<int>& list = evict ? b.cached : b.unused;
      const int to = evict ? list.front() : list.back();
      list.erase(evict ? list.begin() : list.end() - 1);
      const int source = l * k(g) + slice;
      const int id = target * k(g) + to;
      give_up(g, id);
      b.slices[static_cast<size_t>(to)] = std::exchange(from, {});
      for (auto& [key, holders] : cached) {
        if (key.second == g) std::replace(holders.begin(), holders.end(), source, id);
      }
      changed(target, false);
      moves.push_back({PoolGroupId{static_cast<uint16_t>(g)}, source, id});
    }
  }

  template <typename Wanted>
  int fullest(int g, Wanted&& wanted) {
    int best = 0;
    for (int l = 1; l < num_large(); ++l) {
      const Large& b = at(l);
      if (b.owner != g || !wanted(b)) continue;
      if (best == 0 ||
          std::pair(b.used(), b.last_touch) > std::pair(at(best).used(), at(best).last_touch)) {
        best = l;
      }
    }
    return best;
  }
  int oldest(Ages ages, int g) {
    int best = 0;
    for (int l = 1; l < num_large(); ++l) {
      const Large& b = at(l);
      if (b.ages != ages || (g >= 0 && b.owner != g)) continue;
      if (best == 0 || b.age < at(best).age) best = l;
    }
    return best;
  }

  void drop_hash(int g, int id, bool with_event) {
    Slice& s = slice_of(g, id);
    if (s.hash.empty()) return;
    s.more.insert(s.more.begin(), s.hash);
    for (const std::string& hash : s.more) {
      if (with_event) {
        events.push_back({.kind = BlockPoolEvent::Kind::kRemoved,
                          .group_id = PoolGroupId{static_cast<uint16_t>(g)},
                          .block_size = block_size_of[g],
                          .hashes = {hash},
                          .blocks = {id},
                          .still_cached = cached[{hash, g}].size() > 1});
      }
      std::vector<int>& holders = cached[{hash, g}];
      holders.erase(std::find(holders.begin(), holders.end(), id));
      if (holders.empty()) cached.erase({hash, g});
    }
    s.more.clear();
    s.hash.clear();
  }

  void give_up(int g, int id) {
    drop_hash(g, id, true);
    for (const int watcher : std::exchange(slice_of(g, id).watchers, {})) {
      reused.push_back({watcher, g, id});
    }
  }

  /// A free slice that is kept for nothing any more is unused.
  void settle(int g, int id) {
    if (slice_of(g, id).ref_count != 0 || slice_of(g, id).is_kept()) return;
    Large& b = block_of(g, id);
    b.cached.erase(std::find(b.cached.begin(), b.cached.end(), id % k(g)));
    b.unused.push_back(id % k(g));
    changed(id / k(g), false);
  }

  /// After something happened in a large block.
  void changed(int l, bool used) {
    Large& b = at(l);
    const Ages ages = b.cached.empty() ? Ages::kNone : b.used() == 0 ? Ages::kWhole : Ages::kGroup;
    b.last_touch = ++clock_;
    if (ages != b.ages || (used && ages != Ages::kNone)) b.age = ++clock_;
    b.ages = ages;
    if (b.used() == 0 && b.cached.empty()) {
      b = {};
      reserve.push_back(l);
    }
  }

  uint64_t clock_ = 0;
};

class SlicedPoolDriver {
 public:
  SlicedPoolDriver(int num_large, const std::vector<int>& slices, bool enable_caching,
                   double own_first_above)
      : model_(num_large, slices, enable_caching, own_first_above),
        pool_(num_large, std::vector<int64_t>(slices.begin(), slices.end()),
              {.enable_caching = enable_caching,
               .enable_events = true,
               .own_first_above = own_first_above}) {}

  /// Applies one operation to both; throws `std::logic_error` on a difference. `thorough`: the
  /// whole state is compared after it.
  void step(ByteSource& in, bool thorough) {
    const int g = in.below(num_groups());
    const PoolGroupId group{static_cast<uint16_t>(g)};
    switch (in.below(20)) {
      case 0:
      case 1: {
        const int n = in.below(2 * model_.k(g) + 3);
        const bool ok = model_.fits({{.group = g, .num_new = n}});
        std::vector<BlockId> ids(static_cast<size_t>(n), -7);
        compare_outcome("get_new_blocks", ok, [&] { pool_.get_new_blocks(group, ids); });
        if (ok) compare_ids(model_.take(g, n, 0), ids);
        break;
      }
      case 2:
      case 3:
      case 4:
        allocate(in);
        break;
      case 5:
      case 6: {
        const std::vector<int> ids = choose_ids(in, g);
        compare_outcome("free_blocks", model_.free(g, ids), [&] { pool_.free_blocks(group, ids); });
        break;
      }
      case 7:
      case 8: {
        const std::vector<int> ids = held_ids(in, g);
        compare_outcome("free_blocks", model_.free(g, ids), [&] { pool_.free_blocks(group, ids); });
        break;
      }
      case 9: {
        const std::vector<int> ids = in.below(2) ? choose_ids(in, g) : cached_ids(in, g);
        compare_outcome("touch", model_.touch(g, ids), [&] { pool_.touch(group, ids); });
        break;
      }
      case 10: {
        const std::vector<int> ids = in.below(2) ? choose_ids(in, g) : cached_ids(in, g);
        // An early id may give the large block of a later one back, which is no error.
        compare_outcome("evict_blocks", model_.evict(g, ids),
                        [&] { pool_.evict_blocks(group, ids); });
        break;
      }
      case 11:
      case 12:
      case 13:
        cache_full(in, g);
        break;
      case 14:
        cache_partial(in, g);
        break;
      case 15:
      case 16:
        make_room(in);
        break;
      case 17:
        unpin(in, g);
        break;
      case 18: {
        const std::vector<int> from = in.below(4) ? cached_ids(in, g) : choose_ids(in, g);
        const std::vector<int> to = in.below(4) ? held_ids(in, g) : choose_ids(in, g);
        if (from.empty() || to.empty()) break;
        compare_outcome("move_block_hashes", model_.move_hashes(g, from[0], to[0]),
                        [&] { pool_.move_block_hashes(group, from[0], to[0]); });
        break;
      }
      default:
        reset(in);
    }
    if (thorough) compare();
  }

  int64_t num_moves() const { return num_moves_; }
  int64_t num_reused() const { return num_reused_; }

 private:
  static constexpr int kBlockSize = 4;

  int num_groups() const { return static_cast<int>(model_.slices.size()); }
  static void fail(const std::string& what) {
    throw std::logic_error("sliced pool differs: " + what);
  }

  template <typename Operation>
  void compare_outcome(const char* name, bool expected, Operation&& operation) {
    bool ok = true;
    try {
      operation();
    } catch (const Error&) {
      ok = false;
    }
    if (ok != expected) fail(std::string(name) + (ok ? " succeeded" : " was refused"));
  }
  void compare_ids(const std::vector<int>& expected, const std::vector<BlockId>& ids) {
    if (expected != ids) fail("other blocks were allocated");
  }

  /// Any ids, a few of them of no block.
  std::vector<int> choose_ids(ByteSource& in, int g) {
    std::vector<int> ids;
    for (int n = in.below(6); n > 0; --n) ids.push_back(in.below(model_.k(g) * model_.num_large()));
    if (in.below(16) == 0) ids.push_back(in.below(2) ? -1 : model_.k(g) * model_.num_large());
    return ids;
  }
  template <typename Wanted>
  std::vector<int> some(ByteSource& in, int g, Wanted&& wanted) {
    std::vector<int> all;
    for (int id = model_.k(g); id < model_.k(g) * model_.num_large(); ++id) {
      if (wanted(model_.seen(g, id))) all.push_back(id);
    }
    std::vector<int> ids;
    for (int n = in.below(10); n > 0 && !all.empty(); --n) {
      ids.push_back(in.below(12) == 0 ? 0 : all[in.below(static_cast<int>(all.size()))]);
    }
    return ids;
  }
  std::vector<int> held_ids(ByteSource& in, int g) {
    return some(in, g, [](const SlicedModel::Slice& s) { return s.ref_count > 0; });
  }
  std::vector<int> cached_ids(ByteSource& in, int g) {
    return some(in, g, [](const SlicedModel::Slice& s) { return !s.hash.empty(); });
  }

  std::vector<ModelDemand> choose_demands(ByteSource& in, int most_new) {
    std::vector<ModelDemand> demands;
    for (int n = in.below(4); n >= 0; --n) {
      ModelDemand d{.group = in.below(num_groups())};
      if (in.below(3) == 0) d.found = cached_ids(in, d.group);
      if (in.below(24) == 0) d.found.push_back(in.below(model_.k(d.group) * model_.num_large()));
      d.num_new = in.below(most_new * model_.k(d.group) + 2);
      demands.push_back(std::move(d));
    }
    return demands;
  }
  static std::vector<SliceDemand> real_demands(const std::vector<ModelDemand>& demands) {
    std::vector<SliceDemand> real;
    for (const ModelDemand& d : demands) {
      real.push_back({.group_id = PoolGroupId{static_cast<uint16_t>(d.group)},
                      .found = d.found,
                      .num_new = d.num_new});
    }
    return real;
  }

  void allocate(ByteSource& in) {
    const bool frugal = in.below(4) == 0;
    allocate(choose_demands(in, 1), frugal);
  }
  void allocate(const std::vector<ModelDemand>& demands, bool frugal) {
    const std::vector<SliceDemand> real = real_demands(demands);
    size_t total = 0;
    for (const ModelDemand& d : demands) total += static_cast<size_t>(d.num_new);
    bool admitted = false;
    try {
      admitted = pool_.can_allocate(real);
      const int64_t needed = pool_.num_large_blocks_needed(real);
      if ((needed <= pool_.num_free_large_blocks()) != admitted) {
        fail("num_large_blocks_needed answered otherwise than can_allocate");
      }
    } catch (const Error&) {
    }
    const std::optional<std::vector<int>> expected = model_.allocate(demands, frugal);
    if (admitted != expected.has_value()) fail("can_allocate answered otherwise");
    std::vector<BlockId> ids(total, -7);
    compare_outcome("allocate", expected.has_value(), [&] { pool_.allocate(real, ids, frugal); });
    if (expected) compare_ids(*expected, ids);
  }

  void make_room(ByteSource& in) {
    std::vector<ModelDemand> demands = choose_demands(in, 2);
    if (in.below(4) != 0) {  // a little more than there is
      ModelDemand& d = demands.front();
      demands.resize(1);
      d.num_new = model_.num_partly_free(d.group) + model_.num_free_large() * model_.k(d.group);
      d.num_new += 1 + in.below(2 * model_.k(d.group));
      d.num_new = std::max(d.num_new - static_cast<int>(d.found.size()), 0);
    }
    std::vector<std::pair<int, int>> pinned;
    std::vector<GroupBlocks> real_pinned;
    std::vector<std::vector<int>> pinned_ids;
    if (in.below(4) == 0) {
      const int g = in.below(num_groups());
      pinned_ids.push_back(in.below(8) == 0 ? choose_ids(in, g) : held_ids(in, g));
      for (const int id : pinned_ids.back()) pinned.emplace_back(g, id);
      real_pinned.push_back({PoolGroupId{static_cast<uint16_t>(g)}, pinned_ids.back()});
    }
    const int max_moves = in.below(4) == 0 ? in.below(6) : 1 << 20;
    const MoveOptions options{.max_moves = max_moves, .pinned = real_pinned};
    bool valid = std::all_of(pinned.begin(), pinned.end(),
                             [&](const auto& p) { return model_.owned(p.first, p.second); });
    for (const ModelDemand& d : demands) valid = valid && model_.can_touch(d.group, d.found);
    std::erase_if(pinned, [](const auto& p) { return p.second == 0; });

    const std::vector<SliceDemand> real = real_demands(demands);
    const bool fits = valid && model_.fits(demands);
    std::optional<std::vector<SliceMove>> expected;
    if (valid) expected = model_.make_room(demands, max_moves, pinned);
    bool possible = false;
    compare_outcome("can_make_room", valid, [&] { possible = pool_.can_make_room(real, options); });
    if (valid && possible != expected.has_value()) fail("can_make_room answered otherwise");
    std::optional<std::vector<SliceMove>> moves;
    compare_outcome("make_room", valid, [&] { moves = pool_.make_room(real, options); });
    if (moves != expected) fail("other moves");
    if (!moves) return;
    if (fits && !moves->empty()) fail("moves although the demands fit");
    num_moves_ += static_cast<int64_t>(moves->size());
    check_parallel(*moves);
    compare();
    for (ModelDemand& d : demands) {
      for (int& id : d.found) id = SlicedModel::destination(d.group, id, *moves);
    }
    if (!pool_.can_allocate(real_demands(demands))) fail("there is no room although it was made");
    if (in.below(2) == 0) allocate(demands, false);
  }

  /// No block twice, and none source and destination.
  static void check_parallel(const std::vector<SliceMove>& moves) {
    std::set<std::pair<int, int>> blocks;
    for (const SliceMove& m : moves) {
      const int g = static_cast<int>(m.group_id);
      if (!blocks.emplace(g, m.source).second || !blocks.emplace(g, m.destination).second) {
        fail("moves depend on each other");
      }
    }
  }

  void unpin(ByteSource& in, int g) {
    const std::vector<int> ids = in.below(6) == 0 ? choose_ids(in, g) : held_ids(in, g);
    const int watcher = 1 + in.below(100);
    compare_outcome("unpin_blocks", model_.free(g, ids, watcher), [&] {
      pool_.unpin_blocks(PoolGroupId{static_cast<uint16_t>(g)}, ids,
                         [this, watcher](PoolGroupId group, BlockId block) {
                           reused_.push_back({watcher, static_cast<int>(group), block});
                         });
    });
  }

  void cache_full(ByteSource& in, int g) {
    const std::vector<int> ids = in.below(6) == 0 ? choose_ids(in, g) : held_ids(in, g);
    std::vector<std::string> hashes;
    for (size_t i = 0; i < ids.size(); ++i) {
      const int value = in.below(64);
      hashes.emplace_back(1 + static_cast<size_t>(value) % 32, static_cast<char>('0' + value));
    }
    std::vector<int> distinct = ids;
    std::sort(distinct.begin(), distinct.end());
    distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
    if (distinct.size() != ids.size()) return;
    const std::vector<std::string_view> views(hashes.begin(), hashes.end());
    std::vector<uint8_t> mask;
    if (in.below(3) == 0) {
      for (size_t i = 0; i < ids.size(); ++i) mask.push_back(static_cast<uint8_t>(in.below(2)));
    }
    const int first = in.below(8);
    compare_outcome("cache_full_blocks", model_.cache_full(g, ids, hashes, first, kBlockSize, mask),
                    [&] {
                      pool_.cache_full_blocks({.blocks = ids,
                                               .hashes = views,
                                               .first_block = first,
                                               .block_size = kBlockSize,
                                               .group_id = PoolGroupId{static_cast<uint16_t>(g)},
                                               .mask = mask});
                    });
  }

  void cache_partial(ByteSource& in, int g) {
    const std::vector<int> ids = in.below(6) == 0 ? choose_ids(in, g) : held_ids(in, g);
    if (ids.empty()) return;
    const std::string hash(4, static_cast<char>('0' + in.below(64)));
    const int num_tokens = 1 + in.below(40);
    const bool replace = in.below(8) == 0;
    const std::optional<bool> expected = model_.cache_partial(g, ids[0], hash, num_tokens, replace);
    bool reachable = false;
    compare_outcome("cache_partial_block", expected.has_value(), [&] {
      reachable = pool_.cache_partial_block({.block = ids[0],
                                             .hash = hash,
                                             .num_tokens = num_tokens,
                                             .hash_block_size = 2,
                                             .group_id = PoolGroupId{static_cast<uint16_t>(g)},
                                             .replace_existing = replace});
    });
    if (expected && *expected != reachable) fail("cache_partial_block answered otherwise");
  }

  void reset(ByteSource& in) {
    if (in.below(6) != 0) return;
    if (in.below(3) != 0) {
      for (int g = 0; g < num_groups(); ++g) {
        std::vector<int> held;
        for (int id = model_.k(g); id < model_.k(g) * model_.num_large(); ++id) {
          held.insert(held.end(), static_cast<size_t>(model_.seen(g, id).ref_count), id);
        }
        model_.free(g, held);
        pool_.free_blocks(PoolGroupId{static_cast<uint16_t>(g)}, held);
      }
    }
    if (in.below(2) == 0) return;
    if (pool_.reset_prefix_cache() != model_.reset()) fail("reset_prefix_cache answered otherwise");
  }

  void compare() {
    pool_.check_invariants();
    if (pool_.num_free_large_blocks() != model_.num_free_large()) fail("free large blocks");
    for (int l = 0; l < model_.num_large(); ++l) {
      const std::optional<PoolGroupId> owner = pool_.owner(l);
      const int expected = model_.large[static_cast<size_t>(l)].owner;
      if ((owner ? static_cast<int>(*owner) : -1) != expected) {
        fail("owner of " + std::to_string(l));
      }
    }
    for (int g = 0; g < num_groups(); ++g) {
      const PoolGroupId group{static_cast<uint16_t>(g)};
      if (pool_.num_used_blocks(group) != model_.num_used(g)) fail("used blocks");
      if (pool_.num_free_blocks(group) !=
          model_.num_partly_free(g) + model_.num_free_large() * model_.k(g)) {
        fail("free blocks");
      }
      for (int id = model_.k(g); id < model_.k(g) * model_.num_large(); ++id) {
        const SlicedModel::Slice expected = model_.seen(g, id);
        if (pool_.ref_count(group, id) != expected.ref_count) {
          fail("holders of " + std::to_string(id));
        }
        if (pool_.block_hash(group, id) != expected.hash) fail("hash of " + std::to_string(id));
      }
    }
    if (pool_.num_cached_hashes() != static_cast<int64_t>(model_.cached.size())) {
      fail("number of cached hashes");
    }
    for (const auto& [key, holders] : model_.cached) {
      if (pool_.find(key.first, PoolGroupId{static_cast<uint16_t>(key.second)}) !=
          holders.front()) {
        fail("block found for hash " + key.first);
      }
    }
    if (pool_.take_events() != std::exchange(model_.events, {})) fail("events");
    num_reused_ += static_cast<int64_t>(reused_.size());
    if (std::exchange(reused_, {}) != std::exchange(model_.reused, {})) fail("reuse");
  }

  SlicedModel model_;
  SlicedBlockPool pool_;
  std::vector<ModelReuse> reused_;
  int64_t num_moves_ = 0;
  int64_t num_reused_ = 0;
};

}  // namespace kvplan::testing
