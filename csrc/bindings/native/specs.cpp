#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>

#include "bindings/bindings.h"
#include "bindings/native/field_conversion.h"
#include "bindings/native/json_object.h"
#include "bindings/native/planning_config.h"
#include "bindings/native/spec_object.h"
#include "bindings/native/unknown_fields.h"
#include "json_request/read_fields.h"
#include "kvplan/checked.h"
#include "kvplan/page_demand.h"
#include "planning/specs/spec_fields.h"

namespace py = pybind11;

namespace kvplan::bindings {
namespace {

std::array<PyTypeObject*, kNumSpecKinds> types;  // classes live as long as the interpreter

std::string type_name(py::handle h) { return Py_TYPE(h.ptr())->tp_name; }

py::detail::value_and_holder value_in(py::handle object) {
  return reinterpret_cast<py::detail::instance*>(object.ptr())->get_value_and_holder();
}

/// What a Python subclass may not change unseen: planning reads the native value instead.
constexpr const char* kPlanningAttributes[] = {"page_size_bytes",
                                               "unpadded_page_size_bytes",
                                               "get_block_stride_alignment",
                                               "num_heads",
                                               "num_states",
                                               "state_content_size_bytes",
                                               "max_memory_usage_bytes",
                                               "merge",
                                               "is_uniform_with_collection"};

void reject_overrides(py::handle object, const KVCacheSpec& value) {
  PyTypeObject* native = types[static_cast<size_t>(value.kind)];
  const py::handle cls(reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())));
  const py::handle base(reinterpret_cast<PyObject*>(native));
  for (const char* name : kPlanningAttributes) {
    if (!py::hasattr(base, name)) continue;
    if (cls.attr(name).is(base.attr(name))) continue;
    if (PyObject_RichCompareBool(cls.attr(name).ptr(), base.attr(name).ptr(), Py_EQ) == 1) continue;
    // Class methods are bound anew at each access; their functions tell whether they are the same.
    if (std::string_view(name) == "merge" && !cls.attr("__dict__").contains("merge")) continue;
    throw py::type_error(type_name(object) + " overrides " + name +
                         ", which the native planner cannot call; describe it as a CustomSpec");
  }
}

// --- construction -------------------------------------------------------------------------------

/// Fields that vLLM's classes take by position: `block_size`, and a class's own where the dataclass
/// is not keyword-only.
bool takes_position(SpecKind kind, std::string_view field) {
  if (field == "block_size") return true;
  if (kind == SpecKind::kSinkFullAttention) return field == "sink_len";
  return kind == SpecKind::kMamba && field != "dcp_sharded" && field != "block_stride_alignment" &&
         field != "is_draft";
}

/// None stands for "same as head_size", as in vLLM. The core's own mark for that, -1, is no size:
/// vLLM would compute a page without the last element of K.
void read_head_size_v(py::handle in, KVCacheSpec& spec) {
  if (in.is_none()) {
    spec.head_size_v = -1;
    return;
  }
  read_field(in, "head_size_v", spec.head_size_v);
  if (spec.head_size_v >= 0) return;
  throw InvalidArgument(std::string(class_name(spec.kind)) +
                        ": head_size_v must be 0 or more, or None for head_size, got " +
                        std::to_string(spec.head_size_v));
}

KVCacheSpec build(SpecKind kind, const py::args& args, const py::kwargs& kwargs) {
  KVCacheSpec spec = default_spec(kind);
  const std::string name(class_name(kind));
  const auto refuse_unknown = [&] {
    std::vector<std::string> known;
    for_each_field(kind, [&](const auto& field) { known.emplace_back(field.name); });
    refuse_unknown_fields(name, kwargs, known);
  };
  size_t position = 0;
  size_t used = 0;
  for_each_field(kind, [&](const auto& field) {
    const std::string key(field.name);
    const bool by_position = takes_position(kind, field.name) && position < args.size();
    const py::handle by_keyword = PyDict_GetItemString(kwargs.ptr(), key.c_str());
    if (by_position && by_keyword) {
      throw py::type_error(name + " got " + key + " twice");
    }
    if (by_position) {
      read_field(args[position++], field.name, spec.*field.member);
    } else if (by_keyword) {
      ++used;
      if (field.name == "head_size_v") {
        read_head_size_v(by_keyword, spec);
      } else {
        read_field(by_keyword, field.name, spec.*field.member);
      }
    } else if (field.use == FieldUse::kRequired) {
      refuse_unknown();  // perhaps this one, misspelled
      throw py::type_error(name + " needs " + key);
    }
  });
  if (position < args.size()) {
    throw py::type_error(name + " takes " + std::to_string(position) +
                         " positional arguments, got " + std::to_string(args.size()));
  }
  if (used < kwargs.size()) refuse_unknown();
  finalize(spec);
  return spec;
}

