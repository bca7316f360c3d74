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

static kvplan_request* make_request(int64_t bytes) {
  kvplan_request* request = NULL;
  kvplan_spec full;
  kvplan_spec window;
  int32_t specs[6];
  int32_t layers[6];
  int32_t full_id;
  int32_t window_id;
  int i;
  REQUIRE(kvplan_request_create(&request) == KVPLAN_OK);
  kvplan_spec_init(&full, KVPLAN_FULL_ATTENTION);
  full.block_size = 16;
  full.num_kv_heads = 8;
  full.head_size = 128;
  kvplan_spec_init(&window, KVPLAN_SLIDING_WINDOW);
  window.block_size = 16;
  window.num_kv_heads = 8;
  window.head_size = 128;
  window.window = 1024;
  REQUIRE(kvplan_request_add_spec(request, &full, &full_id) == KVPLAN_OK);
  REQUIRE(kvplan_request_add_spec(request, &window, &window_id) == KVPLAN_OK);
  for (i = 0; i < 6; ++i) {
    char name[32];
    snprintf(name, sizeof name, "layers.%d", i);
    REQUIRE(kvplan_request_add_layer(request, name, &layers[i]) == KVPLAN_OK);
    specs[i] = i % 3 == 2 ? full_id : window_id;
  }
  REQUIRE(kvplan_request_add_worker(request, layers, specs, 6, bytes) == KVPLAN_OK);
  REQUIRE(kvplan_request_add_worker(request, layers, specs, 6, 2 * bytes) == KVPLAN_OK);
  return request;
}

static void plans_and_reads(void) {
  kvplan_request* request = make_request((int64_t)1 << 30);
  kvplan_config config;
  kvplan_plan* plan = NULL;
  kvplan_summary summary;
  kvplan_worker worker;
  kvplan_group group;
  kvplan_tensor tensor;
  size_t placed = 0;
  size_t t;
  kvplan_config_init(&config);
  config.max_model_len = 65536;
  REQUIRE(kvplan_plan_create(request, &config, &plan) == KVPLAN_OK);
  kvplan_request_destroy(request);
  REQUIRE(kvplan_plan_check(plan) == KVPLAN_OK);
  REQUIRE(kvplan_plan_summary(plan, &summary) == KVPLAN_OK);
  REQUIRE(summary.max_model_len == 65536);
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
  kvplan_request* request = make_request(1 << 24);
  kvplan_config config;
  kvplan_plan* plan = (kvplan_plan*)&config;
  kvplan_shortage shortage;
  kvplan_summary summary;
  kvplan_config_init(&config);
  config.max_model_len = 65536;
  REQUIRE(kvplan_plan_create(request, &config, &plan) == KVPLAN_NOT_ENOUGH_MEMORY);
  REQUIRE(plan == NULL);
  REQUIRE(strstr(kvplan_last_error(), "is needed") != NULL);
  kvplan_last_shortage(&shortage);
  REQUIRE(shortage.worker == 0 && shortage.max_model_len == 65536);
  REQUIRE(shortage.needed_bytes > shortage.available_bytes);
  config.auto_fit = 1;
  REQUIRE(kvplan_plan_create(request, &config, &plan) == KVPLAN_OK);
  REQUIRE(kvplan_plan_summary(plan, &summary) == KVPLAN_OK);
  REQUIRE(summary.max_model_len == shortage.estimated_max_len);
  kvplan_plan_destroy(plan);
  kvplan_request_destroy(request);
}

