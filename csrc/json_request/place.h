#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "kvplan/errors.h"

namespace kvplan::json_request {

/// Where in the JSON a value lies, as `$.workers[0].layers`; written out only for an error.
class Place {
 public:
  Place() = default;
  Place(const Place& parent, std::string_view key) : parent_(&parent), key_(key) {}
  Place(const Place& parent, size_t index) : parent_(&parent), index_(index), is_index_(true) {}

  std::string text() const {
    if (parent_ == nullptr) return "$";
    if (is_index_) return parent_->text() + "[" + std::to_string(index_) + "]";
    return parent_->text() + "." + std::string(key_);
  }

  [[noreturn]] void refuse(const std::string& why) const {
    throw InvalidArgument(text() + ": " + why);
  }

 private:
  const Place* parent_ = nullptr;
  std::string_view key_;
  size_t index_ = 0;
  bool is_index_ = false;
};

/// Runs `body`, and puts the place before what one of kvplan's errors says.
template <class Body>
auto at(const Place& place, Body&& body) {
  try {
    return body();
  } catch (const Error& e) {
    place.refuse(e.what());
  }
}

}  // namespace kvplan::json_request