py::dict fields_of(const KVCacheSpec& spec) {
  py::dict fields;
  for_each_field(spec.kind, [&](const auto& field) {
    fields[py::str(field.name)] = write_field(spec.*field.member, field.name);
  });
  return fields;
}

py::object rebuild(py::handle self, const py::kwargs& changes) {
  const KVCacheSpec& spec = self.cast<const SpecObject&>().value;
  py::dict fields = fields_of(spec);
  for (const auto& item : changes) fields[item.first] = item.second;
  return py::type::handle_of(self)(**fields);
}

py::object from_dict(const py::dict& fields) {
  if (!fields.contains("kind"))
    throw py::value_error("a spec needs a kind, e.g. FullAttentionSpec");
  const SpecKind kind = parse_spec_kind(read_text(fields["kind"], "kind"));
  py::dict rest = fields.attr("copy")();
  rest.attr("pop")("kind");
  return make_spec_object(build(kind, py::args(), py::kwargs(rest)));
}

py::object merge_specs(py::handle cls, const py::iterable& specs) {
  std::vector<const KVCacheSpec*> values;
  for (py::handle s : specs) values.push_back(&spec_value(s));
  if (values.empty()) throw py::value_error("merge needs at least one spec");
  // The result has the class that merge was called on, where that is a full-attention class.
  KVCacheSpec first = *values[0];
  for (int i = 0; i < kNumSpecKinds; ++i) {
    const auto kind = static_cast<SpecKind>(i);
    if (cls.ptr() == reinterpret_cast<PyObject*>(types[i]) && is_full_attention(kind) &&
        is_full_attention(first.kind)) {
      first.kind = kind;
    }
  }
  values[0] = &first;
  return make_spec_object(merge(values));
}

bool same(py::handle a, py::handle b) {
  return Py_TYPE(a.ptr()) == Py_TYPE(b.ptr()) &&
         a.cast<const SpecObject&>().value == b.cast<const SpecObject&>().value;
}

// --- registration -------------------------------------------------------------------------------

/// One of vLLM's classes. The Python classes alone form its tree: all hold one C++ type.
struct SpecClass {
  const char* name;
  const char* base;
  SpecKind kind;
  bool abstract = false;
};
constexpr SpecClass kClasses[] = {
    {"AttentionSpec", "KVCacheSpec", SpecKind::kCrossAttention, true},
    {"FullAttentionSpec", "AttentionSpec", SpecKind::kFullAttention},
    {"MLAAttentionSpec", "FullAttentionSpec", SpecKind::kMLAAttention},
    {"HiddenStateCacheSpec", "MLAAttentionSpec", SpecKind::kHiddenStateCache},
    {"RSWASpec", "FullAttentionSpec", SpecKind::kRSWA},
    {"SinkFullAttentionSpec", "FullAttentionSpec", SpecKind::kSinkFullAttention},
    {"ChunkedLocalAttentionSpec", "AttentionSpec", SpecKind::kChunkedLocalAttention},
    {"SlidingWindowSpec", "AttentionSpec", SpecKind::kSlidingWindow},
    {"SlidingWindowMLASpec", "SlidingWindowSpec", SpecKind::kSlidingWindowMLA},
    {"CircularBufferSpec", "AttentionSpec", SpecKind::kCircularBuffer},
    {"EncoderOnlyAttentionSpec", "AttentionSpec", SpecKind::kEncoderOnlyAttention},
    {"CrossAttentionSpec", "AttentionSpec", SpecKind::kCrossAttention},
    {"MambaSpec", "KVCacheSpec", SpecKind::kMamba},
    {"HiSparseHotSpec", "KVCacheSpec", SpecKind::kHiSparseHot},
    {"HiSparseResidentSpec", "KVCacheSpec", SpecKind::kHiSparseResident},
    {"CustomSpec", "KVCacheSpec", SpecKind::kCustom},
};

