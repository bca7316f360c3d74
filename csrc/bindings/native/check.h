#pragma once

#include <pybind11/pybind11.h>

#include <vector>

#include "kvplan/check.h"

namespace kvplan::bindings {

/// `(rule, worker, message)` for each violation.
pybind11::list violation_list(const std::vector<Violation>& violations);

}  // namespace kvplan::bindings
