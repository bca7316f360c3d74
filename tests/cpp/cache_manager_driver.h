#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "byte_source.h"
#include "kvplan/cache_manager.h"
#include "kvplan/errors.h"

/// A scheduler that makes calls as a source of bytes decides, over a memory that holds in every
/// slot of a block what was written there: the prefix up to that token, and the group. What a
/// request's layers read must be its own. Shared by a test and a fuzz target.
namespace kvplan::testing {

inline void expect(bool condition, const char* what) {
  if (!condition) throw std::runtime_error(what);
}

class CacheManagerDriver {
 public:
  explicit CacheManagerDriver(ByteSource& bytes) : bytes_(bytes), manager_(make_options()) {
    memory_.resize(static_cast<size_t>(manager_.num_blocks()) * kLargeTokens);
  }

  /// One step of a scheduler: running requests, then new ones, then what the model does.
  void step() {
    manager_.new_step_starts();
    std::vector<Work> batch;
    const bool is_full = schedule_running(batch);
    if (running_.size() < kMostRunning && bytes_.below(3) > 0) admit(batch, is_full);
    make_copies();
    compute(batch);
    for (size_t g = 0; g < groups_.size(); ++g) manager_.take_new_block_ids(g);
    expect(manager_.take_new_block_ids().empty(), "blocks to zero are told twice");
    manager_.take_boundary_states();
    manager_.take_events();
    odd_call();
    for (size_t i = 0; i < running_.size();) {
      if (num_tokens(running_[i]) >= running_[i].target) {
        manager_.remove_request(running_[i].handle);
        running_.erase(running_.begin() + static_cast<ptrdiff_t>(i));
        ++num_finished;
      } else {
        ++i;
      }
    }
    check_counters();
  }

  void drain() {
    for (const auto* all : {&running_, &waiting_}) {
      for (const Sequence& s : *all) manager_.remove_request(s.handle);
    }
    running_.clear();
    waiting_.clear();
    expect(manager_.num_free_blocks() == manager_.num_blocks() - 1, "a leak");
    expect(manager_.num_requests() == 0 && manager_.reset_prefix_cache(), "a request is left");
    manager_.check_invariants();
  }

  int64_t num_finished = 0;
  std::map<std::string, int64_t> seen;  // how often each path ran

 private:
  static constexpr size_t kMostTokens = 32;                 // of a block
  static constexpr size_t kLargeTokens = 12 * kMostTokens;  // of a block that groups cut
  static constexpr int64_t kMaxLen = 256;
  static constexpr int64_t kMostNew = 64;  // tokens of a chunk
  static constexpr size_t kMostRunning = 6;

  struct Sequence {
    RequestHandle handle{};
    std::vector<uint8_t> tokens;
    std::vector<uint64_t> prefixes;  // hash of the tokens up to each
    int64_t prompt = 0;
    int64_t target = 0;
    int64_t computed = 0;
    int64_t boundary = 0;
  };
  struct Work {
    RequestHandle handle;
    int64_t end;
  };

  static int64_t num_tokens(const Sequence& s) { return static_cast<int64_t>(s.tokens.size()); }

  /// Blocks that one request holds at most, and two for a copy and for what admission rounds up.
  static int64_t most_held(const CacheGroup& group) {
    int64_t most = 0;
    for (int64_t computed = 0; computed < kMaxLen; ++computed) {
      most =
          std::max(most, blocks_held(group, computed, std::min(kMostNew + 2, kMaxLen - computed)));
    }
    return most + 2;
  }

