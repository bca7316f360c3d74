#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvplan/errors.h"
#include "kvplan/export.h"

namespace kvplan {

namespace detail {
struct BlockPoolState;
}

/// Index of a block in its pool. Block 0 is the null block. Signed 32-bit because block tables are.
using BlockId = int32_t;

/// Index of a KV cache group; a distinct type, so that it is never mistaken for a block.
enum class PoolGroupId : uint16_t {};

inline constexpr BlockId kNullBlock = 0;
/// Longest block hash in bytes, the group id not counted: SHA-256.
inline constexpr size_t kMaxBlockHashBytes = 32;

/// Something an observer of the prefix cache must know, in the order it happened.
struct BlockPoolEvent {
  enum class Kind : uint8_t {
    kStored,   ///< `hashes` became reachable, in the order of the request's blocks
    kRemoved,  ///< `hashes` (exactly one) no longer leads to `blocks[0]`
    kCleared,  ///< the whole prefix cache was reset
    kLost,     ///< `num_lost` events that nobody took were dropped here to keep the queue's bound
  };
  Kind kind = Kind::kCleared;
  PoolGroupId group_id{};
  int64_t block_size = 0;  ///< tokens per hash; kRemoved: as the group's blocks were stored last
  std::vector<std::string> hashes{};         ///< without the group id
  std::optional<std::string> parent_hash{};  ///< the hash before `hashes[0]` (kStored)
  std::vector<BlockId> blocks{};             ///< one per hash
  /// One per hash, in units of `block_size` from the request's start (kStored): they have gaps
  /// where a mask left blocks out.
  std::vector<int64_t> positions{};
  int64_t first = 0;  ///< what became full, masked blocks included: [first, end) in the same units
  int64_t end = 0;
  bool still_cached = false;  ///< the hash leads to another block now (kRemoved)
  int64_t num_lost = 0;

  friend bool operator==(const BlockPoolEvent&, const BlockPoolEvent&) = default;
};

struct BlockPoolOptions {
  bool enable_caching = true;  ///< off: freed blocks are reused last in, first out, hashed or not
  bool enable_events = false;  ///< queue `BlockPoolEvent`s for `take_events`
  /// Events that the queue holds at most, 1 or more. One more drops them all for one `kLost`.
  int64_t max_events = 100'000;
  bool log_uses = false;  ///< note every `BlockUse` for `take_uses`, without a bound
};

/// What residency metrics follow: a block was handed out, found by a further holder, or lost its
/// hashes other than by being handed out.
struct BlockUse {
  enum class Kind : uint8_t { kTaken, kTouched, kEvicted };
  Kind kind = Kind::kTaken;
  BlockId block = kNullBlock;
  friend bool operator==(const BlockUse&, const BlockUse&) = default;
};

/// Blocks of one request that became full and shall be found by their hashes.
struct FullBlocks {
  /// The newly full ones, in the order of the request. Of one that comes twice the later hash
  /// counts.
  std::span<const BlockId> blocks{};
  std::span<const std::string_view> hashes{};  ///< one per block
  int64_t first_block = 0;                     ///< index of `blocks[0]` within the request
  int64_t block_size = 0;                      ///< tokens per block
  PoolGroupId group_id{};
  std::string_view parent_hash{};   ///< hash of the block before `blocks[0]`; empty for the first
  std::span<const uint8_t> mask{};  ///< empty, or one per block: 0 leaves the block out
};

/// Full blocks of groups that share their hashes, in interleaved block tables: block i of group j
/// is `blocks[i * stride + columns[j]]`.
struct FullBlockColumns {
  const BlockId* blocks = nullptr;
  size_t stride = 1;
  std::span<const PoolGroupId> groups{};
  std::span<const uint32_t> columns{};  ///< one per group

