#pragma once

#include "json_request/read_value.h"

/// Config and specs, field by field as the field tables have them, and back.
namespace kvplan::json_request {

PlanningConfig read_config(const Json& in, const Place& place);
KVCacheSpec read_spec(const Json& in, const Place& place);

/// Only what is not at its default.
Json write_config(const PlanningConfig& config);
Json write_spec(const KVCacheSpec& spec);

}  // namespace kvplan::json_request
