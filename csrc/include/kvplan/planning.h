#pragma once

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kvplan/config.h"
#include "kvplan/export.h"
#include "kvplan/groups.h"
#include "kvplan/page_demand.h"

/// The steps of planning, each callable on its own. `plan()` in plan.h runs them all.
/// Every function mirrors the one of the same name in vllm/v1/core/kv_cache_planning.py (0.33).
namespace kvplan {

/// The chunk size d in [lower_bound, max(values)] that minimises the padding
/// `sum(ceil(x / d) * d - x)`; the largest such d. Takes time proportional to the square root of
/// the largest value. Throws `InvalidArgument` for no values or values below 1.
KVPLAN_API int64_t approximate_gcd(std::span<const int64_t> values, int64_t lower_bound = 1);

/// Whether all layers merge into one spec. A `InvalidArgument` of the merge (window sizes that
/// differ) goes through, as in vLLM.
KVPLAN_API bool is_kv_cache_spec_uniform(const PlanningContext& ctx, const LayerSpecs& layers);
/// Whether all layers need the same number of token slots: same block size, same DCP sharding, same
/// type. `layers` must not be empty.
KVPLAN_API bool is_uniform_type(const PlanningContext& ctx, const LayerSpecs& layers);
/// One group whose spec is the merge of all its layers' specs.
KVPLAN_API KVCacheGroup create_kv_cache_group(const PlanningContext& ctx, const LayerSpecs& layers);
/// One group with a spec for each layer.
KVPLAN_API KVCacheGroup create_uniform_type_group(LayerSpecs layers);

/// Makes all pages as large as the largest: block size scaled where the page divides it, page
/// padded for Mamba and for attention other than MLA. Throws `PageSizeError` where neither works.
KVPLAN_API LayerSpecs unify_kv_cache_spec_page_size(const PlanningContext& ctx,
                                                    const LayerSpecs& layers);
KVPLAN_API KVCacheGroups get_kv_cache_groups_uniform_page_size(const PlanningContext& ctx,
                                                               const LayerSpecs& layers);
/// No value where the layout is not block-outermost or one page size serves all layers.
KVPLAN_API std::optional<KVCacheGroups> get_packed_kv_cache_groups(const PlanningContext& ctx,
                                                                   KVCacheLayout layout,
                                                                   const LayerSpecs& layers);
/// Windowed layers as full attention layers, for allocation only. Throws `InvalidArgument` where
/// that does not make the layers one type.
KVPLAN_API LayerSpecs promote_local_kv_cache_specs(const PlanningContext& ctx,
                                                   const LayerSpecs& layers);
/// Changes `layers` in place.
KVPLAN_API void unify_hybrid_kv_cache_specs(const PlanningContext& ctx, LayerSpecs& layers);
KVPLAN_API std::optional<KVCacheGroups> try_get_full_allocation_fallback_groups(
    const PlanningContext& ctx, const LayerSpecs& layers);
/// Scales the groups' blocks until the common page holds one token of every hidden-state layer.
/// Returns the common page.
KVPLAN_API int64_t ensure_min_page_size(const PlanningContext& ctx, KVCacheGroups& groups,
                                        int64_t common_page, const LayerSpecs& hidden_layers);
/// Splits the model's layers into groups. `layers` is changed in place with
/// `disable_hybrid_kv_cache_manager`.
KVPLAN_API KVCacheGroups get_kv_cache_groups(const PlanningContext& ctx,
                                             const PlanningConfig& config, LayerSpecs& layers);

/// Throws `InconsistentSpec` unless every layer is in exactly one group.
KVPLAN_API void check_exact_partition(const PlanningContext& ctx, const KVCacheGroups& groups,
                                      const LayerSpecs& layers);
KVPLAN_API bool groups_partition_layers_exactly(const KVCacheGroups& groups,
                                                const LayerSpecs& layers);

/// vLLM 0.33's rule: a group with a draft layer is an EAGLE group.
KVPLAN_API void annotate_eagle_groups_by_is_draft(KVCacheGroups& groups, const PlanningContext& ctx,
                                                  const LayerSpecs& layers);
/// The rules before 0.33: the spec marker, then the group of the last registered layer.
KVPLAN_API void annotate_eagle_groups_by_marker(const PlanningContext& ctx, KVCacheGroups& groups,
                                                const LayerSpecs& layers, bool use_trailing_layer);
/// Whether the drafter's layers are those registered last.
KVPLAN_API bool uses_trailing_mtp_layers(const PlanningConfig& config);
KVPLAN_API void warn_if_unannotated_eagle_mamba(const PlanningContext& ctx,
                                                const PlanningConfig& config,
                                                const KVCacheGroups& groups);

/// The groups with only the layers that a worker owns; groups it owns whole are shared.
KVPLAN_API KVCacheGroups project_kv_cache_groups_to_worker(const PlanningContext& ctx,
                                                           const KVCacheGroups& groups,
                                                           const LayerSpecs& worker_layers);

/// Throws `LayoutError` where pages of several sizes need another layout.
KVPLAN_API void validate_kv_cache_layout(const PlanningContext& ctx, KVCacheLayout layout,
                                         const KVCacheGroups& groups);
/// What every slice of a pool block that is cut into several is aligned to, beside the stride
/// alignment of its layers: kernels load 16 bytes at once.
inline constexpr int64_t kSliceAlignment = 16;

/// Whether any group has several pages in a block of the pool.
KVPLAN_API bool is_sliced(const KVCacheGroups& groups);
/// Throws `InvalidArgument` for a number of slices out of range, `LayoutError` where the layout
/// cannot cut blocks into slices.
KVPLAN_API void validate_slices(KVCacheLayout layout, const KVCacheGroups& groups);

/// Bytes of one block of the pool: of the widest group. With slices, the smallest number that all
/// groups can cut into their slices, each as large as the group's pages and aligned.
KVPLAN_API int64_t get_kv_cache_bytes_per_block(const PlanningContext& ctx,
                                                const KVCacheGroups& groups, KVCacheLayout layout);
/// The same over the groups in device memory: what one block id takes from the pool.
KVPLAN_API int64_t pool_bytes_per_block(const PlanningContext& ctx, const KVCacheGroups& groups,
                                        KVCacheLayout layout);

/// Page demand of several groups together, evaluated at any length.
class KVPLAN_API RequestDemand {
 public:
  RequestDemand(const PlanningContext& ctx, const KVCacheGroups& groups,
                const PlanningConfig& config);
  /// Blocks of the pool that one request of `model_len` tokens holds in all device groups together;
  /// of a group with slices, whole blocks.
  int64_t total_blocks(int64_t model_len) const;

