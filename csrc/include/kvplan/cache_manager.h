#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kvplan/block_pool.h"
#include "kvplan/export.h"
#include "kvplan/sliced_block_pool.h"
#include "kvplan/spec.h"

namespace kvplan {

namespace detail {
struct ManagerState;
}

/// A request that the manager knows: a small integer, reused after `remove_request`.
enum class RequestHandle : int32_t {};

/// What decides which blocks of a group are kept, found and freed.
enum class CacheKind : uint8_t {
  kFullAttention,  ///< keeps everything; with sinks, too
  kRSWA,           ///< full attention that frees what lies between the prompt and a window
  kSlidingWindow,  ///< keeps a window; MLA, too
  kChunkedLocal,   ///< keeps the chunk of the next token
  kMamba,          ///< keeps the last state
  kCrossAttention,
  kCircularBuffer,  ///< one block a request
};

/// A KV cache group as the manager sees it: a row of numbers.
struct CacheGroup {
  CacheKind kind = CacheKind::kFullAttention;
  int64_t block_size = 0;        ///< tokens of a block on one rank
  bool dcp_sharded = false;      ///< a block covers `block_size * dcp_world_size` tokens
  bool prefix_cacheable = true;  ///< blocks can be found by other requests
  bool is_eagle_group = false;
  bool is_zeroed = false;  ///< new blocks are reported where `needs_zeroing` is set
  int64_t window = 0;      ///< tokens: sliding window, attention chunk, or window of RSWA
  int64_t extra_retained_tokens = 0;  ///< kept behind a sliding window
  bool mamba_align = false;           ///< cache mode `align`; else `none` or `all`
  int64_t num_speculative_blocks = 0;
  int64_t num_prefill_checkpoint_blocks = 0;
  std::optional<int64_t> prefill_checkpoint_alignment;
  /// Groups with equal specs are looked up together: each names the first of them. None: alone.
  std::optional<size_t> same_spec_as;
  /// Blocks that the group cuts each block of the pool into. Where any group cuts, the pool is a
  /// `SlicedBlockPool`.
  int64_t slices = 1;
};

/// The group of a spec. Throws `Unsupported` for HiSparse, encoder-only and custom specs.
KVPLAN_API CacheGroup cache_group(const KVCacheSpec& spec, bool is_eagle_group = false);

// Arithmetic of a group by itself, as the manager does it. `dcp_world_size`: ranks that share the
// tokens of a block. They throw `InvalidArgument` for a group that no manager takes.

/// Tokens that nobody reads once so many are computed: whole blocks of them are freed. RSWA frees
/// behind the prompt, which this does not know of.
KVPLAN_API int64_t skipped_tokens(const CacheGroup& group, int64_t num_computed_tokens,
                                  int64_t dcp_world_size = 1);
/// Blocks that a request holds in a step that computes `num_new_tokens` after
/// `num_computed_tokens`, RSWA's gap included, an encoder's blocks not.
KVPLAN_API int64_t blocks_held(const CacheGroup& group, int64_t num_computed_tokens,
                               int64_t num_new_tokens, int64_t dcp_world_size = 1);
/// Blocks that a request reads which continues from a hit of `num_tokens` tokens, EAGLE's aside.
KVPLAN_API int64_t blocks_for_hit(const CacheGroup& group, int64_t num_tokens,
                                  int64_t dcp_world_size = 1);

struct CacheManagerOptions {
  std::vector<CacheGroup> groups;
  int64_t num_blocks = 0;  ///< of the pool, the null block included; with slices, large ones
  int64_t max_model_len = 0;
  /// Tokens: a multiple of every group's block, on which hits end. None: the least common multiple.
  std::optional<int64_t> scheduler_block_size;
  /// Tokens that one block hash adds. None: the greatest common divisor of the cacheable groups'
  /// blocks, where every Mamba group is in `align` mode; else the scheduler's block size.
  std::optional<int64_t> hash_block_size;
  std::optional<int64_t> max_in_flight_tokens;  ///< none: `max_model_len`
  bool enable_caching = true;
  bool use_eagle = false;
  int64_t num_hash_lookahead_tokens = 0;
  int64_t num_prefill_lookahead = 0;
  bool enable_events = false;
  int64_t dcp_world_size = 1;
  int64_t pcp_world_size = 1;
  double watermark = 0.0;  ///< share of the blocks that an admission leaves free
  bool enable_mamba_shared_prefix_checkpoint = false;
  /// Prefix cache of windows and states. None: everything that a hit can need; 0: only what a
  /// replay of the prompt needs; else also the end of each segment of so many tokens.
  std::optional<int64_t> retention_interval;
  bool needs_zeroing = false;
  int64_t hash_bytes = 32;  ///< of one block hash, at most `kMaxBlockHashBytes`
};

/// How long a prefix must be to be found.
struct HitUnit {
  int64_t tokens = 0;           ///< the length of a hit is a multiple of it
  int64_t shortest_prompt = 0;  ///< tokens of the shortest prompt that hits when it comes again
  /// Blocks that this prompt takes of each group when it comes first.
  std::vector<int64_t> blocks;
};

/// The hit unit of a manager with these options; none where nothing is cached, or where no prompt
/// is long enough. The number of blocks does not matter. A scheduler drops hits of no more than
/// `prefix_replay_tokens`, which it would compute again. Throws what `CacheManager` throws.
/// Mirrors vllm/v1/core/kv_cache_utils.py::resolve_cache_hit_alignment_tokens (0.33).
KVPLAN_API std::optional<HitUnit> hit_unit(CacheManagerOptions options,
                                           int64_t prefix_replay_tokens = 0);

/// What a prefix lookup found. Reuse one object: its memory is kept.
struct PrefixHit {
  int64_t num_tokens = 0;
  /// Where a shared prefix ends that a sparse group has not cached yet; 0: nowhere.
  int64_t shared_prefix_boundary = 0;
  bool diverged = false;                     ///< some group's hit is shorter (connectors)
  std::vector<std::vector<BlockId>> blocks;  ///< by group; null where a window needs none