std::string doc_of(const SpecClass& c) {
  if (c.kind != SpecKind::kCustom) {
    return std::string("Mirrors vllm/v1/kv_cache_interface.py::") + c.name + " (0.33).";
  }
  return "A plugin's own cache as numbers: page_size in bytes for block_size tokens, the class it "
         "stands for (custom_class), the class whose group it may share (uniform_type_base, by "
         "default its own), whether a larger block has a larger page, and a CustomDemand.";
}

template <class T>
void def_property(py::handle cls, const char* name, T (*get)(const KVCacheSpec&),
                  const char* doc = "") {
  const py::handle property(reinterpret_cast<PyObject*>(&PyProperty_Type));
  const py::cpp_function getter([get](const SpecObject& self) { return get(self.value); },
                                py::is_method(cls));
  py::setattr(cls, name, property(getter, py::none(), py::none(), doc));
}

/// Properties for the fields that no class above has.
void def_fields(py::handle cls, SpecKind kind, bool (*is_wanted)(std::string_view) = nullptr) {
  const py::handle property(reinterpret_cast<PyObject*>(&PyProperty_Type));
  for_each_field(kind, [&](const auto& field) {
    const std::string name(field.name);
    if (py::hasattr(cls, name.c_str()) || (is_wanted && !is_wanted(name))) return;
    const auto member = field.member;
    const std::function<py::object(const SpecObject&)> get =
        [member, name](const SpecObject& self) { return write_field(self.value.*member, name); };
    py::setattr(cls, name.c_str(), property(py::cpp_function(get, py::is_method(cls))));
  });
}

void def_init(py::handle cls, SpecKind kind) {
  const auto init = [kind](py::detail::value_and_holder& made, const py::args& args,
                           const py::kwargs& kwargs) {
    made.value_ptr() = new SpecObject{build(kind, args, kwargs)};
  };
  py::setattr(cls, "__init__",
              py::cpp_function(init, py::name("__init__"), py::is_method(cls),
                               py::detail::is_new_style_constructor()));
}

void def_admission(py::handle cls) {
  const auto most = [](const SpecObject& self, int64_t max_in_flight_tokens,
                       int64_t max_model_len) {
    return max_admission_blocks_per_request(self.value, max_in_flight_tokens, max_model_len);
  };
  const char* name = "max_admission_blocks_per_request";
  py::setattr(cls, name,
              py::cpp_function(most, py::name(name), py::is_method(cls),
                               py::arg("max_in_flight_tokens"), py::arg("max_model_len"),
                               "Blocks that the scheduler lets one request hold at once."));
}

/// What a class has beside its fields.
void def_more(py::handle cls, SpecKind kind, bool abstract) {
  constexpr const char* kContent = "Bytes of a page's content.";
  if (abstract) {
    def_property(cls, "unpadded_page_size_bytes", &unpadded_page_size_bytes, kContent);
    def_property(cls, "real_page_size_bytes", &unpadded_page_size_bytes, kContent);
  } else if (kind == SpecKind::kMamba) {
    def_property(cls, "real_page_size_bytes", &state_content_size_bytes, "Bytes of the states.");
  } else if (kind == SpecKind::kChunkedLocalAttention || kind == SpecKind::kHiSparseResident) {
    def_admission(cls);
  } else if (kind == SpecKind::kSlidingWindow) {
    def_admission(cls);
    def_property<int64_t>(
        cls, "num_retained_tokens",
        [](const KVCacheSpec& s) { return *s.sliding_window - 1 + s.extra_retained_tokens; },
        "Tokens below the first scheduled position that stay readable.");
  }
}

