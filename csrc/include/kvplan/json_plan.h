#pragma once

#include <string>
#include <string_view>

#include "kvplan/export.h"
#include "kvplan/plan.h"

namespace kvplan {

/// A whole plan as JSON text, to keep and to send. Throws `NotBuilt` as `read_json_request` does.
KVPLAN_API std::string write_json_plan(const Plan& plan);
/// The plan that was written, equal in every number. Throws `InvalidArgument` that names the place
/// for any other text; whether pages lie over each other is for `check` to say.
KVPLAN_API Plan read_json_plan(std::string_view text);

}  // namespace kvplan
