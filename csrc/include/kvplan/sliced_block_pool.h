#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kvplan/block_pool.h"
#include "kvplan/export.h"

namespace kvplan {

namespace detail {
struct SlicedBlockPoolState;
}

struct SlicedBlockPoolOptions {
  bool enable_caching = true;  ///< off: a block that nobody holds any more loses its hash
  bool enable_events = false;  ///< queue `BlockPoolEvent`s for `take_events`
  int64_t max_events = BlockPoolOptions{}.max_events;  ///< as for `BlockPool`
  /// Share of the pool, once the reserve is empty: a group with more bytes than that free in its
  /// partly used large blocks reuses what is cached there before it empties another large block.
  /// The smaller, the fuller the pool gets; the larger, the longer the prefix cache remembers. 1:
  /// by age only.
  double own_first_above = 1.0 / 16;
};

/// What one request wants of one group.
struct SliceDemand {
  PoolGroupId group_id{};
  std::span<const BlockId> found{};  ///< blocks of the prefix cache to hold, as `touch` does
  int64_t num_new = 0;               ///< new blocks besides
};

/// Contents that change their block: what is at `source` belongs at `destination`.
struct SliceMove {
  PoolGroupId group_id{};
  BlockId source = 0;
  BlockId destination = 0;

  friend bool operator==(const SliceMove&, const SliceMove&) = default;
};

/// Blocks of one group.
struct GroupBlocks {
  PoolGroupId group_id{};
  std::span<const BlockId> blocks{};
};

struct MoveOptions {
  int64_t max_moves = INT64_MAX;
  /// Blocks that must stay where they are, e.g. since a transfer reads or writes them; their whole
  /// large blocks stay.
  std::span<const GroupBlocks> pinned{};
};

/// Hands out the blocks of a plan with `grouping="sliced"`, and finds them by hash.
///
/// The pool has N large blocks. Group g cuts a large block into k_g slices, which are its blocks:
/// block `large_id * k_g + slice` of group g. A large block belongs to one group at a time, from
/// its first slice in use until no slice is in use and none is cached; then it is back in the
/// reserve that all groups share. Large block 0 is the null block of every group: block 0 is null,
/// and blocks 1 to k_g - 1 do not exist.
///
/// New blocks come, in this order, from
/// 1. whole free large blocks, as many as the call's blocks of the group fill: blocks that are
///    asked for together are mostly freed together;
/// 2. an empty slice of the group's large block that has most slices in use (and an empty one);
/// 3. the reserve;
/// 4. what is cached and in nobody's use: the slices of the group's own large blocks that are
///    partly in use, or a large block of any group that is in nobody's use, which is emptied as a
///    whole. The large block whose newest use lies furthest back goes first. But a group that has
///    more than `own_first_above` of the pool free in its partly used large blocks reuses its own
///    cached slices first, those of the fullest large block before the others.
///
/// A use of a large block is a slice that is freed or found, or the first one taken beside cached
/// ones that nobody uses; a slice in use is never evicted. What `unpin_blocks` released counts as
/// cached, with or without a hash.
///
/// With one group that cuts nothing this is `BlockPool`, whose rules are vLLM's, but for three: a
/// free block that loses its hashes is empty and comes before anything cached, where `BlockPool`
/// leaves it in its place; what was unpinned is kept whoever releases it last; and without caching
/// a hash goes with the last holder. Which empty block comes next may differ.
///
/// Every operation either completes or throws `BlockPoolError` / `InvalidArgument` and changes
/// nothing, also when only the last of many ids is bad. Allocation, release and lookup are O(1) a
/// block (emptying a large block costs its slices, each once), admission is O(groups); nothing
/// scans. Memory: 64 bytes a large block and 32 for each of its slices in the group with most
/// slices, taken at first use, and with caching hashes and index as in `BlockPool`.
///
/// Free slices that lie scattered over a group's large blocks are no use to other groups.
/// `make_room` moves slices together until whole large blocks are free; the caller copies.
///
/// One writer, as for `BlockPool`. Events are those of `BlockPool`; a move is none.
class KVPLAN_API SlicedBlockPool {
 public:
  /// Called with a block that `unpin_blocks` released, when its contents are given up.
  using ReuseCallback = std::function<void(PoolGroupId, BlockId)>;

