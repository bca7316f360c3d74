#pragma once

#include <pybind11/pybind11.h>

namespace kvplan::bindings {

/// To be called last: every class of the module raises TypeError where pybind11 would end the
/// process, which is at a use of what `cls.__new__(cls)` made and no `__init__` filled, and at
/// `pickle.dumps(object, 0)` of what cannot be pickled.
void guard_classes(const pybind11::module_& m);

}  // namespace kvplan::bindings
