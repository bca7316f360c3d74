#include "json_request/json_text.h"

#include <nlohmann/json.hpp>

#include "kvplan/errors.h"
#include "kvplan/json_request.h"

namespace kvplan {
namespace json_request {
namespace {

constexpr size_t kMaxBytes = size_t{64} << 20;
constexpr size_t kMaxDepth = 64;  // a request has seven

/// Builds the value while the library reads the text. What it cannot be ends the parse.
class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  Json result;
  std::string error;

  bool null() override { return add({}); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(int64_t value) override { return add(value); }
  bool number_unsigned(uint64_t value) override {
    if (value > static_cast<uint64_t>(INT64_MAX)) return add(HugeInteger{std::to_string(value)});
    return add(static_cast<int64_t>(value));
  }
  bool number_float(double value, const std::string& text) override {
    if (text.find_first_of(".eE") == std::string::npos) return add(HugeInteger{text});
    return add(value);
  }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return false; }
  bool start_array(size_t) override { return open(Json::Array()); }
  bool end_array() override { return close(); }
  bool start_object(size_t) override { return open(Json::Object()); }
  bool key(std::string& name) override {
    open_.back()->get_if<Json::Object>()->emplace_back(std::move(name), Json());
    return true;
  }
  bool end_object() override { return close(); }
  bool parse_error(size_t, const std::string&, const nlohmann::json::exception& e) override {
    error = e.what();
    return false;
  }

 private:
  /// Where the next value goes.
  Json& place() {
    if (open_.empty()) return result;
    if (auto* elements = open_.back()->get_if<Json::Array>()) return elements->emplace_back();
    return open_.back()->get_if<Json::Object>()->back().second;
  }
  bool add(Json value) {
    place() = std::move(value);
    return true;
  }
  bool open(Json value) {
    if (open_.size() == kMaxDepth) {
      error = "nested too deeply";
      return false;
    }
    Json& here = place();
    here = std::move(value);
    open_.push_back(&here);  // stays there: its parent grows only after it is closed
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  std::vector<Json*> open_;
};

nlohmann::json as_library_value(const Json& value) {
  return value.visit([](const auto& v) -> nlohmann::json {
    using T = std::remove_cvref_t<decltype(v)>;
    if constexpr (std::is_same_v<T, Json::Array>) {
      nlohmann::json array = nlohmann::json::array();
      for (const Json& element : v) array.push_back(as_library_value(element));
      return array;
    } else if constexpr (std::is_same_v<T, Json::Object>) {
      nlohmann::json object = nlohmann::json::object();
      for (const auto& [name, member] : v) object[name] = as_library_value(member);
      return object;
    } else if constexpr (std::is_same_v<T, std::monostate>) {
      return nullptr;
    } else if constexpr (std::is_same_v<T, HugeInteger>) {
      throw Unsupported("no integer of kvplan leaves the 64-bit range");
    } else {
      return v;
    }
  });
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
  Builder builder;
  if (!nlohmann::json::sax_parse(text, &builder)) throw InvalidArgument(not_json + builder.error);
  return std::move(builder.result);
}

std::string dump(const Json& value) { return as_library_value(value).dump(); }

}  // namespace json_request

bool can_read_json_requests() noexcept { return true; }

}  // namespace kvplan
