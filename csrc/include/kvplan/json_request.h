#pragma once

#include <string>
#include <string_view>

#include "kvplan/config.h"
#include "kvplan/export.h"
#include "kvplan/plan.h"

namespace kvplan {

/// A request file: what to plan, and under which configuration. docs/request.md describes it.
struct JsonRequest {
  PlanRequest request;
  PlanningConfig config;
  std::string model;  ///< free text, often empty
};

/// Whether this build has the JSON library that reading needs (CMake option KVPLAN_JSON).
KVPLAN_API bool can_read_json_requests() noexcept;

/// Reads a request file's text, version 1, as strictly as the Python package: throws
/// `InvalidArgument` that names the place in the JSON for anything malformed, unknown, out of range
/// or contradictory, and `NotBuilt` where `can_read_json_requests()` is false.
KVPLAN_API JsonRequest read_json_request(std::string_view text);

}  // namespace kvplan
