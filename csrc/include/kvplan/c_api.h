#ifndef KVPLAN_C_API_H_
#define KVPLAN_C_API_H_

/* The planner, the block pool and the cache manager for C, and for languages that call C. No
 * exception crosses this interface: every function that can fail returns a status, and
 * kvplan_last_error() says why. A call that fails has changed nothing.
 *
 * Handles belong to the caller, who destroys them. A plan may be read by several threads; a pool
 * and a manager have one user. A count beyond 2^31 - 1 is refused.
 *
 * A struct that begins with struct_size may get more members at its end in later versions: the
 * caller sets struct_size to its own sizeof, what a caller does not know is at its default, and
 * what this library does not know must be zero. Other structs keep their size, since they are
 * elements of arrays. */

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

#define KVPLAN_VERSION_MAJOR 0
#define KVPLAN_VERSION_MINOR 1
#define KVPLAN_VERSION_PATCH 0
/* Counts the versions of this interface that older callers cannot use. */
#define KVPLAN_ABI_VERSION 1

/* "0.1.0": of the library, as the next. */
KVPLAN_C_API const char* kvplan_version(void);
KVPLAN_C_API int32_t kvplan_abi_version(void);
/* What the last function that failed in this thread had to say; never null. Valid until the next
 * failure in this thread. */
KVPLAN_C_API const char* kvplan_last_error(void);

typedef struct kvplan_shortage {
  size_t struct_size;
  int64_t worker;
  int64_t needed_bytes;         /* what one request of max_model_len tokens holds */
  int64_t available_bytes;      /* what the worker has, without the null block */
  int64_t max_model_len;        /* the length that was asked for */
  int64_t estimated_max_len;    /* the longest that fits; 0 if none does */
  int64_t max_in_flight_tokens; /* the largest in-flight count that fits; 0 if none does */
} kvplan_shortage;
/* The numbers of the last KVPLAN_NOT_ENOUGH_MEMORY in this thread. */
KVPLAN_C_API kvplan_status kvplan_last_shortage(kvplan_shortage* out);

/* --- the plan ----------------------------------------------------------------------------------
 */

typedef struct kvplan_plan kvplan_plan;
/* Plans a request's text of so many bytes, UTF-8 without a final null: what to plan, and under
 * which configuration; docs/request.md has the format. On failure *out is null. KVPLAN_NOT_BUILT
 * where kvplan was built without a JSON library; the pools are there all the same. */
KVPLAN_C_API kvplan_status kvplan_plan_create_from_json(const char* json, size_t bytes,
                                                        kvplan_plan** out);
KVPLAN_C_API void kvplan_plan_destroy(kvplan_plan* plan);

typedef struct kvplan_summary {
  size_t struct_size;
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
  size_t struct_size;
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
  size_t struct_size;
  int64_t buffer_bytes; /* to allocate */
  int64_t bytes_per_block;
  size_t num_tensors;
} kvplan_worker;
KVPLAN_C_API kvplan_status kvplan_plan_worker(const kvplan_plan* plan, size_t worker,
                                              kvplan_worker* out);

/* The page of layers[l] for block b begins at offset + l * layer_stride + b * block_stride. */
typedef struct kvplan_tensor {
  size_t struct_size;
  const int32_t* layers;
  size_t num_layers;
  int64_t size;
  int64_t layer_stride;
  int64_t block_stride;
  int64_t offset;
} kvplan_tensor;
KVPLAN_C_API kvplan_status kvplan_plan_tensor(const kvplan_plan* plan, size_t worker, size_t tensor,
                                              kvplan_tensor* out);

/* The tensor's layers as kernels take them, in bytes: [L, B, H, N, C], where B counts the block ids
 * of the group. KVPLAN_INVALID_ARGUMENT for a tensor of HiSparse pages, which has no such shape. */
