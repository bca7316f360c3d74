#pragma once

#include <string>
#include <utility>
#include <vector>

#include "kvplan/check.h"

namespace kvplan::checking {

/// Collects violations up to a limit.
class Violations {
 public:
  Violations(const CheckedPlacement& placement, size_t max) : placement_(placement), max_(max) {}

  void add(Rule rule, size_t worker, std::string message) {
    if (!full()) found_.push_back({rule, worker, std::move(message)});
  }
  bool full() const { return found_.size() >= max_; }
  std::vector<Violation> take() { return std::move(found_); }

  std::string name(LayerId layer) const {
    const bool known = layer.valid() && layer.pos() < placement_.layer_names.size();
    return known ? std::string(placement_.layer_names[layer.pos()])
                 : "layer " + std::to_string(layer.value);
  }

 private:
  const CheckedPlacement& placement_;
  size_t max_;
  std::vector<Violation> found_;
};

}  // namespace kvplan::checking
