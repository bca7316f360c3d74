#include <utility>

#include "c_api/pool_handle.h"

namespace kvplan::c_api {

void TakenEvents::set(std::vector<BlockPoolEvent> events) {
  events_ = std::move(events);
  hashes_.clear();
  views_.clear();
  size_t num_hashes = 0;
  for (const BlockPoolEvent& event : events_) num_hashes += event.hashes.size();
  hashes_.reserve(num_hashes);
  views_.reserve(events_.size());
  for (const BlockPoolEvent& event : events_) {
    kvplan_event view = {};
    view.kind = static_cast<int32_t>(event.kind);
    view.group = static_cast<uint16_t>(event.group_id);
    view.still_cached = event.still_cached ? 1 : 0;
    view.block_size = event.block_size;
    view.num_lost = event.num_lost;
    view.num_hashes = event.hashes.size();
    view.hashes = hashes_.data() + hashes_.size();
    for (const std::string& hash : event.hashes) hashes_.push_back({hash.data(), hash.size()});
    view.blocks = event.blocks.data();
    view.positions = event.positions.empty() ? nullptr : event.positions.data();
    if (event.parent_hash)
      view.parent_hash = {event.parent_hash->data(), event.parent_hash->size()};
    views_.push_back(view);
  }
}

}  // namespace kvplan::c_api
