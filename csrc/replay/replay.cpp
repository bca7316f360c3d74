#include "kvplan/replay.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <queue>
#include <string>
#include <utility>

#include "kvplan/errors.h"
#include "kvplan/plan_pool.h"
#include "replay/mamba_split.h"
#include "replay/text_hash.h"

namespace kvplan {
namespace detail {
namespace {

using Index = uint32_t;  // of a request in the trace

/// A request between its arrival and its end.
struct Live {
  enum class Status : uint8_t { kWaiting, kPreempted, kRunning };

  Index index = 0;
  RequestHandle handle{};
  Status status = Status::kWaiting;
  bool is_prefill_chunk = false;  // of its last step: more of what is known is to be computed
  bool is_hashed = false;         // the first hashes are made when it is first looked up
  int64_t num_tokens = 0;
  int64_t num_prompt_tokens = 0;
  int64_t end_tokens = 0;  // with the last output
  int64_t num_computed = 0;
  int64_t num_in_flight = 0;
  int64_t num_stale = 0;         // of these, scheduled before a preemption
  int64_t num_placeholders = 0;  // outputs that steps in flight will sample
  int64_t num_drafts = 0;        // to be verified by its next step
  int64_t shared_prefix_boundary = 0;
  int64_t next_hash_at = 0;  // tokens with which it has one hash more
  TextHash hash;

  RequestTokens tokens() const {
    return {.num_tokens = num_tokens,
            .num_prompt_tokens = num_prompt_tokens,
            .num_computed_tokens = num_computed,
            .num_in_flight_tokens = num_in_flight,
            .shared_prefix_boundary = shared_prefix_boundary};
  }
};

struct Scheduled {
  Live* request = nullptr;
  int32_t num_tokens = 0;
  Index index = 0;         // of the request: it may have ended, and its place be another's
  int32_t num_drafts = 0;  // of the tokens
  bool is_padded = false;  // the drafts are none, for equal rows
  bool samples = false;
};

struct Step {
  std::vector<Scheduled> requests;
  double ends = 0;
};

/// vLLM's queues: first come, first served with preempted requests in front; or by priority, then
/// arrival. Mirrors vllm/v1/core/sched/request_queue.py (0.33).
class WaitingQueue {
 public:
  explicit WaitingQueue(const Trace& trace, bool by_priority)
      : trace_(trace), by_priority_(by_priority) {}

  size_t size() const { return by_priority_ ? heap_.size() : line_.size(); }
  bool empty() const { return size() == 0; }
  Live* front() const { return by_priority_ ? heap_.front() : line_.front(); }
  void add(Live* request) {
    if (by_priority_) {
      heap_.push_back(request);
      std::push_heap(heap_.begin(), heap_.end(), after());
    } else {
      line_.push_back(request);
    }
  }
  void put_back(Live* request) {
    if (by_priority_) {
      add(request);
    } else {
      line_.push_front(request);
    }
  }
  void pop() {
    if (by_priority_) {
      std::pop_heap(heap_.begin(), heap_.end(), after());
      heap_.pop_back();
    } else {
      line_.pop_front();
    }
  }
  void remove(Live* request) {
    if (by_priority_) {
      std::erase(heap_, request);
      std::make_heap(heap_.begin(), heap_.end(), after());
    } else {
      line_.erase(std::find(line_.begin(), line_.end(), request));
    }
  }

 private:
  /// Whether a request comes after another.
  struct After {
    const Trace& trace;
    bool operator()(const Live* a, const Live* b) const {
      const TraceRequest& first = trace.requests[a->index];
      const TraceRequest& second = trace.requests[b->index];
      if (first.priority != second.priority) return first.priority > second.priority;
      if (first.arrival != second.arrival) return first.arrival > second.arrival;
      return a->index > b->index;
    }
  };
  After after() const { return {trace_}; }