  CacheManagerOptions make_options() {
    CacheManagerOptions options;
    const int64_t unit = bytes_.below(2) == 0 ? 4 : 8;
    options.enable_caching = bytes_.below(5) > 0;
    const int num_groups = 1 + bytes_.below(4);
    has_states_ = false;
    for (int g = 0; g < num_groups; ++g) {
      CacheGroup group;
      group.block_size = unit * (bytes_.below(4) == 0 && num_groups > 1 ? 2 : 1);
      group.window = 1 + bytes_.below(40);
      constexpr std::array kKinds = {CacheKind::kFullAttention, CacheKind::kSlidingWindow,
                                     CacheKind::kMamba,         CacheKind::kFullAttention,
                                     CacheKind::kSlidingWindow, CacheKind::kRSWA,
                                     CacheKind::kChunkedLocal,  CacheKind::kCircularBuffer};
      group.kind = kKinds[bytes_.below(g == 0 ? 6 : 8)];
      if (group.kind == CacheKind::kCircularBuffer) group.block_size = unit;
      if (group.kind == CacheKind::kChunkedLocal) {
        group.kind = options.enable_caching ? CacheKind::kSlidingWindow : group.kind;
      }
      if (group.kind == CacheKind::kMamba) {
        group.mamba_align = true;
        has_states_ = true;
      }
      if (group.kind == CacheKind::kSlidingWindow) group.extra_retained_tokens = bytes_.below(4);
      options.groups.push_back(group);
    }
    const bool cuts = bytes_.below(2) == 0;
    const int64_t per_group = (kMaxLen / unit + 2) * (2 + bytes_.below(3)) / 2;
    options.num_blocks = 2;
    for (CacheGroup& group : options.groups) {
      constexpr std::array kSlices = {1, 2, 3, 4, 6, 12};
      if (cuts) group.slices = kSlices[static_cast<size_t>(bytes_.below(6))];
      const int64_t num_blocks = cuts ? most_held(group) : per_group;
      options.num_blocks += (num_blocks + group.slices - 1) / group.slices;
    }
    groups_ = options.groups;
    options.max_model_len = kMaxLen;
    options.max_in_flight_tokens = kMostNew + 2;
    options.hash_bytes = 8;
    options.enable_events = bytes_.below(2) == 0;
    options.needs_zeroing = bytes_.below(2) == 0;
    if (bytes_.below(3) == 0) options.watermark = 0.05;
    return options;
  }

  // The sequence's tokens.

  void append_token(Sequence& s, uint8_t token) {
    const uint64_t before = s.prefixes.empty() ? 0x9e3779b97f4a7c15 : s.prefixes.back();
    uint64_t x = (before ^ token) * 0xbf58476d1ce4e5b9;
    x ^= x >> 29;
    s.tokens.push_back(token);
    s.prefixes.push_back(x * 0x94d049bb133111eb + 1);
  }

  void append_hashes(Sequence& s) {
    const int64_t unit = manager_.hash_block_size();
    for (int64_t n = manager_.num_hashes(s.handle); (n + 1) * unit <= num_tokens(s); ++n) {
      const uint64_t hash = s.prefixes[static_cast<size_t>((n + 1) * unit - 1)];
      manager_.append_hashes(s.handle, std::as_bytes(std::span(&hash, 1)));
    }
  }

  Sequence make_sequence() {
    Sequence s;
    s.handle = manager_.add_request();
    const int document = bytes_.below(2);
    const int shared = bytes_.below(120);
    for (int i = 0; i < shared; ++i) append_token(s, static_cast<uint8_t>(i * 7 + document));
    const int own = 1 + bytes_.below(20);
    for (int i = 0; i < own; ++i) append_token(s, static_cast<uint8_t>(bytes_.below(3)));
    s.prompt = num_tokens(s);
    s.target = bytes_.below(4) == 0 ? kMaxLen - 2 : s.prompt + 1 + bytes_.below(60);
    append_hashes(s);
    return s;
  }

  /// Where the next chunk ends: states are kept at the end of a block.
  int64_t end_of_chunk(const Sequence& s) const {
    const int64_t unit = manager_.scheduler_block_size();
    const int64_t known = num_tokens(s);
    if (!has_states_) return std::min(known, s.computed + kMostNew);
    const int64_t last = (known - 1) / unit * unit;
    return s.computed < last ? std::min(last, (s.computed + kMostNew) / unit * unit) : known;
  }

  RequestTokens tokens_of(const Sequence& s) const {
    return {num_tokens(s), s.prompt, s.computed, 0, s.boundary};
  }

