#include "kvplan/planning/tp_replicas.h"

#include <algorithm>
#include <numeric>

namespace kvplan {
namespace {

int64_t layer_tp_replicas(const KVCacheSpec& spec, int64_t tp_size, int64_t dcp_size) {
  if (!is_attention(spec.kind) || !spec.max_tp_shards) return 1;
  if (spec.dcp_sharded && dcp_size > 1) return 1;
  return std::max<int64_t>(1, tp_size / *spec.max_tp_shards);
}

}  // namespace

int64_t kv_cache_groups_tp_replicas(PlanningContext ctx, const KVCacheGroups& groups,
                                    int64_t tp_size, int64_t dcp_size) {
  if (groups.empty()) return 1;
  int64_t replicas = tp_size;
  for (const KVCacheGroup& g : groups) {
    for_each_spec(g, [&](SpecId id) {
      replicas = std::gcd(replicas, layer_tp_replicas(ctx.spec(id), tp_size, dcp_size));
    });
  }
  return replicas;
}

}  // namespace kvplan