typedef struct kvplan_view {
  size_t struct_size;
  size_t group;
  int64_t shape[5];
  int64_t strides[5];
  int64_t offset;
} kvplan_view;
KVPLAN_C_API kvplan_status kvplan_plan_view(const kvplan_plan* plan, size_t worker, size_t tensor,
                                            kvplan_view* out);

/* Of a request of another length: the blocks of the pool that it holds, and how many such requests
 * run at once by vLLM's formula. Either may be null. */
KVPLAN_C_API kvplan_status kvplan_plan_at_length(const kvplan_plan* plan, int64_t max_model_len,
                                                 int64_t* request_blocks, double* max_concurrency);
/* Tokens between scheduler decisions, and tokens of a block hash. */
KVPLAN_C_API kvplan_status kvplan_plan_block_sizes(const kvplan_plan* plan,
                                                   int64_t* scheduler_block_size,
                                                   int64_t* hash_block_size);
/* The plan as text, valid until it is written again or destroyed; and the plan that was written,
 * equal in every number. KVPLAN_NOT_BUILT as above. */
KVPLAN_C_API kvplan_status kvplan_plan_write_json(kvplan_plan* plan, const char** json,
                                                  size_t* bytes);
KVPLAN_C_API kvplan_status kvplan_plan_read_json(const char* json, size_t bytes, kvplan_plan** out);

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
/* The same with events; more than max_events that nobody took are dropped for one `lost`. */
KVPLAN_C_API kvplan_status kvplan_pool_create_with_events(int64_t num_blocks,
                                                          int32_t enable_caching,
                                                          int64_t max_events, kvplan_pool** out);
/* The pool of a plan none of whose groups cuts blocks into slices. */
KVPLAN_C_API kvplan_status kvplan_pool_create_from_plan(const kvplan_plan* plan,
                                                        int32_t enable_caching, kvplan_pool** out);
KVPLAN_C_API void kvplan_pool_destroy(kvplan_pool* pool);
/* 0 for a null pool, as the next two. */
KVPLAN_C_API int64_t kvplan_pool_num_blocks(const kvplan_pool* pool);
KVPLAN_C_API int64_t kvplan_pool_num_free(const kvplan_pool* pool);
/* Distinct hashes in the prefix cache. */
KVPLAN_C_API int64_t kvplan_pool_num_cached_hashes(const kvplan_pool* pool);
/* Holders of a block. */
KVPLAN_C_API kvplan_status kvplan_pool_ref_count(const kvplan_pool* pool, int32_t block,
                                                 int32_t* count);
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
/* Blocks of the longest cached prefix of `count` hashes: sets the first *num_found of `blocks`,
 * which has room for all. */
KVPLAN_C_API kvplan_status kvplan_pool_find_prefix(const kvplan_pool* pool, const void* hashes,
                                                   size_t count, size_t hash_bytes, uint16_t group,
                                                   int32_t* blocks, size_t* num_found);
/* A block for each group under one hash; *found is 0, and `blocks` unspecified, if a group has
 * none. */
KVPLAN_C_API kvplan_status kvplan_pool_find_in_groups(const kvplan_pool* pool, const void* hash,
                                                      size_t hash_bytes, const uint16_t* groups,
                                                      size_t num_groups, int32_t* blocks,
                                                      int32_t* found);
/* Forgets what the blocks cache. */
KVPLAN_C_API kvplan_status kvplan_pool_evict(kvplan_pool* pool, const int32_t* blocks,
                                             size_t count);
/* Forgets everything cached; *done is 0, and nothing happens, while a block is in use. */
KVPLAN_C_API kvplan_status kvplan_pool_reset(kvplan_pool* pool, int32_t* done);

