#include <algorithm>

#include "bindings/bindings.h"
#include "bindings/native/field_conversion.h"
#include "bindings/native/planning_config.h"
#include "bindings/native/session.h"
#include "bindings/native/spec_object.h"
#include "bindings/vllm/objects.h"
#include "kvplan/errors.h"
#include "kvplan/plan.h"
#include "kvplan/report.h"
#include "planning/specs/spec_fields.h"

namespace py = pybind11;

namespace kvplan::bindings {
namespace {

/// Planning with vLLM's objects in and vLLM's objects out. Nothing that comes in is changed: what
/// vLLM would write or log is handed back.
struct VllmPlanner {
  VllmObjects objects;
  bool groups_annotate;  // before 0.33, grouping itself flags the drafter's groups

  VllmPlanner(const py::dict& description)
      : objects(description), groups_annotate(description["groups_annotate"].cast<bool>()) {}

  /// With every rule as this vLLM has it; what was chosen otherwise wins.
  PlanningConfig read_config(py::handle vllm_config, const py::dict& chosen) const {
    PlanningConfig config;
    config.draft_rule = groups_annotate ? DraftRule::kMarker : DraftRule::kIsDraft;
    config.place_foreign_layers = true;
    read_vllm_config(vllm_config, chosen, config);
    return config;
  }
};

/// For the object that a new vLLM config is given.
py::object retention_interval(py::handle vllm_config) {
  return vllm_config.attr("cache_config").attr("prefix_cache_retention_interval");
}

py::list notice_list(const Notices& notices) {
  py::list list;
  for (const Notice& n : notices) {
    list.append(py::make_tuple(n.level == Notice::Level::kWarning ? "warning" : "info", n.message));
  }
  return list;
}

// --- grouping ------------------------------------------------------------------------------------

KVCacheGroups group_globally(const VllmPlanner& self, PlanningContext ctx,
                             const PlanningConfig& config,
                             const std::vector<LayerSpecs>& layer_lists) {
  return self.groups_annotate ? get_global_kv_cache_groups_before_033(ctx, config, layer_lists)
                              : get_global_kv_cache_groups(ctx, config, layer_lists);
}

py::tuple model_groups(const VllmPlanner& self, py::handle vllm_config, py::handle kv_cache_specs,
                       const py::dict& chosen) {
  const PlanningConfig config = self.read_config(vllm_config, chosen);
  Session session(self.objects);
  for (py::handle specs : kv_cache_specs) session.request().add_layers(session.read_layers(specs));
  Notices notices;
  const PlanningContext ctx{*session.request().names(), session.request().specs(), notices};
  const KVCacheGroups groups = group_globally(self, ctx, config, session.request().layer_lists());
  return py::make_tuple(session.group_list(groups, session.request().specs()),
                        notice_list(notices));
}

/// `(groups, what the caller's dict is updated with or None, notices)`.
py::tuple groups_of_layers(const VllmPlanner& self, py::handle vllm_config,
                           const py::dict& kv_cache_spec) {
  const PlanningConfig config = self.read_config(vllm_config, py::dict());
  Session session(self.objects);
  LayerSpecs layers = session.read_layers(kv_cache_spec);
  const LayerSpecs before = layers;
  Notices notices;
  const PlanningContext ctx{*session.request().names(), session.request().specs(), notices};
  const KVCacheGroups groups = get_kv_cache_groups(ctx, config, layers);
  const SpecTable& specs = session.request().specs();
  py::object changes = py::none();
  if (layers != before) changes = session.layer_dict(layers, specs);
  py::list list;
  if (groups.size() == 1 && groups[0].is_uniform_type() && is_uniform_type(ctx, layers)) {
    // vLLM's group keeps the caller's dict itself.
    list.append(self.objects.make_group(
        session.names(groups[0].layers),
        self.objects.make_uniform_type(specs[groups[0].spec].block_size, kv_cache_spec),
        groups[0]));
  } else {
    list = session.group_list(groups, specs);
  }
  return py::make_tuple(list, changes, notice_list(notices));
}

// --- sizing and placement ------------------------------------------------------------------------

/// What one stage's workers get, up to the copies that each worker has of its own.
class StageTemplate {
 public:
  StageTemplate(const VllmPlanner& planner, const Session& session, const Plan& plan,
                const StagePlan& stage, const py::list& group_objects)
      : planner_(planner), stage_(stage) {
    for (size_t g = 0; g < stage.groups.size(); ++g) {
      groups_.push_back(group_template(session, plan.groups[g], stage.groups[g], group_objects[g]));
    }
    for (const KVCacheTensor& t : stage.tensors) tensor_layers_.push_back(session.names(t.layers));
  }

