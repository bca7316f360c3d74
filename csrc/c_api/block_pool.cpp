#include "kvplan/block_pool.h"

#include <string_view>
#include <vector>

#include "c_api/arrays.h"
#include "c_api/guard.h"

struct kvplan_pool {
  kvplan::BlockPool pool;
};

using kvplan::c_api::bytes_of;
using kvplan::c_api::deref;
using kvplan::c_api::guarded;
using kvplan::c_api::span_of;

extern "C" {

kvplan_status kvplan_pool_create(int64_t num_blocks, int32_t enable_caching, kvplan_pool** out) {
  return guarded([&] {
    deref(out, "out") = nullptr;
    kvplan::BlockPoolOptions options;
    options.enable_caching = enable_caching != 0;
    *out = new kvplan_pool{kvplan::BlockPool(num_blocks, options)};
  });
}

void kvplan_pool_destroy(kvplan_pool* pool) { delete pool; }

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

kvplan_status kvplan_pool_move_hashes(kvplan_pool* pool, int32_t source, int32_t destination) {
  return guarded([&] { deref(pool, "pool").pool.move_block_hashes(source, destination); });
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
