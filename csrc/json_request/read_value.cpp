#include "json_request/read_value.h"

#include <algorithm>
#include <charconv>
#include <numeric>

#include "kvplan/layout.h"
#include "planning/specs/spec_fields.h"

namespace kvplan::json_request {
namespace {

constexpr int64_t kMax = INT64_MAX;
constexpr size_t kMaxBytes = size_t{64} << 20;

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
  const auto found = in.find("multiple_of");
  if (found == in.end() || in.size() != 1) place.refuse("expected {\"multiple_of\": tokens}");
  return read_integer(*found, Place(place, "multiple_of"), 1, kMax);
}

template <class T>
void read_elements(const Json& in, const Place& place, size_t longest, std::vector<T>& out) {
  read_array(in, place, longest);
  out.clear();
  out.reserve(in.size());
  for (size_t i = 0; i < in.size(); ++i) read(in[i], Place(place, i), out.emplace_back());
}

std::string read_name(const Json& in, const Place& place) {
  return read_text(in, place, 1, kMaxNameLength);
}

}  // namespace

Json parse(std::string_view text, std::string_view what) {
  const std::string not_json = "not a JSON " + std::string(what) + ": ";
  if (text.size() > kMaxBytes) {
    throw InvalidArgument("larger than " + std::to_string(kMaxBytes >> 20) +
                          " MiB, the limit for a " + std::string(what));
  }
  // nlohmann/json skips a byte order mark, which JSON does not have.
  if (text.starts_with("\xef\xbb\xbf")) throw InvalidArgument(not_json + "byte order mark");
  // It takes a null byte for the end of the text, and would read no further.
  if (const size_t at = text.find('\0'); at != std::string_view::npos) {
    throw InvalidArgument(not_json + "null byte at " + std::to_string(at));
  }
  try {
    return Json::parse(text);
  } catch (const Json::exception& e) {
    throw InvalidArgument(not_json + e.what());
  }
}

const Json* find(const Json& object, std::string_view name) {
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

const Json& require(const Json& object, const Place& place, std::string_view name) {
  const Json* found = find(object, name);
  if (found == nullptr) place.refuse("`" + std::string(name) + "` is missing");
  return *found;
}

void refuse_type(const Json& in, const Place& place, std::string_view expected) {
  place.refuse("expected " + std::string(expected) + ", got " + in.type_name());
}

void refuse_unknown(const Place& place, std::string_view name) {
  place.refuse("unknown field '" + std::string(name.substr(0, 100)) + "'");
}

int64_t read_integer(const Json& in, const Place& place, int64_t low, int64_t high) {
  int64_t value = 0;
  if (in.is_number_unsigned() && in.get<uint64_t>() > static_cast<uint64_t>(kMax)) {
    place.refuse(std::to_string(in.get<uint64_t>()) + " leaves the 64-bit range");
  } else if (in.is_number_integer()) {
    value = in.get<int64_t>();
  } else {
    refuse_type(in, place, "an integer");
  }
  if (value < low || value > high) {
    place.refuse("must be between " + std::to_string(low) + " and " + std::to_string(high) +
                 ", got " + std::to_string(value));
  }
  return value;
}

std::string read_text(const Json& in, const Place& place, size_t shortest, size_t longest) {
  if (!in.is_string()) refuse_type(in, place, "a string");
  const auto& text = in.get_ref<const std::string&>();
  const size_t length = num_characters(text);
  if (length < shortest || length > longest) {
    place.refuse("must have " + std::to_string(shortest) + " to " + std::to_string(longest) +
                 " characters, got " + std::to_string(length));
  }
  return text;
}

const Json& read_array(const Json& in, const Place& place, size_t longest) {
  if (!in.is_array()) refuse_type(in, place, "an array");
  if (in.size() > longest) {
    place.refuse("at most " + std::to_string(longest) + " elements are read, got " +
                 std::to_string(in.size()));
  }
  return in;
}

const Json& read_object(const Json& in, const Place& place) {
  if (!in.is_object()) refuse_type(in, place, "an object");
  return in;
}

void read(const Json& in, const Place& place, int64_t& out) {
  out = read_integer(in, place, -kMax, kMax);
}

void read(const Json& in, const Place& place, int32_t& out) {
  out = static_cast<int32_t>(read_integer(in, place, 0, 255));
}

void read(const Json& in, const Place& place, bool& out) {
  if (!in.is_boolean()) refuse_type(in, place, "true or false");
  out = in.get<bool>();
}

void read(const Json& in, const Place& place, std::string& out) { out = read_name(in, place); }

void read(const Json& in, const Place& place, DType& out) {
  const std::string name = read_name(in, place);
  out = at(place, [&] { return parse_dtype(name); });
}

void read(const Json& in, const Place& place, TokensPerState& out) {
  if (!in.is_string()) {
    out = {read_integer(in, place, -1, kMax), 1};
    return;
  }
  const auto& text = in.get_ref<const std::string&>();
  const size_t slash = text.find('/');
  if (slash != std::string::npos) {
    const std::string_view view = text;
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
  } else if (in.is_object()) {
    out = {Kind::kMultipleOf, read_multiple_of(in, place)};
  } else {
    out = {Kind::kBytes, read_integer(in, place, 1, kMax)};
  }
}

void read(const Json& in, const Place& place, CustomDemand& out) {
  read_object(in, place);
  for (const auto& [name, value] : in.items()) {
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
  if (in.is_object()) {
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
  read_array(in, place, 64);
  out.clear();
  for (size_t i = 0; i < in.size(); ++i) {
    read_elements(in[i], Place(place, i), 16, out.emplace_back());
  }
}

}  // namespace kvplan::json_request
