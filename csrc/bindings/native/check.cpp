#include "bindings/native/check.h"

#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "kvplan/errors.h"
#include "kvplan/groups.h"

namespace py = pybind11;

namespace kvplan::bindings {
namespace {

std::vector<LayerId> read_names(NameTable& names, py::handle list) {
  std::vector<LayerId> ids;
  for (const py::handle name : list) ids.push_back(names.intern(py::cast<std::string>(name)));
  return ids;
}

// The tuples that kvplan/check.py builds, field by field.
CheckedWorker read_worker(NameTable& names, py::handle worker) {
  const auto [num_blocks, buffer_bytes, available_bytes, layers, groups, tensors] =
      py::cast<std::tuple<int64_t, int64_t, std::optional<int64_t>, py::list, py::list, py::list>>(
          worker);
  CheckedWorker w;
  w.num_blocks = num_blocks;
  w.buffer_bytes = buffer_bytes;
  w.available_bytes = available_bytes;
  for (const py::handle item : layers) {
    const auto [name, heads, states, content, page, alignment] =
        py::cast<std::tuple<std::string, int64_t, int64_t, int64_t, int64_t, int64_t>>(item);
    w.layers.push_back({names.intern(name), {heads, states, content, page, alignment}});
  }
  for (const py::handle item : groups) {
    const auto [layer_names, spec, block_size, is_eagle, host_resident, slices] =
        py::cast<std::tuple<py::list, std::optional<int64_t>, int64_t, bool, bool, int64_t>>(item);
    w.groups.push_back(
        {read_names(names, layer_names), spec, block_size, is_eagle, host_resident, slices});
  }
  for (const py::handle item : tensors) {
    const auto [size, layer_names, layer_stride, block_stride, offset] =
        py::cast<std::tuple<int64_t, py::list, int64_t, int64_t, int64_t>>(item);
    w.tensors.push_back({size, read_names(names, layer_names), layer_stride, block_stride, offset});
  }
  return w;
}

py::list check_placement(const std::string& layout, const py::list& workers, bool no_gaps,
                         bool allow_foreign_layers, size_t max_violations) {
  NameTable names;
  CheckedPlacement placement;
  placement.layout = parse_layout(layout);
  placement.no_gaps = no_gaps;
  placement.allow_foreign_layers = allow_foreign_layers;
  try {
    for (const py::handle w : workers) placement.workers.push_back(read_worker(names, w));
  } catch (const py::cast_error&) {
    throw InvalidArgument("a number of the placement is not a 64-bit integer");
  }
  for (size_t i = 0; i < names.size(); ++i) placement.layer_names.push_back(names[LayerId(i)]);
  return violation_list(check(placement, max_violations));
}

}  // namespace

py::list violation_list(const std::vector<Violation>& violations) {
  py::list list;
  for (const Violation& v : violations) {
    list.append(py::make_tuple(std::string(to_string(v.rule)), v.worker, v.message));
  }
  return list;
}

void bind_check(py::module_& m) {
  m.def("check_placement", check_placement, py::arg("layout"), py::arg("workers"),
        py::arg("no_gaps"), py::arg("allow_foreign_layers"), py::arg("max_violations"),
        "Broken rules of a placement given as plain numbers; see kvplan.check.");
}

}  // namespace kvplan::bindings
