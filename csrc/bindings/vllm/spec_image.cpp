#include "bindings/vllm/spec_image.h"

namespace py = pybind11;

namespace kvplan::bindings {
namespace {

bool same_value(PyObject* a, PyObject* b);

/// Equal values of the types that specs hold; anything that is not surely equal is not.
bool equal_value(PyObject* a, PyObject* b) {
  if (a == nullptr || b == nullptr || Py_TYPE(a) != Py_TYPE(b)) return false;
  if (PyLong_CheckExact(a) || PyUnicode_CheckExact(a)) {
    return PyObject_RichCompareBool(a, b, Py_EQ) == 1;
  }
  if (!PyTuple_CheckExact(a) || PyTuple_GET_SIZE(a) != PyTuple_GET_SIZE(b)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(a); ++i) {
    if (!same_value(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i))) return false;
  }
  return true;
}

bool same_value(PyObject* a, PyObject* b) { return a == b || equal_value(a, b); }

/// The values of a dictionary that shares its keys with others of its class, by slot: those filled
/// first are at the front. Null where it has keys of its own, or where how this Python stores them
/// is not known here.
PyObject* const* shared_values(PyObject* dict) {
#if PY_VERSION_HEX < 0x030D0000
  // An array; from 3.11 on behind a type of its own that begins with it.
  return reinterpret_cast<PyObject* const*>(reinterpret_cast<PyDictObject*>(dict)->ma_values);
#else
  (void)dict;
  return nullptr;
#endif
}

const void* keys_of(PyObject* dict) { return reinterpret_cast<PyDictObject*>(dict)->ma_keys; }

}  // namespace

PyObject* instance_dict(py::handle object) {
  PyObject* dict = PyObject_GenericGetDict(object.ptr(), nullptr);
  if (dict == nullptr) {
    PyErr_Clear();
    return nullptr;
  }
  Py_DECREF(dict);
  return dict;
}

SpecImage::SpecImage(py::handle spec) {
  PyObject* fields = instance_dict(spec);
  if (fields == nullptr) return;
  const auto count = static_cast<size_t>(PyDict_GET_SIZE(fields));
  values_.reserve(count);
  if (PyObject* const* slots = shared_values(fields)) {
    shared_with_ = py::reinterpret_borrow<py::object>(fields);
    shared_keys_ = keys_of(fields);
    for (size_t i = 0; i < count; ++i) {
      values_.push_back(py::reinterpret_borrow<py::object>(slots[i]));
    }
    return;
  }
  names_.reserve(count);
  Py_ssize_t position = 0;
  PyObject *name, *value;
  while (PyDict_Next(fields, &position, &name, &value)) {
    names_.push_back(py::reinterpret_borrow<py::object>(name));
    values_.push_back(py::reinterpret_borrow<py::object>(value));
  }
}

bool SpecImage::surely_same(py::handle spec) const {
  PyObject* fields = instance_dict(spec);
  const size_t count = values_.size();
  if (count == 0 || fields == nullptr || static_cast<size_t>(PyDict_GET_SIZE(fields)) != count) {
    return false;
  }
  if (shared_keys_ == nullptr) return same_by_name(fields);
  PyObject* const* slots = shared_values(fields);
  // The keys are those of the image only as long as its own dictionary still has them.
  if (slots == nullptr || keys_of(fields) != shared_keys_ ||
      keys_of(shared_with_.ptr()) != shared_keys_) {
    return false;
  }
  for (size_t i = 0; i < count; ++i) {
    if (values_[i].ptr() == nullptr || !same_value(slots[i], values_[i].ptr())) return false;
  }
  return true;
}

bool SpecImage::same_by_name(PyObject* fields) const {
  // Instances of one dataclass have their fields in one order.
  Py_ssize_t position = 0;
  PyObject *name, *value;
  for (size_t i = 0; i < values_.size(); ++i) {
    if (!PyDict_Next(fields, &position, &name, &value)) return false;
    if (name != names_[i].ptr() || !same_value(value, values_[i].ptr())) return false;
  }
  return true;
}

}  // namespace kvplan::bindings
