#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "kvplan/spec.h"

namespace kvplan::bindings {

/// A spec as Python sees it. One C++ type for each of vLLM's classes, so that `isinstance` works;
/// all of them hold the same plain value.
struct SpecObject {
  KVCacheSpec value;
  virtual ~SpecObject() = default;  // pybind11 finds the Python class of a returned pointer by it
};
struct AttentionSpecObject : SpecObject {};
struct FullAttentionSpecObject : AttentionSpecObject {};
struct MLAAttentionSpecObject : FullAttentionSpecObject {};
struct HiddenStateCacheSpecObject : MLAAttentionSpecObject {};
struct RSWASpecObject : FullAttentionSpecObject {};
struct SinkFullAttentionSpecObject : FullAttentionSpecObject {};
struct ChunkedLocalAttentionSpecObject : AttentionSpecObject {};
struct SlidingWindowSpecObject : AttentionSpecObject {};
struct SlidingWindowMLASpecObject : SlidingWindowSpecObject {};
struct CircularBufferSpecObject : AttentionSpecObject {};
struct EncoderOnlyAttentionSpecObject : AttentionSpecObject {};
struct CrossAttentionSpecObject : AttentionSpecObject {};
struct MambaSpecObject : SpecObject {};
struct HiSparseHotSpecObject : SpecObject {};
struct HiSparseResidentSpecObject : SpecObject {};
struct CustomSpecObject : SpecObject {};

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
