#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <functional>

#include "bindings/bindings.h"
#include "bindings/native/field_conversion.h"
#include "bindings/native/planning_config.h"
#include "bindings/native/spec_object.h"
#include "bindings/native/unknown_fields.h"
#include "kvplan/checked.h"
#include "kvplan/page_demand.h"
#include "planning/specs/spec_fields.h"

namespace py = pybind11;

namespace kvplan::bindings {
namespace {

using Maker = py::object (*)(const KVCacheSpec&);
std::array<Maker, kNumSpecKinds> makers;
using Reader = const KVCacheSpec& (*)(const void*);
std::array<Reader, kNumSpecKinds> readers;
std::array<PyTypeObject*, kNumSpecKinds> types;  // classes live as long as the interpreter

std::string type_name(py::handle h) { return Py_TYPE(h.ptr())->tp_name; }

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
    known.emplace_back("subclass");
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
  if (kwargs.contains("subclass")) {
    ++used;
    read_field(kwargs["subclass"], "subclass", spec.subclass);
  }
  if (used < kwargs.size()) refuse_unknown();
  finalize(spec);
  return spec;
}

/// All fields, or with `compact` those that are required or differ from their defaults.
py::dict fields_of(const KVCacheSpec& spec, bool compact = false) {
  KVCacheSpec defaults = default_spec(spec.kind);
  if (defaults.head_size_v == -1) defaults.head_size_v = spec.head_size;
  py::dict fields;
  for_each_field(spec.kind, [&](const auto& field) {
    if (compact && field.use == FieldUse::kOptional &&
        spec.*field.member == defaults.*field.member) {
      return;
    }
    fields[py::str(field.name)] = write_field(spec.*field.member, field.name);
  });
  if (spec.subclass) fields["subclass"] = write_field(spec.subclass, "subclass");
  return fields;
}

py::object rebuild(py::handle self, const py::kwargs& changes) {
  const KVCacheSpec& spec = self.cast<const SpecObject&>().value;
  py::dict fields = fields_of(spec);
  for (const auto& item : changes) fields[item.first] = item.second;
  return py::type::handle_of(self)(**fields);
}

py::dict to_dict(const SpecObject& self) {
  py::dict fields = fields_of(self.value, true);
  py::dict out;
  out["kind"] = std::string(class_name(self.value.kind));
  for (const auto& item : fields) {
    py::object value = py::reinterpret_borrow<py::object>(item.second);
    const auto key = item.first.cast<std::string>();
    if (key == "tokens_per_state" && !py::isinstance<py::int_>(value)) value = py::str(value);
    if (key == "block_stride_alignment" && !py::isinstance<py::int_>(value)) {
      value = py::dict(py::arg("multiple_of") = value.attr("base"));
    }
    if (key == "kv_quant_mode") value = py::int_(value);
    if (key == "cache_role") value = value.attr("value");
    if (key == "demand") value = value.attr("_asdict")();
    if (key == "shapes" || key == "dtypes") {
      py::list list;
      for (py::handle v : value) {
        const auto item_object = py::reinterpret_borrow<py::object>(v);
        list.append(py::isinstance<py::tuple>(v) ? py::object(py::list(item_object)) : item_object);
      }
      value = list;
    }
    out[item.first] = value;
  }
  return out;
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

template <class Object>
py::object make(const KVCacheSpec& spec) {
  auto object = std::make_unique<Object>();
  object->value = spec;
  return py::cast(std::move(object));
}

/// Properties for the fields that `Base` does not have already.
template <class PyClass>
void def_fields(PyClass& cls, SpecKind kind, py::handle base) {
  for_each_field(kind, [&](const auto& field) {
    const std::string name(field.name);
    if (py::hasattr(base, name.c_str())) return;
    const auto member = field.member;
    cls.def_property_readonly(name.c_str(), [member, name](const SpecObject& self) {
      return write_field(self.value.*member, name);
    });
  });
}

template <class Object, class Base>
py::class_<Object, Base> bind_class(py::module_& m, SpecKind kind, const char* doc) {
  const std::string name(class_name(kind));
  const py::object base = py::type::of<Base>();
  py::class_<Object, Base> cls(m, name.c_str(), doc);
  cls.def(py::init([kind](const py::args& args, const py::kwargs& kwargs) {
    auto object = std::make_unique<Object>();
    object->value = build(kind, args, kwargs);
    return object;
  }));
  def_fields(cls, kind, base);
  makers[static_cast<size_t>(kind)] = &make<Object>;
  readers[static_cast<size_t>(kind)] = [](const void* object) -> const KVCacheSpec& {
    return static_cast<const Object*>(object)->value;
  };
  types[static_cast<size_t>(kind)] = reinterpret_cast<PyTypeObject*>(cls.ptr());
  return cls;
}

void bind_base(py::module_& m) {
  py::class_<SpecObject> cls(m, "KVCacheSpec",
                             "The cache format of one layer. Immutable.\n\n"
                             "Mirrors vllm/v1/kv_cache_interface.py::KVCacheSpec (0.33).");
  const auto value = [&](const char* name, auto function, const char* doc) {
    cls.def_property_readonly(
        name, [function](const SpecObject& self) { return function(self.value); }, doc);
  };
  for_each_field(SpecKind::kCustom, [&](const auto& field) {
    const std::string name(field.name);
    if (name != "block_size" && name != "dcp_sharded" && name != "block_stride_alignment" &&
        name != "is_draft") {
      return;
    }
    const auto member = field.member;
    cls.def_property_readonly(name.c_str(), [member, name](const SpecObject& self) {
      return write_field(self.value.*member, name);
    });
  });
  value(
      "subclass", [](const KVCacheSpec& s) { return write_field(s.subclass, "subclass"); },
      "What a plugin's class beneath this one has for numbers, as {'name', 'pages'}, or None.");
  value("page_size_bytes", page_size_bytes, "Bytes of one block of one layer, padding included.");
  value("num_heads", num_heads, "H of the logical [B, H, N, C] page.");
  value(
      "num_states", [](const KVCacheSpec& s) { return num_states(s, s.block_size); },
      "N of the logical page: states of a block.");
  value("state_content_size_bytes", state_content_size_bytes, "C of the logical page, in bytes.");
  value("prefix_cacheable", prefix_cacheable, "Whether its group takes part in prefix caching.");
  value("prefix_replay_tokens", prefix_replay_tokens, "Tokens replayed after a prefix hit.");
  value("block_table_token_alignment", block_table_token_alignment,
        "Tokens that a block table row is padded to, or None.");
  value("has_layer_views", has_layer_views, "Whether allocation makes per-layer views.");
  value("uses_slot_mapping", uses_slot_mapping, "Whether the worker computes a slot mapping.");
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
      .def("to_dict", &to_dict, "The class name as `kind`, and the fields that matter.")
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

void bind_attention(py::module_& m) {
  py::class_<AttentionSpecObject, SpecObject> cls(
      m, "AttentionSpec", "Mirrors vllm/v1/kv_cache_interface.py::AttentionSpec (0.33).");
  def_fields(cls, SpecKind::kCrossAttention, py::type::of<SpecObject>());
  const auto unpadded = [](const SpecObject& self) { return unpadded_page_size_bytes(self.value); };
  cls.def_property_readonly("unpadded_page_size_bytes", unpadded, "Bytes of a page's content.");
  cls.def_property_readonly("real_page_size_bytes", unpadded, "Bytes of a page's content.");
}

template <class PyClass>
void def_admission(PyClass cls) {
  cls.def(
      "max_admission_blocks_per_request",
      [](const SpecObject& self, int64_t max_in_flight_tokens, int64_t max_model_len) {
        return max_admission_blocks_per_request(self.value, max_in_flight_tokens, max_model_len);
      },
      py::arg("max_in_flight_tokens"), py::arg("max_model_len"),
      "Blocks that the scheduler lets one request hold at once.");
}

void bind_uniform_type(py::module_& m) {
  py::class_<UniformTypeSpecsObject, SpecObject> cls(
      m, "UniformTypeKVCacheSpecs",
      "One spec for each layer of a group whose layers need the same token slots.\n\n"
      "Mirrors vllm/v1/kv_cache_interface.py::UniformTypeKVCacheSpecs (0.33).");
  const auto each = [](const UniformTypeSpecsObject& self, auto visit) {
    for (const auto& item : self.kv_cache_specs) visit(spec_value(item.second));
  };
  const auto pages = [each](const UniformTypeSpecsObject& self, py::handle config) {
    const PlanningConfig& c = read_config(config);
    int64_t most = 0;
    each(self, [&](const KVCacheSpec& s) {
      most = std::max(most, page_demand(s, c).pages(c.max_model_len));
    });
    return most;
  };
  const auto page = [each](const UniformTypeSpecsObject& self) {
    int64_t bytes = 0;
    each(self, [&](const KVCacheSpec& s) {
      bytes = checked::add(bytes, page_size_bytes(s), "page size");
    });
    return bytes;
  };
  const auto is_uniform = [](const py::dict& specs) {
    const KVCacheSpec* first = nullptr;
    for (const auto& item : specs) {
      const KVCacheSpec& spec = spec_value(item.second);
      if (first == nullptr) first = &spec;
      if (spec.block_size != first->block_size || spec.dcp_sharded != first->dcp_sharded) {
        return false;
      }
    }
    if (first == nullptr) throw py::value_error("no layers to compare");
    for (const auto& item : specs) {
      if (!is_uniform_with(*first, spec_value(item.second))) return false;
    }
    return true;
  };
  const auto create = [](int64_t block_size, const py::dict& specs) {
    auto object = std::make_unique<UniformTypeSpecsObject>();
    for (const auto& item : specs) spec_value(item.second);  // all native, or TypeError
    object->kv_cache_specs = specs;
    object->value.block_size = block_size;
    if (!specs.empty()) {
      object->value.dcp_sharded = spec_value((*specs.begin()).second).dcp_sharded;
    }
    return object;
  };
  const auto first_spec = [](const UniformTypeSpecsObject& self) {
    return py::reinterpret_borrow<py::object>((*self.kv_cache_specs.begin()).second);
  };
  cls.def(py::init(create), py::arg("block_size"), py::arg("kv_cache_specs"))
      .def_readonly("kv_cache_specs", &UniformTypeSpecsObject::kv_cache_specs)
      .def_property_readonly("first_spec", first_spec)
      .def_property_readonly("page_size_bytes", page, "Bytes of one block of all layers together.")
      .def_property_readonly(
          "prefix_cacheable",
          [each](const UniformTypeSpecsObject& self) {
            bool all = true;
            each(self, [&](const KVCacheSpec& s) { all = all && prefix_cacheable(s); });
            return all;
          })
      .def_property_readonly("prefix_replay_tokens",
                             [each](const UniformTypeSpecsObject& self) {
                               int64_t most = 0;
                               each(self, [&](const KVCacheSpec& s) {
                                 most = std::max(most, prefix_replay_tokens(s));
                               });
                               return most;
                             })
      .def_property_readonly(
          "block_table_token_alignment",
          [first_spec](const UniformTypeSpecsObject& self) {
            return py::object(first_spec(self).attr("block_table_token_alignment"));
          })
      .def_property_readonly("uses_slot_mapping",
                             [first_spec](const UniformTypeSpecsObject& self) {
                               return py::object(first_spec(self).attr("uses_slot_mapping"));
                             })
      .def("max_memory_usage_pages", pages, py::arg("vllm_config"),
           "Pages that one request of max_model_len tokens holds.")
      .def(
          "max_memory_usage_bytes",
          [pages, page](const UniformTypeSpecsObject& self, py::handle config) {
            return checked::mul(pages(self, config), page(self), "bytes of one request");
          },
          py::arg("vllm_config"))
      .def(
          "max_num_blocks_per_req",
          [each](const UniformTypeSpecsObject& self, py::handle config, int64_t max_len) {
            const PlanningConfig& c = read_config(config);
            std::optional<int64_t> width;
            each(self, [&](const KVCacheSpec& s) {
              const int64_t own = max_num_blocks_per_req(s, c, max_len);
              if (width && *width != own) {
                throw InconsistentSpec(
                    "All layers in the same KV cache group must need the same number of block "
                    "table entries, got " +
                    std::to_string(*width) + " and " + std::to_string(own) + ".");
              }
              width = own;
            });
            return width.value_or(0);
          },
          py::arg("vllm_config"), py::arg("max_len"))
      .def("get_max_layers_per_page_size",
           [each](const UniformTypeSpecsObject& self) {
             std::unordered_map<int64_t, int64_t> counts;
             int64_t most = 0;
             each(self, [&](const KVCacheSpec& s) {
               most = std::max(most, ++counts[page_size_bytes(s)]);
             });
             return most;
           })
      .def_static("is_uniform_type", is_uniform, py::arg("kv_cache_specs"))
      .def_static(
          "from_specs",
          [is_uniform, create](const py::dict& specs) -> py::object {
            if (!is_uniform(specs)) return py::none();
            return py::cast(create(spec_value((*specs.begin()).second).block_size, specs));
          },
          py::arg("kv_cache_specs"))
      .def("__eq__",
           [](const UniformTypeSpecsObject& self, py::handle other) {
             if (!py::isinstance<UniformTypeSpecsObject>(other)) return false;
             const auto& that = other.cast<const UniformTypeSpecsObject&>();
             return self.value.block_size == that.value.block_size &&
                    self.kv_cache_specs.equal(that.kv_cache_specs);
           })
      // vLLM's class cannot be hashed either: it holds a dict.
      .def("__repr__",
           [](const UniformTypeSpecsObject& self) {
             return "UniformTypeKVCacheSpecs(block_size=" + std::to_string(self.value.block_size) +
                    ", kv_cache_specs=" + py::repr(self.kv_cache_specs).cast<std::string>() + ")";
           })
      .def("__reduce__", [](py::handle self) -> py::tuple {
        const auto& object = self.cast<const UniformTypeSpecsObject&>();
        return py::make_tuple(py::type::handle_of(self),
                              py::make_tuple(object.value.block_size, object.kv_cache_specs));
      });
  cls.attr("__hash__") = py::none();
}

}  // namespace

py::object make_spec_object(const KVCacheSpec& spec) {
  return makers[static_cast<size_t>(spec.kind)](spec);
}

const KVCacheSpec& spec_value(py::handle object) {
  // Almost always a class of kvplan's itself, and then pybind11's conversion costs ten times as
  // much as this.
  const auto type = std::find(types.begin(), types.end(), Py_TYPE(object.ptr()));
  if (type != types.end()) {
    auto* instance = reinterpret_cast<py::detail::instance*>(object.ptr());
    const void* held = instance->get_value_and_holder().value_ptr<void>();
    if (held == nullptr) {
      throw py::type_error(type_name(object) + " was made without calling __init__");
    }
    return readers[static_cast<size_t>(type - types.begin())](held);
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
  bind_attention(m);
  const auto mirrors = [](const char* name) {
    return std::string("Mirrors vllm/v1/kv_cache_interface.py::") + name + " (0.33).";
  };
  bind_class<FullAttentionSpecObject, AttentionSpecObject>(m, SpecKind::kFullAttention,
                                                           mirrors("FullAttentionSpec").c_str());
  bind_class<MLAAttentionSpecObject, FullAttentionSpecObject>(m, SpecKind::kMLAAttention,
                                                              mirrors("MLAAttentionSpec").c_str());
  bind_class<HiddenStateCacheSpecObject, MLAAttentionSpecObject>(
      m, SpecKind::kHiddenStateCache, mirrors("HiddenStateCacheSpec").c_str());
  bind_class<RSWASpecObject, FullAttentionSpecObject>(m, SpecKind::kRSWA,
                                                      mirrors("RSWASpec").c_str());
  bind_class<SinkFullAttentionSpecObject, FullAttentionSpecObject>(
      m, SpecKind::kSinkFullAttention, mirrors("SinkFullAttentionSpec").c_str());
  def_admission(bind_class<ChunkedLocalAttentionSpecObject, AttentionSpecObject>(
      m, SpecKind::kChunkedLocalAttention, mirrors("ChunkedLocalAttentionSpec").c_str()));
  auto sliding = bind_class<SlidingWindowSpecObject, AttentionSpecObject>(
      m, SpecKind::kSlidingWindow, mirrors("SlidingWindowSpec").c_str());
  def_admission(sliding);
  sliding.def_property_readonly(
      "num_retained_tokens",
      [](const SpecObject& self) {
        return *self.value.sliding_window - 1 + self.value.extra_retained_tokens;
      },
      "Tokens below the first scheduled position that stay readable.");
  bind_class<SlidingWindowMLASpecObject, SlidingWindowSpecObject>(
      m, SpecKind::kSlidingWindowMLA, mirrors("SlidingWindowMLASpec").c_str());
  bind_class<CircularBufferSpecObject, AttentionSpecObject>(m, SpecKind::kCircularBuffer,
                                                            mirrors("CircularBufferSpec").c_str());
  bind_class<EncoderOnlyAttentionSpecObject, AttentionSpecObject>(
      m, SpecKind::kEncoderOnlyAttention, mirrors("EncoderOnlyAttentionSpec").c_str());
  bind_class<CrossAttentionSpecObject, AttentionSpecObject>(m, SpecKind::kCrossAttention,
                                                            mirrors("CrossAttentionSpec").c_str());
  bind_class<MambaSpecObject, SpecObject>(m, SpecKind::kMamba, mirrors("MambaSpec").c_str())
      .def_property_readonly(
          "real_page_size_bytes",
          [](const SpecObject& self) { return state_content_size_bytes(self.value); },
          "Bytes of the states.");
  bind_class<HiSparseHotSpecObject, SpecObject>(m, SpecKind::kHiSparseHot,
                                                mirrors("HiSparseHotSpec").c_str());
  def_admission(bind_class<HiSparseResidentSpecObject, SpecObject>(
      m, SpecKind::kHiSparseResident, mirrors("HiSparseResidentSpec").c_str()));
  bind_class<CustomSpecObject, SpecObject>(
      m, SpecKind::kCustom,
      "A plugin's own cache as numbers: page_size in bytes for block_size tokens, the class it "
      "stands for (custom_class), the class whose group it may share (uniform_type_base, by "
      "default its own), whether a larger block has a larger page, and a CustomDemand.");
  bind_uniform_type(m);
  m.def("spec_from_dict", &from_dict, py::arg("fields"),
        "A spec from what to_dict() gives. Raises ValueError or TypeError that names the field.");
  m.def("_restore_spec", [](py::handle cls, const py::dict& fields) { return cls(**fields); });
}

}  // namespace kvplan::bindings
