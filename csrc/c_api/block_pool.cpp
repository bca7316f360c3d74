#include "kvplan/block_pool.h"

#include <string_view>
#include <vector>

#include "c_api/guard.h"

struct kvplan_pool {
  kvplan::BlockPool pool;
};

namespace kvplan::c_api {
namespace {

template <class T>
std::span<T> span_of(T* pointer, size_t count) {
  if (count > 0) deref(pointer, "blocks");
  return {pointer, count};
}

std::string_view bytes_of(const void* hash, size_t bytes) {
  return {static_cast<const char*>(&deref(static_cast<const char*>(hash), "hash")), bytes};
}

}  // namespace
}  // namespace kvplan::c_api

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
    if (hash_bytes > kvplan::kMaxBlockHashBytes) {
      throw kvplan::InvalidArgument("a hash has " + std::to_string(hash_bytes) +
                                    " bytes; at most " +
                                    std::to_string(kvplan::kMaxBlockHashBytes) + " are allowed");
    }
    std::vector<std::string_view> views;
    for (size_t i = 0; i < count; ++i) {
      views.push_back(bytes_of(hashes, count * hash_bytes).substr(i * hash_bytes, hash_bytes));
    }
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
}
