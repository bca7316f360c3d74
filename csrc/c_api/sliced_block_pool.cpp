#include "kvplan/sliced_block_pool.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "c_api/arrays.h"
#include "c_api/plan_handle.h"
#include "c_api/pool_handle.h"
#include "kvplan/plan_pool.h"

namespace kvplan::c_api {
namespace {

std::vector<SliceDemand> demands_of(const kvplan_slice_demand* demands, size_t count) {
  std::vector<SliceDemand> result;
  for (const kvplan_slice_demand& d : span_of(demands, count, "demands")) {
    result.push_back({.group_id = PoolGroupId{d.group},
                      .found = span_of(d.found, d.num_found, "found"),
                      .num_new = d.num_new});
  }
  return result;
}

std::vector<GroupBlocks> pinned_of(const kvplan_group_blocks* pinned, size_t count) {
  std::vector<GroupBlocks> result;
  for (const kvplan_group_blocks& p : span_of(pinned, count, "pinned")) {
    result.push_back({PoolGroupId{p.group}, span_of(p.blocks, p.count)});
  }
  return result;
}

kvplan_status create_sliced_pool(int64_t num_large_blocks, const int64_t* slices, size_t num_groups,
                                 const SlicedBlockPoolOptions& options, kvplan_sliced_pool** out) {
  return guarded([&] {
    deref(out, "out") = nullptr;
    *out = new kvplan_sliced_pool(std::make_shared<SlicedBlockPool>(
        num_large_blocks, span_of(slices, num_groups, "slices"), options));
  });
}

}  // namespace
}  // namespace kvplan::c_api

using kvplan::PoolGroupId;
using kvplan::c_api::bytes_of;
using kvplan::c_api::demands_of;
using kvplan::c_api::deref;
using kvplan::c_api::guarded;
using kvplan::c_api::span_of;

