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
  REQUIRE(kvplan_plan_summary(plan, &summary) == KVPLAN_OK);
  REQUIRE(summary.max_model_len == 65536);
  REQUIRE(summary.usable_concurrency < summary.max_concurrency);
  REQUIRE(summary.num_groups == 3 && summary.num_workers == 2);
  REQUIRE(summary.bytes_per_block == 2 * 65536);
  REQUIRE(summary.num_blocks == ((int64_t)1 << 30) / (2 * 65536));
  REQUIRE(summary.limiting_worker == 0);
  REQUIRE(summary.usable_capacity_tokens < summary.capacity_tokens);
  REQUIRE(kvplan_plan_group(plan, 0, &group) == KVPLAN_OK);
  REQUIRE(group.num_layers == 2 && group.block_size == 16);
  REQUIRE(strcmp(kvplan_plan_layer_name(plan, group.layers[0]), "layers.0") == 0);
  REQUIRE(kvplan_plan_worker(plan, 1, &worker) == KVPLAN_OK);
  REQUIRE(worker.buffer_bytes == summary.num_blocks * summary.bytes_per_block);
  for (t = 0; t < worker.num_tensors; ++t) {
    REQUIRE(kvplan_plan_tensor(plan, 1, t, &tensor) == KVPLAN_OK);
    REQUIRE(tensor.size == worker.buffer_bytes);
    placed += tensor.num_layers;
  }
  REQUIRE(placed == 6);
  REQUIRE(kvplan_plan_group(plan, 3, &group) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(strstr(kvplan_last_error(), "group 3 does not exist") != NULL);
  REQUIRE(kvplan_plan_worker(plan, 2, &worker) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(kvplan_plan_tensor(plan, 0, 99, &tensor) == KVPLAN_INVALID_ARGUMENT);
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
  kvplan_last_shortage(&shortage);
  REQUIRE(shortage.worker == 0 && shortage.max_model_len == 65536);
  REQUIRE(shortage.needed_bytes > shortage.available_bytes);
  REQUIRE(plan_six_layers(1 << 24, 65536, ", \"auto_fit\": true", &plan) == KVPLAN_OK);
  REQUIRE(kvplan_plan_summary(plan, &summary) == KVPLAN_OK);
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
  REQUIRE(kvplan_plan_summary(NULL, &summary) == KVPLAN_INVALID_ARGUMENT);
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
  REQUIRE(kvplan_plan_summary(plan, &summary) == KVPLAN_OK);
  REQUIRE(summary.num_groups == 2);
  for (g = 0; g < 2; ++g) {
    REQUIRE(kvplan_plan_group(plan, g, &group) == KVPLAN_OK);
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

int main(int argc, char** argv) {
  REQUIRE(strlen(kvplan_version()) >= 5);
  if (argc < 2 || strcmp(argv[1], "no-json") != 0) {
    plans_and_reads();
    says_what_is_missing();
    reads_json_strictly();
    plans_and_hands_out_slices();
  } else {
    says_that_json_is_missing();
  }
  survives_bad_arguments();
  hands_out_blocks();
  moves_slices();
  unpins_and_moves_hashes();
  puts("ok");
  return 0;
}
