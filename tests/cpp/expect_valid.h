#pragma once

#include <gtest/gtest.h>

#include <string>

#include "kvplan/check.h"
#include "kvplan/plan.h"

namespace kvplan::testing {

inline std::string describe(const std::vector<Violation>& violations) {
  std::string text;
  for (const Violation& v : violations) {
    text += std::string(to_string(v.rule)) + ", worker " + std::to_string(v.worker) + ": " +
            v.message + "\n";
  }
  return text;
}

/// Every plan that a test makes goes through the independent checker.
inline Plan checked_plan(const PlanRequest& request, const PlanningConfig& config) {
  Plan result = plan(request, config);
  const std::vector<Violation> violations = check(result);
  EXPECT_TRUE(violations.empty()) << describe(violations);
  return result;
}

}  // namespace kvplan::testing
