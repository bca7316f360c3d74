// Serves a list of requests step by step from a pool and reports how full the pool was: see
// benchmarks/fragmentation.py, which writes the input.
//
// Input: a `pool` line, a `group` line per group, a `server` line, then a `request` line each:
//
//   pool plain|sliced|moving NUM_BLOCKS CACHING OWN_FIRST_ABOVE
//   group BLOCK_TOKENS WINDOW SLICES CONTENT_BYTES      (window 0: every token is kept)
//   server BLOCK_BYTES TOKEN_BUDGET MAX_RUNNING WARM_UP_REQUESTS
//   request ARRIVAL PROMPT_TOKENS OUTPUT_TOKENS SYSTEM_ID SYSTEM_TOKENS CONVERSATION
//
// A step follows vLLM's scheduler: requests that run get one token or a chunk of their prompt, in
// order; if blocks are lacking, the last one is preempted and computes everything anew later; then
// waiting requests are admitted with their first chunk until blocks or tokens are lacking. A moving
// pool first makes room by moving slices, if that helps.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <deque>
#include <iostream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvplan/block_pool.h"
#include "kvplan/sliced_block_pool.h"

namespace kvplan {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Group {
  int64_t block_tokens = 0;
  int64_t window = 0;  // tokens; 0 keeps all
  int64_t slices = 1;
  int64_t content_bytes = 0;  // of a block without padding

  /// Blocks of the beginning that no later token reads once `computed` tokens are computed.
  int64_t num_skipped(int64_t computed) const {
    if (window == 0) return 0;
    return std::max<int64_t>(0, computed - window + 1) / block_tokens;
  }
};

/// What both pools can be asked for.
class Pool {
 public:
  virtual ~Pool() = default;
  virtual bool allocate(std::span<const SliceDemand> demands, std::span<BlockId> out) = 0;
  virtual void free(PoolGroupId group, std::span<const BlockId> ids) = 0;
  virtual std::optional<BlockId> find(std::string_view hash, PoolGroupId group) const = 0;
  virtual void cache(const FullBlocks& full) = 0;
  virtual int64_t num_used(size_t group) const = 0;
  /// Moves slices so that the demands fit, if it can; they do not fit as it is.
  virtual std::vector<SliceMove> make_room(std::span<const SliceDemand>) { return {}; }
  /// Free slices that only their group can use, of all groups, in large blocks; without those that
  /// the demands want.
  virtual double fragmented(std::span<const SliceDemand> wanted) const = 0;
};

class PlainPool : public Pool {
 public:
  PlainPool(int64_t num_blocks, size_t num_groups, bool caching)
      : pool_(num_blocks, {.enable_caching = caching}), num_used_(num_groups) {}

  bool allocate(std::span<const SliceDemand> demands, std::span<BlockId> out) override {
    int64_t wanted = 0;
    for (const SliceDemand& d : demands) {
      wanted += d.num_new;
      for (const BlockId id : d.found) wanted += id != kNullBlock && pool_.ref_count(id) == 0;
    }
    if (wanted > pool_.num_free_blocks()) return false;
    for (const SliceDemand& d : demands) {
      int64_t& used = num_used_[static_cast<size_t>(d.group_id)];
      for (const BlockId id : d.found) used += id != kNullBlock && pool_.ref_count(id) == 0;
      used += d.num_new;
      pool_.touch(d.found);
    }
    pool_.get_new_blocks(out);
    return true;
  }
  void free(PoolGroupId group, std::span<const BlockId> ids) override {
    for (const BlockId id : ids) {
      num_used_[static_cast<size_t>(group)] -= id != kNullBlock && pool_.ref_count(id) == 1;
    }
    pool_.free_blocks(ids);
  }
  std::optional<BlockId> find(std::string_view hash, PoolGroupId group) const override {
    return pool_.find(hash, group);
  }
  void cache(const FullBlocks& full) override { pool_.cache_full_blocks(full); }
  int64_t num_used(size_t group) const override { return num_used_[group]; }
  double fragmented(std::span<const SliceDemand>) const override { return 0; }

 private:
  BlockPool pool_;
  std::vector<int64_t> num_used_;
};

class SlicedPool : public Pool {
 public:
  SlicedPool(int64_t num_large, const std::vector<int64_t>& slices, bool caching,
             double own_first_above, bool moves)
      : pool_(num_large, slices, {.enable_caching = caching, .own_first_above = own_first_above}),
        moves_(moves) {}

