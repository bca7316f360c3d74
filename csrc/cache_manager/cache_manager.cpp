#include "kvplan/cache_manager.h"

#include <algorithm>
#include <string>
#include <utility>

#include "block_pool/invariant.h"
#include "cache_manager/manager_state.h"
#include "kvplan/errors.h"

namespace kvplan {

using detail::Column;
using detail::GroupPolicy;
using detail::ManagerOperation;
using detail::ManagerState;
using detail::Request;

namespace detail {

ManagerState::ManagerState(const CacheManagerOptions& options, std::shared_ptr<BlockPool> plain,
                           std::shared_ptr<SlicedBlockPool> sliced)
    : OperationState(static_cast<uint64_t>(std::max<int64_t>(0, options.num_blocks))),
      layout(options),
      pool(options, std::move(plain), std::move(sliced)),
      new_block_ids(layout.groups.size()),
      copies(layout.groups.size()),
      boundary_states(layout.groups.size()) {
  new_blocks.begins.assign(layout.groups.size() + 1, 0);
  set_commit_batches();
  counters.num_free_blocks = pool.num_free_blocks();
  counters.num_cached_hashes = pool.num_cached_hashes();
}

Request& ManagerState::request_of(RequestHandle handle) {
  const auto i = static_cast<size_t>(handle);
  if (i >= requests.size() || !requests[i].in_use) {
    throw InvalidArgument("no request has handle " + std::to_string(static_cast<int32_t>(handle)));
  }
  return requests[i];
}

std::string ManagerState::step_key(std::string_view hash, size_t group) {
  std::string key(hash);
  key.push_back(static_cast<char>(group & 0xff));
  key.push_back(static_cast<char>(group >> 8));
  return key;
}

const GroupPolicy& ManagerState::group_of(size_t group) const {
  if (group < layout.groups.size()) return layout.groups[group];
  throw InvalidArgument("there is no group " + std::to_string(group) + " of " +
                        std::to_string(layout.groups.size()));
}

}  // namespace detail

CacheManager::CacheManager(const CacheManagerOptions& options)
    : state_(std::make_unique<ManagerState>(options, nullptr, nullptr)) {}
CacheManager::CacheManager(const CacheManagerOptions& options, std::shared_ptr<BlockPool> pool)
    : state_(std::make_unique<ManagerState>(options, std::move(pool), nullptr)) {}
CacheManager::CacheManager(const CacheManagerOptions& options,
                           std::shared_ptr<SlicedBlockPool> pool)
    : state_(std::make_unique<ManagerState>(options, nullptr, std::move(pool))) {}
CacheManager::~CacheManager() = default;
CacheManager::CacheManager(CacheManager&&) noexcept = default;
CacheManager& CacheManager::operator=(CacheManager&&) noexcept = default;

size_t CacheManager::num_groups() const noexcept { return state_->layout.groups.size(); }
int64_t CacheManager::block_size(size_t group) const { return state_->group_of(group).block_size; }
int64_t CacheManager::scheduler_block_size() const noexcept {
  return state_->layout.scheduler_block_size;
}
int64_t CacheManager::hash_block_size() const noexcept { return state_->layout.hash_block_size; }
size_t CacheManager::hash_bytes() const noexcept { return state_->layout.hash_bytes; }
int64_t CacheManager::num_hash_lookahead_tokens() const noexcept {
  return state_->layout.num_hash_lookahead_tokens;
}
int64_t CacheManager::hit_alignment() const noexcept { return state_->layout.hit_alignment; }
bool CacheManager::enable_partial_hits() const noexcept { return state_->layout.partial_hits; }
bool CacheManager::mamba_shared_prefix_checkpoint() const noexcept {
  return state_->layout.shared_prefix_checkpoint;
}
int64_t CacheManager::watermark_blocks() const noexcept { return state_->layout.watermark_blocks; }
bool CacheManager::is_sliced() const noexcept { return state_->pool.is_sliced(); }
BlockPool& CacheManager::pool() { return state_->pool.plain(); }
const BlockPool& CacheManager::pool() const { return state_->pool.plain(); }
SlicedBlockPool& CacheManager::sliced_pool() { return state_->pool.sliced(); }
const SlicedBlockPool& CacheManager::sliced_pool() const { return state_->pool.sliced(); }
std::shared_ptr<BlockPool> CacheManager::share_pool() const { return state_->pool.share_plain(); }
std::shared_ptr<SlicedBlockPool> CacheManager::share_sliced_pool() const {
  return state_->pool.share_sliced();
}
int64_t CacheManager::num_blocks() const noexcept { return state_->pool.num_blocks(); }
int64_t CacheManager::num_free_blocks() const noexcept { return state_->pool.num_free_blocks(); }
double CacheManager::usage() const noexcept { return state_->pool.usage(); }
std::vector<BlockPoolEvent> CacheManager::take_events() { return state_->pool.take_events(); }

std::vector<int64_t> CacheManager::num_cached_blocks() const {
  std::vector<int64_t> counts(num_groups());
  if (!is_sliced()) {
    for (BlockId block = 1; block < pool().num_blocks(); ++block) {
      if (const auto group = pool().block_hash_group(block)) ++counts[static_cast<size_t>(*group)];
    }
    return counts;
  }
  for (size_t g = 0; g < counts.size(); ++g) {
    const auto group = static_cast<PoolGroupId>(g);
    const auto first = static_cast<BlockId>(sliced_pool().slices(group));
    for (BlockId block = first; block < sliced_pool().num_blocks(group); ++block) {
      counts[g] += !sliced_pool().block_hash(group, block).empty();
    }
  }
  return counts;
}

// Requests.

RequestHandle CacheManager::add_request() {
  ManagerState& s = *state_;
  const ManagerOperation check(s);
  size_t i = s.requests.size();
  if (!s.unused_handles.empty()) {
    i = static_cast<size_t>(s.unused_handles.back());
    s.unused_handles.pop_back();
  } else {
    if (i >= static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
      throw InvalidArgument("no more than 2147483647 requests");
    }
    s.requests.emplace_back();
    s.quiet_until.push_back(0);
    s.last_step.push_back(0);
    // So that giving a handle back cannot fail.
    s.unused_handles.reserve(s.requests.capacity());
    Request& request = s.requests.back();
    request.tables.resize(s.layout.tables.size());
    request.groups.resize(s.layout.groups.size());
    request.states.resize(s.layout.num_states);
  }
  s.requests[i].in_use = true;
  return static_cast<RequestHandle>(i);
}

void CacheManager::remove_request(RequestHandle handle) {
  free(handle);
  ManagerState& s = *state_;
  const ManagerOperation check(s);
  Request& request = s.request_of(handle);
  if (s.is_alone(handle)) s.alone.reset();
  request.in_use = false;
  request.hashes.clear();
  request.tokens = {};
  s.unused_handles.push_back(static_cast<int32_t>(handle));
}

size_t CacheManager::num_requests() const noexcept {
  return state_->requests.size() - state_->unused_handles.size();
}

bool CacheManager::has_request(RequestHandle request) const noexcept {
  const auto i = static_cast<size_t>(request);
  return i < state_->requests.size() && state_->requests[i].in_use;
}

void CacheManager::append_hashes(RequestHandle handle, std::span<const std::byte> hashes) {
  ManagerState& s = *state_;
  Request& request = s.request_of(handle);
  if (hashes.size() % s.layout.hash_bytes != 0) {
    throw InvalidArgument("append_hashes: " + std::to_string(hashes.size()) +
                          " bytes are not hashes of " + std::to_string(s.layout.hash_bytes) +
                          " bytes each");
  }
  const auto* first = reinterpret_cast<const char*>(hashes.data());
  request.hashes.insert(request.hashes.end(), first, first + hashes.size());
}

void CacheManager::truncate_hashes(RequestHandle handle, int64_t count) {
  ManagerState& s = *state_;
  Request& request = s.request_of(handle);
  if (count < 0 || static_cast<size_t>(count) > s.hash_count(request)) {
    throw InvalidArgument("truncate_hashes: count is 0 to " +
                          std::to_string(s.hash_count(request)) + ", the request's hashes, not " +
                          std::to_string(count));
  }
  request.hashes.resize(static_cast<size_t>(count) * s.layout.hash_bytes);
  s.quiet_until[static_cast<size_t>(handle)] = 0;
}

int64_t CacheManager::num_hashes(RequestHandle handle) const {
  return static_cast<int64_t>(state_->hash_count(state_->request_of(handle)));
}

// Prefix cache.

void CacheManager::find_prefix(RequestHandle request, int64_t max_tokens, PrefixHit& hit) const {
  detail::check_count("find_prefix", "max_tokens", max_tokens);
  state_->find_prefix(state_->request_of(request), max_tokens, hit);
}

void CacheManager::find_prefix_for_connector(RequestHandle request, int64_t max_tokens,
                                             PrefixHit& hit) const {
  detail::check_count("find_prefix_for_connector", "max_tokens", max_tokens);
  state_->find_prefix_for_connector(state_->request_of(request), max_tokens, hit);
}

void CacheManager::truncate_prefix(PrefixHit& hit, int64_t num_tokens) const {
  const ManagerState& s = *state_;
  if (hit.blocks.size() != num_groups() || num_tokens < 0 || num_tokens > hit.num_tokens) {
    throw InvalidArgument("truncate_prefix: a hit of " + std::to_string(hit.blocks.size()) +
                          " groups and " + std::to_string(hit.num_tokens) + " tokens, to " +
                          std::to_string(num_tokens) + "; there are " +
                          std::to_string(num_groups()) + " groups, and a hit only gets shorter");
  }
  const auto kept_blocks = [&](size_t g) -> size_t {
    const GroupPolicy& group = s.layout.groups[g];
    const size_t size = hit.blocks[g].size();
    if (!group.prefix_cacheable && size == 0) return 0;
    const auto count = static_cast<size_t>(num_tokens / group.block_size);
    if (group.prefix_cacheable && num_tokens % group.block_size == 0) {
      // A connector can supply a state that is missing.
      if (group.kind == CacheKind::kMamba) return std::min(count, size);
      if (count <= size) return count;
    }
    throw InvalidArgument("truncate_prefix: " + std::to_string(num_tokens) +
                          " tokens are not whole blocks of the " + std::to_string(size) +
                          " that the hit has of group " + std::to_string(g));
  };
  for (size_t g = 0; g < num_groups(); ++g) kept_blocks(g);
  for (size_t g = 0; g < num_groups(); ++g) hit.blocks[g].resize(kept_blocks(g));
  hit.num_tokens = num_tokens;
}

void CacheManager::emit_cached_block_events(RequestHandle handle, const PrefixHit& hit) {
  ManagerState& s = *state_;
  const Request& request = s.request_of(handle);
  s.check_hit(request, hit);
  for (size_t g = 0; g < num_groups(); ++g) {
    const auto num_blocks = static_cast<int64_t>(hit.blocks[g].size());
    if (num_blocks == 0) continue;
    const int64_t block_size = s.layout.groups[g].spec_block_size;
    const int64_t hashes_per_block = block_size / s.layout.hash_block_size;
    if (hashes_per_block == 0 || num_blocks * hashes_per_block > num_hashes(handle)) {
      throw InvalidArgument("emit_cached_block_events: the request has no hashes for the " +
                            std::to_string(num_blocks) + " blocks of group " + std::to_string(g));
    }
    s.hash_views.clear();
    for (int64_t i = 1; i <= num_blocks; ++i) {
      s.hash_views.push_back(s.hash_at(request, i * hashes_per_block - 1));
    }
    s.pool.emit_stored_event(s.hash_views, block_size, static_cast<PoolGroupId>(g));
  }
}

void CacheManager::record_prefix_cache_stats(int64_t num_tokens, int64_t num_hits, bool preempted) {
  detail::check_count("record_prefix_cache_stats", "num_tokens", num_tokens);
  detail::check_count("record_prefix_cache_stats", "num_hits", num_hits);
  if (num_hits > num_tokens) {
    throw InvalidArgument("record_prefix_cache_stats: " + std::to_string(num_hits) +
                          " tokens were found of " + std::to_string(num_tokens));
  }
  if (!state_->layout.enable_caching) return;
  state_->counters.num_queried_tokens.fetch_add(num_tokens, std::memory_order_relaxed);
  state_->counters.num_hit_tokens.fetch_add(num_hits, std::memory_order_release);
  PrefixCacheStats& stats = state_->stats;
  (preempted ? stats.preempted_requests : stats.requests) += 1;
  (preempted ? stats.preempted_queries : stats.queries) += num_tokens;
  (preempted ? stats.preempted_hits : stats.hits) += num_hits;
}

PrefixCacheStats CacheManager::take_prefix_cache_stats() noexcept {
  return std::exchange(state_->stats, {});
}

CacheManagerCounters CacheManager::counters() const noexcept {
  const detail::SharedCounters& c = state_->counters;
  const auto get = [](const std::atomic<int64_t>& counter) {
    return counter.load(std::memory_order_relaxed);
  };
  // Before the tokens asked for, so that no thread sees more hits than those.
  const int64_t num_hits = c.num_hit_tokens.load(std::memory_order_acquire);
  return {.num_requests = get(c.num_requests),
          .num_free_blocks = get(c.num_free_blocks),
          .num_cached_hashes = get(c.num_cached_hashes),
          .num_queried_tokens = get(c.num_queried_tokens),
          .num_hit_tokens = num_hits};
}

// Allocation.

bool CacheManager::allocate(RequestHandle request, const RequestTokens& tokens,
                            const Allocation& allocation, const PrefixHit* hit) {
  const ManagerOperation check(*state_);
  const auto stop = state_->allocate(request, tokens, allocation, hit);
  if (stop == StepResult::Stop::kDone && hit != nullptr) {
    state_->release_hold(state_->request_of(request));
  }
  check.done(*this);
  return stop == StepResult::Stop::kDone;
}

std::span<const BlockId> CacheManager::new_blocks(size_t group) const {
  state_->group_of(group);
  const detail::NewBlocks& blocks = state_->new_blocks;
  return std::span(blocks.ids)
      .subspan(blocks.begins[group], blocks.begins[group + 1] - blocks.begins[group]);
}

bool CacheManager::has_new_blocks() const noexcept { return !state_->new_blocks.ids.empty(); }

int64_t CacheManager::quiet_until(RequestHandle request) const {
  const auto i = static_cast<size_t>(request);
  const int64_t quiet_until = i < state_->quiet_until.size() ? state_->quiet_until[i] : 0;
  // Only a request that is there is ever quiet.
  if (quiet_until == 0) state_->request_of(request);
  return quiet_until;
}

bool CacheManager::starts_again(RequestHandle request) const {
  state_->request_of(request);
  return state_->is_alone(request) && state_->alone_starts_again;
}

StepResult CacheManager::schedule(const DecodeStep& step, std::span<AppendedBlock> appended) {
  const ManagerOperation check(*state_);
  const StepResult result = state_->schedule(step, appended);
  check.done(*this);
  return result;
}

int64_t CacheManager::num_blocks_to_allocate(RequestHandle handle, const Demand& demand,
                                             const PrefixHit* hit) {
  constexpr const char* kCall = "num_blocks_to_allocate";
  Request& request = state_->request_of(handle);
  detail::check_count(kCall, "num_tokens", demand.num_tokens);
  detail::check_count(kCall, "num_tokens_main_model", demand.num_tokens_main_model);
  detail::check_count(kCall, "num_encoder_tokens", demand.num_encoder_tokens);
  detail::check_count(kCall, "total_computed_tokens", demand.total_computed_tokens);
  detail::check_count(kCall, "num_local_computed_tokens", demand.num_local_computed_tokens);
  detail::check_count(kCall, "prefill_end", demand.prefill_end);
  if (hit != nullptr) state_->check_hit(request, *hit);
  state_->quiet_until[static_cast<size_t>(handle)] = 0;
  return state_->blocks_needed(request, demand, hit);
}

void CacheManager::commit(RequestHandle handle, const RequestTokens& tokens,
                          int64_t num_computed_tokens) {
  ManagerState& s = *state_;
  const ManagerOperation check(s);
  Request& request = s.request_of(handle);
  detail::check_tokens("commit", tokens);
  detail::check_count("commit", "num_computed_tokens", num_computed_tokens);
  if (!s.layout.enable_caching) return;
  s.check_commit(request, num_computed_tokens);
  const RequestTokens before = std::exchange(request.tokens, tokens);
  try {
    s.check_states(request, num_computed_tokens);
  } catch (...) {
    request.tokens = before;
    throw;
  }
  s.quiet_until[static_cast<size_t>(handle)] = 0;
  s.commit(handle, request, num_computed_tokens);
  check.done(*this);
}

// Release.

void CacheManager::remove_skipped_blocks(RequestHandle handle, int64_t num_processed_tokens,
                                         std::optional<int64_t> num_prompt_tokens) {
  const ManagerOperation check(*state_);
  Request& request = state_->request_of(handle);
  detail::check_count("remove_skipped_blocks", "num_processed_tokens", num_processed_tokens);
  detail::check_count("remove_skipped_blocks", "num_prompt_tokens", num_prompt_tokens.value_or(0));
  state_->quiet_until[static_cast<size_t>(handle)] = 0;
  state_->remove_skipped(request, num_processed_tokens, num_prompt_tokens);
  check.done(*this);
}

void CacheManager::free(RequestHandle handle) {
  ManagerState& s = *state_;
  const ManagerOperation check(s);
  s.release_hold(s.request_of(handle));
  s.pop_blocks(handle, s.request_of(handle), [&](PoolGroupId group, std::vector<BlockId>& ids) {
    std::reverse(ids.begin(), ids.end());
    if (!ids.empty()) s.pool.free_blocks(group, ids);
  });
  // What it has cached may lie as it lay.
  if (starts_again(handle)) {
    s.pool.reset_prefix_cache();
    s.alone_starts_again = false;
  } else if (s.is_alone(handle)) {
    s.alone.reset();
  }
  check.done(*this);
}

void CacheManager::pop_blocks_for_free(RequestHandle handle, std::vector<BlockId>& out) {
  ManagerState& s = *state_;
  const ManagerOperation check(s);
  Request& request = s.request_of(handle);
  s.pool.plain();
  s.release_hold(request);
  out.clear();
  s.pop_blocks(handle, request, [&](PoolGroupId, std::vector<BlockId>& ids) {
    out.insert(out.end(), ids.begin(), ids.end());
  });
  check.done(*this);
}

void CacheManager::evict_blocks(std::span<const BlockId> blocks) {
  state_->pool.plain();
  evict_blocks(0, blocks);
}

void CacheManager::evict_blocks(size_t group, std::span<const BlockId> blocks) {
  ManagerState& s = *state_;
  const ManagerOperation check(s);
  if (s.pool.is_sliced()) s.group_of(group);
  s.pool.evict_blocks(static_cast<PoolGroupId>(group), blocks);
  // A request may have a boundary to cache once more.
  std::fill(s.quiet_until.begin(), s.quiet_until.end(), 0);
  check.done(*this);
}

bool CacheManager::reset_prefix_cache() {
  ManagerState& s = *state_;
  const ManagerOperation check(s);
  detail::MakingWay retained_go(s);
  while (retained_go.next(/*even_pinned=*/true)) {
  }
  if (!s.pool.reset_prefix_cache()) return false;
  retained_go.done();
  s.stats.reset = true;
  std::fill(s.quiet_until.begin(), s.quiet_until.end(), 0);
  check.done(*this);
  return true;
}

// State of a request.

BlockTableView CacheManager::block_table(RequestHandle handle, size_t group) const {
  ManagerState& s = *state_;
  Request& request = s.request_of(handle);
  const GroupPolicy& policy = s.group_of(group);
  const detail::BlockTables& table = request.tables[policy.table];
  return {table.ids.data() + policy.column, static_cast<size_t>(table.length),
          s.layout.tables[policy.table].num_columns};
}

int64_t CacheManager::num_blocks_for_computed_tokens(RequestHandle handle, size_t group,
                                                     int64_t num_computed_tokens) const {
  detail::check_count("num_blocks_for_computed_tokens", "num_computed_tokens", num_computed_tokens);
  const auto size = static_cast<int64_t>(block_table(handle, group).size());
  const GroupPolicy& policy = state_->layout.groups[group];
  if (!policy.covers_tokens) return size;
  return std::min(size, checked::cdiv(num_computed_tokens, policy.spec_block_size));
}

int64_t CacheManager::estimate_cached_tokens(RequestHandle handle) const {
  int64_t cached = detail::kNever;
  for (size_t g = 0; g < num_groups(); ++g) {
    const GroupPolicy& group = state_->layout.groups[g];
    if (!group.prefix_cacheable || group.kind == CacheKind::kCrossAttention) continue;
    const BlockTableView blocks = block_table(handle, g);
    int64_t group_cached = 0;
    for (size_t i = 0; i < blocks.size(); ++i) {
      const auto tokens =
          state_->pool.block_hash_num_tokens(static_cast<PoolGroupId>(g), blocks[i]);
      group_cached = std::max(group_cached, tokens.value_or(0));
    }
    cached = std::min(cached, group_cached);
  }
  return cached == detail::kNever ? 0 : cached;
}

int64_t CacheManager::num_common_prefix_blocks(RequestHandle handle, size_t group) const {
  const BlockTableView blocks = block_table(handle, group);
  if (!state_->layout.groups[group].is_full) return 0;
  const auto num_running =
      std::count_if(state_->requests.begin(), state_->requests.end(), [&](const Request& r) {
        return r.in_use && r.tables[state_->layout.groups[group].table].length > 0;
      });
  size_t count = 0;
  const auto id = static_cast<PoolGroupId>(group);
  const auto num_requests_with = [&](BlockId block) {
    return state_->pool.ref_count(id, block) - state_->num_retaining(group, block);
  };
  while (count < blocks.size() && num_requests_with(blocks[count]) == num_running) ++count;
  return static_cast<int64_t>(count);
}

// What a step has left to do.

void CacheManager::new_step_starts() noexcept { state_->cached_this_step.clear(); }

namespace {

/// Takes what the groups have, one after another.
template <typename T>
std::vector<T> take_all(std::vector<std::vector<T>>& by_group) {
  std::vector<T> all;
  for (std::vector<T>& of_group : by_group) {
    all.insert(all.end(), of_group.begin(), of_group.end());
    of_group.clear();
  }
  return all;
}

}  // namespace

std::vector<BlockId> CacheManager::take_new_block_ids() {
  for (const std::vector<BlockId>& ids : state_->new_block_ids) {
    if (!ids.empty() && is_sliced()) {
      throw Unsupported("take_new_block_ids: with slices, an id needs its group; name it");
    }
  }
  return take_all(state_->new_block_ids);
}

std::vector<BlockId> CacheManager::take_new_block_ids(size_t group) {
  state_->group_of(group);
  return std::exchange(state_->new_block_ids[group], {});
}

void CacheManager::record_blocks_for_zeroing(RequestHandle handle, int64_t start_token) {
  ManagerState& s = *state_;
  Request& request = s.request_of(handle);
  detail::check_count("record_blocks_for_zeroing", "start_token", start_token);
  for (const GroupPolicy& group : s.layout.groups) {
    if (!group.records_new || start_token % group.block_size == 0) continue;
    throw InvalidArgument("record_blocks_for_zeroing: token " + std::to_string(start_token) +
                          " is not the first of a block of " + std::to_string(group.block_size) +
                          " tokens");
  }
  for (size_t g = 0; g < num_groups(); ++g) {
    const GroupPolicy& group = s.layout.groups[g];
    if (!group.records_new) continue;
    Column blocks = s.column(request, group);
    for (int64_t i = start_token / group.block_size; i < blocks.size(); ++i) {
      s.new_block_ids[g].push_back(blocks[i]);
    }
  }
}

std::vector<BlockCopy> CacheManager::take_copies() { return take_all(state_->copies); }

void CacheManager::free_copies(std::span<const BlockCopy> copies) {
  ManagerState& s = *state_;
  const ManagerOperation check(s);
  s.freed.clear();
  for (const BlockCopy& copy : copies) {
    s.group_of(static_cast<size_t>(copy.group));
    s.freed.ids.insert(s.freed.ids.end(), {copy.source, copy.destination});
    if (is_sliced()) s.freed.end_batch(static_cast<PoolGroupId>(copy.group));
  }
  // A plain pool takes them as one batch, as vLLM's.
  s.freed.end_batch(PoolGroupId{});
  s.pool.free_batches(s.freed);
  check.done(*this);
}

bool CacheManager::has_copies() const noexcept {
  return std::any_of(state_->copies.begin(), state_->copies.end(),
                     [](const auto& copies) { return !copies.empty(); });
}

std::vector<BoundaryState> CacheManager::take_boundary_states() {
  return take_all(state_->boundary_states);
}

std::vector<BoundaryState> CacheManager::finalize_partial_tails(RequestHandle handle,
                                                                int64_t num_computed_tokens,
                                                                int64_t num_in_flight_tokens) {
  ManagerState& s = *state_;
  Request& request = s.request_of(handle);
  detail::check_count("finalize_partial_tails", "num_computed_tokens", num_computed_tokens);
  detail::check_count("finalize_partial_tails", "num_in_flight_tokens", num_in_flight_tokens);
  std::vector<BoundaryState> tails;
  for (size_t g = 0; g < num_groups(); ++g) {
    const GroupPolicy& group = s.layout.groups[g];
    if (!group.mamba_align) continue;
    detail::StateProgress& state = request.states[group.state];
    const BlockId block = std::exchange(state.producer_block, kNullBlock);
    if (block == kNullBlock || num_in_flight_tokens != 0 ||
        num_computed_tokens != state.producer_tokens) {
      continue;
    }
    tails.push_back({.request = handle,
                     .group = static_cast<uint16_t>(g),
                     .block = block,
                     .num_tokens = num_computed_tokens});
  }
  return tails;
}

}  // namespace kvplan
