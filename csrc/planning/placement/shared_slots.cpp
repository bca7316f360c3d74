#include "kvplan/planning/shared_slots.h"

#include <algorithm>

#include "kvplan/checked.h"

namespace kvplan {

std::vector<SlotBucket> bucket_layers_by_page_size(PlanningContext ctx,
                                                   const KVCacheGroups& groups) {
  std::vector<SlotBucket> buckets;
  for (const KVCacheGroup& g : groups) {
    std::vector<size_t> next_slot(buckets.size());
    for (size_t i = 0; i < g.layers.size(); ++i) {
      const int64_t page = ctx.page(layer_spec_id(g, i));
      auto it = std::find_if(buckets.begin(), buckets.end(),
                             [&](const SlotBucket& b) { return b.page_size_bytes == page; });
      if (it == buckets.end()) {
        it = buckets.insert(it, SlotBucket{page, {}});
        next_slot.push_back(0);
      }
      size_t& slot = next_slot[static_cast<size_t>(it - buckets.begin())];
      if (slot == it->slots.size()) it->slots.emplace_back();
      it->slots[slot++].push_back(g.layers[i]);
    }
  }
  return buckets;
}

int64_t shared_slot_bytes_per_block(std::span<const SlotBucket> buckets) {
  int64_t bytes = 0;
  for (const SlotBucket& b : buckets) {
    bytes = checked::add(
        bytes,
        checked::mul(b.page_size_bytes, static_cast<int64_t>(b.slots.size()), "shared-slot block"),
        "shared-slot block");
  }
  return bytes;
}

}  // namespace kvplan
