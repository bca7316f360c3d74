#pragma once

#include <pybind11/pybind11.h>

#include <vector>

#include "kvplan/planning.h"

namespace kvplan::bindings {

/// A Python group taken apart.
struct GroupFields {
  pybind11::object layer_names;
  pybind11::object spec;
  bool is_eagle_group = false;
  bool host_resident = false;
  bool enable_kv_transfer = true;
  GroupRole role = GroupRole::kDefault;
  int64_t slices = 1;  // vLLM's groups have none
};

/// How one library's Python objects are read and made: kvplan's own, or vLLM's.
class ObjectModel {
 public:
  virtual ~ObjectModel() = default;

  virtual bool is_uniform_type(pybind11::handle spec) const = 0;
  virtual pybind11::dict uniform_type_specs(pybind11::handle spec) const = 0;
  virtual KVCacheSpec read_spec(pybind11::handle spec) const = 0;
  /// Whether two specs of one class surely hold the same. A false negative is fine. Runs no Python
  /// code.
  virtual bool surely_same(pybind11::handle known, pybind11::handle spec) const = 0;
  virtual GroupFields read_group(pybind11::handle group) const;
  virtual pybind11::object make_spec(const KVCacheSpec& spec) const = 0;
  virtual pybind11::object make_uniform_type(int64_t block_size, pybind11::dict specs) const = 0;
  virtual pybind11::object make_group(pybind11::list layer_names, pybind11::object spec,
                                      const KVCacheGroup& group) const = 0;
  virtual pybind11::object make_tensor(const KVCacheTensor& tensor,
                                       pybind11::list layers) const = 0;
};

/// kvplan's own classes.
const ObjectModel& native_objects();

}  // namespace kvplan::bindings
