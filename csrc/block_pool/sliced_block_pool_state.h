#pragma once

#include <optional>
#include <vector>

#include "block_pool/block_record.h"
#include "block_pool/large_block.h"
#include "block_pool/operation_check.h"
#include "block_pool/prefix_keys.h"
#include "block_pool/reuse_watchers.h"
#include "block_pool/slice_division.h"
#include "block_pool/zeroed_array.h"
#include "kvplan/sliced_block_pool.h"

namespace kvplan::detail {

/// The memory that the keys lie in comes before the keys.
struct SliceMemory {
  explicit SliceMemory(size_t num_records) : record_memory(num_records) {}
  ZeroedArray<BlockRecord> record_memory;
};

struct SlicedGroup {
  SlicedGroup(uint32_t slices, int64_t most_fragmented_)
      : division(slices), most_fragmented(most_fragmented_), roomy(slices), evictable(slices) {}
  uint32_t slices() const { return division.divisor(); }
  bool is_fragmented() const { return num_partly_free > most_fragmented; }

  SliceDivision division;
  /// Free slices in partly used blocks beyond which the group reuses them first.
  int64_t most_fragmented;
  /// Blocks with an empty slice and something else in use or cached.
  LargeBlockBuckets<&LargeBlock::roomy> roomy;
  /// Blocks partly in use that have cached free slices.
  LargeBlockBuckets<&LargeBlock::evictable> evictable;
  /// The same, longest unused first.
  LargeBlockList<&LargeBlock::age> aged;
  int64_t num_used = 0;
  int64_t num_partly_free = 0;  ///< slices not in use, in blocks partly in use
};

/// A slice of a group, found from its block id.
struct SliceRef {
  uint32_t large = 0;
  uint32_t slice = 0;
};

struct SlicedBlockPoolState final : SliceMemory, PrefixKeys, OperationState {
  SlicedBlockPoolState(uint32_t num_large_blocks, std::span<const int64_t> slices,
                       uint32_t most_slices, SlicedBlockPoolOptions options);

  const uint32_t num_large;
  const uint32_t records_per_large;  // of a slice: large * records_per_large + slice
  const bool enable_caching;
  ZeroedArray<LargeBlock> large_memory;
  LargeBlock* large;
  std::vector<SlicedGroup> groups;

  // The reserve: large blocks that were given back, and those that were never used.
  LargeBlockList<&LargeBlock::roomy> returned;
  uint32_t first_unused = 1;
  uint32_t num_reserve;
  /// Blocks with cached slices only, of all groups, longest unused first.
  LargeBlockList<&LargeBlock::age> aged_whole;
  uint32_t num_free_large;  ///< the reserve and `aged_whole`
  uint64_t clock = 0;
  ReuseWatchers<SlicedBlockPool::ReuseCallback> watchers;  // by record, which is `kWatched`

  uint32_t record_of(SliceRef ref) const { return ref.large * records_per_large + ref.slice; }
  BlockRecord& record_at(SliceRef ref) const { return records[record_of(ref)]; }
  SliceRef ref_of(const SlicedGroup& group, BlockId id) const {
    const uint32_t l = group.division.quotient(static_cast<uint32_t>(id));
    return {l, static_cast<uint32_t>(id) - l * group.slices()};
  }
  BlockId id_of_record(const SlicedGroup& group, uint32_t record) const {
    const uint32_t l = record / records_per_large;
    return static_cast<BlockId>(l * group.slices() + record % records_per_large);
  }
  BlockId block_id(uint16_t group, uint32_t record) const override {
    return id_of_record(groups[group], record);
  }
  bool owns(uint32_t group, uint32_t l) const {
    return large[l].is_owned && large[l].owner == group;
  }
  bool has_reserve() const { return num_reserve != 0; }

  /// Throws `InvalidArgument` for a group that the pool does not have.
  uint32_t checked_group(PoolGroupId group_id) const;
  /// Throws `BlockPoolError` for an id that is no block of the group; null is one.
  SliceRef checked_id(uint32_t group, BlockId id, const char* operation) const;
  /// As above, and for a block whose large block is not the group's.
  SliceRef checked_owned(uint32_t group, BlockId id, const char* operation) const;

  /// The record of a block that has a holder; 0 for the null block.
  uint32_t record_in_use(uint32_t group, BlockId id, const char* operation) const;

  /// The same for `cache_full`, whose groups have been checked.
  auto records_in_use(const char* operation) const {
    return [this, operation](PoolGroupId group_id, BlockId id) {
      return record_in_use(static_cast<uint32_t>(group_id), id, operation);
    };
  }

