#include "json_request/read_value.h"

#include <algorithm>
#include <charconv>
#include <numeric>

#include "kvplan/layout.h"
#include "planning/specs/spec_fields.h"

namespace kvplan::json_request {
namespace {

constexpr int64_t kMax = INT64_MAX;

/// Characters, not bytes; the parser lets only valid UTF-8 in.
size_t num_characters(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

/// One side of a fraction: 1 to 10 digits, the first not 0.
std::optional<int64_t> digits(std::string_view text) {
  if (text.empty() || text.size() > 10 || text[0] == '0') return std::nullopt;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1) return std::nullopt;
  return value;
}

/// `{"multiple_of": n}`
int64_t read_multiple_of(const Json& in, const Place& place) {
  const Json::Object& members = read_object(in, place);
  const Json* found = find(members, "multiple_of");
  if (found == nullptr || members.size() != 1) place.refuse("expected {\"multiple_of\": tokens}");
  return read_integer(*found, Place(place, "multiple_of"), 1, kMax);
}

template <class T>
void read_elements(const Json& in, const Place& place, size_t longest, std::vector<T>& out) {
  const Json::Array& elements = read_array(in, place, longest);
  out.clear();
  out.reserve(elements.size());
  for (size_t i = 0; i < elements.size(); ++i) {
    read(elements[i], Place(place, i), out.emplace_back());
  }
}

[[noreturn]] void refuse_range(const Place& place, bool is_small, int64_t low, int64_t high,
                               const std::string& got) {
  place.refuse("Expected `int` " +
               (is_small ? ">= " + std::to_string(low) : "<= " + std::to_string(high)) + ", got " +
               got);
}

void require_length(const Place& place, const char* type, size_t length, size_t shortest,
                    size_t longest) {
  if (length >= shortest && length <= longest) return;
  place.refuse(
      "Expected " + std::string(type) + " of length " +
      (length < shortest ? ">= " + std::to_string(shortest) : "<= " + std::to_string(longest)) +
      ", got " + std::to_string(length));
}

std::string read_name(const Json& in, const Place& place) {
  return read_text(in, place, 1, kMaxNameLength);
}

}  // namespace

const Json* find(const Json::Object& object, std::string_view name) {
  for (auto member = object.rbegin(); member != object.rend(); ++member) {
    if (member->first == name) return &member->second;
  }
  return nullptr;
}

const Json& require(const Json::Object& object, const Place& place, std::string_view name) {
  const Json* found = find(object, name);
  if (found == nullptr) place.refuse("`" + std::string(name) + "` is missing");
  return *found;
}

void refuse_type(const Json& in, const Place& place, std::string_view expected) {
  place.refuse("Expected " + std::string(expected) + ", got `" + std::string(in.type_name()) + "`");
}

void refuse_unknown(const Place& place, std::string_view name) {
  place.refuse("unknown field '" + std::string(name.substr(0, 100)) + "'");
}

int64_t read_integer(const Json& in, const Place& place, int64_t low, int64_t high) {
  if (const auto* huge = in.get_if<HugeInteger>()) {
    refuse_range(place, huge->digits[0] == '-', low, high, huge->digits.substr(0, 40));
  }
  const auto* value = in.get_if<int64_t>();
  if (value == nullptr) refuse_type(in, place, "`int`");
  if (*value < low || *value > high) {
    refuse_range(place, *value < low, low, high, std::to_string(*value));
  }
  return *value;
}

std::string read_text(const Json& in, const Place& place, size_t shortest, size_t longest) {
  const auto* text = in.get_if<std::string>();
  if (text == nullptr) refuse_type(in, place, "`str`");
  require_length(place, "`str`", num_characters(*text), shortest, longest);
  return *text;
}

const Json::Array& read_array(const Json& in, const Place& place, size_t longest, size_t shortest) {
  const auto* elements = in.get_if<Json::Array>();
  if (elements == nullptr) refuse_type(in, place, "`array`");
  require_length(place, "`array`", elements->size(), shortest, longest);
  return *elements;
}

const Json::Object& read_object(const Json& in, const Place& place) {
  const auto* members = in.get_if<Json::Object>();
  if (members == nullptr) refuse_type(in, place, "`object`");
  return *members;
}

void read(const Json& in, const Place& place, int64_t& out) {
  out = read_integer(in, place, -kMax, kMax);
}

void read(const Json& in, const Place& place, bool& out) {
  const auto* value = in.get_if<bool>();
  if (value == nullptr) refuse_type(in, place, "`bool`");
  out = *value;
}

void read(const Json& in, const Place& place, std::string& out) { out = read_name(in, place); }

void read(const Json& in, const Place& place, DType& out) {
  const std::string name = read_name(in, place);
  out = at(place, [&] { return parse_dtype(name); });
}

void read(const Json& in, const Place& place, TokensPerState& out) {
  const auto* text = in.get_if<std::string>();
  if (text == nullptr) {
    out = {read_integer(in, place, -1, kMax), 1};
    return;
  }
  const size_t slash = text->find('/');
  if (slash != std::string::npos) {
    const std::string_view view = *text;
    const auto num = digits(view.substr(0, slash));
    const auto den = digits(view.substr(slash + 1));
    if (num && den) {
      const int64_t common = std::gcd(*num, *den);
      out = {*num / common, *den / common};
      return;
    }
  }
  place.refuse("expected an integer or a fraction such as \"1/4\"");
}

void read(const Json& in, const Place& place, BlockStrideAlignment& out) {
  using Kind = BlockStrideAlignment::Kind;
  if (in.is_null()) {
    out = {};
  } else if (in.get_if<Json::Object>()) {
    out = {Kind::kMultipleOf, read_multiple_of(in, place)};
  } else {
    out = {Kind::kBytes, read_integer(in, place, 1, kMax)};
  }
}

void read(const Json& in, const Place& place, CustomDemand& out) {
  for (const auto& [name, value] : read_object(in, place)) {
    const Place field(place, name);
    if (name == "cap_tokens") {
      read(value, field, out.cap_tokens);
    } else if (name == "cap_includes_in_flight") {
      read(value, field, out.cap_includes_in_flight);
    } else if (name == "extra_pages") {
      read(value, field, out.extra_pages);
    } else {
      refuse_unknown(place, name);
    }
  }
}

void read(const Json& in, const Place& place, KernelBlockSize& out) {
  if (in.get_if<Json::Object>()) {
    out = {read_multiple_of(in, place), true};
  } else {
    out = {read_integer(in, place, 1, kMax), false};
  }
}

void read(const Json& in, const Place& place, KVCacheLayout& out) {
  const std::string name = read_name(in, place);
  out = at(place, [&] { return parse_layout(name); });
}

void read(const Json& in, const Place& place, MambaCacheMode& out) {
  const std::string name = read_name(in, place);
  out = at(place, [&] { return parse_mamba_cache_mode(name); });
}

void read(const Json& in, const Place& place, Grouping& out) {
  const std::string name = read_name(in, place);
  out = at(place, [&] { return parse_grouping(name); });
}

void read(const Json& in, const Place& place, DraftRule& out) {
  const std::string name = read_name(in, place);
  out = at(place, [&] { return parse_draft_rule(name); });
}

void read(const Json& in, const Place& place, std::vector<DType>& out) {
  read_elements(in, place, 64, out);
}

void read(const Json& in, const Place& place, std::vector<KernelBlockSize>& out) {
  read_elements(in, place, 64, out);
}

void read(const Json& in, const Place& place, std::vector<std::vector<int64_t>>& out) {
  const Json::Array& shapes = read_array(in, place, 64);
  out.clear();
  for (size_t i = 0; i < shapes.size(); ++i) {
    read_elements(shapes[i], Place(place, i), 16, out.emplace_back());
  }
}

}  // namespace kvplan::json_request
