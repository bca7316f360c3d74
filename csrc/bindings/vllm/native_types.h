#pragma once

#include <Python.h>

/// Types of `kvplan._core` that vLLM calls for each request and step: made with Python's C API
/// alone, since a call through pybind11 costs more than the work.
namespace kvplan::bindings {

/// Each adds its types to the module; false with a Python error set.
bool add_cache_blocks(PyObject* module);
bool add_cache_groups(PyObject* module);
bool add_cache_manager(PyObject* module);
bool add_request_block_hasher(PyObject* module);

/// Name of a capsule with a `std::vector<CacheGroup>`.
inline constexpr const char* kCacheGroupsCapsule = "kvplan.cache_groups";

/// Turns the exception in flight into a Python error.
void set_python_error() noexcept;

}  // namespace kvplan::bindings