  py::object config(int64_t num_blocks, const py::object& retention_interval) const {
    py::list groups(groups_.size());
    for (size_t g = 0; g < groups_.size(); ++g) groups[g] = group(groups_[g]);
    py::list tensors(tensor_layers_.size());
    for (size_t t = 0; t < tensor_layers_.size(); ++t) {
      tensors[t] = planner_.objects.make_tensor(stage_.tensors[t], copy(tensor_layers_[t]));
    }
    return planner_.objects.make_config(num_blocks, std::move(tensors), std::move(groups),
                                        retention_interval, stage_.kv_tp_replicas);
  }

 private:
  struct Group {
    py::object whole;  // handed out as it is where the stage owns all its layers
    GroupFields fields;
    py::list names;
    std::optional<py::dict> specs;  // of the layers owned, for a uniform-type group
    int64_t block_size = 0;
  };

  Group group_template(const Session& session, const KVCacheGroup& global,
                       const KVCacheGroup& projected, const py::object& object) const {
    Group result;
    if (projected.layers.size() == global.layers.size()) {
      result.whole = object;
      return result;
    }
    result.fields = planner_.objects.read_group(object);
    result.names = session.names(projected.layers);
    if (!projected.layers.empty() && planner_.objects.is_uniform_type(result.fields.spec)) {
      const py::dict all = planner_.objects.uniform_type_specs(result.fields.spec);
      py::dict owned;
      for (py::handle name : result.names) owned[name] = all[name];
      result.specs = owned;
      result.block_size = result.fields.spec.attr("block_size").cast<int64_t>();
    }
    return result;
  }

  py::object group(const Group& g) const {
    if (g.whole) return g.whole;
    py::object spec =
        g.specs ? planner_.objects.make_uniform_type(
                      g.block_size, py::reinterpret_steal<py::dict>(PyDict_Copy(g.specs->ptr())))
                : g.fields.spec;
    return planner_.objects.project_group(g.fields, copy(g.names), std::move(spec));
  }

  static py::list copy(const py::list& list) {
    return py::reinterpret_steal<py::list>(
        PyList_GetSlice(list.ptr(), 0, PyList_GET_SIZE(list.ptr())));
  }

