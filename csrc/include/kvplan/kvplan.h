#pragma once

// Everything a C++ user needs: planner, checker, block pool.
#include "kvplan/block_pool.h"
#include "kvplan/check.h"
#include "kvplan/checked.h"
#include "kvplan/compact.h"
#include "kvplan/config.h"
#include "kvplan/errors.h"
#include "kvplan/groups.h"
#include "kvplan/json_request.h"
#include "kvplan/layout.h"
#include "kvplan/page_demand.h"
#include "kvplan/plan.h"
#include "kvplan/planning.h"
#include "kvplan/sliced.h"
#include "kvplan/sliced_block_pool.h"
#include "kvplan/spec.h"
#include "kvplan/types.h"