  /// Whether no group has a block.
  KVPLAN_API bool empty() const noexcept;
};

/// A request as its scheduler sees it at the time of a call; vLLM's names.
struct RequestTokens {
  int64_t num_tokens = 0;           ///< prompt and outputs known so far
  int64_t num_prompt_tokens = 0;    ///< of these
  int64_t num_computed_tokens = 0;  ///< steps in flight included
  int64_t num_in_flight_tokens = 0;
  int64_t shared_prefix_boundary = 0;  ///< the hit's, from when it was admitted
};

/// What `allocate` is to make room for. Arguments of vLLM's `allocate_slots`.
struct Allocation {
  int64_t num_new_tokens = 0;  ///< drafts included
  int64_t num_new_computed_tokens = 0;
  int64_t num_external_computed_tokens = 0;
  int64_t num_lookahead_tokens = 0;
  int64_t num_encoder_tokens = 0;
  int64_t reserved_blocks = 0;                      ///< left free for others
  bool delay_cache_blocks = false;                  ///< commit nothing yet
  bool full_sequence_must_fit = false;              ///< room for all `num_tokens`, windows recycled
  bool apply_watermark = false;                     ///< an admission beside running requests
  std::span<const uint16_t> skip_zeroing_groups{};  ///< an asynchronous load writes their blocks
};

struct BlockCopy {
  BlockId source = kNullBlock;
  BlockId destination = kNullBlock;
  int32_t group = 0;
  friend bool operator==(const BlockCopy&, const BlockCopy&) = default;
};

/// A state block that a connector can store under the prefix of `num_tokens` tokens.
struct BoundaryState {
  RequestHandle request{};
  uint16_t group = 0;
  BlockId block = kNullBlock;
  int64_t num_tokens = 0;
  friend bool operator==(const BoundaryState&, const BoundaryState&) = default;
};

/// Mirrors vllm/v1/metrics/stats.py::PrefixCacheStats (0.33).
struct PrefixCacheStats {
  bool reset = false;
  int64_t requests = 0;
  int64_t queries = 0;  ///< tokens
  int64_t hits = 0;     ///< tokens
  int64_t preempted_requests = 0;
  int64_t preempted_queries = 0;
  int64_t preempted_hits = 0;
  friend bool operator==(const PrefixCacheStats&, const PrefixCacheStats&) = default;
};

/// Numbers that any thread may read while another one calls the manager: each as of the end of some
/// call, not all of the same.
struct CacheManagerCounters {
  int64_t num_requests = 0;
  int64_t num_free_blocks = 0;
  int64_t num_cached_hashes = 0;
  int64_t num_queried_tokens = 0;  ///< of all lookups that were recorded, never reset
  int64_t num_hit_tokens = 0;      ///< of these
};

/// One decode step of many requests: arrays with an element a request. An empty array of new tokens
/// means one each, of tokens: computed and new ones, of tokens in flight: none. Prompt length and
/// shared prefix boundary are those of the request's last `allocate` or `commit`.
struct DecodeStep {
  std::span<const RequestHandle> requests;
  std::span<const int64_t> num_computed_tokens;
  std::span<const int64_t> num_new_tokens;
  std::span<const int64_t> num_tokens;
  std::span<const int64_t> num_in_flight_tokens;
  int64_t num_lookahead_tokens = 0;
};

/// A block that a step appended to a block table.
struct AppendedBlock {
  int32_t row = 0;  ///< index of the request in the step
  int32_t group = 0;
  int32_t position = 0;  ///< in the request's block table of this group
  BlockId block = kNullBlock;
  friend bool operator==(const AppendedBlock&, const AppendedBlock&) = default;
};

struct StepResult {
  enum class Stop : uint8_t {
    kDone,
    kNoBlocks,  ///< request `num_scheduled` does not fit into the pool
    kNoRoom,    ///< the blocks of request `num_scheduled` do not fit into `appended`
  };
  size_t num_scheduled = 0;  ///< requests before this index have their blocks
  size_t num_appended = 0;
  Stop stop = Stop::kDone;
};

/// How long a prefix stays when others lack blocks.
struct Retention {
  int64_t priority = 0;          ///< the lowest goes first, of equal ones the oldest
  std::optional<int64_t> until;  ///< when `expire_retained` lets it go, by the caller's clock
  bool pinned = false;           ///< it makes way for nobody
};

/// What `retain_prefix` keeps.
struct RetainedPrefix {
  int64_t id = 0;
  int64_t num_tokens = 0;
  Retention retention;
};

/// The block ids of one request and group: element i holds the tokens of the request's block i.
class BlockTableView {
 public:
  BlockTableView() = default;
  BlockTableView(const BlockId* first, size_t size, size_t stride)
      : first_(first), size_(size), stride_(stride) {}
  size_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }
  BlockId operator[](size_t i) const noexcept { return first_[i * stride_]; }
  /// Elements between one id and the next: the tables of groups with equal blocks are interleaved.
  size_t stride() const noexcept { return stride_; }
  const BlockId* data() const noexcept { return first_; }

