#include "bindings/bindings.h"
#include "bindings/native/class_guards.h"
#include "bindings/vllm/native_types.h"

PYBIND11_MODULE(_core, m) {
  m.doc() = "Native core of kvplan.";
  m.attr("__version__") = KVPLAN_VERSION;
  kvplan::bindings::bind_errors(m);
  kvplan::bindings::bind_specs(m);
  kvplan::bindings::bind_planning_config(m);
  kvplan::bindings::bind_field_table(m);
  kvplan::bindings::bind_request(m);
  kvplan::bindings::bind_planning(m);
  kvplan::bindings::bind_plan(m);
  kvplan::bindings::bind_check(m);
  kvplan::bindings::bind_frontier(m);
  kvplan::bindings::bind_block_pool(m);
  kvplan::bindings::bind_sliced_block_pool(m);
  kvplan::bindings::bind_cache_manager(m);
  kvplan::bindings::bind_replay(m);
  kvplan::bindings::bind_block_ops(m);
  kvplan::bindings::bind_vllm_block_pool(m);
  kvplan::bindings::bind_vllm_config(m);
  kvplan::bindings::bind_vllm_planning(m);
  for (const auto add :
       {kvplan::bindings::add_cache_blocks, kvplan::bindings::add_cache_groups,
        kvplan::bindings::add_cache_manager, kvplan::bindings::add_request_block_hasher}) {
    if (!add(m.ptr())) throw pybind11::error_already_set();
  }
  kvplan::bindings::guard_classes(m);
}