typedef struct kvplan_bytes {
  const void* data;
  size_t size;
} kvplan_bytes;
typedef enum kvplan_event_kind {
  KVPLAN_EVENT_STORED = 0,  /* hashes became reachable, in the order of the request's blocks */
  KVPLAN_EVENT_REMOVED = 1, /* the one hash no longer leads to the block */
  KVPLAN_EVENT_CLEARED = 2, /* the whole prefix cache was reset */
  KVPLAN_EVENT_LOST = 3     /* num_lost events were dropped here */
} kvplan_event_kind;
/* Something an observer of the prefix cache must know, in the order it happened. */
typedef struct kvplan_event {
  int32_t kind; /* kvplan_event_kind */
  uint16_t group;
  uint16_t still_cached; /* removed: the hash leads to another block now */
  int64_t block_size;    /* tokens per hash */
  int64_t num_lost;
  size_t num_hashes;
  const kvplan_bytes* hashes;
  const int32_t* blocks;    /* one per hash */
  const int64_t* positions; /* stored: one per hash, in blocks from the request's start */
  kvplan_bytes parent_hash; /* before hashes[0]; null for a request's first block */
} kvplan_event;
/* The events since the last call, valid until the next. */
KVPLAN_C_API kvplan_status kvplan_pool_take_events(kvplan_pool* pool, const kvplan_event** events,
                                                   size_t* count);
/* Re-points all hashes of `source` to `destination`, which must have none. */
KVPLAN_C_API kvplan_status kvplan_pool_move_hashes(kvplan_pool* pool, int32_t source,
                                                   int32_t destination);
/* Told that the contents of a block are given up; `group` is 0 in a pool without slices. */
typedef void (*kvplan_on_reuse)(void* user, uint16_t group, int32_t block);
/* Told of cached blocks that are about to be reused, while they still have their hashes. It may
 * read the pool and not change it. Null: nobody is told. */
typedef void (*kvplan_on_eviction)(void* user, const int32_t* blocks, size_t count);
KVPLAN_C_API kvplan_status kvplan_pool_set_eviction_hook(kvplan_pool* pool,
                                                         kvplan_on_eviction on_eviction,
                                                         void* user);
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
KVPLAN_C_API kvplan_status kvplan_sliced_pool_create_with_events(
    int64_t num_large_blocks, const int64_t* slices, size_t num_groups, int32_t enable_caching,
    double own_first_above, int64_t max_events, kvplan_sliced_pool** out);
/* The pool of any plan; without slices each block of the pool is one block of one group. */
KVPLAN_C_API kvplan_status kvplan_sliced_pool_create_from_plan(const kvplan_plan* plan,
                                                               int32_t enable_caching,
                                                               double own_first_above,
                                                               kvplan_sliced_pool** out);
KVPLAN_C_API void kvplan_sliced_pool_destroy(kvplan_sliced_pool* pool);
/* 0 for a null pool. */
KVPLAN_C_API int64_t kvplan_sliced_pool_num_cached_hashes(const kvplan_sliced_pool* pool);
/* Holders of a block. */
KVPLAN_C_API kvplan_status kvplan_sliced_pool_ref_count(const kvplan_sliced_pool* pool,
                                                        uint16_t group, int32_t block,
                                                        int32_t* count);
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
/* As the functions of the plain pool. */
KVPLAN_C_API kvplan_status kvplan_sliced_pool_find_prefix(const kvplan_sliced_pool* pool,
                                                          const void* hashes, size_t count,
                                                          size_t hash_bytes, uint16_t group,
                                                          int32_t* blocks, size_t* num_found);
KVPLAN_C_API kvplan_status kvplan_sliced_pool_find_in_groups(const kvplan_sliced_pool* pool,
                                                             const void* hash, size_t hash_bytes,
                                                             const uint16_t* groups,
                                                             size_t num_groups, int32_t* blocks,
                                                             int32_t* found);
KVPLAN_C_API kvplan_status kvplan_sliced_pool_evict(kvplan_sliced_pool* pool, uint16_t group,
                                                    const int32_t* blocks, size_t count);
KVPLAN_C_API kvplan_status kvplan_sliced_pool_reset(kvplan_sliced_pool* pool, int32_t* done);
KVPLAN_C_API kvplan_status kvplan_sliced_pool_take_events(kvplan_sliced_pool* pool,
                                                          const kvplan_event** events,
                                                          size_t* count);
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