 private:
  const BlockId* first_ = nullptr;
  size_t size_ = 0;
  size_t stride_ = 1;
};

/// Decides which blocks every request holds: prefix lookup over all groups, allocation, commit,
/// windows that free blocks, states, eviction.
///
/// vllm/v1/core/kv_cache_manager.py, kv_cache_coordinator.py and single_type_kv_cache_manager.py
/// (0.33) as one state machine: block ids, hits, order of eviction and events are theirs. HiSparse
/// groups are refused.
///
/// Members marked `noexcept` are queries or cannot fail. All others throw `InvalidArgument` for an
/// unknown handle or a bad number and `BlockPoolError` for a block that is not the request's, and
/// have changed nothing then. A request that does not fit is no error: `allocate` returns false,
/// `schedule` says where it stopped.
///
/// With slices, the pool's large blocks are counted: admission, watermark, `reserved_blocks` and
/// usage. All groups of a request get their blocks, or none does. A request that fits an empty pool
/// may find its blocks in more large blocks than they fill. So that it need not wait for ever,
/// `allocate` empties the prefix cache where nothing is in use and it does not fit; and a request
/// that does not fit although nobody else has blocks is to be freed, as when it is preempted: it
/// starts again in an emptied pool, and has it for itself until it ends (`starts_again`).
///
/// One writer: calls must not overlap, `counters` aside. In a step that crosses no block boundary
/// nothing is allocated on the heap.
class KVPLAN_API CacheManager {
 public:
  explicit CacheManager(const CacheManagerOptions& options);
  /// Takes its blocks from `pool`, whose size and caching are those of the options.
  CacheManager(const CacheManagerOptions& options, std::shared_ptr<BlockPool> pool);
  CacheManager(const CacheManagerOptions& options, std::shared_ptr<SlicedBlockPool> pool);
  ~CacheManager();
  CacheManager(CacheManager&&) noexcept;
  CacheManager& operator=(CacheManager&&) noexcept;
  CacheManager(const CacheManager&) = delete;
  CacheManager& operator=(const CacheManager&) = delete;

