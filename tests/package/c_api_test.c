/* The C interface from C: plan, read, allocate; and what goes wrong without a crash. */
#include "kvplan/c_api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REQUIRE(condition)                                                           \
  do {                                                                               \
    if (!(condition)) {                                                              \
      fprintf(stderr, "%s:%d: %s; last error: %s\n", __FILE__, __LINE__, #condition, \
              kvplan_last_error());                                                  \
      exit(1);                                                                       \
    }                                                                                \
  } while (0)

/* Says the size of a struct that the library fills. */
#define SIZED(structure) ((structure).struct_size = sizeof(structure), &(structure))

/* Six layers, two sliding and one full in turn, on two workers with so many bytes and twice that.
 * `config` has the fields besides max_model_len, each with a comma before it. */
static kvplan_status plan_six_layers(int64_t bytes, int64_t max_model_len, const char* config,
                                     kvplan_plan** plan) {
  char json[2048];
  const int length = snprintf(
      json, sizeof json,
      "{\"kvplan_request\": 1, \"config\": {\"max_model_len\": %lld%s}, \"specs\": ["
      "{\"kind\": \"FullAttentionSpec\", \"block_size\": 16, \"num_kv_heads\": 8,"
      " \"head_size\": 128, \"dtype\": \"bfloat16\"},"
      "{\"kind\": \"SlidingWindowSpec\", \"block_size\": 16, \"num_kv_heads\": 8,"
      " \"head_size\": 128, \"dtype\": \"bfloat16\", \"sliding_window\": 1024}], \"workers\": ["
      "{\"available_memory\": %lld, \"layers\": [[\"layers.0\", 1], [\"layers.1\", 1],"
      " [\"layers.2\", 0], [\"layers.3\", 1], [\"layers.4\", 1], [\"layers.5\", 0]]},"
      "{\"available_memory\": %lld, \"same_layers_as\": 0}]}",
      (long long)max_model_len, config, (long long)bytes, (long long)(2 * bytes));
  REQUIRE(length > 0 && (size_t)length < sizeof json);
  return kvplan_plan_create_from_json(json, (size_t)length, plan);
}