/* --- the cache manager --------------------------------------------------------------------------
 * Decides which blocks every request holds; kvplan/cache_manager.h has each rule, under the same
 * names. A request is a small integer, reused after it was removed. */

typedef enum kvplan_cache_kind {
  KVPLAN_FULL_ATTENTION = 0,
  KVPLAN_RSWA = 1,
  KVPLAN_SLIDING_WINDOW = 2,
  KVPLAN_CHUNKED_LOCAL = 3,
  KVPLAN_MAMBA = 4,
  KVPLAN_CROSS_ATTENTION = 5,
  KVPLAN_CIRCULAR_BUFFER = 6
} kvplan_cache_kind;

typedef struct kvplan_cache_group {
  size_t struct_size;
  int32_t kind;        /* kvplan_cache_kind */
  int32_t dcp_sharded; /* a block covers block_size * dcp_world_size tokens */
  int64_t block_size;  /* tokens of a block on one rank */
  int64_t window;      /* tokens: sliding window, attention chunk, or window of RSWA */
  int32_t is_eagle_group;
  int32_t is_zeroed;   /* new blocks are reported where needs_zeroing is set */
  int32_t mamba_align; /* cache mode "align"; else "none" or "all" */
  int32_t prefix_cacheable;
  int64_t extra_retained_tokens;
  int64_t num_speculative_blocks;
  int64_t num_prefill_checkpoint_blocks;
  int64_t prefill_checkpoint_alignment; /* -1: none */
  int64_t same_spec_as; /* the first group with an equal spec; -1: none. Both are found together */
  int64_t slices;       /* blocks that the group cuts each block of the pool into */
} kvplan_cache_group;

typedef struct kvplan_manager_options {
  size_t struct_size;
  int64_t num_blocks; /* of the pool, the null block included */
  int64_t max_model_len;
  int64_t scheduler_block_size; /* tokens; -1, as in the next two: as vLLM resolves it */
  int64_t hash_block_size;
  int64_t max_in_flight_tokens;
  int32_t enable_caching;
  int32_t use_eagle;
  int64_t num_hash_lookahead_tokens;
  int64_t num_prefill_lookahead;
  int32_t enable_events;
  int32_t needs_zeroing;
  int64_t dcp_world_size;
  int64_t pcp_world_size;
  double watermark;           /* share of the blocks that an admission leaves free */
  int64_t retention_interval; /* tokens; -1: windows and states are cached densely */
  int64_t hash_bytes;         /* of one block hash, at most 32 */
  int32_t enable_mamba_shared_prefix_checkpoint;
  int32_t unused; /* 0 */
} kvplan_manager_options;

/* Sets struct_size and the defaults. */
KVPLAN_C_API kvplan_status kvplan_cache_group_init(kvplan_cache_group* group, size_t struct_size);
KVPLAN_C_API kvplan_status kvplan_manager_options_init(kvplan_manager_options* options,
                                                       size_t struct_size);
/* What the plan decides, to be changed and handed to kvplan_manager_create_from_plan. Where
 * lookahead_hashes is not 0, as vLLM's default, hashes cover num_hash_lookahead_tokens behind their
 * block. */
KVPLAN_C_API kvplan_status kvplan_plan_manager_options(const kvplan_plan* plan,
                                                       int32_t lookahead_hashes,
                                                       kvplan_manager_options* out);
KVPLAN_C_API kvplan_status kvplan_plan_cache_group(const kvplan_plan* plan, size_t group,
                                                   kvplan_cache_group* out);

typedef struct kvplan_manager kvplan_manager;
/* All groups have the same struct_size. */
KVPLAN_C_API kvplan_status kvplan_manager_create(const kvplan_manager_options* options,
                                                 const kvplan_cache_group* groups,
                                                 size_t num_groups, kvplan_manager** out);
