#pragma once

#include <pybind11/numpy.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

#include "bindings/native/field_conversion.h"

namespace kvplan::bindings {

/// Text as a template argument.
template <size_t N>
struct Text {
  char chars[N];
  consteval Text(const char (&text)[N]) { std::copy_n(text, N, chars); }
};

/// An integer argument. What is none, or leaves 64 bits, is an error that says its name and value,
/// where pybind11 would list the overloads.
template <Text kName>
struct Int {
  int64_t value = 0;
  operator int64_t() const { return value; }
};

/// A row of integers, empty for None, without a copy where it is an int64 array. A fraction or an
/// unsigned number of 64 bits is a TypeError, not another number.
struct Int64Row {
  using Array = pybind11::array_t<int64_t, pybind11::array::c_style>;
  pybind11::object array;  // an `Array`, or null, where numpy would make an empty one

  Int64Row() = default;
  Int64Row(pybind11::handle in, const char* name) {
    array = Array::ensure(in);
    if (array && view().ndim() == 1) return;
    PyErr_Clear();
    throw pybind11::type_error(std::string(name) + " must be a row of 64-bit integers, got " +
                               pybind11::repr(in).cast<std::string>());
  }
  operator std::span<const int64_t>() const {
    if (!array) return {};
    return {view().data(), static_cast<size_t>(view().size())};
  }
  const Array& view() const { return static_cast<const Array&>(array); }
};

template <Text kName>
struct Ints : Int64Row {
  using Int64Row::Int64Row;
};

}  // namespace kvplan::bindings

namespace pybind11::detail {

template <kvplan::bindings::Text kName>
struct type_caster<kvplan::bindings::Int<kName>> {
  PYBIND11_TYPE_CASTER(kvplan::bindings::Int<kName>, const_name("int"));
  bool load(handle in, bool) {
    kvplan::bindings::read_field(in, kName.chars, value.value);
    return true;
  }
  static handle cast(kvplan::bindings::Int<kName> in, return_value_policy, handle) {
    return PyLong_FromLongLong(in.value);
  }
};

template <kvplan::bindings::Text kName>
struct type_caster<kvplan::bindings::Ints<kName>> {
  PYBIND11_TYPE_CASTER(kvplan::bindings::Ints<kName>, const_name("numpy.typing.ArrayLike"));
  bool load(handle in, bool) {
    if (!in.is_none()) value = kvplan::bindings::Ints<kName>(in, kName.chars);
    return true;
  }
};

}  // namespace pybind11::detail
