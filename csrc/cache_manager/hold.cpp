#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cache_manager/manager_state.h"
#include "kvplan/cache_manager.h"
#include "kvplan/errors.h"

namespace kvplan {

namespace detail {

void ManagerState::hold(std::vector<std::vector<BlockId>>& found) {
  for (size_t g = 0; g < found.size(); ++g) {
    std::erase(found[g], kNullBlock);
    pool.touch(static_cast<PoolGroupId>(g), found[g]);
  }
}

void ManagerState::release(const std::vector<std::vector<BlockId>>& held) {
  // As a request does: last first, so that the end of a prefix is evicted before its beginning.
  for (size_t g = held.size(); g-- > 0;) {
    ids.assign(held[g].rbegin(), held[g].rend());
    pool.free_blocks(static_cast<PoolGroupId>(g), ids);
  }
}

void ManagerState::release_hold(Request& request) { release(std::exchange(request.held, {})); }

int32_t ManagerState::num_retaining(size_t group, BlockId block) const {
  return static_cast<int32_t>(std::count_if(retained.begin(), retained.end(), [&](const auto& r) {
    return std::find(r.blocks[group].begin(), r.blocks[group].end(), block) !=
           r.blocks[group].end();
  }));
}

MakingWay::~MakingWay() {
  while (num_gone_ > 0) state_.hold(state_.retained[--num_gone_].blocks);
}

bool MakingWay::next(bool even_pinned) {
  if (num_gone_ == state_.retained.size()) return false;
  const Retained& next = state_.retained[num_gone_];
  if (next.prefix.retention.pinned && !even_pinned) return false;
  state_.release(next.blocks);
  ++num_gone_;
  return true;
}

void MakingWay::done() {
  const auto first = state_.retained.begin();
  state_.retained.erase(first, first + static_cast<std::ptrdiff_t>(std::exchange(num_gone_, 0)));
}

}  // namespace detail

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
  s.hold(found);
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

int64_t CacheManager::retain_prefix(RequestHandle handle, int64_t max_tokens,
                                    const Retention& retention) {
  detail::ManagerState& s = *state_;
  const detail::ManagerOperation check(s);
  s.pool.plain();
  detail::check_count("retain_prefix", "max_tokens", max_tokens);
  PrefixHit hit;
  s.find_prefix(s.request_of(handle), max_tokens, hit);
  if (hit.num_tokens == 0) return 0;
  const auto order = [](const RetainedPrefix& prefix) {
    return std::tuple(prefix.retention.pinned, prefix.retention.priority, prefix.id);
  };
  detail::Retained kept{.prefix = {.id = s.num_retained_ever + 1,
                                   .num_tokens = hit.num_tokens,
                                   .retention = retention},
                        .blocks = std::move(hit.blocks)};
  s.retained.reserve(s.retained.size() + 1);
  s.hold(kept.blocks);
  const auto place = std::partition_point(
      s.retained.begin(), s.retained.end(),
      [&](const detail::Retained& r) { return order(r.prefix) < order(kept.prefix); });
  s.retained.insert(place, std::move(kept));
  check.done(*this);
  return ++s.num_retained_ever;
}

void CacheManager::release_retained(int64_t id) {
  detail::ManagerState& s = *state_;
  const detail::ManagerOperation check(s);
  const auto found = std::find_if(s.retained.begin(), s.retained.end(),
                                  [&](const detail::Retained& r) { return r.prefix.id == id; });
  if (found == s.retained.end()) {
    throw InvalidArgument("release_retained: no prefix is retained as " + std::to_string(id));
  }
  s.release(found->blocks);
  s.retained.erase(found);
  check.done(*this);
}

size_t CacheManager::expire_retained(int64_t now) {
  detail::ManagerState& s = *state_;
  const detail::ManagerOperation check(s);
  const size_t count = std::erase_if(s.retained, [&](const detail::Retained& r) {
    const bool is_over = r.prefix.retention.until && *r.prefix.retention.until <= now;
    if (is_over) s.release(r.blocks);
    return is_over;
  });
  check.done(*this);
  return count;
}

std::vector<RetainedPrefix> CacheManager::retained_prefixes() const {
  std::vector<RetainedPrefix> prefixes;
  prefixes.reserve(state_->retained.size());
  for (const detail::Retained& r : state_->retained) prefixes.push_back(r.prefix);
  return prefixes;
}

}  // namespace kvplan
