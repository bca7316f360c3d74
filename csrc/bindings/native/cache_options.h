#pragma once

#include <tuple>

#include "bindings/native/keyword.h"
#include "kvplan/cache_manager.h"

namespace kvplan::bindings {

/// The options of a cache manager beside its groups, by their names in Python.
inline constexpr auto kCacheOptions = std::tuple(
    RequiredKeyword{"num_blocks", &CacheManagerOptions::num_blocks},
    RequiredKeyword{"max_model_len", &CacheManagerOptions::max_model_len},
    Keyword{"scheduler_block_size", &CacheManagerOptions::scheduler_block_size},
    Keyword{"hash_block_size", &CacheManagerOptions::hash_block_size},
    Keyword{"max_in_flight_tokens", &CacheManagerOptions::max_in_flight_tokens},
    Keyword{"enable_caching", &CacheManagerOptions::enable_caching},
    Keyword{"use_eagle", &CacheManagerOptions::use_eagle},
    Keyword{"num_hash_lookahead_tokens", &CacheManagerOptions::num_hash_lookahead_tokens},
    Keyword{"num_prefill_lookahead", &CacheManagerOptions::num_prefill_lookahead},
    Keyword{"enable_events", &CacheManagerOptions::enable_events},
    Keyword{"dcp_world_size", &CacheManagerOptions::dcp_world_size},
    Keyword{"pcp_world_size", &CacheManagerOptions::pcp_world_size},
    Keyword{"watermark", &CacheManagerOptions::watermark},
    Keyword{"enable_mamba_shared_prefix_checkpoint",
            &CacheManagerOptions::enable_mamba_shared_prefix_checkpoint},
    Keyword{"retention_interval", &CacheManagerOptions::retention_interval},
    Keyword{"needs_zeroing", &CacheManagerOptions::needs_zeroing},
    Keyword{"hash_bytes", &CacheManagerOptions::hash_bytes});

}  // namespace kvplan::bindings
