#include <array>
#include <string_view>

#include "bindings/bindings.h"
#include "bindings/interned_name.h"
#include "bindings/planning_config.h"

namespace py = pybind11;

namespace kvplan::bindings {
namespace {

/// Attributes that bear the names of `PlanningConfig`'s fields, by the object that has them.
struct Source {
  InternedName object;  // no text: the config itself
  std::array<InternedName, 6> fields;
};
const Source kSources[] = {
    {{}, {"max_in_flight_tokens", "num_prefill_lookahead_tokens"}},
    {"cache_config",
     {"num_gpu_blocks_override", "mamba_cache_mode", "block_size", "enable_prefix_caching",
      "prefix_match_unit", "prefix_cache_retention_interval"}},
    {"parallel_config",
     {"tensor_parallel_size", "pipeline_parallel_size", "decode_context_parallel_size"}},
    {"scheduler_config", {"disable_hybrid_kv_cache_manager", "max_num_encoder_input_tokens"}},
    {"device_config", {"device_type"}},
};

const InternedName kModelConfig = "model_config", kMaxModelLen = "max_model_len",
                   kOriginalLen = "original_max_model_len", kAutoFit = "auto_fit",
                   kHfConfig = "hf_config", kModelType = "model_type",
                   kCacheConfig = "cache_config", kGetLayout = "get_resolved_kv_cache_layout",
                   kLayout = "kv_cache_layout", kSpeculativeConfig = "speculative_config",
                   kMethod = "method", kSpeculativeMethod = "speculative_method",
                   kAttentionConfig = "attention_config", kHisparse = "hisparse_config",
                   kTransferConfig = "kv_transfer_config", kHasConnector = "has_kv_connector";
const InternedName kEagleFlags[] = {"use_eagle", "use_eagle_block_drop"};

py::object get(py::handle object, const InternedName& name) {
  PyObject* value = PyObject_GetAttr(object.ptr(), name.ptr());
  if (value == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(value);
}

/// Null where the object has none, or is null itself.
py::object find(py::handle object, const InternedName& name) {
  if (!object) return {};
  PyObject* value = PyObject_GetAttr(object.ptr(), name.ptr());
  if (value == nullptr) {
    if (PyErr_ExceptionMatches(PyExc_AttributeError) == 0) throw py::error_already_set();
    PyErr_Clear();
  }
  return py::reinterpret_steal<py::object>(value);
}

void set(py::kwargs& fields, const InternedName& name, const py::object& value) {
  if (PyDict_SetItem(fields.ptr(), name.ptr(), value.ptr()) != 0) throw py::error_already_set();
}

bool is_set(const py::object& value) { return value && !value.is_none(); }

bool is_true(const py::object& value) {
  const int truth = PyObject_IsTrue(value.ptr());
  if (truth < 0) throw py::error_already_set();
  return truth == 1;
}

void read_model(py::handle vllm_config, py::kwargs& fields) {
  const py::object model = get(vllm_config, kModelConfig);
  set(fields, kMaxModelLen, get(model, kMaxModelLen));
  const py::object original = find(model, kOriginalLen);
  set(fields, kAutoFit, py::bool_(original && original.equal(py::int_(-1))));
  const py::object type = find(find(model, kHfConfig), kModelType);
  set(fields, kModelType, type && is_true(type) ? type : py::str());
}

void read_sources(py::handle vllm_config, py::kwargs& fields) {
  for (const Source& source : kSources) {
    const py::object object = source.object.text() == nullptr
                                  ? py::reinterpret_borrow<py::object>(vllm_config)
                                  : find(vllm_config, source.object);
    for (const InternedName& name : source.fields) {
      if (name.text() == nullptr) break;
      const py::object value = find(object, name);
      // Before the engine resolves it, block_size is None; the default then stands in.
      if (!value || (value.is_none() && std::string_view(name.text()) == "block_size")) continue;
      set(fields, name, value);
    }
  }
}

void read_layout(py::handle vllm_config, py::kwargs& fields) {
  const py::object layout = find(find(vllm_config, kCacheConfig), kGetLayout);
  if (is_set(layout)) set(fields, kLayout, layout());
}

void read_speculation(py::handle vllm_config, py::kwargs& fields) {
  const py::object speculative = find(vllm_config, kSpeculativeConfig);
  if (!is_set(speculative)) return;
  set(fields, kSpeculativeMethod, get(speculative, kMethod));
  for (const InternedName& flag : kEagleFlags) {
    set(fields, flag, py::bool_(is_true(get(speculative, flag)())));
  }
}

PlanningConfig read_vllm_config(py::handle vllm_config, const py::kwargs& overrides) {
  if (is_set(find(find(vllm_config, kAttentionConfig), kHisparse))) {
    throw py::value_error("attention_config.hisparse_config is set: HiSparse is planned by vLLM");
  }
  py::kwargs fields;
  read_model(vllm_config, fields);
  set(fields, kHasConnector, py::bool_(is_set(find(vllm_config, kTransferConfig))));
  read_sources(vllm_config, fields);
  read_layout(vllm_config, fields);
  read_speculation(vllm_config, fields);
  if (PyDict_Update(fields.ptr(), overrides.ptr()) != 0) throw py::error_already_set();
  return make_planning_config(fields);
}

}  // namespace

PlanningConfig read_config(py::handle config) {
  if (py::isinstance<PlanningConfig>(config)) return config.cast<const PlanningConfig&>();
  return read_vllm_config(config, {});
}

void bind_vllm_config(py::module_& m) {
  m.def("read_vllm_config", &read_vllm_config, py::arg("vllm_config"),
        "A PlanningConfig of what vLLM's planner reads of its configuration; keywords win.");
}

}  // namespace kvplan::bindings
