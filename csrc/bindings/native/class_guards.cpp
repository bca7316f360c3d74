#include "bindings/native/class_guards.h"

#include <string>

namespace py = pybind11;

namespace kvplan::bindings {
namespace {

/// pybind11 asks for memory here only when an argument has none, that is, when it was never made.
void* refuse_unmade(size_t) {
  throw py::type_error("an object was made without calling its __init__");
}

/// `object.__reduce__` would call the class that all of pybind11's classes derive from, which
/// throws through the interpreter.
void refuse_pickling(PyTypeObject* type) {
  py::object cls = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(type));
  const py::handle object_class(reinterpret_cast<PyObject*>(&PyBaseObject_Type));
  if (!cls.attr("__reduce__").is(object_class.attr("__reduce__"))) return;
  cls.attr("__reduce__") = py::cpp_function(
      [](const py::handle& self) -> py::tuple {
        throw py::type_error("cannot pickle '" + std::string(Py_TYPE(self.ptr())->tp_name) +
                             "' object");
      },
      py::name("__reduce__"), py::is_method(cls));
}

}  // namespace

void guard_classes(const py::module_& m) {
  auto* base = reinterpret_cast<PyTypeObject*>(py::detail::get_internals().instance_base);
  for (const auto& item : py::reinterpret_borrow<py::dict>(m.attr("__dict__"))) {
    if (!PyType_Check(item.second.ptr())) continue;
    auto* type = reinterpret_cast<PyTypeObject*>(item.second.ptr());
    if (PyType_IsSubtype(type, base) == 0) continue;
    if (auto* info = py::detail::get_type_info(type)) info->operator_new = &refuse_unmade;
    refuse_pickling(type);
  }
}

}  // namespace kvplan::bindings
