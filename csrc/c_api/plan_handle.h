#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "c_api/guard.h"
#include "kvplan/plan.h"
#include "kvplan/report.h"

struct kvplan_plan {
  kvplan::Plan plan;
  kvplan::Reasons reasons;
  kvplan::Capacity capacity;
  kvplan::SafeBlockIds safe_ids;
  std::vector<std::vector<int32_t>> group_layers;
  std::vector<std::vector<std::vector<int32_t>>> tensor_layers;  // of each stage
  std::string written;                                           // by kvplan_plan_write_json
};
