#pragma once

#include <array>
#include <initializer_list>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bindings/native/object_model.h"

namespace kvplan::bindings {

/// vLLM's own dataclasses. Specs are read field by field and made without running `__init__`.
///
/// Which classes there are, and how their fields differ from kvplan's field table, is handed in
/// from Python once (`kvplan.vllm.conversion`), so that nothing of vLLM's is named here. An object
/// of any other class, or one whose value kvplan has no word for, is a `TypeError` or a
/// `ValueError` that says which: vLLM then plans itself.
class VllmObjects : public ObjectModel {
 public:
  explicit VllmObjects(const pybind11::dict& description);

  bool is_uniform_type(pybind11::handle spec) const override;
  pybind11::dict uniform_type_specs(pybind11::handle spec) const override;
  KVCacheSpec read_spec(pybind11::handle spec) const override;
  bool surely_same(pybind11::handle known, pybind11::handle spec) const override;
  GroupFields read_group(pybind11::handle group) const override;
  pybind11::object make_spec(const KVCacheSpec& spec) const override;
  pybind11::object make_uniform_type(int64_t block_size, pybind11::dict specs) const override;
  pybind11::object make_group(pybind11::list layer_names, pybind11::object spec,
                              const KVCacheGroup& group) const override;
  pybind11::object make_tensor(const KVCacheTensor& tensor, pybind11::list layers) const override;

  /// A copy of a group with other layers; what 0.32 resets, this resets.
  pybind11::object project_group(const GroupFields& group, pybind11::list layer_names,
                                 pybind11::object spec) const;
  pybind11::object make_config(int64_t num_blocks, pybind11::list tensors, pybind11::list groups,
                               pybind11::object retention_interval, int64_t kv_tp_replicas) const;

 private:
  /// One spec class: where each field of kvplan's table is, and the fields kvplan does not know.
  struct SpecClass {
    pybind11::object type;
    SpecKind kind = SpecKind::kFullAttention;
    std::vector<pybind11::object> names;  // in the order of the table; null: the class lacks it
    std::vector<std::pair<pybind11::object, pybind11::object>> extra;  // name, default
    std::string unsupported;                                           // why, if it is
  };
  /// A dataclass that is made from all its fields, those not given at their defaults.
  struct PlainClass {
    pybind11::object type;
    std::vector<std::pair<pybind11::object, pybind11::object>> defaults;  // name, value or null
  };

  const SpecClass& class_of(pybind11::handle spec) const;
  PlainClass read_plain_class(pybind11::handle description) const;
  pybind11::object instantiate(const PlainClass& cls,
                               std::initializer_list<pybind11::handle> values) const;

  template <class T>
  void read(pybind11::handle in, std::string_view field, T& out) const;
  template <class T>
  pybind11::object write(const T& value, std::string_view field) const;
  pybind11::object dtype_object(DType dtype) const;
  pybind11::object enum_object(const pybind11::dict& by_name, const std::string& name,
                               std::string_view field) const;

  std::array<SpecClass, kNumSpecKinds> classes_;
  std::unordered_map<PyTypeObject*, const SpecClass*> by_type_;
  PlainClass uniform_type_, group_, tensor_, config_;
  std::unordered_map<PyObject*, DType> dtypes_;
  std::unordered_map<PyObject*, std::string> enum_names_;
  pybind11::dict dtype_objects_, mamba_types_, cache_roles_;
  pybind11::object quant_mode_, multiple_of_, fraction_;
  pybind11::list roles_;
  bool projection_resets_group_ = false;
};

}  // namespace kvplan::bindings
