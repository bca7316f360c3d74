#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvplan/export.h"
#include "kvplan/layout.h"
#include "kvplan/types.h"

/// An independent check of a finished placement. It knows the contract of a KV cache, not how the
/// planner arrives at one: numbers in, broken rules out. Nothing is thrown for a bad placement.
namespace kvplan {

struct Plan;

/// A rule of the contract.
enum class Rule : uint8_t {
  kNumbers,         ///< counts and sizes are in their range
  kOverflow,        ///< every address fits into 64 bits
  kOneGroup,        ///< each layer of a worker is in exactly one group, and no other layer is
  kOneTensor,       ///< each layer of a worker is in exactly one tensor, and no other layer is
  kOneShape,        ///< the layers of a tensor have one page shape and one group
  kInsideBuffer,    ///< every page lies inside the buffer
  kPagesDisjoint,   ///< no two (layer, block) pages of a group share a byte
  kBlocksDisjoint,  ///< no two pages of different blocks share a byte, whatever their groups
  kAlignedStride,   ///< block strides are multiples of the stride alignment of their layers
  kEqualSizes,      ///< all tensors of a worker are backed by its one buffer
  kBudget,          ///< the buffer is no larger than the worker's memory
  kNoGaps,          ///< pages lie side by side; without slices the widest group fills a block
  kWorkersAgree,    ///< block count, group count and group specs are the same on all workers
};
KVPLAN_API std::string_view to_string(Rule rule);

/// A broken rule.
struct Violation {
  Rule rule;
  size_t worker;
  std::string message;
};

/// One page of a layer as numbers: `heads` x `states` x `content_bytes`, padded to `page_bytes`.
struct PageShape {
  int64_t heads = 1;
  int64_t states = 1;
  int64_t content_bytes = 0;     ///< of one state of one head, K and V together
  int64_t page_bytes = 0;        ///< with padding
  int64_t stride_alignment = 1;  ///< the block stride is a multiple of this many bytes
  bool operator==(const PageShape&) const = default;
};

/// A worker's memory, as plain data.
struct CheckedWorker {
  struct Layer {
    LayerId id;
    PageShape page;
  };
  struct Group {
    std::vector<LayerId> layers;  ///< the worker's share; empty where it owns none
    /// Equal numbers mean equal specs. Groups with a spec for each layer compare by
    /// `block_size` alone, since a pipeline stage holds only its own layers' specs.
    std::optional<int64_t> spec;
    int64_t block_size = 0;
    bool is_eagle_group = false;
    bool host_resident = false;  ///< lies in another buffer than the device's
    int64_t slices = 1;          ///< pages of the group in one block of the pool
  };
  struct Tensor {
    int64_t size = 0;
    std::vector<LayerId> layers;
    int64_t layer_stride = 0;
    int64_t block_stride = 0;
    int64_t offset = 0;
  };
  std::vector<Layer> layers;
  int64_t num_blocks = 0;
  int64_t buffer_bytes = 0;
  std::optional<int64_t> available_bytes;
  std::vector<Group> groups;
  std::vector<Tensor> tensors;
};

struct CheckedPlacement {
  KVCacheLayout layout = KVCacheLayout::kLBNHC;
  std::vector<CheckedWorker> workers;
  std::vector<std::string_view> layer_names;  ///< by `LayerId`, for messages; may be empty
  bool no_gaps = true;                        ///< check `Rule::kNoGaps`
  /// Tensors and groups may name layers that the worker does not own (vLLM 0.33 does that for a
  /// pipeline stage without layers of a group). Such tensors are left out of the check.
  bool allow_foreign_layers = false;
};

/// The first broken rules of each worker, at most `max_violations` in all; empty for a correct
/// placement. Time grows like pages of one block x log: the number of blocks does not matter.
KVPLAN_API std::vector<Violation> check(const CheckedPlacement& placement,
                                        size_t max_violations = 16);

/// The same for a plan; one worker of each pipeline stage stands for its TP ranks.
KVPLAN_API std::vector<Violation> check(const Plan& plan, size_t max_violations = 16);

}  // namespace kvplan
