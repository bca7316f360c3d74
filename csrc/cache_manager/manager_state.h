#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "block_pool/operation_check.h"
#include "cache_manager/group_policy.h"
#include "cache_manager/manager_pool.h"
#include "kvplan/block_pool.h"
#include "kvplan/cache_manager.h"

namespace kvplan::detail {

/// How far a request has come in one group.
struct GroupProgress {
  int32_t num_cached = -1;   // blocks that are not to be cached any more; -1: not known here yet
  int32_t shared_tail = -1;  // block whose hit ends inside it, until it is copied
  BlockId tail_source = kNullBlock;  // the block that others share

  bool is_known() const { return num_cached >= 0; }
  bool has_shared_tail() const { return shared_tail >= 0; }
};

/// What an aligned Mamba group remembers of a request besides.
struct StateProgress {
  bool has_allocated = false;
  int32_t last_state = -1;        // block with the state of two steps ago
  int32_t num_retired = 0;        // blocks that hold no state any more
  int32_t checkpoint_block = -1;  // block that this step exports a state into
  int32_t checkpoint_tokens = 0;
  BlockId producer_block = kNullBlock;  // holds the state at the end of the prompt
  int32_t producer_tokens = 0;

  bool has_checkpoint() const { return checkpoint_block >= 0; }
};

/// Interleaved block tables: block i of column c is `ids[i * num_columns + c]`.
struct BlockTables {
  std::vector<BlockId> ids;
  int64_t length = 0;  // blocks in every column
};

struct Request {
  bool in_use = false;
  bool has_blocks = false;
  std::vector<char> hashes;  // `hash_bytes` each
  std::vector<BlockTables> tables;
  std::vector<GroupProgress> groups;
  std::vector<StateProgress> states;       // by `GroupPolicy::state`
  RequestTokens tokens;                    // of the last call
  std::vector<std::vector<BlockId>> held;  // by group: what `hold_prefix` found
};

/// Blocks of a prefix, by group, held apart from any request.
struct Retained {
  RetainedPrefix prefix;
  std::vector<std::vector<BlockId>> blocks;
};

struct NewBlocks {
  std::vector<BlockId> ids;    // group after group
  std::vector<size_t> begins;  // by group, and the end

  void clear() {
    ids.clear();
    std::fill(begins.begin(), begins.end(), 0);
  }
};

/// Groups that cache the same blocks of their common table, as a rule at the same time.
struct CommitBatch {
  std::vector<PoolGroupId> groups;
  std::vector<uint32_t> columns;  // of the table, one per group
};

/// What an allocation does to one group's table, in this order.
struct Growth {
  int64_t skipped = 0;    // null blocks in place of the hit's first ones
  int64_t adopted = 0;    // blocks then, the hit's included
  int64_t external = 0;   // new blocks for tokens that a connector loads
  int64_t nulls = 0;      // before a state's blocks
  int64_t relocated = 0;  // speculative blocks that move to the end
  bool copied = false;    // a new block takes the shared tail's place, or its hashes
  int64_t fresh = 0;      // new blocks at the end

  int64_t length() const { return adopted + external + nulls + relocated + fresh; }
  int64_t taken() const { return (copied ? 1 : 0) + fresh; }
};

/// Column of a request's tables.
class Column {
 public:
  Column(Request& request, const ManagerLayout& layout, const GroupPolicy& group)
      : tables_(request.tables[group.table]),
        stride_(layout.tables[group.table].num_columns),
        column_(group.column) {}

  int64_t size() const { return tables_.length; }
  BlockId& operator[](int64_t i) { return tables_.ids[static_cast<size_t>(i) * stride_ + column_]; }

 private:
  BlockTables& tables_;
  size_t stride_;
  size_t column_;
};

/// `CacheManagerCounters` that another thread reads.
struct SharedCounters {
  std::atomic<int64_t> num_requests{0};
  std::atomic<int64_t> num_free_blocks{0};
  std::atomic<int64_t> num_cached_hashes{0};
  std::atomic<int64_t> num_queried_tokens{0};
  std::atomic<int64_t> num_hit_tokens{0};
};

struct ManagerState : OperationState {
  ManagerState(const CacheManagerOptions& options, std::shared_ptr<BlockPool> plain,
               std::shared_ptr<SlicedBlockPool> sliced);