  const Trace& trace_;
  const bool by_priority_;
  std::deque<Live*> line_;
  std::vector<Live*> heap_;
};

CacheManagerOptions for_replay(CacheManagerOptions options, bool count_evictions) {
  options.hash_bytes = TextHash::kBytes;
  options.enable_events = count_evictions;
  options.needs_zeroing = false;  // nobody zeroes
  return options;
}

/// The scheduler and its engine's loop.
class Replay {
 public:
  Replay(CacheManagerOptions manager, const Trace& trace, const ReplayOptions& options)
      : trace_(trace),
        options_(options),
        num_prefill_lookahead_(manager.num_prefill_lookahead),
        max_model_len_(manager.max_model_len),
        enable_caching_(manager.enable_caching),
        hash_lookahead_(manager.num_hash_lookahead_tokens),
        manager_(for_replay(manager, options.count_evictions)),
        waiting_(trace, options.priority_policy),
        has_states_(
            std::any_of(manager.groups.begin(), manager.groups.end(),
                        [](const CacheGroup& group) { return group.kind == CacheKind::kMamba; })) {
    int64_t longest_chunk = options.max_num_batched_tokens;
    if (options.long_prefill_token_threshold > 0) {
      longest_chunk = std::min(longest_chunk, options.long_prefill_token_threshold);
    }
    split_ = MambaSplit::make(
        manager, manager_, {.block_size = options.block_size, .max_prefill_tokens = longest_chunk});
    result_.requests.resize(trace.requests.size());
  }

  ReplayResult run() {
    const double start = trace_.requests.empty() ? 0 : trace_.requests[0].arrival;
    now_ = start;
    size_t asked = 0;
    while (true) {
      accept();
      if (waiting_.empty() && running_.empty() && steps_.empty()) {
        if (next_ == trace_.requests.size()) break;
        now_ = trace_.requests[next_].arrival;
        continue;
      }
      const bool is_too_late = num_late_ > 0 && num_late_ > options_.most_late;
      if (is_too_late || (options_.go_on && (result_.num_steps & 0xff) == 0 && asked++ % 4 == 0 &&
                          !options_.go_on(num_done_))) {
        result_.ended_early = true;
        break;
      }
      Step step = schedule();
      if (!step.requests.empty()) {
        start_step(std::move(step));
        if (static_cast<int64_t>(steps_.size()) < options_.max_concurrent_batches) continue;
      } else if (steps_.empty() && !drop_stuck()) {
        result_.ended_early = true;
        break;
      }
      if (!steps_.empty()) finish_step();
    }
    sample();
    result_.seconds = now_ - start;
    result_.stats = manager_.take_prefix_cache_stats();
    return std::move(result_);
  }

 private:
  // Requests.

  void accept() {
    for (; next_ < trace_.requests.size() && trace_.requests[next_].arrival <= now_; ++next_) {
      const TraceRequest& from = trace_.requests[next_];
      if (from.num_prompt_tokens >= max_model_len_) {
        end(static_cast<Index>(next_), RequestOutcome::End::kTooLong);
        continue;
      }
      Live* request = new_live(static_cast<Index>(next_), from);
      waiting_.add(request);
    }
  }

  Live* new_live(Index index, const TraceRequest& from) {
    Live live{
        .index = index,
        .handle = manager_.add_request(),
        .num_tokens = from.num_prompt_tokens,
        .num_prompt_tokens = from.num_prompt_tokens,
        .end_tokens = std::min(from.num_prompt_tokens + from.num_output_tokens, max_model_len_),
        .next_hash_at = std::numeric_limits<int64_t>::max(),
        .hash = TextHash(trace_, from, manager_.hash_block_size(), hash_lookahead_)};
    if (unused_.empty()) return &lives_.emplace_back(std::move(live));
    Live* place = unused_.back();
    unused_.pop_back();
    *place = std::move(live);
    return place;
  }

  void end(Index index, RequestOutcome::End how) {
    RequestOutcome& outcome = result_.requests[index];
    outcome.end = how;
    outcome.finished = now_;
    ++num_done_;
  }

  void forget(Live* request, RequestOutcome::End how) {
    end(request->index, how);
    manager_.remove_request(request->handle);
    request->index = std::numeric_limits<Index>::max();
    unused_.push_back(request);
  }

  void add_hashes(Live& request) {
    if (!enable_caching_) return;
    const int64_t count = request.hash.count(request.num_tokens);
    hashes_.clear();
    while (request.hash.num_done() < count) {
      const TextHash::Hash hash = request.hash.next();
      const auto bytes = std::as_bytes(std::span(hash));
      hashes_.insert(hashes_.end(), bytes.begin(), bytes.end());
    }
    if (!hashes_.empty()) manager_.append_hashes(request.handle, hashes_);
    request.is_hashed = true;
    request.next_hash_at = (count + 1) * manager_.hash_block_size() + hash_lookahead_;
  }

