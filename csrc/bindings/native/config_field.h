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
template <class T>
struct Names;
template <>
struct Names<KVCacheLayout> {
  static KVCacheLayout parse(const std::string& s) { return parse_layout(s); }
  static std::string print(KVCacheLayout v) { return std::string(to_string(v)); }
};
template <>
struct Names<MambaCacheMode> {
  static MambaCacheMode parse(const std::string& s) { return parse_mamba_cache_mode(s); }
  static std::string print(MambaCacheMode v) {
    constexpr const char* kNames[] = {"none", "align", "all"};
    return kNames[static_cast<size_t>(v)];
  }
};
template <>
struct Names<Grouping> {
  static Grouping parse(const std::string& s) { return parse_grouping(s); }
  static std::string print(Grouping v) {
    constexpr const char* kNames[] = {"vllm", "compact", "sliced"};
    return kNames[static_cast<size_t>(v)];
  }
};
template <>
struct Names<DraftRule> {
  static DraftRule parse(const std::string& s) { return parse_draft_rule(s); }
  static std::string print(DraftRule v) {
    constexpr const char* kNames[] = {"auto", "is_draft", "marker"};
    return kNames[static_cast<size_t>(v)];
  }
};

/// The name of a member of a Python enumeration; anything else as it is.
pybind11::object enum_member_name(pybind11::handle value);

template <class T>
void read_config_field(pybind11::handle in, std::string_view field, T& out) {
  if constexpr (std::is_enum_v<T>) {
    std::string name;
    read_field(PyUnicode_Check(in.ptr()) ? pybind11::reinterpret_borrow<pybind11::object>(in)
                                         : enum_member_name(in),
               field, name);
    out = Names<T>::parse(name);
  } else {
    read_field(in, field, out);
  }
}
/// A kernel's block size: tokens, or MultipleOf(tokens), which a dictionary spells
/// {"multiple_of": n}.
void read_config_field(pybind11::handle in, std::string_view field,
                       std::vector<KernelBlockSize>& out);

}  // namespace kvplan::bindings