/* With the plan's groups, and with its options where `options` is null. */
KVPLAN_C_API kvplan_status kvplan_manager_create_from_plan(const kvplan_plan* plan,
                                                           const kvplan_manager_options* options,
                                                           kvplan_manager** out);
KVPLAN_C_API void kvplan_manager_destroy(kvplan_manager* manager);
/* The manager's pool, as a handle of its own, which may live longer. */
KVPLAN_C_API kvplan_status kvplan_manager_pool(kvplan_manager* manager, kvplan_pool** out);
/* The same where groups cut blocks into slices; each call refuses the other kind. */
KVPLAN_C_API kvplan_status kvplan_manager_sliced_pool(kvplan_manager* manager,
                                                      kvplan_sliced_pool** out);

typedef struct kvplan_manager_state {
  size_t struct_size;
  int64_t num_groups;
  int64_t num_requests;
  int64_t num_blocks;
  int64_t num_free_blocks;
  int64_t scheduler_block_size;
  int64_t hash_block_size;
  int64_t num_hash_lookahead_tokens;
  int64_t hit_alignment; /* tokens */
  int64_t watermark_blocks;
  int32_t enable_partial_hits;
  int32_t mamba_shared_prefix_checkpoint;
  double usage; /* share of the blocks in use */
} kvplan_manager_state;
KVPLAN_C_API kvplan_status kvplan_manager_get_state(const kvplan_manager* manager,
                                                    kvplan_manager_state* out);
/* Tokens of a group's block over all ranks. */
KVPLAN_C_API kvplan_status kvplan_manager_block_size(const kvplan_manager* manager, size_t group,
                                                     int64_t* tokens);

/* Requests and their hashes. */

KVPLAN_C_API kvplan_status kvplan_manager_add_request(kvplan_manager* manager, int32_t* request);
/* Frees what the request holds, and forgets it. */
/* With slices, *starts_again is 1 if the request is to be freed, to have the pool to itself. */
KVPLAN_C_API kvplan_status kvplan_manager_starts_again(const kvplan_manager* manager,
                                                       int32_t request, int32_t* starts_again);
KVPLAN_C_API kvplan_status kvplan_manager_remove_request(kvplan_manager* manager, int32_t request);
/* `count` hashes of hash_bytes each of the request's next tokens, chained. */
KVPLAN_C_API kvplan_status kvplan_manager_append_hashes(kvplan_manager* manager, int32_t request,
                                                        const void* hashes, size_t count);
/* Keeps the first `count` hashes. */
KVPLAN_C_API kvplan_status kvplan_manager_truncate_hashes(kvplan_manager* manager, int32_t request,
                                                          int64_t count);
KVPLAN_C_API kvplan_status kvplan_manager_num_hashes(const kvplan_manager* manager, int32_t request,
                                                     int64_t* count);

/* Prefix cache. */

/* What a lookup found: reuse one. */
typedef struct kvplan_hit kvplan_hit;
KVPLAN_C_API kvplan_status kvplan_hit_create(kvplan_hit** out);
KVPLAN_C_API void kvplan_hit_destroy(kvplan_hit* hit);
typedef struct kvplan_hit_summary {
  size_t struct_size;
  int64_t num_tokens;
  int64_t shared_prefix_boundary; /* tokens; 0: none */
  int32_t diverged;               /* some group's hit is shorter (connectors) */
  int32_t is_empty;               /* no group has a block */
} kvplan_hit_summary;
KVPLAN_C_API kvplan_status kvplan_hit_get_summary(const kvplan_hit* hit, kvplan_hit_summary* out);
/* Valid until the hit is changed. 0 where a window needs no block. */
KVPLAN_C_API kvplan_status kvplan_hit_blocks(const kvplan_hit* hit, size_t group,
                                             const int32_t** blocks, size_t* count);
/* The longest cached prefix of at most max_tokens tokens; holds nothing. */
KVPLAN_C_API kvplan_status kvplan_manager_find_prefix(const kvplan_manager* manager,
                                                      int32_t request, int64_t max_tokens,
                                                      kvplan_hit* hit);
