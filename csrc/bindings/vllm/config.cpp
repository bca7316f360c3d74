#include <array>
#include <string_view>

#include "bindings/bindings.h"
#include "bindings/native/config_field.h"
#include "bindings/native/planning_config.h"

namespace py = pybind11;

namespace kvplan::bindings {
namespace {

using Config = PlanningConfig;

/// An attribute that bears the name of the field of `PlanningConfig` that it becomes.
struct Attribute {
  const char* name = nullptr;
  void (*read)(py::handle in, const char* name, Config& config) = nullptr;
};

template <auto member>
constexpr Attribute attribute(const char* name) {
  return {name, [](py::handle in, const char* field, Config& config) {
            read_config_field(in, field, config.*member);
          }};
}

/// Such attributes by the object that has them.
struct Source {
  const char* object;  // null: the config itself
  std::array<Attribute, 6> attributes;
};
const Source kSources[] = {
    {nullptr,
     {attribute<&Config::max_in_flight_tokens>("max_in_flight_tokens"),
      attribute<&Config::num_prefill_lookahead_tokens>("num_prefill_lookahead_tokens")}},
    {"cache_config",
     {attribute<&Config::num_gpu_blocks_override>("num_gpu_blocks_override"),
      attribute<&Config::mamba_cache_mode>("mamba_cache_mode"),
      attribute<&Config::block_size>("block_size"),
      attribute<&Config::enable_prefix_caching>("enable_prefix_caching"),
      attribute<&Config::prefix_match_unit>("prefix_match_unit"),
      attribute<&Config::prefix_cache_retention_interval>("prefix_cache_retention_interval")}},
    {"parallel_config",
     {attribute<&Config::tensor_parallel_size>("tensor_parallel_size"),
      attribute<&Config::pipeline_parallel_size>("pipeline_parallel_size"),
      attribute<&Config::decode_context_parallel_size>("decode_context_parallel_size")}},
    {"scheduler_config",
     {attribute<&Config::disable_hybrid_kv_cache_manager>("disable_hybrid_kv_cache_manager"),
      attribute<&Config::max_num_encoder_input_tokens>("max_num_encoder_input_tokens")}},
    {"device_config", {attribute<&Config::device_type>("device_type")}},
};
const Attribute kMaxModelLen = attribute<&Config::max_model_len>("max_model_len"),
                kModelType = attribute<&Config::model_type>("model_type"),
                kLayout = attribute<&Config::kv_cache_layout>("kv_cache_layout");

/// Null where the object has none, or is null itself.
py::object find(py::handle object, const char* name) {
  if (!object) return {};
  PyObject* value = PyObject_GetAttrString(object.ptr(), name);
  if (value == nullptr) {
    if (PyErr_ExceptionMatches(PyExc_AttributeError) == 0) throw py::error_already_set();
    PyErr_Clear();
  }
  return py::reinterpret_steal<py::object>(value);
}

bool is_set(const py::object& value) { return value && !value.is_none(); }

bool is_true(const py::object& value) {
  const int truth = PyObject_IsTrue(value.ptr());
  if (truth < 0) throw py::error_already_set();
  return truth == 1;
}

/// Reads fields one by one, but for those that are given otherwise.
class ConfigReader {
 public:
  ConfigReader(py::handle vllm_config, const py::dict& overrides, Config& config)
      : vllm_config_(vllm_config), overrides_(overrides), config_(config) {}

  void read_model() {
    const py::object model = vllm_config_.attr("model_config");
    read(kMaxModelLen, model.attr(kMaxModelLen.name));
    const py::object original = find(model, "original_max_model_len");
    config_.auto_fit = original && original.equal(py::int_(-1));
    const py::object type = find(find(model, "hf_config"), kModelType.name);
    if (type && is_true(type)) read(kModelType, type);
  }

  void read_sources() {
    for (const Source& source : kSources) {
      const py::object object = source.object == nullptr
                                    ? py::reinterpret_borrow<py::object>(vllm_config_)
                                    : find(vllm_config_, source.object);
      for (const Attribute& a : source.attributes) {
        if (a.read == nullptr) break;
        const py::object value = find(object, a.name);
        // Before the engine resolves it, block_size is None; the default then stands in.
        if (!value || (value.is_none() && std::string_view(a.name) == "block_size")) continue;
        read(a, value);
      }
    }
  }

  void read_layout() {
    const py::object layout =
        find(find(vllm_config_, "cache_config"), "get_resolved_kv_cache_layout");
    if (is_set(layout)) read(kLayout, layout());
  }

  void read_speculation() {
    const py::object speculative = find(vllm_config_, "speculative_config");
    if (!is_set(speculative)) return;
    read_field(speculative.attr("method"), "speculative_method", config_.speculative_method);
    config_.use_eagle = is_true(speculative.attr("use_eagle")());
    config_.use_eagle_block_drop = is_true(speculative.attr("use_eagle_block_drop")());
  }

 private:
  void read(const Attribute& a, const py::object& value) {
    if (overrides_.contains(a.name)) return;
    a.read(value, a.name, config_);
  }

  py::handle vllm_config_;
  const py::dict& overrides_;
  Config& config_;
};

}  // namespace

void read_vllm_config(py::handle vllm_config, const py::dict& overrides, Config& config) {
  if (is_set(find(find(vllm_config, "attention_config"), "hisparse_config"))) {
    throw py::value_error("attention_config.hisparse_config is set: HiSparse is planned by vLLM");
  }
  ConfigReader reader(vllm_config, overrides, config);
  reader.read_model();
  config.has_kv_connector = is_set(find(vllm_config, "kv_transfer_config"));
  reader.read_sources();
  reader.read_layout();
  reader.read_speculation();
  if (PyDict_GET_SIZE(overrides.ptr()) != 0) set_planning_config(config, overrides);
  validate(config);
}

PlanningConfig read_vllm_config(py::handle vllm_config, const py::dict& overrides) {
  Config config;
  read_vllm_config(vllm_config, overrides, config);
  return config;
}

PlanningConfig read_config(py::handle config) {
  if (py::isinstance<PlanningConfig>(config)) return config.cast<const PlanningConfig&>();
  return read_vllm_config(config, py::dict());
}

void bind_vllm_config(py::module_& m) {
  m.def(
      "read_vllm_config",
      [](py::handle vllm_config, const py::kwargs& overrides) {
        return read_vllm_config(vllm_config, overrides);
      },
      py::arg("vllm_config"),
      "A PlanningConfig of what vLLM's planner reads of its configuration; keywords win.");
}

}  // namespace kvplan::bindings
