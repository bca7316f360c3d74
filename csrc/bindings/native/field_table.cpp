#include <pybind11/pybind11.h>

#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "planning/config_fields.h"
#include "planning/specs/spec_fields.h"

namespace py = pybind11;

namespace kvplan::bindings {
namespace {

template <class T>
constexpr const char* kTypeName = nullptr;
template <>
constexpr const char* kTypeName<bool> = "bool";
template <>
constexpr const char* kTypeName<int32_t> = "int";
template <>
constexpr const char* kTypeName<int64_t> = "int";
template <>
constexpr const char* kTypeName<std::string> = "str";
template <>
constexpr const char* kTypeName<DType> = "dtype";
template <>
constexpr const char* kTypeName<TokensPerState> = "tokens_per_state";
template <>
constexpr const char* kTypeName<BlockStrideAlignment> = "block_stride_alignment";
template <>
constexpr const char* kTypeName<CustomDemand> = "demand";
template <>
constexpr const char* kTypeName<std::vector<DType>> = "dtypes";
template <>
constexpr const char* kTypeName<std::vector<KernelBlockSize>> = "kernel_block_sizes";
template <>
constexpr const char* kTypeName<std::vector<std::vector<int64_t>>> = "shapes";
template <>
constexpr const char* kTypeName<KVCacheLayout> = "choice";
template <>
constexpr const char* kTypeName<MambaCacheMode> = "choice";
template <>
constexpr const char* kTypeName<Grouping> = "choice";
template <>
constexpr const char* kTypeName<DraftRule> = "choice";
template <class T>
constexpr const char* kTypeName<std::optional<T>> = kTypeName<T>;

py::list choices(KVCacheLayout) {
  py::list names;
  for (KVCacheLayout layout : kAllLayouts) names.append(std::string(to_string(layout)));
  return names;
}
template <class Enum>
py::list names_up_to(Enum last) {
  py::list names;
  for (int i = 0; i <= static_cast<int>(last); ++i) {
    names.append(std::string(to_string(static_cast<Enum>(i))));
  }
  return names;
}
py::list choices(MambaCacheMode) { return names_up_to(MambaCacheMode::kAll); }
py::list choices(Grouping) { return names_up_to(Grouping::kSliced); }
py::list choices(DraftRule) { return names_up_to(DraftRule::kMarker); }

template <class T>
constexpr bool kIsOptional = false;
template <class T>
constexpr bool kIsOptional<std::optional<T>> = true;

template <class T>
py::dict describe(std::string_view name, bool required, FieldRange range, std::string_view unit) {
  py::dict row;
  row["name"] = std::string(name);
  row["type"] = kTypeName<T>;
  row["optional"] = kIsOptional<T> && !required;
  row["required"] = required;
  row["least"] = range.least;
  row["most"] = range.most;
  row["unit"] = std::string(unit);
  if constexpr (std::is_enum_v<T> && !std::is_same_v<T, DType>) row["choices"] = choices(T());
  return row;
}

py::dict field_table() {
  py::dict table;
  py::list config;
  for_each_config_field([&](const auto& field) {
    using T = std::remove_cvref_t<decltype(std::declval<PlanningConfig>().*field.member)>;
    const bool required = std::string_view(field.name) == "max_model_len";
    config.append(describe<T>(field.name, required, field.range, field.unit));
  });
  table["PlanningConfig"] = config;
  for (int k = 0; k < kNumSpecKinds; ++k) {
    const auto kind = static_cast<SpecKind>(k);
    py::list fields;
    for_each_field(kind, [&](const auto& field) {
      using T = std::remove_cvref_t<decltype(std::declval<KVCacheSpec>().*field.member)>;
      fields.append(
          describe<T>(field.name, field.use == FieldUse::kRequired, field.range, field.unit));
    });
    table[py::str(std::string(class_name(kind)))] = fields;
  }
  return table;
}

}  // namespace

void bind_field_table(py::module_& m) {
  m.def(
      "dtype_size", [](const std::string& name) { return dtype_size(parse_dtype(name)); },
      py::arg("name"),
      "Bytes of one element of a dtype by torch's name, with or without 'torch.'.");
  m.def(
      "field_table", &field_table,
      "The fields of PlanningConfig and of every spec class, in order, as dicts: name, type, "
      "optional\n(None is a value), required, least and most of its numbers, their unit, and for a "
      "choice its names.");
}

}  // namespace kvplan::bindings