KVPLAN_C_API kvplan_status kvplan_manager_find_prefix_for_connector(const kvplan_manager* manager,
                                                                    int32_t request,
                                                                    int64_t max_tokens,
                                                                    kvplan_hit* hit);
/* The same, and holds what it found until an allocation takes the hit over, or until it is
 * released, the request freed or removed. */
KVPLAN_C_API kvplan_status kvplan_manager_hold_prefix(kvplan_manager* manager, int32_t request,
                                                      int64_t max_tokens, kvplan_hit* hit);
KVPLAN_C_API kvplan_status kvplan_manager_release_hold(kvplan_manager* manager, int32_t request);
/* Shortens a hit to a multiple of every block. */
KVPLAN_C_API kvplan_status kvplan_manager_truncate_prefix(const kvplan_manager* manager,
                                                          kvplan_hit* hit, int64_t num_tokens);
/* Stored events for the blocks of a hit. */
KVPLAN_C_API kvplan_status kvplan_manager_emit_cached_block_events(kvplan_manager* manager,
                                                                   int32_t request,
                                                                   const kvplan_hit* hit);
/* Longest prefix of the request that every cacheable group has cached, in tokens. */
KVPLAN_C_API kvplan_status kvplan_manager_estimate_cached_tokens(const kvplan_manager* manager,
                                                                 int32_t request, int64_t* tokens);
KVPLAN_C_API kvplan_status kvplan_manager_evict(kvplan_manager* manager, const int32_t* blocks,
                                                size_t count);
/* *done is 0, and nothing happens, while a block is in use. */
KVPLAN_C_API kvplan_status kvplan_manager_reset_prefix_cache(kvplan_manager* manager,
                                                             int32_t* done);

typedef struct kvplan_prefix_cache_stats {
  size_t struct_size;
  int64_t requests;
  int64_t queries; /* tokens, as hits */
  int64_t hits;
  int64_t preempted_requests;
  int64_t preempted_queries;
  int64_t preempted_hits;
  int32_t reset;
} kvplan_prefix_cache_stats;
/* Counts a lookup. */
KVPLAN_C_API kvplan_status kvplan_manager_record_prefix_cache_stats(kvplan_manager* manager,
                                                                    int64_t num_tokens,
                                                                    int64_t num_hits,
                                                                    int32_t preempted);
/* Counts since the last call. */
KVPLAN_C_API kvplan_status kvplan_manager_take_prefix_cache_stats(kvplan_manager* manager,
                                                                  kvplan_prefix_cache_stats* out);

/* Allocation. */

/* A request as its scheduler sees it at the time of a call. */
typedef struct kvplan_request_tokens {
  size_t struct_size;
  int64_t num_tokens;          /* prompt and outputs known so far */
  int64_t num_prompt_tokens;   /* of these */
  int64_t num_computed_tokens; /* steps in flight included */
  int64_t num_in_flight_tokens;
  int64_t shared_prefix_boundary; /* the hit's, from when it was admitted */
} kvplan_request_tokens;
typedef struct kvplan_allocation {
  size_t struct_size;
  int64_t num_new_tokens; /* drafts included */
  int64_t num_new_computed_tokens;
  int64_t num_external_computed_tokens;
  int64_t num_lookahead_tokens;
  int64_t num_encoder_tokens;
  int64_t reserved_blocks;
  int32_t delay_cache_blocks;
  int32_t full_sequence_must_fit;
  int32_t apply_watermark;
  int32_t unused; /* 0 */
  const uint16_t* skip_zeroing_groups;
  size_t num_skip_zeroing_groups;
} kvplan_allocation;
/* `hit` may be null. *fits is 0 if the blocks do not fit. */
KVPLAN_C_API kvplan_status kvplan_manager_allocate(kvplan_manager* manager, int32_t request,
                                                   const kvplan_request_tokens* tokens,
                                                   const kvplan_allocation* allocation,
                                                   const kvplan_hit* hit, int32_t* fits);