  // Scheduling.

  Step schedule() {
    Step step;
    if (!spare_.empty()) {
      step = std::move(spare_.back());
      spare_.pop_back();
      step.requests.clear();
    }
    budget_ = options_.max_num_batched_tokens;
    any_preempted_ = any_prefill_ = false;
    manager_.new_step_starts();
    const auto eligible = static_cast<int64_t>(running_.size() + waiting_.size());
    threshold_ = eligible > 1 ? options_.long_prefill_token_threshold : 0;
    if (threshold_ > 0 && options_.long_prefill_token_threshold_adaptive) {
      threshold_ = std::max(threshold_, options_.max_num_batched_tokens / eligible);
    }
    schedule_running(step);
    if (!any_preempted_) schedule_waiting(step);
    for (Scheduled& scheduled : step.requests) {
      Live& request = *scheduled.request;
      request.num_computed += scheduled.num_tokens;
      request.num_in_flight += scheduled.num_tokens;
      request.is_prefill_chunk =
          request.num_computed < request.num_tokens + request.num_placeholders;
      scheduled.samples = !request.is_prefill_chunk;
      if (scheduled.samples && options_.async_scheduling) {
        request.num_placeholders += 1 + scheduled.num_drafts;
        request.num_drafts = options_.num_drafts;
      }
    }
    if (has_states_) manager_.take_boundary_states();
    if (manager_.has_copies()) {
      manager_.free_copies(manager_.take_copies());
    }
    return step;
  }

  int64_t limited(int64_t num_new) const {
    return threshold_ > 0 && threshold_ < num_new ? threshold_ : num_new;
  }

  /// Never ends a chunk of a prefill so close to its end that a drafter lacks tokens.
  int64_t keep_lookahead(const Live& request, int64_t computed, int64_t num_new) const {
    const int64_t remaining = request.num_tokens - computed - num_new;
    if (0 < remaining && remaining < num_prefill_lookahead_) {
      num_new -= num_prefill_lookahead_ - remaining;
    }
    return std::max<int64_t>(0, num_new);
  }

  void schedule_running(Step& step) {
    size_t i = 0;
    while (i < running_.size() && budget_ > 0) {
      Live& request = *running_[i];
      if (request.num_placeholders > 0 &&
          request.num_computed + 2 - request.num_placeholders >= request.end_tokens) {
        ++i;
        continue;
      }
      const int64_t num_known = request.num_tokens + request.num_placeholders;
      int64_t num_new = limited(num_known + request.num_drafts - request.num_computed);
      num_new = std::min({num_new, budget_, max_model_len_ - request.num_computed - 1});
      if (split_) num_new = split_->clip(request.tokens(), request.num_computed, num_new);
      num_new = keep_lookahead(request, request.num_computed, num_new);
      if (num_new <= 0) {
        ++i;
        continue;
      }
      const bool is_quiet = request.num_computed + num_new + options_.num_lookahead_tokens <
                            manager_.quiet_until(request.handle);
      if (!is_quiet && !make_room(step, request, num_new, i)) {
        if (options_.priority_policy && request.status == Live::Status::kPreempted) continue;
        break;
      }
      const int64_t num_drafts =
          std::clamp<int64_t>(request.num_computed + num_new - num_known, 0, request.num_drafts);
      request.num_drafts = 0;
      any_prefill_ |= request.is_prefill_chunk;
      step.requests.push_back({.request = &request,
                               .num_tokens = static_cast<int32_t>(num_new),
                               .index = request.index,
                               .num_drafts = static_cast<int32_t>(num_drafts)});
      budget_ -= num_new;
      ++i;
    }
  }

  /// Allocates, and preempts others, or the request itself, until it fits. `i` stays the request's
  /// place among those that run.
  bool make_room(Step& step, Live& request, int64_t num_new, size_t& i) {
    while (!manager_.allocate(
        request.handle, request.tokens(),
        {.num_new_tokens = num_new, .num_lookahead_tokens = options_.num_lookahead_tokens})) {
      Live* victim = running_.back();
      if (options_.priority_policy) {
        const auto place =
            std::max_element(running_.begin(), running_.end(), [&](const Live* a, const Live* b) {
              const TraceRequest& first = trace_.requests[a->index];
              const TraceRequest& second = trace_.requests[b->index];
              return std::pair(first.priority, first.arrival) <
                     std::pair(second.priority, second.arrival);
            });
        victim = *place;
        if (static_cast<size_t>(place - running_.begin()) < i) --i;
        running_.erase(place);
        const auto scheduled =
            std::find_if(step.requests.begin(), step.requests.end(),
                         [&](const Scheduled& other) { return other.request == victim; });
        if (scheduled != step.requests.end()) {
          budget_ += scheduled->num_tokens;
          step.requests.erase(scheduled);
        }
      } else {
        running_.pop_back();
      }
      preempt(*victim);
      if (victim == &request) return false;
    }
    return true;
  }

