#include "bindings/bindings.h"
#include "bindings/vllm/class_guards.h"

PYBIND11_MODULE(_core, m) {
  m.doc() = "Native core of kvplan.";
  m.attr("__version__") = KVPLAN_VERSION;
  kvplan::bindings::bind_errors(m);
  kvplan::bindings::bind_specs(m);
  kvplan::bindings::bind_planning_config(m);
  kvplan::bindings::bind_planning(m);
  kvplan::bindings::bind_plan(m);
  kvplan::bindings::bind_check(m);
  kvplan::bindings::bind_frontier(m);
  kvplan::bindings::bind_block_pool(m);
  kvplan::bindings::bind_cache_manager(m);
  kvplan::bindings::bind_sliced_block_pool(m);
  kvplan::bindings::bind_block_ops(m);
  kvplan::bindings::bind_vllm_block_pool(m);
  kvplan::bindings::bind_attribute_watch(m);
  kvplan::bindings::bind_vllm_config(m);
  kvplan::bindings::bind_vllm_planning(m);
  kvplan::bindings::guard_classes(m);
}
