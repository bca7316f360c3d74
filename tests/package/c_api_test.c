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

int main(int argc, char** argv) {
  REQUIRE(strlen(kvplan_version()) >= 5);
  plans_and_reads();
  says_what_is_missing();
  survives_bad_arguments();
  plans_json(argc < 2 || strcmp(argv[1], "no-json") != 0);
  hands_out_blocks();
  puts("ok");
  return 0;
}
