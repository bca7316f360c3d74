#include "bindings/vllm/objects.h"

#include <algorithm>
#include <type_traits>

#include "bindings/native/field_conversion.h"
#include "kvplan/errors.h"
#include "planning/specs/spec_fields.h"

namespace py = pybind11;

namespace kvplan::bindings {
namespace {

py::object interned(py::handle name) {
  PyObject* text = name.inc_ref().ptr();
  PyUnicode_InternInPlace(&text);
  return py::reinterpret_steal<py::object>(text);
}

py::object attribute(py::handle object, py::handle name) {
  PyObject* value = PyObject_GetAttr(object.ptr(), name.ptr());
  if (value == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(value);
}

/// What a frozen dataclass does in its `__init__`.
void set_attribute(py::handle object, py::handle name, py::handle value) {
  if (PyObject_GenericSetAttr(object.ptr(), name.ptr(), value.ptr()) != 0) {
    throw py::error_already_set();
  }
}

py::object allocate(py::handle type) {
  auto* cls = reinterpret_cast<PyTypeObject*>(type.ptr());
  PyObject* object = cls->tp_alloc(cls, 0);
  if (object == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(object);
}

std::string type_name(py::handle object) {
  const py::handle type(reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())));
  return py::str("{}.{}")
      .format(type.attr("__module__"), type.attr("__qualname__"))
      .cast<std::string>();
}

/// The instance dictionary; null where an object has none.
py::object instance_dict(py::handle object) {
  PyObject* dict = PyObject_GenericGetDict(object.ptr(), nullptr);
  if (dict == nullptr) PyErr_Clear();
  return py::reinterpret_steal<py::object>(dict);
}

/// An attribute of an object that keeps it in its dictionary, or in another way.
py::object field_of(py::handle object, const py::object& dict, const py::object& name) {
  PyObject* value = dict ? PyDict_GetItemWithError(dict.ptr(), name.ptr()) : nullptr;
  if (value != nullptr) return py::reinterpret_borrow<py::object>(value);
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  return attribute(object, name);
}

/// Equal values of the types that specs hold; anything that is not surely equal is not.
bool surely_equal(PyObject* a, PyObject* b) {
  if (a == b) return true;
  if (Py_TYPE(a) != Py_TYPE(b)) return false;
  if (PyLong_CheckExact(a) || PyUnicode_CheckExact(a)) {
    return PyObject_RichCompareBool(a, b, Py_EQ) == 1;
  }
  if (!PyTuple_CheckExact(a) || PyTuple_GET_SIZE(a) != PyTuple_GET_SIZE(b)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(a); ++i) {
    if (!surely_equal(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i))) return false;
  }
  return true;
}

}  // namespace

VllmObjects::VllmObjects(const py::dict& description) {
  const py::dict specs = description["specs"];
  for (const auto& item : specs) {
    const py::dict entry = py::reinterpret_borrow<py::dict>(item.second);
    const SpecKind kind = parse_spec_kind(item.first.cast<std::string>());
    SpecClass& cls = classes_[static_cast<size_t>(kind)];
    cls.type = entry["type"];
    cls.kind = kind;
    cls.unsupported = entry["unsupported"].cast<std::string>();
    const py::object fields = entry["fields"];
    for_each_field(kind, [&](const auto& field) {
      const py::str name{std::string(field.name)};
      cls.names.push_back(fields.contains(name) ? interned(name) : py::object());
    });
    for (const auto& extra : py::reinterpret_borrow<py::dict>(entry["extra"])) {
      cls.extra.emplace_back(interned(extra.first),
                             py::reinterpret_borrow<py::object>(extra.second));
    }
    by_type_.emplace(reinterpret_cast<PyTypeObject*>(cls.type.ptr()), &cls);
  }
  uniform_type_ = read_plain_class(description["uniform_type"]);
  group_ = read_plain_class(description["group"]);
  tensor_ = read_plain_class(description["tensor"]);
  config_ = read_plain_class(description["config"]);
  dtype_objects_ = description["dtypes"];
  for (const auto& item : dtype_objects_) {
    dtypes_.emplace(item.second.ptr(), parse_dtype(item.first.cast<std::string>()));
  }
  mamba_types_ = description["mamba_types"];
  cache_roles_ = description["cache_roles"];
  for (const py::dict& names : {mamba_types_, cache_roles_}) {
    for (const auto& item : names) {
      enum_names_.emplace(item.second.ptr(), item.first.cast<std::string>());
    }
  }
  quant_mode_ = description["quant_mode"];
  multiple_of_ = description["multiple_of"];
  fraction_ = description["fraction"];
  roles_ = description["roles"];
  projection_resets_group_ = description["projection_resets_group"].cast<bool>();
}