extern "C" {

kvplan_status kvplan_sliced_pool_create(int64_t num_large_blocks, const int64_t* slices,
                                        size_t num_groups, int32_t enable_caching,
                                        double own_first_above, kvplan_sliced_pool** out) {
  kvplan::SlicedBlockPoolOptions options;
  options.enable_caching = enable_caching != 0;
  options.own_first_above = own_first_above;
  return kvplan::c_api::create_sliced_pool(num_large_blocks, slices, num_groups, options, out);
}

kvplan_status kvplan_sliced_pool_create_with_events(int64_t num_large_blocks, const int64_t* slices,
                                                    size_t num_groups, int32_t enable_caching,
                                                    double own_first_above, int64_t max_events,
                                                    kvplan_sliced_pool** out) {
  kvplan::SlicedBlockPoolOptions options;
  options.enable_caching = enable_caching != 0;
  options.own_first_above = own_first_above;
  options.enable_events = true;
  options.max_events = max_events;
  return kvplan::c_api::create_sliced_pool(num_large_blocks, slices, num_groups, options, out);
}

kvplan_status kvplan_sliced_pool_create_from_plan(const kvplan_plan* plan, int32_t enable_caching,
                                                  double own_first_above,
                                                  kvplan_sliced_pool** out) {
  return guarded([&] {
    deref(out, "out") = nullptr;
    kvplan::SlicedBlockPoolOptions options;
    options.enable_caching = enable_caching != 0;
    options.own_first_above = own_first_above;
    *out = new kvplan_sliced_pool(std::make_shared<kvplan::SlicedBlockPool>(
        kvplan::make_sliced_pool(deref(plan, "plan").plan, options)));
  });
}

void kvplan_sliced_pool_destroy(kvplan_sliced_pool* pool) { delete pool; }

int64_t kvplan_sliced_pool_num_cached_hashes(const kvplan_sliced_pool* pool) {
  return pool == nullptr ? 0 : pool->pool.num_cached_hashes();
}

kvplan_status kvplan_sliced_pool_ref_count(const kvplan_sliced_pool* pool, uint16_t group,
                                           int32_t block, int32_t* count) {
  return guarded([&] {
    deref(count, "count") = deref(pool, "pool").pool.ref_count(PoolGroupId{group}, block);
  });
}

kvplan_status kvplan_sliced_pool_num_free(const kvplan_sliced_pool* pool, uint16_t group,
                                          int64_t* num_free) {
  return guarded([&] {
    deref(num_free, "num_free") = deref(pool, "pool").pool.num_free_blocks(PoolGroupId{group});
  });
}

kvplan_status kvplan_sliced_pool_can_allocate(const kvplan_sliced_pool* pool,
                                              const kvplan_slice_demand* demands,
                                              size_t num_demands, int32_t* fits) {
  return guarded([&] {
    deref(fits, "fits") =
        deref(pool, "pool").pool.can_allocate(demands_of(demands, num_demands)) ? 1 : 0;
  });
}

kvplan_status kvplan_sliced_pool_allocate(kvplan_sliced_pool* pool,
                                          const kvplan_slice_demand* demands, size_t num_demands,
                                          int32_t* blocks, size_t count) {
  return guarded([&] {
    deref(pool, "pool").pool.allocate(demands_of(demands, num_demands), span_of(blocks, count));
  });
}

kvplan_status kvplan_sliced_pool_touch(kvplan_sliced_pool* pool, uint16_t group,
                                       const int32_t* blocks, size_t count) {
  return guarded(
      [&] { deref(pool, "pool").pool.touch(PoolGroupId{group}, span_of(blocks, count)); });
}

kvplan_status kvplan_sliced_pool_free(kvplan_sliced_pool* pool, uint16_t group,
                                      const int32_t* blocks, size_t count) {
  return guarded(
      [&] { deref(pool, "pool").pool.free_blocks(PoolGroupId{group}, span_of(blocks, count)); });
}

kvplan_status kvplan_sliced_pool_cache(kvplan_sliced_pool* pool, const int32_t* blocks,
                                       size_t count, const void* hashes, size_t hash_bytes,
                                       int64_t block_size, uint16_t group) {
  return guarded([&] {
    const std::vector<std::string_view> views = kvplan::c_api::hashes_of(hashes, count, hash_bytes);
    deref(pool, "pool")
        .pool.cache_full_blocks({.blocks = span_of(blocks, count),
                                 .hashes = views,
                                 .block_size = block_size,
                                 .group_id = PoolGroupId{group}});
  });
}

kvplan_status kvplan_sliced_pool_find(const kvplan_sliced_pool* pool, const void* hash,
                                      size_t hash_bytes, uint16_t group, int32_t* block) {
  return guarded([&] {
    deref(block, "block") =
        deref(pool, "pool").pool.find(bytes_of(hash, hash_bytes), PoolGroupId{group}).value_or(-1);
  });
}

kvplan_status kvplan_sliced_pool_find_prefix(const kvplan_sliced_pool* pool, const void* hashes,
                                             size_t count, size_t hash_bytes, uint16_t group,
                                             int32_t* blocks, size_t* num_found) {
  return guarded([&] {
    const std::vector<std::string_view> views = kvplan::c_api::hashes_of(hashes, count, hash_bytes);
    deref(num_found, "num_found") = static_cast<size_t>(
        deref(pool, "pool").pool.find_prefix(views, PoolGroupId{group}, span_of(blocks, count)));
  });
}

kvplan_status kvplan_sliced_pool_find_in_groups(const kvplan_sliced_pool* pool, const void* hash,
                                                size_t hash_bytes, const uint16_t* groups,
                                                size_t num_groups, int32_t* blocks,
                                                int32_t* found) {
  return guarded([&] {
    const auto ids = kvplan::c_api::groups_of(groups, num_groups);
    deref(found, "found") =
        deref(pool, "pool")
            .pool.find_in_groups(bytes_of(hash, hash_bytes), ids, span_of(blocks, num_groups));
  });
}

kvplan_status kvplan_sliced_pool_evict(kvplan_sliced_pool* pool, uint16_t group,
                                       const int32_t* blocks, size_t count) {
  return guarded(
      [&] { deref(pool, "pool").pool.evict_blocks(PoolGroupId{group}, span_of(blocks, count)); });
}

kvplan_status kvplan_sliced_pool_reset(kvplan_sliced_pool* pool, int32_t* done) {
  return guarded([&] {
    kvplan_sliced_pool& p = deref(pool, "pool");
    deref(done, "done") = p.pool.reset_prefix_cache();
  });
}

kvplan_status kvplan_sliced_pool_take_events(kvplan_sliced_pool* pool, const kvplan_event** events,
                                             size_t* count) {
  return guarded([&] {
    kvplan_sliced_pool& p = deref(pool, "pool");
    kvplan::c_api::take_events(p.pool, p.events, events, count);
  });
}

kvplan_status kvplan_sliced_pool_move_hashes(kvplan_sliced_pool* pool, uint16_t group,
                                             int32_t source, int32_t destination) {
  return guarded(
      [&] { deref(pool, "pool").pool.move_block_hashes(PoolGroupId{group}, source, destination); });
}

kvplan_status kvplan_sliced_pool_unpin(kvplan_sliced_pool* pool, uint16_t group,
                                       const int32_t* blocks, size_t count,
                                       kvplan_on_reuse on_reuse, void* user) {
  return guarded([&] {
    if (on_reuse == nullptr) throw kvplan::InvalidArgument("on_reuse is null");
    deref(pool, "pool")
        .pool.unpin_blocks(PoolGroupId{group}, span_of(blocks, count),
                           [=](PoolGroupId of, int32_t block) {
                             on_reuse(user, static_cast<uint16_t>(of), block);
                           });
  });
}

kvplan_status kvplan_sliced_pool_make_room(kvplan_sliced_pool* pool,
                                           const kvplan_slice_demand* demands, size_t num_demands,
                                           const kvplan_group_blocks* pinned, size_t num_pinned,
                                           kvplan_slice_move* moves, size_t capacity,
                                           int64_t* num_moves) {
  return guarded([&] {
    deref(num_moves, "num_moves") = -1;
    const std::span<kvplan_slice_move> out = span_of(moves, capacity, "moves");
    const auto fixed = kvplan::c_api::pinned_of(pinned, num_pinned);
    const size_t most = std::min<size_t>(capacity, std::numeric_limits<int64_t>::max());
    const auto made =
        deref(pool, "pool")
            .pool.make_room(demands_of(demands, num_demands),
                            {.max_moves = static_cast<int64_t>(most), .pinned = fixed});
    if (!made) return;
    for (size_t i = 0; i < made->size(); ++i) {
      const kvplan::SliceMove& m = (*made)[i];
      out[i] = {m.source, m.destination, static_cast<uint16_t>(m.group_id)};
    }
    *num_moves = static_cast<int64_t>(made->size());
  });
}
}
