#pragma once

#include <pybind11/pybind11.h>

#include "kvplan/config.h"

namespace kvplan::bindings {

/// The planner's configuration from a `PlanningConfig`, or through `kvplan.config` from anything
/// shaped like a `VllmConfig`.
PlanningConfig read_config(pybind11::handle config);

}  // namespace kvplan::bindings