/* The group's new blocks of the last allocation that fitted, valid until the next. */
KVPLAN_C_API kvplan_status kvplan_manager_new_blocks(const kvplan_manager* manager, size_t group,
                                                     const int32_t** blocks, size_t* count);
/* While computed, new and lookahead tokens are fewer, an allocation has nothing to do. */
KVPLAN_C_API kvplan_status kvplan_manager_quiet_until(const kvplan_manager* manager,
                                                      int32_t request, int64_t* tokens);
typedef struct kvplan_demand {
  size_t struct_size;
  int64_t num_tokens;
  int64_t num_tokens_main_model;
  int64_t num_encoder_tokens;
  int64_t total_computed_tokens;
  int64_t num_local_computed_tokens;
  int64_t prefill_end;
  int32_t apply_admission_cap;
  int32_t unused; /* 0 */
} kvplan_demand;
KVPLAN_C_API kvplan_status kvplan_manager_num_blocks_to_allocate(kvplan_manager* manager,
                                                                 int32_t request,
                                                                 const kvplan_demand* demand,
                                                                 const kvplan_hit* hit,
                                                                 int64_t* num_blocks);

/* A decode step of many requests: arrays with an element a request. Null arrays of new tokens mean
 * one each, of tokens: computed and new ones, of tokens in flight: none. */
typedef struct kvplan_step {
  size_t struct_size;
  const int32_t* requests;
  size_t num_requests;
  const int64_t* num_computed_tokens;
  const int64_t* num_new_tokens;
  const int64_t* num_tokens;
  const int64_t* num_in_flight_tokens;
  int64_t num_lookahead_tokens;
} kvplan_step;
typedef struct kvplan_appended_block {
  int32_t row; /* index of the request in the step */
  int32_t group;
  int32_t position; /* in the request's block table */
  int32_t block;
} kvplan_appended_block;
typedef enum kvplan_stop {
  KVPLAN_STOP_DONE = 0,
  KVPLAN_STOP_NO_BLOCKS = 1, /* request num_scheduled does not fit into the pool */
  KVPLAN_STOP_NO_ROOM = 2    /* its blocks do not fit into `appended` */
} kvplan_stop;
typedef struct kvplan_step_result {
  size_t struct_size;
  size_t num_scheduled;
  size_t num_appended;
  int32_t stop; /* kvplan_stop */
} kvplan_step_result;
KVPLAN_C_API kvplan_status kvplan_manager_schedule(kvplan_manager* manager, const kvplan_step* step,
                                                   kvplan_appended_block* appended, size_t capacity,
                                                   kvplan_step_result* out);
KVPLAN_C_API kvplan_status kvplan_manager_commit(kvplan_manager* manager, int32_t request,
                                                 const kvplan_request_tokens* tokens,
                                                 int64_t num_computed_tokens);

/* A second request with the first num_computed_tokens tokens of this one; what both write is
 * copied. *made is -1 if the pool has no blocks for the copies. */
KVPLAN_C_API kvplan_status kvplan_manager_fork(kvplan_manager* manager, int32_t request,
                                               int64_t num_computed_tokens, int32_t* made);

/* Release. */

/* Takes back what the request got and cached for tokens after the first num_computed_tokens. */
KVPLAN_C_API kvplan_status kvplan_manager_revert(kvplan_manager* manager, int32_t request,
                                                 int64_t num_computed_tokens);
/* num_prompt_tokens: -1 where it is not known. */
KVPLAN_C_API kvplan_status kvplan_manager_remove_skipped_blocks(kvplan_manager* manager,
                                                                int32_t request,
                                                                int64_t num_processed_tokens,
                                                                int64_t num_prompt_tokens);
/* Frees all blocks; the request stays known and can be allocated again: a preemption. */
KVPLAN_C_API kvplan_status kvplan_manager_free(kvplan_manager* manager, int32_t request);
/* The same, but the blocks stay held: kvplan_pool_free takes them, last first. Valid until the next
 * such call. */