  BlockId at(size_t i, size_t j) const noexcept { return blocks[i * stride + columns[j]]; }
};

/// A prefix boundary inside a block that shall be found by its hash.
struct PartialBlock {
  BlockId block = kNullBlock;
  std::string_view hash{};
  int64_t num_tokens = 0;  ///< tokens of the prefix up to the boundary
  int64_t hash_block_size = 0;
  PoolGroupId group_id{};
  std::string_view parent_hash{};  ///< hash one hash block earlier; empty for the first
  bool replace_existing = false;   ///< the content was replaced: drop every entry of the block
};

/// Hands out the blocks of the KV cache, and finds blocks by the hash of the prefix they hold.
///
/// Order of allocation, eviction and events mirror vllm/v1/core/block_pool.py::BlockPool (0.33).
/// Every operation either completes or throws `BlockPoolError` / `InvalidArgument` and changes
/// nothing, also when only the last of many ids is bad. Allocation, release and lookup are O(1) a
/// block; construction does not touch the blocks. A block costs 40 to 48 bytes, with caching 8
/// bytes for each slot of a hash index that is at most 3/4 full, and a cached hash 40 bytes and 4
/// for each group.
///
/// One writer: calls must not overlap, and there are no locks. A build with KVPLAN_CHECKS throws
/// when a second thread enters, and verifies the invariants after each operation.
class KVPLAN_API BlockPool {
 public:
  /// Called with a block that `unpin_blocks` released, before it holds anything else.
  using ReuseCallback = std::function<void(BlockId)>;

  /// `num_blocks` includes the null block, which is never handed out.
  explicit BlockPool(int64_t num_blocks, BlockPoolOptions options = {});
  ~BlockPool();
  BlockPool(BlockPool&&) noexcept;
  BlockPool& operator=(BlockPool&&) noexcept;
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  int64_t num_blocks() const noexcept;
  int64_t num_free_blocks() const noexcept;
  /// Share of the blocks in use, the null block not counted; 0 for a pool of one block.
  double usage() const noexcept;
  bool enable_caching() const noexcept;
  bool enable_events() const noexcept;
  /// Bytes this pool has reserved: block records, hash index, secondary keys.
  int64_t memory_bytes() const noexcept;

  // Allocation.

  /// Called by `get_new_blocks` with the blocks whose cached contents it is about to give up, in
  /// the order of eviction, while they still have their hashes: to write them elsewhere. It may
  /// read the pool and not change it; what it throws is passed on, and nothing has changed. Null:
  /// nobody is told.
  using EvictionHook = std::function<void(std::span<const BlockId>)>;
  void set_eviction_hook(EvictionHook on_eviction);
  /// Takes the next free blocks, all of `out` or none, and forgets what they cached.
  void get_new_blocks(std::span<BlockId> out);
  std::vector<BlockId> get_new_blocks(int64_t num_blocks);
  /// One more holder for each block; a free block leaves the free list. Null blocks are skipped.
  void touch(std::span<const BlockId> blocks);
  /// One holder less for each block. Blocks that nobody holds any more become free in the order
  /// given: without a hash at the front of the free list, with a hash at its back. Null blocks are
  /// skipped.
  void free_blocks(std::span<const BlockId> blocks);
  /// As `free_blocks` for one batch after another, but all or none: batch i ends before
  /// `blocks[ends[i]]`, the last one with `blocks`.
  void free_batches(std::span<const BlockId> blocks, std::span<const size_t> ends);
  /// Like `free_blocks`, but the blocks go to the back in any case, and `on_reuse` is called when
  /// `get_new_blocks` hands one of them out or the prefix cache is reset. A block that is unpinned
  /// again before that has every callback called, in their order. No null blocks.
  void unpin_blocks(std::span<const BlockId> blocks, ReuseCallback on_reuse);
  /// Asks for the memory of blocks that are soon to be cached, touched or freed.
  void prefetch(std::span<const BlockId> blocks) const noexcept;
  /// Sets the holders of a block in use: `count` and the present count must be positive.
  void set_ref_count(BlockId block, int64_t count);

  // Prefix cache.

