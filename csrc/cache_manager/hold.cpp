#include <algorithm>
#include <utility>
#include <vector>

#include "cache_manager/manager_state.h"
#include "kvplan/cache_manager.h"
#include "kvplan/errors.h"

namespace kvplan {

void detail::ManagerState::release_hold(Request& request) {
  // As a request does: last first, so that the end of a prefix is evicted before its beginning.
  const std::vector<std::vector<BlockId>> held = std::exchange(request.held, {});
  for (size_t g = held.size(); g-- > 0;) {
    ids.assign(held[g].rbegin(), held[g].rend());
    pool.free_blocks(static_cast<PoolGroupId>(g), ids);
  }
}

void CacheManager::hold_prefix(RequestHandle handle, int64_t max_tokens, PrefixHit& hit) {
  detail::ManagerState& s = *state_;
  const detail::ManagerOperation check(s);
  detail::Request& request = s.request_of(handle);
  detail::check_count("hold_prefix", "max_tokens", max_tokens);
  if (std::any_of(request.tables.begin(), request.tables.end(),
                  [](const detail::BlockTables& table) { return table.length > 0; })) {
    throw InvalidArgument("hold_prefix: the request has blocks already");
  }
  s.find_prefix(request, max_tokens, hit);
  std::vector<std::vector<BlockId>> found = hit.blocks;
  for (size_t g = 0; g < found.size(); ++g) {
    std::erase(found[g], kNullBlock);
    s.pool.touch(static_cast<PoolGroupId>(g), found[g]);
  }
  s.release_hold(request);
  request.held = std::move(found);
  check.done(*this);
}

void CacheManager::release_hold(RequestHandle handle) {
  detail::ManagerState& s = *state_;
  const detail::ManagerOperation check(s);
  s.release_hold(s.request_of(handle));
  // It was all that was in the way.
  if (starts_again(handle) && s.pool.reset_prefix_cache()) s.alone.reset();
  check.done(*this);
}

}  // namespace kvplan
