#include "kvplan/plan.h"

#include <pybind11/stl.h>

#include <algorithm>

#include "bindings/bindings.h"
#include "bindings/native/check.h"
#include "bindings/native/field_conversion.h"
#include "bindings/native/plan_object.h"
#include "bindings/native/planning_config.h"
#include "bindings/native/session.h"
#include "bindings/native/short_repr.h"
#include "kvplan/errors.h"
#include "kvplan/plan_pool.h"
#include "kvplan/report.h"

namespace py = pybind11;

namespace kvplan::bindings {
namespace {

/// A plan together with the Python objects that it speaks of.
struct PlanObject {
  Plan plan;
  Session session;
  std::optional<Reasons> reasons;
  std::optional<Capacity> capacity;
  py::object groups;  // the model's groups as Python objects, made once

  const Reasons& why() {
    if (!reasons) reasons = explain(plan);
    return *reasons;
  }
  const Capacity& room() {
    if (!capacity) capacity = kvplan::capacity(plan);
    return *capacity;
  }
};

struct GroupReportObject {
  std::string kind;
  int64_t block_size;
  py::list layer_names;
  bool is_eagle_group;
  GroupReport report;
};

struct WorkerReportObject {
  WorkerPlan worker;
  int64_t bytes_per_block;
  int64_t num_layers;
  int64_t request_bytes;
  int64_t max_model_len;
};

std::string kind_of(const Plan& plan, const KVCacheGroup& group) {
  if (!group.is_uniform_type()) return std::string(class_name((*plan.specs)[group.spec].kind));
  std::vector<SpecKind> kinds;
  std::string names;
  for (const LayerSpec& l : *group.layer_specs) {
    const SpecKind kind = (*plan.specs)[l.spec].kind;
    if (std::find(kinds.begin(), kinds.end(), kind) != kinds.end()) continue;
    kinds.push_back(kind);
    names += (names.empty() ? "" : "+") + std::string(class_name(kind));
  }
  return names;
}

py::list group_reports(PlanObject& self) {
  py::list list;
  for (size_t g = 0; g < self.plan.groups.size(); ++g) {
    const KVCacheGroup& group = self.plan.groups[g];
    list.append(GroupReportObject{
        kind_of(self.plan, group), (*self.plan.specs)[group.spec].block_size,
        self.session.names(group.layers), group.is_eagle_group, self.why().groups[g]});
  }
  return list;
}

py::list worker_reports(const PlanObject& self) {
  py::list list;
  for (size_t w = 0; w < self.plan.workers.size(); ++w) {
    const StagePlan& stage = self.plan.stage_of(w);
    list.append(WorkerReportObject{self.plan.workers[w], stage.bytes_per_block, stage.num_layers,
                                   stage.request_bytes, worker_max_model_len(self.plan, w)});
  }
  return list;
}

/// (tokens, shortest prompt, blocks of each group); None where nothing can be found.
py::object prefix_hits(const PlanObject& self) {
  const std::optional<HitUnit> unit = hit_unit(self.plan);
  if (!unit) return py::none();
  return py::make_tuple(unit->tokens, unit->shortest_prompt, py::tuple(py::cast(unit->blocks)));
}

const char* name_of(Notice::Level level) {
  return level == Notice::Level::kWarning ? "warning" : "info";
}

py::list warnings(const PlanObject& self) {
  py::list list;
  for (const Notice& n : self.plan.notices) {
    if (n.level == Notice::Level::kWarning) list.append(n.message);
  }
  return list;
}

py::list notices(const PlanObject& self) {
  py::list list;
  for (const Notice& n : self.plan.notices) {
    list.append(py::make_tuple(name_of(n.level), n.message));
  }
  return list;
}

size_t checked_worker(const PlanObject& self, size_t worker) {
  if (worker >= self.plan.workers.size()) {
    throw py::index_error("worker " + std::to_string(worker) + " of " +
                          std::to_string(self.plan.workers.size()));
  }
  return worker;
}

struct TensorViewObject {
  py::list layer_names;
  TensorView view;
};

py::list tensor_views(const PlanObject& self, size_t worker) {
  const size_t stage = self.plan.workers[checked_worker(self, worker)].stage;
  py::list result;
  for (const TensorView& view : views(self.plan, stage)) {
    const KVCacheTensor& tensor = self.plan.stages[stage].tensors[view.tensor];
    result.append(TensorViewObject{self.session.names(tensor.layers), view});
  }
  return result;
}

/// A `BlockPool`, or a `SlicedBlockPool` where a group cuts blocks.
py::object pool_of(const PlanObject& self, bool enable_caching, bool enable_events) {
  const Plan& plan = self.plan;
  if (std::any_of(plan.groups.begin(), plan.groups.end(),
                  [](const KVCacheGroup& group) { return group.slices > 1; })) {
    return py::cast(
        make_sliced_pool(plan, {.enable_caching = enable_caching, .enable_events = enable_events}));
  }
  return py::cast(
      make_pool(plan, {.enable_caching = enable_caching, .enable_events = enable_events}));
}

/// Made by setting attributes, as `__init__` would; tensors and groups are built when first read.
py::list kv_cache_configs(py::object self) {
  static const py::handle type =
      py::object(py::module_::import("kvplan.kv_cache_config").attr("KVCacheConfig")).release();
  auto* cls = reinterpret_cast<PyTypeObject*>(type.ptr());
  const Plan& plan = self.cast<const PlanObject&>().plan;
  py::dict common;
  common["num_blocks"] = plan.num_blocks;
  common["prefix_cache_retention_interval"] = py::cast(plan.config.prefix_cache_retention_interval);
  common["max_model_len"] = plan.config.max_model_len;
  std::vector<py::object> replicas;
  for (const StagePlan& s : plan.stages) replicas.push_back(py::int_(s.kv_tp_replicas));
  const py::str plan_name("_plan"), replicas_name("kv_tp_replicas");
  py::list list(plan.workers.size());
  for (size_t w = 0; w < plan.workers.size(); ++w) {
    const auto fields = py::reinterpret_steal<py::dict>(PyDict_Copy(common.ptr()));
    fields[plan_name] = py::make_tuple(self, w);
    fields[replicas_name] = replicas[plan.workers[w].stage];
    const auto config = py::reinterpret_steal<py::object>(cls->tp_alloc(cls, 0));
    if (!config || PyObject_GenericSetDict(config.ptr(), fields.ptr(), nullptr) != 0) {
      throw py::error_already_set();
    }
    list[w] = config;
  }
  return list;
}

std::string group_repr(const GroupReportObject& g) {
  ShortRepr repr("GroupReport");
  repr.add("kind", g.kind)
      .add("num_layers", g.layer_names.size())
      .add("block_size", g.block_size)
      .add("page_size_bytes", g.report.page_size_bytes)
      .add("padding_bytes", g.report.padding_bytes);
  if (g.report.slices > 1) repr.add("slices", g.report.slices);
  return repr.add("pages_per_request", g.report.pages_per_request).str();
}

std::string worker_repr(const WorkerReportObject& w) {
  return ShortRepr("WorkerReport")
      .add("available_bytes", w.worker.available_bytes)
      .add("num_blocks", w.worker.num_blocks)
      .add("bytes_per_block", w.bytes_per_block)
      .add("num_layers", w.num_layers)
      .add("request_bytes", w.request_bytes)
      .str();
}

std::string plan_repr(PlanObject& self) {
  return ShortRepr("Plan")
      .add("max_model_len", self.plan.config.max_model_len)
      .add("num_blocks", self.plan.num_blocks)
      .add("bytes_per_block", self.why().bytes_per_block)
      .add("max_concurrency", self.room().max_concurrency)
      .add("groups", self.plan.groups.size())
      .add("workers", self.plan.workers.size())
      .str();
}

/// One entry a worker; workers with the same layers must agree.
void set_bytes_per_block(PlanRequest& request, const py::object& bytes_per_block) {
  size_t worker = 0;
  for (py::handle entry : bytes_per_block) {
    if (worker >= request.workers().size()) break;
    int64_t bytes = 0;
    read_field(entry, "bytes_per_block", bytes);
    const size_t list = request.workers()[worker].layers_index;
    const std::optional<int64_t> known = request.bytes_per_block(list);
    if (known && *known != bytes) {
      throw InvalidArgument("worker " + std::to_string(worker) + " takes " + std::to_string(bytes) +
                            " bytes per block, another with the same layers " +
                            std::to_string(*known));
    }
    if (bytes > 0) request.set_bytes_per_block(list, bytes);
    ++worker;
  }
}

std::unique_ptr<PlanObject> make_plan(py::handle config, py::handle kv_cache_specs,
                                      py::handle available_memory, py::handle kv_cache_groups,
                                      const py::object& bytes_per_block) {
  auto object = std::make_unique<PlanObject>();
  const PlanningConfig planning_config = read_config(config);
  object->session.read_workers(kv_cache_specs, available_memory);
  if (!kv_cache_groups.is_none()) {
    object->session.request().set_groups(object->session.read_groups(kv_cache_groups));
  }
  if (!bytes_per_block.is_none()) set_bytes_per_block(object->session.request(), bytes_per_block);
  object->plan = plan(object->session.request(), planning_config);
  return object;
}

}  // namespace

const Plan& plan_of(const py::object& plan) {
  if (!py::isinstance<PlanObject>(plan)) {
    throw py::type_error("expected a kvplan.Plan, not " +
                         std::string(Py_TYPE(plan.ptr())->tp_name));
  }
  return plan.cast<const PlanObject&>().plan;
}

void bind_plan(py::module_& m) {
  py::class_<GroupReportObject> group(m, "GroupReport", "One group's share of a request.");
  group.def_readonly("kind", &GroupReportObject::kind, "Spec class of its layers.")
      .def_readonly("block_size", &GroupReportObject::block_size, "Tokens of a block.")
      .def_readonly("layer_names", &GroupReportObject::layer_names)
      .def_readonly("is_eagle_group", &GroupReportObject::is_eagle_group)
      .def_property_readonly("num_layers",
                             [](const GroupReportObject& g) { return py::len(g.layer_names); })
      .def("__repr__", &group_repr);
  const auto number = [&](const char* name, auto member, const char* doc) {
    group.def_property_readonly(
        name, [member](const GroupReportObject& g) { return g.report.*member; }, doc);
  };
  number("page_size_bytes", &GroupReport::page_size_bytes,
         "Bytes of one block that this group's pages take on the limiting worker.");
  number("slices", &GroupReport::slices, "Blocks of this group in one block of the pool.");
  number("slice_bytes", &GroupReport::slice_bytes,
         "Bytes of one block of this group: its share of a block of the pool.");
  number("pool_blocks_per_request", &GroupReport::pool_blocks_per_request,
         "Whole blocks of the pool that the blocks of one request take.");
  number("content_bytes", &GroupReport::content_bytes, "Bytes of one block that hold states.");
  number("padding_bytes", &GroupReport::padding_bytes, "Bytes of one block that hold nothing.");
  number("pages_per_request", &GroupReport::pages_per_request,
         "Blocks that one request of the planned length holds.");
  number("pages_fixed", &GroupReport::pages_fixed,
         "Blocks of these that do not grow with the length any more.");
  group.def_property_readonly(
      "max_safe_block_id_bytes",
      [](const GroupReportObject& g) { return g.report.safe_block_ids.bytes; },
      "The largest of this group's block ids whose page begins below byte 2**31.");
  group.def_property_readonly(
      "max_safe_block_id_elements",
      [](const GroupReportObject& g) { return g.report.safe_block_ids.elements; },
      "The largest of this group's block ids whose page begins below element 2**31.");
  number("tokens_per_page", &GroupReport::tokens_per_page,
         "Tokens after which the group needs another block; None where it stops growing.");

  py::class_<WorkerReportObject> worker(m, "WorkerReport", "What one worker has and needs.");
  worker
      .def_property_readonly("available_bytes",
                             [](const WorkerReportObject& w) { return w.worker.available_bytes; })
      .def_property_readonly(
          "effective_bytes", [](const WorkerReportObject& w) { return w.worker.effective_bytes; },
          "Available bytes, or what num_gpu_blocks_override takes.")
      .def_property_readonly(
          "num_blocks", [](const WorkerReportObject& w) { return w.worker.num_blocks; },
          "Blocks that this worker alone could have.")
      .def_readonly("bytes_per_block", &WorkerReportObject::bytes_per_block)
      .def_readonly("num_layers", &WorkerReportObject::num_layers)
      .def_readonly("request_bytes", &WorkerReportObject::request_bytes,
                    "Bytes that one request of the planned length holds.")
      .def_readonly("max_model_len", &WorkerReportObject::max_model_len,
                    "The longest request that would fit this worker.")
      .def("__repr__", &worker_repr);

  py::class_<TensorViewObject>(m, "TensorView", "Where the layers of one tensor lie, in bytes.")
      .def_readonly("layer_names", &TensorViewObject::layer_names)
      .def_property_readonly(
          "group", [](const TensorViewObject& v) { return v.view.group; },
          "Index of the group whose block ids count its blocks.")
      .def_property_readonly(
          "shape", [](const TensorViewObject& v) { return py::tuple(py::cast(v.view.view.shape)); },
          "[L, B, H, N, C]: layers, blocks, heads, states of a block, bytes of a state.")
      .def_property_readonly(
          "strides",
          [](const TensorViewObject& v) { return py::tuple(py::cast(v.view.view.strides)); },
          "Bytes between neighbours of each axis.")
      .def_property_readonly(
          "offset", [](const TensorViewObject& v) { return v.view.view.offset; },
          "Bytes from the buffer's beginning.")
      .def("__repr__", [](const TensorViewObject& v) {
        return ShortRepr("TensorView")
            .add("layers", py::len(v.layer_names))
            .add("group", v.view.group)
            .add("offset", v.view.view.offset)
            .str();
      });

  py::class_<PlanObject> cls(m, "Plan", "The KV cache of all workers, and why it is as it is.");
  const auto from_plan = [&](const char* name, auto function, const char* doc) {
    cls.def_property_readonly(
        name, [function](const PlanObject& self) { return function(self.plan); }, doc);
  };
  const auto reason = [&](const char* name, auto member, const char* doc) {
    cls.def_property_readonly(
        name, [member](PlanObject& self) { return self.why().*member; }, doc);
  };
  const auto room = [&](const char* name, auto member, const char* doc) {
    cls.def_property_readonly(
        name, [member](PlanObject& self) { return self.room().*member; }, doc);
  };
  from_plan(
      "max_model_len", [](const Plan& p) { return p.config.max_model_len; },
      "Planned length in tokens; with auto_fit, the fitted one.");
  from_plan(
      "requested_max_model_len", [](const Plan& p) { return p.requested_max_model_len; }, "");
  from_plan(
      "config", [](const Plan& p) { return p.config; }, "With the fitted length.");
  from_plan(
      "num_blocks", [](const Plan& p) { return p.num_blocks; }, "Blocks of every worker.");
  from_plan(
      "usable_blocks", [](const Plan& p) { return p.num_blocks - 1; },
      "Blocks without the null block.");
  from_plan(
      "prefix_cache_retention_interval",
      [](const Plan& p) { return p.config.prefix_cache_retention_interval; }, "");
  from_plan(
      "max_safe_block_id_bytes", [](const Plan& p) { return safe_block_ids(p).bytes; },
      "The largest block id whose page begins below byte 2**31.");
  from_plan(
      "max_safe_block_id_elements", [](const Plan& p) { return safe_block_ids(p).elements; },
      "The largest block id whose page begins below element 2**31.");
  reason("limiting_worker", &Reasons::limiting_worker,
         "The worker that holds the fewest requests.");
  reason("limiting_group", &Reasons::limiting_group, "The group that holds most of a request.");
  reason("bytes_per_block", &Reasons::bytes_per_block, "Bytes of a block on the limiting worker.");
  reason("request_blocks", &Reasons::request_blocks, "Blocks of one request, all groups together.");
  reason("request_bytes", &Reasons::request_bytes, "Bytes of one request on the limiting worker.");
  reason("fixed_bytes_per_request", &Reasons::fixed_bytes_per_request,
         "Bytes of a request in groups that have stopped growing.");
  reason("bytes_per_token", &Reasons::bytes_per_token, "Bytes of a token in groups that grow.");
  reason("next_token_bytes", &Reasons::next_token_bytes,
         "Bytes that a request of one token more holds in addition.");
  room("max_concurrency", &Capacity::max_concurrency,
       "Requests of the planned length at once, by vLLM's formula.");
  room("usable_concurrency", &Capacity::usable_concurrency,
       "The same without the null block: what runs at once.");
  room("capacity_tokens", &Capacity::tokens, "Tokens of the cache, by vLLM's formula.");
  room("usable_capacity_tokens", &Capacity::usable_tokens,
       "Tokens of usable_concurrency requests.");
  room("steady_concurrency", &Capacity::steady_concurrency,
       "Requests at once when in-flight tokens are counted once per engine.");
  room("steady_capacity_tokens", &Capacity::steady_tokens, "Tokens of that many requests.");
  room("encoder_tokens_per_request", &Capacity::encoder_tokens_per_request,
       "Encoder tokens that the steady figures charge each request: the config's, or where it has\n"
       "none max_num_encoder_input_tokens, as vLLM's formula does. None without cross attention.");
  cls.def_property_readonly("groups", &group_reports, "A GroupReport for each group.")
      .def_property_readonly("workers", &worker_reports, "A WorkerReport for each worker.")
      .def_property_readonly("warnings", &warnings, "What a log would warn of.")
      .def_property_readonly("notices", &notices, "(level, message) pairs, warnings included.")
      .def_property_readonly("kv_cache_configs", &kv_cache_configs,
                             "A fresh KVCacheConfig for each worker.")
      .def_property_readonly(
          "kv_cache_groups",
          [](PlanObject& self) {
            if (!self.groups) {
              self.groups = self.session.group_list(self.plan.groups, *self.plan.specs);
            }
            return py::list(self.groups);
          },
          "The groups of the whole model.")
      .def(
          "request_blocks_at",
          [](const PlanObject& self, int64_t model_len) {
            return request_blocks(self.plan, model_len);
          },
          py::arg("max_model_len"),
          "Blocks of the pool that one request of so many tokens holds, whole ones for each group.")
      .def(
          "max_concurrency_at",
          [](const PlanObject& self, int64_t model_len) {
            return max_concurrency(self.plan, model_len);
          },
          py::arg("max_model_len"),
          "Requests of so many tokens at once, by vLLM's formula as max_concurrency.")
      .def_property_readonly(
          "block_sizes",
          [](const PlanObject& self) {
            const BlockSizes sizes = block_sizes(self.plan);
            return py::make_tuple(sizes.scheduler_block_size, sizes.hash_block_size);
          },
          "(tokens between scheduler decisions, tokens of a block hash).")
      .def("views", &tensor_views, py::arg("worker") = 0,
           "A TensorView for each tensor of a worker's buffer, but those of HiSparse pages.")
      .def("make_pool", &pool_of, py::kw_only(), py::arg("enable_caching") = true,
           py::arg("enable_events") = false,
           "The pool that hands out the plan's blocks: a BlockPool, or a SlicedBlockPool where\n"
           "groups cut blocks into slices.")
      .def("_kv_cache_groups",
           [](PlanObject& self, size_t w) {
             const StagePlan& stage = self.plan.stage_of(checked_worker(self, w));
             return self.session.group_list(stage.groups, *self.plan.specs);
           })
      .def("_kv_cache_tensors",
           [](PlanObject& self, size_t w) {
             return self.session.tensor_list(self.plan.stage_of(checked_worker(self, w)).tensors);
           })
      .def("_violations",
           [](const PlanObject& self, size_t max_violations) {
             return violation_list(check(self.plan, max_violations));
           })
      .def("_prefix_hits", &prefix_hits)
      .def("_log_notices", [](const PlanObject& self) { log_notices(self.plan.notices); })
      .def("__repr__", &plan_repr);
  m.def("plan", &make_plan, py::arg("config"), py::arg("kv_cache_specs"),
        py::arg("available_memory"), py::arg("kv_cache_groups") = py::none(),
        py::arg("bytes_per_block") = py::none(),
        "Plan the KV cache of all workers.\n\n"
        "config: a PlanningConfig or anything shaped like a VllmConfig; it is not changed.\n"
        "kv_cache_specs: one dict of layer names to specs for each worker.\n"
        "available_memory: bytes for the KV cache of each worker.\n"
        "kv_cache_groups: the model's groups, where they are known already.\n"
        "bytes_per_block: what a block takes on each worker, where a builder places the groups;\n"
        "the plan then has no tensors.\n\n"
        "Raises NotEnoughMemory, LayoutError, InvalidArgument (all ValueError) or PageSizeError\n"
        "(NotImplementedError); then nothing was changed.");
}

}  // namespace kvplan::bindings
