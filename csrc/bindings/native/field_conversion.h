#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvplan/spec.h"

/// One Python value for each type of field, both ways. `field` names the field in errors.
namespace kvplan::bindings {

/// A list, tuple, array or the like. Text is none, nor are bytes, whose items are numbers that
/// nobody means.
bool is_sequence(pybind11::handle in);

/// The UTF-8 of a str, which keeps it. A lone surrogate has none: a ValueError that names the
/// field.
std::string_view read_text(pybind11::handle in, std::string_view field);

void read_field(pybind11::handle in, std::string_view field, int64_t& out);
void read_field(pybind11::handle in, std::string_view field, int32_t& out);
void read_field(pybind11::handle in, std::string_view field, bool& out);
void read_field(pybind11::handle in, std::string_view field, std::string& out);
void read_field(pybind11::handle in, std::string_view field, DType& out);
void read_field(pybind11::handle in, std::string_view field, TokensPerState& out);
void read_field(pybind11::handle in, std::string_view field, BlockStrideAlignment& out);
void read_field(pybind11::handle in, std::string_view field, CustomDemand& out);
void read_field(pybind11::handle in, std::string_view field, std::vector<DType>& out);
void read_field(pybind11::handle in, std::string_view field, std::vector<int64_t>& out);
void read_field(pybind11::handle in, std::string_view field,
                std::vector<std::vector<int64_t>>& out);
template <class T>
void read_field(pybind11::handle in, std::string_view field, std::optional<T>& out) {
  if (in.is_none()) {
    out.reset();
  } else {
    read_field(in, field, out.emplace());
  }
}

/// `kv_quant_mode` and `cache_role` become the enums of `kvplan.enums`, hence the field's name.
pybind11::object write_field(int64_t value, std::string_view field);
pybind11::object write_field(int32_t value, std::string_view field);
pybind11::object write_field(bool value, std::string_view field);
pybind11::object write_field(const std::string& value, std::string_view field);
pybind11::object write_field(DType value, std::string_view field);
pybind11::object write_field(const TokensPerState& value, std::string_view field);
pybind11::object write_field(const BlockStrideAlignment& value, std::string_view field);
pybind11::object write_field(const CustomDemand& value, std::string_view field);
pybind11::object write_field(const std::vector<DType>& value, std::string_view field);
pybind11::object write_field(const std::vector<int64_t>& value, std::string_view field);
pybind11::object write_field(const std::vector<std::vector<int64_t>>& value,
                             std::string_view field);
/// None for a class that was not recorded.
template <class T>
pybind11::object write_field(const std::optional<T>& value, std::string_view field) {
  return value ? write_field(*value, field) : pybind11::none();
}

}  // namespace kvplan::bindings
