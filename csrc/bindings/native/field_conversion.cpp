#include "bindings/native/field_conversion.h"

#include "planning/specs/spec_fields.h"

namespace py = pybind11;

namespace kvplan::bindings {
namespace {

[[noreturn]] void reject(py::handle in, std::string_view field, const char* expected) {
  throw py::type_error(std::string(field) + " must be " + expected + ", got " +
                       py::repr(in).cast<std::string>());
}

py::object enums(const char* name) { return py::module_::import("kvplan.enums").attr(name); }

/// Null where the object has none.
py::object find_attribute(py::handle object, const char* name) {
  PyObject* value = PyObject_GetAttrString(object.ptr(), name);
  if (value == nullptr) PyErr_Clear();
  return py::reinterpret_steal<py::object>(value);
}

template <class T>
py::tuple write_tuple(const std::vector<T>& values, std::string_view field) {
  py::tuple out(values.size());
  for (size_t i = 0; i < values.size(); ++i) out[i] = write_field(values[i], field);
  return out;
}

template <class T>
void read_sequence(py::handle in, std::string_view field, std::vector<T>& out) {
  if (!is_sequence(in)) reject(in, field, "a sequence");
  out.clear();
  for (py::handle item : in) read_field(item, field, out.emplace_back());
}

}  // namespace

bool is_sequence(py::handle in) {
  return PySequence_Check(in.ptr()) && !PyUnicode_Check(in.ptr()) && !PyBytes_Check(in.ptr()) &&
         !PyByteArray_Check(in.ptr());
}

std::string_view read_text(py::handle in, std::string_view field) {
  if (!PyUnicode_Check(in.ptr())) reject(in, field, "a string");
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(in.ptr(), &size);
  if (text == nullptr) {
    if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) throw py::error_already_set();
    PyErr_Clear();
    throw py::value_error(std::string(field) + " holds a lone surrogate, which is no text: " +
                          py::repr(in).cast<std::string>());
  }
  return {text, static_cast<size_t>(size)};
}

void read_field(py::handle in, std::string_view field, int64_t& out) {
  // `__index__` lets numpy integers in and keeps floats, and so NaN, out. A flag where a number
  // belongs is a mix-up of arguments.
  py::object index;
  if (!PyLong_CheckExact(in.ptr())) {
    if (!PyIndex_Check(in.ptr()) || PyBool_Check(in.ptr())) reject(in, field, "an integer");
    index = py::reinterpret_steal<py::object>(PyNumber_Index(in.ptr()));
    if (!index) {
      // An array of one number has an `__index__` that refuses without a word of the field.
      if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw py::error_already_set();
      PyErr_Clear();
      reject(in, field, "an integer");
    }
    in = index;
  }
  int overflow = 0;
  out = PyLong_AsLongLongAndOverflow(in.ptr(), &overflow);
  if (overflow != 0) {
    throw py::value_error(std::string(field) +
                          " leaves the 64-bit range: " + py::repr(in).cast<std::string>());
  }
}

void read_field(py::handle in, std::string_view field, int32_t& out) {
  int64_t wide = 0;
  read_field(in, field, wide);
  out = static_cast<int32_t>(wide);
  if (out != wide) reject(in, field, "a 32-bit integer");
}

void read_field(py::handle in, std::string_view field, bool& out) {
  if (!PyBool_Check(in.ptr())) reject(in, field, "True or False");
  out = in.ptr() == Py_True;
}

void read_field(py::handle in, std::string_view field, std::string& out) {
  // vLLM's string enums are strings; its other enums go by their name.
  if (PyUnicode_CheckExact(in.ptr())) {
    out = read_text(in, field);
  } else if (py::isinstance<py::str>(in)) {
    const py::object text =
        py::hasattr(in, "value") ? in.attr("value") : py::reinterpret_borrow<py::object>(in);
    out = read_text(text, field);
  } else if (py::hasattr(in, "name") && py::hasattr(in, "value")) {
    const py::object text = in.attr("name").attr("lower")();
    out = read_text(text, field);
  } else {
    reject(in, field, "a string");
  }
}

void read_field(py::handle in, std::string_view field, DType& out) {
  // torch.dtype prints as "torch.bfloat16", so torch itself is not needed.
  const py::str name(in);
  const std::string_view text = read_text(name, field);
  if (!py::isinstance<py::str>(in) && !text.starts_with("torch.")) {
    reject(in, field, "a dtype or its name");
  }
  out = parse_dtype(text);
}

