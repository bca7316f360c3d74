#include "block_pool/block_pool_state.h"
#include "block_pool/invariant.h"
#include "kvplan/block_pool.h"

namespace kvplan {

using detail::require;

namespace {

/// Blocks in the free list.
size_t check_free_list(const detail::BlockPoolState& s) {
  const detail::FreeRing& ring = s.free_ring;
  size_t length = 0;
  for (uint64_t position = ring.begin(); position < ring.end(); ++position) {
    const uint32_t id = ring.at(position);
    if (id == 0) continue;
    require(id < s.num_blocks, "the free list leaves the pool", id);
    require(ring.position_of(id) == position, "a block's place in the free list is another", id);
    require(s.records[id].is_free(), "a block in the free list is in use", id);
    ++length;
  }
  return length;
}

}  // namespace

void BlockPool::check_invariants() const {
  const detail::BlockPoolState& s = *state_;
  const size_t list_length = check_free_list(s);
  require(list_length == s.num_free, "the free count is not the free list's length", 0);

  size_t num_free = 0;
  size_t num_keys = 0;
  for (uint32_t id = 0; id < s.num_blocks; ++id) {
    const detail::BlockRecord& record = s.records[id];
    require(record.ref_count >= 0, "a reference count is negative", id);
    if (id == 0) {
      require(record.ref_count == 0 && !record.has_hash(), "the null block was used", id);
      continue;
    }
    num_free += record.is_free();
    const bool has_secondary = (record.key.flags & detail::BlockRecord::kHasSecondary) != 0;
    const auto secondary = s.secondary_keys_of.find(id);
    require(has_secondary == (secondary != s.secondary_keys_of.end()),
            "secondary keys and their flag disagree", id);
    require(record.has_hash() || !has_secondary, "secondary keys without a primary one", id);
    num_keys += record.has_hash();
    if (has_secondary) {
      num_keys += secondary->second.size();
      for (const uint32_t node : secondary->second) {
        require(s.block_at(node) == id, "a secondary key belongs to another block", id);
      }
    }
  }
  require(num_free == list_length, "a block without a holder is not in the free list", 0);

  s.check_index(num_keys);
}

}  // namespace kvplan