/* A plan asked for more than its own length, kept as text, and its pool. */
static void plan_at_other_lengths(kvplan_plan* plan, const kvplan_summary* summary) {
  int64_t blocks = 0;
  int64_t scheduler = 0;
  int64_t hash = 0;
  double requests = 0;
  kvplan_view view;
  kvplan_summary again;
  kvplan_plan* read = NULL;
  kvplan_pool* pool = NULL;
  const char* json = NULL;
  size_t bytes = 0;
  REQUIRE(kvplan_plan_at_length(plan, summary->max_model_len, &blocks, &requests) == KVPLAN_OK);
  REQUIRE(blocks == summary->request_blocks && requests == summary->max_concurrency);
  REQUIRE(kvplan_plan_at_length(plan, summary->max_model_len / 2, &blocks, NULL) == KVPLAN_OK);
  REQUIRE(blocks < summary->request_blocks);
  REQUIRE(kvplan_plan_at_length(plan, 0, &blocks, &requests) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(kvplan_plan_block_sizes(plan, &scheduler, &hash) == KVPLAN_OK);
  REQUIRE(hash > 0 && scheduler % hash == 0);
  REQUIRE(kvplan_plan_view(plan, 1, 0, SIZED(view)) == KVPLAN_OK);
  REQUIRE(view.shape[1] == summary->num_blocks && view.group < 3);
  REQUIRE(kvplan_plan_view(plan, 1, 99, SIZED(view)) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(kvplan_pool_create_from_plan(plan, 1, &pool) == KVPLAN_OK);
  REQUIRE(kvplan_pool_num_blocks(pool) == summary->num_blocks);
  kvplan_pool_destroy(pool);
  if (kvplan_plan_write_json(plan, &json, &bytes) == KVPLAN_NOT_BUILT) return;
  REQUIRE(kvplan_plan_read_json(json, bytes, &read) == KVPLAN_OK);
  REQUIRE(kvplan_plan_summary(read, SIZED(again)) == KVPLAN_OK);
  REQUIRE(memcmp(&again, summary, sizeof(again)) == 0);
  kvplan_plan_destroy(read);
  REQUIRE(kvplan_plan_read_json("{}", 2, &read) == KVPLAN_INVALID_ARGUMENT && read == NULL);
}

static void plans_and_reads(void) {
  kvplan_plan* plan = NULL;
  kvplan_summary summary;
  kvplan_worker worker;
  kvplan_group group;
  kvplan_tensor tensor;
  size_t placed = 0;
  size_t t;
  REQUIRE(plan_six_layers((int64_t)1 << 30, 65536, "", &plan) == KVPLAN_OK);
  REQUIRE(kvplan_plan_check(plan) == KVPLAN_OK);
  REQUIRE(kvplan_plan_summary(plan, SIZED(summary)) == KVPLAN_OK);
  REQUIRE(summary.max_model_len == 65536);
  REQUIRE(summary.usable_concurrency < summary.max_concurrency);
  REQUIRE(summary.num_groups == 3 && summary.num_workers == 2);
  REQUIRE(summary.bytes_per_block == 2 * 65536);
  REQUIRE(summary.num_blocks == ((int64_t)1 << 30) / (2 * 65536));
  REQUIRE(summary.limiting_worker == 0);
  REQUIRE(summary.usable_capacity_tokens < summary.capacity_tokens);
  REQUIRE(kvplan_plan_group(plan, 0, SIZED(group)) == KVPLAN_OK);
  REQUIRE(group.num_layers == 2 && group.block_size == 16);
  REQUIRE(strcmp(kvplan_plan_layer_name(plan, group.layers[0]), "layers.0") == 0);
  REQUIRE(kvplan_plan_worker(plan, 1, SIZED(worker)) == KVPLAN_OK);
  REQUIRE(worker.buffer_bytes == summary.num_blocks * summary.bytes_per_block);
  for (t = 0; t < worker.num_tensors; ++t) {
    REQUIRE(kvplan_plan_tensor(plan, 1, t, SIZED(tensor)) == KVPLAN_OK);
    REQUIRE(tensor.size == worker.buffer_bytes);
    placed += tensor.num_layers;
  }
  REQUIRE(placed == 6);
  plan_at_other_lengths(plan, &summary);
  REQUIRE(kvplan_plan_group(plan, 3, SIZED(group)) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(strstr(kvplan_last_error(), "group 3 does not exist") != NULL);
  REQUIRE(kvplan_plan_worker(plan, 2, SIZED(worker)) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(kvplan_plan_tensor(plan, 0, 99, SIZED(tensor)) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(kvplan_plan_layer_name(plan, 6) == NULL);
  REQUIRE(kvplan_plan_layer_name(plan, -1) == NULL);
  REQUIRE(kvplan_plan_notice(plan, 1000) == NULL);
  kvplan_plan_destroy(plan);
}

static void says_what_is_missing(void) {
  kvplan_plan* plan = (kvplan_plan*)&plan;
  kvplan_shortage shortage;
  kvplan_summary summary;
  REQUIRE(plan_six_layers(1 << 24, 65536, "", &plan) == KVPLAN_NOT_ENOUGH_MEMORY);
  REQUIRE(plan == NULL);
  REQUIRE(strstr(kvplan_last_error(), "is needed") != NULL);
  REQUIRE(kvplan_last_shortage(SIZED(shortage)) == KVPLAN_OK);
  REQUIRE(shortage.worker == 0 && shortage.max_model_len == 65536);
  REQUIRE(shortage.needed_bytes > shortage.available_bytes);
  REQUIRE(plan_six_layers(1 << 24, 65536, ", \"auto_fit\": true", &plan) == KVPLAN_OK);
  REQUIRE(kvplan_plan_summary(plan, SIZED(summary)) == KVPLAN_OK);
  REQUIRE(summary.max_model_len == shortage.estimated_max_len);
  kvplan_plan_destroy(plan);
}

static void survives_bad_arguments(void) {
  kvplan_plan* plan = NULL;
  kvplan_pool* pool = NULL;
  kvplan_summary summary;
  int32_t block;
  REQUIRE(kvplan_plan_create_from_json(NULL, 0, &plan) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(kvplan_plan_create_from_json("{}", 2, NULL) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(kvplan_plan_create_from_json("{}", (size_t)-1, &plan) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(strstr(kvplan_last_error(), "18446744073709551615 bytes of JSON") != NULL);
  REQUIRE(kvplan_plan_summary(NULL, SIZED(summary)) == KVPLAN_INVALID_ARGUMENT);
  /* Counts whose products wrap around. */
  REQUIRE(kvplan_pool_create(5, 1, &pool) == KVPLAN_OK);
  REQUIRE(kvplan_pool_allocate(pool, &block, (size_t)-4) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(kvplan_pool_cache(pool, &block, (size_t)1 << 60, "hash", 16, 16, 0) ==
          KVPLAN_INVALID_ARGUMENT);
  REQUIRE(kvplan_pool_cache(pool, &block, 1, "hash", (size_t)1 << 60, 16, 0) ==
          KVPLAN_INVALID_ARGUMENT);
  REQUIRE(kvplan_pool_num_free(pool) == 4);
  kvplan_pool_destroy(pool);
  kvplan_plan_destroy(NULL);
  kvplan_pool_destroy(NULL);
}

static void reads_json_strictly(void) {
  kvplan_plan* plan = NULL;
  REQUIRE(plan_six_layers(1 << 24, 0, "", &plan) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(plan_six_layers(1 << 24, 16, ", \"layout\": 6", &plan) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(plan == NULL && strstr(kvplan_last_error(), "unknown field 'layout'") != NULL);
  REQUIRE(plan_six_layers(1 << 24, 16, "}", &plan) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(strstr(kvplan_last_error(), "not a JSON request") != NULL);
  REQUIRE(kvplan_plan_create_from_json("{}", 2, &plan) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(strstr(kvplan_last_error(), "$: `kvplan_request` is missing") != NULL);
}

/* Of a build without a JSON library. */
static void says_that_json_is_missing(void) {
  kvplan_plan* plan = (kvplan_plan*)&plan;
  REQUIRE(plan_six_layers(1 << 24, 16, "", &plan) == KVPLAN_NOT_BUILT);
  REQUIRE(plan == NULL && strstr(kvplan_last_error(), "KVPLAN_JSON") != NULL);
}

static void hands_out_blocks(void) {
  kvplan_pool* pool = NULL;
  int32_t blocks[3];
  int32_t found;
  const char hashes[] = "hash-number-one-hash-number-two-";
  REQUIRE(kvplan_pool_create(0, 1, &pool) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(kvplan_pool_create(5, 1, &pool) == KVPLAN_OK);
  REQUIRE(kvplan_pool_num_free(pool) == 4);
  REQUIRE(kvplan_pool_allocate(pool, blocks, 3) == KVPLAN_OK);
  REQUIRE(blocks[0] != 0 && blocks[1] != blocks[0] && kvplan_pool_num_free(pool) == 1);
  REQUIRE(kvplan_pool_allocate(pool, blocks, 2) != KVPLAN_OK);
  REQUIRE(kvplan_pool_num_free(pool) == 1);
  REQUIRE(kvplan_pool_cache(pool, blocks, 2, hashes, 16, 16, 0) == KVPLAN_OK);
  REQUIRE(kvplan_pool_find(pool, hashes + 16, 16, 0, &found) == KVPLAN_OK);
  REQUIRE(found == blocks[1]);
  REQUIRE(kvplan_pool_find(pool, hashes, 15, 0, &found) == KVPLAN_OK);
  REQUIRE(found == -1);
  REQUIRE(kvplan_pool_touch(pool, blocks, 1) == KVPLAN_OK);
  REQUIRE(kvplan_pool_free(pool, blocks, 3) == KVPLAN_OK);
  REQUIRE(kvplan_pool_free(pool, blocks, 1) == KVPLAN_OK);
  REQUIRE(kvplan_pool_num_free(pool) == 4);
  REQUIRE(kvplan_pool_free(pool, blocks, 1) == KVPLAN_BLOCK_POOL);
  REQUIRE(kvplan_pool_num_free(pool) == 4);
  kvplan_pool_destroy(pool);
}

/* A plan with slices, and its pool: each group's slices share large blocks with the others'. */
static void plans_and_hands_out_slices(void) {
  static const char sliced[] =
      ", \"grouping\": \"sliced\", \"kv_cache_layout\": \"BLHNC\", \"min_large_blocks\": 100";
  kvplan_plan* plan = NULL;
  kvplan_summary summary;
  kvplan_group group;
  kvplan_pool* plain = NULL;
  kvplan_sliced_pool* pool = NULL;
  kvplan_slice_demand demands[2];
  int64_t slices[2];
  int32_t blocks[4096];
  size_t g;
  int32_t fits = -1;
  REQUIRE(plan_six_layers((int64_t)1 << 30, 16384, ", \"grouping\": \"sliced\"", &plan) ==
          KVPLAN_LAYOUT);
  REQUIRE(plan_six_layers((int64_t)1 << 30, 16384, sliced, &plan) == KVPLAN_OK);
  REQUIRE(kvplan_plan_check(plan) == KVPLAN_OK);
  REQUIRE(kvplan_plan_summary(plan, SIZED(summary)) == KVPLAN_OK);
  REQUIRE(summary.num_groups == 2);
  REQUIRE(kvplan_pool_create_from_plan(plan, 1, &plain) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(kvplan_sliced_pool_create_from_plan(plan, 1, 1.0 / 16, &pool) == KVPLAN_OK);
  kvplan_sliced_pool_destroy(pool);
  for (g = 0; g < 2; ++g) {
    REQUIRE(kvplan_plan_group(plan, g, SIZED(group)) == KVPLAN_OK);
    slices[g] = group.slices;
    demands[g].group = (uint16_t)g;
    demands[g].found = NULL;
    demands[g].num_found = 0;
    demands[g].num_new = group.pages_per_request;
  }
  kvplan_plan_destroy(plan);
  REQUIRE(slices[0] != slices[1]);
  REQUIRE(demands[0].num_new + demands[1].num_new <= 4096);
  REQUIRE(kvplan_sliced_pool_create(summary.num_blocks, slices, 2, 1, 1.0, &pool) == KVPLAN_OK);
  REQUIRE(kvplan_sliced_pool_can_allocate(pool, demands, 2, &fits) == KVPLAN_OK && fits == 1);
  REQUIRE(kvplan_sliced_pool_allocate(pool, demands, 2, blocks, 4096) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(kvplan_sliced_pool_allocate(pool, demands, 2, blocks,
                                      (size_t)(demands[0].num_new + demands[1].num_new)) ==
          KVPLAN_OK);
  REQUIRE(blocks[0] >= slices[0]);
  REQUIRE(kvplan_sliced_pool_free(pool, 0, blocks, (size_t)demands[0].num_new) == KVPLAN_OK);
  kvplan_sliced_pool_destroy(pool);
}

/* Three large blocks of the second group with 1, 3 and 2 of 4 slices in use. */
static void moves_slices(void) {
  static const int64_t slices[2] = {2, 4};
  static const int32_t freed[6] = {4, 5, 6, 8, 12, 13};
  kvplan_sliced_pool* pool = NULL;
  kvplan_slice_demand demand = {NULL, 0, 12, 1};
  kvplan_slice_move moves[8];
  kvplan_group_blocks pinned;
  int32_t pin = 7;
  int32_t blocks[12];
  int32_t found;
  int32_t fits;
  int64_t num_moves;
  int64_t num_free;
  REQUIRE(kvplan_sliced_pool_create(4, slices, 2, 1, 2.0, &pool) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(kvplan_sliced_pool_create(4, NULL, 2, 1, 1.0, &pool) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(pool == NULL);
  REQUIRE(kvplan_sliced_pool_create(4, slices, 2, 1, 1.0, &pool) == KVPLAN_OK);
  REQUIRE(kvplan_sliced_pool_allocate(pool, &demand, 1, blocks, 12) == KVPLAN_OK);
  REQUIRE(kvplan_sliced_pool_cache(pool, blocks + 3, 1, "hash", 4, 16, 1) == KVPLAN_OK);
  REQUIRE(kvplan_sliced_pool_free(pool, 1, freed, 6) == KVPLAN_OK);
  REQUIRE(kvplan_sliced_pool_free(pool, 1, freed, 1) == KVPLAN_BLOCK_POOL);
  REQUIRE(kvplan_sliced_pool_free(pool, 2, freed, 1) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(kvplan_sliced_pool_num_free(pool, 1, &num_free) == KVPLAN_OK && num_free == 6);
  demand.group = 0;
  demand.num_new = 2;
  REQUIRE(kvplan_sliced_pool_can_allocate(pool, &demand, 1, &fits) == KVPLAN_OK && fits == 0);
  REQUIRE(kvplan_sliced_pool_make_room(pool, &demand, 1, NULL, 0, NULL, 0, &num_moves) ==
          KVPLAN_OK);
  REQUIRE(num_moves == -1);
  pinned.group = 1;
  pinned.blocks = &pin;
  pinned.count = 1;
  REQUIRE(kvplan_sliced_pool_make_room(pool, &demand, 1, &pinned, 1, moves, 1, &num_moves) ==
          KVPLAN_OK);
  REQUIRE(num_moves == -1);
  REQUIRE(kvplan_sliced_pool_make_room(pool, &demand, 1, NULL, 1, moves, 1, &num_moves) ==
          KVPLAN_INVALID_ARGUMENT);
  REQUIRE(kvplan_sliced_pool_make_room(pool, &demand, 1, NULL, 0, moves, 8, NULL) ==
          KVPLAN_INVALID_ARGUMENT);
  REQUIRE(kvplan_sliced_pool_make_room(pool, &demand, 1, NULL, 0, moves, 8, &num_moves) ==
          KVPLAN_OK);
  REQUIRE(num_moves == 1 && moves[0].group == 1);
  REQUIRE(moves[0].source == 7 && moves[0].destination == 8);
  REQUIRE(kvplan_sliced_pool_find(pool, "hash", 4, 1, &found) == KVPLAN_OK && found == 8);
  REQUIRE(kvplan_sliced_pool_make_room(pool, &demand, 1, NULL, 0, moves, 8, &num_moves) ==
          KVPLAN_OK);
  REQUIRE(num_moves == 0);
  REQUIRE(kvplan_sliced_pool_allocate(pool, &demand, 1, blocks, 2) == KVPLAN_OK);
  REQUIRE(blocks[0] == 2 && blocks[1] == 3);
  REQUIRE(kvplan_sliced_pool_touch(pool, 1, &found, 1) == KVPLAN_OK);
  REQUIRE(kvplan_sliced_pool_touch(NULL, 1, &found, 1) == KVPLAN_INVALID_ARGUMENT);
  kvplan_sliced_pool_destroy(pool);
  kvplan_sliced_pool_destroy(NULL);
}

static void remembers(void* user, uint16_t group, int32_t block) {
  int32_t* last = user;
  last[0] = group;
  last[1] = block;
}

static void unpins_and_moves_hashes(void) {
  static const int64_t slices[2] = {2, 4};
  int32_t last[2] = {-1, -1};
  int32_t blocks[4];
  int32_t found;
  kvplan_slice_demand demand = {NULL, 0, 4, 1};
  kvplan_sliced_pool* sliced = NULL;
  kvplan_pool* pool = NULL;
  REQUIRE(kvplan_sliced_pool_create(2, slices, 2, 1, 1.0, &sliced) == KVPLAN_OK);
  REQUIRE(kvplan_sliced_pool_allocate(sliced, &demand, 1, blocks, 4) == KVPLAN_OK);
  REQUIRE(kvplan_sliced_pool_cache(sliced, blocks, 1, "hash", 4, 16, 1) == KVPLAN_OK);
  REQUIRE(kvplan_sliced_pool_move_hashes(sliced, 1, blocks[0], blocks[1]) == KVPLAN_OK);
  REQUIRE(kvplan_sliced_pool_find(sliced, "hash", 4, 1, &found) == KVPLAN_OK);
  REQUIRE(found == blocks[1]);
  REQUIRE(kvplan_sliced_pool_move_hashes(sliced, 1, blocks[1], blocks[1]) == KVPLAN_BLOCK_POOL);
  REQUIRE(kvplan_sliced_pool_move_hashes(NULL, 1, 4, 5) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(kvplan_sliced_pool_unpin(sliced, 1, blocks, 4, NULL, last) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(kvplan_sliced_pool_unpin(NULL, 1, blocks, 4, remembers, last) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(kvplan_sliced_pool_unpin(sliced, 1, NULL, 4, remembers, last) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(kvplan_sliced_pool_unpin(sliced, 1, blocks, 4, remembers, last) == KVPLAN_OK);
  REQUIRE(kvplan_sliced_pool_unpin(sliced, 1, blocks, 1, remembers, last) == KVPLAN_BLOCK_POOL);
  REQUIRE(last[1] == -1);
  demand.group = 0;
  demand.num_new = 1;
  REQUIRE(kvplan_sliced_pool_allocate(sliced, &demand, 1, blocks, 1) == KVPLAN_OK);
  REQUIRE(last[0] == 1 && last[1] == 7);
  kvplan_sliced_pool_destroy(sliced);

  REQUIRE(kvplan_pool_create(3, 1, &pool) == KVPLAN_OK);
  REQUIRE(kvplan_pool_allocate(pool, blocks, 2) == KVPLAN_OK);
  REQUIRE(kvplan_pool_cache(pool, blocks, 1, "hash", 4, 16, 0) == KVPLAN_OK);
  REQUIRE(kvplan_pool_move_hashes(pool, blocks[0], blocks[1]) == KVPLAN_OK);
  REQUIRE(kvplan_pool_find(pool, "hash", 4, 0, &found) == KVPLAN_OK && found == blocks[1]);
  REQUIRE(kvplan_pool_move_hashes(pool, 9, blocks[0]) == KVPLAN_BLOCK_POOL);
  REQUIRE(kvplan_pool_unpin(pool, blocks, 2, NULL, last) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(kvplan_pool_unpin(pool, blocks, 2, remembers, last) == KVPLAN_OK);
  REQUIRE(kvplan_pool_allocate(pool, blocks, 1) == KVPLAN_OK);
  REQUIRE(last[0] == 0 && last[1] == blocks[0]);
  kvplan_pool_destroy(pool);
}

static void finds_evicts_and_tells(void) {
  static const char hashes[] = "hash-1hash-2hash-3";
  static const uint16_t groups[2] = {0, 1};
  static const int64_t slices[2] = {2, 4};
  const kvplan_event* events;
  kvplan_slice_demand demand = {NULL, 0, 2, 1};
  kvplan_sliced_pool* sliced = NULL;
  kvplan_pool* pool = NULL;
  int32_t blocks[3];
  int32_t found[3];
  int32_t number;
  size_t count;
  REQUIRE(kvplan_pool_create_with_events(9, 1, 0, &pool) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(kvplan_pool_create_with_events(9, 1, 100, &pool) == KVPLAN_OK);
  REQUIRE(kvplan_pool_num_blocks(pool) == 9 && kvplan_pool_num_blocks(NULL) == 0);
  REQUIRE(kvplan_pool_allocate(pool, blocks, 3) == KVPLAN_OK);
  REQUIRE(kvplan_pool_cache(pool, blocks, 2, hashes, 6, 16, 0) == KVPLAN_OK);
  REQUIRE(kvplan_pool_cache(pool, blocks + 2, 1, hashes, 6, 16, 1) == KVPLAN_OK);
  REQUIRE(kvplan_pool_num_cached_hashes(pool) == 3);
  REQUIRE(kvplan_pool_ref_count(pool, blocks[0], &number) == KVPLAN_OK && number == 1);
  REQUIRE(kvplan_pool_ref_count(pool, 9, &number) == KVPLAN_BLOCK_POOL);
  REQUIRE(kvplan_pool_find_prefix(pool, hashes, 3, 6, 0, found, &count) == KVPLAN_OK);
  REQUIRE(count == 2 && found[0] == blocks[0] && found[1] == blocks[1]);
  REQUIRE(kvplan_pool_find_prefix(pool, hashes, 3, 6, 0, NULL, &count) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(kvplan_pool_find_in_groups(pool, hashes, 6, groups, 2, found, &number) == KVPLAN_OK);
  REQUIRE(number == 1 && found[0] == blocks[0] && found[1] == blocks[2]);
  REQUIRE(kvplan_pool_find_in_groups(pool, hashes + 6, 6, groups, 2, found, &number) == KVPLAN_OK);
  REQUIRE(number == 0);
  REQUIRE(kvplan_pool_evict(pool, blocks + 1, 1) == KVPLAN_OK);
  REQUIRE(kvplan_pool_reset(pool, &number) == KVPLAN_OK && number == 0);
  REQUIRE(kvplan_pool_free(pool, blocks, 3) == KVPLAN_OK);
  REQUIRE(kvplan_pool_reset(pool, &number) == KVPLAN_OK && number == 1);
  REQUIRE(kvplan_pool_take_events(pool, NULL, &count) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(kvplan_pool_take_events(pool, &events, &count) == KVPLAN_OK && count == 4);
  REQUIRE(events[0].kind == KVPLAN_EVENT_STORED && events[0].num_hashes == 2);
  REQUIRE(events[0].hashes[1].size == 6 && memcmp(events[0].hashes[1].data, "hash-2", 6) == 0);
  REQUIRE(events[0].blocks[1] == blocks[1] && events[0].positions[1] == 1);
  REQUIRE(events[0].parent_hash.data == NULL && events[0].block_size == 16);
  REQUIRE(events[1].group == 1);
  REQUIRE(events[2].kind == KVPLAN_EVENT_REMOVED && events[2].still_cached == 0);
  REQUIRE(events[3].kind == KVPLAN_EVENT_CLEARED);
  REQUIRE(kvplan_pool_take_events(pool, &events, &count) == KVPLAN_OK && count == 0);
  kvplan_pool_destroy(pool);

  REQUIRE(kvplan_sliced_pool_create_with_events(3, slices, 2, 1, 1.0, 10, &sliced) == KVPLAN_OK);
  REQUIRE(kvplan_sliced_pool_allocate(sliced, &demand, 1, blocks, 2) == KVPLAN_OK);
  REQUIRE(kvplan_sliced_pool_cache(sliced, blocks, 2, hashes, 6, 16, 1) == KVPLAN_OK);
  REQUIRE(kvplan_sliced_pool_num_cached_hashes(sliced) == 2);
  REQUIRE(kvplan_sliced_pool_ref_count(sliced, 1, blocks[1], &number) == KVPLAN_OK && number == 1);
  REQUIRE(kvplan_sliced_pool_find_prefix(sliced, hashes, 3, 6, 1, found, &count) == KVPLAN_OK);
  REQUIRE(count == 2 && found[1] == blocks[1]);
  REQUIRE(kvplan_sliced_pool_find_in_groups(sliced, hashes, 6, groups, 2, found, &number) ==
          KVPLAN_OK);
  REQUIRE(number == 0);
  REQUIRE(kvplan_sliced_pool_evict(sliced, 1, blocks, 1) == KVPLAN_OK);
  REQUIRE(kvplan_sliced_pool_free(sliced, 1, blocks, 2) == KVPLAN_OK);
  REQUIRE(kvplan_sliced_pool_reset(sliced, &number) == KVPLAN_OK && number == 1);
  REQUIRE(kvplan_sliced_pool_take_events(sliced, &events, &count) == KVPLAN_OK && count == 3);
  REQUIRE(events[1].kind == KVPLAN_EVENT_REMOVED && events[1].blocks[0] == blocks[0]);
  kvplan_sliced_pool_destroy(sliced);
}

/* `count` hashes of 32 bytes. */
static void make_hashes(unsigned char* hashes, size_t count, unsigned char seed) {
  size_t i;
  memset(hashes, seed, count * 32);
  for (i = 0; i < count; ++i) hashes[i * 32] = (unsigned char)i;
}

/* Blocks of 16 tokens: full attention and a window of 32 tokens. */
static kvplan_manager* make_manager(int64_t num_blocks) {
  kvplan_manager_options options;
  kvplan_cache_group groups[2];
  kvplan_manager* manager = NULL;
  size_t g;
  REQUIRE(kvplan_manager_options_init(&options, sizeof options) == KVPLAN_OK);
  options.num_blocks = num_blocks;
  options.max_model_len = 1000;
  options.enable_events = 1;
  for (g = 0; g < 2; ++g) {
    REQUIRE(kvplan_cache_group_init(&groups[g], sizeof groups[g]) == KVPLAN_OK);
    groups[g].block_size = 16;
  }
  groups[1].kind = KVPLAN_SLIDING_WINDOW;
  REQUIRE(kvplan_manager_create(&options, groups, 2, &manager) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(strstr(kvplan_last_error(), "group 1: window is 1 to") != NULL && manager == NULL);
  groups[1].window = 32;
  REQUIRE(kvplan_manager_create(&options, groups, 2, &manager) == KVPLAN_OK);
  return manager;
}

/* Admits a request of 100 tokens; its number, and how many tokens were found. */
static int32_t admit(kvplan_manager* manager, kvplan_hit* hit, int64_t* num_found) {
  kvplan_request_tokens tokens = {0};
  kvplan_allocation allocation = {0};
  kvplan_hit_summary found;
  unsigned char hashes[6 * 32];
  int32_t request;
  int32_t fits;
  make_hashes(hashes, 6, 7);
  REQUIRE(kvplan_manager_add_request(manager, &request) == KVPLAN_OK);
  REQUIRE(kvplan_manager_append_hashes(manager, request, hashes, 6) == KVPLAN_OK);
  REQUIRE(kvplan_manager_find_prefix(manager, request, 99, hit) == KVPLAN_OK);
  REQUIRE(kvplan_hit_get_summary(hit, SIZED(found)) == KVPLAN_OK);
  SIZED(tokens)->num_tokens = tokens.num_prompt_tokens = 100;
  SIZED(allocation)->num_new_tokens = 100 - found.num_tokens;
  allocation.num_new_computed_tokens = found.num_tokens;
  REQUIRE(kvplan_manager_allocate(manager, request, &tokens, &allocation, hit, &fits) == KVPLAN_OK);
  REQUIRE(fits == 1);
  REQUIRE(kvplan_manager_record_prefix_cache_stats(manager, 100, found.num_tokens, 0) == KVPLAN_OK);
  *num_found = found.num_tokens;
  return request;
}

static void manages_requests(void) {
  kvplan_manager* manager = make_manager(100);
  kvplan_manager_state state;
  kvplan_prefix_cache_stats stats;
  kvplan_step step = {0};
  kvplan_step_result done;
  kvplan_appended_block appended[4];
  kvplan_hit* hit = NULL;
  kvplan_pool* pool = NULL;
  const kvplan_boundary_state* states;
  const kvplan_block_copy* copies;
  const kvplan_event* events;
  const int32_t* blocks;
  int32_t requests[2];
  int64_t computed[2] = {100, 100};
  int64_t num_found;
  int64_t number;
  int32_t table[10];
  int32_t reset;
  size_t count;
  int i;
  REQUIRE(kvplan_hit_create(&hit) == KVPLAN_OK);
  requests[0] = admit(manager, hit, &num_found);
  REQUIRE(num_found == 0);
  REQUIRE(kvplan_manager_new_blocks(manager, 1, &blocks, &count) == KVPLAN_OK);
  REQUIRE(count == 7 && blocks[0] == 8);
  requests[1] = admit(manager, hit, &num_found);
  REQUIRE(num_found == 96 && requests[1] != requests[0]);
  REQUIRE(kvplan_hit_blocks(hit, 1, &blocks, &count) == KVPLAN_OK && count == 6);
  REQUIRE(blocks[3] == 0 && blocks[4] == 12);
  REQUIRE(kvplan_hit_blocks(hit, 2, &blocks, &count) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(kvplan_manager_block_ids(manager, requests[1], 0, table, 10, &count) == KVPLAN_OK);
  REQUIRE(count == 7 && table[0] == 1 && table[6] == 15);
  REQUIRE(kvplan_manager_block_ids(manager, requests[1], 0, NULL, 0, &count) == KVPLAN_OK);
  REQUIRE(count == 7);
  REQUIRE(kvplan_manager_num_common_prefix_blocks(manager, requests[0], 0, &number) == KVPLAN_OK);
  REQUIRE(number == 6);
  REQUIRE(kvplan_manager_estimate_cached_tokens(manager, requests[0], &number) == KVPLAN_OK);
  REQUIRE(number == 96);
  REQUIRE(kvplan_manager_num_blocks_for_computed_tokens(manager, requests[0], 0, 33, &number) ==
          KVPLAN_OK);
  REQUIRE(number == 3);

  /* 20 decode steps: a block for each group and request at token 113. */
  SIZED(step)->requests = requests;
  step.num_requests = 2;
  step.num_computed_tokens = computed;
  for (i = 0; i < 20; ++i) {
    REQUIRE(kvplan_manager_schedule(manager, &step, appended, 4, SIZED(done)) == KVPLAN_OK);
    REQUIRE(done.stop == KVPLAN_STOP_DONE && done.num_scheduled == 2);
    REQUIRE(done.num_appended == (i == 12 ? 4 : 0));
    ++computed[0];
    ++computed[1];
  }
  REQUIRE(kvplan_manager_quiet_until(manager, requests[0], &number) == KVPLAN_OK);
  REQUIRE(number == 112); /* the next full block, for which there is no hash yet */
  REQUIRE(appended[3].row == 1 && appended[3].group == 1 && appended[3].position == 7);
  REQUIRE(kvplan_manager_take_copies(manager, &copies, &count) == KVPLAN_OK && count == 0);
  REQUIRE(kvplan_manager_take_boundary_states(manager, &states, &count) == KVPLAN_OK);
  REQUIRE(count == 0);
  REQUIRE(kvplan_manager_finalize_partial_tails(manager, requests[0], 120, 0, &states, &count) ==
          KVPLAN_OK);
  REQUIRE(kvplan_manager_take_new_block_ids(manager, &blocks, &count) == KVPLAN_OK && count == 0);
  REQUIRE(kvplan_manager_new_step_starts(manager) == KVPLAN_OK);
  REQUIRE(kvplan_manager_take_events(manager, &events, &count) == KVPLAN_OK);
  REQUIRE(count == 2 && events[1].group == 1 && events[1].num_hashes == 6);

  /* Preempted, admitted again with what is cached, and gone. */
  REQUIRE(kvplan_manager_free(manager, requests[0]) == KVPLAN_OK);
  REQUIRE(kvplan_manager_find_prefix(manager, requests[0], 99, hit) == KVPLAN_OK);
  REQUIRE(kvplan_manager_truncate_prefix(manager, hit, 64) == KVPLAN_OK);
  REQUIRE(kvplan_manager_truncate_prefix(manager, hit, 65) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(kvplan_manager_remove_request(manager, requests[0]) == KVPLAN_OK);
  REQUIRE(kvplan_manager_pool(manager, &pool) == KVPLAN_OK);
  REQUIRE(kvplan_manager_reset_prefix_cache(manager, &reset) == KVPLAN_OK && reset == 0);
  REQUIRE(kvplan_manager_pop_blocks(manager, requests[1], &blocks, &count) == KVPLAN_OK);
  REQUIRE(count > 8 && kvplan_pool_num_free(pool) < 99);
  for (i = (int)count - 1; i >= 0; --i) {
    REQUIRE(kvplan_pool_free(pool, blocks + i, 1) == KVPLAN_OK);
  }
  REQUIRE(kvplan_manager_check_invariants(manager) == KVPLAN_OK);
  REQUIRE(kvplan_manager_reset_prefix_cache(manager, &reset) == KVPLAN_OK && reset == 1);
  REQUIRE(kvplan_manager_take_prefix_cache_stats(manager, SIZED(stats)) == KVPLAN_OK);
  REQUIRE(stats.requests == 2 && stats.queries == 200 && stats.hits == 96 && stats.reset == 1);
  REQUIRE(kvplan_manager_get_state(manager, SIZED(state)) == KVPLAN_OK);
  REQUIRE(state.num_groups == 2 && state.num_requests == 1 && state.num_free_blocks == 99);
  REQUIRE(state.hash_block_size == 16 && state.hit_alignment == 16 && state.usage == 0.0);
  kvplan_manager_destroy(manager);
  REQUIRE(kvplan_pool_num_free(pool) == 99); /* lives on */
  kvplan_pool_destroy(pool);
  kvplan_hit_destroy(hit);
}

static void counts_evicted(void* user, const int32_t* blocks, size_t count) {
  size_t* evicted = user;
  REQUIRE(blocks[0] != 0);
  *evicted += count;
}

static void holds_forks_and_reverts(void) {
  kvplan_manager* manager = make_manager(40);
  kvplan_manager_counters counters;
  kvplan_request_tokens tokens = {0};
  kvplan_allocation allocation = {0};
  kvplan_hit* hit = NULL;
  kvplan_pool* pool = NULL;
  const kvplan_block_copy* copies;
  int32_t blocks[39];
  int32_t request;
  int32_t child;
  int32_t fits;
  int64_t num_found;
  size_t evicted = 0;
  size_t count;
  REQUIRE(kvplan_hit_create(&hit) == KVPLAN_OK);
  request = admit(manager, hit, &num_found);
  REQUIRE(kvplan_manager_fork(manager, request, 100, &child) == KVPLAN_OK && child == 1);
  REQUIRE(kvplan_manager_fork(manager, request, 100, NULL) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(kvplan_manager_fork(manager, 7, 100, &child) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(kvplan_manager_take_copies(manager, &copies, &count) == KVPLAN_OK && count == 2);
  REQUIRE(kvplan_manager_pool(manager, &pool) == KVPLAN_OK);
  REQUIRE(kvplan_pool_free(pool, &copies[0].source, 2) == KVPLAN_OK);
  REQUIRE(kvplan_pool_free(pool, &copies[1].source, 2) == KVPLAN_OK);
  REQUIRE(kvplan_manager_remove_request(manager, 1) == KVPLAN_OK);

  SIZED(tokens)->num_tokens = 120;
  tokens.num_prompt_tokens = tokens.num_computed_tokens = 100;
  SIZED(allocation)->num_new_tokens = 20;
  REQUIRE(kvplan_manager_allocate(manager, request, &tokens, &allocation, NULL, &fits) ==
          KVPLAN_OK);
  REQUIRE(kvplan_manager_block_ids(manager, request, 0, NULL, 0, &count) == KVPLAN_OK &&
          count == 8);
  REQUIRE(kvplan_manager_revert(manager, request, 100) == KVPLAN_OK);
  REQUIRE(kvplan_manager_block_ids(manager, request, 0, NULL, 0, &count) == KVPLAN_OK &&
          count == 7);
  REQUIRE(kvplan_manager_revert(manager, request, -1) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(kvplan_manager_free(manager, request) == KVPLAN_OK);

  REQUIRE(kvplan_manager_hold_prefix(manager, request, 99, hit) == KVPLAN_OK);
  REQUIRE(kvplan_manager_get_counters(manager, SIZED(counters)) == KVPLAN_OK);
  REQUIRE(counters.num_requests == 1 && counters.num_free_blocks == 39 - 8);
  REQUIRE(counters.num_queried_tokens == 100 && counters.num_hit_tokens == 0);
  REQUIRE(kvplan_manager_release_hold(manager, request) == KVPLAN_OK);
  REQUIRE(kvplan_pool_set_eviction_hook(NULL, counts_evicted, &evicted) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(kvplan_pool_set_eviction_hook(pool, counts_evicted, &evicted) == KVPLAN_OK);
  REQUIRE(kvplan_pool_allocate(pool, blocks, 39) == KVPLAN_OK);
  REQUIRE(evicted == 12);
  REQUIRE(kvplan_pool_set_eviction_hook(pool, NULL, NULL) == KVPLAN_OK);
  REQUIRE(kvplan_pool_free(pool, blocks, 39) == KVPLAN_OK);
  kvplan_pool_destroy(pool);
  kvplan_manager_destroy(manager);
  kvplan_hit_destroy(hit);
}

/* Each call is refused, and nothing changes. */
static void refuses_bad_calls_of_the_manager(void) {
  kvplan_manager* manager = make_manager(20);
  kvplan_manager_state state;
  kvplan_request_tokens tokens = {0};
  kvplan_allocation allocation = {0};
  kvplan_step step = {0};
  kvplan_step_result done;
  kvplan_appended_block appended[2];
  kvplan_prefix_cache_stats stats = {0};
  kvplan_cache_group group;
  kvplan_manager_options options;
  kvplan_manager* none = manager;
  kvplan_hit* hit = NULL;
  const int32_t* blocks;
  int64_t num_found;
  int64_t computed = 100;
  int64_t number;
  int32_t unknown = 5;
  int32_t fits = 7;
  size_t count;
  int32_t request;
  REQUIRE(kvplan_hit_create(&hit) == KVPLAN_OK);
  request = admit(manager, hit, &num_found);
  SIZED(tokens)->num_tokens = tokens.num_prompt_tokens = 100;
  SIZED(allocation)->num_new_tokens = 1;
  SIZED(step)->requests = &unknown;
  step.num_requests = 1;
  step.num_computed_tokens = &computed;
  SIZED(done)->stop = 7;
#define REFUSED(call) REQUIRE((call) == KVPLAN_INVALID_ARGUMENT)
  REFUSED(kvplan_manager_free(manager, 5));
  REFUSED(kvplan_manager_free(manager, -1));
  REFUSED(kvplan_manager_free(NULL, 0));
  REFUSED(kvplan_manager_remove_request(manager, 5));
  REFUSED(kvplan_manager_add_request(manager, NULL));
  REFUSED(kvplan_manager_allocate(manager, request, &tokens, &allocation, NULL, NULL));
  REFUSED(kvplan_manager_allocate(manager, request, NULL, &allocation, NULL, &fits));
  REFUSED(kvplan_manager_allocate(manager, request, &tokens, NULL, NULL, &fits));
  REFUSED(kvplan_manager_allocate(manager, 5, &tokens, &allocation, NULL, &fits));
  tokens.struct_size = 0;
  REFUSED(kvplan_manager_allocate(manager, request, &tokens, &allocation, NULL, &fits));
  REQUIRE(strstr(kvplan_last_error(), "tokens: struct_size") != NULL);
  tokens.struct_size = sizeof tokens;
  allocation.num_skip_zeroing_groups = 1;
  REFUSED(kvplan_manager_allocate(manager, request, &tokens, &allocation, NULL, &fits));
  allocation.num_skip_zeroing_groups = 0;
  allocation.num_new_tokens = -1;
  REFUSED(kvplan_manager_allocate(manager, request, &tokens, &allocation, NULL, &fits));
  REQUIRE(fits == 7);
  REFUSED(kvplan_manager_schedule(manager, &step, appended, 2, SIZED(done)));
  step.num_computed_tokens = NULL;
  REFUSED(kvplan_manager_schedule(manager, &step, appended, 2, SIZED(done)));
  step.num_requests = (size_t)-1;
  REFUSED(kvplan_manager_schedule(manager, &step, appended, 2, SIZED(done)));
  REFUSED(kvplan_manager_schedule(manager, NULL, appended, 2, SIZED(done)));
  step.num_requests = 0;
  done.struct_size = 1;
  REFUSED(kvplan_manager_schedule(manager, &step, appended, 2, &done));
  REQUIRE(done.stop == 7);
  REFUSED(kvplan_manager_commit(manager, request, &tokens, -1));
  REFUSED(kvplan_manager_append_hashes(manager, request, NULL, 1));
  REFUSED(kvplan_manager_append_hashes(manager, request, "", (size_t)1 << 60));
  REFUSED(kvplan_manager_truncate_hashes(manager, request, 7));
  REFUSED(kvplan_manager_find_prefix(manager, request, 10, NULL));
  REFUSED(kvplan_manager_block_ids(manager, request, 2, NULL, 0, &count));
  REFUSED(kvplan_manager_block_ids(manager, request, 0, NULL, 3, &count));
  REFUSED(kvplan_manager_block_size(manager, 2, &number));
  REFUSED(kvplan_manager_pop_blocks(manager, request, NULL, &count));
  REFUSED(kvplan_manager_pop_blocks(manager, request, &blocks, NULL));
  REFUSED(kvplan_manager_take_prefix_cache_stats(manager, &stats));
  REQUIRE(kvplan_manager_evict(manager, &unknown, 1) == KVPLAN_OK); /* an uncached one */
  unknown = 20;
  REQUIRE(kvplan_manager_evict(manager, &unknown, 1) == KVPLAN_BLOCK_POOL);
  REFUSED(kvplan_manager_options_init(&options, 4));
  REFUSED(kvplan_manager_options_init(NULL, sizeof options));
  REQUIRE(kvplan_manager_options_init(&options, sizeof options) == KVPLAN_OK);
  REQUIRE(kvplan_cache_group_init(&group, sizeof group) == KVPLAN_OK);
  options.num_blocks = 10;
  options.max_model_len = 100;
  group.block_size = 16;
  group.kind = 7;
  REFUSED(kvplan_manager_create(&options, &group, 1, &none));
  group.kind = KVPLAN_FULL_ATTENTION;
  group.same_spec_as = 1;
  REFUSED(kvplan_manager_create(&options, &group, 1, &none));
  group.same_spec_as = -2;
  REFUSED(kvplan_manager_create(&options, &group, 1, &none));
  group.same_spec_as = -1;
  REFUSED(kvplan_manager_create(&options, NULL, 1, &none));
  REFUSED(kvplan_manager_create(NULL, &group, 1, &none));
  REFUSED(kvplan_manager_create(&options, &group, 1, NULL));
  REFUSED(kvplan_manager_create_from_plan(NULL, &options, &none));
  options.hash_bytes = 33;
  REFUSED(kvplan_manager_create(&options, &group, 1, &none));
  REQUIRE(none == NULL);
  REQUIRE(kvplan_manager_get_state(manager, SIZED(state)) == KVPLAN_OK);
  REQUIRE(state.num_requests == 1 && state.num_free_blocks == 19 - 14);
  REQUIRE(kvplan_manager_take_prefix_cache_stats(manager, SIZED(stats)) == KVPLAN_OK);
  REQUIRE(stats.requests == 1);
  REQUIRE(kvplan_manager_check_invariants(manager) == KVPLAN_OK);
  kvplan_manager_destroy(manager);
  kvplan_manager_destroy(NULL);
  kvplan_hit_destroy(hit);
  kvplan_hit_destroy(NULL);
}

/* Callers that know fewer members than this library, or more. */
static void speaks_with_other_versions(void) {
  struct {
    kvplan_manager_options known;
    int64_t later;
  } newer;
  kvplan_cache_group group;
  kvplan_manager* manager = NULL;
  struct {
    kvplan_manager_state known;
    int64_t later;
  } state;
  REQUIRE(kvplan_abi_version() == KVPLAN_ABI_VERSION);
  newer.later = 7;
  REQUIRE(kvplan_manager_options_init(&newer.known, sizeof newer) == KVPLAN_OK);
  REQUIRE(newer.later == 0);
  REQUIRE(kvplan_cache_group_init(&group, sizeof group) == KVPLAN_OK);
  group.block_size = 16;
  newer.known.num_blocks = 10;
  newer.known.max_model_len = 100;
  newer.known.hash_bytes = 8;
  newer.later = 1;
  REQUIRE(kvplan_manager_create(&newer.known, &group, 1, &manager) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(strstr(kvplan_last_error(), "does not know byte") != NULL);
  /* One that ends before hash_bytes has 32 of them. */
  newer.known.struct_size = offsetof(kvplan_manager_options, hash_bytes);
  REQUIRE(kvplan_manager_create(&newer.known, &group, 1, &manager) == KVPLAN_OK);
  state.known.struct_size = offsetof(kvplan_manager_state, num_blocks);
  state.known.num_blocks = -7;
  REQUIRE(kvplan_manager_get_state(manager, &state.known) == KVPLAN_OK);
  REQUIRE(state.known.num_groups == 1 && state.known.num_blocks == -7);
  state.known.struct_size = sizeof state;
  REQUIRE(kvplan_manager_get_state(manager, &state.known) == KVPLAN_OK);
  REQUIRE(state.known.num_blocks == 10 && state.later == 0);
  kvplan_manager_destroy(manager);
}

static void manages_slices(void) {
  kvplan_manager_options options;
  kvplan_cache_group groups[2];
  kvplan_manager* manager = NULL;
  kvplan_manager_state state;
  kvplan_pool* plain = NULL;
  kvplan_sliced_pool* pool = NULL;
  kvplan_hit* hit = NULL;
  const int32_t* blocks;
  int64_t num_found;
  int32_t request;
  int32_t starts_again = 1;
  size_t count;
  size_t g;
  REQUIRE(kvplan_manager_options_init(&options, sizeof options) == KVPLAN_OK);
  options.num_blocks = 20;
  options.max_model_len = 1000;
  options.needs_zeroing = 1;
  for (g = 0; g < 2; ++g) {
    REQUIRE(kvplan_cache_group_init(&groups[g], sizeof groups[g]) == KVPLAN_OK);
    groups[g].block_size = 16;
    groups[g].is_zeroed = 1;
  }
  groups[1].slices = 4;
  REQUIRE(kvplan_manager_create(&options, groups, 2, &manager) == KVPLAN_OK);
  REQUIRE(kvplan_hit_create(&hit) == KVPLAN_OK);
  request = admit(manager, hit, &num_found);
  REQUIRE(kvplan_manager_get_state(manager, (state.struct_size = sizeof state, &state)) ==
          KVPLAN_OK);
  /* 7 large blocks, and 2 that hold 7 slices. */
  REQUIRE(state.num_blocks == 20 && state.num_free_blocks == 19 - 7 - 2);
  REQUIRE(kvplan_manager_take_new_block_ids(manager, &blocks, &count) == KVPLAN_UNSUPPORTED);
  REQUIRE(kvplan_manager_take_group_block_ids(manager, 1, &blocks, &count) == KVPLAN_OK);
  REQUIRE(count == 7 && blocks[0] >= 4);
  REQUIRE(kvplan_manager_starts_again(manager, request, &starts_again) == KVPLAN_OK);
  REQUIRE(starts_again == 0);
  REQUIRE(kvplan_manager_pool(manager, &plain) == KVPLAN_UNSUPPORTED && plain == NULL);
  REQUIRE(kvplan_manager_sliced_pool(manager, &pool) == KVPLAN_OK);
  kvplan_manager_destroy(manager);
  REQUIRE(kvplan_sliced_pool_num_cached_hashes(pool) == 12);
  kvplan_sliced_pool_destroy(pool);
  kvplan_hit_destroy(hit);
}

static void makes_the_manager_of_a_plan(void) {
  kvplan_plan* plan = NULL;
  kvplan_manager* manager = NULL;
  kvplan_manager_state state;
  kvplan_manager_options options;
  kvplan_cache_group group;
  REQUIRE(plan_six_layers((int64_t)1 << 30, 65536, "", &plan) == KVPLAN_OK);
  REQUIRE(kvplan_manager_create_from_plan(plan, NULL, &manager) == KVPLAN_OK);
  REQUIRE(kvplan_manager_get_state(manager, SIZED(state)) == KVPLAN_OK);
  REQUIRE(state.num_groups == 3 && state.num_blocks == ((int64_t)1 << 30) / (2 * 65536));
  kvplan_manager_destroy(manager);
  REQUIRE(kvplan_plan_manager_options(plan, 1, SIZED(options)) == KVPLAN_OK);
  REQUIRE(options.max_model_len == 65536 && options.hash_block_size == 16);
  options.watermark = 0.5;
  REQUIRE(kvplan_manager_create_from_plan(plan, &options, &manager) == KVPLAN_OK);
  REQUIRE(kvplan_manager_get_state(manager, SIZED(state)) == KVPLAN_OK);
  REQUIRE(state.watermark_blocks == state.num_blocks / 2);
  REQUIRE(kvplan_plan_cache_group(plan, 2, SIZED(group)) == KVPLAN_OK);
  REQUIRE(group.kind == KVPLAN_FULL_ATTENTION || group.window == 1024);
  REQUIRE(kvplan_plan_cache_group(plan, 3, SIZED(group)) == KVPLAN_INVALID_ARGUMENT);
  kvplan_manager_destroy(manager);
  kvplan_plan_destroy(plan);
}

int main(int argc, char** argv) {
  REQUIRE(strlen(kvplan_version()) >= 5);
  if (argc < 2 || strcmp(argv[1], "no-json") != 0) {
    plans_and_reads();
    says_what_is_missing();
    reads_json_strictly();
    plans_and_hands_out_slices();
    manages_slices();
    makes_the_manager_of_a_plan();
  } else {
    says_that_json_is_missing();
  }
  survives_bad_arguments();
  hands_out_blocks();
  moves_slices();
  unpins_and_moves_hashes();
  finds_evicts_and_tells();
  manages_requests();
  holds_forks_and_reverts();
  refuses_bad_calls_of_the_manager();
  speaks_with_other_versions();
  puts("ok");
  return 0;
}