void read_field(py::handle in, std::string_view field, TokensPerState& out) {
  if (PyIndex_Check(in.ptr())) {
    out.den = 1;
    read_field(in, field, out.num);
  } else if (py::hasattr(in, "numerator") && py::hasattr(in, "denominator")) {
    read_field(in.attr("numerator"), field, out.num);
    read_field(in.attr("denominator"), field, out.den);
  } else if (py::isinstance<py::str>(in)) {
    const py::object fraction = py::module_::import("fractions").attr("Fraction")(in);
    read_field(fraction, field, out);
  } else {
    reject(in, field, "an integer or a fraction");
  }
}

void read_field(py::handle in, std::string_view field, BlockStrideAlignment& out) {
  using Kind = BlockStrideAlignment::Kind;
  if (in.is_none()) {
    out = {};
  } else if (PyIndex_Check(in.ptr())) {
    out.kind = Kind::kBytes;
    read_field(in, field, out.value);
  } else if (const py::object base = find_attribute(in, "base")) {
    out.kind = Kind::kMultipleOf;
    read_field(base, field, out.value);
  } else if (py::isinstance<py::dict>(in) && in.contains("multiple_of")) {
    out.kind = Kind::kMultipleOf;
    read_field(in["multiple_of"], field, out.value);
  } else {
    reject(in, field, "None, bytes, or MultipleOf(tokens)");
  }
}

void read_field(py::handle in, std::string_view field, CustomDemand& out) {
  const auto get = [&](const char* key) -> py::object {
    if (py::isinstance<py::dict>(in)) return in.attr("get")(key, py::none());
    return py::getattr(in, key, py::none());
  };
  if (!py::isinstance<py::dict>(in) && !py::hasattr(in, "cap_tokens")) {
    reject(in, field, "a CustomDemand");
  }
  out = {};
  read_field(get("cap_tokens"), "demand.cap_tokens", out.cap_tokens);
  if (const py::object v = get("cap_includes_in_flight"); !v.is_none()) {
    read_field(v, "demand.cap_includes_in_flight", out.cap_includes_in_flight);
  }
  if (const py::object v = get("extra_pages"); !v.is_none()) {
    read_field(v, "demand.extra_pages", out.extra_pages);
  }
}

void read_field(py::handle in, std::string_view field, std::vector<DType>& out) {
  read_sequence(in, field, out);
}

void read_field(py::handle in, std::string_view field, std::vector<int64_t>& out) {
  read_sequence(in, field, out);
}

void read_field(py::handle in, std::string_view field, std::vector<std::vector<int64_t>>& out) {
  read_sequence(in, field, out);
}

py::object write_field(int64_t value, std::string_view) { return py::int_(value); }

py::object write_field(int32_t value, std::string_view) { return enums("KVQuantMode")(value); }

py::object write_field(bool value, std::string_view) { return py::bool_(value); }

py::object write_field(const std::string& value, std::string_view field) {
  if (field == "cache_role") return enums("SparseCacheRole")(value);
  return py::str(value);
}

py::object write_field(DType value, std::string_view) { return py::str(to_string(value)); }

py::object write_field(const TokensPerState& value, std::string_view) {
  if (value.den == 1) return py::int_(value.num);
  return py::module_::import("fractions").attr("Fraction")(value.num, value.den);
}

py::object write_field(const BlockStrideAlignment& value, std::string_view) {
  switch (value.kind) {
    case BlockStrideAlignment::Kind::kNone:
      return py::none();
    case BlockStrideAlignment::Kind::kBytes:
      return py::int_(value.value);
    case BlockStrideAlignment::Kind::kMultipleOf:
      return enums("MultipleOf")(value.value);
  }
  return py::none();
}

py::object write_field(const CustomDemand& value, std::string_view field) {
  return enums("CustomDemand")(write_field(value.cap_tokens, field), value.cap_includes_in_flight,
                               value.extra_pages);
}

py::object write_field(const std::vector<DType>& value, std::string_view field) {
  return write_tuple(value, field);
}

py::object write_field(const std::vector<int64_t>& value, std::string_view field) {
  return write_tuple(value, field);
}

py::object write_field(const std::vector<std::vector<int64_t>>& value, std::string_view field) {
  return write_tuple(value, field);
}

}  // namespace kvplan::bindings