  /// `num_large_blocks` includes the null block. `slices` has k_g for each group g.
  SlicedBlockPool(int64_t num_large_blocks, std::span<const int64_t> slices,
                  SlicedBlockPoolOptions options = {});
  ~SlicedBlockPool();
  SlicedBlockPool(SlicedBlockPool&&) noexcept;
  SlicedBlockPool& operator=(SlicedBlockPool&&) noexcept;
  SlicedBlockPool(const SlicedBlockPool&) = delete;
  SlicedBlockPool& operator=(const SlicedBlockPool&) = delete;

  int64_t num_large_blocks() const noexcept;
  int64_t num_groups() const noexcept;
  /// k_g.
  int64_t slices(PoolGroupId group_id) const;
  /// Ids of the group: N * k_g, the null block's among them.
  int64_t num_blocks(PoolGroupId group_id) const;
  /// Large blocks without a slice in use: in the reserve, or with cached slices only.
  int64_t num_free_large_blocks() const noexcept;
  /// The reserve: large blocks that hold nothing. While there are some, nothing cached is evicted
  /// for new blocks, but by `frugal` allocations.
  int64_t num_empty_large_blocks() const noexcept;
  /// Blocks that the group could get if no other group took any.
  int64_t num_free_blocks(PoolGroupId group_id) const;
  int64_t num_used_blocks(PoolGroupId group_id) const;
  /// The group that a large block belongs to; none in the reserve and for large block 0.
  std::optional<PoolGroupId> owner(int64_t large_id) const;
  /// Share of the large blocks with a slice in use, the null block not counted.
  double usage() const noexcept;
  /// Share of the pool's bytes in slices in use, the null block not counted: what the requests
  /// hold. The difference to `usage()` is what lies in large blocks that are partly in use.
  double slice_usage() const noexcept;
  bool enable_caching() const noexcept;
  bool enable_events() const noexcept;
  /// Bytes reserved for records of slices and large blocks, hash index and secondary keys.
  int64_t memory_bytes() const noexcept;

  // Admission. A group may come in several demands; blocks in `found` are held first.

  /// Whether `allocate` would succeed. Exact. O(groups + blocks found).
  bool can_allocate(std::span<const SliceDemand> demands) const;
  /// Large blocks that `allocate` would take off `num_free_large_blocks()`, also if it would fail:
  /// those that hold what was found and that nobody uses, and for each group as many as its new
  /// blocks fill beyond the free slices of its partly used ones. Exact up to 2^61 blocks of a
  /// group.
  int64_t num_large_blocks_needed(std::span<const SliceDemand> demands) const;

  // Allocation.

  /// Holds what was found and takes the new blocks of all demands, or nothing of either. `out`
  /// has the new blocks demand by demand. `frugal`: takes no large block beyond
  /// `num_large_blocks_needed`, that is, goes on with 2 and the group's own cached slices (4)
  /// before 1 and 3. A group that only ever took blocks so, in a pool that was empty, holds
  /// ceil(most blocks it ever held / k_g) large blocks at most.
  void allocate(std::span<const SliceDemand> demands, std::span<BlockId> out, bool frugal = false);
  /// Takes new blocks, all of `out` or none.
  void get_new_blocks(PoolGroupId group_id, std::span<BlockId> out);
  std::vector<BlockId> get_new_blocks(PoolGroupId group_id, int64_t num_blocks);
  /// One more holder for each block, which must have a holder or a hash, or be unpinned. Null
  /// blocks are skipped.
  void touch(PoolGroupId group_id, std::span<const BlockId> blocks);
  /// One holder less for each block; in a large block, cached slices that become free are evicted
  /// in the order in which they were freed. Null blocks are skipped.
  void free_blocks(PoolGroupId group_id, std::span<const BlockId> blocks);
  /// As above for one group after another, but all or none.
  void free_blocks(std::span<const GroupBlocks> batches);
  /// Like `free_blocks`, but the contents stay as long as those of cached blocks do, and `on_reuse`
  /// is called when they are given up: for another block, for moves, or as the prefix cache is
  /// reset. No null blocks. A block that moves takes its callbacks along; one that is unpinned
  /// again has every callback called.
  ///
  /// The callback comes before the operation that gives the block up returns, so before anything
  /// can be written there. It may call the pool. What it throws is passed on once all are told;
  /// then `allocate` and `get_new_blocks` have taken nothing, and `make_room` has moved nothing,
  /// but what was given up for them is gone.
  void unpin_blocks(PoolGroupId group_id, std::span<const BlockId> blocks, ReuseCallback on_reuse);

  // Moving. For when `can_allocate` says no: `make_room`, then the copies, then `allocate`.

