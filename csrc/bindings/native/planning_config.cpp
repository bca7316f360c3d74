#include "bindings/native/planning_config.h"

#include <string_view>
#include <type_traits>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/native/config_field.h"
#include "bindings/native/json_object.h"
#include "bindings/native/unknown_fields.h"
#include "json_request/read_fields.h"
#include "kvplan/errors.h"
#include "planning/config_fields.h"

namespace py = pybind11;

namespace kvplan::bindings {
namespace {

template <class T>
py::object write_config_field(const T& value, std::string_view field) {
  if constexpr (std::is_enum_v<T>) {
    return py::str(std::string(to_string(value)));
  } else {
    return write_field(value, field);
  }
}

py::object write_config_field(const std::vector<KernelBlockSize>& value, std::string_view) {
  py::list list;
  for (const KernelBlockSize& k : value) {
    py::object tokens = py::int_(k.tokens);
    if (k.multiples) {
      list.append(py::dict(py::arg("multiple_of") = tokens));
    } else {
      list.append(tokens);
    }
  }
  return list;
}

/// Those that are not at their defaults.
py::dict fields_of(const PlanningConfig& config) {
  return json_object(json_request::write_config(config));
}

PlanningConfig replace(const PlanningConfig& self, const py::kwargs& changes) {
  PlanningConfig changed = self;
  set_planning_config(changed, changes);
  validate(changed);
  return changed;
}

bool same(const PlanningConfig& a, const PlanningConfig& b) {
  bool all = true;
  for_each_config_field(
      [&](const auto& field) { all = all && a.*field.member == b.*field.member; });
  return all;
}

std::string repr(const PlanningConfig& self) {
  std::string s = "PlanningConfig(";
  for (const auto& item : fields_of(self)) {
    if (s.back() != '(') s += ", ";
    s += item.first.cast<std::string>() + "=" + py::repr(item.second).cast<std::string>();
  }
  return s + ")";
}

}  // namespace

py::object enum_member_name(py::handle value) {
  // Where the property `name`, which is Python code, finds it.
  PyObject* name = PyObject_GetAttrString(value.ptr(), "_name_");
  if (name != nullptr) return py::reinterpret_steal<py::object>(name);
  PyErr_Clear();
  return py::getattr(value, "name", value);
}

void read_config_field(py::handle in, std::string_view field, std::vector<KernelBlockSize>& out) {
  const auto reject = [&](py::handle value) {
    throw py::type_error(std::string(field) +
                         " must be a sequence of tokens or MultipleOf(tokens), got " +
                         py::repr(value).cast<std::string>());
  };
  if (!is_sequence(in)) reject(in);
  out.clear();
  for (py::handle size : in) {
    if (PyIndex_Check(size.ptr())) {
      read_field(size, field, out.emplace_back(KernelBlockSize{0, false}).tokens);
      continue;
    }
    BlockStrideAlignment multiple;  // spelled alike
    if (!py::hasattr(size, "base") && !py::isinstance<py::dict>(size)) reject(size);
    read_field(size, field, multiple);
    out.push_back({multiple.value, true});
  }
}

void set_planning_config(PlanningConfig& config, const py::dict& fields) {
  size_t used = 0;
  for_each_config_field([&](const auto& field) {
    const py::handle value = PyDict_GetItemString(fields.ptr(), field.name);
    if (!value) return;
    ++used;
    read_config_field(value, field.name, config.*field.member);
  });
  if (used == fields.size()) return;
  std::vector<std::string> known;
  for_each_config_field([&](const auto& field) { known.emplace_back(field.name); });
  refuse_unknown_fields("PlanningConfig", fields, known);
}

PlanningConfig make_planning_config(const py::dict& fields) {
  PlanningConfig config;
  set_planning_config(config, fields);
  if (!fields.contains("max_model_len")) {
    throw py::type_error("PlanningConfig needs max_model_len (tokens)");
  }
  validate(config);
  return config;
}

void bind_planning_config(py::module_& m) {
  py::class_<PlanningConfig> cls(
      m, "PlanningConfig",
      "What the planner reads of an engine's configuration. Immutable; keywords only.\n\n"
      "Lengths and block sizes are in tokens. max_in_flight_tokens counts the tokens that are\n"
      "scheduled but not settled in all concurrent batches together. Raises ValueError or\n"
      "TypeError that names the field.");
  cls.def(py::init([](const py::kwargs& kwargs) { return make_planning_config(kwargs); }));
  for_each_config_field([&](const auto& field) {
    cls.def_property_readonly(field.name, [field](const PlanningConfig& self) {
      return write_config_field(self.*field.member, field.name);
    });
  });
  cls.def("to_dict", &fields_of, "The fields that are not at their defaults.")
      .def("replace", &replace, "A copy with the given fields changed.")
      .def("__repr__", &repr)
      .def("__eq__",
           [](const PlanningConfig& self, py::handle other) {
             return py::isinstance<PlanningConfig>(other) &&
                    same(self, other.cast<const PlanningConfig&>());
           })
      .def("__hash__", [](const PlanningConfig& self) { return py::hash(py::str(repr(self))); })
      .def("__reduce__", [](const PlanningConfig& self) -> py::tuple {
        return py::make_tuple(py::module_::import("kvplan._core").attr("_restore_config"),
                              py::make_tuple(fields_of(self)));
      });
  m.def("_restore_config", [](const py::dict& fields) { return make_planning_config(fields); });
}

}  // namespace kvplan::bindings
