#include "json_request/read_fields.h"

#include "planning/config_fields.h"
#include "planning/specs/spec_fields.h"

namespace kvplan::json_request {
namespace {

// One for each type of field, as `read` takes it.
Json write(bool value) { return value; }
Json write(int32_t value) { return value; }
Json write(int64_t value) { return value; }
Json write(const std::string& value) { return value; }
template <class Enum>
  requires std::is_enum_v<Enum>
Json write(Enum value) {
  return std::string(to_string(value));
}
Json write(const TokensPerState& value) {
  if (value.den == 1) return value.num;
  return std::to_string(value.num) + "/" + std::to_string(value.den);
}
Json write(const BlockStrideAlignment& value) {
  switch (value.kind) {
    case BlockStrideAlignment::Kind::kBytes:
      return value.value;
    case BlockStrideAlignment::Kind::kMultipleOf:
      return Json::object({{"multiple_of", value.value}});
    default:
      return nullptr;
  }
}
Json write(const KernelBlockSize& value) {
  if (value.multiples) return Json::object({{"multiple_of", value.tokens}});
  return value.tokens;
}
template <class T>
Json write(const std::optional<T>& value) {
  return value ? write(*value) : Json();
}
Json write(const CustomDemand& value) {
  return Json::object({{"cap_tokens", write(value.cap_tokens)},
                       {"cap_includes_in_flight", value.cap_includes_in_flight},
                       {"extra_pages", value.extra_pages}});
}
template <class T>
Json write(const std::vector<T>& values) {
  Json::Array array;
  for (const T& v : values) array.push_back(write(v));
  return array;
}

// Numbers are held to the field's range here, where an error can still name their place.
template <class T>
void read_in_range(const Json& in, const Place& place, FieldRange range, T& out) {
  if constexpr (std::is_same_v<T, std::optional<int64_t>>) {
    out.reset();
    if (!in.is_null()) out = read_integer(in, place, range.least, range.most);
  } else if constexpr (std::is_same_v<T, int64_t> || std::is_same_v<T, int32_t>) {
    out = static_cast<T>(read_integer(in, place, range.least, range.most));
  } else {
    read(in, place, out);
  }
}

}  // namespace

PlanningConfig read_config(const Json& value_in, const Place& place) {
  const Json::Object& in = read_object(value_in, place);
  PlanningConfig config;
  require(in, place, "max_model_len");
  for_each_config_field([&](const auto& field) {
    const Json* value = find(in, field.name);
    if (value == nullptr) return;
    const Place where(place, field.name);
    // The one text that is null where there is none.
    if (std::string_view(field.name) == "model_type" && value->is_null()) return;
    read_in_range(*value, where, field.range, config.*field.member);
  });
  refuse_others(in, place, [](auto&& visit) {
    for_each_config_field([&](const auto& field) { visit(field.name); });
  });
  at(place, [&] { validate(config); });
  return config;
}

KVCacheSpec read_spec(const Json& value_in, const Place& place) {
  const Json::Object& in = read_object(value_in, place);
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
    read_in_range(*value, where, field.range, spec.*field.member);
  });
  refuse_others(in, place, [&](auto&& visit) {
    visit("kind");
    for_each_field(kind, [&](const auto& field) { visit(field.name); });
  });
  at(place, [&] { finalize(spec); });
  return spec;
}

Json write_config(const PlanningConfig& config) {
  const PlanningConfig defaults;
  Json::Object out;
  for_each_config_field([&](const auto& field) {
    const auto& value = config.*field.member;
    if (!(value == defaults.*field.member)) out.emplace_back(field.name, write(value));
  });
  return out;
}

Json write_spec(const KVCacheSpec& spec) {
  KVCacheSpec defaults = default_spec(spec.kind);
  if (defaults.head_size_v == -1) defaults.head_size_v = spec.head_size;
  Json::Object out = {{"kind", std::string(class_name(spec.kind))}};
  for_each_field(spec.kind, [&](const auto& field) {
    const bool required = field.use == FieldUse::kRequired;
    if (required || !(spec.*field.member == defaults.*field.member)) {
      out.emplace_back(field.name, write(spec.*field.member));
    }
  });
  return out;
}

}  // namespace kvplan::json_request
