#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "kvplan/planning.h"
#include "planning/regroup/packing.h"

namespace kvplan::compact {

/// The layers of a pipeline stage are packed by themselves, since a group takes from every stage
/// only the bytes of the layers that the stage owns.
struct StagedLayer {
  LayerSpec layer;
  size_t stage;
};

/// Layers of one block size: any of them may share a group.
struct Part {
  int64_t pages = 0;         ///< that a request of the reference length holds in one group
  std::vector<Items> items;  ///< of every stage
  int64_t largest_item = 0;  ///< what a group must hold in any case
};

/// One choice of a block size for every spec of a bucket.
struct BlockOption {
  std::vector<SpecId> specs;     ///< parallel to `Bucket::specs`
  std::vector<int64_t> bytes;    ///< of one layer in one block, parallel to `Bucket::specs`
  std::vector<size_t> part_of;   ///< index into `parts`, parallel to `Bucket::specs`
  std::vector<Part> parts;       ///< one for each block size
  int64_t largest_item = 0;      ///< of all parts
  int64_t stride_alignment = 1;  ///< of the block, in bytes
};

/// Layers that may share a block table if their blocks hold equally many tokens.
struct Bucket {
  std::vector<SpecId> specs;  ///< distinct
  /// Of every stage, in order of registration; `second` is an index into `specs`.
  std::vector<std::vector<std::pair<LayerId, size_t>>> stages;
  std::vector<BlockOption> options;
  bool splittable = true;  ///< whether it may be spread over several groups
};

/// Layers of every kind, by what their block tables need. With `split_drafts`, the drafter's layers
/// need not stay in one group.
std::vector<Bucket> make_buckets(PlanningContext ctx, const PlanningConfig& config,
                                 const std::vector<StagedLayer>& layers, size_t num_stages,
                                 bool split_drafts);

/// Fills in the options, given what each spec may become. False if there are too many of them and
/// only those were kept that change all specs alike.
bool set_options(PlanningContext ctx, const PlanningConfig& config, Bucket& bucket,
                 const std::vector<std::vector<KVCacheSpec>>& choices);

}  // namespace kvplan::compact