  size_t num_groups() const noexcept;
  /// Tokens of a group's block over all ranks.
  int64_t block_size(size_t group) const;
  int64_t scheduler_block_size() const noexcept;
  int64_t hash_block_size() const noexcept;
  size_t hash_bytes() const noexcept;  ///< of one block hash
  /// Tokens behind a block that its hash covers.
  int64_t num_hash_lookahead_tokens() const noexcept;
  /// Tokens that the length of a hit is a multiple of.
  int64_t hit_alignment() const noexcept;
  bool enable_partial_hits() const noexcept;
  bool mamba_shared_prefix_checkpoint() const noexcept;
  int64_t watermark_blocks() const noexcept;
  bool is_sliced() const noexcept;
  /// These throw `Unsupported` where the pool is the other one.
  BlockPool& pool();
  const BlockPool& pool() const;
  SlicedBlockPool& sliced_pool();
  const SlicedBlockPool& sliced_pool() const;
  std::shared_ptr<BlockPool> share_pool() const;
  std::shared_ptr<SlicedBlockPool> share_sliced_pool() const;
  /// Blocks of the pool, and those in nobody's use; with slices, large ones.
  int64_t num_blocks() const noexcept;
  int64_t num_free_blocks() const noexcept;
  /// Blocks of each group that are cached, in use or not. O(blocks).
  std::vector<int64_t> num_cached_blocks() const;

  // Requests and their hashes.

  RequestHandle add_request();
  /// Frees what the request holds, and forgets it.
  void remove_request(RequestHandle request);
  size_t num_requests() const noexcept;
  bool has_request(RequestHandle request) const noexcept;
  /// Block hashes of the request's next tokens, `hash_bytes` each: chained, so that a hash names
  /// the whole prefix.
  void append_hashes(RequestHandle request, std::span<const std::byte> hashes);
  /// Keeps the first `count` hashes.
  void truncate_hashes(RequestHandle request, int64_t count);
  int64_t num_hashes(RequestHandle request) const;

  // Prefix cache.