  // Changes of a large block lie between `open` and `close`, which keep lists and sums.
  void open(uint32_t l);
  /// `used`: it moves to the end of its age list.
  void close(uint32_t l, bool used);

  // Inside: one slice more or less.
  uint32_t take_empty(uint32_t l);
  uint32_t take_oldest_cached(uint32_t l);
  void take_cached(uint32_t l, uint32_t slice);
  void put_empty(uint32_t l, uint32_t slice);
  void put_cached(uint32_t l, uint32_t slice);

  uint32_t num_empty(uint32_t l) const {
    const LargeBlock& block = large[l];
    return groups[block.owner].slices() - block.num_used - block.num_cached;
  }

  // Allocation.
  int64_t large_blocks_needed(const SlicedGroup& group, int64_t num_new,
                              int64_t num_partly_free) const;
  /// Sums up what is wanted of each group, and what is free there once `found` is held. Returns the
  /// large blocks that are free then.
  int64_t count_demands(std::span<const SliceDemand> demands, const char* operation);
  /// Large blocks left if all demands were met; negative: as many are missing, up to 2^61.
  int64_t count_admission(std::span<const SliceDemand> demands, const char* operation);
  void check_touch(uint32_t group, std::span<const BlockId> blocks, const char* operation) const;
  void touch(uint32_t group, std::span<const BlockId> blocks);
  /// Takes one holder off each block. Throws, and takes none, if a block is not the group's or
  /// would be released too often.
  void release(uint32_t group, std::span<const BlockId> blocks, const char* operation,
               bool null_is_an_error);
  /// Undoes `release`.
  void hold_again(uint32_t group, std::span<const BlockId> blocks);
  /// After `release` of the same blocks: frees those that have lost their last holder, each where
  /// it lost it.
  void free_unheld(uint32_t group, std::span<const BlockId> blocks);
  /// Makes a cached slice empty that has lost what it was kept for.
  void settle(SliceRef ref);
  /// Fills `out`; may take large blocks as long as `num_others` stay free.
  void take(uint32_t group, std::span<BlockId> out, int64_t num_others);

  // Moving.
  /// Large blocks to be emptied, in the order of their groups.
  struct Vacancies {
    std::vector<uint32_t> large;
    int64_t num_moves = 0;
  };
  /// Large blocks that `make_room` has to empty at least; none if they cannot be found, whatever
  /// the options.
  std::optional<int64_t> count_vacancies(std::span<const SliceDemand> demands,
                                         const MoveOptions& options, const char* operation);
  /// Which ones; none if moving does not help.
  std::optional<Vacancies> plan_moves(std::span<const SliceDemand> demands,
                                      const MoveOptions& options, const char* operation);
  /// Empties large blocks of one group, and leaves in each source the destination as `next_link`.
  void vacate(std::span<const uint32_t> vacated, std::vector<SliceMove>& moves);
  /// Where `vacate` has put a block.
  BlockId moved(uint32_t group, BlockId id) const;
  /// Unpinned slices that `vacate` would drop.
  std::vector<SliceRef> watched_and_dropped(std::span<const uint32_t> vacated) const;

  // Reuse of unpinned slices. The pool is in order when anybody is told.
  /// Nobody watches the slice any more; who did is told by `tell_reused`.
  void unwatch(SliceRef ref);
  /// Calls all callbacks, then passes on what the first failing one threw.
  void tell_reused();

 private:
  /// Where the next block comes from; it may be the large block of another group, to be emptied.
  struct Source {
    enum class Kind { kEmpty, kCached, kReserve, kWhole };
    Kind kind;
    uint32_t large = 0;
  };
  Source choose_source(const SlicedGroup& group, size_t num_wanted, bool may_take_large) const;
  void hand_out(uint32_t l, std::span<BlockId> out, bool from_cached);
  /// Forgets the contents of a slice that is no longer in the list of cached ones.
  void give_up(SliceRef ref);
  uint32_t take_reserve(uint32_t group);
  void empty_whole(uint32_t l);
  void unlist(uint32_t l);
  /// Free slices of a group's own that the demands being counted do not need.
  int64_t num_spare(uint32_t g) const { return admission_free_[g] - admission_new_[g]; }
  void move_slice(SliceRef from, SliceRef to);

  std::vector<int64_t> admission_new_;   // by group, during an admission
  std::vector<int64_t> admission_free_;  // by group, during an admission

  struct Reuse {
    PoolGroupId group_id{};
    BlockId block = 0;
    SlicedBlockPool::ReuseCallback on_reuse;
  };
  std::vector<Reuse> reused_;  // not told yet

  friend class kvplan::SlicedBlockPool;
};

}  // namespace kvplan::detail