  /// The block first cached under this hash, if any.
  std::optional<BlockId> find(std::string_view hash, PoolGroupId group_id) const;
  /// One block for each group, or false if a group has none; `out` is then unspecified. `out` must
  /// have room for all.
  bool find_in_groups(std::string_view hash, std::span<const PoolGroupId> group_ids,
                      std::span<BlockId> out) const;
  /// Blocks of the longest prefix of `hashes` that is cached; returns how many of `out` it set.
  int64_t find_prefix(std::span<const std::string_view> hashes, PoolGroupId group_id,
                      std::span<BlockId> out) const;
  /// Makes full blocks reachable. Null and masked-out blocks are skipped. A block may already have
  /// a hash only if that covers fewer tokens (a partial block that was filled); it is replaced.
  void cache_full_blocks(const FullBlocks& full);
  /// As above for one group after another, all or none. Blocks and group of `full` are not read,
  /// and the mask holds for each group.
  void cache_full_blocks(const FullBlocks& full, const FullBlockColumns& columns);
  /// Makes a boundary inside a block reachable, in addition to hashes that cover more tokens, and
  /// in place of those that cover fewer. Returns false and changes nothing for the null block.
  bool cache_partial_block(const PartialBlock& partial);
  /// Adds a hash to a block as it is. `num_tokens`: tokens of the prefix it covers, if known.
  void insert_hash(BlockId block, std::string_view hash, PoolGroupId group_id,
                   std::optional<int64_t> num_tokens);
  /// Re-points all hashes of `src` to `dst`, which must have none. No events.
  void move_block_hashes(BlockId src, BlockId dst);
  /// Drops all hashes of a block; returns how many there were.
  int64_t evict_block(BlockId block);
  void evict_blocks(std::span<const BlockId> blocks);
  /// Drops all hashes of a block without an event and returns them, the primary one first.
  struct CachedHash {
    std::string hash;
    PoolGroupId group_id{};
    friend bool operator==(const CachedHash&, const CachedHash&) = default;
  };
  std::vector<CachedHash> remove_hashes(BlockId block);
  /// Forgets everything cached. False, and nothing happens, while a block is in use.
  bool reset_prefix_cache();
  /// Queues a stored event, where events are enabled, for the first blocks of a request that are
  /// cached already.
  void emit_stored_event(std::span<const std::string_view> hashes, int64_t block_size,
                         PoolGroupId group_id);
  std::vector<BlockPoolEvent> take_events();
  bool has_events() const noexcept;
  std::vector<BlockUse> take_uses();

  // State of one block, for observers.

  int32_t ref_count(BlockId block) const;
  bool is_free(BlockId block) const;
  bool has_hash(BlockId block) const;
  /// A view into the pool: valid until the pool is changed. Empty if the block has none.
  std::string_view block_hash(BlockId block) const;
  std::optional<PoolGroupId> block_hash_group(BlockId block) const;
  std::optional<int64_t> block_hash_num_tokens(BlockId block) const;
  /// The hashes besides the primary one, oldest first.
  std::vector<CachedHash> secondary_hashes(BlockId block) const;
  /// Whether the hash leads (also) to this block.
  bool has_key(BlockId block, std::string_view hash, PoolGroupId group_id) const;
  /// Distinct hashes in the prefix cache.
  int64_t num_cached_hashes() const noexcept;
  /// Free blocks in the order in which they will be handed out.
  std::vector<BlockId> free_block_ids() const;
  /// Neighbours in the free list; nullopt at its ends and for a block that is not free.
  std::optional<BlockId> next_free(BlockId block) const;
  std::optional<BlockId> prev_free(BlockId block) const;
  std::optional<BlockId> first_free() const;

  // The free list itself, for code that manages blocks without holders.

  /// Takes a free block out of the list; it stays without a holder until it is put back.
  void detach_free(BlockId block);
  void attach_free_front(std::span<const BlockId> blocks);
  void attach_free_back(std::span<const BlockId> blocks);

  /// Throws `BlockPoolError` if free count, free list, reference counts, hash index and blocks
  /// contradict each other. O(num_blocks).
  void check_invariants() const;

 private:
  std::unique_ptr<detail::BlockPoolState> state_;
};

/// A hash of the prefix cache and the block it leads to.
struct SavedHash {
  BlockId block = kNullBlock;
  PoolGroupId group_id{};
  std::optional<int64_t> num_tokens{};
  std::string hash{};
  friend bool operator==(const SavedHash&, const SavedHash&) = default;
};
/// The prefix cache of a pool, to be restored while the blocks' memory is as it was: the block that
/// is evicted first comes first, blocks in use last.
KVPLAN_API std::vector<SavedHash> save_prefix_cache(const BlockPool& pool);
/// Puts it into a pool without blocks in use or cached; throws `BlockPoolError` for another, or for
/// a block that it does not have, and changes nothing. No events.
KVPLAN_API void restore_prefix_cache(BlockPool& pool, std::span<const SavedHash> saved);

}  // namespace kvplan
