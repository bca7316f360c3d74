#include "kvplan/json_plan.h"

#include "json_request/json_text.h"
#include "json_request/read_fields.h"

namespace kvplan {
namespace json_request {
namespace {

constexpr int64_t kPlanVersion = 1;
constexpr size_t kMaxElements = 5'000'000;  // of any list
constexpr const char* kRoles[] = {"default", "hisparse_source", "hisparse_indexer"};
constexpr const char* kLevels[] = {"info", "warning"};

Json write_layers(const std::vector<LayerId>& layers) {
  Json::Array out;
  for (LayerId id : layers) out.push_back(id.value);
  return out;
}

Json write_groups(const KVCacheGroups& groups) {
  Json::Array out;
  for (const KVCacheGroup& g : groups) {
    Json specs;  // null: one for all
    if (g.is_uniform_type()) {
      Json::Array rows;
      for (const LayerSpec& l : *g.layer_specs) {
        rows.push_back(Json::Array{l.layer.value, l.spec.value});
      }
      specs = std::move(rows);
    }
    out.push_back(Json::object({{"layers", write_layers(g.layers)},
                                {"spec", g.spec.value},
                                {"layer_specs", std::move(specs)},
                                {"is_eagle_group", g.is_eagle_group},
                                {"host_resident", g.host_resident},
                                {"enable_kv_transfer", g.enable_kv_transfer},
                                {"role", kRoles[static_cast<size_t>(g.role)]},
                                {"slices", g.slices}}));
  }
  return out;
}

Json write_stage(const StagePlan& stage) {
  Json::Array tensors;
  for (const KVCacheTensor& t : stage.tensors) {
    tensors.push_back(Json::object({{"size", t.size},
                                    {"layers", write_layers(t.layers)},
                                    {"layer_stride", t.layer_stride},
                                    {"block_stride", t.block_stride},
                                    {"offset", t.offset}}));
  }
  return Json::object({{"groups", write_groups(stage.groups)},
                       {"tensors", std::move(tensors)},
                       {"num_layers", stage.num_layers},
                       {"bytes_per_block", stage.bytes_per_block},
                       {"request_bytes", stage.request_bytes},
                       {"kv_tp_replicas", stage.kv_tp_replicas}});
}

/// An object's members by name; `done` refuses those that nobody asked for.
class Members {
 public:
  Members(const Json& in, const Place& place) : in_(read_object(in, place)), place_(place) {}

  const Json& operator[](const char* name) {
    names_.emplace_back(name);
    return require(in_, place_, name);
  }
  template <class T>
  void read(const char* name, T& out) {
    json_request::read((*this)[name], Place(place_, name), out);
  }
  /// `visit(element, place)` for each of a list.
  template <class Visit>
  void each(const char* name, Visit&& visit) {
    const Place list(place_, name);
    const Json::Array& elements = read_array((*this)[name], list, kMaxElements);
    for (size_t i = 0; i < elements.size(); ++i) visit(elements[i], Place(list, i));
  }
  void done() const {
    refuse_others(in_, place_, [&](auto&& visit) {
      for (const char* name : names_) visit(name);
    });
  }