KVPLAN_C_API kvplan_status kvplan_manager_pop_blocks(kvplan_manager* manager, int32_t request,
                                                     const int32_t** blocks, size_t* count);

/* State of a request. */

/* *count is the length of the block table; its first `capacity` ids are copied. */
KVPLAN_C_API kvplan_status kvplan_manager_block_ids(const kvplan_manager* manager, int32_t request,
                                                    size_t group, int32_t* blocks, size_t capacity,
                                                    size_t* count);
KVPLAN_C_API kvplan_status kvplan_manager_num_blocks_for_computed_tokens(
    const kvplan_manager* manager, int32_t request, size_t group, int64_t num_computed_tokens,
    int64_t* num_blocks);
/* Leading blocks that all requests with blocks share. */
KVPLAN_C_API kvplan_status kvplan_manager_num_common_prefix_blocks(const kvplan_manager* manager,
                                                                   int32_t request, size_t group,
                                                                   int64_t* num_blocks);

/* What a step has left to do. What is taken is valid until the same is taken again. */

KVPLAN_C_API kvplan_status kvplan_manager_new_step_starts(kvplan_manager* manager);
/* Blocks to zero before use; refused with slices if there are any. */
KVPLAN_C_API kvplan_status kvplan_manager_take_new_block_ids(kvplan_manager* manager,
                                                             const int32_t** blocks, size_t* count);
KVPLAN_C_API kvplan_status kvplan_manager_take_group_block_ids(kvplan_manager* manager,
                                                               size_t group, const int32_t** blocks,
                                                               size_t* count);
KVPLAN_C_API kvplan_status kvplan_manager_record_blocks_for_zeroing(kvplan_manager* manager,
                                                                    int32_t request,
                                                                    int64_t start_token);
typedef struct kvplan_block_copy {
  int32_t source;
  int32_t destination;
  int32_t group;
} kvplan_block_copy;
/* Copies to make before the step runs. Both ends are held until kvplan_pool_free, or with slices
 * kvplan_sliced_pool_free, gets them. */
KVPLAN_C_API kvplan_status kvplan_manager_take_copies(kvplan_manager* manager,
                                                      const kvplan_block_copy** copies,
                                                      size_t* count);
typedef struct kvplan_boundary_state {
  int32_t request;
  int32_t group;
  int32_t block;
  int32_t unused; /* 0 */
  int64_t num_tokens;
} kvplan_boundary_state;
/* State blocks that a connector can store. */
KVPLAN_C_API kvplan_status kvplan_manager_take_boundary_states(kvplan_manager* manager,
                                                               const kvplan_boundary_state** states,
                                                               size_t* count);
KVPLAN_C_API kvplan_status kvplan_manager_finalize_partial_tails(
    kvplan_manager* manager, int32_t request, int64_t num_computed_tokens,
    int64_t num_in_flight_tokens, const kvplan_boundary_state** states, size_t* count);
KVPLAN_C_API kvplan_status kvplan_manager_take_events(kvplan_manager* manager,
                                                      const kvplan_event** events, size_t* count);
typedef struct kvplan_manager_counters {
  size_t struct_size;
  int64_t num_requests;
  int64_t num_free_blocks;
  int64_t num_cached_hashes;
  int64_t num_queried_tokens; /* of all lookups that were recorded, never reset */
  int64_t num_hit_tokens;
} kvplan_manager_counters;
/* For any thread, while another one calls the manager. */
KVPLAN_C_API kvplan_status kvplan_manager_get_counters(const kvplan_manager* manager,
                                                       kvplan_manager_counters* out);
/* KVPLAN_BLOCK_POOL if tables, pool and counters contradict each other. */
KVPLAN_C_API kvplan_status kvplan_manager_check_invariants(const kvplan_manager* manager);

#ifdef __cplusplus
}
#endif

#endif /* KVPLAN_C_API_H_ */
