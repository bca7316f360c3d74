#pragma once

#include <cstdint>
#include <optional>

#include "kvplan/cache_manager.h"

namespace kvplan::detail {

/// Ends prefill chunks where aligned Mamba states are to be cached.
/// Mirrors vllm/v1/core/sched/scheduler.py::Scheduler._mamba_block_aligned_split (0.33).
class MambaSplit {
 public:
  struct Limits {
    int64_t block_size;          ///< `cache_config.block_size`
    int64_t max_prefill_tokens;  ///< of one chunk
  };
  /// None where no group has aligned states.
  static std::optional<MambaSplit> make(const CacheManagerOptions& options,
                                        const CacheManager& manager, Limits limits);

  /// Tokens to schedule of `num_new` that begin with token `start`.
  int64_t clip(const RequestTokens& tokens, int64_t start, int64_t num_new) const;

 private:
  int64_t checkpoint(int64_t num_tokens, int64_t alignment) const;

  Limits limits_{};
  bool partial_hits_ = false;
  bool shared_prefix_checkpoint_ = false;
  bool drops_eagle_block_ = false;
  bool has_checkpoint_blocks_ = false;
  std::optional<int64_t> checkpoint_alignment_;
  int64_t hash_block_size_ = 1;
  int64_t scheduler_block_size_ = 1;
  int64_t num_hash_lookahead_tokens_ = 0;
};

}  // namespace kvplan::detail
