#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "kvplan/cache_manager.h"
#include "kvplan/checked.h"

namespace kvplan::detail {

inline constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

constexpr int64_t floor_to(int64_t a, int64_t unit) { return a / unit * unit; }
constexpr int64_t ceil_to(int64_t a, int64_t unit) { return checked::cdiv(a, unit) * unit; }

/// A group of the manager as numbers that the operations read. What is written twice in vLLM's
/// classes, for one kind and for another, is a number here.
struct GroupPolicy {
  CacheKind kind{};
  int64_t block_size = 0;       // tokens, over all ranks
  int64_t spec_block_size = 0;  // tokens, on one rank

  // Tokens that nobody reads once n are computed: max(0, n + skip_bias) / skip_unit * skip_unit.
  int64_t skip_bias = -kNever / 2;
  int64_t skip_unit = 1;

  int64_t admission_cap = kNever;  // blocks that a request holds at most, windows recycled
  int64_t blocks_for_hit = 0;      // of a window, without EAGLE's
  int64_t window = 0;              // RSWA's
  bool prefix_cacheable = true;
  bool fine_grained = false;    // can be found at hash boundaries inside a block
  bool is_full = false;         // keeps everything: a prefix of a hit is a hit
  bool is_eagle_group = false;  // or every group is, where none is flagged
  bool use_eagle = false;       // matches one block more than it returns
  bool records_new = false;     // new blocks are to be zeroed
  bool mamba_align = false;
  bool covers_tokens = true;  // block i holds the tokens of block i
  int64_t num_speculative_blocks = 0;
  bool has_prefill_checkpoint = false;
  int64_t checkpoint_alignment = 0;
  size_t same_spec_as = 0;

  // Where the request's blocks are: column of a table that is shared with like groups.
  uint32_t table = 0;
  uint32_t column = 0;
  uint32_t state = 0;  // of an aligned Mamba group: index among those
  uint32_t alike = 0;  // index of its set in `ManagerLayout::alike`

  int64_t skipped_tokens(int64_t num_computed) const {
    const int64_t behind = num_computed + skip_bias;
    return behind <= 0 ? 0 : floor_to(behind, skip_unit);
  }
  int64_t skipped_blocks(int64_t num_computed) const {
    return skipped_tokens(num_computed) / block_size;
  }
  /// The fewest computed tokens with which so many blocks are skipped.
  int64_t computed_to_skip(int64_t num_blocks) const {
    if (skip_bias < -kNever / 4) return kNever;
    return ceil_to(num_blocks * block_size, skip_unit) - skip_bias;
  }
};

/// Groups with equal specs: found together or not at all. Mirrors
/// vllm/v1/core/kv_cache_coordinator.py::SpecGroup (0.33).
struct LookupClass {
  std::vector<PoolGroupId> groups;
  bool use_eagle = false;
};

/// Interleaved block tables of groups that always have equally many blocks.
struct TableShape {
  uint32_t num_columns = 0;
  int64_t block_size = 0;
};

/// Everything about the manager that never changes.
struct ManagerLayout {
  explicit ManagerLayout(const CacheManagerOptions& options);

  std::vector<GroupPolicy> groups;
  std::vector<LookupClass> lookups;  // full attention first
  std::vector<TableShape> tables;

  int64_t num_blocks = 0;
  int64_t max_model_len = 0;
  int64_t scheduler_block_size = 0;
  int64_t hash_block_size = 0;
  int64_t hit_alignment = 0;  // tokens
  size_t hash_bytes = 0;
  bool enable_caching = false;
  bool is_hybrid = false;  // several groups are looked up together
  bool partial_hits = false;
  bool drops_eagle_block = false;       // some group does
  bool drops_eagle_checkpoint = false;  // states follow EAGLE's replay boundary
  bool shared_prefix_checkpoint = false;
  bool has_mamba = false;
  uint32_t num_states = 0;      // aligned Mamba groups
  bool follows_tokens = false;  // every group has one block for each block of tokens
  /// Groups that differ in nothing but their blocks need something at the same time.
  std::vector<std::vector<size_t>> alike;
  bool needs_zeroing = false;
  int64_t num_reprefillable_tokens = 0;
  int64_t num_hash_lookahead_tokens = 0;
  int64_t watermark_blocks = 0;
  std::optional<int64_t> retention_interval;

  /// The group whose hit is every other's upper bound; none without full attention.
  std::optional<size_t> full_attention_group() const;
  int64_t hashes_per_block(const GroupPolicy& group) const {
    return group.block_size / hash_block_size;
  }
  /// Tokens of a prefix that may be hashed once so many are computed.
  int64_t cacheable_tokens(const GroupPolicy& group, int64_t num_computed) const;
  /// The fewest computed tokens with which so many can be hashed.
  int64_t computed_to_cache(const GroupPolicy& group, int64_t num_tokens) const;
  /// Tokens that a group with EAGLE matches past a hit before it drops them.
  int64_t eagle_margin(const GroupPolicy& group) const;
  /// The largest reusable boundary of a state within a prefill of so many tokens.
  /// Mirrors vllm/v1/kv_cache_interface.py::get_mamba_prefill_checkpoint_position (0.33).
  int64_t checkpoint_position(int64_t num_tokens, int64_t alignment) const;

 private:
  void set_sizes(const CacheManagerOptions& options);
  void set_groups(const CacheManagerOptions& options);
  void set_lookups(const CacheManagerOptions& options);
  void set_tables();
  void set_alike();
  void check(const CacheManagerOptions& options) const;
  int64_t align_cacheable(int64_t num_tokens) const {
    return partial_hits ? num_tokens : floor_to(num_tokens, scheduler_block_size);
  }
};

/// Which blocks a sparse group caches: those that a later request can continue from.
class Reachable {
 public:
  /// `boundaries`: tokens at which another request is known to resume. They must outlive this.
  Reachable(const ManagerLayout& layout, const GroupPolicy& group,
            std::span<const int64_t> boundaries);

  bool all() const { return all_; }
  bool operator()(int64_t block) const;

 private:
  bool ends_segment(int64_t block) const;

  const GroupPolicy& group_;
  std::span<const int64_t> boundaries_;
  int64_t alignment_;
  int64_t per_segment_ = 0;  // blocks; 0: segments are not kept
  int64_t need_ = 1;         // blocks that a hit reads
  int64_t shift_ = 0;        // of these, past the boundary
  bool all_ = false;
};

}  // namespace kvplan::detail