void bind_class(py::module_& m, const SpecClass& c) {
  py::dict space;
  space["__doc__"] = doc_of(c);
  space["__module__"] = m.attr("__name__");
  space["__slots__"] = py::tuple();
  const py::object base = m.attr(c.base);
  const py::object cls = py::type::handle_of(base)(c.name, py::make_tuple(base), space);
  py::delattr(cls, "__slots__");  // asked for when the class was made, and of no use to a reader
  m.attr(c.name) = cls;
  if (!c.abstract) {
    def_init(cls, c.kind);
    types[static_cast<size_t>(c.kind)] = reinterpret_cast<PyTypeObject*>(cls.ptr());
  }
  def_fields(cls, c.kind);
  def_more(cls, c.kind, c.abstract);
}

/// Those that every kind has.
bool is_common(std::string_view field) {
  return field == "block_size" || field == "dcp_sharded" || field == "block_stride_alignment" ||
         field == "is_draft";
}

void bind_base(py::module_& m) {
  py::class_<SpecObject> cls(m, "KVCacheSpec",
                             "The cache format of one layer. Immutable.\n\n"
                             "Mirrors vllm/v1/kv_cache_interface.py::KVCacheSpec (0.33).");
  def_property(cls, "page_size_bytes", &page_size_bytes,
               "Bytes of one block of one layer, padding included.");
  def_property(cls, "num_heads", &num_heads, "H of the logical [B, H, N, C] page.");
  def_property<int64_t>(
      cls, "num_states", [](const KVCacheSpec& s) { return num_states(s, s.block_size); },
      "N of the logical page: states of a block.");
  def_property(cls, "state_content_size_bytes", &state_content_size_bytes,
               "C of the logical page, in bytes.");
  def_property(cls, "prefix_cacheable", &prefix_cacheable,
               "Whether its group takes part in prefix caching.");
  def_property(cls, "prefix_replay_tokens", &prefix_replay_tokens,
               "Tokens replayed after a prefix hit.");
  def_property(cls, "block_table_token_alignment", &block_table_token_alignment,
               "Tokens that a block table row is padded to, or None.");
  def_property(cls, "has_layer_views", &has_layer_views,
               "Whether allocation makes per-layer views.");
  def_property(cls, "uses_slot_mapping", &uses_slot_mapping,
               "Whether the worker computes a slot mapping.");
  def_fields(cls, SpecKind::kCustom, is_common);
  cls.def(
         "get_block_stride_alignment",
         [](const SpecObject& self) { return get_block_stride_alignment(self.value); },
         "Bytes that the stride between physical blocks must be a multiple of.")
      .def(
          "get_num_kernel_states",
          [](const SpecObject& self, int64_t kernel_block_size) {
            return num_states(self.value, kernel_block_size);
          },
          py::arg("kernel_block_size"), "States of a kernel block of that many tokens.")
      .def(
          "max_memory_usage_bytes",
          [](const SpecObject& self, py::handle config) {
            return max_memory_usage_bytes(self.value, read_config(config));
          },
          py::arg("vllm_config"), "Bytes that one request of max_model_len tokens holds.")
      .def(
          "max_num_blocks_per_req",
          [](const SpecObject& self, py::handle config, int64_t max_len) {
            return max_num_blocks_per_req(self.value, read_config(config), max_len);
          },
          py::arg("vllm_config"), py::arg("max_len"), "Block table entries of one request.")
      .def(
          "copy_with_new_block_size",
          [](const SpecObject& self, int64_t block_size) {
            return make_spec_object(with_block_size(self.value, block_size));
          },
          py::arg("block_size"))
      .def(
          "is_uniform_with_collection",
          [](const SpecObject& self, const py::dict& specs) {
            for (const auto& item : specs) {
              if (!is_uniform_with(self.value, spec_value(item.second))) return false;
            }
            return true;
          },
          py::arg("kv_cache_specs"), "Whether all these layers need the same token slots as this.")
      .def("replace", &rebuild, "A copy with the given fields changed.")
      .def(
          "to_dict",
          [](const SpecObject& self) {
            return py::dict(json_object(json_request::write_spec(self.value)));
          },
          "The class name as `kind`, and the fields that matter.")
      .def(
          "_fields", [](const SpecObject& self) { return fields_of(self.value); },
          "All fields by name.")
      .def("__eq__",
           [](py::handle self, py::handle other) {
             return py::isinstance<SpecObject>(other) && same(self, other);
           })
      .def("__hash__", [](const SpecObject& self) { return hash_value(self.value); })
      .def("__repr__", [](const SpecObject& self) { return to_string(self.value); })
      .def("__copy__", [](py::object self) { return self; })
      .def("__deepcopy__", [](py::object self, py::handle) { return self; })
      .def("__reduce__", [](py::handle self) -> py::tuple {
        return py::make_tuple(py::module_::import("kvplan._core").attr("_restore_spec"),
                              py::make_tuple(py::type::handle_of(self),
                                             fields_of(self.cast<const SpecObject&>().value)));
      });
  cls.attr("merge") = py::reinterpret_steal<py::object>(
      PyClassMethod_New(py::cpp_function(&merge_specs, py::arg("cls"), py::arg("specs")).ptr()));
}

