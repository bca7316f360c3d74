#include <algorithm>
#include <string>

#include "cache_manager/manager_state.h"
#include "kvplan/cache_manager.h"
#include "kvplan/errors.h"

namespace kvplan {
namespace detail {

void ManagerState::refuse_states(const char* operation) const {
  for (size_t g = 0; g < layout.groups.size(); ++g) {
    if (!layout.groups[g].mamba_align) continue;
    throw Unsupported(std::string(operation) + ": the states of group " + std::to_string(g) +
                      " (mamba_cache_mode='align') move with each step");
  }
}

namespace {

/// Blocks at the beginning of a group's table that neither request writes any more.
int64_t num_shared(const ManagerState& s, const Request& request, size_t g, int64_t num_computed) {
  const GroupPolicy& group = s.layout.groups[g];
  if (group.kind == CacheKind::kCrossAttention) return request.tables[group.table].length;
  if (group.kind == CacheKind::kMamba || group.kind == CacheKind::kCircularBuffer) return 0;
  const int64_t num_full = num_computed / group.block_size;
  if (!s.layout.enable_caching || !group.prefix_cacheable) return num_full;
  // One that is full and not cached yet would be cached twice.
  return std::clamp<int64_t>(request.groups[g].num_cached, 0, num_full);
}

/// Blocks of a group's table that the first `num_computed` tokens and its states lie in.
int64_t num_kept(const Request& request, const GroupPolicy& group, int64_t num_computed) {
  const int64_t length = request.tables[group.table].length;
  if (!group.covers_tokens || group.kind == CacheKind::kCircularBuffer) return length;
  const int64_t kept = checked::cdiv(num_computed, group.block_size);
  if (kept <= length) return kept;
  throw InvalidArgument("fork: the request has no blocks for " + std::to_string(num_computed) +
                        " tokens");
}

}  // namespace
}  // namespace detail

std::optional<RequestHandle> CacheManager::fork(RequestHandle handle, int64_t num_computed_tokens) {
  detail::ManagerState& s = *state_;
  const detail::ManagerOperation check(s);
  s.refuse_states("fork");
  detail::check_count("fork", "num_computed_tokens", num_computed_tokens);
  struct Part {
    int64_t shared;
    int64_t kept;
    std::vector<BlockId> held;  // shared ones for good, the others until they are copied
  };
  std::vector<Part> parts(num_groups());
  int64_t num_copied = 0;
  s.demands.clear();
  for (size_t g = 0; g < num_groups(); ++g) {
    detail::Request& from = s.request_of(handle);
    const detail::GroupPolicy& group = s.layout.groups[g];
    Part& part = parts[g];
    part.kept = detail::num_kept(from, group, num_computed_tokens);
    part.shared = std::min(part.kept, detail::num_shared(s, from, g, num_computed_tokens));
    detail::Column blocks = s.column(from, group);
    SliceDemand demand{.group_id = static_cast<PoolGroupId>(g)};
    for (int64_t i = 0; i < part.kept; ++i) {
      if (blocks[i] == kNullBlock) continue;
      part.held.push_back(blocks[i]);
      demand.num_new += i >= part.shared;
    }
    demand.found = part.held;
    num_copied += demand.num_new;
    s.demands.push_back(demand);
  }
  if (s.alone || s.pool.num_needed(s.demands) > s.pool.num_free_blocks()) return std::nullopt;

  const RequestHandle made = add_request();
  detail::Request& from = s.request_of(handle);
  detail::Request& to = s.request_of(made);
  const int64_t num_hashed =
      std::max<int64_t>(0, num_computed_tokens - s.layout.num_hash_lookahead_tokens) /
      s.layout.hash_block_size;
  to.hashes.assign(
      from.hashes.begin(),
      from.hashes.begin() + std::min(std::ssize(from.hashes),
                                     num_hashed * static_cast<int64_t>(s.layout.hash_bytes)));
  to.tokens = from.tokens;
  to.groups = from.groups;
  // All memory is there before the pool gives anything.
  std::vector<BlockId> copies(static_cast<size_t>(num_copied));
  for (size_t g = 0; g < num_groups(); ++g) {
    const detail::GroupPolicy& group = s.layout.groups[g];
    detail::BlockTables& table = to.tables[group.table];
    table.length = parts[g].kept;
    table.ids.resize(static_cast<size_t>(table.length) * s.layout.tables[group.table].num_columns,
                     kNullBlock);
    to.groups[g].num_cached =
        static_cast<int32_t>(std::min<int64_t>(to.groups[g].num_cached, parts[g].shared));
    s.copies[g].reserve(s.copies[g].size() + copies.size());
  }
  s.pool.allocate(s.demands, copies, false);
  size_t next = 0;
  for (size_t g = 0; g < num_groups(); ++g) {
    detail::Column source = s.column(from, s.layout.groups[g]);
    detail::Column blocks = s.column(to, s.layout.groups[g]);
    for (int64_t i = 0; i < parts[g].kept; ++i) {
      blocks[i] = source[i];
      if (i < parts[g].shared || source[i] == kNullBlock) continue;
      blocks[i] = copies[next++];
      s.copies[g].push_back(
          {.source = source[i], .destination = blocks[i], .group = static_cast<int32_t>(g)});
      s.pool.hold(static_cast<PoolGroupId>(g), blocks[i]);
    }
  }
  check.done(*this);
  return made;
}

}  // namespace kvplan