 private:
  struct Entry {
    std::vector<PageDemand> demands;  // of the members; the largest counts
    int64_t slices;
    int64_t count;  // groups with the same demands and slices
  };
  std::vector<Entry> entries_;
};

/// The members' demands of one group, without duplicates.
KVPLAN_API std::vector<PageDemand> group_demands(const PlanningContext& ctx,
                                                 const KVCacheGroup& group,
                                                 const PlanningConfig& config);
/// Pages of one request in a group: the largest of its demands.
KVPLAN_API int64_t pages(std::span<const PageDemand> demands, int64_t model_len);

KVPLAN_API int64_t max_memory_usage_bytes_from_groups(const PlanningContext& ctx,
                                                      const KVCacheGroups& groups,
                                                      const PlanningConfig& config,
                                                      int64_t bytes_per_block);
/// The longest length up to `max_model_len` whose pages fit into `available_bytes`; 0 if none does.
KVPLAN_API int64_t estimate_max_model_len(const RequestDemand& demand, int64_t bytes_per_block,
                                          int64_t available_bytes, int64_t max_model_len);

/// What auto-fit looks at: the groups of one worker and the bytes that its requests may take.
struct FitCandidate {
  const KVCacheGroups* groups;
  int64_t bytes_per_block;
  int64_t available_bytes;  ///< without the null block
  int64_t worker;
};
/// The longest length up to `config.max_model_len` with which one request fits every worker. Throws
/// `NotEnoughMemory` where not even one token fits.
KVPLAN_API int64_t auto_fit_max_model_len(const PlanningContext& ctx, const PlanningConfig& config,
                                          std::span<const FitCandidate> workers);

/// Where a set of same-shaped layers lies: layer l, block b at
/// `offset + l * layer_stride + b * block_stride`.
struct KVCacheTensor {
  int64_t size = 0;  ///< bytes of the backing allocation
  std::vector<LayerId> layers;
  int64_t layer_stride = 0;
  int64_t block_stride = 0;
  int64_t offset = 0;
};

/// Places the groups for exactly `num_blocks` blocks.
KVPLAN_API std::vector<KVCacheTensor> place_kv_cache_groups(const PlanningContext& ctx,
                                                            const PlanningConfig& config,
                                                            const KVCacheGroups& groups,
                                                            int64_t bytes_per_block,
                                                            int64_t num_blocks);

/// Consecutive TP ranks that hold identical KV for every layer.
KVPLAN_API int64_t kv_cache_groups_tp_replicas(const PlanningContext& ctx,
                                               const KVCacheGroups& groups, int64_t tp_size,
                                               int64_t dcp_size = 1);

/// The placement before layouts: layers at the same slot of a page size share one tensor, and a
/// block takes the sum over page sizes of page x slots.
/// Mirrors vllm/v1/core/kv_cache_utils.py::_bucket_layers_by_page_size (before 0.30).
struct SlotBucket {
  int64_t page_size_bytes;
  std::vector<std::vector<LayerId>> slots;
};
KVPLAN_API std::vector<SlotBucket> bucket_layers_by_page_size(const PlanningContext& ctx,
                                                              const KVCacheGroups& groups);
KVPLAN_API int64_t shared_slot_bytes_per_block(std::span<const SlotBucket> buckets);

/// Tokens between scheduler decisions, and tokens of a block hash.
/// Mirrors vllm/v1/core/kv_cache_utils.py::resolve_kv_cache_block_sizes (0.33).
struct BlockSizes {
  int64_t scheduler_block_size;
  int64_t hash_block_size;
};
KVPLAN_API BlockSizes resolve_kv_cache_block_sizes(const PlanningContext& ctx,
                                                   const PlanningConfig& config,
                                                   const KVCacheGroups& groups);

}  // namespace kvplan
