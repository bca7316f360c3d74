#include "kvplan/block_pool.h"

#include <memory>
#include <string_view>
#include <vector>

#include "c_api/arrays.h"
#include "c_api/plan_handle.h"
#include "c_api/pool_handle.h"
#include "kvplan/plan_pool.h"

namespace kvplan::c_api {
namespace {

kvplan_status create_pool(int64_t num_blocks, const BlockPoolOptions& options, kvplan_pool** out) {
  return guarded([&] {
    deref(out, "out") = nullptr;
    *out = new kvplan_pool(std::make_shared<BlockPool>(num_blocks, options));
  });
}

}  // namespace
}  // namespace kvplan::c_api

using kvplan::c_api::bytes_of;
using kvplan::c_api::deref;
using kvplan::c_api::guarded;
using kvplan::c_api::span_of;

extern "C" {

kvplan_status kvplan_pool_create(int64_t num_blocks, int32_t enable_caching, kvplan_pool** out) {
  return kvplan::c_api::create_pool(num_blocks, {.enable_caching = enable_caching != 0}, out);
}

kvplan_status kvplan_pool_create_with_events(int64_t num_blocks, int32_t enable_caching,
                                             int64_t max_events, kvplan_pool** out) {
  return kvplan::c_api::create_pool(
      num_blocks,
      {.enable_caching = enable_caching != 0, .enable_events = true, .max_events = max_events},
      out);
}

kvplan_status kvplan_pool_create_from_plan(const kvplan_plan* plan, int32_t enable_caching,
                                           kvplan_pool** out) {
  return guarded([&] {
    deref(out, "out") = nullptr;
    *out = new kvplan_pool(std::make_shared<kvplan::BlockPool>(
        kvplan::make_pool(deref(plan, "plan").plan, {.enable_caching = enable_caching != 0})));
  });
}

void kvplan_pool_destroy(kvplan_pool* pool) { delete pool; }

int64_t kvplan_pool_num_blocks(const kvplan_pool* pool) {
  return pool == nullptr ? 0 : pool->pool.num_blocks();
}

int64_t kvplan_pool_num_cached_hashes(const kvplan_pool* pool) {
  return pool == nullptr ? 0 : pool->pool.num_cached_hashes();
}

kvplan_status kvplan_pool_ref_count(const kvplan_pool* pool, int32_t block, int32_t* count) {
  return guarded([&] { deref(count, "count") = deref(pool, "pool").pool.ref_count(block); });
}

int64_t kvplan_pool_num_free(const kvplan_pool* pool) {
  return pool == nullptr ? 0 : pool->pool.num_free_blocks();
}

kvplan_status kvplan_pool_allocate(kvplan_pool* pool, int32_t* blocks, size_t count) {
  return guarded([&] { deref(pool, "pool").pool.get_new_blocks(span_of(blocks, count)); });
}

kvplan_status kvplan_pool_touch(kvplan_pool* pool, const int32_t* blocks, size_t count) {
  return guarded([&] { deref(pool, "pool").pool.touch(span_of(blocks, count)); });
}

kvplan_status kvplan_pool_free(kvplan_pool* pool, const int32_t* blocks, size_t count) {
  return guarded([&] { deref(pool, "pool").pool.free_blocks(span_of(blocks, count)); });
}

kvplan_status kvplan_pool_cache(kvplan_pool* pool, const int32_t* blocks, size_t count,
                                const void* hashes, size_t hash_bytes, int64_t block_size,
                                uint16_t group) {
  return guarded([&] {
    const std::span<const int32_t> ids = span_of(blocks, count);
    const std::vector<std::string_view> views = kvplan::c_api::hashes_of(hashes, count, hash_bytes);
    kvplan::FullBlocks full;
    full.blocks = ids;
    full.hashes = views;
    full.block_size = block_size;
    full.group_id = kvplan::PoolGroupId{group};
    deref(pool, "pool").pool.cache_full_blocks(full);
  });
}

kvplan_status kvplan_pool_find(const kvplan_pool* pool, const void* hash, size_t hash_bytes,
                               uint16_t group, int32_t* block) {
  return guarded([&] {
    deref(block, "block") = deref(pool, "pool")
                                .pool.find(bytes_of(hash, hash_bytes), kvplan::PoolGroupId{group})
                                .value_or(-1);
  });
}

kvplan_status kvplan_pool_find_prefix(const kvplan_pool* pool, const void* hashes, size_t count,
                                      size_t hash_bytes, uint16_t group, int32_t* blocks,
                                      size_t* num_found) {
  return guarded([&] {
    const std::vector<std::string_view> views = kvplan::c_api::hashes_of(hashes, count, hash_bytes);
    deref(num_found, "num_found") = static_cast<size_t>(
        deref(pool, "pool")
            .pool.find_prefix(views, kvplan::PoolGroupId{group}, span_of(blocks, count)));
  });
}

kvplan_status kvplan_pool_find_in_groups(const kvplan_pool* pool, const void* hash,
                                         size_t hash_bytes, const uint16_t* groups,
                                         size_t num_groups, int32_t* blocks, int32_t* found) {
  return guarded([&] {
    const auto ids = kvplan::c_api::groups_of(groups, num_groups);
    deref(found, "found") =
        deref(pool, "pool")
            .pool.find_in_groups(bytes_of(hash, hash_bytes), ids, span_of(blocks, num_groups));
  });
}

kvplan_status kvplan_pool_evict(kvplan_pool* pool, const int32_t* blocks, size_t count) {
  return guarded([&] { deref(pool, "pool").pool.evict_blocks(span_of(blocks, count)); });
}

kvplan_status kvplan_pool_reset(kvplan_pool* pool, int32_t* done) {
  return guarded([&] {
    kvplan_pool& p = deref(pool, "pool");
    deref(done, "done") = p.pool.reset_prefix_cache();
  });
}

kvplan_status kvplan_pool_take_events(kvplan_pool* pool, const kvplan_event** events,
                                      size_t* count) {
  return guarded([&] {
    kvplan_pool& p = deref(pool, "pool");
    kvplan::c_api::take_events(p.pool, p.events, events, count);
  });
}

kvplan_status kvplan_pool_move_hashes(kvplan_pool* pool, int32_t source, int32_t destination) {
  return guarded([&] { deref(pool, "pool").pool.move_block_hashes(source, destination); });
}

kvplan_status kvplan_pool_set_eviction_hook(kvplan_pool* pool, kvplan_on_eviction on_eviction,
                                            void* user) {
  return guarded([&] {
    kvplan::BlockPool& p = deref(pool, "pool").pool;
    if (on_eviction == nullptr) return p.set_eviction_hook(nullptr);
    p.set_eviction_hook(
        [=](std::span<const int32_t> blocks) { on_eviction(user, blocks.data(), blocks.size()); });
  });
}

kvplan_status kvplan_pool_unpin(kvplan_pool* pool, const int32_t* blocks, size_t count,
                                kvplan_on_reuse on_reuse, void* user) {
  return guarded([&] {
    if (on_reuse == nullptr) throw kvplan::InvalidArgument("on_reuse is null");
    deref(pool, "pool").pool.unpin_blocks(span_of(blocks, count), [=](int32_t block) {
      on_reuse(user, 0, block);
    });
  });
}
}
