#ifndef KVPLAN_C_API_H_
#define KVPLAN_C_API_H_

/* The planner and the block pool for C, and for languages that call C. No exception crosses this
 * interface: every function that can fail returns a status, and kvplan_last_error() says why.
 *
 * Handles belong to the caller, who destroys them. A plan may be read by several threads; a pool
 * has one user. A count beyond 2^31 - 1 is refused. */

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define KVPLAN_C_API
#else
#define KVPLAN_C_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum kvplan_status {
  KVPLAN_OK = 0,
  KVPLAN_INVALID_ARGUMENT = 1,  /* a value out of range, contradictory or unknown; null pointers */
  KVPLAN_OVERFLOW = 2,          /* arithmetic left the 64-bit range */
  KVPLAN_UNSUPPORTED = 3,       /* pages that cannot be made equal, or a kind that is not planned */
  KVPLAN_LAYOUT = 4,            /* the layout cannot express the model's pages */
  KVPLAN_NOT_ENOUGH_MEMORY = 5, /* see kvplan_last_shortage() */
  KVPLAN_BLOCK_POOL = 6,        /* an operation that would break the pool, which is unchanged */
  KVPLAN_OUT_OF_MEMORY = 7,     /* of this process */
  KVPLAN_INTERNAL = 8,          /* a defect of kvplan */
  KVPLAN_NOT_BUILT = 9          /* this build left the function out */
} kvplan_status;

/* "0.1.0". */
KVPLAN_C_API const char* kvplan_version(void);
/* What the last function that failed in this thread had to say; never null. Valid until the next
 * failure in this thread. */
KVPLAN_C_API const char* kvplan_last_error(void);

typedef struct kvplan_shortage {
  int64_t worker;
  int64_t needed_bytes;         /* what one request of max_model_len tokens holds */
  int64_t available_bytes;      /* what the worker has, without the null block */
  int64_t max_model_len;        /* the length that was asked for */
  int64_t estimated_max_len;    /* the longest that fits; 0 if none does */
  int64_t max_in_flight_tokens; /* the largest in-flight count that fits; 0 if none does */
} kvplan_shortage;
/* The numbers of the last KVPLAN_NOT_ENOUGH_MEMORY in this thread. */
KVPLAN_C_API void kvplan_last_shortage(kvplan_shortage* out);

/* --- the plan ----------------------------------------------------------------------------------
 */

typedef struct kvplan_plan kvplan_plan;
/* Plans a request's text of so many bytes, UTF-8 without a final null: what to plan, and under
 * which configuration. docs/request.md has the format and docs/request.schema.json its schema. On
 * failure *out is null. KVPLAN_NOT_BUILT where kvplan was built without a JSON library; the pools
 * are there all the same. */
KVPLAN_C_API kvplan_status kvplan_plan_create_from_json(const char* json, size_t bytes,
                                                        kvplan_plan** out);
KVPLAN_C_API void kvplan_plan_destroy(kvplan_plan* plan);

typedef struct kvplan_summary {
  int64_t max_model_len; /* with auto_fit, the fitted length */
  int64_t num_blocks;    /* the null block included */
  int64_t num_groups;
  int64_t num_workers;
  int64_t limiting_worker;
  int64_t limiting_group;
  int64_t bytes_per_block; /* on the limiting worker, as the next four */
  int64_t request_blocks;
  int64_t request_bytes;
  int64_t fixed_bytes_per_request;
  int64_t next_token_bytes;       /* what a request of one token more holds in addition */
  int64_t capacity_tokens;        /* by vLLM's formula */
  int64_t usable_capacity_tokens; /* without the null block */
  double max_concurrency;         /* by vLLM's formula */
  double usable_concurrency;      /* without the null block */
  double steady_concurrency;      /* in-flight tokens counted once per engine */
  int64_t max_safe_block_id_bytes;
  int64_t max_safe_block_id_elements;
} kvplan_summary;
KVPLAN_C_API kvplan_status kvplan_plan_summary(const kvplan_plan* plan, kvplan_summary* out);

