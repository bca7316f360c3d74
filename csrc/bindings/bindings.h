#pragma once

#include <pybind11/pybind11.h>

/// One function per topic; each registers its part of `kvplan._core`.
namespace kvplan::bindings {

void bind_block_ops(pybind11::module_& m);
void bind_block_pool(pybind11::module_& m);
void bind_cache_manager(pybind11::module_& m);
void bind_replay(pybind11::module_& m);
void bind_check(pybind11::module_& m);
void bind_errors(pybind11::module_& m);
void bind_field_table(pybind11::module_& m);
void bind_frontier(pybind11::module_& m);
void bind_plan(pybind11::module_& m);
void bind_planning(pybind11::module_& m);
void bind_planning_config(pybind11::module_& m);
void bind_request(pybind11::module_& m);
void bind_sliced_block_pool(pybind11::module_& m);
void bind_specs(pybind11::module_& m);
void bind_vllm_block_pool(pybind11::module_& m);
void bind_vllm_config(pybind11::module_& m);
void bind_vllm_planning(pybind11::module_& m);

/// Turns the exception in flight into a Python error, for functions that pybind11 does not wrap.
void set_python_error() noexcept;

}  // namespace kvplan::bindings