  bool allocate(std::span<const SliceDemand> demands, std::span<BlockId> out) override {
    if (!pool_.can_allocate(demands)) return false;
    pool_.allocate(demands, out);
    return true;
  }
  void free(PoolGroupId group, std::span<const BlockId> ids) override {
    pool_.free_blocks(group, ids);
  }
  std::optional<BlockId> find(std::string_view hash, PoolGroupId group) const override {
    return pool_.find(hash, group);
  }
  void cache(const FullBlocks& full) override { pool_.cache_full_blocks(full); }
  std::vector<SliceMove> make_room(std::span<const SliceDemand> demands) override {
    if (!moves_) return {};
    return pool_.make_room(demands).value_or(std::vector<SliceMove>{});
  }
  int64_t num_used(size_t group) const override {
    return pool_.num_used_blocks(PoolGroupId{static_cast<uint16_t>(group)});
  }
  double fragmented(std::span<const SliceDemand> wanted) const override {
    double blocks = 0;
    for (int64_t g = 0; g < pool_.num_groups(); ++g) {
      const PoolGroupId group{static_cast<uint16_t>(g)};
      const int64_t k = pool_.slices(group);
      int64_t num_free = pool_.num_free_blocks(group) - pool_.num_free_large_blocks() * k;
      for (const SliceDemand& d : wanted) {
        if (d.group_id != group) continue;
        num_free -= d.num_new;
        for (const BlockId id : d.found) {
          num_free -= id != kNullBlock && pool_.ref_count(group, id) == 0;
        }
      }
      blocks += static_cast<double>(std::max<int64_t>(num_free, 0)) / static_cast<double>(k);
    }
    return blocks;
  }

 private:
  SlicedBlockPool pool_;
  bool moves_;
};

using Hash = std::array<char, 16>;

struct Request {
  int64_t arrival = 0;
  int64_t prompt = 0;
  int64_t output = 0;
  int64_t system = 0;
  int64_t system_tokens = 0;
  int64_t conversation = 0;

  int64_t computed = 0;
  int64_t known = 0;       // tokens of the prompt and those generated
  int64_t generated = 0;   // ever: a preempted request does not generate them again
  int64_t next_event = 0;  // computed tokens at which blocks must be looked at
  struct Blocks {
    std::vector<BlockId> ids;
    int64_t num_freed = 0;   // at the beginning; null blocks
    int64_t num_cached = 0;  // at the beginning, looked at
  };
  std::vector<Blocks> blocks;

  Hash hash(int64_t block, int64_t block_tokens) const {
    const bool shared = (block + 1) * block_tokens <= system_tokens;
    const int64_t words[2] = {shared ? -1 - system : conversation, block};
    Hash result;
    std::memcpy(result.data(), words, sizeof(words));
    return result;
  }
};

/// Mean, and the value that 5 % lie below.
struct Sample {
  std::vector<double> values;
  void print(const char* name) {
    if (values.empty()) return;
    std::sort(values.begin(), values.end());
    double sum = 0;
    for (const double v : values) sum += v;
    std::cout << ", \"" << name << "\": {\"mean\": " << sum / static_cast<double>(values.size())
              << ", \"p5\": " << values[values.size() / 20] << "}";
  }
};

class Simulator {
 public:
  void read(std::istream& in) {
    std::string word;
    while (in >> word) {
      if (word == "pool") {
        in >> pool_kind_ >> num_blocks_ >> caching_ >> own_first_above_;
      } else if (word == "group") {
        Group g;
        in >> g.block_tokens >> g.window >> g.slices >> g.content_bytes;
        groups_.push_back(g);
      } else if (word == "server") {
        in >> block_bytes_ >> token_budget_ >> max_running_ >> warm_up_;
      } else {
        Request r;
        in >> r.arrival >> r.prompt >> r.output >> r.system >> r.system_tokens >> r.conversation;
        requests_.push_back(r);
      }
    }
    if (groups_.empty() || requests_.empty()) throw InvalidArgument("no groups or no requests");
    std::vector<int64_t> slices;
    for (const Group& g : groups_) slices.push_back(g.slices);
    if (pool_kind_ == "plain") {
      pool_ = std::make_unique<PlainPool>(num_blocks_, groups_.size(), caching_);
    } else {
      pool_ = std::make_unique<SlicedPool>(num_blocks_, slices, caching_, own_first_above_,
                                           pool_kind_ == "moving");
      for (const int64_t k : slices)
        moved_to_.emplace_back(static_cast<size_t>(num_blocks_ * k), kNullBlock);
    }
    alignment_ = 1;
    for (const Group& g : groups_) alignment_ = std::max(alignment_, g.block_tokens);
  }