/* Pointers into the plan, valid until it is destroyed. */
typedef struct kvplan_group {
  const int32_t* layers; /* layer ids of the whole model */
  size_t num_layers;
  int64_t block_size; /* tokens */
  int32_t is_eagle_group;
  int32_t slices; /* of this group in a block of the pool; 1 unless grouping is "sliced" */
  int64_t pages_per_request;
  int64_t padding_bytes; /* bytes of a block that hold nothing */
} kvplan_group;
KVPLAN_C_API kvplan_status kvplan_plan_group(const kvplan_plan* plan, size_t group,
                                             kvplan_group* out);

typedef struct kvplan_worker {
  int64_t buffer_bytes; /* to allocate */
  int64_t bytes_per_block;
  size_t num_tensors;
} kvplan_worker;
KVPLAN_C_API kvplan_status kvplan_plan_worker(const kvplan_plan* plan, size_t worker,
                                              kvplan_worker* out);

/* The page of layers[l] for block b begins at offset + l * layer_stride + b * block_stride. */
typedef struct kvplan_tensor {
  const int32_t* layers;
  size_t num_layers;
  int64_t size;
  int64_t layer_stride;
  int64_t block_stride;
  int64_t offset;
} kvplan_tensor;
KVPLAN_C_API kvplan_status kvplan_plan_tensor(const kvplan_plan* plan, size_t worker, size_t tensor,
                                              kvplan_tensor* out);

/* Null for an unknown id. */
KVPLAN_C_API const char* kvplan_plan_layer_name(const kvplan_plan* plan, int32_t layer_id);
KVPLAN_C_API size_t kvplan_plan_num_notices(const kvplan_plan* plan);
/* A remark of the planner; null beyond the last. */
KVPLAN_C_API const char* kvplan_plan_notice(const kvplan_plan* plan, size_t index);
/* KVPLAN_INTERNAL, with the first broken rule as the error, if the plan breaks the contract. */
KVPLAN_C_API kvplan_status kvplan_plan_check(const kvplan_plan* plan);

/* --- the block pool ----------------------------------------------------------------------------
 */

typedef struct kvplan_pool kvplan_pool;
/* Block 0 is the null block, which is never handed out. */
KVPLAN_C_API kvplan_status kvplan_pool_create(int64_t num_blocks, int32_t enable_caching,
                                              kvplan_pool** out);
KVPLAN_C_API void kvplan_pool_destroy(kvplan_pool* pool);
KVPLAN_C_API int64_t kvplan_pool_num_free(const kvplan_pool* pool);
/* All of `count` blocks or none. */
KVPLAN_C_API kvplan_status kvplan_pool_allocate(kvplan_pool* pool, int32_t* blocks, size_t count);
/* One holder more, or less, for each block. */
KVPLAN_C_API kvplan_status kvplan_pool_touch(kvplan_pool* pool, const int32_t* blocks,
                                             size_t count);
KVPLAN_C_API kvplan_status kvplan_pool_free(kvplan_pool* pool, const int32_t* blocks, size_t count);
/* Makes full blocks reachable by their hashes: `count` times `hash_bytes` bytes, at most 32 each.
 */
KVPLAN_C_API kvplan_status kvplan_pool_cache(kvplan_pool* pool, const int32_t* blocks, size_t count,
                                             const void* hashes, size_t hash_bytes,
                                             int64_t block_size, uint16_t group);
/* The cached block, or -1. */
KVPLAN_C_API kvplan_status kvplan_pool_find(const kvplan_pool* pool, const void* hash,
                                            size_t hash_bytes, uint16_t group, int32_t* block);
/* Re-points all hashes of `source` to `destination`, which must have none. */
KVPLAN_C_API kvplan_status kvplan_pool_move_hashes(kvplan_pool* pool, int32_t source,
                                                   int32_t destination);
/* Told that the contents of a block are given up; `group` is 0 in a pool without slices. */
typedef void (*kvplan_on_reuse)(void* user, uint16_t group, int32_t block);
/* Like kvplan_pool_free, but the blocks are reused last, and on_reuse is called when they are, or
 * when the prefix cache is reset. `user` must live until then, or as long as the pool. No null
 * blocks. */
KVPLAN_C_API kvplan_status kvplan_pool_unpin(kvplan_pool* pool, const int32_t* blocks, size_t count,
                                             kvplan_on_reuse on_reuse, void* user);

/* --- the pool of a plan with grouping "sliced" --------------------------------------------------
 * As kvplan/sliced_block_pool.h, where each rule is. A block id is one of a group: large block *
 * slices of the group + slice. */

