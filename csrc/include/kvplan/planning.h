#pragma once

/// The steps of planning, each callable on its own. `plan()` in plan.h runs them all. Every
/// function mirrors the one of the same name in vllm/v1/core/kv_cache_planning.py (0.33), and is
/// implemented in the source file of its header's name.
#include "kvplan/planning/approximate_gcd.h"
#include "kvplan/planning/auto_fit.h"
#include "kvplan/planning/block_sizes.h"
#include "kvplan/planning/eagle_groups.h"
#include "kvplan/planning/global_groups.h"
#include "kvplan/planning/grouping.h"
#include "kvplan/planning/hidden_state.h"
#include "kvplan/planning/packed_grouping.h"
#include "kvplan/planning/page_size.h"
#include "kvplan/planning/placement.h"
#include "kvplan/planning/projection.h"
#include "kvplan/planning/promotion.h"
#include "kvplan/planning/request_demand.h"
#include "kvplan/planning/shared_slots.h"
#include "kvplan/planning/tp_replicas.h"
#include "kvplan/planning/uniform_page_grouping.h"
#include "kvplan/planning/uniformity.h"