// --- reading -------------------------------------------------------------------------------------

const VllmObjects::SpecClass& VllmObjects::class_of(py::handle spec) const {
  const auto it = by_type_.find(Py_TYPE(spec.ptr()));
  if (it == by_type_.end()) {
    throw py::type_error("KV cache spec class " + type_name(spec) + " is not known to kvplan");
  }
  if (!it->second->unsupported.empty()) throw py::type_error(it->second->unsupported);
  return *it->second;
}

template <class T>
void VllmObjects::read(py::handle in, std::string_view field, T& out) const {
  if constexpr (std::is_same_v<T, DType>) {
    const auto it = dtypes_.find(in.ptr());
    if (it == dtypes_.end()) {
      throw py::type_error(std::string(field) + "=" + py::repr(in).cast<std::string>() +
                           " is not a dtype that kvplan knows");
    }
    out = it->second;
  } else if constexpr (std::is_same_v<T, std::vector<DType>>) {
    out.clear();
    for (py::handle item : in) read(item, field, out.emplace_back());
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (const auto it = enum_names_.find(in.ptr()); it != enum_names_.end()) {
      out = it->second;
    } else if (PyUnicode_CheckExact(in.ptr()) && field != "cache_role" && field != "mamba_type") {
      out = in.cast<std::string>();
    } else {
      throw py::type_error(std::string(field) + "=" + py::repr(in).cast<std::string>() +
                           " is not known to kvplan");
    }
  } else if constexpr (std::is_same_v<T, std::optional<std::string>>) {
    if (in.is_none()) {
      out.reset();
    } else {
      read(in, field, out.emplace());
    }
  } else {
    read_field(in, field, out);
  }
}

KVCacheSpec VllmObjects::read_spec(py::handle spec) const {
  const SpecClass& cls = class_of(spec);
  KVCacheSpec value = default_spec(cls.kind);
  const py::object dict = instance_dict(spec);
  size_t i = 0;
  for_each_field(cls.kind, [&](const auto& field) {
    const py::object& name = cls.names[i++];
    if (name) read(field_of(spec, dict, name), field.name, value.*field.member);
  });
  for (const auto& [name, fallback] : cls.extra) {
    const py::object actual = field_of(spec, dict, name);
    const int same = PyObject_RichCompareBool(actual.ptr(), fallback.ptr(), Py_EQ);
    if (same < 0) throw py::error_already_set();
    if (same == 0) {
      throw py::type_error(std::string(class_name(cls.kind)) + "." + name.cast<std::string>() +
                           "=" + py::repr(actual).cast<std::string>() +
                           " is a field that kvplan does not know, and not at its default");
    }
  }
  // Validates; of what vLLM has made itself it changes nothing.
  const std::optional<int64_t> padded = value.page_size_padded;
  const int64_t head_size_v = value.head_size_v;
  finalize(value);
  if (value.page_size_padded != padded || value.head_size_v != head_size_v) {
    throw py::value_error(std::string(class_name(cls.kind)) +
                          " was changed after it was made: " + py::repr(spec).cast<std::string>());
  }
  return value;
}