  /// The longest prefix of at most `max_tokens` tokens that every group can continue from; vLLM
  /// asks for one token less than the request has. Holds nothing: allocate before anything else
  /// takes blocks. Mirrors KVCacheManager.get_computed_blocks (0.33).
  void find_prefix(RequestHandle request, int64_t max_tokens, PrefixHit& hit) const;
  /// The full attention groups' own hit where a connector can supply the states that are missing.
  /// Mirrors KVCacheManager.get_computed_blocks_for_connector (0.33).
  void find_prefix_for_connector(RequestHandle request, int64_t max_tokens, PrefixHit& hit) const;
  /// As `find_prefix`, and holds what it found, so that other requests may take blocks before
  /// `allocate` takes the hit over. `release_hold`, `free` and `remove_request` let it go, a second
  /// call replaces it. The hit must be the request's first.
  void hold_prefix(RequestHandle request, int64_t max_tokens, PrefixHit& hit);
  void release_hold(RequestHandle request);
  /// Keeps what `find_prefix` finds after its requests have gone, for prefixes that come back:
  /// until `release_retained`, `expire_retained` or a reset of the prefix cache, and, if it is not
  /// pinned, until an `allocate` or a step fits only without it. Until then the blocks are in use:
  /// `num_free_blocks` and `usage` count them so. Returns an id, 0 where nothing is cached. Throws
  /// `Unsupported` with slices.
  int64_t retain_prefix(RequestHandle request, int64_t max_tokens, const Retention& retention);
  void release_retained(int64_t id);
  /// Lets go of what was kept until `now` or earlier; returns how many prefixes.
  size_t expire_retained(int64_t now);
  /// In the order in which they make way.
  std::vector<RetainedPrefix> retained_prefixes() const;
  /// Shortens a hit to `num_tokens`, a multiple of every block.
  void truncate_prefix(PrefixHit& hit, int64_t num_tokens) const;
  /// Stored events for the blocks of a hit, which are stored already.
  void emit_cached_block_events(RequestHandle request, const PrefixHit& hit);
  /// Counts a lookup.
  void record_prefix_cache_stats(int64_t num_tokens, int64_t num_hits, bool preempted);
  PrefixCacheStats take_prefix_cache_stats() noexcept;

  // Allocation.

  /// Drops what windows have left behind, takes over the hit's blocks, takes new ones, and commits
  /// what becomes full. False if the blocks do not fit; then nothing but the drop has happened
  /// (with slices, see above).
  /// Mirrors KVCacheManager.allocate_slots (0.33).
  bool allocate(RequestHandle request, const RequestTokens& tokens, const Allocation& allocation,
                const PrefixHit* hit = nullptr);
  /// The group's new blocks of the last `allocate` that returned true; valid until the next call.
  std::span<const BlockId> new_blocks(size_t group) const;
  /// Whether the last `allocate` that returned true took any.
  bool has_new_blocks() const noexcept;
  /// While computed, new and lookahead tokens are fewer than this, with nothing else asked for,
  /// `allocate` has nothing to do and returns no blocks, so it need not be called.
  int64_t quiet_until(RequestHandle request) const;
  /// With slices: whether the request is to be freed, to start again with the pool to itself.
  bool starts_again(RequestHandle request) const;
  /// One decode step: `allocate` for each request in order, until one does not fit. Bad numbers,
  /// unknown requests and one that is named twice are found before anything changes; a hash that is
  /// missing for an aligned state is found only when it is that request's turn.
  StepResult schedule(const DecodeStep& step, std::span<AppendedBlock> appended);
  /// Blocks that an allocation of so many tokens would take from the pool; more than the pool has
  /// where it must wait for the next step. `num_tokens` includes lookahead, `num_tokens_main_model`
  /// does not. Mirrors KVCacheCoordinator.get_num_blocks_to_allocate (0.33).
  struct Demand {
    int64_t num_tokens = 0;
    int64_t num_tokens_main_model = 0;
    int64_t num_encoder_tokens = 0;
    int64_t total_computed_tokens = 0;
    int64_t num_local_computed_tokens = 0;
    int64_t prefill_end = 0;
    bool apply_admission_cap = false;
  };
  int64_t num_blocks_to_allocate(RequestHandle request, const Demand& demand,
                                 const PrefixHit* hit = nullptr);
  /// Makes what is full of the first `num_computed_tokens` tokens known to lookups.
  /// Mirrors KVCacheManager.cache_blocks (0.33).
  void commit(RequestHandle request, const RequestTokens& tokens, int64_t num_computed_tokens);