  const ManagerLayout layout;
  const ManagerPool pool;

  std::vector<Request> requests;
  std::vector<int64_t> quiet_until;  // by request
  std::vector<int32_t> unused_handles;
  /// With slices, the request that nobody may join, and whether it has not been freed since.
  std::optional<RequestHandle> alone;
  bool alone_starts_again = false;
  std::vector<Retained> retained;  // in the order in which they make way
  int64_t num_retained_ever = 0;
  PrefixCacheStats stats;
  SharedCounters counters;

  // Until taken, by group.
  std::vector<std::vector<BlockId>> new_block_ids;
  std::vector<std::vector<BlockCopy>> copies;
  std::vector<std::vector<BoundaryState>> boundary_states;
  /// Keys (hash and group) of states that this step caches.
  std::unordered_set<std::string> cached_this_step;

  NewBlocks new_blocks;
  /// All groups, in their order where events tell of it.
  std::vector<CommitBatch> commit_batches;

  // Memory that operations reuse.
  std::vector<BlockId> ids;
  std::vector<uint8_t> mask;
  std::vector<std::string_view> hash_views;
  FreedBlocks freed;
  std::vector<SliceDemand> demands;
  std::vector<int64_t> skipped;  // by set of groups alike
  std::vector<size_t> due;       // rows of a step
  uint64_t num_steps = 0;
  std::vector<uint64_t> last_step;  // that named a request
  std::vector<Growth> growths;      // by group
  std::vector<int64_t> lengths;     // by table

  // Requests.
  Request& request_of(RequestHandle handle);
  const GroupPolicy& group_of(size_t group) const;
  size_t hash_count(const Request& request) const {
    return request.hashes.size() / layout.hash_bytes;
  }
  /// The hash of the first `(i + 1) * hash_block_size` tokens.
  std::string_view hash_at(const Request& request, int64_t i) const {
    return {request.hashes.data() + static_cast<size_t>(i) * layout.hash_bytes, layout.hash_bytes};
  }
  Column column(Request& request, const GroupPolicy& group) { return {request, layout, group}; }

  // find_prefix.cpp
  void find_prefix(const Request& request, int64_t max_tokens, PrefixHit& hit) const;
  void find_prefix_for_connector(const Request& request, int64_t max_tokens, PrefixHit& hit) const;

  // allocate.cpp
  /// Stops with `kNoRoom` if the tables would grow by more than `most_new_blocks`.
  StepResult::Stop allocate(RequestHandle handle, const RequestTokens& tokens,
                            const Allocation& allocation, const PrefixHit* hit,
                            int64_t most_new_blocks = kNever);
  StepResult schedule(const DecodeStep& step, std::span<AppendedBlock> appended);
  /// Sets `due`: the rows of a step that have something to do. Throws for a row that is not right.
  void find_due(const DecodeStep& step);
  /// Lists the new blocks of the last allocation; returns how many.
  size_t append(int32_t row, RequestHandle handle, std::span<AppendedBlock> out);
  /// Blocks that an allocation takes off the pool's free ones.
  int64_t blocks_needed(Request& request, const CacheManager::Demand& demand, const PrefixHit* hit);
  std::optional<int64_t> blocks_to_append(const Request& request, int64_t num_computed,
                                          int64_t num_slots);
  /// Takes the blocks that a request lacks which takes over nothing: `lengths` has the tables', and
  /// with slices `demands` the groups'.
  void append_blocks(Request& request, int64_t num_blocks, bool frugal);
  /// With slices: sees to it that a request which does not fit is not kept waiting by where blocks
  /// lie.
  void make_way(RequestHandle handle);
  bool is_alone(RequestHandle handle) const { return alone == handle; }
  /// The fewest tokens with which an allocation has something to do again.
  int64_t next_need(Request& request, int64_t num_processed, int64_t num_cached_tokens);
  /// Throws for a hit that is not one of this manager's, or that the request cannot take over.
  void check_hit(const Request& request, const PrefixHit& hit) const;