 private:
  const Json::Object& in_;
  const Place& place_;
  std::vector<const char*> names_;
};

/// That the ids exist is for `validate` to say.
template <class Id>
Id read_id(const Json& in, const Place& place) {
  return Id(static_cast<int32_t>(read_integer(in, place, 0, INT32_MAX)));
}

/// The position in a list of names.
template <class Names>
size_t read_choice(const Json& in, const Place& place, const Names& names) {
  const std::string name = read_text(in, place, 1, kMaxNameLength);
  for (size_t i = 0; i < std::size(names); ++i) {
    if (name == names[i]) return i;
  }
  place.refuse("unknown value '" + name + "'");
}

KVCacheGroup read_group(const Json& in, const Place& place) {
  Members m(in, place);
  KVCacheGroup g;
  m.each("layers",
         [&](const Json& id, const Place& p) { g.layers.push_back(read_id<LayerId>(id, p)); });
  g.spec = read_id<SpecId>(m["spec"], Place(place, "spec"));
  if (!m["layer_specs"].is_null()) {
    LayerSpecs specs;
    m.each("layer_specs", [&](const Json& row, const Place& p) {
      const Json::Array& pair = read_array(row, p, 2, 2);
      specs.push_back({read_id<LayerId>(pair[0], p), read_id<SpecId>(pair[1], p)});
    });
    g.layer_specs = std::make_shared<const LayerSpecs>(std::move(specs));
  }
  m.read("is_eagle_group", g.is_eagle_group);
  m.read("host_resident", g.host_resident);
  m.read("enable_kv_transfer", g.enable_kv_transfer);
  g.role = static_cast<GroupRole>(read_choice(m["role"], Place(place, "role"), kRoles));
  m.read("slices", g.slices);
  m.done();
  return g;
}

KVCacheTensor read_tensor(const Json& in, const Place& place) {
  Members m(in, place);
  KVCacheTensor t;
  m.read("size", t.size);
  m.each("layers",
         [&](const Json& id, const Place& p) { t.layers.push_back(read_id<LayerId>(id, p)); });
  m.read("layer_stride", t.layer_stride);
  m.read("block_stride", t.block_stride);
  m.read("offset", t.offset);
  m.done();
  return t;
}

StagePlan read_stage(const Json& in, const Place& place) {
  Members m(in, place);
  StagePlan stage;
  m.each("groups",
         [&](const Json& g, const Place& p) { stage.groups.push_back(read_group(g, p)); });
  m.each("tensors",
         [&](const Json& t, const Place& p) { stage.tensors.push_back(read_tensor(t, p)); });
  m.read("num_layers", stage.num_layers);
  m.read("bytes_per_block", stage.bytes_per_block);
  m.read("request_bytes", stage.request_bytes);
  m.read("kv_tp_replicas", stage.kv_tp_replicas);
  m.done();
  return stage;
}

WorkerPlan read_worker(const Json& in, const Place& place) {
  Members m(in, place);
  WorkerPlan w{};
  w.stage = static_cast<size_t>(read_integer(m["stage"], Place(place, "stage"), 0, INT32_MAX));
  m.read("available_bytes", w.available_bytes);
  m.read("effective_bytes", w.effective_bytes);
  m.read("num_blocks", w.num_blocks);
  m.done();
  return w;
}

Notice read_notice(const Json& in, const Place& place) {
  Members m(in, place);
  Notice notice{};
  notice.level =
      static_cast<Notice::Level>(read_choice(m["level"], Place(place, "level"), kLevels));
  m.read("message", notice.message);
  m.done();
  return notice;
}

}  // namespace
}  // namespace json_request

std::string write_json_plan(const Plan& plan) {
  using namespace json_request;
  validate(plan);
  Json::Array names;
  for (size_t i = 0; i < plan.names->size(); ++i) {
    names.push_back(std::string((*plan.names)[LayerId(i)]));
  }
  Json::Array specs;
  for (size_t i = 0; i < plan.specs->size(); ++i)
    specs.push_back(write_spec((*plan.specs)[SpecId(i)]));
  Json::Array stages;
  for (const StagePlan& stage : plan.stages) stages.push_back(write_stage(stage));
  Json::Array workers;
  for (const WorkerPlan& w : plan.workers) {
    workers.push_back(Json::object({{"stage", w.stage},
                                    {"available_bytes", w.available_bytes},
                                    {"effective_bytes", w.effective_bytes},
                                    {"num_blocks", w.num_blocks}}));
  }
  Json::Array notices;
  for (const Notice& n : plan.notices) {
    notices.push_back(
        Json::object({{"level", kLevels[static_cast<size_t>(n.level)]}, {"message", n.message}}));
  }
  return dump(Json::object({{"kvplan_plan", kPlanVersion},
                            {"config", write_config(plan.config)},
                            {"requested_max_model_len", plan.requested_max_model_len},
                            {"num_blocks", plan.num_blocks},
                            {"layer_names", std::move(names)},
                            {"specs", std::move(specs)},
                            {"groups", write_groups(plan.groups)},
                            {"stages", std::move(stages)},
                            {"workers", std::move(workers)},
                            {"notices", std::move(notices)}}));
}

Plan read_json_plan(std::string_view text) {
  using namespace json_request;
  const Json in = parse(text, "plan");
  const Place top;
  Members m(in, top);
  read_integer(m["kvplan_plan"], Place(top, "kvplan_plan"), kPlanVersion, kPlanVersion);
  Plan plan;
  plan.config = read_config(m["config"], Place(top, "config"));
  m.read("requested_max_model_len", plan.requested_max_model_len);
  m.read("num_blocks", plan.num_blocks);
  auto names = std::make_shared<NameTable>();
  m.each("layer_names", [&](const Json& name, const Place& p) {
    if (names->intern(read_text(name, p, 1, kMaxNameLength)).pos() + 1 != names->size()) {
      p.refuse("the name is in the list already");
    }
  });
  auto specs = std::make_shared<SpecTable>();
  size_t num_specs = 0;
  m.each("specs", [&](const Json& spec, const Place& p) {
    if (specs->intern(read_spec(spec, p)).pos() != num_specs++) {
      p.refuse("the spec is in the list already");
    }
  });
  plan.names = std::move(names);
  plan.specs = std::move(specs);
  m.each("groups", [&](const Json& g, const Place& p) { plan.groups.push_back(read_group(g, p)); });
  m.each("stages", [&](const Json& s, const Place& p) { plan.stages.push_back(read_stage(s, p)); });
  m.each("workers",
         [&](const Json& w, const Place& p) { plan.workers.push_back(read_worker(w, p)); });
  m.each("notices",
         [&](const Json& n, const Place& p) { plan.notices.push_back(read_notice(n, p)); });
  m.done();
  validate(plan);
  return plan;
}

}  // namespace kvplan
