#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <vector>

namespace kvplan::bindings {

/// Throws TypeError for the first keyword that none of the `known` fields is called, naming the
/// nearest one.
void refuse_unknown_fields(const std::string& owner, const pybind11::kwargs& given,
                           const std::vector<std::string>& known);

}  // namespace kvplan::bindings
