#include "kvplan/json_request.h"

#include <unordered_map>

#include "json_request/read_value.h"
#include "planning/config_fields.h"
#include "planning/specs/spec_fields.h"

namespace kvplan {
namespace json_request {
namespace {

constexpr int64_t kVersion = 1;
constexpr size_t kMaxBytes = size_t{64} << 20;
constexpr size_t kMaxWorkers = 16384;
constexpr size_t kMaxSpecs = 100'000;
constexpr size_t kMaxLayersPerWorker = 1'000'000;
constexpr size_t kMaxLayers = 5'000'000;  // over all workers

/// The member with this name, or null.
const Json* find(const Json& object, std::string_view name) {
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

const Json& require(const Json& object, const Place& place, std::string_view name) {
  const Json* found = find(object, name);
  if (found == nullptr) place.refuse("`" + std::string(name) + "` is missing");
  return *found;
}

/// Refuses what none of the fields that `visit_names` visits is called.
template <class VisitNames>
void refuse_others(const Json& object, const Place& place, VisitNames&& visit_names) {
  for (const auto& [key, value] : object.items()) {
    bool known = false;
    visit_names([&](std::string_view name) { known = known || name == key; });
    if (!known) refuse_unknown(place, key);
  }
}

PlanningConfig read_config(const Json& in, const Place& place) {
  read_object(in, place);
  PlanningConfig config;
  require(in, place, "max_model_len");
  for_each_config_field([&](const char* name, auto member) {
    const Json* value = find(in, name);
    if (value == nullptr) return;
    const Place field(place, name);
    // The one text that is null where there is none.
    if (std::string_view(name) == "model_type" && value->is_null()) return;
    read(*value, field, config.*member);
  });
  refuse_others(in, place, [](auto&& visit) {
    for_each_config_field([&](const char* name, auto) { visit(name); });
  });
  at(place, [&] { validate(config); });
  return config;
}

KVCacheSpec read_spec(const Json& in, const Place& place) {
  read_object(in, place);
  std::string kind_name;
  const Place kind_place(place, "kind");
  read(require(in, place, "kind"), kind_place, kind_name);
  const SpecKind kind = at(kind_place, [&] { return parse_spec_kind(kind_name); });
  KVCacheSpec spec = default_spec(kind);
  for_each_field(kind, [&](const auto& field) {
    const Json* value = find(in, field.name);
    const bool required = field.use == FieldUse::kRequired;
    if (value == nullptr) {
      if (required) place.refuse("`" + std::string(field.name) + "` is missing");
      return;
    }
    const Place where(place, field.name);
    if (required && value->is_null()) refuse_type(*value, where, "a value");
    if (field.name == "uniform_type_base") {
      // The one text that may be empty.
      spec.uniform_type_base = read_text(*value, where, 0, kMaxTextLength);
      return;
    }
    read(*value, where, spec.*field.member);
    if (field.name == "cache_role" && spec.cache_role != "sparse" && spec.cache_role != "indexer") {
      where.refuse("unknown role '" + spec.cache_role + "'; known: sparse, indexer");
    }
  });
  if (const Json* subclass = find(in, "subclass")) {
    read(*subclass, Place(place, "subclass"), spec.subclass);
  }
  refuse_others(in, place, [&](auto&& visit) {
    visit("kind");
    visit("subclass");
    for_each_field(kind, [&](const auto& field) { visit(field.name); });
  });
  at(place, [&] { finalize(spec); });
  return spec;
}

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

Json parse(std::string_view text) {
  if (text.size() > kMaxBytes) {
    throw InvalidArgument("larger than " + std::to_string(kMaxBytes >> 20) +
                          " MiB, the limit for a request");
  }
  // nlohmann/json skips a byte order mark, which JSON does not have.
  if (text.starts_with("\xef\xbb\xbf"))
    throw InvalidArgument("not a JSON request: byte order mark");
  // It takes a null byte for the end of the text, and would read no further.
  if (const size_t at = text.find('\0'); at != std::string_view::npos) {
    throw InvalidArgument("not a JSON request: null byte at " + std::to_string(at));
  }
  try {
    return Json::parse(text);
  } catch (const Json::exception& e) {
    throw InvalidArgument(std::string("not a JSON request: ") + e.what());
  }
}

}  // namespace
}  // namespace json_request

bool can_read_json_requests() noexcept { return true; }

JsonRequest read_json_request(std::string_view text) {
  using namespace json_request;
  const Json in = parse(text);
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
