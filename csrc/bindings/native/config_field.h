#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "bindings/native/field_conversion.h"
#include "kvplan/config.h"

/// A field of `PlanningConfig` from Python.
namespace kvplan::bindings {

/// Python sees enumerations by vLLM's names.
inline void parse_enumerator(const std::string& s, KVCacheLayout& out) { out = parse_layout(s); }
inline void parse_enumerator(const std::string& s, MambaCacheMode& out) {
  out = parse_mamba_cache_mode(s);
}
inline void parse_enumerator(const std::string& s, Grouping& out) { out = parse_grouping(s); }
inline void parse_enumerator(const std::string& s, DraftRule& out) { out = parse_draft_rule(s); }

/// The name of a member of a Python enumeration; anything else as it is.
pybind11::object enum_member_name(pybind11::handle value);

template <class T>
void read_config_field(pybind11::handle in, std::string_view field, T& out) {
  if constexpr (std::is_enum_v<T>) {
    std::string name;
    read_field(PyUnicode_Check(in.ptr()) ? pybind11::reinterpret_borrow<pybind11::object>(in)
                                         : enum_member_name(in),
               field, name);
    parse_enumerator(name, out);
  } else {
    read_field(in, field, out);
  }
}
/// A kernel's block size: tokens, or MultipleOf(tokens), which a dictionary spells
/// {"multiple_of": n}.
void read_config_field(pybind11::handle in, std::string_view field,
                       std::vector<KernelBlockSize>& out);

}  // namespace kvplan::bindings
