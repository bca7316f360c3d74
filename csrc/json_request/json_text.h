#pragma once

#include <string>
#include <string_view>

#include "json_request/json_value.h"

/// Values as text, by nlohmann/json, which is used behind this header alone.
namespace kvplan::json_request {

/// `what` names the text in errors. Throws `InvalidArgument` for what is no JSON, or too much.
Json parse(std::string_view text, std::string_view what);
std::string dump(const Json& value);

}  // namespace kvplan::json_request
