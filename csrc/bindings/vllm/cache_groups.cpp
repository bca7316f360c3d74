#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <vector>

#include "bindings/native/spec_object.h"
#include "bindings/vllm/native_types.h"
#include "kvplan/cache_manager.h"

namespace py = pybind11;

namespace kvplan::bindings {
namespace {

/// `same_as[i]`: index of the first spec that equals spec i.
py::capsule cache_groups(const py::list& specs, const std::vector<bool>& is_eagle_group,
                         const std::vector<size_t>& same_as, const std::vector<int64_t>& slices) {
  auto groups = std::make_unique<std::vector<CacheGroup>>();
  for (size_t i = 0; i < specs.size(); ++i) {
    groups->push_back(cache_group(spec_value(specs[i]), is_eagle_group.at(i)));
    if (same_as.at(i) != i) groups->back().same_spec_as = same_as.at(i);
    if (!slices.empty()) groups->back().slices = slices.at(i);
  }
  const PyCapsule_Destructor destroy = [](PyObject* capsule) {
    delete static_cast<std::vector<CacheGroup>*>(
        PyCapsule_GetPointer(capsule, kCacheGroupsCapsule));
  };
  return py::capsule(groups.release(), kCacheGroupsCapsule, destroy);
}

}  // namespace

bool add_cache_groups(PyObject* module) {
  auto m = py::reinterpret_borrow<py::module_>(module);
  m.def("vllm_cache_groups", &cache_groups, py::arg("specs"), py::arg("is_eagle_group"),
        py::arg("same_as"), py::arg("slices") = std::vector<int64_t>(),
        "The groups of kvplan's own specs, for VllmCacheManager.");
  return true;
}

}  // namespace kvplan::bindings
