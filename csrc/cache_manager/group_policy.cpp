#include "cache_manager/group_policy.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "kvplan/checked.h"
#include "kvplan/errors.h"

namespace kvplan {

CacheGroup cache_group(const KVCacheSpec& spec, bool is_eagle_group) {
  CacheGroup group;
  group.block_size = spec.block_size;
  group.dcp_sharded = spec.dcp_sharded;
  group.prefix_cacheable = prefix_cacheable(spec);
  group.is_eagle_group = is_eagle_group;
  group.is_zeroed = is_attention(spec.kind);
  group.extra_retained_tokens = spec.extra_retained_tokens;
  switch (spec.kind) {
    case SpecKind::kSinkFullAttention:
      if (spec.sink_len.value_or(0) <= 0 || *spec.sink_len % spec.block_size != 0) {
        throw InvalidArgument("sink_len is a positive multiple of the block size " +
                              std::to_string(spec.block_size) + ", not " +
                              std::to_string(spec.sink_len.value_or(0)));
      }
      [[fallthrough]];
    case SpecKind::kFullAttention:
    case SpecKind::kMLAAttention:
    case SpecKind::kHiddenStateCache:
      break;
    case SpecKind::kRSWA:
      group.kind = CacheKind::kRSWA;
      group.window = spec.rswa_window.value_or(0);
      break;
    case SpecKind::kChunkedLocalAttention:
      group.kind = CacheKind::kChunkedLocal;
      group.window = spec.attention_chunk_size.value_or(0);
      break;
    case SpecKind::kSlidingWindow:
    case SpecKind::kSlidingWindowMLA:
      group.kind = CacheKind::kSlidingWindow;
      group.window = spec.sliding_window.value_or(0);
      break;
    case SpecKind::kCircularBuffer:
      group.kind = CacheKind::kCircularBuffer;
      group.is_zeroed = false;
      break;
    case SpecKind::kCrossAttention:
      group.kind = CacheKind::kCrossAttention;
      break;
    case SpecKind::kMamba:
      group.kind = CacheKind::kMamba;
      group.mamba_align = spec.mamba_cache_mode == "align";
      group.num_speculative_blocks = spec.num_speculative_blocks;
      group.num_prefill_checkpoint_blocks = spec.num_prefill_checkpoint_blocks;
      group.prefill_checkpoint_alignment = spec.prefill_checkpoint_alignment;
      break;
    default:
      throw Unsupported("the cache manager has no policy for a group of " +
                        std::string(class_name(spec.kind)));
  }
  return group;
}

bool PrefixHit::empty() const noexcept {
  return std::all_of(blocks.begin(), blocks.end(), [](const auto& ids) { return ids.empty(); });
}

namespace detail {
namespace {

constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max();

void check_range(const char* name, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return;
  throw InvalidArgument(std::string(name) + " is " + std::to_string(least) + " to " +
                        std::to_string(most) + ", not " + std::to_string(value));
}

bool is_full_attention(CacheKind kind) {
  return kind == CacheKind::kFullAttention || kind == CacheKind::kRSWA;
}
/// Kinds whose block tables have one block for each block of tokens.
bool follows_tokens(CacheKind kind) {
  return is_full_attention(kind) || kind == CacheKind::kSlidingWindow ||
         kind == CacheKind::kChunkedLocal;
}

std::string group_name(size_t i) { return "group " + std::to_string(i); }

}  // namespace

ManagerLayout::ManagerLayout(const CacheManagerOptions& options)
    : num_blocks(options.num_blocks),
      max_model_len(options.max_model_len),
      enable_caching(options.enable_caching),
      is_hybrid(options.enable_caching && options.groups.size() > 1),
      needs_zeroing(options.needs_zeroing),
      num_reprefillable_tokens(std::max<int64_t>(0, options.num_prefill_lookahead - 1)),
      num_hash_lookahead_tokens(options.num_hash_lookahead_tokens),
      retention_interval(options.retention_interval) {
  check_range("the number of groups", static_cast<int64_t>(options.groups.size()),
              options.enable_caching ? 1 : 0, std::numeric_limits<uint16_t>::max());
  check_range("num_blocks", num_blocks, 1, kMaxTokens);
  check_range("max_model_len", max_model_len, 1, kMaxTokens);
  check_range("dcp_world_size", options.dcp_world_size, 1, 1 << 16);
  check_range("pcp_world_size", options.pcp_world_size, 1, 1 << 16);
  check_range("num_prefill_lookahead", options.num_prefill_lookahead, 0, kMaxTokens);
  check_range("num_hash_lookahead_tokens", num_hash_lookahead_tokens, 0, kMaxTokens);
  check_range("retention_interval", retention_interval.value_or(0), 0, kMaxTokens);
  check_range("hash_bytes", options.hash_bytes, 1, kMaxBlockHashBytes);
  hash_bytes = static_cast<size_t>(options.hash_bytes);
  if (!(options.watermark >= 0.0 && options.watermark <= 1.0)) {
    throw InvalidArgument("watermark is a share of the blocks from 0 to 1, not " +
                          std::to_string(options.watermark));
  }
  watermark_blocks = static_cast<int64_t>(options.watermark * static_cast<double>(num_blocks));
  set_groups(options);
  set_sizes(options);
  set_lookups(options);
  set_tables();
  set_alike();
  check(options);
}

void ManagerLayout::set_groups(const CacheManagerOptions& options) {
  const int64_t in_flight = options.max_in_flight_tokens.value_or(max_model_len);
  check_range("max_in_flight_tokens", in_flight, 0, kMaxTokens);
  for (size_t i = 0; i < options.groups.size(); ++i) {
    const CacheGroup& from = options.groups[i];
    if (from.kind > CacheKind::kCircularBuffer) {
      throw InvalidArgument(group_name(i) + ": there is no kind " +
                            std::to_string(static_cast<int>(from.kind)));
    }
    check_range((group_name(i) + ": block_size").c_str(), from.block_size, 1, kMaxTokens);
    check_range((group_name(i) + ": slices").c_str(), from.slices, 1, kMaxTokens);
    check_range((group_name(i) + ": num_prefill_checkpoint_blocks").c_str(),
                from.num_prefill_checkpoint_blocks, 0, kMaxTokens);
    GroupPolicy group{.kind = from.kind, .spec_block_size = from.block_size};
    group.block_size = checked::mul(from.block_size, from.dcp_sharded ? options.dcp_world_size : 1,
                                    "tokens of a block over all ranks");
    check_range((group_name(i) + ": tokens of a block over all ranks").c_str(), group.block_size, 1,
                kMaxTokens);
    group.prefix_cacheable = from.prefix_cacheable;
    group.is_full = is_full_attention(from.kind);
    group.fine_grained = group.is_full || from.kind == CacheKind::kMamba;
    group.is_eagle_group = from.is_eagle_group;
    group.records_new = from.is_zeroed && options.needs_zeroing;
    group.covers_tokens = from.kind != CacheKind::kMamba && from.kind != CacheKind::kCrossAttention;
    group.same_spec_as = from.same_spec_as.value_or(i);
    if (group.same_spec_as > i) {
      throw InvalidArgument(group_name(i) + ": same_spec_as names an earlier group, not " +
                            std::to_string(group.same_spec_as));
    }
    switch (from.kind) {
      case CacheKind::kFullAttention:
      case CacheKind::kCrossAttention:
        break;
      case CacheKind::kCircularBuffer:
        group.prefix_cacheable = false;
        break;
      case CacheKind::kRSWA:
        check_range((group_name(i) + ": window").c_str(), from.window, 1, kMaxTokens);
        group.window = from.window;
        break;
      case CacheKind::kSlidingWindow: {
        check_range((group_name(i) + ": window").c_str(), from.window, 1, kMaxTokens);
        check_range((group_name(i) + ": extra_retained_tokens").c_str(), from.extra_retained_tokens,
                    0, kMaxTokens);
        group.skip_bias = 1 - from.window - from.extra_retained_tokens;
        group.blocks_for_hit = checked::cdiv(from.window - 1, group.block_size);
        const int64_t kept =
            std::min(from.window - 1 + from.extra_retained_tokens + in_flight, max_model_len);
        group.admission_cap = checked::cdiv(kept, from.block_size) + 1;
        break;
      }
      case CacheKind::kChunkedLocal:
        check_range((group_name(i) + ": window").c_str(), from.window, 1, kMaxTokens);
        group.skip_bias = 0;
        group.skip_unit = from.window;
        group.admission_cap =
            checked::cdiv(std::min(from.window + in_flight, max_model_len), from.block_size);
        break;
      case CacheKind::kMamba:
        group.skip_bias = -1;
        group.mamba_align = from.mamba_align;
        check_range((group_name(i) + ": num_speculative_blocks").c_str(),
                    from.num_speculative_blocks, 0, 1 << 16);
        group.num_speculative_blocks = from.num_speculative_blocks;
        group.has_prefill_checkpoint = from.mamba_align && from.num_prefill_checkpoint_blocks > 0 &&
                                       from.prefill_checkpoint_alignment.has_value();
        group.checkpoint_alignment = from.prefill_checkpoint_alignment.value_or(1);
        check_range((group_name(i) + ": prefill_checkpoint_alignment").c_str(),
                    group.checkpoint_alignment, 1, kMaxTokens);
        has_mamba = true;
        if (from.mamba_align) group.state = num_states++;
        if (enable_caching && !from.mamba_align) {
          throw Unsupported(group_name(i) +
                            ": prefix caching of Mamba states needs mamba_cache_mode='align'");
        }
        break;
    }
    groups.push_back(group);
  }
}

void ManagerLayout::set_sizes(const CacheManagerOptions& options) {
  int64_t lcm = 1;
  int64_t gcd = 0;
  for (const GroupPolicy& group : groups) {
    lcm = checked::lcm(lcm, group.block_size, "scheduler_block_size");
    if (group.prefix_cacheable) gcd = std::gcd(gcd, group.block_size);
  }
  scheduler_block_size = options.scheduler_block_size.value_or(lcm);
  check_range("scheduler_block_size", scheduler_block_size, 1, kMaxTokens);
  const bool aligned_states = std::all_of(groups.begin(), groups.end(), [](const GroupPolicy& g) {
    return g.kind != CacheKind::kMamba || g.mamba_align;
  });
  hash_block_size = options.hash_block_size.value_or(
      enable_caching && aligned_states && gcd != 0 ? gcd : scheduler_block_size);
  check_range("hash_block_size", hash_block_size, 1, kMaxTokens);
  if (scheduler_block_size % hash_block_size != 0) {
    throw InvalidArgument("scheduler_block_size " + std::to_string(scheduler_block_size) +
                          " is not a multiple of hash_block_size " +
                          std::to_string(hash_block_size));
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    if (scheduler_block_size % groups[i].spec_block_size != 0) {
      throw InvalidArgument("scheduler_block_size " + std::to_string(scheduler_block_size) +
                            " is not a multiple of the " +
                            std::to_string(groups[i].spec_block_size) + " tokens of a block of " +
                            group_name(i));
    }
    const bool is_hashed = enable_caching && (!is_hybrid || groups[i].prefix_cacheable);
    const bool fits = is_hybrid ? groups[i].block_size % hash_block_size == 0
                                : groups[i].block_size == hash_block_size;
    if (is_hashed && !fits) {
      throw InvalidArgument(group_name(i) + ": " + std::to_string(groups[i].block_size) +
                            " tokens of a block " +
                            (is_hybrid ? "are not a multiple of" : "differ from") +
                            " hash_block_size " + std::to_string(hash_block_size));
    }
  }
  const bool finer_states = std::any_of(groups.begin(), groups.end(), [&](const GroupPolicy& g) {
    return g.mamba_align && (options.dcp_world_size == 1 ? g.spec_block_size > hash_block_size
                                                         : g.spec_block_size >= hash_block_size);
  });
  partial_hits =
      is_hybrid && finer_states && std::all_of(groups.begin(), groups.end(), [&](const auto& g) {
        return !g.prefix_cacheable || g.fine_grained || g.block_size == hash_block_size;
      });
  hit_alignment = partial_hits ? hash_block_size : scheduler_block_size;
}

void ManagerLayout::set_lookups(const CacheManagerOptions& options) {
  bool any_eagle = std::any_of(groups.begin(), groups.end(),
                               [](const GroupPolicy& group) { return group.is_eagle_group; });
  if (options.use_eagle && !any_eagle) {
    any_eagle = !groups.empty();
    for (GroupPolicy& group : groups) group.is_eagle_group = true;
  }
  drops_eagle_block = options.use_eagle && any_eagle;
  drops_eagle_checkpoint = options.use_eagle;
  shared_prefix_checkpoint = options.enable_mamba_shared_prefix_checkpoint && any_eagle &&
                             partial_hits && num_reprefillable_tokens == 0;
  if (enable_caching && any_eagle && scheduler_block_size < options.num_prefill_lookahead) {
    throw InvalidArgument(
        "prefix caching with several speculative modules needs a "
        "scheduler_block_size, which is " +
        std::to_string(scheduler_block_size) + ", of num_prefill_lookahead = " +
        std::to_string(options.num_prefill_lookahead) + " or more");
  }
  if (!enable_caching) return;
  constexpr size_t kNone = SIZE_MAX;
  std::vector<size_t> class_of(groups.size(), kNone);
  for (size_t i = 0; i < groups.size(); ++i) {
    if (is_hybrid && !groups[i].prefix_cacheable) continue;
    size_t& lookup = class_of[groups[i].same_spec_as];
    if (lookup == kNone) {
      lookup = lookups.size();
      lookups.emplace_back();
    }
    lookups[lookup].groups.push_back(static_cast<PoolGroupId>(i));
    lookups[lookup].use_eagle |= drops_eagle_block && groups[i].is_eagle_group;
  }
  if (lookups.empty()) throw InvalidArgument("prefix caching needs a group that can be cached");
  std::stable_partition(lookups.begin(), lookups.end(), [&](const LookupClass& lookup) {
    return groups[static_cast<size_t>(lookup.groups[0])].is_full;
  });
  for (const LookupClass& lookup : lookups) {
    for (const PoolGroupId g : lookup.groups) {
      groups[static_cast<size_t>(g)].use_eagle = lookup.use_eagle;
    }
  }
}

void ManagerLayout::set_tables() {
  for (size_t i = 0; i < groups.size(); ++i) {
    GroupPolicy& group = groups[i];
    const auto like = std::find_if(
        groups.begin(), groups.begin() + static_cast<ptrdiff_t>(i), [&](const GroupPolicy& other) {
          return detail::follows_tokens(group.kind) && detail::follows_tokens(other.kind) &&
                 other.block_size == group.block_size;
        });
    if (like == groups.begin() + static_cast<ptrdiff_t>(i)) {
      group.table = static_cast<uint32_t>(tables.size());
      tables.push_back({.num_columns = 0, .block_size = group.block_size});
    } else {
      group.table = like->table;
    }
    group.column = tables[group.table].num_columns++;
  }
}

void ManagerLayout::set_alike() {
  follows_tokens = std::all_of(groups.begin(), groups.end(), [](const GroupPolicy& group) {
    return detail::follows_tokens(group.kind);
  });
  const auto are_alike = [](const GroupPolicy& a, const GroupPolicy& b) {
    return a.kind == b.kind && detail::follows_tokens(a.kind) && a.block_size == b.block_size &&
           a.skip_bias == b.skip_bias && a.skip_unit == b.skip_unit && a.window == b.window &&
           a.prefix_cacheable == b.prefix_cacheable && a.use_eagle == b.use_eagle &&
           a.blocks_for_hit == b.blocks_for_hit;
  };
  for (size_t i = 0; i < groups.size(); ++i) {
    const auto like = std::find_if(alike.begin(), alike.end(), [&](const std::vector<size_t>& set) {
      return are_alike(groups[set[0]], groups[i]);
    });
    groups[i].alike = static_cast<uint32_t>(like - alike.begin());
    if (like == alike.end()) {
      alike.push_back({i});
    } else {
      like->push_back(i);
    }
  }
}

void ManagerLayout::check(const CacheManagerOptions& options) const {
  bool any_sparse = false;
  for (size_t i = 0; i < groups.size(); ++i) {
    const GroupPolicy& group = groups[i];
    const bool is_sharded = options.groups[i].dcp_sharded;
    any_sparse |= group.kind == CacheKind::kSlidingWindow || group.kind == CacheKind::kMamba;
    if (!enable_caching) continue;
    if (group.kind == CacheKind::kCrossAttention) {
      throw Unsupported(group_name(i) + ": prefix caching with cross attention");
    }
    if (options.dcp_world_size > 1 && is_sharded && !group.is_full) {
      throw Unsupported(group_name(i) + ": context parallelism (dcp_world_size " +
                        std::to_string(options.dcp_world_size) +
                        ") shards full attention alone where prefixes are cached");
    }
    if (options.pcp_world_size > 1 && !group.is_full &&
        (!is_hybrid || is_sharded || group.kind == CacheKind::kMamba)) {
      throw Unsupported(group_name(i) + ": pcp_world_size " +
                        std::to_string(options.pcp_world_size) +
                        " takes full attention and replicated draft groups alone");
    }
    if (group.kind == CacheKind::kChunkedLocal) {
      const int64_t alignment = is_hybrid ? hit_alignment : group.block_size;
      if (group.spec_block_size != alignment) {
        throw Unsupported(group_name(i) +
                          ": hits of chunked local attention end on its blocks of " +
                          std::to_string(group.spec_block_size) + " tokens, not on " +
                          std::to_string(alignment) + "; use one block size for all groups");
      }
      if (group.use_eagle) {
        throw Unsupported(group_name(i) + ": EAGLE with chunked local attention");
      }
    }
  }
  if (!retention_interval) return;
  if (!any_sparse) {
    if (*retention_interval == 0) return;
    throw InvalidArgument(
        "retention_interval is for groups with a sliding window or a Mamba "
        "state, and there are none; leave it unset or 0");
  }
  if (*retention_interval % scheduler_block_size != 0) {
    throw InvalidArgument("retention_interval " + std::to_string(*retention_interval) +
                          " is not a multiple of scheduler_block_size " +
                          std::to_string(scheduler_block_size));
  }
}

std::optional<size_t> ManagerLayout::full_attention_group() const {
  const size_t first = static_cast<size_t>(lookups[0].groups[0]);
  return groups[first].is_full ? std::optional(first) : std::nullopt;
}

int64_t ManagerLayout::cacheable_tokens(const GroupPolicy& group, int64_t num_computed) const {
  const int64_t finalized = std::max<int64_t>(0, num_computed - num_reprefillable_tokens);
  if (!is_hybrid) return finalized;
  const int64_t aligned = align_cacheable(num_computed);
  if (!group.use_eagle || aligned == 0) return aligned;
  return std::min(finalized, align_cacheable(finalized) + group.block_size);
}

int64_t ManagerLayout::computed_to_cache(const GroupPolicy& group, int64_t num_tokens) const {
  if (!is_hybrid) return num_tokens + num_reprefillable_tokens;
  const int64_t unit = partial_hits ? 1 : scheduler_block_size;
  if (!group.use_eagle) return ceil_to(num_tokens, unit);
  const int64_t finalized =
      std::max(num_tokens, ceil_to(std::max<int64_t>(0, num_tokens - group.block_size), unit));
  return std::max(finalized + num_reprefillable_tokens, unit);
}

int64_t ManagerLayout::eagle_margin(const GroupPolicy& group) const {
  const bool drops_hash_unit =
      partial_hits && group.fine_grained && group.block_size > hash_block_size;
  return drops_hash_unit ? hash_block_size : group.block_size;
}

int64_t ManagerLayout::checkpoint_position(int64_t num_tokens, int64_t alignment) const {
  const int64_t limit = drops_eagle_checkpoint
                            ? num_tokens
                            : num_tokens - std::max<int64_t>(1, num_hash_lookahead_tokens);
  if (limit <= 0) return 0;
  return std::max<int64_t>(0,
                           floor_to(limit, alignment) - (drops_eagle_checkpoint ? alignment : 0));
}

Reachable::Reachable(const ManagerLayout& layout, const GroupPolicy& group,
                     std::span<const int64_t> boundaries)
    : group_(group), boundaries_(boundaries), alignment_(layout.hit_alignment) {
  const std::optional<int64_t>& interval = layout.retention_interval;
  if (group.kind == CacheKind::kMamba) {
    if (interval && *interval != 0) per_segment_ = *interval / group.block_size;
    all_ = !interval || (*interval != 0 && per_segment_ <= 1);
    return;
  }
  if (group.kind != CacheKind::kSlidingWindow || alignment_ % group.block_size != 0) {
    all_ = true;
    return;
  }
  shift_ = group.use_eagle ? 1 : 0;
  need_ = group.blocks_for_hit + shift_;
  per_segment_ = interval.value_or(alignment_) / group.block_size;
  all_ = per_segment_ != 0 && need_ >= per_segment_;
  if (!interval) boundaries_ = {};
}

bool Reachable::ends_segment(int64_t block) const {
  if (per_segment_ == 0) return false;
  if (group_.kind == CacheKind::kMamba) return (block + 1) % per_segment_ == 0;
  return block >= shift_ && (block - shift_) % per_segment_ >= per_segment_ - need_;
}

bool Reachable::operator()(int64_t block) const {
  if (all_ || ends_segment(block)) return true;
  for (const int64_t boundary : boundaries_) {
    if (boundary < 0) continue;
    const int64_t end = floor_to(boundary, alignment_) / group_.block_size + shift_;
    if (block < end && block >= end - need_) return true;
  }
  return false;
}

}  // namespace detail
}  // namespace kvplan
