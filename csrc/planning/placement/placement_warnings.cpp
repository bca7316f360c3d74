#include "planning/placement/placement_warnings.h"

#include <algorithm>
#include <string>

#include "kvplan/planning/placement.h"

namespace kvplan {
namespace {

void warn_once(PlanningContext ctx, const std::string& message) {
  for (const Notice& n : ctx.notices) {
    if (n.message == message) return;
  }
  ctx.warn(message);
}

std::string layout_name(const PlanningConfig& config) {
  return "KV cache layout " + std::string(to_string(config.kv_cache_layout));
}

}  // namespace

void warn_of_unsafe_strides(PlanningContext ctx, const PlanningConfig& config,
                            const KVCacheGroups& groups,
                            const std::vector<KVCacheTensor>& tensors) {
  // In a block-outermost layout every block has its own bytes, whatever the group.
  if (is_block_outermost(config.kv_cache_layout)) return;
  const auto num_groups = std::count_if(groups.begin(), groups.end(),
                                        [](const KVCacheGroup& g) { return !g.layers.empty(); });
  for (const KVCacheTensor& t : tensors) {
    // Groups alias from byte 0, so block b of all groups must begin at the same byte.
    if (num_groups > 1 && t.block_stride != tensors[0].block_stride) {
      warn_once(ctx, layout_name(config) + " gives the groups block strides of " +
                         std::to_string(tensors[0].block_stride) + " and " +
                         std::to_string(t.block_stride) +
                         " bytes, so that blocks of different groups share bytes and requests "
                         "overwrite each other's cache. vLLM 0.33 places them in the same way. Use "
                         "a block-outermost layout (e.g. BLHNC).");
    }
  }
  size_t next = 0;
  for (const KVCacheGroup& g : groups) {
    for (size_t i = 0; i < g.layers.size() && next < tensors.size(); ++i) {
      const KVCacheTensor& t = tensors[next];
      if (t.layers.empty() || t.layers[0] != g.layers[i]) continue;
      ++next;
      const int64_t alignment = get_block_stride_alignment(ctx.spec(layer_spec_id(g, i)));
      if (t.block_stride % alignment == 0) continue;
      warn_once(ctx, layout_name(config) + " gives layer " + ctx.name(t.layers[0]) +
                         " a block stride of " + std::to_string(t.block_stride) +
                         " bytes; its attention backend asked for a multiple of " +
                         std::to_string(alignment) +
                         ". vLLM 0.33 does the same. Use LBHNC or a block-outermost layout.");
    }
  }
}

}  // namespace kvplan
