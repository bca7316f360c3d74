#include "kvplan/json_request.h"

#include <unordered_map>

#include "json_request/read_fields.h"

namespace kvplan {
namespace json_request {
namespace {

constexpr int64_t kVersion = 1;
constexpr size_t kMaxWorkers = 16384;
constexpr size_t kMaxSpecs = 100'000;
constexpr size_t kMaxLayersPerWorker = 1'000'000;
constexpr size_t kMaxLayers = 5'000'000;  // over all workers

/// Layers as `[[name, index into specs], ...]`; the index of the list in the request.
size_t read_layers(const Json& in, const Place& place, const std::vector<SpecId>& specs,
                   PlanRequest& request) {
  read_array(in, place, kMaxLayersPerWorker);
  LayerSpecs layers;
  layers.reserve(in.size());
  std::unordered_map<int32_t, size_t> seen;
  seen.reserve(in.size());
  for (size_t i = 0; i < in.size(); ++i) {
    const Place row(place, i);
    read_array(in[i], row, 2);
    if (in[i].size() != 2) row.refuse("expected [layer name, index into specs]");
    const std::string name = read_text(in[i][0], Place(row, size_t{0}), 1, kMaxNameLength);
    const int64_t index = read_integer(in[i][1], Place(row, size_t{1}), 0, kMaxLayers);
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
  std::optional<size_t> layers;  ///< a list of the request
  size_t same_layers_as = 0;
};

Worker read_worker(const Json& in, const Place& place, const std::vector<SpecId>& specs,
                   PlanRequest& request) {
  read_object(in, place);
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

void read_workers(const Json& in, const Place& place, const std::vector<SpecId>& specs,
                  PlanRequest& request) {
  read_array(in, place, kMaxWorkers);
  if (in.empty()) place.refuse("at least one worker is needed");
  std::vector<Worker> workers;
  size_t total = 0;
  for (size_t i = 0; i < in.size(); ++i) {
    workers.push_back(read_worker(in[i], Place(place, i), specs, request));
    if (workers[i].layers) total += request.layer_lists()[*workers[i].layers].size();
    if (total > kMaxLayers) {
      place.refuse("more than " + std::to_string(kMaxLayers) + " layers over all workers");
    }
  }
  for (size_t i = 0; i < workers.size(); ++i) {
    Worker& worker = workers[i];
    if (!worker.layers) {
      const Place own(place, i);
      const Place same(own, "same_layers_as");
      const std::string other = std::to_string(worker.same_layers_as);
      if (worker.same_layers_as >= workers.size()) {
        same.refuse("there is no worker " + other + ", only " + std::to_string(workers.size()) +
                    " workers");
      }
      const Json& named = in[worker.same_layers_as];
      if (find(named, "layers") == nullptr) {
        same.refuse("worker " + other + " lists no layers itself; name a worker that does");
      }
      worker.layers = workers[worker.same_layers_as].layers;
      total += request.layer_lists()[*worker.layers].size();
      if (total > kMaxLayers) {
        same.refuse("more than " + std::to_string(kMaxLayers) + " layers over all workers");
      }
    }
    request.add_worker(*worker.layers, worker.available_memory);
  }
}

}  // namespace
}  // namespace json_request

bool can_read_json_requests() noexcept { return true; }

JsonRequest read_json_request(std::string_view text) {
  using namespace json_request;
  const Json in = parse(text, "request");
  const Place top;
  read_object(in, top);
  const int64_t version = read_integer(require(in, top, "kvplan_request"),
                                       Place(top, "kvplan_request"), INT64_MIN, INT64_MAX);
  if (version != kVersion) {
    Place(top, "kvplan_request")
        .refuse("this kvplan reads version " + std::to_string(kVersion) + ", got " +
                std::to_string(version));
  }
  refuse_others(in, top, [](auto&& visit) {
    for (const char* name : {"kvplan_request", "config", "specs", "workers", "model", "source"}) {
      visit(name);
    }
  });
  JsonRequest result;
  for (const char* name : {"model", "source"}) {
    const Json* value = find(in, name);
    if (value == nullptr || value->is_null()) continue;
    const std::string free_text = read_text(*value, Place(top, name), 0, kMaxTextLength);
    if (std::string_view(name) == "model") result.model = free_text;
  }
  result.config = read_config(require(in, top, "config"), Place(top, "config"));
  const Place specs_place(top, "specs");
  const Json& specs = read_array(require(in, top, "specs"), specs_place, kMaxSpecs);
  std::vector<SpecId> ids;
  for (size_t i = 0; i < specs.size(); ++i) {
    ids.push_back(result.request.add_spec(read_spec(specs[i], Place(specs_place, i))));
  }
  read_workers(require(in, top, "workers"), Place(top, "workers"), ids, result.request);
  return result;
}

}  // namespace kvplan
