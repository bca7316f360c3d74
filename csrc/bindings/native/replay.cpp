#include "kvplan/replay.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "bindings/bindings.h"
#include "bindings/native/plan_object.h"
#include "kvplan/errors.h"

namespace py = pybind11;

namespace kvplan::bindings {
namespace {

template <class T>
using Array = py::array_t<T, py::array::c_style | py::array::forcecast>;

template <class T>
void require_size(const char* name, const Array<T>& array, size_t size) {
  if (array.ndim() == 1 && static_cast<size_t>(array.size()) == size) return;
  throw InvalidArgument(std::string(name) + " has one axis of " + std::to_string(size) +
                        " elements, not " + std::to_string(array.size()));
}

Trace make_trace(const Array<double>& arrivals, const Array<int64_t>& priorities,
                 const Array<int64_t>& num_prompt_tokens, const Array<int64_t>& num_output_tokens,
                 const Array<int64_t>& num_parts, const Array<int64_t>& part_texts,
                 const Array<int64_t>& part_lengths, const Array<int64_t>& output_texts,
                 const std::optional<Array<int32_t>>& token_ids) {
  const auto size = static_cast<size_t>(arrivals.size());
  require_size("arrivals", arrivals, size);
  require_size("priorities", priorities, size);
  require_size("num_prompt_tokens", num_prompt_tokens, size);
  require_size("num_output_tokens", num_output_tokens, size);
  Trace trace;
  trace.requests.resize(size);
  size_t first = 0;
  for (size_t i = 0; i < size; ++i) {
    TraceRequest& request = trace.requests[i];
    request.arrival = arrivals.data()[i];
    request.priority = priorities.data()[i];
    request.num_prompt_tokens = num_prompt_tokens.data()[i];
    request.num_output_tokens = num_output_tokens.data()[i];
  }
  if (token_ids) {
    trace.token_ids.assign(token_ids->data(), token_ids->data() + token_ids->size());
    for (TraceRequest& request : trace.requests) {
      request.first_token = first;
      // A negative length is refused by the replay.
      first += static_cast<size_t>(request.num_prompt_tokens + request.num_output_tokens);
    }
    return trace;
  }
  require_size("num_parts", num_parts, size);
  require_size("output_texts", output_texts, size);
  require_size("part_lengths", part_lengths, static_cast<size_t>(part_texts.size()));
  trace.parts.resize(static_cast<size_t>(part_texts.size()));
  for (size_t i = 0; i < trace.parts.size(); ++i) {
    trace.parts[i] = {.text = part_texts.data()[i], .length = part_lengths.data()[i]};
  }
  for (size_t i = 0; i < size; ++i) {
    TraceRequest& request = trace.requests[i];
    request.first_part = first;
    request.num_parts = static_cast<size_t>(num_parts.data()[i]);
    request.output_text = output_texts.data()[i];
    first += request.num_parts;
  }
  return trace;
}

template <class T, class Items, class Value>
py::array column(const Items& items, Value&& value) {
  py::array_t<T> array(static_cast<py::ssize_t>(items.size()));
  T* out = array.mutable_data();
  for (const auto& item : items) *out++ = static_cast<T>(value(item));
  return array;
}

py::dict request_columns(const ReplayResult& result) {
  const auto& items = result.requests;
  py::dict d;
  d["end"] = column<uint8_t>(items, [](const auto& r) { return r.end; });
  d["hit_tokens"] = column<int64_t>(items, [](const auto& r) { return r.hit_tokens; });
  d["preemptions"] = column<int64_t>(items, [](const auto& r) { return r.preemptions; });
  d["admitted"] = column<double>(items, [](const auto& r) { return r.admitted; });
  d["first_token"] = column<double>(items, [](const auto& r) { return r.first_token; });
  d["finished"] = column<double>(items, [](const auto& r) { return r.finished; });
  return d;
}

py::array group_columns(const ReplayResult& result, int64_t LoadSample::Group::*member) {
  const size_t num_groups = result.samples.empty() ? 0 : result.samples[0].groups.size();
  py::array_t<int64_t> array({result.samples.size(), num_groups});
  int64_t* out = array.mutable_data();
  for (const LoadSample& sample : result.samples) {
    for (const LoadSample::Group& group : sample.groups) *out++ = group.*member;
  }
  return array;
}

py::dict sample_columns(const ReplayResult& result) {
  const auto& items = result.samples;
  py::dict d;
  d["time"] = column<double>(items, [](const auto& s) { return s.time; });
  d["running"] = column<int64_t>(items, [](const auto& s) { return s.num_running; });
  d["waiting"] = column<int64_t>(items, [](const auto& s) { return s.num_waiting; });
  d["used_blocks"] = column<int64_t>(items, [](const auto& s) { return s.used_blocks; });
  d["query_tokens"] = column<int64_t>(items, [](const auto& s) { return s.query_tokens; });
  d["hit_tokens"] = column<int64_t>(items, [](const auto& s) { return s.hit_tokens; });
  d["preemptions"] = column<int64_t>(items, [](const auto& s) { return s.preemptions; });
  d["held_blocks"] = group_columns(result, &LoadSample::Group::held_blocks);
  d["held_tokens"] = group_columns(result, &LoadSample::Group::held_tokens);
  d["cached_blocks"] = group_columns(result, &LoadSample::Group::cached_blocks);
  return d;
}

py::dict replay_dict(const ReplayResult& result) {
  py::dict d;
  d["requests"] = request_columns(result);
  d["samples"] = sample_columns(result);
  d["seconds"] = result.seconds;
  d["busy_seconds"] = result.busy_seconds;
  d["num_steps"] = result.num_steps;
  d["computed_tokens"] = result.computed_tokens;
  d["peak_used_blocks"] = result.peak_used_blocks;
  d["evictions"] = result.evictions;
  d["lookups"] = result.stats.requests;
  d["query_tokens"] = result.stats.queries;
  d["hit_tokens"] = result.stats.hits;
  d["preempted_lookups"] = result.stats.preempted_requests;
  d["preempted_query_tokens"] = result.stats.preempted_queries;
  d["preempted_hit_tokens"] = result.stats.preempted_hits;
  d["ended_early"] = result.ended_early;
  return d;
}

py::dict replay_trace(const py::object& plan, const Array<double>& arrivals,
                      const Array<int64_t>& priorities, const Array<int64_t>& num_prompt_tokens,
                      const Array<int64_t>& num_output_tokens, const Array<int64_t>& num_parts,
                      const Array<int64_t>& part_texts, const Array<int64_t>& part_lengths,
                      const Array<int64_t>& output_texts,
                      const std::optional<Array<int32_t>>& token_ids, bool priority_policy,
                      int64_t max_num_seqs, int64_t max_num_batched_tokens,
                      int64_t long_prefill_token_threshold,
                      bool long_prefill_token_threshold_adaptive, bool enable_chunked_prefill,
                      bool reserve_full_isl, bool async_scheduling, int64_t max_concurrent_batches,
                      int64_t num_lookahead_tokens, int64_t num_drafts, double acceptance,
                      double watermark, const std::array<double, 6>& step_time, size_t max_samples,
                      bool count_evictions, double late_after, size_t most_late,
                      const py::object& go_on) {
  const Trace trace = make_trace(arrivals, priorities, num_prompt_tokens, num_output_tokens,
                                 num_parts, part_texts, part_lengths, output_texts, token_ids);
  ReplayOptions options{
      .priority_policy = priority_policy,
      .max_num_seqs = max_num_seqs,
      .max_num_batched_tokens = max_num_batched_tokens,
      .long_prefill_token_threshold = long_prefill_token_threshold,
      .long_prefill_token_threshold_adaptive = long_prefill_token_threshold_adaptive,
      .enable_chunked_prefill = enable_chunked_prefill,
      .reserve_full_isl = reserve_full_isl,
      .async_scheduling = async_scheduling,
      .max_concurrent_batches = max_concurrent_batches,
      .num_lookahead_tokens = num_lookahead_tokens,
      .num_drafts = num_drafts,
      .acceptance = acceptance,
      .step_time = {.base = step_time[0],
                    .per_token = step_time[1],
                    .per_sequence = step_time[2],
                    .per_context_token = step_time[3],
                    .per_group = step_time[4],
                    .per_group_row = step_time[5]},
      .max_samples = max_samples,
      .count_evictions = count_evictions,
      .late_after = late_after,
      .most_late = most_late};
  options.go_on = [&](size_t num_done) {
    const py::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    return go_on.is_none() || py::bool_(go_on(num_done));
  };
  const Plan& native = plan_of(plan);
  ReplayResult result;
  {
    const py::gil_scoped_release release;
    result = replay(native, watermark, trace, options);
  }
  return replay_dict(result);
}

}  // namespace

void bind_replay(py::module_& m) {
  m.def("replay", &replay_trace, py::arg("plan"), py::kw_only(), py::arg("arrivals"),
        py::arg("priorities"), py::arg("num_prompt_tokens"), py::arg("num_output_tokens"),
        py::arg("num_parts"), py::arg("part_texts"), py::arg("part_lengths"),
        py::arg("output_texts"), py::arg("token_ids") = std::nullopt,
        py::arg("priority_policy") = false, py::arg("max_num_seqs") = 1024,
        py::arg("max_num_batched_tokens") = 8192, py::arg("long_prefill_token_threshold") = 0,
        py::arg("long_prefill_token_threshold_adaptive") = false,
        py::arg("enable_chunked_prefill") = true, py::arg("reserve_full_isl") = true,
        py::arg("async_scheduling") = true, py::arg("max_concurrent_batches") = 2,
        py::arg("num_lookahead_tokens") = 0, py::arg("num_drafts") = 0, py::arg("acceptance") = 0.0,
        py::arg("watermark") = 0.0, py::arg("step_time") = std::array<double, 6>{},
        py::arg("max_samples") = 300, py::arg("count_evictions") = false,
        py::arg("late_after") = std::numeric_limits<double>::infinity(), py::arg("most_late") = 0,
        py::arg("go_on") = py::none(),
        R"(Runs a trace through the cache manager of a plan under vLLM's scheduling policy.

A request's tokens are parts of texts (num_parts of each request, then the texts and lengths of all
in order; its outputs are tokens of output_texts), or token_ids: prompt and outputs of each request,
one after another. arrivals are seconds and ascend. step_time: seconds a step, a token, a sequence, a
token of context, a group, and a group of a sequence. go_on(number of requests that are done) ->
False ends the replay; so do more than most_late requests whose first token came later than
late_after seconds.

Returns a dict of numbers, with arrays for "requests" (end: 0 finished, 1 too long, 2 no room, 3
unfinished) and "samples", the load over time.
Mirrors vllm/v1/core/sched/scheduler.py and vllm/v1/engine/core.py (0.33).)");
}

}  // namespace kvplan::bindings
