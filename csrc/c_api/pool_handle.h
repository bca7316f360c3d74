#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "c_api/guard.h"
#include "kvplan/block_pool.h"
#include "kvplan/sliced_block_pool.h"

namespace kvplan::c_api {

/// Events as C sees them, until they are taken again.
class TakenEvents {
 public:
  void set(std::vector<BlockPoolEvent> events);
  const kvplan_event* data() const { return views_.data(); }
  size_t size() const { return views_.size(); }

 private:
  std::vector<BlockPoolEvent> events_;
  std::vector<kvplan_bytes> hashes_;
  std::vector<kvplan_event> views_;
};

/// Takes the events of `owner`, a pool or a manager.
template <class Owner>
void take_events(Owner& owner, TakenEvents& taken, const kvplan_event** events, size_t* count) {
  deref(events, "events");
  deref(count, "count");
  taken.set(owner.take_events());
  *events = taken.data();
  *count = taken.size();
}

/// A pool that its manager may share.
template <class Pool>
struct PoolHandle {
  explicit PoolHandle(std::shared_ptr<Pool> shared) : owner(std::move(shared)), pool(*owner) {}

  const std::shared_ptr<Pool> owner;
  Pool& pool;
  TakenEvents events;
};

}  // namespace kvplan::c_api

struct kvplan_pool : kvplan::c_api::PoolHandle<kvplan::BlockPool> {
  using PoolHandle::PoolHandle;
};

struct kvplan_sliced_pool : kvplan::c_api::PoolHandle<kvplan::SlicedBlockPool> {
  using PoolHandle::PoolHandle;
};