  /// Until no request waits that has not run: the pool stays as full as the load makes it.
  void run() {
    while (next_ < requests_.size() || !preempted_.empty()) {
      if (running_.empty() && preempted_.empty() && next_ < requests_.size() &&
          requests_[next_].arrival > step_) {
        step_ = requests_[next_].arrival;
      }
      moved_in_step_ = 0;
      one_step();
      ++step_;
      if (num_finished_ < warm_up_) continue;
      moved_ += moved_in_step_;
      most_moved_ = std::max(most_moved_, moved_in_step_);
      ++num_steps_;
      held_sum_ += held();
      content_sum_ += content();
      running_sum_ += static_cast<double>(running_.size());
    }
  }

  void report() {
    const auto steps = static_cast<double>(std::max<int64_t>(num_steps_, 1));
    std::cout << "{\"held\": " << held_sum_ / steps << ", \"running\": " << running_sum_ / steps
              << ", \"output_tokens_per_step\": " << static_cast<double>(output_tokens_) / steps
              << ", \"preemptions\": " << num_preemptions_ << ", \"finished\": " << num_finished_
              << ", \"hit_rate\": "
              << static_cast<double>(hit_tokens_) /
                     static_cast<double>(std::max<int64_t>(prompt_tokens_, 1));
    const double pool_bytes = usable() * static_cast<double>(block_bytes_);
    std::cout << ", \"moved_bytes_per_output_token\": "
              << moved_ * pool_bytes / static_cast<double>(std::max<int64_t>(output_tokens_, 1))
              << ", \"moved_bytes_per_step\": " << moved_ * pool_bytes / steps
              << ", \"read_bytes_per_step\": " << content_sum_ * pool_bytes / steps
              << ", \"most_moved_bytes\": " << most_moved_ * pool_bytes;
    if (first_failure_) {
      std::cout << ", \"first_failure\": " << *first_failure_;
      std::cout << ", \"first_failure_lost\": " << first_failure_lost_;
    }
    failure_held_.print("held_at_failure");
    failure_one_group_.print("one_group_at_failure");
    failure_lost_.print("lost_at_failure");
    std::cout << "}\n";
  }

 private:
  bool warm() const { return num_finished_ >= warm_up_; }
  double usable() const { return static_cast<double>(num_blocks_ - 1); }

  /// Share of the pool that requests hold, in blocks or slices.
  double held() const {
    double blocks = 0;
    for (size_t g = 0; g < groups_.size(); ++g) {
      blocks += static_cast<double>(pool_->num_used(g)) / static_cast<double>(groups_[g].slices);
    }
    return blocks / usable();
  }
  /// The same without padding.
  double content() const {
    double bytes = 0;
    for (size_t g = 0; g < groups_.size(); ++g) {
      bytes += static_cast<double>(pool_->num_used(g) * groups_[g].content_bytes);
    }
    return bytes / (usable() * static_cast<double>(block_bytes_));
  }

  /// What was refused is in `demands_`.
  void failed() {
    if (!first_failure_) {
      first_failure_ = held();
      first_failure_lost_ = pool_->fragmented(demands_) / usable();
    }
    if (!warm() || failure_step_ == step_) return;
    failure_step_ = step_;
    failure_held_.values.push_back(held());
    failure_one_group_.values.push_back(pool_->fragmented({}) / usable());
    failure_lost_.values.push_back(pool_->fragmented(demands_) / usable());
  }

  static PoolGroupId group_id(size_t g) { return PoolGroupId{static_cast<uint16_t>(g)}; }