std::vector<const KVCacheSpec*> layer_specs(const py::dict& specs) {
  std::vector<const KVCacheSpec*> values;
  for (const auto& item : specs) values.push_back(&spec_value(item.second));
  return values;
}

std::unique_ptr<UniformTypeSpecsObject> make_uniform_type(int64_t block_size,
                                                          const py::dict& specs) {
  auto object = std::make_unique<UniformTypeSpecsObject>();
  const std::vector<const KVCacheSpec*> values = layer_specs(specs);  // native, or TypeError
  object->kv_cache_specs = specs;
  object->value.block_size = block_size;
  if (!values.empty()) object->value.dcp_sharded = values[0]->dcp_sharded;
  return object;
}

py::object uniform_type_from_specs(const py::dict& specs) {
  const std::vector<const KVCacheSpec*> values = layer_specs(specs);
  if (!is_uniform_type(values)) return py::none();
  return py::cast(make_uniform_type(values[0]->block_size, specs));
}

void bind_uniform_type(py::module_& m) {
  using Object = UniformTypeSpecsObject;
  py::class_<Object, SpecObject> cls(
      m, "UniformTypeKVCacheSpecs",
      "One spec for each layer of a group whose layers need the same token slots.\n\n"
      "Mirrors vllm/v1/kv_cache_interface.py::UniformTypeKVCacheSpecs (0.33).");
  const auto of_layers = [&](const char* name, auto function, const char* doc) {
    cls.def_property_readonly(
        name, [function](const Object& o) { return function(layer_specs(o.kv_cache_specs)); }, doc);
  };
  // As vLLM: what the first layer says.
  const auto of_first = [&](const char* name) {
    cls.def_property_readonly(name, [name](const Object& o) {
      return py::object((*o.kv_cache_specs.begin()).second.attr(name));
    });
  };
  const auto pages = [](const Object& o, py::handle config) {
    return max_pages(layer_specs(o.kv_cache_specs), read_config(config));
  };
  const auto page = [](SpecList specs) { return page_size_bytes(specs); };
  cls.def(py::init(&make_uniform_type), py::arg("block_size"), py::arg("kv_cache_specs"))
      .def_readonly("kv_cache_specs", &Object::kv_cache_specs)
      .def_property_readonly(
          "first_spec",
          [](const Object& o) {
            return py::reinterpret_borrow<py::object>((*o.kv_cache_specs.begin()).second);
          })
      .def("max_memory_usage_pages", pages, py::arg("vllm_config"),
           "Pages that one request of max_model_len tokens holds.")
      .def(
          "max_memory_usage_bytes",
          [pages, page](const Object& o, py::handle config) {
            return checked::mul(pages(o, config), page(layer_specs(o.kv_cache_specs)),
                                "bytes of one request");
          },
          py::arg("vllm_config"))
      .def(
          "max_num_blocks_per_req",
          [](const Object& o, py::handle config, int64_t max_len) {
            return max_num_blocks_per_req(layer_specs(o.kv_cache_specs), read_config(config),
                                          max_len);
          },
          py::arg("vllm_config"), py::arg("max_len"))
      .def("get_max_layers_per_page_size",
           [](const Object& o) { return max_layers_per_page_size(layer_specs(o.kv_cache_specs)); })
      .def_static(
          "is_uniform_type",
          [](const py::dict& specs) { return is_uniform_type(layer_specs(specs)); },
          py::arg("kv_cache_specs"))
      .def_static("from_specs", &uniform_type_from_specs, py::arg("kv_cache_specs"))
      .def("__eq__",
           [](const Object& o, py::handle other) {
             if (!py::isinstance<Object>(other)) return false;
             const auto& that = other.cast<const Object&>();
             return o.value.block_size == that.value.block_size &&
                    o.kv_cache_specs.equal(that.kv_cache_specs);
           })
      // vLLM's class cannot be hashed either: it holds a dict.
      .def("__repr__",
           [](const Object& o) {
             return "UniformTypeKVCacheSpecs(block_size=" + std::to_string(o.value.block_size) +
                    ", kv_cache_specs=" + py::repr(o.kv_cache_specs).cast<std::string>() + ")";
           })
      .def("__reduce__", [](py::handle self) -> py::tuple {
        const auto& o = self.cast<const Object&>();
        return py::make_tuple(py::type::handle_of(self),
                              py::make_tuple(o.value.block_size, o.kv_cache_specs));
      });
  of_layers("page_size_bytes", page, "Bytes of one block of all layers together.");
  of_layers(
      "prefix_cacheable",
      [](SpecList specs) {
        return std::all_of(specs.begin(), specs.end(),
                           [](const KVCacheSpec* s) { return prefix_cacheable(*s); });
      },
      "");
  of_layers(
      "prefix_replay_tokens",
      [](SpecList specs) {
        int64_t most = 0;
        for (const KVCacheSpec* s : specs) most = std::max(most, prefix_replay_tokens(*s));
        return most;
      },
      "");
  of_first("block_table_token_alignment");
  of_first("uses_slot_mapping");
  cls.attr("__hash__") = py::none();
}

}  // namespace