  /// Asks for memory of a request that is `distance` requests ahead, at most `kAhead`.
  void prefetch(RequestHandle handle, int64_t num_computed, size_t distance) const;
  static constexpr size_t kAhead = 4;

  // commit.cpp
  void set_commit_batches();
  /// Caches what becomes full of the groups of a batch, which are as far as the first.
  void commit_full(Request& request, const CommitBatch& batch, int64_t num_computed);
  void commit(RequestHandle handle, Request& request, int64_t num_computed);
  /// Throws `InvalidArgument` if so many tokens fill blocks that the request does not have.
  void check_commit(Request& request, int64_t num_computed);
  /// Throws `InvalidArgument` if an aligned state is to be cached under a hash that is not there.
  void check_states(const Request& request, int64_t num_computed) const;
  /// Where the state lies that an aligned group caches with so many tokens computed; 0: nowhere.
  int64_t state_boundary(const Request& request, const GroupPolicy& group,
                         int64_t num_tokens) const;
  /// Blocks of the first `num_tokens` tokens that are full and hashed.
  int64_t num_full_blocks(const Request& request, const GroupPolicy& group,
                          int64_t num_tokens) const;
  static std::string step_key(std::string_view hash, size_t group);

  // hold.cpp
  void release_hold(Request& request);
  /// Holds what was found but the null block, which goes.
  void hold(std::vector<std::vector<BlockId>>& found);
  void release(const std::vector<std::vector<BlockId>>& held);
  /// Of the block, holders that are retained prefixes.
  int32_t num_retaining(size_t group, BlockId block) const;

  // fork.cpp, revert.cpp
  /// Throws `Unsupported` with a group whose states move while it runs.
  void refuse_states(const char* operation) const;

  // release.cpp
  void remove_skipped(Request& request, int64_t num_processed,
                      std::optional<int64_t> num_prompt_tokens);
  /// Forgets the blocks of a request, and gives them to `pop_group`, one group's after another, in
  /// the order of allocation.
  using PopGroup = std::function<void(PoolGroupId group, std::vector<BlockId>& ids)>;
  void pop_blocks(RequestHandle handle, Request& request, const PopGroup& pop_group);
};

/// Guards a public operation, and publishes the counters at its end.
class ManagerOperation : public OperationCheck {
 public:
  explicit ManagerOperation(ManagerState& state) : OperationCheck(state), state_(state) {}
  ~ManagerOperation() {
    const auto set = [](std::atomic<int64_t>& counter, size_t value) {
      counter.store(static_cast<int64_t>(value), std::memory_order_relaxed);
    };
    set(state_.counters.num_requests, state_.requests.size() - state_.unused_handles.size());
    set(state_.counters.num_free_blocks, static_cast<size_t>(state_.pool.num_free_blocks()));
    set(state_.counters.num_cached_hashes, static_cast<size_t>(state_.pool.num_cached_hashes()));
  }
  ManagerOperation(const ManagerOperation&) = delete;
  ManagerOperation& operator=(const ManagerOperation&) = delete;

 private:
  ManagerState& state_;
};

/// Throws `InvalidArgument` for a number of tokens or blocks that nothing has.
void check_count(const char* call, const char* name, int64_t value);
void check_tokens(const char* call, const RequestTokens& tokens);

/// Lets retained prefixes go, one after another, and holds them again if that was not enough.
class MakingWay {
 public:
  explicit MakingWay(ManagerState& state) : state_(state) {}
  MakingWay(const MakingWay&) = delete;
  MakingWay& operator=(const MakingWay&) = delete;
  ~MakingWay();

  /// Whether there was one to let go.
  bool next(bool even_pinned = false);
  void done();

 private:
  ManagerState& state_;
  size_t num_gone_ = 0;
};

}  // namespace kvplan::detail
