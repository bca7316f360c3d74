#pragma once

#include <Python.h>

namespace kvplan::bindings {

/// The name of an attribute or a keyword as Python's string, made when first asked for. For
/// constants: it is never freed.
class InternedName {
 public:
  constexpr InternedName() = default;
  constexpr InternedName(const char* text) : text_(text) {}  // NOLINT: reads as the text it is

  const char* text() const { return text_; }
  PyObject* ptr() const {
    if (object_ == nullptr) object_ = PyUnicode_InternFromString(text_);
    return object_;
  }

 private:
  const char* text_ = nullptr;
  mutable PyObject* object_ = nullptr;
};

}  // namespace kvplan::bindings