  void cache_full(Request& r, size_t g) {
    const Group& group = groups_[g];
    Request::Blocks& blocks = r.blocks[g];
    if (!caching_) return;
    const int64_t num_full = r.computed / group.block_tokens;
    const int64_t first = std::max(blocks.num_cached, blocks.num_freed);
    if (num_full > first) {
      std::vector<Hash> hashes;
      std::vector<std::string_view> views;
      hashes.reserve(static_cast<size_t>(num_full - first));
      for (int64_t i = first; i < num_full; ++i) {
        hashes.push_back(r.hash(i, group.block_tokens));
        views.emplace_back(hashes.back().data(), hashes.back().size());
      }
      pool_->cache({.blocks = std::span(blocks.ids)
                                  .subspan(static_cast<size_t>(first),
                                           static_cast<size_t>(num_full - first)),
                    .hashes = views,
                    .first_block = first,
                    .block_size = group.block_tokens,
                    .group_id = group_id(g)});
    }
    blocks.num_cached = std::max(blocks.num_cached, num_full);
  }

  void free_skipped(Request& r, size_t g) {
    Request::Blocks& blocks = r.blocks[g];
    const auto num_skipped = std::min<int64_t>(groups_[g].num_skipped(r.computed),
                                               static_cast<int64_t>(blocks.ids.size()));
    if (num_skipped <= blocks.num_freed) return;
    std::vector<BlockId> ids(blocks.ids.begin() + blocks.num_freed,
                             blocks.ids.begin() + num_skipped);
    std::reverse(ids.begin(), ids.end());
    pool_->free(group_id(g), ids);
    std::fill(blocks.ids.begin() + blocks.num_freed, blocks.ids.begin() + num_skipped, kNullBlock);
    blocks.num_freed = num_skipped;
  }

  void free_all(Request& r) {
    for (size_t g = 0; g < groups_.size(); ++g) {
      cache_full(r, g);
      std::vector<BlockId> ids(r.blocks[g].ids.begin() + r.blocks[g].num_freed,
                               r.blocks[g].ids.end());
      std::reverse(ids.begin(), ids.end());
      pool_->free(group_id(g), ids);
    }
    r.blocks.clear();
    r.blocks.shrink_to_fit();
  }

  /// Tokens of the longest prefix that every group has, and its blocks.
  int64_t find_prefix(const Request& r, std::vector<std::vector<BlockId>>& found) const {
    found.assign(groups_.size(), {});
    if (!caching_) return 0;
    // At least one token is computed.
    int64_t tokens = (r.known - 1) / alignment_ * alignment_;
    const auto lookup = [&](size_t g, int64_t i) {
      const Hash hash = r.hash(i, groups_[g].block_tokens);
      return pool_->find({hash.data(), hash.size()}, group_id(g));
    };
    for (size_t g = 0; g < groups_.size(); ++g) {
      if (groups_[g].window != 0) continue;
      const int64_t b = groups_[g].block_tokens;
      int64_t i = 0;
      for (; i < tokens / b; ++i) {
        const std::optional<BlockId> id = lookup(g, i);
        if (!id) break;
        found[g].push_back(*id);
      }
      tokens = std::min(tokens, i * b) / alignment_ * alignment_;
    }
    // Groups with a window need the blocks before the boundary only.
    for (bool changed = true; changed && tokens > 0;) {
      changed = false;
      for (size_t g = 0; g < groups_.size(); ++g) {
        if (groups_[g].window == 0) continue;
        const int64_t b = groups_[g].block_tokens;
        int64_t run = 0;
        int64_t end = tokens / b;  // blocks [i, end) are there
        int64_t i = end;
        while (i > 0) {
          if (i <= groups_[g].num_skipped(end * b)) break;
          if (lookup(g, i - 1)) {
            ++run;
            --i;
          } else {
            end = (i - 1) * b / alignment_ * alignment_ / b;
            i = end;
            run = 0;
          }
        }
        if (end * b < tokens) {
          tokens = end * b;
          changed = true;
        }
      }
    }
    for (size_t g = 0; g < groups_.size(); ++g) {
      const int64_t b = groups_[g].block_tokens;
      if (groups_[g].window == 0) {
        found[g].resize(static_cast<size_t>(tokens / b));
      } else {
        found[g].assign(static_cast<size_t>(tokens / b), kNullBlock);
        for (int64_t i = groups_[g].num_skipped(tokens); i < tokens / b; ++i) {
          found[g][static_cast<size_t>(i)] = *lookup(g, i);
        }
      }
    }
    return tokens;
  }