  void preempt(Live& request) {
    manager_.free(request.handle);
    request.status = Live::Status::kPreempted;
    request.num_computed = 0;
    request.num_stale = request.num_in_flight;
    request.num_placeholders = 0;
    request.num_drafts = 0;
    ++result_.requests[request.index].preemptions;
    ++num_preemptions_;
    any_preempted_ = true;
    last_preempted_ = &request;
    waiting_.put_back(&request);
  }

  void schedule_waiting(Step& step) {
    skipped_.clear();
    const bool any_running = !step.requests.empty();
    while (budget_ > 0 && !waiting_.empty() &&
           static_cast<int64_t>(running_.size()) < options_.max_num_seqs) {
      Live& request = *waiting_.front();
      if (request.num_stale > 0) {
        skip(request);
        continue;
      }
      if (!request.is_hashed) add_hashes(request);
      if (enable_caching_) {
        manager_.find_prefix(request.handle, request.num_tokens - 1, hit_);
      } else {
        hit_ = {};
      }
      int64_t computed = hit_.num_tokens;
      request.shared_prefix_boundary = hit_.shared_prefix_boundary;
      const bool only_replayed = 0 < computed && computed <= options_.prefix_replay_tokens;
      if (only_replayed) computed = 0;
      const int64_t num_hit = computed;
      const int64_t num_replayed = std::min(options_.prefix_replay_tokens, computed);
      computed -= num_replayed;
      int64_t num_new = request.num_tokens - computed;
      // A decoding request begins with as many rows as the others have.
      const int64_t padded = 1 + options_.num_drafts;
      bool is_padded = options_.num_drafts > 0 && num_new == 1 && !any_prefill_ &&
                       (any_running || computed > 0) && computed + padded + 1 <= max_model_len_;
      if (is_padded) {
        if (padded > budget_) break;
        num_new = padded;
      }
      num_new = limited(num_new);
      if (!options_.enable_chunked_prefill && num_new > budget_) break;
      num_new = std::min(num_new, budget_);
      if (split_) {
        RequestTokens tokens = request.tokens();
        num_new = split_->clip(tokens, num_hit, num_new);
        if (num_new == 0) break;
        if (is_padded && num_new != padded) {
          num_new = 1;
          is_padded = false;
        }
      }
      num_new = keep_lookahead(request, computed, num_new);
      if (num_new == 0) {
        skip(request);
        continue;
      }
      const bool fits =
          manager_.allocate(request.handle, request.tokens(),
                            {.num_new_tokens = std::max<int64_t>(0, num_new - num_replayed),
                             .num_new_computed_tokens = num_hit,
                             .num_lookahead_tokens = options_.num_lookahead_tokens,
                             .full_sequence_must_fit = options_.reserve_full_isl,
                             .apply_watermark = !running_.empty()},
                            enable_caching_ && !only_replayed ? &hit_ : nullptr);
      if (!fits) break;
      admit(request, num_hit);
      waiting_.pop();
      running_.push_back(&request);
      request.num_computed = computed;
      step.requests.push_back(
          {.request = &request,
           .num_tokens = static_cast<int32_t>(num_new),
           .index = request.index,
           .num_drafts = is_padded ? static_cast<int32_t>(options_.num_drafts) : 0,
           .is_padded = is_padded});
      budget_ -= num_new;
    }
    for (auto it = skipped_.rbegin(); it != skipped_.rend(); ++it) waiting_.put_back(*it);
  }

  void skip(Live& request) {
    waiting_.pop();
    skipped_.push_back(&request);
  }

