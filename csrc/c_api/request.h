#pragma once

#include "kvplan/plan.h"

struct kvplan_request {
  kvplan::PlanRequest request;
};
