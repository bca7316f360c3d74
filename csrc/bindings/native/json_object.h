#pragma once

#include <pybind11/pybind11.h>

#include "json_request/json_value.h"

namespace kvplan::bindings {

/// JSON as Python's lists and dictionaries.
pybind11::object json_object(const json_request::Json& value);
json_request::Json json_value(pybind11::handle object);

}  // namespace kvplan::bindings