bool VllmObjects::surely_same(py::handle known, py::handle spec) const {
  const py::object a = instance_dict(known), b = instance_dict(spec);
  if (!a || !b || PyDict_GET_SIZE(a.ptr()) != PyDict_GET_SIZE(b.ptr())) return false;
  // Instances of one dataclass have their fields in one order.
  Py_ssize_t i = 0, j = 0;
  PyObject *name, *value, *other_name, *other_value;
  while (PyDict_Next(a.ptr(), &i, &name, &value)) {
    if (!PyDict_Next(b.ptr(), &j, &other_name, &other_value)) return false;
    if (name != other_name || !surely_equal(value, other_value)) return false;
  }
  return true;
}

bool VllmObjects::is_uniform_type(py::handle spec) const {
  return Py_TYPE(spec.ptr()) == reinterpret_cast<PyTypeObject*>(uniform_type_.type.ptr());
}

py::dict VllmObjects::uniform_type_specs(py::handle spec) const {
  return spec.attr("kv_cache_specs");
}

GroupFields VllmObjects::read_group(py::handle group) const {
  if (Py_TYPE(group.ptr()) != reinterpret_cast<PyTypeObject*>(group_.type.ptr())) {
    throw py::type_error("KV cache group class " + type_name(group) + " is not known to kvplan");
  }
  GroupFields fields;
  fields.layer_names = group.attr("layer_names");
  if (!PyList_CheckExact(fields.layer_names.ptr())) {
    throw py::type_error("layer_names of a KV cache group must be a list, got " +
                         type_name(fields.layer_names));
  }
  fields.spec = group.attr("kv_cache_spec");
  read_field(group.attr("is_eagle_group"), "is_eagle_group", fields.is_eagle_group);
  read_field(group.attr("host_resident"), "host_resident", fields.host_resident);
  read_field(group.attr("enable_kv_transfer"), "enable_kv_transfer", fields.enable_kv_transfer);
  const py::object role = group.attr("role");
  if (!role.is(py::object(roles_[0])) || fields.host_resident) {
    throw py::value_error("a KV cache group has the role " + py::repr(role).cast<std::string>() +
                          (fields.host_resident ? " in host memory" : "") + ", which vLLM plans");
  }
  return fields;
}

// --- making --------------------------------------------------------------------------------------

py::object VllmObjects::dtype_object(DType dtype) const {
  return dtype_objects_[py::str(std::string(to_string(dtype)))];
}

py::object VllmObjects::enum_object(const py::dict& by_name, const std::string& name,
                                    std::string_view field) const {
  const py::str key(name);
  if (!by_name.contains(key)) {
    throw py::value_error(std::string(field) + "='" + name + "' has no counterpart in vLLM");
  }
  return by_name[key];
}

template <class T>
py::object VllmObjects::write(const T& value, std::string_view field) const {
  if constexpr (std::is_same_v<T, DType>) {
    return dtype_object(value);
  } else if constexpr (std::is_same_v<T, std::vector<DType>>) {
    py::tuple out(value.size());
    for (size_t i = 0; i < value.size(); ++i) out[i] = dtype_object(value[i]);
    return out;
  } else if constexpr (std::is_same_v<T, int32_t>) {
    return quant_mode_(value);
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (field == "cache_role") return enum_object(cache_roles_, value, field);
    if (field == "mamba_type") return enum_object(mamba_types_, value, field);
    return py::str(value);
  } else if constexpr (std::is_same_v<T, TokensPerState>) {
    if (value.den == 1) return py::int_(value.num);
    return fraction_(value.num, value.den);
  } else if constexpr (std::is_same_v<T, BlockStrideAlignment>) {
    if (value.kind == BlockStrideAlignment::Kind::kMultipleOf) return multiple_of_(value.value);
    if (value.kind == BlockStrideAlignment::Kind::kBytes) return py::int_(value.value);
    return py::none();
  } else {
    return write_field(value, field);
  }
}

