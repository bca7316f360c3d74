#pragma once

#include <Python.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

#include "bindings/vllm/native_types.h"

/// Helpers for types that are written against CPython's own interface: references, values, errors,
/// and methods that CPython calls with METH_FASTCALL | METH_KEYWORDS.
namespace kvplan::bindings {

constexpr int kFast = METH_FASTCALL | METH_KEYWORDS;

/// Thrown where Python's error is set already; the argument is what PyErr_Format returns.
struct PythonError {
  explicit PythonError(PyObject* = nullptr) {}
};

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
  PyObject* release() { return std::exchange(object_, nullptr); }

 private:
  PyObject* object_ = nullptr;
};

/// What a call that returns null or a negative number on failure has returned.
template <class T>
T* checked(T* object) {
  if (object == nullptr) throw PythonError();
  return object;
}
inline int checked(int status) {
  if (status < 0) throw PythonError();
  return status;
}
inline Ref owned(PyObject* object) { return Ref(checked(object)); }
inline Ref attribute(PyObject* object, PyObject* name) {
  return owned(PyObject_GetAttr(object, name));
}
/// A list or tuple of the elements; `message` is the error's if there are none.
inline Ref sequence(PyObject* object, const char* message) {
  return owned(PySequence_Fast(object, message));
}
inline int64_t to_int(PyObject* object) {
  const int64_t value = PyLong_AsLongLong(object);
  if (value == -1 && PyErr_Occurred()) throw PythonError();
  return value;
}
inline bool to_bool(PyObject* object) { return checked(PyObject_IsTrue(object)) == 1; }
/// Whether an argument was given, and is not None.
inline bool is_given(PyObject* argument) { return argument != nullptr && argument != Py_None; }

/// `item(i)`: a new reference to each element.
template <class Item>
Ref make_list(size_t size, Item&& item) {
  Ref list = owned(PyList_New(static_cast<Py_ssize_t>(size)));
  for (size_t i = 0; i < size; ++i) {
    PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i), checked(item(i)));
  }
  return list;
}
template <class Item>
Ref make_tuple(size_t size, Item&& item) {
  Ref tuple = owned(PyTuple_New(static_cast<Py_ssize_t>(size)));
  for (size_t i = 0; i < size; ++i) {
    PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), checked(item(i)));
  }
  return tuple;
}

/// Runs `body`; C++ exceptions become Python's, and the result null or -1.
template <typename Body>
auto without_exceptions(Body&& body) -> decltype(body()) {
  try {
    return body();
  } catch (const PythonError&) {
  } catch (...) {
    set_python_error();
  }
  if constexpr (std::is_pointer_v<decltype(body())>) {
    return nullptr;
  } else {
    return -1;
  }
}

// Methods: functions of (the object's parts..., arguments), whose result becomes an object.

/// Specialised for each type of object: `static std::tuple<...> parts_of(PyObject*)`, what its
/// methods take first. Throws where the object is not ready.
template <class Self>
struct Receiver;

/// The name of a method or of its parameter.
template <size_t N>
struct Name {
  char text[N];
  consteval Name(const char (&name)[N]) { std::copy_n(name, N, text); }
};

template <size_t N>
using Arguments = std::array<PyObject*, N>;  ///< by position; missing ones are null

inline PyObject* as_object(PyObject* object) { return object; }
inline PyObject* as_object(Ref object) { return object.release(); }
inline PyObject* as_object(bool value) { return PyBool_FromLong(value); }
inline PyObject* as_object(double value) { return PyFloat_FromDouble(value); }
inline PyObject* as_object(int64_t value) { return PyLong_FromLongLong(value); }

namespace calls {

template <class Result, class Self, class... More>
Receiver<Self> receiver_of(Result (*)(Self&, More...));

template <auto kBody, class... Given>
PyObject* call(PyObject* object, const Given&... given) {
  return without_exceptions([&]() -> PyObject* {
    const auto arguments =
        std::tuple_cat(decltype(receiver_of(kBody))::parts_of(object), std::tie(given...));
    if constexpr (std::is_void_v<decltype(std::apply(kBody, arguments))>) {
      std::apply(kBody, arguments);
      return Py_NewRef(Py_None);
    } else {
      return as_object(std::apply(kBody, arguments));
    }
  });
}

/// Arguments of a call by position.
template <size_t N>
void parse_arguments(const char* function, const std::array<const char*, N>& parameters,
                     size_t num_required, PyObject* const* args, Py_ssize_t num_args,
                     PyObject* keywords, Arguments<N>& result) {
  result.fill(nullptr);
  if (num_args > static_cast<Py_ssize_t>(N)) {
    throw PythonError(PyErr_Format(PyExc_TypeError, "%s() takes at most %zu arguments (%zd given)",
                                   function, N, num_args));
  }
  std::copy_n(args, num_args, result.begin());
  const Py_ssize_t num_keywords = keywords == nullptr ? 0 : PyTuple_GET_SIZE(keywords);
  for (Py_ssize_t k = 0; k < num_keywords; ++k) {
    PyObject* keyword = PyTuple_GET_ITEM(keywords, k);
    size_t i = 0;
    while (i < N && PyUnicode_CompareWithASCIIString(keyword, parameters[i]) != 0) ++i;
    if (i == N || result[i] != nullptr) {
      throw PythonError(PyErr_Format(PyExc_TypeError, "%s() got %s argument '%U'", function,
                                     i == N ? "an unexpected" : "a second", keyword));
    }
    result[i] = args[num_args + k];
  }
  for (size_t i = 0; i < num_required; ++i) {
    if (result[i] == nullptr) {
      throw PythonError(
          PyErr_Format(PyExc_TypeError, "%s() missing argument '%s'", function, parameters[i]));
    }
  }
}

}  // namespace calls

/// Calls `kBody(parts..., Arguments)`; the first `kRequired` parameters must be given.
template <auto kBody, Name kName, size_t kRequired, Name... kParameters>
PyObject* fast_call(PyObject* object, PyObject* const* args, Py_ssize_t num_args,
                    PyObject* keywords) {
  static constexpr std::array<const char*, sizeof...(kParameters)> kNames{kParameters.text...};
  Arguments<sizeof...(kParameters)> in;
  if (without_exceptions([&] {
        calls::parse_arguments(kName.text, kNames, kRequired, args, num_args, keywords, in);
        return 0;
      }) != 0) {
    return nullptr;
  }
  return calls::call<kBody>(object, in);
}

template <typename Function>
PyCFunction as_method(Function* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function));
}

template <auto kBody, Name kName, size_t kRequired, Name... kParameters>
PyMethodDef method(const char* doc) {
  return {kName.text, as_method(fast_call<kBody, kName, kRequired, kParameters...>), kFast, doc};
}
/// `kBody(parts...)`
template <auto kBody, Name kName>
PyMethodDef method_without_arguments(const char* doc) {
  const PyCFunction function = [](PyObject* object, PyObject*) {
    return calls::call<kBody>(object);
  };
  return {kName.text, function, METH_NOARGS, doc};
}
/// `kBody(parts..., argument)`
template <auto kBody, Name kName>
PyMethodDef method_of_one(const char* doc) {
  const PyCFunction function = [](PyObject* object, PyObject* argument) {
    return calls::call<kBody>(object, argument);
  };
  return {kName.text, function, METH_O, doc};
}

}  // namespace kvplan::bindings