typedef struct kvplan_sliced_pool kvplan_sliced_pool;
/* `slices` has kvplan_group.slices of each group; own_first_above is a share of the pool, 1.0 / 16
 * unless there are reasons, 1 where slices are moved. */
KVPLAN_C_API kvplan_status kvplan_sliced_pool_create(int64_t num_large_blocks,
                                                     const int64_t* slices, size_t num_groups,
                                                     int32_t enable_caching, double own_first_above,
                                                     kvplan_sliced_pool** out);
KVPLAN_C_API void kvplan_sliced_pool_destroy(kvplan_sliced_pool* pool);
/* Blocks that the group could get if no other group took any. */
KVPLAN_C_API kvplan_status kvplan_sliced_pool_num_free(const kvplan_sliced_pool* pool,
                                                       uint16_t group, int64_t* num_free);

/* What one request wants of one group. */
typedef struct kvplan_slice_demand {
  const int32_t* found; /* blocks of the prefix cache to hold */
  size_t num_found;
  int64_t num_new;
  uint16_t group;
} kvplan_slice_demand;
/* *fits is 1 if kvplan_sliced_pool_allocate would succeed. */
KVPLAN_C_API kvplan_status kvplan_sliced_pool_can_allocate(const kvplan_sliced_pool* pool,
                                                           const kvplan_slice_demand* demands,
                                                           size_t num_demands, int32_t* fits);
/* All or nothing; `blocks` has the new ones demand by demand, `count` in all. */
KVPLAN_C_API kvplan_status kvplan_sliced_pool_allocate(kvplan_sliced_pool* pool,
                                                       const kvplan_slice_demand* demands,
                                                       size_t num_demands, int32_t* blocks,
                                                       size_t count);
KVPLAN_C_API kvplan_status kvplan_sliced_pool_touch(kvplan_sliced_pool* pool, uint16_t group,
                                                    const int32_t* blocks, size_t count);
KVPLAN_C_API kvplan_status kvplan_sliced_pool_free(kvplan_sliced_pool* pool, uint16_t group,
                                                   const int32_t* blocks, size_t count);
KVPLAN_C_API kvplan_status kvplan_sliced_pool_cache(kvplan_sliced_pool* pool, const int32_t* blocks,
                                                    size_t count, const void* hashes,
                                                    size_t hash_bytes, int64_t block_size,
                                                    uint16_t group);
/* The cached block, or -1. */
KVPLAN_C_API kvplan_status kvplan_sliced_pool_find(const kvplan_sliced_pool* pool, const void* hash,
                                                   size_t hash_bytes, uint16_t group,
                                                   int32_t* block);

/* Re-points all hashes of `source` to `destination`, which must be in use and have none. */
KVPLAN_C_API kvplan_status kvplan_sliced_pool_move_hashes(kvplan_sliced_pool* pool, uint16_t group,
                                                          int32_t source, int32_t destination);
/* As kvplan_pool_unpin; on_reuse may also come from kvplan_sliced_pool_make_room. */
KVPLAN_C_API kvplan_status kvplan_sliced_pool_unpin(kvplan_sliced_pool* pool, uint16_t group,
                                                    const int32_t* blocks, size_t count,
                                                    kvplan_on_reuse on_reuse, void* user);

/* Contents that change their block. */
typedef struct kvplan_slice_move {
  int32_t source;
  int32_t destination;
  uint16_t group;
} kvplan_slice_move;
typedef struct kvplan_group_blocks {
  const int32_t* blocks;
  size_t count;
  uint16_t group;
} kvplan_group_blocks;
/* Makes kvplan_sliced_pool_allocate possible by at most `capacity` moves, which the caller copies
 * and writes into its block tables and `found`; sliced_block_pool.h has the order of copies. None
 * of the `pinned` blocks moves. *num_moves is 0 if the demands fit already, and -1, and nothing
 * happens, if it cannot be done. */
KVPLAN_C_API kvplan_status kvplan_sliced_pool_make_room(kvplan_sliced_pool* pool,
                                                        const kvplan_slice_demand* demands,
                                                        size_t num_demands,
                                                        const kvplan_group_blocks* pinned,
                                                        size_t num_pinned, kvplan_slice_move* moves,
                                                        size_t capacity, int64_t* num_moves);

#ifdef __cplusplus
}
#endif

#endif /* KVPLAN_C_API_H_ */
