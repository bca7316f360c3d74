#pragma once

#include "kvplan/export.h"
#include "kvplan/groups.h"

namespace kvplan {

/// Makes all pages as large as the largest: block size scaled where the page divides it, page
/// padded for Mamba and for attention other than MLA. Throws `PageSizeError` where neither works.
KVPLAN_API LayerSpecs unify_kv_cache_spec_page_size(PlanningContext ctx, const LayerSpecs& layers);

}  // namespace kvplan