  const VllmPlanner& planner_;
  const StagePlan& stage_;
  std::vector<Group> groups_;
  std::vector<py::list> tensor_layers_;
};

/// Each worker's config, made of its stage's template.
py::list worker_configs(const VllmPlanner& self, const Session& session, const Plan& plan,
                        const py::list& group_objects, const py::object& interval) {
  std::vector<std::optional<StageTemplate>> templates(plan.stages.size());
  for (const WorkerPlan& w : plan.workers) {
    auto& stage_template = templates[w.stage];
    if (stage_template) continue;
    stage_template.emplace(self, session, plan, plan.stages[w.stage], group_objects);
  }
  py::list configs(plan.workers.size());
  for (size_t w = 0; w < plan.workers.size(); ++w) {
    configs[w] = templates[plan.workers[w].stage]->config(plan.num_blocks, interval);
  }
  return configs;
}

/// What vLLM would log and write with its configs; None where that is nothing.
py::object side_effects(const Plan& plan, const Notices& notices) {
  const PlanningConfig& config = plan.config;
  const bool sliced = config.grouping == Grouping::kSliced;
  if (notices.empty() && plan.notices.empty() && !config.auto_fit &&
      !config.num_gpu_blocks_override && !sliced) {
    return py::none();
  }
  py::dict effects;
  effects["notices"] = notice_list(notices);
  effects["remarks"] = notice_list(plan.notices);
  effects["auto_fit"] = config.auto_fit;
  if (config.auto_fit) {
    effects["requested_max_model_len"] = plan.requested_max_model_len;
    effects["max_model_len"] = config.max_model_len;
    effects["attention_free"] = std::all_of(plan.stages.begin(), plan.stages.end(),
                                            [](const StagePlan& s) { return s.groups.empty(); });
    effects["limiting_memory"] = auto_fit_memory(plan);
  }
  effects["num_gpu_blocks_override"] =
      write_field(config.num_gpu_blocks_override, "num_gpu_blocks_override");
  effects["own_blocks"] = write_field(
      config.num_gpu_blocks_override ? blocks_without_override(plan) : std::vector<int64_t>(),
      "own_blocks");
  if (sliced) {
    std::vector<int64_t> slices;  // by group; vLLM's groups have no place for them
    for (const KVCacheGroup& g : plan.groups) slices.push_back(g.slices);
    effects["slices"] = write_field(slices, "slices");
  }
  return effects;
}

/// vLLM gives its own answer for a stage without layers beside others that have some.
void require_layers(const PlanRequest& request) {
  if (request.groups()->empty()) return;
  for (size_t w = 0; w < request.workers().size(); ++w) {
    if (!request.layer_lists()[request.workers()[w].layers_index].empty()) continue;
    throw InconsistentSpec("worker " + std::to_string(w) +
                           " owns no layer with a KV cache while others do");
  }
}

py::tuple plan_workers(const VllmPlanner& self, py::handle vllm_config, py::handle kv_cache_specs,
                       py::handle available_memory, const py::object& global_groups,
                       const py::dict& chosen) {
  const PlanningConfig config = self.read_config(vllm_config, chosen);
  Session session(self.objects);
  PlanRequest& request = session.request();
  Notices notices;
  py::list group_objects;
  if (global_groups.is_none()) {
    session.read_workers(kv_cache_specs, available_memory);
    const PlanningContext ctx{*request.names(), request.specs(), notices};
    KVCacheGroups groups = group_globally(self, ctx, config, request.layer_lists());
    group_objects = session.group_list(groups, request.specs());
    request.set_groups(std::move(groups));
  } else {
    // vLLM, too, asks the workers' specs only for the layers' names.
    group_objects = py::list(global_groups);
    request.set_groups(session.read_groups(group_objects));
    session.read_workers(kv_cache_specs, available_memory, &*request.groups());
  }
  require_layers(request);
  const Plan plan = kvplan::plan(request, config);
  py::list configs =
      worker_configs(self, session, plan, group_objects, retention_interval(vllm_config));
  return py::make_tuple(std::move(configs), side_effects(plan, notices));
}

/// Groups of vLLM's that are placed outside of a plan.
struct Placing {
  Placing(const VllmPlanner& self, py::handle vllm_config, const py::list& group_objects)
      : config(self.read_config(vllm_config, py::dict())),
        session(self.objects),
        groups(session.read_groups(group_objects)) {
    validate_kv_cache_layout(session.context(), config.kv_cache_layout, groups);
    bytes = pool_bytes_per_block(session.context(), groups, config.kv_cache_layout);
    if (bytes == 0) throw InconsistentSpec("the groups hold no layers, so a block has no bytes");
  }
  std::vector<KVCacheTensor> tensors(int64_t num_blocks) {
    return place_kv_cache_groups(session.context(), config, groups, bytes, num_blocks);
  }