py::object VllmObjects::make_spec(const KVCacheSpec& spec) const {
  const SpecClass& cls = classes_[static_cast<size_t>(spec.kind)];
  if (!cls.type || !cls.unsupported.empty()) {
    throw py::type_error("this vLLM has no " + std::string(class_name(spec.kind)) +
                         " that kvplan knows");
  }
  const py::object object = allocate(cls.type);
  size_t i = 0;
  for_each_field(spec.kind, [&](const auto& field) {
    const py::object& name = cls.names[i++];
    if (name) set_attribute(object, name, write(spec.*field.member, field.name));
  });
  for (const auto& [name, fallback] : cls.extra) set_attribute(object, name, fallback);
  return object;
}

VllmObjects::PlainClass VllmObjects::read_plain_class(py::handle description) const {
  PlainClass cls;
  cls.type = description["type"];
  for (const auto& item : py::reinterpret_borrow<py::dict>(description["fields"])) {
    // A field without a default stands as Ellipsis.
    cls.defaults.emplace_back(interned(item.first),
                              item.second.is(py::ellipsis())
                                  ? py::object()
                                  : py::reinterpret_borrow<py::object>(item.second));
  }
  return cls;
}

py::object VllmObjects::instantiate(const PlainClass& cls,
                                    std::initializer_list<py::handle> values) const {
  const py::object object = allocate(cls.type);
  const auto* value = values.begin();
  for (const auto& [name, fallback] : cls.defaults) {
    const py::handle given = value != values.end() ? *value++ : py::handle();
    const py::handle chosen = given ? given : py::handle(fallback);
    if (chosen) set_attribute(object, name, chosen);
  }
  return object;
}

py::object VllmObjects::make_uniform_type(int64_t block_size, py::dict specs) const {
  static const py::handle name_of_size = interned(py::str("block_size")).release();
  static const py::handle name_of_specs = interned(py::str("kv_cache_specs")).release();
  static const py::handle name_of_sharding = interned(py::str("dcp_sharded")).release();
  PyObject *key = nullptr, *first = nullptr;
  Py_ssize_t position = 0;
  if (PyDict_Next(specs.ptr(), &position, &key, &first) == 0) {
    throw InvalidArgument("UniformTypeKVCacheSpecs holds no layers");
  }
  py::object object = instantiate(uniform_type_, {});
  set_attribute(object, name_of_size, py::int_(block_size));
  // vLLM takes it from the first layer, too, once the object is made.
  set_attribute(object, name_of_sharding, attribute(first, name_of_sharding));
  set_attribute(object, name_of_specs, specs);
  return object;
}

py::object VllmObjects::make_group(py::list layer_names, py::object spec,
                                   const KVCacheGroup& group) const {
  return instantiate(
      group_, {layer_names, spec, py::bool_(group.is_eagle_group), py::bool_(group.host_resident),
               py::bool_(group.enable_kv_transfer), roles_[static_cast<size_t>(group.role)]});
}

py::object VllmObjects::project_group(const GroupFields& group, py::list layer_names,
                                      py::object spec) const {
  const bool eagle = group.is_eagle_group &&
                     !(projection_resets_group_ && PyList_GET_SIZE(layer_names.ptr()) == 0);
  const bool transfer = group.enable_kv_transfer || projection_resets_group_;
  return instantiate(group_, {layer_names, spec, py::bool_(eagle), py::bool_(group.host_resident),
                              py::bool_(transfer), roles_[static_cast<size_t>(group.role)]});
}

py::object VllmObjects::make_tensor(const KVCacheTensor& t, py::list layers) const {
  return instantiate(tensor_, {py::int_(t.size), layers, py::int_(t.layer_stride),
                               py::int_(t.block_stride), py::int_(t.offset)});
}

py::object VllmObjects::make_config(int64_t num_blocks, py::list tensors, py::list groups,
                                    py::object retention_interval, int64_t kv_tp_replicas) const {
  static const py::handle replicas = interned(py::str("kv_tp_replicas")).release();
  py::object config =
      instantiate(config_, {py::int_(num_blocks), tensors, groups, retention_interval});
  set_attribute(config, replicas, py::int_(kv_tp_replicas));
  return config;
}

}  // namespace kvplan::bindings
