#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "kvplan/spec.h"

namespace kvplan::bindings {

/// A spec as Python sees it, whichever of vLLM's classes its object has.
struct SpecObject {
  KVCacheSpec value;
};

/// vLLM's wrapper for a group with one spec a layer. `value` is the first layer's.
struct UniformTypeSpecsObject : SpecObject {
  pybind11::dict kv_cache_specs;
};

/// A new native Python object of the class that belongs to `spec.kind`.
pybind11::object make_spec_object(const KVCacheSpec& spec);

/// The value behind a native spec. Throws `TypeError` for anything else, and for a Python subclass
/// that overrides what planning reads: such a spec enters as a `CustomSpec`.
const KVCacheSpec& spec_value(pybind11::handle object);

}  // namespace kvplan::bindings
