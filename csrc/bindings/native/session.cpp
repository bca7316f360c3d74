#include "bindings/native/session.h"

#include <algorithm>
#include <string>

#include "bindings/native/field_conversion.h"
#include "kvplan/errors.h"

namespace py = pybind11;

namespace kvplan::bindings {
namespace {

template <class T>
T& at(std::vector<T>& values, size_t i) {
  if (i >= values.size()) values.resize(i + 1);
  return values[i];
}

void require_sequence(py::handle in, const char* name) {
  if (is_sequence(in)) return;
  throw py::type_error(std::string(name) + " must be a list, got " + Py_TYPE(in.ptr())->tp_name);
}

void require_dict(py::handle in) {
  if (PyDict_Check(in.ptr())) return;
  throw py::type_error("expected a dict of layer names to KV cache specs, got " +
                       std::string(Py_TYPE(in.ptr())->tp_name));
}

/// The spec that each layer has in its group.
std::vector<SpecId> specs_by_layer(const KVCacheGroups& groups) {
  std::vector<SpecId> spec_of;
  for (const KVCacheGroup& g : groups) {
    for (size_t i = 0; i < g.layers.size(); ++i) {
      at(spec_of, g.layers[i].pos()) = layer_spec_id(g, i);
    }
  }
  return spec_of;
}

GroupRole read_role(py::handle role) {
  std::string name;
  read_field(role, "role", name);
  if (name == "default") return GroupRole::kDefault;
  if (name == "hisparse_source") return GroupRole::kHiSparseSource;
  if (name == "hisparse_indexer") return GroupRole::kHiSparseIndexer;
  throw InvalidArgument("unknown KV cache group role '" + name + "'");
}

bool read_flag(py::handle object, const char* name) {
  bool value = false;
  read_field(object.attr(name), name, value);
  return value;
}

// Not in vLLM's class, nor in one that is shaped like it.
int64_t read_slices(py::handle group) {
  int64_t slices = 1;
  if (py::hasattr(group, "slices")) read_field(group.attr("slices"), "slices", slices);
  if (slices < 1) {
    throw InvalidArgument("slices of a KV cache group must be at least 1, got " +
                          std::to_string(slices));
  }
  return slices;
}

}  // namespace

GroupFields ObjectModel::read_group(py::handle group) const {
  return {group.attr("layer_names"),
          group.attr("kv_cache_spec"),
          read_flag(group, "is_eagle_group"),
          read_flag(group, "host_resident"),
          read_flag(group, "enable_kv_transfer"),
          read_role(group.attr("role")),
          read_slices(group)};
}

bool Session::is_same(SpecId known, py::handle spec) const {
  const py::object& object = spec_objects_[known.pos()];
  if (!object) return false;
  return object.is(spec) ||
         (Py_TYPE(object.ptr()) == Py_TYPE(spec.ptr()) && model_.surely_same(object, spec));
}

SpecId Session::read_spec(py::handle spec, SpecId expected) {
  constexpr size_t kMostCompared = 12;
  if (expected.valid() && is_same(expected, spec)) return expected;
  const size_t left =
      spec_objects_.size() > kMostCompared ? spec_objects_.size() - kMostCompared : 0;
  for (size_t i = spec_objects_.size(); i-- > left;) {
    if (is_same(SpecId(i), spec)) return SpecId(i);
  }
  const SpecId id = request_.add_spec(model_.read_spec(spec));
  py::object& slot = at(spec_objects_, id.pos());
  if (!slot) slot = py::reinterpret_borrow<py::object>(spec);
  return id;
}

LayerId Session::read_name(py::handle name) {
  // Workers mostly name the same layers in the same order, if not by the same objects.
  const LayerId expected = next_name_ < layer_objects_.size() ? LayerId(next_name_) : LayerId();
  const LayerId id = expected.valid() && layer_objects_[expected.pos()].name.is(name)
                         ? expected
                         : read_unknown_name(name, expected);
  next_name_ = id.pos() + 1;
  return id;
}

LayerId Session::read_unknown_name(py::handle name, LayerId expected) {
  const std::string_view text = read_text(name, "a layer name");
  const NameTable& names = *request_.names();
  if (expected.valid() && names[expected] == text) return expected;
  // A string remembers its hash, and a key of a dict has one.
  const auto hash = static_cast<size_t>(PyUnicode_Type.tp_hash(name.ptr()));
  const size_t known = layers_by_name_.find(
      hash, [&](size_t i) { return layer_objects_[i].name.is(name) || names[LayerId(i)] == text; });
  if (known != kNone) return LayerId(known);
  const LayerId id = request_.own_names().add_new(text);
  layers_by_name_.add(hash, id.pos());
  at(layer_objects_, id.pos()).name = py::reinterpret_borrow<py::object>(name);
  return id;
}

void Session::reserve_names(size_t count) {
  if (count <= layer_objects_.capacity()) return;
  count = std::max(count, 2 * layer_objects_.capacity());
  layer_objects_.reserve(count);
  layers_by_name_.reserve(count);
  request_.own_names().reserve(count);
}

LayerSpecs Session::read_layers(py::handle mapping) {
  require_dict(mapping);
  const auto count = static_cast<size_t>(PyDict_Size(mapping.ptr()));
  LayerSpecs layers;
  layers.reserve(count);
  reserve_names(count);
  begin_names();
  Py_ssize_t position = 0;
  PyObject *key, *value;
  while (PyDict_Next(mapping.ptr(), &position, &key, &value)) {
    const LayerId name = read_name(key);
    LayerObject& known = layer_objects_[name.pos()];
    const SpecId spec = known.spec.ptr() == value ? known.id : read_spec(value, known.id);
    if (!known.spec) {
      known.spec = py::reinterpret_borrow<py::object>(value);
      known.id = spec;
    }
    layers.push_back({name, spec});
  }
  return layers;
}

LayerSpecs Session::read_owned(py::handle mapping, const std::vector<SpecId>& spec_of_layer) {
  require_dict(mapping);
  LayerSpecs layers;
  layers.reserve(static_cast<size_t>(PyDict_Size(mapping.ptr())));
  begin_names();
  Py_ssize_t position = 0;
  PyObject *key, *value;
  while (PyDict_Next(mapping.ptr(), &position, &key, &value)) {
    const LayerId name = read_name(key);
    if (name.pos() >= spec_of_layer.size() || !spec_of_layer[name.pos()].valid()) {
      throw InconsistentSpec("Some layers are not assigned to any group: layer " +
                             std::string((*request_.names())[name]) + " is in none.");
    }
    layers.push_back({name, spec_of_layer[name.pos()]});
  }
  return layers;
}

KVCacheGroups Session::read_groups(py::handle groups) {
  std::vector<GroupFields> objects;
  size_t count = 0;
  for (py::handle object : groups) {
    objects.push_back(model_.read_group(object));
    const py::object& names = objects.back().layer_names;
    require_sequence(names, "layer_names of a KV cache group");
    if (PyList_CheckExact(names.ptr())) count += static_cast<size_t>(PyList_GET_SIZE(names.ptr()));
  }
  reserve_names(count);
  KVCacheGroups result;
  result.reserve(objects.size());
  for (const GroupFields& fields : objects) {
    KVCacheGroup group;
    begin_names();
    for (py::handle name : fields.layer_names) group.layers.push_back(read_name(name));
    if (model_.is_uniform_type(fields.spec)) {
      LayerSpecs specs = read_layers(model_.uniform_type_specs(fields.spec));
      if (specs.empty()) throw InvalidArgument("UniformTypeKVCacheSpecs holds no layers");
      group.spec = specs[0].spec;
      group.layer_specs = std::make_shared<const LayerSpecs>(std::move(specs));
    } else {
      group.spec = read_spec(fields.spec);
    }
    group.is_eagle_group = fields.is_eagle_group;
    group.host_resident = fields.host_resident;
    group.enable_kv_transfer = fields.enable_kv_transfer;
    group.role = fields.role;
    group.slices = fields.slices;
    result.push_back(std::move(group));
  }
  return result;
}

size_t Session::read_list(py::object mapping, const std::vector<SpecId>* spec_of_layer) {
  // Ranks that share a dict mostly stand side by side. To read one again costs only time.
  if (!last_list_.first.is(mapping)) {
    const size_t list = request_.add_layers(spec_of_layer ? read_owned(mapping, *spec_of_layer)
                                                          : read_layers(mapping));
    last_list_ = {std::move(mapping), list};
  }
  return last_list_.second;
}

void Session::read_workers(py::handle kv_cache_specs, py::handle available_memory,
                           const KVCacheGroups* groups) {
  require_sequence(kv_cache_specs, "kv_cache_specs");
  require_sequence(available_memory, "available_memory");
  const size_t workers = py::len(kv_cache_specs);
  if (workers != py::len(available_memory)) {
    throw InvalidArgument(
        "kv_cache_specs has " + std::to_string(workers) + " workers, available_memory " +
        std::to_string(py::len(available_memory)) + " entries; give one a worker");
  }
  std::vector<SpecId> spec_of_layer;
  if (groups != nullptr) spec_of_layer = specs_by_layer(*groups);
  const py::sequence dicts = py::reinterpret_borrow<py::sequence>(kv_cache_specs);
  size_t worker = 0;
  for (py::handle memory : available_memory) {
    const size_t list = read_list(dicts[worker], groups ? &spec_of_layer : nullptr);
    int64_t bytes = 0;
    read_field(memory, "available_memory[" + std::to_string(worker) + "]", bytes);
    request_.add_worker(list, bytes);
    ++worker;
  }
}

py::object Session::spec_object(SpecId id, const SpecTable& specs) {
  py::object& slot = at(spec_objects_, id.pos());
  if (!slot) slot = model_.make_spec(specs[id]);
  return slot;
}

py::object Session::layer_spec_object(const LayerSpec& layer, const SpecTable& specs) {
  const size_t pos = layer.layer.pos();
  if (pos < layer_objects_.size() && layer_objects_[pos].id == layer.spec) {
    return layer_objects_[pos].spec;
  }
  return spec_object(layer.spec, specs);
}

py::list Session::names(const std::vector<LayerId>& layers) const {
  py::list list(layers.size());
  for (size_t i = 0; i < layers.size(); ++i) {
    PyList_SET_ITEM(list.ptr(), i,
                    py::object(layer_objects_[layers[i].pos()].name).release().ptr());
  }
  return list;
}

py::dict Session::layer_dict(const LayerSpecs& layers, const SpecTable& specs) {
  py::dict dict;
  for (const LayerSpec& l : layers) {
    const py::object spec = layer_spec_object(l, specs);
    if (PyDict_SetItem(dict.ptr(), layer_objects_[l.layer.pos()].name.ptr(), spec.ptr()) != 0) {
      throw py::error_already_set();
    }
  }
  return dict;
}

py::object Session::group_object(const KVCacheGroup& group, const SpecTable& specs) {
  py::object spec = group.is_uniform_type()
                        ? model_.make_uniform_type(specs[group.spec].block_size,
                                                   layer_dict(*group.layer_specs, specs))
                        : spec_object(group.spec, specs);
  return model_.make_group(names(group.layers), std::move(spec), group);
}

py::list Session::group_list(const KVCacheGroups& groups, const SpecTable& specs) {
  py::list list;
  for (const KVCacheGroup& g : groups) list.append(group_object(g, specs));
  return list;
}

py::list Session::tensor_list(const std::vector<KVCacheTensor>& tensors) const {
  py::list list;
  for (const KVCacheTensor& t : tensors) list.append(model_.make_tensor(t, names(t.layers)));
  return list;
}

void Session::log_notices() {
  bindings::log_notices(notices_);
  notices_.clear();
}

py::list Session::take_notices() {
  py::list messages;
  for (const Notice& n : notices_) messages.append(n.message);
  notices_.clear();
  return messages;
}

void log_notices(const Notices& notices) {
  if (notices.empty()) return;
  const py::object logger = py::module_::import("logging").attr("getLogger")("kvplan");
  for (const Notice& n : notices) {
    logger.attr(n.level == Notice::Level::kWarning ? "warning" : "info")("%s", n.message);
  }
}

}  // namespace kvplan::bindings