  /// A second request with the first `num_computed_tokens` tokens of `request` and their hashes.
  /// They share what neither writes any more: cached blocks, and full ones where nothing is cached.
  /// The others are copied (`take_copies`). None if the pool has no blocks for the copies. Throws
  /// `InvalidArgument` for tokens without blocks, and `Unsupported` with a Mamba group in `align`
  /// mode: its one state is that after the last step, which stands for no other number of tokens.
  std::optional<RequestHandle> fork(RequestHandle request, int64_t num_computed_tokens);

  // Release.

  /// Takes back what the request got and cached for tokens after the first `num_computed_tokens`:
  /// its steps after those did not happen. What windows have let go stays gone; throws
  /// `InvalidArgument` where that is needed again, and `Unsupported` with a Mamba group in `align`
  /// mode, whose state before those steps was written over. A request that took over a block which
  /// is forgotten here must be freed by its caller.
  void revert(RequestHandle request, int64_t num_computed_tokens);
  /// Frees what lies behind the windows of a request with so many processed tokens. RSWA frees the
  /// gap behind the prompt only where its length is given.
  void remove_skipped_blocks(RequestHandle request, int64_t num_processed_tokens,
                             std::optional<int64_t> num_prompt_tokens = {});
  /// Frees all blocks; the request stays known, with its hashes, and can be allocated again.
  void free(RequestHandle request);
  /// As above, but the blocks stay held: `out` has them in the order of allocation, to be given to
  /// `pool().free_blocks` in reverse. Throws `Unsupported` with slices.
  void pop_blocks_for_free(RequestHandle request, std::vector<BlockId>& out);
  /// Throws `Unsupported` with slices, where an id needs its group.
  void evict_blocks(std::span<const BlockId> blocks);
  void evict_blocks(size_t group, std::span<const BlockId> blocks);
  /// Forgets everything cached, what is retained, too. False, and nothing happens, while a block is
  /// in use by others.
  bool reset_prefix_cache();

  // State of a request.

  BlockTableView block_table(RequestHandle request, size_t group) const;
  /// Blocks of the group that hold the first `num_computed_tokens` tokens; all where the group's
  /// blocks do not follow the tokens.
  int64_t num_blocks_for_computed_tokens(RequestHandle request, size_t group,
                                         int64_t num_computed_tokens) const;
  /// Tokens of the prefix that every cacheable group has cached.
  int64_t estimate_cached_tokens(RequestHandle request) const;
  /// Leading blocks that all requests with blocks share, by group; 0 where it does not keep all.
  int64_t num_common_prefix_blocks(RequestHandle request, size_t group) const;

  // What a step has left to do.

  /// Forgets what this step has cached: states of this step cannot be read before the next.
  void new_step_starts() noexcept;
  /// Blocks to zero before use, group after group. Throws `Unsupported` with slices, where an id
  /// needs its group, unless there are none.
  std::vector<BlockId> take_new_block_ids();
  std::vector<BlockId> take_new_block_ids(size_t group);
  /// Reports blocks from `start_token` on, a multiple of every reported group's block, once more.
  void record_blocks_for_zeroing(RequestHandle request, int64_t start_token);
  /// Copies to make before the step runs. Both ends are held until `free_copies`.
  std::vector<BlockCopy> take_copies();
  void free_copies(std::span<const BlockCopy> copies);
  bool has_copies() const noexcept;
  std::vector<BoundaryState> take_boundary_states();
  /// States of a finished request that end at its last token.
  std::vector<BoundaryState> finalize_partial_tails(RequestHandle request,
                                                    int64_t num_computed_tokens,
                                                    int64_t num_in_flight_tokens);
  std::vector<BlockPoolEvent> take_events();
  double usage() const noexcept;
  /// For any thread. What is done to the pool alone counts with the manager's next call.
  CacheManagerCounters counters() const noexcept;

  /// Throws `BlockPoolError` if tables, pool and counters contradict each other.
  void check_invariants() const;

 private:
  std::unique_ptr<detail::ManagerState> state_;
};

}  // namespace kvplan
