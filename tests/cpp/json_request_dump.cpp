// What the C++ reader makes of request files: one line of JSON for each path, for a comparison with
// the Python package's reader.

#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kvplan/kvplan.h"
#include "planning/config_fields.h"

namespace kvplan {
namespace {

using Json = nlohmann::json;

template <class T>
Json describe(const T& value) {
  return value;
}
template <class T>
Json describe(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}
Json describe(KVCacheLayout value) { return std::string(to_string(value)); }
Json describe(MambaCacheMode value) {
  return std::vector{"none", "align", "all"}.at(static_cast<size_t>(value));
}
Json describe(Grouping value) {
  return std::vector{"vllm", "compact", "sliced"}.at(static_cast<size_t>(value));
}
Json describe(DraftRule value) {
  return std::vector{"auto", "is_draft", "marker"}.at(static_cast<size_t>(value));
}
Json describe(const std::vector<KernelBlockSize>& value) {
  Json list = Json::array();
  for (const KernelBlockSize& k : value) {
    list.push_back(k.multiples ? Json{{"multiple_of", k.tokens}} : Json(k.tokens));
  }
  return list;
}

Json describe_file(const char* path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  JsonRequest r;
  try {
    r = read_json_request(text.str());
  } catch (const InvalidArgument& e) {
    return {{"refused", e.what()}};
  }
  Json config;
  for_each_config_field(
      [&](const auto& field) { config[field.name] = describe(r.config.*field.member); });
  Json workers = Json::array();
  for (const PlanRequest::Worker& w : r.request.workers()) {
    Json layers = Json::array();
    for (const LayerSpec& l : r.request.layer_lists()[w.layers_index]) {
      const KVCacheSpec& spec = r.request.specs()[l.spec];
      layers.push_back({(*r.request.names())[l.layer], to_string(spec), spec.is_draft});
    }
    workers.push_back({{"available_memory", w.available_bytes}, {"layers", layers}});
  }
  return {{"config", config}, {"workers", workers}};
}

}  // namespace
}  // namespace kvplan

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    std::cout << kvplan::describe_file(argv[i]).dump(-1, ' ', true,
                                                     nlohmann::json::error_handler_t::replace)
              << std::endl;
  }
}