  /// Gets the blocks for `n` more tokens, holding what was found first.
  bool allocate(Request& r, int64_t n, std::vector<std::vector<BlockId>>* found) {
    demands_.clear();
    int64_t total = 0;
    for (size_t g = 0; g < groups_.size(); ++g) {
      const int64_t have = found ? static_cast<int64_t>((*found)[g].size())
                                 : static_cast<int64_t>(r.blocks[g].ids.size());
      const int64_t num_new =
          std::max<int64_t>(0, ceil_div(r.computed + n, groups_[g].block_tokens) - have);
      if (num_new == 0 && !found) continue;
      demands_.push_back(
          {.group_id = group_id(g),
           .found = found ? std::span<const BlockId>((*found)[g]) : std::span<const BlockId>(),
           .num_new = num_new});
      total += num_new;
    }
    if (demands_.empty()) return true;
    out_.resize(static_cast<size_t>(total));
    if (!pool_->allocate(demands_, out_)) {
      const std::vector<SliceMove> moves = pool_->make_room(demands_);
      if (moves.empty()) return false;
      rewrite(moves, found);
      if (!pool_->allocate(demands_, out_)) throw BlockPoolError("no room although it was made");
    }
    auto at = out_.begin();
    for (const SliceDemand& d : demands_) {
      const auto g = static_cast<size_t>(d.group_id);
      if (found) r.blocks[g].ids = (*found)[g];
      r.blocks[g].ids.insert(r.blocks[g].ids.end(), at, at + d.num_new);
      at += d.num_new;
    }
    return true;
  }

  /// What is held, and what was found, has moved.
  void rewrite(const std::vector<SliceMove>& moves, std::vector<std::vector<BlockId>>* found) {
    std::vector<bool> concerned(groups_.size());
    for (const SliceMove& m : moves) {
      const auto g = static_cast<size_t>(m.group_id);
      concerned[g] = true;
      moved_to_[g][static_cast<size_t>(m.source)] = m.destination;
      moved_in_step_ += 1 / (static_cast<double>(groups_[g].slices) * usable());
    }
    for (size_t g = 0; g < groups_.size(); ++g) {
      if (!concerned[g]) continue;
      const auto apply = [&](std::vector<BlockId>& ids) {
        for (BlockId& id : ids) {
          const BlockId to = moved_to_[g][static_cast<size_t>(id)];
          if (to != kNullBlock) id = to;
        }
      };
      for (const size_t i : running_) apply(requests_[i].blocks[g].ids);
      if (found) apply((*found)[g]);
    }
    for (const SliceMove& m : moves) {
      moved_to_[static_cast<size_t>(m.group_id)][static_cast<size_t>(m.source)] = kNullBlock;
    }
  }

  void plan_next_event(Request& r) {
    r.next_event = INT64_MAX;
    for (size_t g = 0; g < groups_.size(); ++g) {
      const Group& group = groups_[g];
      r.next_event =
          std::min(r.next_event, ceil_div(r.computed, group.block_tokens) * group.block_tokens);
      if (group.window != 0) {
        r.next_event = std::min(
            r.next_event, (r.blocks[g].num_freed + 1) * group.block_tokens + group.window - 1);
      }
    }
  }

  /// Blocks for the next `n` tokens of a running request.
  bool schedule(Request& r, int64_t n) {
    if (n == 1 && r.computed < r.next_event) return true;
    for (size_t g = 0; g < groups_.size(); ++g) {
      cache_full(r, g);
      free_skipped(r, g);
    }
    return allocate(r, n, nullptr);
  }

  /// True if the request is done.
  bool compute(Request& r, int64_t n) {
    r.computed += n;
    if (n != 1 || r.computed > r.next_event) plan_next_event(r);
    if (r.computed < r.known) return false;
    ++r.known;
    ++r.generated;
    if (warm()) ++output_tokens_;
    return r.generated >= r.output;
  }

  void preempt_last() {
    Request& r = requests_[running_.back()];
    free_all(r);
    r.computed = 0;
    preempted_.push_front(running_.back());
    running_.pop_back();
    if (warm()) ++num_preemptions_;
  }

