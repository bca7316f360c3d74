#pragma once

#include <pybind11/pybind11.h>

#include <vector>

namespace kvplan::bindings {

/// What an object's attributes were when it was read, to find others that hold the same without
/// reading them.
class SpecImage {
 public:
  SpecImage() = default;
  explicit SpecImage(pybind11::handle spec);

  /// Whether another object of the same class surely holds the same. A false negative is fine. Runs
  /// no Python code.
  bool surely_same(pybind11::handle spec) const;

 private:
  bool same_by_name(PyObject* fields) const;

  // By slot of the class's shared keys where the object's dictionary has those, else by name.
  pybind11::object shared_with_;
  const void* shared_keys_ = nullptr;
  std::vector<pybind11::object> names_;
  std::vector<pybind11::object> values_;
};

/// The instance dictionary, borrowed for as long as the object lives; null where it has none.
PyObject* instance_dict(pybind11::handle object);

}  // namespace kvplan::bindings
