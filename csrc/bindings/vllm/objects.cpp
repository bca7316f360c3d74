#include "bindings/vllm/objects.h"

#include <algorithm>
#include <type_traits>

#include "bindings/native/field_conversion.h"
#include "bindings/vllm/subclass.h"
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

py::list list_of(std::initializer_list<const char*> names) {
  py::list list;
  for (const char* n : names) list.append(n);
  return list;
}

/// The values of an object's attributes, asked for in about the order in which they were set.
class FieldReader {
 public:
  /// Of a class that is known to keep them all in the object's dictionary, or of any.
  FieldReader(py::handle object, bool known) : object_(object) {
    if (known) dict_ = py::reinterpret_borrow<py::object>(instance_dict(object));
  }

  py::object get(const py::object& name) {
    PyObject *key = nullptr, *value = nullptr;
    Py_ssize_t next = position_;
    if (dict_) {
      if (PyDict_Next(dict_.ptr(), &next, &key, &value) != 0 && key == name.ptr()) {
        position_ = next;
      } else {
        value = PyDict_GetItemWithError(dict_.ptr(), name.ptr());
      }
    }
    if (value != nullptr) return py::reinterpret_borrow<py::object>(value);
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
    return attribute(object_, name);
  }

 private:
  py::handle object_;
  py::object dict_;
  Py_ssize_t position_ = 0;
};

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
  class_above_ = description["class_above"];
}

// --- reading -------------------------------------------------------------------------------------

const VllmObjects::SpecClass& VllmObjects::class_of(py::handle spec) const {
  const auto it = by_type_.find(Py_TYPE(spec.ptr()));
  const SpecClass& cls =
      it != by_type_.end() ? *it->second : known_class_above(py::type::handle_of(spec));
  if (!cls.unsupported.empty()) throw py::type_error(cls.unsupported);
  return cls;
}

const VllmObjects::SpecClass& VllmObjects::known_class_above(py::handle type) const {
  const auto name = class_above_(type).cast<std::string>();
  return classes_[static_cast<size_t>(parse_spec_kind(name))];
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
  FieldReader fields(spec, py::type::handle_of(spec).is(cls.type));
  size_t i = 0;
  for_each_field(cls.kind, [&](const auto& field) {
    const py::object& name = cls.names[i++];
    if (name) read(fields.get(name), field.name, value.*field.member);
  });
  for (const auto& [name, fallback] : cls.extra) {
    const py::object actual = fields.get(name);
    const int same = PyObject_RichCompareBool(actual.ptr(), fallback.ptr(), Py_EQ);
    if (same < 0) throw py::error_already_set();
    if (same == 0) {
      throw py::type_error(std::string(class_name(cls.kind)) + "." + name.cast<std::string>() +
                           "=" + py::repr(actual).cast<std::string>() +
                           " is a field that kvplan does not know, and not at its default");
    }
  }
  const py::handle type = py::type::handle_of(spec);
  std::shared_ptr<const VllmSubclass> subclass;
  if (!type.is(cls.type)) {
    require_no_others(spec, cls);
    subclass = std::make_shared<const VllmSubclass>(*this, type);
    value.subclass = subclass;
  }
  // Validates; of what vLLM has made itself it changes nothing.
  const std::optional<int64_t> padded = value.page_size_padded;
  const int64_t head_size_v = value.head_size_v;
  finalize(value);
  if (value.page_size_padded != padded || value.head_size_v != head_size_v) {
    throw py::value_error(std::string(class_name(cls.kind)) +
                          " was changed after it was made: " + py::repr(spec).cast<std::string>());
  }
  if (subclass) subclass->require_same(spec, value);
  return value;
}

void VllmObjects::require_no_others(py::handle spec, const SpecClass& cls) {
  PyObject* attributes = instance_dict(spec);
  const auto fields = std::count_if(cls.names.begin(), cls.names.end(),
                                    [](const py::object& name) { return bool(name); });
  const auto known = fields + static_cast<Py_ssize_t>(cls.extra.size());
  if (attributes != nullptr && PyDict_GET_SIZE(attributes) == known) return;
  // A merged or replaced object would lose them, or not, as vLLM copies it.
  throw py::type_error("KV cache spec class " + type_name(spec) +
                       " is not known to kvplan: an object holds more than its fields");
}

SpecImage VllmObjects::image_of(py::handle spec) const { return SpecImage(spec); }

bool VllmObjects::surely_same(py::handle, const SpecImage& image, py::handle spec) const {
  return image.surely_same(spec);
}

bool VllmObjects::is_uniform_type(py::handle spec) const {
  return Py_TYPE(spec.ptr()) == reinterpret_cast<PyTypeObject*>(uniform_type_.type.ptr());
}

py::dict VllmObjects::uniform_type_specs(py::handle spec) const {
  static const py::handle name = interned(py::str("kv_cache_specs")).release();
  return attribute(spec, name);
}

GroupFields VllmObjects::read_group(py::handle group) const {
  static const py::handle names = list_of({"layer_names", "kv_cache_spec", "is_eagle_group",
                                           "host_resident", "enable_kv_transfer", "role"})
                                      .release();
  if (Py_TYPE(group.ptr()) != reinterpret_cast<PyTypeObject*>(group_.type.ptr())) {
    throw py::type_error("KV cache group class " + type_name(group) + " is not known to kvplan");
  }
  const auto get = [&](size_t i) {
    return attribute(group, PyList_GET_ITEM(names.ptr(), static_cast<Py_ssize_t>(i)));
  };
  GroupFields fields;
  fields.layer_names = get(0);
  if (!PyList_CheckExact(fields.layer_names.ptr())) {
    throw py::type_error("layer_names of a KV cache group must be a list, got " +
                         type_name(fields.layer_names));
  }
  fields.spec = get(1);
  read_field(get(2), "is_eagle_group", fields.is_eagle_group);
  read_field(get(3), "host_resident", fields.host_resident);
  read_field(get(4), "enable_kv_transfer", fields.enable_kv_transfer);
  const py::object role = get(5);
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
  const py::object object = allocate(spec.subclass ? type_of(*spec.subclass) : cls.type);
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
