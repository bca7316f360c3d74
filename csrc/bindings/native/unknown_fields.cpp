#include "bindings/native/unknown_fields.h"

#include <pybind11/stl.h>

#include <algorithm>

#include "bindings/native/field_conversion.h"

namespace py = pybind11;

namespace kvplan::bindings {

void refuse_unknown_fields(const std::string& owner, const py::kwargs& given,
                           const std::vector<std::string>& known) {
  for (const auto& item : given) {
    const std::string key(read_text(item.first, "the name of a field"));
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const py::list near =
        py::module_::import("difflib").attr("get_close_matches")(key, known, py::arg("n") = 1);
    std::string text = owner + " has no field '" + key + "'";
    if (!near.empty()) text += "; did you mean '" + near[0].cast<std::string>() + "'?";
    throw py::type_error(text);
  }
}

}  // namespace kvplan::bindings
