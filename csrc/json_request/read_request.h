#pragma once

#include "json_request/json_value.h"
#include "kvplan/json_request.h"

namespace kvplan::json_request {

/// A request file's value, version 1. Throws `InvalidArgument` that names the place.
JsonRequest read_request(const Json& in);

}  // namespace kvplan::json_request