  /// Large blocks that would be free if each group's slices were moved together: those that are
  /// free, and `num_free / k_g` of each group whose partly used ones have `num_free` free slices.
  int64_t num_free_large_blocks_after_moves() const noexcept;
  /// Whether `make_room` would succeed. Exact; O(groups + blocks found) without `options`.
  bool can_make_room(std::span<const SliceDemand> demands, const MoveOptions& options = {}) const;
  /// Makes `allocate(demands)` possible by emptying large blocks: what is in use there moves to
  /// free slices of the group's other partly used large blocks, with its holders and hashes;
  /// what is cached there and in nobody's use is dropped. Returns the moves by group; none if the
  /// demands fit already. `std::nullopt`, and nothing happens, if moving does not make them fit,
  /// or takes more than `max_moves`.
  ///
  /// As few large blocks as possible are emptied, and those with the fewest bytes in use. Moves go
  /// to the fullest large block with an empty slice, else in place of the cached slices used
  /// longest ago. Blocks in `found` may move, but are not dropped; this is a use of them.
  ///
  /// The pool knows only the new ids from here on. The caller
  /// 1. writes destination for source wherever it keeps ids of the group: block tables, and
  ///    `found` before it goes to `allocate`;
  /// 2. copies the contents after all that was launched with the old ids, and before anything is
  ///    launched that writes blocks handed out from now on: on the stream of the kernels, that is
  ///    their order of launch. Until then the sources' bytes hold the only copy.
  ///
  /// In one list every source and every destination occurs once, and none is both: its copies may
  /// run in any order, or all at once. The copies of two lists must keep the lists' order.
  ///
  /// O(moves + blocks found and pinned + slices of a large block of each group), and for each large
  /// block emptied O(its slices + groups).
  std::optional<std::vector<SliceMove>> make_room(std::span<const SliceDemand> demands,
                                                  const MoveOptions& options = {});

  // Prefix cache.

  /// The block first cached under this hash in the group, if any.
  std::optional<BlockId> find(std::string_view hash, PoolGroupId group_id) const;
  /// One block for each group, or false if a group has none; `out` is then unspecified. `out` must
  /// have room for all.
  bool find_in_groups(std::string_view hash, std::span<const PoolGroupId> group_ids,
                      std::span<BlockId> out) const;
  /// Blocks of the longest prefix of `hashes` that is cached; returns how many of `out` it set.
  int64_t find_prefix(std::span<const std::string_view> hashes, PoolGroupId group_id,
                      std::span<BlockId> out) const;
  /// As `BlockPool::cache_full_blocks`; blocks must be in use.
  void cache_full_blocks(const FullBlocks& full);
  void cache_full_blocks(const FullBlocks& full, const FullBlockColumns& columns);
  /// As `BlockPool::cache_partial_block`; the block must be in use.
  bool cache_partial_block(const PartialBlock& partial);
  /// Re-points all hashes of `src` to `dst`, which must be in use and have none. No events. A free
  /// `src` becomes empty.
  void move_block_hashes(PoolGroupId group_id, BlockId src, BlockId dst);
  /// Drops the hashes of the blocks. Free ones become empty, unless they were unpinned.
  void evict_blocks(PoolGroupId group_id, std::span<const BlockId> blocks);
  /// Forgets everything cached. False, and nothing happens, while a block is in use.
  bool reset_prefix_cache();
  /// As `BlockPool::emit_stored_event`.
  void emit_stored_event(std::span<const std::string_view> hashes, int64_t block_size,
                         PoolGroupId group_id);
  std::vector<BlockPoolEvent> take_events();
  bool has_events() const noexcept;

  // State of one block, for observers. An id whose large block is another group's is refused
  // only by the operations above; here such a block is free and has no hash.

  int32_t ref_count(PoolGroupId group_id, BlockId block) const;
  bool is_free(PoolGroupId group_id, BlockId block) const;
  /// A view into the pool: valid until the pool is changed. Empty if the block has none.
  std::string_view block_hash(PoolGroupId group_id, BlockId block) const;
  std::optional<int64_t> block_hash_num_tokens(PoolGroupId group_id, BlockId block) const;
  /// Distinct hashes in the prefix cache, of all groups.
  int64_t num_cached_hashes() const noexcept;

  /// Throws `BlockPoolError` if counts, lists, hash index and slices contradict each other.
  /// O(slices).
  void check_invariants() const;

 private:
  std::unique_ptr<detail::SlicedBlockPoolState> state_;
};

}  // namespace kvplan
