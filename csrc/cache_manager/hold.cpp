#include <algorithm>
#include <utility>

#include "cache_manager/manager_state.h"
#include "kvplan/cache_manager.h"
#include "kvplan/errors.h"

namespace kvplan {

void detail::ManagerState::release_hold(Request& request) {
  if (request.held.empty()) return;
  // As a request does: last first, so that the end of a prefix is evicted before its beginning.
  const std::vector<BlockId> held = std::exchange(request.held, {});
  ids.assign(held.rbegin(), held.rend());
  pool->free_blocks(ids);
}

void CacheManager::hold_prefix(RequestHandle handle, int64_t max_tokens, PrefixHit& hit) {
  detail::ManagerState& s = *state_;
  const detail::ManagerOperation check(s);
  detail::Request& request = s.request_of(handle);
  if (std::any_of(request.tables.begin(), request.tables.end(),
                  [](const detail::BlockTables& table) { return table.length > 0; })) {
    throw InvalidArgument("hold_prefix: the request has blocks already");
  }
  s.find_prefix(request, max_tokens, hit);
  std::vector<BlockId> found;
  for (const std::vector<BlockId>& blocks : hit.blocks) {
    std::copy_if(blocks.begin(), blocks.end(), std::back_inserter(found),
                 [](BlockId block) { return block != kNullBlock; });
  }
  s.pool->touch(found);
  s.release_hold(request);
  request.held = std::move(found);
  check.done(*this);
}

void CacheManager::release_hold(RequestHandle handle) {
  detail::ManagerState& s = *state_;
  const detail::ManagerOperation check(s);
  s.release_hold(s.request_of(handle));
  check.done(*this);
}

}  // namespace kvplan
