#pragma once

#include <Python.h>

#include <array>
#include <cstddef>

#include "bindings/vllm/native_types.h"

/// Helpers for methods that CPython calls with METH_FASTCALL | METH_KEYWORDS.
namespace kvplan::bindings {

constexpr int kFast = METH_FASTCALL | METH_KEYWORDS;

template <typename Function>
PyCFunction as_method(Function* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function));
}

/// An owned reference.
class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject* object) : object_(object) {}
  ~Ref() { Py_XDECREF(object_); }
  Ref(Ref&& other) noexcept : object_(other.release()) {}
  Ref& operator=(Ref&& other) noexcept {
    Py_XSETREF(object_, other.release());
    return *this;
  }
  Ref(const Ref&) = delete;
  Ref& operator=(const Ref&) = delete;
  explicit operator bool() const { return object_ != nullptr; }
  PyObject* get() const { return object_; }
  PyObject* release() {
    PyObject* object = object_;
    object_ = nullptr;
    return object;
  }

 private:
  PyObject* object_ = nullptr;
};

/// Runs `body`, which returns a new reference or null; C++ exceptions become Python ones.
template <typename Body>
PyObject* without_exceptions(Body&& body) {
  try {
    return body();
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

/// Arguments of a call by position; missing ones are null. False with a Python error.
template <size_t N>
bool parse_arguments(const char* function, const std::array<const char*, N>& parameters,
                     size_t num_required, PyObject* const* args, Py_ssize_t num_args,
                     PyObject* keywords, std::array<PyObject*, N>& result) {
  result.fill(nullptr);
  if (num_args > static_cast<Py_ssize_t>(N)) {
    PyErr_Format(PyExc_TypeError, "%s() takes at most %zu arguments (%zd given)", function, N,
                 num_args);
    return false;
  }
  for (Py_ssize_t i = 0; i < num_args; ++i) result[static_cast<size_t>(i)] = args[i];
  const Py_ssize_t num_keywords = keywords == nullptr ? 0 : PyTuple_GET_SIZE(keywords);
  for (Py_ssize_t k = 0; k < num_keywords; ++k) {
    PyObject* keyword = PyTuple_GET_ITEM(keywords, k);
    size_t i = 0;
    while (i < N && PyUnicode_CompareWithASCIIString(keyword, parameters[i]) != 0) ++i;
    if (i == N || result[i] != nullptr) {
      PyErr_Format(PyExc_TypeError, "%s() got %s argument '%U'", function,
                   i == N ? "an unexpected" : "a second", keyword);
      return false;
    }
    result[i] = args[num_args + k];
  }
  for (size_t i = 0; i < num_required; ++i) {
    if (result[i] == nullptr) {
      PyErr_Format(PyExc_TypeError, "%s() missing argument '%s'", function, parameters[i]);
      return false;
    }
  }
  return true;
}

}  // namespace kvplan::bindings
