#include "kvplan/cache_manager.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "c_api/arrays.h"
#include "c_api/plan_handle.h"
#include "c_api/pool_handle.h"
#include "c_api/sized_struct.h"
#include "kvplan/plan_pool.h"

struct kvplan_hit {
  kvplan::PrefixHit hit;
};

struct kvplan_manager {
  explicit kvplan_manager(const kvplan::CacheManagerOptions& options)
      : hash_bytes(static_cast<size_t>(options.hash_bytes)), core(options) {}

  const size_t hash_bytes;
  kvplan::CacheManager core;

  // What was taken, until the same is taken again.
  std::vector<kvplan::BlockId> popped;
  std::vector<kvplan::BlockId> new_block_ids;
  std::vector<kvplan::BlockCopy> copies;
  std::vector<kvplan_boundary_state> boundary_states;
  kvplan::c_api::TakenEvents events;
};

namespace kvplan::c_api {
namespace {

constexpr int64_t kNone = -1;

int64_t or_none(const std::optional<int64_t>& value) { return value.value_or(kNone); }
std::optional<int64_t> optional_of(int64_t value) {
  return value == kNone ? std::nullopt : std::optional(value);
}

kvplan_cache_group group_struct(const CacheGroup& group) {
  kvplan_cache_group out = {};
  out.kind = static_cast<int32_t>(group.kind);
  out.dcp_sharded = group.dcp_sharded;
  out.block_size = group.block_size;
  out.window = group.window;
  out.is_eagle_group = group.is_eagle_group;
  out.is_zeroed = group.is_zeroed;
  out.mamba_align = group.mamba_align;
  out.prefix_cacheable = group.prefix_cacheable;
  out.extra_retained_tokens = group.extra_retained_tokens;
  out.num_speculative_blocks = group.num_speculative_blocks;
  out.num_prefill_checkpoint_blocks = group.num_prefill_checkpoint_blocks;
  out.prefill_checkpoint_alignment = or_none(group.prefill_checkpoint_alignment);
  out.same_spec_as = group.same_spec_as ? static_cast<int64_t>(*group.same_spec_as) : kNone;
  out.slices = group.slices;
  return out;
}

CacheGroup group_value(const kvplan_cache_group& in) {
  if (in.kind < KVPLAN_FULL_ATTENTION || in.kind > KVPLAN_CIRCULAR_BUFFER) {
    throw InvalidArgument("kind is one of kvplan_cache_kind, 0 to 6, not " +
                          std::to_string(in.kind));
  }
  CacheGroup group;
  group.kind = static_cast<CacheKind>(in.kind);
  group.dcp_sharded = in.dcp_sharded != 0;
  group.block_size = in.block_size;
  group.window = in.window;
  group.is_eagle_group = in.is_eagle_group != 0;
  group.is_zeroed = in.is_zeroed != 0;
  group.mamba_align = in.mamba_align != 0;
  group.prefix_cacheable = in.prefix_cacheable != 0;
  group.extra_retained_tokens = in.extra_retained_tokens;
  group.num_speculative_blocks = in.num_speculative_blocks;
  group.num_prefill_checkpoint_blocks = in.num_prefill_checkpoint_blocks;
  group.prefill_checkpoint_alignment = optional_of(in.prefill_checkpoint_alignment);
  group.slices = in.slices;
  // Another negative number is a group that does not exist.
  if (in.same_spec_as != kNone) group.same_spec_as = static_cast<size_t>(in.same_spec_as);
  return group;
}

kvplan_manager_options options_struct(const CacheManagerOptions& options) {
  kvplan_manager_options out = {};
  out.num_blocks = options.num_blocks;
  out.max_model_len = options.max_model_len;
  out.scheduler_block_size = or_none(options.scheduler_block_size);
  out.hash_block_size = or_none(options.hash_block_size);
  out.max_in_flight_tokens = or_none(options.max_in_flight_tokens);
  out.enable_caching = options.enable_caching;
  out.use_eagle = options.use_eagle;
  out.num_hash_lookahead_tokens = options.num_hash_lookahead_tokens;
  out.num_prefill_lookahead = options.num_prefill_lookahead;
  out.enable_events = options.enable_events;
  out.needs_zeroing = options.needs_zeroing;
  out.dcp_world_size = options.dcp_world_size;
  out.pcp_world_size = options.pcp_world_size;
  out.watermark = options.watermark;
  out.retention_interval = or_none(options.retention_interval);
  out.hash_bytes = options.hash_bytes;
  out.enable_mamba_shared_prefix_checkpoint = options.enable_mamba_shared_prefix_checkpoint;
  return out;
}

CacheManagerOptions options_value(const kvplan_manager_options* in,
                                  std::vector<CacheGroup> groups) {
  const kvplan_manager_options read = read_struct(in, "options", options_struct({}));
  CacheManagerOptions options;
  options.groups = std::move(groups);
  options.num_blocks = read.num_blocks;
  options.max_model_len = read.max_model_len;
  options.scheduler_block_size = optional_of(read.scheduler_block_size);
  options.hash_block_size = optional_of(read.hash_block_size);
  options.max_in_flight_tokens = optional_of(read.max_in_flight_tokens);
  options.enable_caching = read.enable_caching != 0;
  options.use_eagle = read.use_eagle != 0;
  options.num_hash_lookahead_tokens = read.num_hash_lookahead_tokens;
  options.num_prefill_lookahead = read.num_prefill_lookahead;
  options.enable_events = read.enable_events != 0;
  options.needs_zeroing = read.needs_zeroing != 0;
  options.dcp_world_size = read.dcp_world_size;
  options.pcp_world_size = read.pcp_world_size;
  options.watermark = read.watermark;
  options.retention_interval = optional_of(read.retention_interval);
  options.hash_bytes = read.hash_bytes;
  options.enable_mamba_shared_prefix_checkpoint = read.enable_mamba_shared_prefix_checkpoint != 0;
  return options;
}

std::vector<CacheGroup> groups_value(const kvplan_cache_group* groups, size_t count) {
  std::vector<CacheGroup> result;
  if (count == 0) return result;
  const size_t stride = deref(groups, "groups").struct_size;
  for (size_t i = 0; i < span_of(groups, count, "groups").size(); ++i) {
    const auto* group = reinterpret_cast<const kvplan_cache_group*>(
        reinterpret_cast<const char*>(groups) + i * stride);
    if (group->struct_size != stride) {
      throw InvalidArgument("groups: struct_size is " + std::to_string(stride) + " and " +
                            std::to_string(group->struct_size));
    }
    result.push_back(group_value(read_struct(group, "groups", group_struct({}))));
  }
  return result;
}

RequestTokens tokens_value(const kvplan_request_tokens* in) {
  const kvplan_request_tokens read = read_struct(in, "tokens");
  return {.num_tokens = read.num_tokens,
          .num_prompt_tokens = read.num_prompt_tokens,
          .num_computed_tokens = read.num_computed_tokens,
          .num_in_flight_tokens = read.num_in_flight_tokens,
          .shared_prefix_boundary = read.shared_prefix_boundary};
}

const PrefixHit* hit_value(const kvplan_hit* hit) { return hit == nullptr ? nullptr : &hit->hit; }

std::span<const int64_t> optional_array(const int64_t* array, size_t count) {
  return array == nullptr ? std::span<const int64_t>() : span_of(array, count, "requests");
}

void lend_states(kvplan_manager& manager, const std::vector<BoundaryState>& states,
                 const kvplan_boundary_state** out, size_t* count) {
  manager.boundary_states.clear();
  for (const BoundaryState& state : states) {
    manager.boundary_states.push_back({.request = static_cast<int32_t>(state.request),
                                       .group = state.group,
                                       .block = state.block,
                                       .unused = 0,
                                       .num_tokens = state.num_tokens});
  }
  lend(std::span<const kvplan_boundary_state>(manager.boundary_states), out, count);
}

CacheManager& core_of(kvplan_manager* manager) { return deref(manager, "manager").core; }
const CacheManager& core_of(const kvplan_manager* manager) {
  return deref(manager, "manager").core;
}

kvplan_status create_manager(kvplan_manager** out, auto&& make_options) {
  return guarded([&] {
    deref(out, "out") = nullptr;
    *out = new kvplan_manager(make_options());
  });
}

template <class Take>
kvplan_status take_new_block_ids(kvplan_manager* manager, const int32_t** blocks, size_t* count,
                                 Take&& take) {
  return guarded([&] {
    kvplan_manager& m = deref(manager, "manager");
    lend(std::span<const int32_t>(), blocks, count);
    m.new_block_ids = take(m.core);
    lend(std::span<const int32_t>(m.new_block_ids), blocks, count);
  });
}

}  // namespace
}  // namespace kvplan::c_api