  PlanningConfig config;
  Session session;
  KVCacheGroups groups;
  int64_t bytes = 0;  // of a block
};

/// What one block takes from the pool, as vLLM's probe finds it: by placing one.
int64_t block_bytes(const VllmPlanner& self, py::handle vllm_config,
                    const py::list& group_objects) {
  Placing placing(self, vllm_config, group_objects);
  if (placing.tensors(1).empty()) {
    throw InconsistentSpec("the groups hold no layers to place");
  }
  return placing.bytes;
}

py::object place_groups(const VllmPlanner& self, py::handle vllm_config,
                        const py::list& group_objects, int64_t num_blocks) {
  Placing placing(self, vllm_config, group_objects);
  num_blocks = placing.config.num_gpu_blocks_override.value_or(num_blocks);
  return self.objects.make_config(num_blocks,
                                  placing.session.tensor_list(placing.tensors(num_blocks)),
                                  group_objects, retention_interval(vllm_config), 1);
}

/// Each worker's layers with kvplan's own specs, which need neither vLLM nor a plugin.
py::list to_native_layers(const VllmPlanner& self, const py::iterable& kv_cache_specs) {
  Session session(self.objects);
  std::vector<LayerSpecs> workers;
  for (py::handle specs : kv_cache_specs) {
    workers.push_back(session.read_layers(specs));
    session.request().add_layers(workers.back());
  }
  const size_t read = session.request().specs().size();
  std::vector<py::object> objects;
  for (size_t i = 0; i < read; ++i) {
    objects.push_back(make_spec_object(session.request().specs()[SpecId(i)]));
  }
  py::list result;
  for (const LayerSpecs& layers : workers) {
    std::vector<LayerId> ids;
    for (const LayerSpec& l : layers) ids.push_back(l.layer);
    const py::list names = session.names(ids);
    py::dict worker;
    for (size_t i = 0; i < layers.size(); ++i) worker[names[i]] = objects[layers[i].spec.pos()];
    result.append(worker);
  }
  return result;
}

py::list field_names(const std::string& class_name) {
  py::list names;
  for_each_field(parse_spec_kind(class_name),
                 [&](const auto& field) { names.append(std::string(field.name)); });
  return names;
}

py::list class_names() {
  py::list names;
  for (int i = 0; i < kNumSpecKinds; ++i) {
    names.append(std::string(class_name(static_cast<SpecKind>(i))));
  }
  return names;
}

std::string base_of(const std::string& class_name) {
  return std::string(uniform_type_base(default_spec(parse_spec_kind(class_name))));
}

}  // namespace

void bind_vllm_planning(py::module_& m) {
  py::class_<VllmPlanner>(m, "VllmPlanner", "The planner on the objects of one vLLM.")
      .def(py::init<const py::dict&>(), py::arg("description"))
      .def("read_config", &VllmPlanner::read_config, py::arg("vllm_config"), py::arg("chosen"),
           "The planner's configuration, with every rule as this vLLM has it.")
      .def("global_groups", &model_groups, py::arg("vllm_config"), py::arg("kv_cache_specs"),
           py::arg("chosen"), "(groups of the whole model, notices).")
      .def("groups", &groups_of_layers, py::arg("vllm_config"), py::arg("kv_cache_spec"),
           "(groups, changes to kv_cache_spec or None, notices).")
      .def("plan", &plan_workers, py::arg("vllm_config"), py::arg("kv_cache_specs"),
           py::arg("available_memory"), py::arg("global_groups"), py::arg("chosen"),
           "(the workers' configs, a dict of what vLLM would log and write or None).")
      .def("bytes_per_block", &block_bytes, py::arg("vllm_config"), py::arg("kv_cache_groups"))
      .def("place", &place_groups, py::arg("vllm_config"), py::arg("kv_cache_groups"),
           py::arg("num_blocks"))
      .def(
          "to_native",
          [](const VllmPlanner& self, py::handle spec) {
            return make_spec_object(self.objects.read_spec(spec));
          },
          py::arg("spec"), "kvplan's own object for a spec of vLLM's.")
      .def("to_native_layers", &to_native_layers, py::arg("kv_cache_specs"),
           "Each worker's layers with kvplan's own objects.")
      .def(
          "from_native",
          [](const VllmPlanner& self, py::handle spec) {
            return self.objects.make_spec(spec_value(spec));
          },
          py::arg("spec"), "vLLM's object for a spec of kvplan's.");
  m.def("spec_class_names", &class_names, "The spec classes that kvplan has.");
  m.def("spec_field_names", &field_names, py::arg("class_name"),
        "The fields of a spec class, in the order of vLLM's dataclass.");
  m.def("spec_uniform_type_base", &base_of, py::arg("class_name"),
        "The class that decides which specs may share a group, '' if there is none.");
}

}  // namespace kvplan::bindings
