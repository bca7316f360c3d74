#pragma once

#include <pybind11/pybind11.h>

#include "kvplan/plan.h"

namespace kvplan::bindings {

/// The plan of a `kvplan.Plan`, valid as long as the object; throws a `TypeError` for another.
const Plan& plan_of(const pybind11::object& plan);

}  // namespace kvplan::bindings
