#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "bindings/native/planning_config.h"
#include "bindings/native/session.h"
#include "bindings/native/short_repr.h"
#include "kvplan/compact.h"
#include "kvplan/sliced.h"

namespace py = pybind11;

namespace kvplan::bindings {
namespace {

/// Memory plays no part in a frontier, so the workers come without.
Frontier compute_frontier(py::handle config, const py::iterable& kv_cache_specs) {
  const PlanningConfig c = read_config(config);
  Session session;
  for (py::handle specs : kv_cache_specs) session.request().add_layers(session.read_layers(specs));
  return frontier(session.request(), c);
}

/// The smallest of `available_memory` matters, where it is given.
std::optional<SlicedPoint> compute_sliced_point(py::handle config, py::handle kv_cache_specs,
                                                py::handle available_memory) {
  const PlanningConfig c = read_config(config);
  Session session;
  if (available_memory.is_none()) {
    for (py::handle specs : kv_cache_specs) {
      session.request().add_layers(session.read_layers(specs));
    }
  } else {
    session.read_workers(kv_cache_specs, available_memory);
  }
  return sliced_point(session.request(), c);
}

py::tuple slices_of(const SlicedPoint& p) { return py::tuple(py::cast(p.slices)); }

std::string point_repr(const GroupingPoint& p) {
  return ShortRepr("GroupingPoint")
      .add("num_groups", p.num_groups)
      .add("max_layers_per_group", p.max_layers_per_group)
      .add("bytes_per_block", p.bytes_per_block)
      .add("request_bytes", p.request_bytes)
      .add("is_vllm", p.is_vllm)
      .str();
}

std::string frontier_repr(const Frontier& f) {
  return ShortRepr("Frontier")
      .add("reference_model_len", f.reference_model_len)
      .add("points", f.points.size())
      .add("chosen", f.points.at(f.chosen))
      .add("exact", f.exact)
      .str();
}

std::string sliced_repr(const SlicedPoint& p) {
  return ShortRepr("SlicedPoint")
      .add("num_groups", p.num_groups)
      .add("slices", slices_of(p))
      .add("bytes_per_block", p.bytes_per_block)
      .add("request_bytes", p.request_bytes)
      .add("request_blocks", p.request_blocks)
      .str();
}

}  // namespace

void bind_frontier(py::module_& m) {
  py::class_<GroupingPoint>(m, "GroupingPoint", "One way to group a model's layers.")
      .def_readonly("num_groups", &GroupingPoint::num_groups,
                    "Groups, and so block tables, of a request.")
      .def_readonly("max_layers_per_group", &GroupingPoint::max_layers_per_group,
                    "Layers side by side in the largest group, on one pipeline stage.")
      .def_readonly("bytes_per_block", &GroupingPoint::bytes_per_block,
                    "Bytes of a block on the widest pipeline stage.")
      .def_readonly("request_blocks", &GroupingPoint::request_blocks,
                    "Blocks of a request of the reference length, all groups together.")
      .def_readonly("request_bytes", &GroupingPoint::request_bytes,
                    "Bytes of a request of the reference length, on the widest pipeline stage.")
      .def_readonly("min_request_bytes", &GroupingPoint::min_request_bytes,
                    "Bytes of a request of one token: every group pins a block at least.")
      .def_readonly("bound_bytes", &GroupingPoint::bound_bytes,
                    "No grouping with as many groups takes fewer bytes than this.")
      .def_readonly("is_vllm", &GroupingPoint::is_vllm, "Whether this is vLLM's own grouping.")
      .def("__repr__", &point_repr);

  py::class_<Frontier>(m, "Frontier", "Groupings of which none beats another in groups and bytes.")
      .def_readonly("reference_model_len", &Frontier::reference_model_len,
                    "Tokens of the request that the points are priced for.")
      .def_property_readonly(
          "points", [](const Frontier& f) { return py::tuple(py::cast(f.points)); },
          "GroupingPoint objects, fewest groups first.")
      .def_readonly("vllm", &Frontier::vllm,
                    "vLLM's own grouping; None where vLLM cannot group the model.")
      .def_property_readonly(
          "chosen", [](const Frontier& f) { return f.points.at(f.chosen); },
          "The point that planning with this configuration takes.")
      .def_readonly("lower_bound_bytes", &Frontier::lower_bound_bytes,
                    "Bytes of a request of the reference length without any padding.")
      .def_readonly("exact", &Frontier::exact,
                    "Whether every point is proven to be the best for its number of groups.")
      .def("__repr__", &frontier_repr);

  py::class_<SlicedPoint>(m, "SlicedPoint",
                          "One group a kind of cache, and the slices of the pool's blocks.")
      .def_readonly("num_groups", &SlicedPoint::num_groups, "Groups: one for each kind of cache.")
      .def_readonly("max_layers_per_group", &SlicedPoint::max_layers_per_group,
                    "Layers side by side in the largest group, on one pipeline stage.")
      .def_readonly("bytes_per_block", &SlicedPoint::bytes_per_block,
                    "Bytes of a block of the pool on the widest pipeline stage.")
      .def_readonly(
          "request_bytes", &SlicedPoint::request_bytes,
          "Bytes of the slices that a request of the reference length holds, on the widest "
          "pipeline stage.")
      .def_readonly(
          "request_blocks", &SlicedPoint::request_blocks,
          "Whole blocks of the pool that a request of max_model_len tokens takes by itself.")
      .def_readonly("min_request_bytes", &SlicedPoint::min_request_bytes,
                    "Bytes of the slices of a request of one token.")
      .def_readonly("exact", &SlicedPoint::exact,
                    "Whether no other slices of these groups are cheaper.")
      .def_property_readonly("slices", &slices_of, "Slices of each group, in group order.")
      .def("__repr__", &sliced_repr);
  m.def("sliced_point", &compute_sliced_point, py::arg("config"), py::arg("kv_cache_specs"),
        py::arg("available_memory") = py::none());

  m.attr("DEFAULT_MAX_GROUPS") = kDefaultMaxGroups;
  m.attr("GROUP_PRICE") = kGroupPrice;
  m.def("frontier", &compute_frontier, py::arg("config"), py::arg("kv_cache_specs"));
}

}  // namespace kvplan::bindings
