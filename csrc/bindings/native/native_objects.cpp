#include "bindings/native/object_model.h"
#include "bindings/native/spec_object.h"

namespace py = pybind11;

namespace kvplan::bindings {
namespace {

class NativeObjects : public ObjectModel {
 public:
  NativeObjects() {
    const py::module_ module = py::module_::import("kvplan.kv_cache_config");
    group_class_ = py::object(module.attr("KVCacheGroupSpec")).release();
    tensor_class_ = py::object(module.attr("KVCacheTensor")).release();
    const py::object roles = py::module_::import("kvplan.enums").attr("KVCacheGroupRole");
    for (const char* role : {"DEFAULT", "HISPARSE_SOURCE", "HISPARSE_INDEXER"}) {
      roles_.append(roles.attr(role));
    }
    roles_.inc_ref();  // outlives the interpreter's own clean-up order
  }

  bool is_uniform_type(py::handle spec) const override {
    return py::isinstance<UniformTypeSpecsObject>(spec);
  }
  py::dict uniform_type_specs(py::handle spec) const override {
    return spec.cast<const UniformTypeSpecsObject&>().kv_cache_specs;
  }
  KVCacheSpec read_spec(py::handle spec) const override { return spec_value(spec); }
  bool surely_same(py::handle known, py::handle spec) const override {
    const KVCacheSpec& left = spec_value(known);
    const KVCacheSpec& right = spec_value(spec);
    return left == right && left.is_draft == right.is_draft;
  }
  py::object make_spec(const KVCacheSpec& spec) const override { return make_spec_object(spec); }
  py::object make_uniform_type(int64_t block_size, py::dict specs) const override {
    return py::type::of<UniformTypeSpecsObject>()(block_size, specs);
  }
  py::object make_group(py::list layer_names, py::object spec,
                        const KVCacheGroup& group) const override {
    return group_class_(layer_names, spec, group.is_eagle_group, group.host_resident,
                        group.enable_kv_transfer, roles_[static_cast<size_t>(group.role)],
                        group.slices);
  }
  py::object make_tensor(const KVCacheTensor& t, py::list layers) const override {
    return tensor_class_(t.size, layers, t.layer_stride, t.block_stride, t.offset);
  }

 private:
  py::handle group_class_;
  py::handle tensor_class_;
  py::list roles_;
};

}  // namespace

const ObjectModel& native_objects() {
  static const NativeObjects* objects = new NativeObjects();
  return *objects;
}

}  // namespace kvplan::bindings