  void admit(Live& request, int64_t num_hit) {
    const bool again = request.status == Live::Status::kPreempted;
    if (enable_caching_) {
      manager_.record_prefix_cache_stats(request.num_tokens, num_hit, again);
    }
    request.status = Live::Status::kRunning;
    if (again) return;
    if (enable_caching_) {
      num_query_tokens_ += request.num_tokens;
      num_hit_tokens_ += num_hit;
    }
    RequestOutcome& outcome = result_.requests[request.index];
    outcome.hit_tokens = num_hit;
    outcome.admitted = now_;
  }

  // Steps.

  void start_step(Step step) {
    int64_t num_tokens = 0;
    int64_t num_context = 0;
    for (const Scheduled& scheduled : step.requests) {
      num_tokens += scheduled.num_tokens;
      num_context += scheduled.request->num_computed;
    }
    const StepTime& cost = options_.step_time;
    const auto num_groups = static_cast<double>(manager_.num_groups());
    const auto num_sequences = static_cast<double>(step.requests.size());
    const double seconds = cost.base + cost.per_token * static_cast<double>(num_tokens) +
                           cost.per_sequence * num_sequences +
                           cost.per_context_token * static_cast<double>(num_context) +
                           cost.per_group * num_groups +
                           cost.per_group_row * num_groups * num_sequences;
    // The device runs one step after another.
    step.ends = std::max(now_, steps_.empty() ? now_ : steps_.back().ends) + seconds;
    steps_.push_back(std::move(step));
    result_.busy_seconds += seconds;
    ++result_.num_steps;
    result_.computed_tokens += num_tokens;
    const int64_t used = manager_.num_blocks() - 1 - manager_.num_free_blocks();
    result_.peak_used_blocks = std::max(result_.peak_used_blocks, used);
    if (options_.count_evictions) {
      for (const BlockPoolEvent& event : manager_.take_events()) {
        if (event.kind == BlockPoolEvent::Kind::kRemoved) ++result_.evictions;
      }
    }
    if (result_.num_steps >= next_sample_) sample();
  }

  void finish_step() {
    Step step = std::move(steps_.front());
    steps_.pop_front();
    now_ = std::max(now_, step.ends);
    bool any_ended = false;
    const bool is_drafting = options_.num_drafts > 0 && !options_.async_scheduling;
    for (const Scheduled& scheduled : step.requests) {
      Live& request = *scheduled.request;
      if (request.index != scheduled.index) continue;
      request.num_in_flight -= scheduled.num_tokens;
      const bool is_stale = request.num_stale > 0;
      if (is_stale) request.num_stale -= scheduled.num_tokens;
      if (!scheduled.samples) continue;
      const bool had_placeholders = request.num_placeholders > 0;
      const bool was_prompt = request.num_tokens == request.num_prompt_tokens;
      const int64_t num_sampled = 1 + num_accepted(scheduled);
      const int64_t num_new = std::min(num_sampled, request.end_tokens - request.num_tokens);
      request.num_tokens += num_new;
      if (!is_stale) {
        const int64_t num_rejected = 1 + scheduled.num_drafts - num_new;  // or behind the end
        if (request.num_computed > 0) request.num_computed -= num_rejected;
        if (had_placeholders) request.num_placeholders -= 1 + scheduled.num_drafts;
        if (is_drafting && request.status == Live::Status::kRunning) {
          request.num_drafts = request.is_prefill_chunk ? 0 : options_.num_drafts;
        }
      }
      if (request.num_tokens >= request.next_hash_at) add_hashes(request);
      RequestOutcome& outcome = result_.requests[request.index];
      if (was_prompt) {
        outcome.first_token = now_;
        const double waited = now_ - trace_.requests[request.index].arrival;
        if (waited > options_.late_after) ++num_late_;
      }
      const bool is_running = request.status == Live::Status::kRunning;
      if (enable_caching_ && !is_stale && is_running &&
          (had_placeholders || options_.num_drafts > 0)) {
        const int64_t settled = request.num_computed - request.num_in_flight;
        if (settled >= manager_.quiet_until(request.handle)) {
          manager_.commit(request.handle, request.tokens(), settled);
        }
      }
      if (request.num_tokens < request.end_tokens) continue;
      if (!is_running) waiting_.remove(&request);
      forget(&request, RequestOutcome::End::kFinished);
      any_ended |= is_running;
    }
    if (any_ended) {
      std::erase_if(running_, [](const Live* request) {
        return request->index == std::numeric_limits<Index>::max();
      });
    }
    spare_.push_back(std::move(step));
  }

