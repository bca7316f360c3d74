#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <type_traits>
#include <utility>

namespace kvplan::bindings {

/// "Name(field=value, ...)" in one line: the numbers of a result that matter.
class ShortRepr {
 public:
  explicit ShortRepr(std::string name) : text_(std::move(name) + "(") {}

  template <class T>
  ShortRepr& add(const char* field, const T& value) {
    if (text_.back() != '(') text_ += ", ";
    text_ += std::string(field) + "=";
    if constexpr (std::is_floating_point_v<T>) {
      text_ += pybind11::str("{:.2f}").format(value).template cast<std::string>();
    } else if constexpr (std::is_base_of_v<pybind11::handle, T>) {
      text_ += pybind11::repr(value).template cast<std::string>();
    } else {
      text_ += pybind11::repr(pybind11::cast(value)).template cast<std::string>();
    }
    return *this;
  }
  std::string str() const { return text_ + ")"; }

 private:
  std::string text_;
};

}  // namespace kvplan::bindings
