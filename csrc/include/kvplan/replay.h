#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "kvplan/cache_manager.h"
#include "kvplan/export.h"
#include "kvplan/plan.h"

namespace kvplan {

/// The first `length` tokens of a text. Texts of one number are the same tokens; what a request
/// shares with another is written as parts of the same text.
struct TextPart {
  int64_t text = 0;
  int64_t length = 0;
};

/// A request of a trace. Its tokens are texts (`first_part` and `num_parts` into `Trace::parts`) or
/// token ids (`first_token` into `Trace::token_ids`: the prompt, then the outputs).
struct TraceRequest {
  double arrival = 0;  ///< seconds
  int64_t priority = 0;
  int64_t num_prompt_tokens = 0;
  int64_t num_output_tokens = 0;  ///< at least 1
  size_t first_part = 0;
  size_t num_parts = 0;
  std::optional<size_t> first_token{};
  int64_t output_text = 0;  ///< of a request of texts
};

/// Requests in the order of their arrival.
struct Trace {
  std::vector<TraceRequest> requests;
  std::vector<TextPart> parts;
  std::vector<int32_t> token_ids;
};

/// How long a step takes, in seconds: a linear model of a forward pass, no measurement.
struct StepTime {
  double base = 0;
  double per_token = 0;          ///< scheduled in the step
  double per_sequence = 0;       ///< scheduled in the step
  double per_context_token = 0;  ///< read by these
  double per_group = 0;          ///< of the plan
  double per_group_row = 0;      ///< of the plan, for each sequence scheduled in the step
};

/// A scheduler's policy; vLLM's names and defaults.
struct ReplayOptions {
  bool priority_policy = false;  ///< else first come, first served
  int64_t max_num_seqs = 1024;
  int64_t max_num_batched_tokens = 8192;
  int64_t long_prefill_token_threshold = 0;
  bool long_prefill_token_threshold_adaptive = false;
  bool enable_chunked_prefill = true;
  bool reserve_full_isl = true;  ///< admit a request where its whole prompt has room
  bool async_scheduling = true;
  int64_t max_concurrent_batches = 2;  ///< steps scheduled before the first is settled
  int64_t num_lookahead_tokens = 0;
  int64_t num_drafts = 0;  ///< `num_speculative_tokens`: drafted after each sampled token
  double acceptance = 0;   ///< chance of a draft whose forerunners are accepted; drawn by position
  int64_t prefix_replay_tokens = 0;  ///< recomputed at the end of each hit; a plan knows it
  int64_t block_size =
      16;  ///< `cache_config.block_size`, where states are aligned; a plan knows it
  StepTime step_time{};
  size_t max_samples = 300;  ///< of the load over time; every other is dropped beyond
  bool count_evictions = false;
  /// The replay ends once more requests than `most_late` had their first token more than
  /// `late_after` seconds after their arrival: who asks whether a load is served in time knows
  /// then.
  double late_after = std::numeric_limits<double>::infinity();
  size_t most_late = 0;
  /// Asked now and then with the requests that are done; false ends the replay.
  std::function<bool(size_t num_done)> go_on{};
};

struct RequestOutcome {
  enum class End : uint8_t {
    kFinished,
    kTooLong,    ///< the prompt has `max_model_len` tokens or more
    kNoRoom,     ///< the pool does not hold it, even alone
    kUnfinished  ///< the replay was ended before
  };
  End end = End::kUnfinished;
  int64_t hit_tokens = 0;  ///< when it was first admitted
  int64_t preemptions = 0;
  double admitted = 0;  ///< seconds, as the rest
  double first_token = 0;
  double finished = 0;
};

/// The load at a time.
struct LoadSample {
  double time = 0;
  int64_t num_running = 0;
  int64_t num_waiting = 0;
  int64_t used_blocks = 0;   ///< of the pool, by requests
  int64_t query_tokens = 0;  ///< of the requests admitted so far, when they first were
  int64_t hit_tokens = 0;
  int64_t preemptions = 0;  ///< so far
  struct Group {
    int64_t held_blocks = 0;    ///< in tables of running requests; a shared one for each
    int64_t held_tokens = 0;    ///< computed, in these
    int64_t cached_blocks = 0;  ///< under a hash
  };
  std::vector<Group> groups;
};

struct ReplayResult {
  std::vector<RequestOutcome> requests;  ///< as in the trace
  std::vector<LoadSample> samples;
  double seconds = 0;       ///< from the first arrival to the end of the last step
  double busy_seconds = 0;  ///< of these, with a step running
  int64_t num_steps = 0;
  int64_t computed_tokens = 0;  ///< scheduled in all steps
  int64_t peak_used_blocks = 0;
  int64_t evictions = 0;     ///< of cached blocks, where they are counted
  PrefixCacheStats stats{};  ///< of all lookups that ended in an admission
  bool ended_early = false;
};

/// Runs a trace through a cache manager under vLLM's scheduling policy. No model runs: outputs have
/// the lengths that the trace says, and steps take what the model of their time says.
///
/// Mirrors vllm/v1/core/sched/scheduler.py and async_scheduler.py, in the loop of
/// vllm/v1/engine/core.py (0.33), for text requests without connectors. Of drafters that take
/// slots of the batch for themselves (`max_num_new_slots_for_drafting`) none is taken. Throws
/// `InvalidArgument` for bad numbers before anything runs.
KVPLAN_API ReplayResult replay(CacheManagerOptions manager, const Trace& trace,
                               const ReplayOptions& options);
/// The same for a plan's manager. Throws what `cache_manager_options` throws.
KVPLAN_API ReplayResult replay(const Plan& plan, double watermark, const Trace& trace,
                               ReplayOptions options);

}  // namespace kvplan
