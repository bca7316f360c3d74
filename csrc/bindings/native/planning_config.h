#pragma once

#include <pybind11/pybind11.h>

#include "kvplan/config.h"

namespace kvplan::bindings {

/// From `PlanningConfig`'s keywords.
PlanningConfig make_planning_config(const pybind11::dict& fields);
/// Sets the fields that are named; does not validate.
void set_planning_config(PlanningConfig& config, const pybind11::dict& fields);

/// The planner's configuration from a `PlanningConfig`, or from anything shaped like a
/// `VllmConfig`.
PlanningConfig read_config(pybind11::handle config);

/// From anything shaped like a `VllmConfig`; `overrides` win.
PlanningConfig read_vllm_config(pybind11::handle vllm_config, const pybind11::dict& overrides);
/// The same into a config with other defaults.
void read_vllm_config(pybind11::handle vllm_config, const pybind11::dict& overrides,
                      PlanningConfig& config);

}  // namespace kvplan::bindings
