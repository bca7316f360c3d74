#include "kvplan/planning.h"

#include <pybind11/stl.h>

#include <algorithm>

#include "bindings/bindings.h"
#include "bindings/native/field_conversion.h"
#include "bindings/native/planning_config.h"
#include "bindings/native/session.h"
#include "bindings/native/spec_object.h"
#include "kvplan/plan.h"
#include "kvplan/report.h"

namespace py = pybind11;

namespace kvplan::bindings {
namespace {

KVCacheLayout read_layout(py::handle layout) {
  std::string name;
  read_field(py::getattr(layout, "name", layout), "kv_cache_layout", name);
  return parse_layout(name);
}

std::vector<int64_t> read_integers(const py::iterable& values, const char* what) {
  std::vector<int64_t> out;
  for (py::handle v : values) read_field(v, what, out.emplace_back());
  return out;
}

int64_t approximate_gcd_of(const py::iterable& values, const py::object& lower_bound) {
  int64_t bound = 1;
  if (!lower_bound.is_none()) read_field(lower_bound, "lower_bound", bound);
  const std::vector<int64_t> integers = read_integers(values, "values");
  return approximate_gcd(integers, bound);
}

bool spec_uniform(const py::dict& specs) {
  Session session;
  const LayerSpecs layers = session.read_layers(specs);
  return is_kv_cache_spec_uniform(session.context(), layers);
}

py::list create_group_specs(const py::dict& specs, const py::iterable& grouped_layer_names) {
  Session session;
  const LayerSpecs layers = session.read_layers(specs);
  std::vector<SpecId> spec_of(session.request().names()->size());
  for (const LayerSpec& l : layers) spec_of[l.layer.pos()] = l.spec;
  KVCacheGroups groups;
  for (py::handle names : grouped_layer_names) {
    LayerSpecs members;
    for (py::handle name : names) {
      std::string text;
      read_field(name, "a layer name", text);
      const LayerId id = session.request().names()->find(text);
      if (!id.valid()) throw py::key_error(text);
      members.push_back({id, spec_of[id.pos()]});
    }
    groups.push_back(create_kv_cache_group(session.context(), members));
  }
  return session.group_list(groups, session.request().specs());
}

/// dict -> dict, through one of the functions on layers.
template <class Function>
py::dict transform_layers(const py::dict& specs, Function function) {
  Session session;
  const LayerSpecs layers = session.read_layers(specs);
  const LayerSpecs result = function(session.context(), layers);
  session.log_notices();
  return session.layer_dict(result, session.request().specs());
}

/// dict -> groups, or None where the function has no answer.
template <class Function>
py::object group_layers(const py::dict& specs, Function function) {
  Session session;
  const LayerSpecs layers = session.read_layers(specs);
  const std::optional<KVCacheGroups> groups = function(session.context(), layers);
  session.log_notices();
  if (!groups) return py::none();
  return session.group_list(*groups, session.request().specs());
}

py::list groups_of_model(py::handle config, py::dict specs) {
  const PlanningConfig c = read_config(config);
  Session session;
  LayerSpecs layers = session.read_layers(specs);
  const LayerSpecs before = layers;
  const KVCacheGroups groups = group_as_configured(session.context(), c, layers);
  py::list result = session.group_list(groups, session.request().specs());
  // vLLM changes the caller's dict with the hybrid manager disabled; here after success only.
  if (layers != before) specs.attr("update")(session.layer_dict(layers, session.request().specs()));
  session.log_notices();
  return result;
}

py::list global_groups(py::handle config, const py::iterable& kv_cache_specs) {
  const PlanningConfig c = read_config(config);
  Session session;
  for (py::handle specs : kv_cache_specs) session.request().add_layers(session.read_layers(specs));
  const KVCacheGroups groups =
      get_global_kv_cache_groups(session.context(), c, session.request().layer_lists());
  session.log_notices();
  return session.group_list(groups, session.request().specs());
}

py::list project(const py::list& group_objects, const py::dict& worker_spec) {
  Session session;
  const KVCacheGroups groups = session.read_groups(group_objects);
  const LayerSpecs layers = session.read_layers(worker_spec);
  const KVCacheGroups projected =
      project_kv_cache_groups_to_worker(session.context(), groups, layers);
  py::list result;
  for (size_t i = 0; i < projected.size(); ++i) {
    // A group that the worker owns whole is handed through as it is.
    if (projected[i].layers.size() == groups[i].layers.size()) {
      result.append(group_objects[i]);
    } else {
      result.append(session.group_object(projected[i], session.request().specs()));
    }
  }
  return result;
}

void check_partition(const py::iterable& group_objects, const py::dict& specs) {
  Session session;
  const KVCacheGroups groups = session.read_groups(group_objects);
  const LayerSpecs layers = session.read_layers(specs);
  check_exact_partition(session.context(), groups, layers);
}

bool partition_exactly(const py::dict& specs, const py::iterable& group_objects) {
  Session session;
  const KVCacheGroups groups = session.read_groups(group_objects);
  return groups_partition_layers_exactly(groups, session.read_layers(specs));
}

/// Writes the flags back into the caller's group objects.
void annotate(py::handle config, const py::dict& specs, const py::list& group_objects,
              bool use_trailing_layer) {
  const PlanningConfig c = read_config(config);
  if (!c.speculative_method || !c.use_eagle_block_drop) return;
  Session session;
  KVCacheGroups groups = session.read_groups(group_objects);
  const LayerSpecs layers = session.read_layers(specs);
  annotate_eagle_groups_by_marker(session.context(), groups, layers, use_trailing_layer);
  for (size_t i = 0; i < groups.size(); ++i) {
    group_objects[i].attr("is_eagle_group") = groups[i].is_eagle_group;
  }
}

void warn_unannotated(py::handle config, const py::iterable& group_objects) {
  Session session;
  const KVCacheGroups groups = session.read_groups(group_objects);
  warn_if_unannotated_eagle_mamba(session.context(), read_config(config), groups);
  session.log_notices();
}

void validate_layout(py::handle layout, const py::iterable& group_objects) {
  Session session;
  const KVCacheGroups groups = session.read_groups(group_objects);
  validate_kv_cache_layout(session.context(), read_layout(layout), groups);
}

int64_t bytes_per_block(const py::iterable& group_objects, py::handle layout) {
  Session session;
  const KVCacheGroups groups = session.read_groups(group_objects);
  const int64_t bytes =
      get_kv_cache_bytes_per_block(session.context(), groups, read_layout(layout));
  if (bytes == 0) throw InconsistentSpec("the groups hold no layers, so a block has no bytes");
  return bytes;
}

int64_t pool_bytes(py::handle config, const py::iterable& group_objects) {
  Session session;
  const KVCacheGroups groups = session.read_groups(group_objects);
  return pool_bytes_per_block(session.context(), groups, read_config(config).kv_cache_layout);
}

/// `bytes_per_block` comes from a builder where one places the groups itself.
int64_t request_bytes(py::handle config, const py::iterable& group_objects,
                      std::optional<int64_t> bytes_per_block) {
  const PlanningConfig c = read_config(config);
  Session session;
  const KVCacheGroups groups = session.read_groups(group_objects);
  return max_memory_usage_bytes_from_groups(
      session.context(), groups, c,
      bytes_per_block ? *bytes_per_block
                      : pool_bytes_per_block(session.context(), groups, c.kv_cache_layout));
}

int64_t estimate_from_groups(py::handle config, const py::iterable& group_objects,
                             int64_t available_memory, std::optional<int64_t> bytes_per_block) {
  const PlanningConfig c = read_config(config);
  Session session;
  const KVCacheGroups groups = session.read_groups(group_objects);
  return kvplan::estimate_max_model_len(
      RequestDemand(session.context(), groups, c),
      bytes_per_block ? *bytes_per_block
                      : pool_bytes_per_block(session.context(), groups, c.kv_cache_layout),
      available_memory, c.max_model_len);
}

std::vector<const KVCacheSpec*> read_specs(const py::iterable& objects) {
  std::vector<const KVCacheSpec*> specs;
  for (py::handle s : objects) specs.push_back(&spec_value(s));
  return specs;
}

int64_t estimate_from_layers(py::handle config, const py::dict& kv_cache_spec,
                             int64_t available_memory) {
  const py::list values(kv_cache_spec.attr("values")());
  return kvplan::estimate_max_model_len(read_specs(values), read_config(config), available_memory);
}

void check_layers(const PlanningConfig& config, const py::dict& kv_cache_spec,
                  int64_t available_memory) {
  Session session;
  const LayerSpecs layers = session.read_layers(kv_cache_spec);
  check_layers_admission(session.context(), config, layers, available_memory);
}

/// Groups and memory of each worker, the null block taken off already.
py::tuple auto_fit(const PlanningConfig& config, const py::sequence& groups_per_worker,
                   const py::sequence& available_memory, const py::sequence& bytes_per_block) {
  if (py::len(groups_per_worker) != py::len(available_memory)) {
    throw InvalidArgument("give one available_memory entry a worker");
  }
  Session session;
  std::vector<KVCacheGroups> groups;
  for (py::handle g : groups_per_worker) groups.push_back(session.read_groups(g));
  std::vector<FitCandidate> candidates;
  for (size_t w = 0; w < groups.size(); ++w) {
    FitCandidate c{&groups[w], 0, 0, static_cast<int64_t>(w)};
    read_field(available_memory[w], "available_memory", c.available_bytes);
    const py::object declared = bytes_per_block[w];
    if (!declared.is_none()) {
      read_field(declared, "bytes_per_block", c.bytes_per_block);
    } else {
      c.bytes_per_block =
          pool_bytes_per_block(session.context(), groups[w], config.kv_cache_layout);
    }
    candidates.push_back(c);
  }
  const int64_t fitted = auto_fit_max_model_len(session.context(), config, candidates);
  return py::make_tuple(fitted, session.take_notices());
}

py::dict merge_workers(py::handle config, const py::iterable& kv_cache_specs) {
  Session session;
  for (py::handle specs : kv_cache_specs) session.request().add_layers(session.read_layers(specs));
  const LayerSpecs layers =
      merge_worker_layers(session.context(), read_config(config), session.request().layer_lists());
  return session.layer_dict(layers, session.request().specs());
}

void annotate_global(py::handle config, const py::dict& specs, const py::list& group_objects) {
  Session session;
  KVCacheGroups groups = session.read_groups(group_objects);
  const LayerSpecs layers = session.read_layers(specs);
  finish_global_groups(session.context(), read_config(config), layers, groups);
  for (size_t i = 0; i < groups.size(); ++i) {
    group_objects[i].attr("is_eagle_group") = groups[i].is_eagle_group;
  }
  session.log_notices();
}

py::list place(py::handle config, const py::iterable& group_objects, int64_t num_blocks) {
  const PlanningConfig c = read_config(config);
  Session session;
  const KVCacheGroups groups = session.read_groups(group_objects);
  validate_kv_cache_layout(session.context(), c.kv_cache_layout, groups);
  const int64_t bytes = pool_bytes_per_block(session.context(), groups, c.kv_cache_layout);
  return session.tensor_list(
      place_kv_cache_groups(session.context(), c, groups, bytes, num_blocks));
}

int64_t tp_replicas(const py::iterable& group_objects, int64_t tp_size, int64_t dcp_size) {
  Session session;
  const KVCacheGroups groups = session.read_groups(group_objects);
  return kv_cache_groups_tp_replicas(session.context(), groups, tp_size, dcp_size);
}

py::tuple ensure_min_page(const py::list& group_objects, int64_t common_page,
                          const py::dict& hidden_specs) {
  Session session;
  KVCacheGroups groups = session.read_groups(group_objects);
  const LayerSpecs hidden = session.read_layers(hidden_specs);
  const int64_t page = ensure_min_page_size(session.context(), groups, common_page, hidden);
  if (page == common_page) return py::make_tuple(group_objects, page);
  return py::make_tuple(session.group_list(groups, session.request().specs()), page);
}

py::dict slots_by_page_size(const py::iterable& group_objects) {
  Session session;
  const KVCacheGroups groups = session.read_groups(group_objects);
  py::dict result;
  for (const SlotBucket& b : bucket_layers_by_page_size(session.context(), groups)) {
    py::list slots;
    for (const auto& layers : b.slots) slots.append(session.names(layers));
    result[py::int_(b.page_size_bytes)] = slots;
  }
  return result;
}

double concurrency(py::handle config, const py::iterable& group_objects, int64_t num_blocks,
                   std::optional<int64_t> host_num_blocks) {
  Session session;
  const KVCacheGroups groups = session.read_groups(group_objects);
  return max_concurrency(session.context(), read_config(config), groups, num_blocks,
                         host_num_blocks);
}

py::tuple block_sizes(py::handle config, const py::iterable& group_objects) {
  Session session;
  const KVCacheGroups groups = session.read_groups(group_objects);
  const BlockSizes sizes =
      resolve_kv_cache_block_sizes(session.context(), read_config(config), groups);
  return py::make_tuple(sizes.scheduler_block_size, sizes.hash_block_size);
}

py::tuple layout_strides(py::handle spec, int64_t num_blocks, int64_t num_layers, py::handle layout,
                         std::optional<int64_t> kernel_block_size, const py::sequence& fixed) {
  if (py::len(fixed) != 5)
    throw py::value_error("fixed_strides needs five entries (L, B, H, N, C)");
  FixedStrides strides;
  for (size_t i = 0; i < 5; ++i) read_field(fixed[i], "fixed_strides", strides[i]);
  const Strides s = compute_layout_strides(spec_value(spec), num_blocks, num_layers,
                                           read_layout(layout), kernel_block_size, strides);
  return py::make_tuple(s[0], s[1], s[2], s[3], s[4]);
}

py::tuple layer_shape(py::handle spec, int64_t num_blocks,
                      std::optional<int64_t> kernel_block_size) {
  const auto s =
      compute_layer_kv_cache_shape_bytes(spec_value(spec), num_blocks, kernel_block_size);
  return py::make_tuple(s[0], s[1], s[2], s[3]);
}

/// (shape, strides, offset) in bytes, each of [L, B, H, N, C].
py::tuple kv_cache_view(py::handle spec, int64_t num_blocks, py::handle layout, py::handle tensor,
                        int64_t buffer_bytes, std::optional<int64_t> kernel_block_size) {
  int64_t layer_stride = 0;
  int64_t block_stride = 0;
  int64_t offset = 0;
  read_field(tensor.attr("layer_stride"), "layer_stride", layer_stride);
  read_field(tensor.attr("block_stride"), "block_stride", block_stride);
  read_field(tensor.attr("offset"), "offset", offset);
  const auto num_layers = static_cast<int64_t>(py::len(tensor.attr("layers")));
  const KVCacheView v =
      compute_kv_cache_view(spec_value(spec), num_blocks, read_layout(layout), num_layers,
                            layer_stride, block_stride, offset, buffer_bytes, kernel_block_size);
  return py::make_tuple(py::cast(v.shape), py::cast(v.strides), v.offset);
}

}  // namespace

void bind_planning(py::module_& m) {
  const auto none = py::none();
  m.def("approximate_gcd", &approximate_gcd_of, py::arg("values"), py::arg("lower_bound") = none);
  m.def("is_kv_cache_spec_uniform", &spec_uniform, py::arg("kv_cache_spec"));
  m.def("create_kv_cache_group_specs", &create_group_specs, py::arg("kv_cache_spec"),
        py::arg("grouped_layer_names"));
  m.def(
      "unify_kv_cache_spec_page_size",
      [](const py::dict& specs) { return transform_layers(specs, unify_kv_cache_spec_page_size); },
      py::arg("kv_cache_spec"));
  m.def(
      "promote_local_kv_cache_specs",
      [](const py::dict& specs) { return transform_layers(specs, promote_local_kv_cache_specs); },
      py::arg("kv_cache_spec"));
  m.def(
      "unify_hybrid_kv_cache_specs",
      [](py::dict specs) {
        specs.attr("update")(transform_layers(specs, [](const auto& ctx, LayerSpecs layers) {
          unify_hybrid_kv_cache_specs(ctx, layers);
          return layers;
        }));
      },
      py::arg("kv_cache_spec"));
  m.def(
      "get_kv_cache_groups_uniform_page_size",
      [](const py::dict& specs) {
        return group_layers(specs, [](const auto& ctx, const LayerSpecs& layers) {
          return std::optional(get_kv_cache_groups_uniform_page_size(ctx, layers));
        });
      },
      py::arg("kv_cache_spec"));
  m.def(
      "get_packed_kv_cache_groups",
      [](py::handle config, const py::dict& specs) {
        const PlanningConfig c = read_config(config);
        if (c.grouping != Grouping::kVllm) {
          throw InvalidArgument(
              "this step is of vLLM's grouping only; get_kv_cache_groups and kvplan.plan heed "
              "grouping");
        }
        const KVCacheLayout layout = c.kv_cache_layout;
        return group_layers(specs, [layout](const auto& ctx, const LayerSpecs& layers) {
          return get_packed_kv_cache_groups(ctx, layout, layers);
        });
      },
      py::arg("vllm_config"), py::arg("kv_cache_spec"));
  m.def(
      "try_get_full_allocation_fallback_groups",
      [](const py::dict& specs) {
        return group_layers(specs, try_get_full_allocation_fallback_groups);
      },
      py::arg("kv_cache_spec"));
  m.def("get_kv_cache_groups", &groups_of_model, py::arg("vllm_config"), py::arg("kv_cache_spec"));
  m.def("get_global_kv_cache_groups", &global_groups, py::arg("vllm_config"),
        py::arg("kv_cache_specs"));
  m.def("project_kv_cache_groups_to_worker", &project, py::arg("global_kv_cache_groups"),
        py::arg("worker_spec"));
  m.def("check_exact_partition", &check_partition, py::arg("groups"), py::arg("kv_cache_spec"));
  m.def("groups_partition_layers_exactly", &partition_exactly, py::arg("kv_cache_spec"),
        py::arg("kv_cache_groups"));
  m.def("annotate_eagle_groups", &annotate, py::arg("vllm_config"), py::arg("kv_cache_spec"),
        py::arg("kv_cache_groups"), py::arg("use_trailing_layer_fallback"));
  m.def("warn_if_unannotated_eagle_mamba", &warn_unannotated, py::arg("vllm_config"),
        py::arg("kv_cache_groups"));
  m.def("uses_trailing_mtp_layers",
        [](py::handle config) { return uses_trailing_mtp_layers(read_config(config)); });
  m.def("validate_kv_cache_layout", &validate_layout, py::arg("layout"),
        py::arg("kv_cache_groups"));
  m.def("get_kv_cache_bytes_per_block", &bytes_per_block, py::arg("kv_cache_groups"),
        py::arg("layout"));
  m.def("pool_bytes_per_block", &pool_bytes, py::arg("vllm_config"), py::arg("kv_cache_groups"));
  m.def("max_memory_usage_bytes_from_groups", &request_bytes, py::arg("vllm_config"),
        py::arg("kv_cache_groups"), py::arg("bytes_per_block") = none);
  m.def("estimate_max_model_len_from_groups", &estimate_from_groups, py::arg("vllm_config"),
        py::arg("kv_cache_groups"), py::arg("available_memory"), py::arg("bytes_per_block") = none);
  m.def(
      "max_memory_usage_bytes",
      [](py::handle config, const py::iterable& specs) {
        return max_memory_usage_bytes(read_specs(specs), read_config(config));
      },
      py::arg("vllm_config"), py::arg("kv_cache_specs"));
  m.def("estimate_max_model_len", &estimate_from_layers, py::arg("vllm_config"),
        py::arg("kv_cache_spec"), py::arg("available_memory"));
  m.def("check_layers_admission", &check_layers, py::arg("config"), py::arg("kv_cache_spec"),
        py::arg("available_memory"));
  m.def("auto_fit_max_model_len", &auto_fit, py::arg("config"), py::arg("groups_per_worker"),
        py::arg("available_memory"), py::arg("bytes_per_block"));
  m.def("merge_worker_specs", &merge_workers, py::arg("vllm_config"), py::arg("kv_cache_specs"));
  m.def("annotate_global_groups", &annotate_global, py::arg("vllm_config"),
        py::arg("kv_cache_spec"), py::arg("kv_cache_groups"));
  m.def(
      "layer_block_stride", [](py::handle spec) { return layer_block_stride(spec_value(spec)); },
      py::arg("spec"));
  m.def("place_kv_cache_groups", &place, py::arg("vllm_config"), py::arg("kv_cache_groups"),
        py::arg("num_blocks"));
  m.def("kv_cache_groups_tp_replicas", &tp_replicas, py::arg("groups"), py::arg("tp_size"),
        py::arg("dcp_size") = 1);
  m.def("ensure_min_page_size", &ensure_min_page, py::arg("groups"), py::arg("common_page"),
        py::arg("hidden_specs"));
  m.def("bucket_layers_by_page_size", &slots_by_page_size, py::arg("kv_cache_groups"));
  m.def("max_concurrency", &concurrency, py::arg("vllm_config"), py::arg("kv_cache_groups"),
        py::arg("num_blocks"), py::arg("host_num_blocks") = none);
  m.def("resolve_kv_cache_block_sizes", &block_sizes, py::arg("vllm_config"),
        py::arg("kv_cache_groups"));
  m.def("compute_layout_strides", &layout_strides, py::arg("spec"), py::arg("num_blocks"),
        py::arg("num_layers"), py::arg("layout"), py::arg("kernel_block_size") = none,
        py::arg("fixed_strides") = py::make_tuple(none, none, none, none, none));
  m.def("compute_kv_cache_view", &kv_cache_view, py::arg("spec"), py::arg("num_blocks"),
        py::arg("layout"), py::arg("kv_cache_tensor"), py::arg("buffer_bytes"),
        py::arg("kernel_block_size") = none);
  m.def("compute_layer_kv_cache_shape_bytes", &layer_shape, py::arg("spec"), py::arg("num_blocks"),
        py::arg("kernel_block_size") = none);
}

}  // namespace kvplan::bindings