  // Scheduling.

  bool schedule_running(std::vector<Work>& batch) {
    bool is_full = false;
    for (size_t i = 0; i < running_.size(); ++i) {
      Allocation wanted;
      const int64_t end = end_of_chunk(running_[i]);
      wanted.num_new_tokens = end - running_[i].computed;
      if (bytes_.below(4) == 0) wanted.num_lookahead_tokens = bytes_.below(3);
      while (i < running_.size() &&
             !manager_.allocate(running_[i].handle, tokens_of(running_[i]), wanted)) {
        preempt(running_.size() - 1);
        is_full = true;
      }
      if (i == running_.size()) break;
      if (!has_states_ && bytes_.below(16) == 0) {
        manager_.revert(running_[i].handle, running_[i].computed);
        ++seen["revert"];
        continue;
      }
      batch.push_back({running_[i].handle, end});
    }
    return is_full;
  }

  void preempt(size_t i) {
    manager_.free(running_[i].handle);
    running_[i].computed = 0;
    waiting_.push_back(std::move(running_[i]));
    running_.erase(running_.begin() + static_cast<ptrdiff_t>(i));
    ++seen["preemption"];
  }

  void admit(std::vector<Work>& batch, bool is_full) {
    if (waiting_.empty()) waiting_.push_back(make_sequence());
    Sequence& s = waiting_.back();
    PrefixHit hit;
    const bool holds = bytes_.below(3) == 0;
    if (holds) {
      manager_.hold_prefix(s.handle, num_tokens(s) - 1, hit);
      ++seen["hold"];
    } else {
      manager_.find_prefix(s.handle, num_tokens(s) - 1, hit);
    }
    expect(hit.num_tokens < num_tokens(s), "a hit of all tokens");
    s.computed = hit.num_tokens;
    s.boundary = hit.shared_prefix_boundary;
    Allocation wanted;
    const int64_t end = end_of_chunk(s);
    wanted.num_new_tokens = end - s.computed;
    wanted.num_new_computed_tokens = s.computed;
    wanted.full_sequence_must_fit = bytes_.below(2) == 0;
    wanted.apply_watermark = !running_.empty();
    s.computed = 0;
    if (is_full || !manager_.allocate(s.handle, tokens_of(s), wanted, &hit)) {
      if (holds) manager_.release_hold(s.handle);
      // With slices, what is cached may be in the way, once.
      const bool may_wait = manager_.is_sliced() && !is_full && std::exchange(can_wait_, false);
      expect(!running_.empty() || is_full || !batch.empty() || wanted.apply_watermark || may_wait ||
                 waits_for_states(),
             "nothing runs, and nothing fits");
      return;
    }
    can_wait_ = true;
    s.computed = hit.num_tokens;
    seen[manager_.is_sliced() ? "hit in slices" : "hit"] += hit.num_tokens > 0;
    batch.push_back({s.handle, end});
    running_.push_back(std::move(s));
    waiting_.pop_back();
  }

  bool waits_for_states() const { return has_states_; }

  /// What a scheduler rarely does.
  void odd_call() {
    const int call = bytes_.below(24);
    if (call == 0) {
      evict();
    } else if (call == 1 && bytes_.below(8) == 0) {
      while (!running_.empty()) preempt(running_.size() - 1);
      expect(manager_.reset_prefix_cache(), "a block is in use");
      ++seen["reset"];
    } else if (call == 2 && !running_.empty()) {
      preempt(running_.size() - 1);
    } else if (call == 3 && !running_.empty() && running_.size() < kMostRunning && !has_states_) {
      fork(running_[static_cast<size_t>(bytes_.below(static_cast<int>(running_.size())))]);
    } else if (call == 4 && !running_.empty()) {
      const Sequence& s = running_.front();
      manager_.remove_skipped_blocks(s.handle, s.computed, s.prompt);
    } else if (call == 5) {
      refuse_bad_calls();
    } else if (call == 6 && running_.size() > 1) {
      for (const CacheGroup& group : groups_) {
        const auto g = static_cast<size_t>(&group - groups_.data());
        manager_.num_common_prefix_blocks(running_[0].handle, g);
        manager_.estimate_cached_tokens(running_[1].handle);
      }
    }
  }