py::object make_spec_object(const KVCacheSpec& spec) {
  // As pybind11 makes one, but of the Python class that the kind has.
  const auto object = py::reinterpret_steal<py::object>(
      py::detail::make_new_instance(types[static_cast<size_t>(spec.kind)]));
  py::detail::value_and_holder made = value_in(object);
  made.value_ptr() = new SpecObject{spec};
  py::detail::get_type_info(typeid(SpecObject))->init_instance(made.inst, nullptr);
  return object;
}

const KVCacheSpec& spec_value(py::handle object) {
  // Almost always a class of kvplan's itself, and then pybind11's conversion costs ten times as
  // much as this.
  if (std::find(types.begin(), types.end(), Py_TYPE(object.ptr())) != types.end()) {
    const void* held = value_in(object).value_ptr<void>();
    if (held == nullptr) {
      throw py::type_error(type_name(object) + " was made without calling __init__");
    }
    return static_cast<const SpecObject*>(held)->value;
  }
  if (!py::isinstance<SpecObject>(object)) {
    throw py::type_error("expected a kvplan KV cache spec, got " + type_name(object));
  }
  const KVCacheSpec& value = object.cast<const SpecObject&>().value;
  if (Py_TYPE(object.ptr()) != types[static_cast<size_t>(value.kind)]) {
    if (py::isinstance<UniformTypeSpecsObject>(object)) {
      throw py::type_error("a layer's spec cannot be UniformTypeKVCacheSpecs");
    }
    reject_overrides(object, value);
  }
  return value;
}

void bind_specs(py::module_& m) {
  bind_base(m);
  for (const SpecClass& c : kClasses) bind_class(m, c);
  bind_uniform_type(m);
  m.def("spec_from_dict", &from_dict, py::arg("fields"),
        "A spec from what to_dict() gives. Raises ValueError or TypeError that names the field.");
  m.def("_restore_spec", [](py::handle cls, const py::dict& fields) { return cls(**fields); });
}

}  // namespace kvplan::bindings
