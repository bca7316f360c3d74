#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace kvplan::json_request {

/// An integer outside the 64-bit range, in digits: to be refused with its number.
struct HugeInteger {
  std::string digits;
};

/// A JSON value, whoever parsed it: a C++ library, or Python.
class Json {
 public:
  using Array = std::vector<Json>;
  using Member = std::pair<std::string, Json>;
  using Object = std::vector<Member>;  ///< in the text's order; of equal names the last one counts

  Json() = default;  ///< null
  Json(std::nullptr_t) {}
  Json(bool value) : value_(value) {}
  template <class T>
    requires std::is_integral_v<T>
  Json(T value) : value_(static_cast<int64_t>(value)) {}
  Json(double value) : value_(value) {}
  Json(HugeInteger value) : value_(std::move(value)) {}
  Json(std::string value) : value_(std::move(value)) {}
  Json(const char* value) : value_(std::string(value)) {}
  Json(Array value) : value_(std::move(value)) {}
  Json(Object value) : value_(std::move(value)) {}
  static Json object(std::initializer_list<Member> members = {}) { return Object(members); }

  template <class T>
  const T* get_if() const {
    return std::get_if<T>(&value_);
  }
  template <class T>
  T* get_if() {
    return std::get_if<T>(&value_);
  }
  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  std::string_view type_name() const {
    constexpr std::string_view kNames[] = {"null",  "bool", "int",   "int",
                                           "float", "str",  "array", "object"};
    return kNames[value_.index()];
  }
  template <class Visitor>
  decltype(auto) visit(Visitor&& visitor) const {
    return std::visit(std::forward<Visitor>(visitor), value_);
  }

 private:
  std::variant<std::monostate, bool, int64_t, HugeInteger, double, std::string, Array, Object>
      value_;
};

}  // namespace kvplan::json_request