  void evict() {
    const auto below = [&](size_t n) {
      return static_cast<size_t>(bytes_.below(static_cast<int>(n)));
    };
    if (!manager_.is_sliced()) {
      const auto num_blocks = static_cast<size_t>(manager_.num_blocks());
      const std::array blocks = {static_cast<BlockId>(below(num_blocks)),
                                 static_cast<BlockId>(below(num_blocks))};
      manager_.evict_blocks(blocks);
    } else if (!running_.empty()) {
      const size_t g = below(groups_.size());
      const BlockTableView table = manager_.block_table(running_[0].handle, g);
      if (table.empty()) return;
      manager_.evict_blocks(g, std::array{table[below(table.size())]});
      ++seen["evict a slice"];
    }
    ++seen["evict"];
  }

  void fork(const Sequence& from) {
    // Where nothing is let go, any earlier point will do.
    const bool keeps_all = std::all_of(groups_.begin(), groups_.end(), [](const CacheGroup& group) {
      return group.kind == CacheKind::kFullAttention;
    });
    const int64_t computed =
        keeps_all ? bytes_.below(static_cast<int>(from.computed) + 1) : from.computed;
    const std::optional<RequestHandle> made = manager_.fork(from.handle, computed);
    if (!made) return;
    Sequence child = from;
    child.handle = *made;
    child.computed = computed;
    child.tokens.resize(static_cast<size_t>(computed));
    child.prefixes.resize(static_cast<size_t>(computed));
    child.prompt = std::min(child.prompt, computed);
    child.target = std::min(computed + 1 + bytes_.below(40), kMaxLen - 2);
    append_token(child, static_cast<uint8_t>(bytes_.below(3)));
    append_hashes(child);
    running_.push_back(std::move(child));
    make_copies();
    ++seen["fork"];
  }

  void refuse_bad_calls() {
    const auto refused = [&](auto&& call) {
      try {
        call();
      } catch (const Error&) {
        return;
      }
      expect(false, "a bad call is not refused");
    };
    const auto unknown = static_cast<RequestHandle>(1000);
    const int64_t num_free = manager_.num_free_blocks();
    refused([&] { manager_.free(unknown); });
    refused([&] { manager_.revert(unknown, 0); });
    refused([&] { manager_.fork(unknown, 0); });
    refused([&] { manager_.allocate(unknown, {}, {}); });
    const auto num_ids = manager_.num_blocks() * groups_[0].slices;
    const std::array<BlockId, 1> foreign = {static_cast<BlockId>(num_ids)};
    refused([&] { manager_.evict_blocks(foreign); });
    refused([&] { manager_.evict_blocks(0, foreign); });
    refused([&] { manager_.free_copies(std::array{BlockCopy{foreign[0], foreign[0], 0}}); });
    if (manager_.is_sliced()) refused([&] { manager_.pool(); });
    for (const Sequence& s : running_) {
      refused([&] { manager_.allocate(s.handle, tokens_of(s), {.num_new_tokens = -1}); });
      refused([&] { manager_.commit(s.handle, tokens_of(s), -1); });
      refused([&] { manager_.fork(s.handle, kMaxLen * 4); });
    }
    expect(num_free == manager_.num_free_blocks(), "a refused call changed something");
    ++seen["refused"];
  }

  // The model.

  /// The memory is one for all groups: a block in two hands is seen.
  uint64_t& slot(size_t group, BlockId block, int64_t token) {
    expect(block != kNullBlock, "the null block is used");
    const size_t size = kLargeTokens / static_cast<size_t>(groups_[group].slices);
    return memory_[static_cast<size_t>(block) * size + static_cast<size_t>(token)];
  }
  static uint64_t content(size_t group, uint64_t prefix) { return prefix * 16 + group + 1; }