  /// Drafts up to the first that is rejected. Whether one is follows from the request and the
  /// position alone, so that it is the same under every plan.
  int64_t num_accepted(const Scheduled& scheduled) const {
    if (scheduled.is_padded) return 0;
    int64_t count = 0;
    while (count < scheduled.num_drafts) {
      // splitmix64
      uint64_t x = (uint64_t{scheduled.index} << 32U) +
                   static_cast<uint64_t>(scheduled.request->num_tokens + count);
      x += 0x9e3779b97f4a7c15U;
      x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9U;
      x = (x ^ (x >> 27U)) * 0x94d049bb133111ebU;
      x ^= x >> 31U;
      if (static_cast<double>(x >> 11U) * 0x1p-53 >= options_.acceptance) break;
      ++count;
    }
    return count;
  }

  /// No step is in flight and none could be scheduled, where a server would wait for ever: the
  /// request that is in the way does not fit, even alone. False where all that run are stuck.
  bool drop_stuck() {
    if (!running_.empty()) return any_preempted_;
    Live* request = any_preempted_ ? last_preempted_ : waiting_.front();
    waiting_.remove(request);
    forget(request, RequestOutcome::End::kNoRoom);
    return true;
  }

  // The load over time.

  void sample() {
    LoadSample now{.time = now_,
                   .num_running = static_cast<int64_t>(running_.size()),
                   .num_waiting = static_cast<int64_t>(waiting_.size()),
                   .used_blocks = manager_.num_blocks() - 1 - manager_.num_free_blocks(),
                   .query_tokens = num_query_tokens_,
                   .hit_tokens = num_hit_tokens_,
                   .preemptions = num_preemptions_,
                   .groups = std::vector<LoadSample::Group>(manager_.num_groups())};
    for (const Live* request : running_) {
      for (size_t g = 0; g < now.groups.size(); ++g) count_held(*request, g, now.groups[g]);
    }
    const std::vector<int64_t> cached = manager_.num_cached_blocks();
    for (size_t g = 0; g < cached.size(); ++g) now.groups[g].cached_blocks = cached[g];
    result_.samples.push_back(std::move(now));
    if (result_.samples.size() >= std::max<size_t>(2, options_.max_samples)) {
      for (size_t i = 1; 2 * i < result_.samples.size(); ++i) {
        result_.samples[i] = std::move(result_.samples[2 * i]);
      }
      result_.samples.resize((result_.samples.size() + 1) / 2);
      sample_every_ *= 2;
    }
    next_sample_ = result_.num_steps + sample_every_;
  }

  void count_held(const Live& request, size_t g, LoadSample::Group& group) const {
    const BlockTableView table = manager_.block_table(request.handle, g);
    const int64_t size = manager_.block_size(g);
    for (size_t i = 0; i < table.size(); ++i) {
      if (table[i] == kNullBlock) continue;
      ++group.held_blocks;
      const int64_t begins = static_cast<int64_t>(i) * size;
      group.held_tokens += std::clamp<int64_t>(request.num_computed - begins, 0, size);
    }
  }

  const Trace& trace_;
  const ReplayOptions& options_;
  const int64_t num_prefill_lookahead_;
  const int64_t max_model_len_;
  const bool enable_caching_;
  const int64_t hash_lookahead_;
  CacheManager manager_;
  std::optional<MambaSplit> split_;
  WaitingQueue waiting_;
  const bool has_states_;

  std::deque<Live> lives_;
  std::vector<Live*> unused_;
  std::vector<Live*> running_;
  std::vector<Live*> skipped_;
  std::deque<Step> steps_;  // in flight
  std::vector<Step> spare_;
  std::vector<std::byte> hashes_;
  PrefixHit hit_;