static void survives_bad_arguments(void) {
  kvplan_request* request = make_request(1 << 24);
  kvplan_config config;
  kvplan_spec spec;
  kvplan_plan* plan = NULL;
  int32_t id;
  int32_t unknown = 77;
  kvplan_config_init(&config);
  config.max_model_len = 0;
  REQUIRE(kvplan_plan_create(request, &config, &plan) == KVPLAN_INVALID_ARGUMENT);
  config.max_model_len = 16;
  config.layout = 6;
  REQUIRE(kvplan_plan_create(request, &config, &plan) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(kvplan_plan_create(NULL, &config, &plan) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(kvplan_plan_create(request, NULL, &plan) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(kvplan_plan_create(request, &config, NULL) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(kvplan_request_add_layer(request, "", &id) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(kvplan_request_add_layer(request, NULL, &id) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(kvplan_request_add_worker(request, &unknown, &unknown, 1, 1) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(kvplan_request_add_worker(request, NULL, NULL, 1, 1) == KVPLAN_INVALID_ARGUMENT);
  kvplan_spec_init(&spec, KVPLAN_FULL_ATTENTION);
  REQUIRE(kvplan_request_add_spec(request, &spec, &id) == KVPLAN_INVALID_ARGUMENT);
  spec.kind = 99;
  REQUIRE(kvplan_request_add_spec(request, &spec, &id) == KVPLAN_INVALID_ARGUMENT);
  kvplan_spec_init(&spec, KVPLAN_CUSTOM);
  spec.block_size = 16;
  spec.page_size = 4096;
  REQUIRE(kvplan_request_add_spec(request, &spec, &id) == KVPLAN_INVALID_ARGUMENT);
  spec.custom_class = "PluginSpec";
  /* A call that cannot say the id adds nothing: the next ids are those after make_request()'s. */
  REQUIRE(kvplan_request_add_spec(request, &spec, NULL) == KVPLAN_INVALID_ARGUMENT);
  spec.page_size = 8192;
  REQUIRE(kvplan_request_add_spec(request, &spec, &id) == KVPLAN_OK);
  REQUIRE(id == 2);
  REQUIRE(kvplan_request_add_layer(request, "unheard", NULL) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(kvplan_request_add_layer(request, "heard", &id) == KVPLAN_OK);
  REQUIRE(id == 6);
  kvplan_request_destroy(request);
  kvplan_request_destroy(NULL);
  kvplan_plan_destroy(NULL);
  kvplan_pool_destroy(NULL);
}

/* With the argument "no-json", of a build without a JSON library. */
static void plans_json(int has_json) {
  static const char json[] =
      "{\"kvplan_request\": 1, \"config\": {\"max_model_len\": 4096},"
      " \"specs\": [{\"kind\": \"FullAttentionSpec\", \"block_size\": 16, \"num_kv_heads\": 8,"
      " \"head_size\": 128, \"dtype\": \"bfloat16\"}],"
      " \"workers\": [{\"available_memory\": 1073741824, \"layers\": [[\"a\", 0], [\"b\", 0]]},"
      " {\"available_memory\": 1073741824, \"same_layers_as\": 0}]}";
  kvplan_plan* plan = NULL;
  kvplan_summary summary;
  REQUIRE(kvplan_plan_create_from_json(NULL, 0, &plan) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(kvplan_plan_create_from_json(json, sizeof json - 1, NULL) == KVPLAN_INVALID_ARGUMENT);
  if (!has_json) {
    REQUIRE(kvplan_plan_create_from_json(json, sizeof json - 1, &plan) == KVPLAN_NOT_BUILT);
    REQUIRE(plan == NULL && strstr(kvplan_last_error(), "KVPLAN_JSON") != NULL);
    return;
  }
  REQUIRE(kvplan_plan_create_from_json(json, sizeof json - 1, &plan) == KVPLAN_OK);
  REQUIRE(kvplan_plan_summary(plan, &summary) == KVPLAN_OK);
  REQUIRE(summary.num_workers == 2 && summary.max_model_len == 4096);
  REQUIRE(summary.num_blocks == 1073741824 / (2 * 65536));
  REQUIRE(strcmp(kvplan_plan_layer_name(plan, 1), "b") == 0);
  REQUIRE(kvplan_plan_check(plan) == KVPLAN_OK);
  kvplan_plan_destroy(plan);
  REQUIRE(kvplan_plan_create_from_json(json, sizeof json - 2, &plan) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(plan == NULL && strstr(kvplan_last_error(), "not a JSON request") != NULL);
  REQUIRE(kvplan_plan_create_from_json("{}", 2, &plan) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(strstr(kvplan_last_error(), "$: `kvplan_request` is missing") != NULL);
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
  kvplan_request* request = make_request((int64_t)1 << 30);
  kvplan_config config;
  kvplan_plan* plan = NULL;
  kvplan_summary summary;
  kvplan_group group;
  kvplan_sliced_pool* pool = NULL;
  kvplan_slice_demand demands[2];
  int64_t slices[2];
  int32_t blocks[4096];
  size_t g;
  int32_t fits = -1;
  kvplan_config_init(&config);
  REQUIRE(config.grouping == KVPLAN_GROUPING_VLLM && config.min_large_blocks == 700);
  config.max_model_len = 16384;
  config.grouping = KVPLAN_GROUPING_SLICED;
  REQUIRE(kvplan_plan_create(request, &config, &plan) == KVPLAN_LAYOUT);
  config.layout = KVPLAN_BLHNC;
  config.min_large_blocks = 0;
  REQUIRE(kvplan_plan_create(request, &config, &plan) == KVPLAN_INVALID_ARGUMENT);
  config.min_large_blocks = 100;
  config.grouping = 3;
  REQUIRE(kvplan_plan_create(request, &config, &plan) == KVPLAN_INVALID_ARGUMENT);
  REQUIRE(strstr(kvplan_last_error(), "unknown kvplan_grouping 3") != NULL);
  config.grouping = KVPLAN_GROUPING_SLICED;
  REQUIRE(kvplan_plan_create(request, &config, &plan) == KVPLAN_OK);
  kvplan_request_destroy(request);
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

static kvplan_summary summary_of_encoder_decoder(int64_t encoder_tokens) {
  kvplan_request* request = NULL;
  kvplan_plan* plan = NULL;
  kvplan_config config;
  kvplan_spec cross;
  kvplan_summary summary;
  int32_t layer;
  int32_t spec;
  REQUIRE(kvplan_request_create(&request) == KVPLAN_OK);
  kvplan_spec_init(&cross, KVPLAN_CROSS_ATTENTION);
  cross.block_size = 16;
  cross.num_kv_heads = 8;
  cross.head_size = 128;
  REQUIRE(kvplan_request_add_spec(request, &cross, &spec) == KVPLAN_OK);
  REQUIRE(kvplan_request_add_layer(request, "cross", &layer) == KVPLAN_OK);
  REQUIRE(kvplan_request_add_worker(request, &layer, &spec, 1, (int64_t)1 << 30) == KVPLAN_OK);
  kvplan_config_init(&config);
  config.max_model_len = 448;
  config.max_num_encoder_input_tokens = 8192;
  config.encoder_tokens_per_request = encoder_tokens;
  REQUIRE(kvplan_plan_create(request, &config, &plan) == KVPLAN_OK);
  REQUIRE(kvplan_plan_summary(plan, &summary) == KVPLAN_OK);
  kvplan_plan_destroy(plan);
  kvplan_request_destroy(request);
  return summary;
}

static void counts_the_encoder_tokens_of_a_request(void) {
  const kvplan_summary unknown = summary_of_encoder_decoder(0);
  const kvplan_summary known = summary_of_encoder_decoder(1500);
  const double usable = (double)(known.num_blocks - 1);
  REQUIRE(unknown.steady_concurrency == usable / 512);
  REQUIRE(known.steady_concurrency == usable / 94);
  REQUIRE(known.max_concurrency == unknown.max_concurrency);
}

int main(int argc, char** argv) {
  REQUIRE(strlen(kvplan_version()) >= 5);
  plans_and_reads();
  counts_the_encoder_tokens_of_a_request();
  says_what_is_missing();
  survives_bad_arguments();
  plans_json(argc < 2 || strcmp(argv[1], "no-json") != 0);
  hands_out_blocks();
  plans_and_hands_out_slices();
  moves_slices();
  unpins_and_moves_hashes();
  puts("ok");
  return 0;
}