  void make_copies() {
    const std::vector<BlockCopy> copies = manager_.take_copies();
    for (const BlockCopy& copy : copies) {
      const auto g = static_cast<size_t>(copy.group);
      for (int64_t i = 0; i < static_cast<int64_t>(kMostTokens); ++i) {
        slot(g, copy.destination, i) = slot(g, copy.source, i);
      }
      ++seen[manager_.is_sliced() ? "copy a slice" : "copy"];
    }
    manager_.free_copies(copies);
  }

  Sequence& sequence_of(RequestHandle handle) {
    const auto found = std::find_if(running_.begin(), running_.end(),
                                    [&](const Sequence& s) { return s.handle == handle; });
    expect(found != running_.end(), "a scheduled request is gone");
    return *found;
  }

  void compute(const std::vector<Work>& batch) {
    for (const Work& work : batch) write(sequence_of(work.handle), work.end);
    for (const Work& work : batch) {
      Sequence& s = sequence_of(work.handle);
      read(s, work.end);
      s.computed = work.end;
      if (s.computed < num_tokens(s)) continue;
      append_token(s, static_cast<uint8_t>(bytes_.below(3)));
      append_hashes(s);
    }
  }

  void write(const Sequence& s, int64_t end) {
    for (size_t g = 0; g < groups_.size(); ++g) {
      const BlockTableView table = manager_.block_table(s.handle, g);
      const int64_t size = groups_[g].block_size;
      const auto prefix = [&](int64_t n) {
        return content(g, s.prefixes[static_cast<size_t>(n - 1)]);
      };
      if (groups_[g].kind == CacheKind::kCircularBuffer) {
        expect(table.size() == 1, "a circular buffer has one block");
        slot(g, table[0], 0) = content(g, static_cast<uint64_t>(s.handle));
      } else if (groups_[g].kind == CacheKind::kMamba) {
        if (s.computed > 0) {
          const BlockId block = table[static_cast<size_t>((s.computed - 1) / size)];
          expect(slot(g, block, 0) == prefix(s.computed), "a state is another request's");
        }
        slot(g, table[static_cast<size_t>((end - 1) / size)], 0) = prefix(end);
      } else {
        for (int64_t p = s.computed; p < end; ++p) {
          slot(g, table[static_cast<size_t>(p / size)], p % size) = prefix(p + 1);
        }
      }
    }
  }

  void read(const Sequence& s, int64_t end) {
    for (size_t g = 0; g < groups_.size(); ++g) {
      const CacheGroup& group = groups_[g];
      if (group.kind == CacheKind::kMamba || group.kind == CacheKind::kCircularBuffer) continue;
      const BlockTableView table = manager_.block_table(s.handle, g);
      int64_t first = 0;
      int64_t gap_ends = 0;  // of what lies behind an RSWA prompt
      if (group.kind == CacheKind::kSlidingWindow) first = s.computed - group.window + 1;
      if (group.kind == CacheKind::kChunkedLocal) first = s.computed / group.window * group.window;
      if (group.kind == CacheKind::kRSWA) gap_ends = s.computed - group.window + 1;
      for (int64_t p = std::max<int64_t>(0, first); p < end; ++p) {
        if (p >= s.prompt && p < gap_ends) continue;
        expect(slot(g, table[static_cast<size_t>(p / group.block_size)], p % group.block_size) ==
                   content(g, s.prefixes[static_cast<size_t>(p)]),
               "a token is another request's");
      }
    }
  }

  void check_counters() const {
    const CacheManagerCounters counters = manager_.counters();
    expect(counters.num_requests == static_cast<int64_t>(manager_.num_requests()),
           "the counter of requests is wrong");
  }

  ByteSource& bytes_;
  std::vector<CacheGroup> groups_;
  bool has_states_ = false;
  bool can_wait_ = true;
  CacheManager manager_;
  std::vector<uint64_t> memory_;
  std::vector<Sequence> running_;
  std::vector<Sequence> waiting_;
};

}  // namespace kvplan::testing