  void one_step() {
    int64_t budget = token_budget_;
    bool any_preempted = false;
    for (size_t i = 0; i < running_.size() && budget > 0; ++i) {
      Request& r = requests_[running_[i]];
      const int64_t n = std::min(r.known - r.computed, budget);
      bool gone = false;
      while (!schedule(r, n)) {
        failed();
        any_preempted = true;
        gone = running_.size() - 1 == i;
        preempt_last();
        if (gone) break;
      }
      if (gone) break;
      budget -= n;
      if (compute(r, n)) done_.push_back(i);
    }
    if (!done_.empty()) {
      size_t to = 0;
      size_t next_done = 0;
      for (size_t i = 0; i < running_.size(); ++i) {
        if (next_done < done_.size() && done_[next_done] == i) {
          ++next_done;
          free_all(requests_[running_[i]]);
          ++num_finished_;
        } else {
          running_[to++] = running_[i];
        }
      }
      running_.resize(to);
      done_.clear();
    }
    while (!any_preempted && budget > 0 && std::cmp_less(running_.size(), max_running_)) {
      const bool again = !preempted_.empty();
      if (!again && (next_ == requests_.size() || requests_[next_].arrival > step_)) break;
      const size_t index = again ? preempted_.front() : next_;
      Request& r = requests_[index];
      if (!again) r.known = r.prompt;
      r.blocks.assign(groups_.size(), {});
      const int64_t hit = find_prefix(r, found_);
      r.computed = hit;
      const int64_t n = std::min(r.known - hit, budget);
      if (!allocate(r, n, &found_)) {
        failed();
        r.computed = 0;
        r.blocks.clear();
        if (!running_.empty()) break;
        // The pool is empty and the request does not fit: nothing ever will make it fit.
        again ? preempted_.pop_front() : void(++next_);
        continue;
      }
      for (size_t g = 0; g < groups_.size(); ++g) {
        r.blocks[g].num_cached = hit / std::max<int64_t>(groups_[g].block_tokens, 1);
        r.blocks[g].num_freed = groups_[g].num_skipped(hit);
      }
      if (warm()) {
        hit_tokens_ += hit;
        prompt_tokens_ += r.known;
      }
      again ? preempted_.pop_front() : void(++next_);
      budget -= n;
      running_.push_back(index);
      if (compute(r, n)) {
        running_.pop_back();
        free_all(r);
        ++num_finished_;
      }
    }
  }

  std::string pool_kind_;
  int64_t num_blocks_ = 0;
  bool caching_ = false;
  double own_first_above_ = 0;
  int64_t block_bytes_ = 1;
  int64_t token_budget_ = 0;
  int64_t max_running_ = 0;
  int64_t warm_up_ = 0;
  int64_t alignment_ = 1;  // of prefixes; block sizes divide each other
  std::vector<Group> groups_;
  std::unique_ptr<Pool> pool_;

  std::vector<Request> requests_;
  size_t next_ = 0;
  std::deque<size_t> preempted_;
  std::vector<size_t> running_;
  std::vector<size_t> done_;
  std::vector<SliceDemand> demands_;
  std::vector<BlockId> out_;
  std::vector<std::vector<BlockId>> found_;
  std::vector<std::vector<BlockId>> moved_to_;  // by group and block; null: not moved

  int64_t step_ = 0;
  int64_t failure_step_ = -1;
  int64_t num_steps_ = 0;
  int64_t num_finished_ = 0;
  int64_t num_preemptions_ = 0;
  int64_t output_tokens_ = 0;
  int64_t hit_tokens_ = 0;
  int64_t prompt_tokens_ = 0;
  double moved_ = 0;  // shares of the pool
  double moved_in_step_ = 0;
  double most_moved_ = 0;
  double held_sum_ = 0;
  double content_sum_ = 0;
  double running_sum_ = 0;
  std::optional<double> first_failure_;
  double first_failure_lost_ = 0;
  Sample failure_held_;
  Sample failure_one_group_;
  Sample failure_lost_;
};

}  // namespace
}  // namespace kvplan

int main() {
  std::ios::sync_with_stdio(false);
  kvplan::Simulator simulator;
  try {
    simulator.read(std::cin);
    simulator.run();
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  simulator.report();
}
