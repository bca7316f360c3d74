#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "json_request/json_value.h"
#include "json_request/place.h"
#include "kvplan/config.h"
#include "kvplan/spec.h"

/// One JSON value for each type of field. Each throws `InvalidArgument` that names the place.
namespace kvplan::json_request {

inline constexpr size_t kMaxNameLength = 1024;
inline constexpr size_t kMaxTextLength = 4096;

/// An integer in [low, high].
int64_t read_integer(const Json& in, const Place& place, int64_t low, int64_t high);
/// A string of so many characters.
std::string read_text(const Json& in, const Place& place, size_t shortest, size_t longest);
/// An array of so many elements.
const Json::Array& read_array(const Json& in, const Place& place, size_t longest,
                              size_t shortest = 0);
const Json::Object& read_object(const Json& in, const Place& place);
/// The member with this name, or null.
const Json* find(const Json::Object& object, std::string_view name);
const Json& require(const Json::Object& object, const Place& place, std::string_view name);
[[noreturn]] void refuse_unknown(const Place& place, std::string_view name);
[[noreturn]] void refuse_type(const Json& in, const Place& place, std::string_view expected);

void read(const Json& in, const Place& place, int64_t& out);
void read(const Json& in, const Place& place, bool& out);
void read(const Json& in, const Place& place, std::string& out);
void read(const Json& in, const Place& place, DType& out);
void read(const Json& in, const Place& place, TokensPerState& out);
void read(const Json& in, const Place& place, BlockStrideAlignment& out);
void read(const Json& in, const Place& place, CustomDemand& out);
void read(const Json& in, const Place& place, KernelBlockSize& out);
void read(const Json& in, const Place& place, KVCacheLayout& out);
void read(const Json& in, const Place& place, MambaCacheMode& out);
void read(const Json& in, const Place& place, Grouping& out);
void read(const Json& in, const Place& place, DraftRule& out);
void read(const Json& in, const Place& place, std::vector<DType>& out);
void read(const Json& in, const Place& place, std::vector<KernelBlockSize>& out);
void read(const Json& in, const Place& place, std::vector<std::vector<int64_t>>& out);

template <class T>
void read(const Json& in, const Place& place, std::optional<T>& out) {
  if (in.is_null()) {
    out.reset();
  } else {
    read(in, place, out.emplace());
  }
}

/// Refuses what none of the fields that `visit_names` visits is called.
template <class VisitNames>
void refuse_others(const Json::Object& object, const Place& place, VisitNames&& visit_names) {
  for (const auto& [key, value] : object) {
    bool known = false;
    visit_names([&](std::string_view name) { known = known || name == key; });
    if (!known) refuse_unknown(place, key);
  }
}

}  // namespace kvplan::json_request
