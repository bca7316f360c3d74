#pragma once

#include <pybind11/pybind11.h>

/// One function per topic; each registers its part of `kvplan._core`.
namespace kvplan::bindings {

void bind_block_pool(pybind11::module_& m);
void bind_errors(pybind11::module_& m);

}  // namespace kvplan::bindings
