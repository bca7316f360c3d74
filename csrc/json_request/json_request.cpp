#include "kvplan/json_request.h"

#include <unordered_map>

#include "json_request/json_text.h"
#include "json_request/read_fields.h"
#include "json_request/read_request.h"

namespace kvplan {
namespace json_request {
namespace {

constexpr int64_t kVersion = 1;
constexpr size_t kMaxWorkers = 16384;
constexpr size_t kMaxSpecs = 100'000;
constexpr size_t kMaxLayersPerWorker = 1'000'000;
constexpr size_t kMaxLayers = 5'000'000;  // over all workers

/// Layers as `[[name, index into specs], ...]`; the index of the list in the request.
size_t read_layers(const Json& list, const Place& place, const std::vector<SpecId>& specs,
                   PlanRequest& request) {
  const Json::Array& in = read_array(list, place, kMaxLayersPerWorker);
  LayerSpecs layers;
  layers.reserve(in.size());
  std::unordered_map<int32_t, size_t> seen;
  seen.reserve(in.size());
  for (size_t i = 0; i < in.size(); ++i) {
    const Place row(place, i);
    const Json::Array& pair = read_array(in[i], row, 2, 2);
    const std::string name = read_text(pair[0], Place(row, size_t{0}), 1, kMaxNameLength);
    const int64_t index = read_integer(pair[1], Place(row, size_t{1}), 0, kMaxLayers);
    if (index >= static_cast<int64_t>(specs.size())) {
      row.refuse("there is no spec " + std::to_string(index) + ", only " +
                 std::to_string(specs.size()) + " specs");
    }
    const LayerId layer = request.add_layer_name(name);
    const auto [first, is_new] = seen.try_emplace(layer.value, i);
    if (!is_new) {
      row.refuse("the layer '" + name + "' is already at [" + std::to_string(first->second) + "]");
    }
    layers.push_back({layer, specs[static_cast<size_t>(index)]});
  }
  return request.add_layers(std::move(layers));
}

/// What a worker says of its layers, before `same_layers_as` is resolved.
struct Worker {
  int64_t available_memory = 0;
  size_t layers = 0;  ///< a list of the request
  std::optional<size_t> same_layers_as;
};

Worker read_worker(const Json& value, const Place& place, const std::vector<SpecId>& specs,
                   PlanRequest& request) {
  const Json::Object& in = read_object(value, place);
  Worker worker;
  read(require(in, place, "available_memory"), Place(place, "available_memory"),
       worker.available_memory);
  const Json* layers = find(in, "layers");
  const Json* same = find(in, "same_layers_as");
  if ((layers == nullptr) == (same == nullptr)) {
    place.refuse("needs either `layers` or `same_layers_as`");
  }
  refuse_others(in, place, [](auto&& visit) {
    for (const char* name : {"available_memory", "layers", "same_layers_as"}) visit(name);
  });
  if (layers != nullptr) {
    worker.layers = read_layers(*layers, Place(place, "layers"), specs, request);
  } else {
    worker.same_layers_as =
        static_cast<size_t>(read_integer(*same, Place(place, "same_layers_as"), 0, kMaxLayers));
  }
  return worker;
}

void read_workers(const Json& list, const Place& place, const std::vector<SpecId>& specs,
                  PlanRequest& request) {
  const Json::Array& in = read_array(list, place, kMaxWorkers, 1);
  std::vector<Worker> workers;
  size_t total = 0;
  for (size_t i = 0; i < in.size(); ++i) {
    workers.push_back(read_worker(in[i], Place(place, i), specs, request));
    if (!workers[i].same_layers_as) total += request.layer_lists()[workers[i].layers].size();
    if (total > kMaxLayers) {
      place.refuse("more than " + std::to_string(kMaxLayers) + " layers over all workers");
    }
  }
  for (size_t i = 0; i < workers.size(); ++i) {
    Worker& worker = workers[i];
    if (worker.same_layers_as) {
      const Place own(place, i);
      const Place same(own, "same_layers_as");
      const std::string other = std::to_string(*worker.same_layers_as);
      if (*worker.same_layers_as >= workers.size()) {
        same.refuse("there is no worker " + other + ", only " + std::to_string(workers.size()) +
                    " workers");
      }
      if (workers[*worker.same_layers_as].same_layers_as) {
        same.refuse("worker " + other + " lists no layers itself; name a worker that does");
      }
      worker.layers = workers[*worker.same_layers_as].layers;
      total += request.layer_lists()[worker.layers].size();
      if (total > kMaxLayers) {
        same.refuse("more than " + std::to_string(kMaxLayers) + " layers over all workers");
      }
    }
    request.add_worker(worker.layers, worker.available_memory);
  }
}

}  // namespace

JsonRequest read_request(const Json& value) {
  const Place top;
  const Json::Object& in = read_object(value, top);
  refuse_others(in, top, [](auto&& visit) {
    for (const char* name : {"kvplan_request", "config", "specs", "workers", "model", "source"}) {
      visit(name);
    }
  });
  JsonRequest result;
  // What is there is read first: of a text that is cut short, that says more than what it lacks.
  const auto read_member = [&](const char* name, auto&& read_value) {
    if (const Json* found = find(in, name)) read_value(*found, Place(top, name));
  };
  read_member("kvplan_request", [](const Json& version, const Place& place) {
    const int64_t got = read_integer(version, place, -INT64_MAX, INT64_MAX);
    if (got == kVersion) return;
    place.refuse("this kvplan reads version " + std::to_string(kVersion) +
                 " of the request file, got " + std::to_string(got));
  });
  for (const char* name : {"model", "source"}) {
    read_member(name, [&](const Json& text, const Place& place) {
      if (text.is_null()) return;
      const std::string free_text = read_text(text, place, 0, kMaxTextLength);
      if (std::string_view(name) == "model") result.model = free_text;
    });
  }
  read_member("config", [&](const Json& config, const Place& place) {
    result.config = read_config(config, place);
  });
  std::vector<SpecId> specs;
  read_member("specs", [&](const Json& list, const Place& place) {
    const Json::Array& elements = read_array(list, place, kMaxSpecs);
    for (size_t i = 0; i < elements.size(); ++i) {
      specs.push_back(result.request.add_spec(read_spec(elements[i], Place(place, i))));
    }
  });
  for (const char* name : {"kvplan_request", "config", "specs"}) require(in, top, name);
  read_workers(require(in, top, "workers"), Place(top, "workers"), specs, result.request);
  return result;
}

}  // namespace json_request

JsonRequest read_json_request(std::string_view text) {
  return json_request::read_request(json_request::parse(text, "request"));
}

}  // namespace kvplan