using kvplan::RequestHandle;
using namespace kvplan::c_api;  // NOLINT(google-build-using-namespace)

extern "C" {

kvplan_status kvplan_cache_group_init(kvplan_cache_group* group, size_t struct_size) {
  return guarded([&] {
    deref(group, "group").struct_size = struct_size;
    write_struct(group, group_struct({}), "group");
  });
}

kvplan_status kvplan_manager_options_init(kvplan_manager_options* options, size_t struct_size) {
  return guarded([&] {
    deref(options, "options").struct_size = struct_size;
    write_struct(options, options_struct({}), "options");
  });
}

kvplan_status kvplan_plan_manager_options(const kvplan_plan* plan, int32_t lookahead_hashes,
                                          kvplan_manager_options* out) {
  return guarded([&] {
    write_struct(out, options_struct(kvplan::cache_manager_options(deref(plan, "plan").plan,
                                                                   lookahead_hashes != 0)));
  });
}

kvplan_status kvplan_plan_cache_group(const kvplan_plan* plan, size_t group,
                                      kvplan_cache_group* out) {
  return guarded([&] {
    const auto options = kvplan::cache_manager_options(deref(plan, "plan").plan);
    write_struct(out, group_struct(at(options.groups, group, "group")));
  });
}

kvplan_status kvplan_manager_create(const kvplan_manager_options* options,
                                    const kvplan_cache_group* groups, size_t num_groups,
                                    kvplan_manager** out) {
  return create_manager(out,
                        [&] { return options_value(options, groups_value(groups, num_groups)); });
}

kvplan_status kvplan_manager_create_from_plan(const kvplan_plan* plan,
                                              const kvplan_manager_options* options,
                                              kvplan_manager** out) {
  return create_manager(out, [&] {
    kvplan::CacheManagerOptions planned = kvplan::cache_manager_options(deref(plan, "plan").plan);
    return options == nullptr ? planned : options_value(options, std::move(planned.groups));
  });
}

void kvplan_manager_destroy(kvplan_manager* manager) { delete manager; }

kvplan_status kvplan_manager_pool(kvplan_manager* manager, kvplan_pool** out) {
  return guarded([&] {
    deref(out, "out") = nullptr;
    *out = new kvplan_pool(core_of(manager).share_pool());
  });
}

kvplan_status kvplan_manager_sliced_pool(kvplan_manager* manager, kvplan_sliced_pool** out) {
  return guarded([&] {
    deref(out, "out") = nullptr;
    *out = new kvplan_sliced_pool(core_of(manager).share_sliced_pool());
  });
}

kvplan_status kvplan_manager_get_state(const kvplan_manager* manager, kvplan_manager_state* out) {
  return guarded([&] {
    const kvplan::CacheManager& core = core_of(manager);
    kvplan_manager_state state = {};
    state.num_groups = static_cast<int64_t>(core.num_groups());
    state.num_requests = static_cast<int64_t>(core.num_requests());
    state.num_blocks = core.num_blocks();
    state.num_free_blocks = core.num_free_blocks();
    state.scheduler_block_size = core.scheduler_block_size();
    state.hash_block_size = core.hash_block_size();
    state.num_hash_lookahead_tokens = core.num_hash_lookahead_tokens();
    state.hit_alignment = core.hit_alignment();
    state.watermark_blocks = core.watermark_blocks();
    state.enable_partial_hits = core.enable_partial_hits();
    state.mamba_shared_prefix_checkpoint = core.mamba_shared_prefix_checkpoint();
    state.usage = core.usage();
    write_struct(out, state);
  });
}

kvplan_status kvplan_manager_block_size(const kvplan_manager* manager, size_t group,
                                        int64_t* tokens) {
  return guarded([&] {
    const kvplan::CacheManager& core = core_of(manager);
    if (group >= core.num_groups()) {
      throw kvplan::InvalidArgument("group " + std::to_string(group) +
                                    " does not exist; there are " +
                                    std::to_string(core.num_groups()));
    }
    deref(tokens, "tokens") = core.block_size(group);
  });
}

// Requests.

kvplan_status kvplan_manager_add_request(kvplan_manager* manager, int32_t* request) {
  return guarded([&] {
    deref(request, "request");
    *request = static_cast<int32_t>(core_of(manager).add_request());
  });
}

kvplan_status kvplan_manager_starts_again(const kvplan_manager* manager, int32_t request,
                                          int32_t* starts_again) {
  return guarded([&] {
    deref(starts_again, "starts_again") = core_of(manager).starts_again(RequestHandle{request});
  });
}

kvplan_status kvplan_manager_remove_request(kvplan_manager* manager, int32_t request) {
  return guarded([&] { core_of(manager).remove_request(RequestHandle{request}); });
}

kvplan_status kvplan_manager_append_hashes(kvplan_manager* manager, int32_t request,
                                           const void* hashes, size_t count) {
  return guarded([&] {
    kvplan_manager& m = deref(manager, "manager");
    const auto* bytes = static_cast<const std::byte*>(hashes);
    span_of(bytes, count, "hashes");
    m.core.append_hashes(RequestHandle{request}, {bytes, count * m.hash_bytes});
  });
}

kvplan_status kvplan_manager_truncate_hashes(kvplan_manager* manager, int32_t request,
                                             int64_t count) {
  return guarded([&] { core_of(manager).truncate_hashes(RequestHandle{request}, count); });
}

kvplan_status kvplan_manager_num_hashes(const kvplan_manager* manager, int32_t request,
                                        int64_t* count) {
  return guarded(
      [&] { deref(count, "count") = core_of(manager).num_hashes(RequestHandle{request}); });
}

// Prefix cache.

kvplan_status kvplan_hit_create(kvplan_hit** out) {
  return guarded([&] { deref(out, "out") = new kvplan_hit(); });
}

void kvplan_hit_destroy(kvplan_hit* hit) { delete hit; }

kvplan_status kvplan_hit_get_summary(const kvplan_hit* hit, kvplan_hit_summary* out) {
  return guarded([&] {
    const kvplan::PrefixHit& h = deref(hit, "hit").hit;
    write_struct(
        out, {0, h.num_tokens, h.shared_prefix_boundary, h.diverged ? 1 : 0, h.empty() ? 1 : 0});
  });
}

kvplan_status kvplan_hit_blocks(const kvplan_hit* hit, size_t group, const int32_t** blocks,
                                size_t* count) {
  return guarded([&] {
    const auto& of_group = at(deref(hit, "hit").hit.blocks, group, "group");
    lend(std::span<const int32_t>(of_group), blocks, count);
  });
}

kvplan_status kvplan_manager_find_prefix(const kvplan_manager* manager, int32_t request,
                                         int64_t max_tokens, kvplan_hit* hit) {
  return guarded([&] {
    core_of(manager).find_prefix(RequestHandle{request}, max_tokens, deref(hit, "hit").hit);
  });
}

kvplan_status kvplan_manager_find_prefix_for_connector(const kvplan_manager* manager,
                                                       int32_t request, int64_t max_tokens,
                                                       kvplan_hit* hit) {
  return guarded([&] {
    core_of(manager).find_prefix_for_connector(RequestHandle{request}, max_tokens,
                                               deref(hit, "hit").hit);
  });
}

kvplan_status kvplan_manager_hold_prefix(kvplan_manager* manager, int32_t request,
                                         int64_t max_tokens, kvplan_hit* hit) {
  return guarded([&] {
    core_of(manager).hold_prefix(RequestHandle{request}, max_tokens, deref(hit, "hit").hit);
  });
}

kvplan_status kvplan_manager_release_hold(kvplan_manager* manager, int32_t request) {
  return guarded([&] { core_of(manager).release_hold(RequestHandle{request}); });
}

kvplan_status kvplan_manager_truncate_prefix(const kvplan_manager* manager, kvplan_hit* hit,
                                             int64_t num_tokens) {
  return guarded([&] { core_of(manager).truncate_prefix(deref(hit, "hit").hit, num_tokens); });
}

kvplan_status kvplan_manager_emit_cached_block_events(kvplan_manager* manager, int32_t request,
                                                      const kvplan_hit* hit) {
  return guarded([&] {
    core_of(manager).emit_cached_block_events(RequestHandle{request}, deref(hit, "hit").hit);
  });
}

kvplan_status kvplan_manager_estimate_cached_tokens(const kvplan_manager* manager, int32_t request,
                                                    int64_t* tokens) {
  return guarded([&] {
    deref(tokens, "tokens") = core_of(manager).estimate_cached_tokens(RequestHandle{request});
  });
}

kvplan_status kvplan_manager_evict(kvplan_manager* manager, const int32_t* blocks, size_t count) {
  return guarded([&] { core_of(manager).evict_blocks(span_of(blocks, count)); });
}

kvplan_status kvplan_manager_reset_prefix_cache(kvplan_manager* manager, int32_t* done) {
  return guarded([&] {
    deref(done, "done");
    *done = core_of(manager).reset_prefix_cache();
  });
}

kvplan_status kvplan_manager_record_prefix_cache_stats(kvplan_manager* manager, int64_t num_tokens,
                                                       int64_t num_hits, int32_t preempted) {
  return guarded(
      [&] { core_of(manager).record_prefix_cache_stats(num_tokens, num_hits, preempted != 0); });
}

kvplan_status kvplan_manager_take_prefix_cache_stats(kvplan_manager* manager,
                                                     kvplan_prefix_cache_stats* out) {
  return guarded([&] {
    kvplan::CacheManager& core = core_of(manager);
    check_struct_size(deref(out, "out").struct_size, "out");
    const kvplan::PrefixCacheStats stats = core.take_prefix_cache_stats();
    write_struct(out, {0, stats.requests, stats.queries, stats.hits, stats.preempted_requests,
                       stats.preempted_queries, stats.preempted_hits, stats.reset ? 1 : 0});
  });
}

// Allocation.

kvplan_status kvplan_manager_allocate(kvplan_manager* manager, int32_t request,
                                      const kvplan_request_tokens* tokens,
                                      const kvplan_allocation* allocation, const kvplan_hit* hit,
                                      int32_t* fits) {
  return guarded([&] {
    deref(fits, "fits");
    const kvplan_allocation a = read_struct(allocation, "allocation");
    const kvplan::Allocation wanted{
        .num_new_tokens = a.num_new_tokens,
        .num_new_computed_tokens = a.num_new_computed_tokens,
        .num_external_computed_tokens = a.num_external_computed_tokens,
        .num_lookahead_tokens = a.num_lookahead_tokens,
        .num_encoder_tokens = a.num_encoder_tokens,
        .reserved_blocks = a.reserved_blocks,
        .delay_cache_blocks = a.delay_cache_blocks != 0,
        .full_sequence_must_fit = a.full_sequence_must_fit != 0,
        .apply_watermark = a.apply_watermark != 0,
        .skip_zeroing_groups =
            span_of(a.skip_zeroing_groups, a.num_skip_zeroing_groups, "skip_zeroing_groups")};
    *fits = core_of(manager).allocate(RequestHandle{request}, tokens_value(tokens), wanted,
                                      hit_value(hit));
  });
}

kvplan_status kvplan_manager_new_blocks(const kvplan_manager* manager, size_t group,
                                        const int32_t** blocks, size_t* count) {
  return guarded([&] { lend(core_of(manager).new_blocks(group), blocks, count); });
}

kvplan_status kvplan_manager_quiet_until(const kvplan_manager* manager, int32_t request,
                                         int64_t* tokens) {
  return guarded(
      [&] { deref(tokens, "tokens") = core_of(manager).quiet_until(RequestHandle{request}); });
}

kvplan_status kvplan_manager_num_blocks_to_allocate(kvplan_manager* manager, int32_t request,
                                                    const kvplan_demand* demand,
                                                    const kvplan_hit* hit, int64_t* num_blocks) {
  return guarded([&] {
    const kvplan_demand d = read_struct(demand, "demand");
    deref(num_blocks, "num_blocks") = core_of(manager).num_blocks_to_allocate(
        RequestHandle{request},
        {.num_tokens = d.num_tokens,
         .num_tokens_main_model = d.num_tokens_main_model,
         .num_encoder_tokens = d.num_encoder_tokens,
         .total_computed_tokens = d.total_computed_tokens,
         .num_local_computed_tokens = d.num_local_computed_tokens,
         .prefill_end = d.prefill_end,
         .apply_admission_cap = d.apply_admission_cap != 0},
        hit_value(hit));
  });
}

kvplan_status kvplan_manager_schedule(kvplan_manager* manager, const kvplan_step* step,
                                      kvplan_appended_block* appended, size_t capacity,
                                      kvplan_step_result* out) {
  static_assert(sizeof(kvplan_appended_block) == sizeof(kvplan::AppendedBlock));
  static_assert(sizeof(RequestHandle) == sizeof(int32_t));
  return guarded([&] {
    check_struct_size(deref(out, "out").struct_size, "out");
    const kvplan_step s = read_struct(step, "step");
    const size_t n = s.num_requests;
    const auto requests = span_of(s.requests, n, "requests");
    const auto room = span_of(appended, capacity, "appended");
    const kvplan::StepResult result = core_of(manager).schedule(
        {.requests = {reinterpret_cast<const RequestHandle*>(requests.data()), n},
         .num_computed_tokens = span_of(s.num_computed_tokens, n, "num_computed_tokens"),
         .num_new_tokens = optional_array(s.num_new_tokens, n),
         .num_tokens = optional_array(s.num_tokens, n),
         .num_in_flight_tokens = optional_array(s.num_in_flight_tokens, n),
         .num_lookahead_tokens = s.num_lookahead_tokens},
        {reinterpret_cast<kvplan::AppendedBlock*>(room.data()), capacity});
    write_struct(out,
                 {0, result.num_scheduled, result.num_appended, static_cast<int32_t>(result.stop)});
  });
}

kvplan_status kvplan_manager_commit(kvplan_manager* manager, int32_t request,
                                    const kvplan_request_tokens* tokens,
                                    int64_t num_computed_tokens) {
  return guarded([&] {
    core_of(manager).commit(RequestHandle{request}, tokens_value(tokens), num_computed_tokens);
  });
}

kvplan_status kvplan_manager_fork(kvplan_manager* manager, int32_t request,
                                  int64_t num_computed_tokens, int32_t* made) {
  return guarded([&] {
    deref(made, "made");
    const auto child = core_of(manager).fork(RequestHandle{request}, num_computed_tokens);
    *made = child ? static_cast<int32_t>(*child) : -1;
  });
}

// Release.

kvplan_status kvplan_manager_revert(kvplan_manager* manager, int32_t request,
                                    int64_t num_computed_tokens) {
  return guarded([&] { core_of(manager).revert(RequestHandle{request}, num_computed_tokens); });
}

kvplan_status kvplan_manager_remove_skipped_blocks(kvplan_manager* manager, int32_t request,
                                                   int64_t num_processed_tokens,
                                                   int64_t num_prompt_tokens) {
  return guarded([&] {
    core_of(manager).remove_skipped_blocks(RequestHandle{request}, num_processed_tokens,
                                           optional_of(num_prompt_tokens));
  });
}

kvplan_status kvplan_manager_free(kvplan_manager* manager, int32_t request) {
  return guarded([&] { core_of(manager).free(RequestHandle{request}); });
}

kvplan_status kvplan_manager_pop_blocks(kvplan_manager* manager, int32_t request,
                                        const int32_t** blocks, size_t* count) {
  return guarded([&] {
    kvplan_manager& m = deref(manager, "manager");
    lend(std::span<const int32_t>(), blocks, count);
    m.core.pop_blocks_for_free(RequestHandle{request}, m.popped);
    lend(std::span<const int32_t>(m.popped), blocks, count);
  });
}

// State of a request.

kvplan_status kvplan_manager_block_ids(const kvplan_manager* manager, int32_t request, size_t group,
                                       int32_t* blocks, size_t capacity, size_t* count) {
  return guarded([&] {
    const auto room = span_of(blocks, capacity);
    const auto table = core_of(manager).block_table(RequestHandle{request}, group);
    deref(count, "count") = table.size();
    for (size_t i = 0; i < std::min(room.size(), table.size()); ++i) room[i] = table[i];
  });
}

kvplan_status kvplan_manager_num_blocks_for_computed_tokens(const kvplan_manager* manager,
                                                            int32_t request, size_t group,
                                                            int64_t num_computed_tokens,
                                                            int64_t* num_blocks) {
  return guarded([&] {
    deref(num_blocks, "num_blocks") = core_of(manager).num_blocks_for_computed_tokens(
        RequestHandle{request}, group, num_computed_tokens);
  });
}

kvplan_status kvplan_manager_num_common_prefix_blocks(const kvplan_manager* manager,
                                                      int32_t request, size_t group,
                                                      int64_t* num_blocks) {
  return guarded([&] {
    deref(num_blocks, "num_blocks") =
        core_of(manager).num_common_prefix_blocks(RequestHandle{request}, group);
  });
}

// What a step has left to do.

kvplan_status kvplan_manager_new_step_starts(kvplan_manager* manager) {
  return guarded([&] { core_of(manager).new_step_starts(); });
}

kvplan_status kvplan_manager_take_new_block_ids(kvplan_manager* manager, const int32_t** blocks,
                                                size_t* count) {
  return take_new_block_ids(manager, blocks, count,
                            [](kvplan::CacheManager& core) { return core.take_new_block_ids(); });
}

kvplan_status kvplan_manager_take_group_block_ids(kvplan_manager* manager, size_t group,
                                                  const int32_t** blocks, size_t* count) {
  return take_new_block_ids(manager, blocks, count, [&](kvplan::CacheManager& core) {
    return core.take_new_block_ids(group);
  });
}

kvplan_status kvplan_manager_record_blocks_for_zeroing(kvplan_manager* manager, int32_t request,
                                                       int64_t start_token) {
  return guarded(
      [&] { core_of(manager).record_blocks_for_zeroing(RequestHandle{request}, start_token); });
}

kvplan_status kvplan_manager_take_copies(kvplan_manager* manager, const kvplan_block_copy** copies,
                                         size_t* count) {
  static_assert(sizeof(kvplan_block_copy) == sizeof(kvplan::BlockCopy));
  return guarded([&] {
    kvplan_manager& m = deref(manager, "manager");
    lend(std::span<const kvplan_block_copy>(), copies, count);
    m.copies = m.core.take_copies();
    const auto* first = reinterpret_cast<const kvplan_block_copy*>(m.copies.data());
    lend(std::span(first, m.copies.size()), copies, count);
  });
}

kvplan_status kvplan_manager_take_boundary_states(kvplan_manager* manager,
                                                  const kvplan_boundary_state** states,
                                                  size_t* count) {
  return guarded([&] {
    lend(std::span<const kvplan_boundary_state>(), states, count);
    lend_states(*manager, core_of(manager).take_boundary_states(), states, count);
  });
}

kvplan_status kvplan_manager_finalize_partial_tails(kvplan_manager* manager, int32_t request,
                                                    int64_t num_computed_tokens,
                                                    int64_t num_in_flight_tokens,
                                                    const kvplan_boundary_state** states,
                                                    size_t* count) {
  return guarded([&] {
    lend(std::span<const kvplan_boundary_state>(), states, count);
    const auto tails = core_of(manager).finalize_partial_tails(
        RequestHandle{request}, num_computed_tokens, num_in_flight_tokens);
    lend_states(*manager, tails, states, count);
  });
}

kvplan_status kvplan_manager_take_events(kvplan_manager* manager, const kvplan_event** events,
                                         size_t* count) {
  return guarded([&] {
    kvplan_manager& m = deref(manager, "manager");
    take_events(m.core, m.events, events, count);
  });
}

kvplan_status kvplan_manager_get_counters(const kvplan_manager* manager,
                                          kvplan_manager_counters* out) {
  return guarded([&] {
    const kvplan::CacheManagerCounters c = core_of(manager).counters();
    write_struct(out, {0, c.num_requests, c.num_free_blocks, c.num_cached_hashes,
                       c.num_queried_tokens, c.num_hit_tokens});
  });
}

kvplan_status kvplan_manager_check_invariants(const kvplan_manager* manager) {
  return guarded([&] { core_of(manager).check_invariants(); });
}
}
