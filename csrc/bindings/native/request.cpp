#include <pybind11/pybind11.h>

#include <vector>

#include "bindings/bindings.h"
#include "bindings/native/field_conversion.h"
#include "bindings/native/json_object.h"
#include "bindings/native/spec_object.h"
#include "json_request/place.h"
#include "json_request/read_request.h"

namespace py = pybind11;

namespace kvplan::bindings {
namespace {

using json_request::Json;
using json_request::Place;

constexpr int kMaxDepth = 64;  // as for the text

Json as_json(py::handle in, const Place& place, int depth = 0) {
  if (depth > kMaxDepth) throw InvalidArgument("not a JSON request: nested too deeply");
  if (in.is_none()) return {};
  if (PyBool_Check(in.ptr())) return in.ptr() == Py_True;
  if (PyLong_Check(in.ptr())) {
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(in.ptr(), &overflow);
    if (overflow == 0) return value;
    return json_request::HugeInteger{py::str(in).cast<std::string>()};
  }
  if (PyFloat_Check(in.ptr())) return PyFloat_AS_DOUBLE(in.ptr());
  if (PyUnicode_Check(in.ptr())) return std::string(read_text(in, place.text()));
  if (PyDict_Check(in.ptr())) {
    Json::Object object;
    for (const auto& [key, value] : py::reinterpret_borrow<py::dict>(in)) {
      if (!PyUnicode_Check(key.ptr())) place.refuse("a name must be text");
      const std::string name(read_text(key, place.text()));
      object.emplace_back(name, as_json(value, Place(place, name), depth + 1));
    }
    return object;
  }
  if (PyList_Check(in.ptr()) || PyTuple_Check(in.ptr())) {
    Json::Array array;
    array.reserve(py::len(in));
    for (py::handle element : in) {
      array.push_back(as_json(element, Place(place, array.size()), depth + 1));
    }
    return array;
  }
  place.refuse("JSON has no `" + std::string(Py_TYPE(in.ptr())->tp_name) + "`");
}

py::tuple read_request(py::handle document) {
  const JsonRequest read = json_request::read_request(json_value(document));
  const PlanRequest& request = read.request;
  py::list specs;
  for (size_t i = 0; i < request.specs().size(); ++i) {
    specs.append(make_spec_object(request.specs()[SpecId(i)]));
  }
  std::vector<py::dict> lists;
  for (const LayerSpecs& layers : request.layer_lists()) {
    py::dict& list = lists.emplace_back();
    for (const LayerSpec& l : layers) {
      list[py::str((*request.names())[l.layer])] = specs[l.spec.pos()];
    }
  }
  py::list layers_per_worker;
  py::list memory;
  for (const PlanRequest::Worker& worker : request.workers()) {
    layers_per_worker.append(lists[worker.layers_index]);
    memory.append(worker.available_bytes);
  }
  return py::make_tuple(read.config, layers_per_worker, memory);
}

}  // namespace

py::object json_object(const Json& value) {
  return value.visit([](const auto& v) -> py::object {
    using T = std::remove_cvref_t<decltype(v)>;
    if constexpr (std::is_same_v<T, Json::Array>) {
      py::list list;
      for (const Json& element : v) list.append(json_object(element));
      return list;
    } else if constexpr (std::is_same_v<T, Json::Object>) {
      py::dict dict;
      for (const auto& [name, member] : v) dict[py::str(name)] = json_object(member);
      return dict;
    } else if constexpr (std::is_same_v<T, std::monostate>) {
      return py::none();
    } else if constexpr (std::is_same_v<T, json_request::HugeInteger>) {
      return py::int_(py::str(v.digits));
    } else {
      return py::cast(v);
    }
  });
}

Json json_value(py::handle object) { return as_json(object, Place()); }

void bind_request(py::module_& m) {
  m.def("read_request", &read_request, py::arg("document"),
        "The config, each worker's specs by layer name, and each worker's memory in bytes, of a\n"
        "request file's JSON as Python's lists and dictionaries. Equal specs are one object, and\n"
        "workers with the same layers share one dict. Raises ValueError that names the place in\n"
        "the JSON; docs/request.md describes the format.");
}

}  // namespace kvplan::bindings
