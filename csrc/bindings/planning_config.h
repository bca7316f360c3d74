#pragma once

#include <pybind11/pybind11.h>

#include "kvplan/config.h"

namespace kvplan::bindings {

/// From `PlanningConfig`'s keywords.
PlanningConfig make_planning_config(const pybind11::kwargs& fields);

/// The planner's configuration from a `PlanningConfig`, or from anything shaped like a
/// `VllmConfig`.
PlanningConfig read_config(pybind11::handle config);

}  // namespace kvplan::bindings
