#include "kvplan/cache_manager.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <limits>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/native/block_arrays.h"
#include "bindings/native/named_int.h"
#include "bindings/native/plan_object.h"
#include "bindings/native/short_repr.h"
#include "bindings/native/spec_object.h"
#include "kvplan/plan_pool.h"

namespace py = pybind11;

namespace kvplan::bindings {
namespace {

using HandleArray = py::array_t<int32_t, py::array::c_style>;

RequestHandle handle(int64_t request) {
  if (request < 0 || request > std::numeric_limits<int32_t>::max()) {
    throw InvalidArgument("no request has handle " + std::to_string(request));
  }
  return static_cast<RequestHandle>(request);
}

size_t index(int64_t group) {
  if (group < 0) throw InvalidArgument("there is no group " + std::to_string(group));
  return static_cast<size_t>(group);
}

/// An array of int32 is read where it lies; other integers are handles only if they fit.
HandleArray handles(const py::object& requests) {
  if (py::isinstance<HandleArray>(requests)) return requests;
  const Int64Row row(requests, "requests");
  const std::span<const int64_t> wide(row);
  HandleArray result(static_cast<py::ssize_t>(wide.size()));
  for (size_t i = 0; i < wide.size(); ++i) {
    result.mutable_data()[i] = static_cast<int32_t>(handle(wide[i]));
  }
  return result;
}

constexpr std::pair<CacheKind, const char*> kKindNames[] = {
    {CacheKind::kFullAttention, "full_attention"},
    {CacheKind::kRSWA, "rswa"},
    {CacheKind::kSlidingWindow, "sliding_window"},
    {CacheKind::kChunkedLocal, "chunked_local"},
    {CacheKind::kMamba, "mamba"},
    {CacheKind::kCrossAttention, "cross_attention"},
    {CacheKind::kCircularBuffer, "circular_buffer"}};

CacheKind parse_kind(const std::string& name) {
  std::string known;
  for (const auto& [kind, kind_name] : kKindNames) {
    if (name == kind_name) return kind;
    known += known.empty() ? kind_name : std::string(", ") + kind_name;
  }
  throw InvalidArgument("kind is one of " + known + ", not '" + name + "'");
}

std::string group_repr(const CacheGroup& group) {
  ShortRepr repr("CacheGroup");
  for (const auto& [kind, name] : kKindNames) {
    if (kind == group.kind) repr.add("kind", std::string(name));
  }
  repr.add("block_size", group.block_size);
  if (group.window > 0) repr.add("window", group.window);
  if (group.is_eagle_group) repr.add("is_eagle_group", true);
  if (group.slices != 1) repr.add("slices", group.slices);
  return repr.str();
}

py::array table_array(const BlockTableView& table) {
  IdArray ids(static_cast<py::ssize_t>(table.size()));
  for (size_t i = 0; i < table.size(); ++i) ids.mutable_data()[i] = table[i];
  return ids;
}

/// One array a group.
template <typename Blocks>
py::tuple by_group(size_t num_groups, Blocks&& blocks) {
  py::tuple result(num_groups);
  for (size_t g = 0; g < num_groups; ++g) result[g] = blocks(g);
  return result;
}

py::list boundary_tuples(const std::vector<BoundaryState>& states) {
  py::list result;
  for (const BoundaryState& state : states) {
    result.append(py::make_tuple(static_cast<int32_t>(state.request), state.group, state.block,
                                 state.num_tokens));
  }
  return result;
}

py::tuple schedule(CacheManager& manager, const py::object& request_handles,
                   const Ints<"num_computed_tokens">& num_computed_tokens,
                   const Ints<"num_new_tokens">& num_new_tokens,
                   const Ints<"num_tokens">& num_tokens,
                   const Ints<"num_in_flight_tokens">& num_in_flight_tokens,
                   Int<"num_lookahead_tokens"> num_lookahead_tokens, const py::object& out) {
  // A copy would take the ids with it.
  const bool is_ids = py::isinstance<IdArray>(out);
  IdArray appended = is_ids ? py::reinterpret_borrow<IdArray>(out) : IdArray();
  if (appended.ndim() != 2 || appended.shape(1) != 4) {
    throw py::type_error("appended must be a C-contiguous int32 array of shape (room, 4), got " +
                         py::repr(out).cast<std::string>());
  }
  static_assert(sizeof(AppendedBlock) == 4 * sizeof(BlockId));
  const HandleArray requests = handles(request_handles);
  const StepResult result =
      manager.schedule({.requests = {reinterpret_cast<const RequestHandle*>(requests.data()),
                                     static_cast<size_t>(requests.size())},
                        .num_computed_tokens = num_computed_tokens,
                        .num_new_tokens = num_new_tokens,
                        .num_tokens = num_tokens,
                        .num_in_flight_tokens = num_in_flight_tokens,
                        .num_lookahead_tokens = num_lookahead_tokens},
                       {reinterpret_cast<AppendedBlock*>(appended.mutable_data()),
                        static_cast<size_t>(appended.shape(0))});
  constexpr const char* kStops[] = {"done", "no_blocks", "no_room"};
  return py::make_tuple(result.num_scheduled, result.num_appended,
                        kStops[static_cast<size_t>(result.stop)]);
}

py::object allocate_request(CacheManager& manager, int64_t request, const RequestTokens& tokens,
                            const Allocation& allocation, const PrefixHit* hit) {
  if (!manager.allocate(handle(request), tokens, allocation, hit)) return py::none();
  return by_group(manager.num_groups(), [&](size_t g) { return to_array(manager.new_blocks(g)); });
}

CacheGroup make_group(
    const std::string& kind, Int<"block_size"> block_size, bool dcp_sharded, bool prefix_cacheable,
    bool is_eagle_group, bool is_zeroed, Int<"window"> window,
    Int<"extra_retained_tokens"> extra_retained_tokens, bool mamba_align,
    Int<"num_speculative_blocks"> num_speculative_blocks,
    Int<"num_prefill_checkpoint_blocks"> num_prefill_checkpoint_blocks,
    std::optional<Int<"prefill_checkpoint_alignment">> prefill_checkpoint_alignment,
    std::optional<Int<"same_spec_as">> same_spec_as, Int<"slices"> slices) {
  return {.kind = parse_kind(kind),
          .block_size = block_size,
          .dcp_sharded = dcp_sharded,
          .prefix_cacheable = prefix_cacheable,
          .is_eagle_group = is_eagle_group,
          .is_zeroed = is_zeroed,
          .window = window,
          .extra_retained_tokens = extra_retained_tokens,
          .mamba_align = mamba_align,
          .num_speculative_blocks = num_speculative_blocks,
          .num_prefill_checkpoint_blocks = num_prefill_checkpoint_blocks,
          .prefill_checkpoint_alignment = prefill_checkpoint_alignment,
          .same_spec_as = same_spec_as ? std::optional(index(*same_spec_as)) : std::nullopt,
          .slices = slices};
}

void bind_values(py::module_& m) {
  py::class_<CacheGroup>(m, "CacheGroup", R"(A KV cache group as the cache manager sees it.

kind: full_attention (with sinks, too), rswa, sliding_window (MLA, too), chunked_local, mamba,
cross_attention or circular_buffer.
block_size: tokens of a block on one rank; window: tokens of the window or the attention chunk.
mamba_align: mamba_cache_mode is "align".
same_spec_as: index of the first group with an equal spec; such groups are found together.
slices: blocks that the group cuts each block of the pool into.)")
      .def(py::init(&make_group), py::arg("kind"), py::arg("block_size"), py::kw_only(),
           py::arg("dcp_sharded") = false, py::arg("prefix_cacheable") = true,
           py::arg("is_eagle_group") = false, py::arg("is_zeroed") = false, py::arg("window") = 0,
           py::arg("extra_retained_tokens") = 0, py::arg("mamba_align") = false,
           py::arg("num_speculative_blocks") = 0, py::arg("num_prefill_checkpoint_blocks") = 0,
           py::arg("prefill_checkpoint_alignment") = std::nullopt,
           py::arg("same_spec_as") = std::nullopt, py::arg("slices") = 1)
      .def_static(
          "from_spec",
          [](const SpecObject& spec, bool is_eagle_group) {
            return cache_group(spec.value, is_eagle_group);
          },
          py::arg("spec"), py::arg("is_eagle_group") = false,
          "The group of a spec; raises Unsupported for HiSparse and encoder-only specs.")
      .def("__repr__", &group_repr);

  py::class_<PrefixHit>(m, "PrefixHit", "What a prefix lookup found.")
      .def_readonly("num_tokens", &PrefixHit::num_tokens)
      .def_readonly("shared_prefix_boundary", &PrefixHit::shared_prefix_boundary,
                    "Tokens of a shared prefix that a sparse group has not cached yet; 0: none.")
      .def_readonly("diverged", &PrefixHit::diverged, "Whether some group's hit is shorter.")
      .def_property_readonly(
          "blocks",
          [](const PrefixHit& hit) {
            return by_group(hit.blocks.size(), [&](size_t g) { return to_array(hit.blocks[g]); });
          },
          "Block ids, an int32 array a group; 0 where a window needs none.")
      .def("__repr__", [](const PrefixHit& hit) {
        return ShortRepr("PrefixHit")
            .add("num_tokens", hit.num_tokens)
            .add("num_groups", hit.blocks.size())
            .str();
      });
}

CacheManager make_manager(std::vector<CacheGroup> groups, Int<"num_blocks"> num_blocks,
                          Int<"max_model_len"> max_model_len,
                          std::optional<Int<"scheduler_block_size">> scheduler_block_size,
                          std::optional<Int<"hash_block_size">> hash_block_size,
                          std::optional<Int<"max_in_flight_tokens">> max_in_flight_tokens,
                          bool enable_caching, bool use_eagle,
                          Int<"num_hash_lookahead_tokens"> num_hash_lookahead_tokens,
                          Int<"num_prefill_lookahead"> num_prefill_lookahead, bool enable_events,
                          Int<"dcp_world_size"> dcp_world_size,
                          Int<"pcp_world_size"> pcp_world_size, double watermark,
                          bool enable_mamba_shared_prefix_checkpoint,
                          std::optional<Int<"retention_interval">> retention_interval,
                          bool needs_zeroing, Int<"hash_bytes"> hash_bytes) {
  return CacheManager(CacheManagerOptions{
      .groups = std::move(groups),
      .num_blocks = num_blocks,
      .max_model_len = max_model_len,
      .scheduler_block_size = scheduler_block_size,
      .hash_block_size = hash_block_size,
      .max_in_flight_tokens = max_in_flight_tokens,
      .enable_caching = enable_caching,
      .use_eagle = use_eagle,
      .num_hash_lookahead_tokens = num_hash_lookahead_tokens,
      .num_prefill_lookahead = num_prefill_lookahead,
      .enable_events = enable_events,
      .dcp_world_size = dcp_world_size,
      .pcp_world_size = pcp_world_size,
      .watermark = watermark,
      .enable_mamba_shared_prefix_checkpoint = enable_mamba_shared_prefix_checkpoint,
      .retention_interval = retention_interval,
      .needs_zeroing = needs_zeroing,
      .hash_bytes = hash_bytes});
}

CacheManager manager_from_plan(const py::object& plan, bool lookahead_hashes,
                               std::optional<bool> enable_caching, bool enable_events,
                               double watermark, bool enable_mamba_shared_prefix_checkpoint,
                               Int<"hash_bytes"> hash_bytes) {
  CacheManagerOptions options = cache_manager_options(plan_of(plan), lookahead_hashes);
  if (enable_caching) options.enable_caching = *enable_caching;
  options.enable_events = enable_events;
  options.watermark = watermark;
  options.enable_mamba_shared_prefix_checkpoint = enable_mamba_shared_prefix_checkpoint;
  options.hash_bytes = hash_bytes;
  return CacheManager(options);
}

RequestTokens make_tokens(int64_t num_tokens, int64_t num_prompt_tokens,
                          int64_t num_computed_tokens, int64_t num_in_flight_tokens,
                          int64_t shared_prefix_boundary) {
  return {.num_tokens = num_tokens,
          .num_prompt_tokens = num_prompt_tokens,
          .num_computed_tokens = num_computed_tokens,
          .num_in_flight_tokens = num_in_flight_tokens,
          .shared_prefix_boundary = shared_prefix_boundary};
}

void append_hashes(CacheManager& manager, Int<"request"> request, const py::object& hashes) {
  const Hashes views(hashes);
  std::string bytes;
  for (const std::string_view hash : views.views()) {
    if (hash.size() != manager.hash_bytes()) {
      throw InvalidArgument("append_hashes: a hash of " + std::to_string(hash.size()) +
                            " bytes, where hash_bytes is " + std::to_string(manager.hash_bytes()));
    }
    bytes.append(hash);
  }
  manager.append_hashes(handle(request), std::as_bytes(std::span(bytes)));
}

py::dict take_stats(CacheManager& manager) {
  const PrefixCacheStats stats = manager.take_prefix_cache_stats();
  using namespace py::literals;
  return py::dict(
      "reset"_a = stats.reset, "requests"_a = stats.requests, "queries"_a = stats.queries,
      "hits"_a = stats.hits, "preempted_requests"_a = stats.preempted_requests,
      "preempted_queries"_a = stats.preempted_queries, "preempted_hits"_a = stats.preempted_hits);
}

py::dict counters(const CacheManager& manager) {
  const CacheManagerCounters now = manager.counters();
  using namespace py::literals;
  return py::dict("num_requests"_a = now.num_requests, "num_free_blocks"_a = now.num_free_blocks,
                  "num_cached_hashes"_a = now.num_cached_hashes,
                  "num_queried_tokens"_a = now.num_queried_tokens,
                  "num_hit_tokens"_a = now.num_hit_tokens);
}

std::string manager_repr(const CacheManager& manager) {
  return ShortRepr("CacheManager")
      .add("num_groups", static_cast<int64_t>(manager.num_groups()))
      .add("num_requests", static_cast<int64_t>(manager.num_requests()))
      .add("num_blocks", manager.num_blocks())
      .add("num_free_blocks", manager.num_free_blocks())
      .str();
}

py::list retained_prefixes(const CacheManager& manager) {
  using namespace py::literals;
  py::list prefixes;
  for (const RetainedPrefix& prefix : manager.retained_prefixes()) {
    const Retention& retention = prefix.retention;
    prefixes.append(py::dict("id"_a = prefix.id, "num_tokens"_a = prefix.num_tokens,
                             "priority"_a = retention.priority, "until"_a = retention.until,
                             "pinned"_a = retention.pinned));
  }
  return prefixes;
}

void bind_lookup(py::class_<CacheManager>& manager) {
  manager
      .def(
          "find_prefix",
          [](const CacheManager& m, Int<"request"> request, Int<"max_tokens"> max_tokens) {
            PrefixHit hit;
            m.find_prefix(handle(request), max_tokens, hit);
            return hit;
          },
          py::arg("request"), py::arg("max_tokens"),
          "The longest cached prefix of at most max_tokens tokens. Holds nothing: allocate before "
          "anything else takes blocks. Mirrors KVCacheManager.get_computed_blocks (0.33).")
      .def(
          "find_prefix_for_connector",
          [](const CacheManager& m, Int<"request"> request, Int<"max_tokens"> max_tokens) {
            PrefixHit hit;
            m.find_prefix_for_connector(handle(request), max_tokens, hit);
            return hit;
          },
          py::arg("request"), py::arg("max_tokens"),
          "Mirrors KVCacheManager.get_computed_blocks_for_connector (0.33).")
      .def(
          "hold_prefix",
          [](CacheManager& m, Int<"request"> request, Int<"max_tokens"> max_tokens) {
            PrefixHit hit;
            m.hold_prefix(handle(request), max_tokens, hit);
            return hit;
          },
          py::arg("request"), py::arg("max_tokens"),
          "find_prefix, and holds what it found until allocate takes it over, or release_hold, "
          "free "
          "or remove_request lets it go.")
      .def(
          "release_hold",
          [](CacheManager& m, Int<"request"> request) { m.release_hold(handle(request)); },
          py::arg("request"))
      .def(
          "retain_prefix",
          [](CacheManager& m, Int<"request"> request, Int<"max_tokens"> max_tokens,
             Int<"priority"> priority, std::optional<Int<"until">> until, bool pinned) {
            return m.retain_prefix(handle(request), max_tokens,
                                   {.priority = priority, .until = until, .pinned = pinned});
          },
          py::arg("request"), py::arg("max_tokens"), py::kw_only(), py::arg("priority") = 0,
          py::arg("until") = py::none(), py::arg("pinned") = false,
          R"(Keeps what find_prefix finds after its requests have gone. Returns an id, 0: nothing is cached.

Kept until release_retained(id), expire_retained(now) with now >= until, a reset of the prefix cache, or, unless pinned, an
allocation that fits only without it; the lowest priority goes first, of equal ones the oldest. Until then the blocks are in
use. Raises Unsupported with slices.)")
      .def(
          "release_retained", [](CacheManager& m, Int<"id"> id) { m.release_retained(id); },
          py::arg("id"))
      .def(
          "expire_retained", [](CacheManager& m, Int<"now"> now) { return m.expire_retained(now); },
          py::arg("now"), "Lets go of what was kept until now or earlier; returns how many.")
      .def("retained_prefixes", &retained_prefixes,
           "A dict each of id, num_tokens, priority, until and pinned, in the order in which they "
           "make way.")
      .def(
          "truncate_prefix",
          [](const CacheManager& m, PrefixHit& hit, Int<"num_tokens"> num_tokens) {
            m.truncate_prefix(hit, num_tokens);
          },
          py::arg("hit"), py::arg("num_tokens"),
          "Shortens a hit in place to a multiple of every block.")
      .def(
          "emit_cached_block_events",
          [](CacheManager& m, Int<"request"> request, const PrefixHit& hit) {
            m.emit_cached_block_events(handle(request), hit);
          },
          py::arg("request"), py::arg("hit"), "Stored events for the blocks of a hit.")
      .def(
          "record_prefix_cache_stats",
          [](CacheManager& m, Int<"num_tokens"> num_tokens, Int<"num_hits"> num_hits,
             bool preempted) { m.record_prefix_cache_stats(num_tokens, num_hits, preempted); },
          py::arg("num_tokens"), py::arg("num_hits"), py::arg("preempted") = false,
          "Counts a lookup.")
      .def("take_prefix_cache_stats", &take_stats,
           "Counts since the last call, as in vLLM's PrefixCacheStats.");
}

void bind_allocation(py::class_<CacheManager>& manager) {
  manager
      .def(
          "allocate",
          [](CacheManager& m, Int<"request"> request, Int<"num_new_tokens"> num_new_tokens,
             Int<"num_tokens"> num_tokens, Int<"num_prompt_tokens"> num_prompt_tokens,
             Int<"num_computed_tokens"> num_computed_tokens,
             Int<"num_in_flight_tokens"> num_in_flight_tokens,
             Int<"shared_prefix_boundary"> shared_prefix_boundary,
             Int<"num_new_computed_tokens"> num_new_computed_tokens, const PrefixHit* hit,
             Int<"num_lookahead_tokens"> num_lookahead_tokens,
             Int<"num_external_computed_tokens"> num_external_computed_tokens,
             bool delay_cache_blocks, Int<"num_encoder_tokens"> num_encoder_tokens,
             bool full_sequence_must_fit, Int<"reserved_blocks"> reserved_blocks,
             bool apply_watermark,
             const std::vector<Int<"skip_zeroing_groups">>& skip_zeroing_groups) {
            std::vector<uint16_t> groups;
            for (const int64_t group : skip_zeroing_groups) {
              groups.push_back(static_cast<uint16_t>(to_group(group)));
            }
            return allocate_request(m, request,
                                    make_tokens(num_tokens, num_prompt_tokens, num_computed_tokens,
                                                num_in_flight_tokens, shared_prefix_boundary),
                                    {.num_new_tokens = num_new_tokens,
                                     .num_new_computed_tokens = num_new_computed_tokens,
                                     .num_external_computed_tokens = num_external_computed_tokens,
                                     .num_lookahead_tokens = num_lookahead_tokens,
                                     .num_encoder_tokens = num_encoder_tokens,
                                     .reserved_blocks = reserved_blocks,
                                     .delay_cache_blocks = delay_cache_blocks,
                                     .full_sequence_must_fit = full_sequence_must_fit,
                                     .apply_watermark = apply_watermark,
                                     .skip_zeroing_groups = groups},
                                    hit);
          },
          py::arg("request"), py::arg("num_new_tokens"), py::kw_only(), py::arg("num_tokens"),
          py::arg("num_prompt_tokens"), py::arg("num_computed_tokens") = 0,
          py::arg("num_in_flight_tokens") = 0, py::arg("shared_prefix_boundary") = 0,
          py::arg("num_new_computed_tokens") = 0, py::arg("hit") = nullptr,
          py::arg("num_lookahead_tokens") = 0, py::arg("num_external_computed_tokens") = 0,
          py::arg("delay_cache_blocks") = false, py::arg("num_encoder_tokens") = 0,
          py::arg("full_sequence_must_fit") = false, py::arg("reserved_blocks") = 0,
          py::arg("apply_watermark") = false, py::arg("skip_zeroing_groups") = py::tuple(),
          R"(Makes room for a request's next tokens; the new block ids, an int32 array a group, or None
where they do not fit. Mirrors KVCacheManager.allocate_slots (0.33).)")
      .def(
          "quiet_until",
          [](const CacheManager& m, Int<"request"> request) {
            return m.quiet_until(handle(request));
          },
          py::arg("request"),
          "While computed, new and lookahead tokens are fewer than this, allocate returns no "
          "blocks and need not be called.")
      .def("schedule", &schedule, py::arg("requests"), py::arg("num_computed_tokens"),
           py::arg("num_new_tokens") = py::none(), py::arg("num_tokens") = py::none(),
           py::arg("num_in_flight_tokens") = py::none(), py::arg("num_lookahead_tokens") = 0,
           py::kw_only(), py::arg("appended"),
           R"(One decode step: allocates for each request in order until one does not fit.

requests: handles; an int32 array is read where it lies. appended: C-contiguous int32 array of shape
(room, 4) that receives row, group, position and block id of each new block. Returns (requests
scheduled, blocks appended, "done" | "no_blocks" | "no_room").)")
      .def(
          "num_blocks_to_allocate",
          [](CacheManager& m, Int<"request"> request, Int<"num_tokens"> num_tokens,
             Int<"num_tokens_main_model"> num_tokens_main_model,
             Int<"total_computed_tokens"> total_computed_tokens,
             Int<"num_local_computed_tokens"> num_local_computed_tokens,
             Int<"num_encoder_tokens"> num_encoder_tokens, Int<"prefill_end"> prefill_end,
             bool apply_admission_cap, const PrefixHit* hit) {
            return m.num_blocks_to_allocate(handle(request),
                                            {.num_tokens = num_tokens,
                                             .num_tokens_main_model = num_tokens_main_model,
                                             .num_encoder_tokens = num_encoder_tokens,
                                             .total_computed_tokens = total_computed_tokens,
                                             .num_local_computed_tokens = num_local_computed_tokens,
                                             .prefill_end = prefill_end,
                                             .apply_admission_cap = apply_admission_cap},
                                            hit);
          },
          py::arg("request"), py::kw_only(), py::arg("num_tokens"),
          py::arg("num_tokens_main_model"), py::arg("total_computed_tokens"),
          py::arg("num_local_computed_tokens"), py::arg("num_encoder_tokens") = 0,
          py::arg("prefill_end") = 0, py::arg("apply_admission_cap") = false,
          py::arg("hit") = nullptr, "Mirrors KVCacheCoordinator.get_num_blocks_to_allocate (0.33).")
      .def(
          "commit",
          [](CacheManager& m, Int<"request"> request, Int<"num_tokens_to_cache"> computed,
             Int<"num_tokens"> num_tokens, Int<"num_prompt_tokens"> num_prompt_tokens,
             Int<"num_computed_tokens"> num_computed_tokens,
             Int<"num_in_flight_tokens"> num_in_flight_tokens,
             Int<"shared_prefix_boundary"> shared_prefix_boundary) {
            m.commit(handle(request),
                     make_tokens(num_tokens, num_prompt_tokens, num_computed_tokens,
                                 num_in_flight_tokens, shared_prefix_boundary),
                     computed);
          },
          py::arg("request"), py::arg("num_tokens_to_cache"), py::kw_only(), py::arg("num_tokens"),
          py::arg("num_prompt_tokens"), py::arg("num_computed_tokens") = 0,
          py::arg("num_in_flight_tokens") = 0, py::arg("shared_prefix_boundary") = 0,
          "Makes what is full of the first tokens known to lookups. Mirrors "
          "KVCacheManager.cache_blocks (0.33).");
}

void bind_release(py::class_<CacheManager>& manager) {
  manager
      .def(
          "fork",
          [](CacheManager& m, Int<"request"> request,
             Int<"num_computed_tokens"> computed) -> std::optional<int32_t> {
            const std::optional<RequestHandle> made = m.fork(handle(request), computed);
            return made ? std::optional(static_cast<int32_t>(*made)) : std::nullopt;
          },
          py::arg("request"), py::arg("num_computed_tokens"),
          "A second request with the first tokens of this one; take_copies has what both write. "
          "None "
          "if the pool has no blocks for the copies.")
      .def(
          "revert",
          [](CacheManager& m, Int<"request"> request, Int<"num_computed_tokens"> computed) {
            m.revert(handle(request), computed);
          },
          py::arg("request"), py::arg("num_computed_tokens"),
          "Takes back what the request got and cached for later tokens: its last steps did not "
          "happen.")
      .def(
          "remove_skipped_blocks",
          [](CacheManager& m, Int<"request"> request, Int<"num_processed_tokens"> processed,
             std::optional<Int<"num_prompt_tokens">> prompt) {
            m.remove_skipped_blocks(handle(request), processed, prompt);
          },
          py::arg("request"), py::arg("num_processed_tokens"),
          py::arg("num_prompt_tokens") = std::nullopt,
          "Frees what lies behind the windows of a request.")
      .def(
          "free", [](CacheManager& m, Int<"request"> request) { m.free(handle(request)); },
          py::arg("request"),
          "Frees all blocks; the request stays known and can be allocated again.")
      .def(
          "pop_blocks_for_free",
          [](CacheManager& m, Int<"request"> request) {
            std::vector<BlockId> blocks;
            m.pop_blocks_for_free(handle(request), blocks);
            return to_array(blocks);
          },
          py::arg("request"),
          "Forgets the blocks without freeing them: pool.free_blocks takes them in reverse.")
      .def(
          "evict_blocks",
          [](CacheManager& m, const py::object& blocks, std::optional<size_t> group) {
            const auto ids = to_ids(blocks);
            group ? m.evict_blocks(*group, bindings::span_of(ids))
                  : m.evict_blocks(bindings::span_of(ids));
          },
          py::arg("block_ids"), py::arg("group") = std::nullopt,
          "Forgets what the blocks cache. With slices, ids need their group.")
      .def("reset_prefix_cache", &CacheManager::reset_prefix_cache,
           "Forgets everything cached; False, and nothing happens, while a block is in use.");
}

void bind_step(py::class_<CacheManager>& manager) {
  manager.def("new_step_starts", &CacheManager::new_step_starts)
      .def(
          "take_new_block_ids",
          [](CacheManager& m, std::optional<Int<"group">> group) {
            return to_array(group ? m.take_new_block_ids(index(*group)) : m.take_new_block_ids());
          },
          py::arg("group") = std::nullopt,
          "Blocks to zero before use, of one group or all. With slices, ids need their group.")
      .def(
          "record_blocks_for_zeroing",
          [](CacheManager& m, Int<"request"> request, Int<"start_token"> start_token) {
            m.record_blocks_for_zeroing(handle(request), start_token);
          },
          py::arg("request"), py::arg("start_token"))
      .def(
          "take_copies",
          [](CacheManager& m) {
            py::list copies;
            for (const BlockCopy& copy : m.take_copies()) {
              copies.append(py::make_tuple(copy.source, copy.destination, copy.group));
            }
            return copies;
          },
          "(source, destination, group) of copies to make; both stay held until free_copies.")
      .def(
          "free_copies",
          [](CacheManager& m, const std::vector<std::tuple<BlockId, BlockId, int32_t>>& copies) {
            std::vector<BlockCopy> list;
            for (const auto& [source, destination, group] : copies) {
              list.push_back({source, destination, group});
            }
            m.free_copies(list);
          },
          py::arg("copies"), "Lets go of what take_copies returned.")
      .def(
          "take_boundary_states",
          [](CacheManager& m) { return boundary_tuples(m.take_boundary_states()); },
          "(request, group, block, tokens) of states that a connector can store.")
      .def(
          "finalize_partial_tails",
          [](CacheManager& m, Int<"request"> request, Int<"num_computed_tokens"> computed,
             Int<"num_in_flight_tokens"> in_flight) {
            return boundary_tuples(m.finalize_partial_tails(handle(request), computed, in_flight));
          },
          py::arg("request"), py::arg("num_computed_tokens"), py::arg("num_in_flight_tokens") = 0)
      .def("take_events", &CacheManager::take_events)
      .def("counters", &counters,
           "num_requests, num_free_blocks, num_cached_hashes, num_queried_tokens and "
           "num_hit_tokens, each as of the end of some call: for any thread at any time.")
      .def("check_invariants", &CacheManager::check_invariants);
}

void bind_state(py::class_<CacheManager>& manager) {
  manager
      .def(
          "block_ids",
          [](const CacheManager& m, Int<"request"> request) {
            return by_group(m.num_groups(), [&](size_t g) {
              return table_array(m.block_table(handle(request), g));
            });
          },
          py::arg("request"), "The request's block ids, an int32 array a group.")
      .def(
          "num_blocks_for_computed_tokens",
          [](const CacheManager& m, Int<"request"> request, Int<"group"> group,
             Int<"num_computed_tokens"> computed) {
            return m.num_blocks_for_computed_tokens(handle(request), index(group), computed);
          },
          py::arg("request"), py::arg("group"), py::arg("num_computed_tokens"))
      .def(
          "estimate_cached_tokens",
          [](const CacheManager& m, Int<"request"> request) {
            return m.estimate_cached_tokens(handle(request));
          },
          py::arg("request"))
      .def(
          "num_common_prefix_blocks",
          [](const CacheManager& m, Int<"request"> request, Int<"group"> group) {
            return m.num_common_prefix_blocks(handle(request), index(group));
          },
          py::arg("request"), py::arg("group"))
      .def_property_readonly("num_groups", &CacheManager::num_groups)
      .def_property_readonly("num_requests", &CacheManager::num_requests)
      .def_property_readonly("scheduler_block_size", &CacheManager::scheduler_block_size)
      .def_property_readonly("hash_block_size", &CacheManager::hash_block_size)
      .def_property_readonly("num_hash_lookahead_tokens", &CacheManager::num_hash_lookahead_tokens,
                             "Tokens behind a block that its hash covers.")
      .def_property_readonly("hit_alignment", &CacheManager::hit_alignment)
      .def_property_readonly("enable_partial_hits", &CacheManager::enable_partial_hits)
      .def_property_readonly("mamba_shared_prefix_checkpoint",
                             &CacheManager::mamba_shared_prefix_checkpoint)
      .def_property_readonly("usage", &CacheManager::usage)
      .def_property_readonly(
          "pool", [](CacheManager& m) -> BlockPool& { return m.pool(); },
          py::return_value_policy::reference_internal,
          "The manager's BlockPool; Unsupported with slices.")
      .def_property_readonly(
          "sliced_pool", [](CacheManager& m) -> SlicedBlockPool& { return m.sliced_pool(); },
          py::return_value_policy::reference_internal,
          "The manager's SlicedBlockPool; Unsupported without slices.")
      .def_property_readonly("is_sliced", &CacheManager::is_sliced)
      .def_property_readonly("num_blocks", &CacheManager::num_blocks,
                             "Blocks of the pool; with slices, large ones.")
      .def_property_readonly("num_free_blocks", &CacheManager::num_free_blocks)
      .def(
          "starts_again",
          [](const CacheManager& m, Int<"request"> request) {
            return m.starts_again(handle(request));
          },
          py::arg("request"),
          "With slices: whether the request is to be freed, to start again with the pool to "
          "itself.")
      .def(
          "block_size",
          [](const CacheManager& m, Int<"group"> group) { return m.block_size(index(group)); },
          py::arg("group"), "Tokens of a group's block over all ranks.")
      .def("__repr__", &manager_repr);
}

}  // namespace

void bind_cache_manager(py::module_& m) {
  bind_values(m);
  py::class_<CacheManager> manager(m, "CacheManager", R"(Decides which blocks every request holds.

vLLM 0.33.0's KVCacheManager with its coordinators and single-type managers as one native state
machine: block ids, hits, order of eviction and events are equal. A request is a small integer from
add_request(); block ids are int32 numpy arrays, one a group; hashes are bytes of hash_bytes each. A
bad call raises InvalidArgument or BlockPoolError (both ValueError) and changes nothing. One writer:
calls must not overlap.

groups: CacheGroup of each KV cache group, in order.
num_blocks: blocks of the pool, the null block included; where groups cut them into slices, large
ones, which usage, watermark and admission then count.
scheduler_block_size, hash_block_size: tokens; None: as vLLM resolves them.
retention_interval: vLLM's prefix_cache_retention_interval, tokens; None caches densely.)");
  manager.def(py::init(&make_manager), py::arg("groups"), py::kw_only(), py::arg("num_blocks"),
              py::arg("max_model_len"), py::arg("scheduler_block_size") = std::nullopt,
              py::arg("hash_block_size") = std::nullopt,
              py::arg("max_in_flight_tokens") = std::nullopt, py::arg("enable_caching") = true,
              py::arg("use_eagle") = false, py::arg("num_hash_lookahead_tokens") = 0,
              py::arg("num_prefill_lookahead") = 0, py::arg("enable_events") = false,
              py::arg("dcp_world_size") = 1, py::arg("pcp_world_size") = 1,
              py::arg("watermark") = 0.0, py::arg("enable_mamba_shared_prefix_checkpoint") = false,
              py::arg("retention_interval") = std::nullopt, py::arg("needs_zeroing") = false,
              py::arg("hash_bytes") = 32);
  manager.def_static("from_plan", &manager_from_plan, py::arg("plan"), py::kw_only(),
                     py::arg("lookahead_hashes") = true, py::arg("enable_caching") = std::nullopt,
                     py::arg("enable_events") = false, py::arg("watermark") = 0.0,
                     py::arg("enable_mamba_shared_prefix_checkpoint") = false,
                     py::arg("hash_bytes") = 32,
                     R"(The manager of a plan, as vLLM's scheduler makes it from its configuration.

lookahead_hashes: hashes cover the num_hash_lookahead_tokens behind their block that a drafter reads,
as in vLLM; False: their block alone. enable_caching: None: as the plan's config says.
Raises Unsupported for groups that the manager has no policy for.)");
  manager
      .def("add_request",
           [](CacheManager& self) { return static_cast<int32_t>(self.add_request()); })
      .def(
          "remove_request",
          [](CacheManager& self, Int<"request"> r) { self.remove_request(handle(r)); },
          py::arg("request"), "Frees what the request holds, and forgets it.")
      .def("append_hashes", &append_hashes, py::arg("request"), py::arg("hashes"),
           "Chained block hashes of the next tokens: a sequence of bytes, or rows of uint8.")
      .def(
          "truncate_hashes",
          [](CacheManager& self, Int<"request"> r, Int<"count"> count) {
            self.truncate_hashes(handle(r), count);
          },
          py::arg("request"), py::arg("count"))
      .def(
          "num_hashes",
          [](const CacheManager& self, Int<"request"> r) { return self.num_hashes(handle(r)); },
          py::arg("request"));
  bind_lookup(manager);
  bind_allocation(manager);
  bind_release(manager);
  bind_step(manager);
  bind_state(manager);
}

}  // namespace kvplan::bindings