  double now_ = 0;
  size_t next_ = 0;  // request to arrive
  size_t num_done_ = 0;
  size_t num_late_ = 0;
  int64_t budget_ = 0;
  int64_t threshold_ = 0;
  bool any_preempted_ = false;  // in this step
  bool any_prefill_ = false;    // among those that ran and are in this step
  Live* last_preempted_ = nullptr;
  int64_t num_preemptions_ = 0;
  int64_t num_query_tokens_ = 0;
  int64_t num_hit_tokens_ = 0;
  int64_t next_sample_ = 0;
  int64_t sample_every_ = 1;
  ReplayResult result_;
};

void require_number(bool holds, const char* name, const std::string& value, const char* limit) {
  if (!holds) throw InvalidArgument(std::string(name) + " is " + limit + ", not " + value);
}

void check(const ReplayOptions& options) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const auto positive = [](const char* name, int64_t value) {
    require_number(value >= 1 && value <= kMost, name, std::to_string(value), "1 to 2147483647");
  };
  const auto count = [](const char* name, int64_t value) {
    require_number(value >= 0 && value <= kMost, name, std::to_string(value), "0 to 2147483647");
  };
  positive("max_num_seqs", options.max_num_seqs);
  positive("max_num_batched_tokens", options.max_num_batched_tokens);
  positive("max_concurrent_batches", options.max_concurrent_batches);
  positive("block_size", options.block_size);
  count("long_prefill_token_threshold", options.long_prefill_token_threshold);
  count("num_lookahead_tokens", options.num_lookahead_tokens);
  count("num_drafts", options.num_drafts);
  require_number(options.acceptance >= 0 && options.acceptance <= 1, "acceptance",
                 std::to_string(options.acceptance), "0 to 1");
  count("prefix_replay_tokens", options.prefix_replay_tokens);
  const StepTime& cost = options.step_time;
  for (const double seconds : {cost.base, cost.per_token, cost.per_sequence, cost.per_context_token,
                               cost.per_group, cost.per_group_row}) {
    require_number(seconds >= 0 && seconds < 1e9, "a part of step_time", std::to_string(seconds),
                   "0 to 1e9 seconds");
  }
}

void check(const Trace& trace) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max() / 2;
  require_number(trace.requests.size() < std::numeric_limits<Index>::max(),
                 "the number of requests", std::to_string(trace.requests.size()),
                 "less than 2**32 - 1");
  double last = 0;
  for (size_t i = 0; i < trace.requests.size(); ++i) {
    const TraceRequest& request = trace.requests[i];
    const auto fail = [&](std::string what) {
      throw InvalidArgument(what.insert(0, "request " + std::to_string(i) + ": "));
    };
    if (!(request.arrival >= last)) {
      fail("arrives at " + std::to_string(request.arrival) + " s, before the one ahead of it");
    }
    last = request.arrival;
    if (!(last < 1e15)) fail("arrives after 1e15 s");
    if (request.num_prompt_tokens < 1 || request.num_prompt_tokens > kMost) {
      fail("a prompt has 1 to " + std::to_string(kMost) + " tokens, not " +
           std::to_string(request.num_prompt_tokens));
    }
    if (request.num_output_tokens < 1 || request.num_output_tokens > kMost) {
      fail("an output has 1 to " + std::to_string(kMost) + " tokens, not " +
           std::to_string(request.num_output_tokens));
    }
    if (request.first_token) {
      const auto length =
          static_cast<size_t>(request.num_prompt_tokens + request.num_output_tokens);
      if (*request.first_token > trace.token_ids.size() ||
          trace.token_ids.size() - *request.first_token < length) {
        fail("the trace ends before its token ids do");
      }
      continue;
    }
    if (request.first_part > trace.parts.size() ||
        trace.parts.size() - request.first_part < request.num_parts) {
      fail("the trace ends before its parts do");
    }
    int64_t length = 0;
    for (size_t p = 0; p < request.num_parts; ++p) {
      const TextPart& part = trace.parts[request.first_part + p];
      if (part.length < 0 || part.length > kMost) {
        fail("a part has 0 to " + std::to_string(kMost) + " tokens, not " +
             std::to_string(part.length));
      }
      length += part.length;
    }
    if (length != request.num_prompt_tokens) {
      fail("its parts have " + std::to_string(length) + " tokens, its prompt " +
           std::to_string(request.num_prompt_tokens));
    }
  }
}

}  // namespace
}  // namespace detail

ReplayResult replay(CacheManagerOptions manager, const Trace& trace, const ReplayOptions& options) {
  detail::check(options);
  detail::check(trace);
  return detail::Replay(std::move(manager), trace, options).run();
}

ReplayResult replay(const Plan& plan, double watermark, const Trace& trace, ReplayOptions options) {
  CacheManagerOptions manager = cache_manager_options(plan);
  manager.watermark = watermark;
  options.block_size = plan.config.block_size;
  options.prefix_replay_tokens = prefix_replay_tokens(plan);
  return replay(std::move(manager), trace, options);
}

}  // namespace kvplan
