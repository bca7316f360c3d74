#include "kvplan/config.h"

#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "kvplan/errors.h"
#include "planning/config_fields.h"

namespace kvplan {
namespace {

void require(const char* field, FieldRange range, int64_t value) {
  if (value >= range.least && value <= range.most) return;
  const bool is_small = value < range.least;
  throw InvalidArgument(
      "PlanningConfig: " + std::string(field) + " must be at " + (is_small ? "least " : "most ") +
      std::to_string(is_small ? range.least : range.most) + ", got " + std::to_string(value));
}

// One for each type of field.
void check(const char*, FieldRange, bool) {}
void check(const char*, FieldRange, const std::string&) {}
template <class Enum>
  requires std::is_enum_v<Enum>
void check(const char*, FieldRange, Enum value) {
  to_string(value);  // which there must be
}
void check(const char* field, FieldRange range, int64_t value) { require(field, range, value); }
void check(const char* field, FieldRange range, const KernelBlockSize& value) {
  require(field, range, value.tokens);
}
template <class T>
void check(const char* field, FieldRange range, const std::optional<T>& value) {
  if (value) check(field, range, *value);
}
template <class T>
void check(const char* field, FieldRange range, const std::vector<T>& values) {
  for (const T& v : values) check(field, range, v);
}

// In the order of the enumerators.
constexpr std::string_view kMambaCacheModes[] = {"none", "align", "all"};
constexpr std::string_view kGroupings[] = {"vllm", "compact", "sliced"};
constexpr std::string_view kDraftRules[] = {"auto", "is_draft", "marker"};

template <class Enum>
Enum parse(std::string_view what, std::span<const std::string_view> names,
           const std::string& name) {
  std::string known;
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == name) return static_cast<Enum>(i);
    known += (i == 0 ? "" : ", ") + std::string(names[i]);
  }
  throw InvalidArgument("unknown " + std::string(what) + " '" + name + "'; known: " + known);
}

/// Enumerators may come from a cast.
template <class Enum>
std::string_view print(std::span<const std::string_view> names, Enum value) {
  const auto number = static_cast<size_t>(value);
  if (number < names.size()) return names[number];
  throw InvalidArgument("PlanningConfig: there is no enumerator " + std::to_string(number) +
                        "; known: " + std::string(names.front()) + " to " +
                        std::string(names.back()));
}

}  // namespace

MambaCacheMode parse_mamba_cache_mode(const std::string& name) {
  return parse<MambaCacheMode>("mamba_cache_mode", kMambaCacheModes, name);
}
std::string_view to_string(MambaCacheMode mode) { return print(kMambaCacheModes, mode); }

Grouping parse_grouping(const std::string& name) {
  return parse<Grouping>("grouping", kGroupings, name);
}
std::string_view to_string(Grouping grouping) { return print(kGroupings, grouping); }

DraftRule parse_draft_rule(const std::string& name) {
  return parse<DraftRule>("draft_rule", kDraftRules, name);
}
std::string_view to_string(DraftRule rule) { return print(kDraftRules, rule); }

void validate(const PlanningConfig& config) {
  for_each_config_field(
      [&](const auto& field) { check(field.name, field.range, config.*field.member); });
}

}  // namespace kvplan
