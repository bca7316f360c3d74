#include "kvplan/check.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <unordered_map>

#include "check/page_overlap.h"
#include "check/page_runs.h"
#include "check/violations.h"

namespace kvplan {
namespace checking {
namespace {

/// Layer ids may be sparse, and those of a broken placement anything.
class LayerIndex {
 public:
  explicit LayerIndex(const std::vector<CheckedWorker::Layer>& layers) {
    index_.reserve(layers.size());
    for (size_t i = 0; i < layers.size(); ++i) {
      unique_ = index_.emplace(layers[i].id, i).second && unique_;
    }
  }
  std::optional<size_t> find(LayerId id) const {
    const auto it = index_.find(id);
    return it == index_.end() ? std::nullopt : std::optional<size_t>(it->second);
  }
  bool unique() const { return unique_; }

 private:
  std::unordered_map<LayerId, size_t> index_;
  bool unique_ = true;
};

class WorkerCheck {
 public:
  WorkerCheck(const CheckedPlacement& placement, size_t index, Violations& violations)
      : placement_(placement),
        worker_(placement.workers[index]),
        index_(index),
        violations_(violations),
        layers_(worker_.layers),
        group_of_(worker_.layers.size(), -1),
        tensor_of_(worker_.layers.size(), -1) {}

  void run() {
    if (!check_numbers()) return;
    assign_groups();
    assign_tensors();
    for (const TensorRuns& t : runs_) check_stride(t);
    // Overlap and gaps are about pages that exist and lie inside the buffer.
    if (!all_inside_ || !positive_strides_) return;
    const bool disjoint = check_overlap(worker_, index_, device_runs(), violations_);
    if (disjoint && placement_.no_gaps && complete_) check_gaps();
  }

 private:
  void broken(Rule rule, std::string message) { violations_.add(rule, index_, std::move(message)); }

  bool check_numbers() {
    const auto require = [&](bool ok, const std::string& what, int64_t value) {
      if (!ok) broken(Rule::kNumbers, what + " is " + std::to_string(value));
      return ok;
    };
    bool ok = require(worker_.num_blocks >= 1, "num_blocks", worker_.num_blocks);
    ok = require(worker_.buffer_bytes >= 0, "the buffer's size in bytes", worker_.buffer_bytes) &&
         ok;
    for (const auto& l : worker_.layers) {
      const PageShape& p = l.page;
      const std::string of = " of " + violations_.name(l.id);
      ok = require(p.page_bytes >= 1, "page_bytes" + of, p.page_bytes) && ok;
      ok = require(p.heads >= 1, "heads" + of, p.heads) && ok;
      ok = require(p.states >= 1, "states" + of, p.states) && ok;
      ok = require(p.content_bytes >= 1, "content_bytes" + of, p.content_bytes) && ok;
      ok = require(p.stride_alignment >= 1, "stride_alignment" + of, p.stride_alignment) && ok;
      if (!ok && violations_.full()) return false;
    }
    for (const auto& g : worker_.groups) {
      // Slices have 32-bit ids.
      const int64_t most_ids = g.slices > 1 ? INT32_MAX : INT64_MAX;
      ok =
          require(g.slices >= 1 && worker_.num_blocks <= most_ids / g.slices, "slices", g.slices) &&
          ok;
    }
    if (!layers_.unique()) {
      broken(Rule::kNumbers, "a layer is listed twice");
      ok = false;
    }
    // A worker without layers takes nothing, also from memory that is overdrawn.
    if (worker_.buffer_bytes > 0 && worker_.available_bytes &&
        worker_.buffer_bytes > *worker_.available_bytes) {
      broken(Rule::kBudget, "the buffer takes " + std::to_string(worker_.buffer_bytes) +
                                " bytes of the " + std::to_string(*worker_.available_bytes) +
                                " that are available");
    }
    return ok;
  }

  void assign_groups() {
    for (size_t g = 0; g < worker_.groups.size(); ++g) {
      for (LayerId id : worker_.groups[g].layers) {
        const std::optional<size_t> layer = layers_.find(id);
        if (!layer) {
          if (placement_.allow_foreign_layers) continue;
          broken(Rule::kOneGroup, violations_.name(id) + " of group " + std::to_string(g) +
                                      " is not a layer of this worker");
          continue;
        }
        if (group_of_[*layer] >= 0) {
          broken(Rule::kOneGroup, violations_.name(id) + " is in group " +
                                      std::to_string(group_of_[*layer]) + " and in group " +
                                      std::to_string(g));
        }
        group_of_[*layer] = static_cast<int32_t>(g);
      }
    }
    require_assigned(group_of_, Rule::kOneGroup, "group");
  }

  void assign_tensors() {
    for (size_t t = 0; t < worker_.tensors.size(); ++t) {
      const CheckedWorker::Tensor& tensor = worker_.tensors[t];
      if (tensor.size != worker_.buffer_bytes) {
        broken(Rule::kEqualSizes, tensor_name(t) + " names a buffer of " +
                                      std::to_string(tensor.size) + " bytes, the worker's has " +
                                      std::to_string(worker_.buffer_bytes));
      }
      bool known = true;
      for (LayerId id : tensor.layers) known = assign_tensor(t, id) && known;
      if (known && !tensor.layers.empty()) add_runs(t);
      if (!known) complete_ = false;
    }
    require_assigned(tensor_of_, Rule::kOneTensor, "tensor");
  }

  bool assign_tensor(size_t t, LayerId id) {
    const std::optional<size_t> layer = layers_.find(id);
    if (!layer) {
      if (!placement_.allow_foreign_layers) {
        broken(Rule::kOneTensor,
               violations_.name(id) + " of " + tensor_name(t) + " is not a layer of this worker");
      }
      return false;
    }
    if (tensor_of_[*layer] >= 0) {
      broken(Rule::kOneTensor, violations_.name(id) + " is in " +
                                   tensor_name(static_cast<size_t>(tensor_of_[*layer])) +
                                   " and in " + tensor_name(t));
    }
    tensor_of_[*layer] = static_cast<int32_t>(t);
    return true;
  }

  void require_assigned(const std::vector<int32_t>& of, Rule rule, const char* what) {
    for (size_t i = 0; i < of.size(); ++i) {
      if (of[i] >= 0) continue;
      complete_ = false;
      broken(rule, violations_.name(worker_.layers[i].id) + " is in no " + what);
      if (violations_.full()) return;
    }
  }

  void add_runs(size_t t) {
    const CheckedWorker::Tensor& tensor = worker_.tensors[t];
    const size_t first = *layers_.find(tensor.layers[0]);
    const PageShape& page = worker_.layers[first].page;
    const int32_t group = group_of_[first];
    for (LayerId id : tensor.layers) {
      const size_t layer = *layers_.find(id);
      if (group_of_[layer] != group) {
        broken(Rule::kOneShape, tensor_name(t) + " holds layers of groups " +
                                    std::to_string(group) + " and " +
                                    std::to_string(group_of_[layer]));
        complete_ = false;
        return;
      }
      if (!(worker_.layers[layer].page == page)) {
        broken(Rule::kOneShape, tensor_name(t) + " holds pages of different shapes: " +
                                    violations_.name(tensor.layers[0]) + " and " +
                                    violations_.name(id));
        complete_ = false;
        return;
      }
    }
    if (group < 0) return;  // reported already
    const CheckedWorker::Group& g = worker_.groups[static_cast<size_t>(group)];
    const int64_t blocks = worker_.num_blocks * g.slices;
    std::optional<TensorRuns> runs = tensor_runs(placement_.layout, tensor, page, blocks);
    if (!runs) {
      broken(Rule::kOverflow, "an address in " + tensor_name(t) + " leaves the 64-bit range");
      all_inside_ = false;
      return;
    }
    runs->tensor = t;
    runs->group = group;
    runs->slices = g.slices;
    check_inside(*runs, g.host_resident);
    runs_.push_back(*runs);
  }

  // With negative strides the last page is not the one that ends last.
  void check_inside(const TensorRuns& t, bool host_resident) {
    if ((t.layers > 1 && t.layer_stride <= 0) || (t.blocks > 1 && t.block_stride <= 0)) {
      broken(Rule::kPagesDisjoint, tensor_name(t.tensor) + " has a layer stride of " +
                                       std::to_string(t.layer_stride) + " and a block stride of " +
                                       std::to_string(t.block_stride));
      positive_strides_ = false;
      return;
    }
    if (host_resident) return;
    if (t.offset >= 0 && t.end <= worker_.buffer_bytes) return;
    all_inside_ = false;
    broken(Rule::kInsideBuffer, tensor_name(t.tensor) + " takes bytes " + std::to_string(t.offset) +
                                    " to " + std::to_string(t.end) + " of a buffer of " +
                                    std::to_string(worker_.buffer_bytes));
  }

  void check_stride(const TensorRuns& t) {
    if (t.block_stride % t.stride_alignment == 0) return;
    broken(Rule::kAlignedStride, tensor_name(t.tensor) + " has a block stride of " +
                                     std::to_string(t.block_stride) + " bytes, not a multiple of " +
                                     std::to_string(t.stride_alignment));
  }

  std::vector<TensorRuns> device_runs() const {
    std::vector<TensorRuns> device;
    for (const TensorRuns& t : runs_) {
      if (!worker_.groups[static_cast<size_t>(t.group)].host_resident) device.push_back(t);
    }
    return device;
  }

  struct Extent {
    int64_t begin;
    int64_t end;
  };

  // In a block of a block-outermost layout, or in the buffer of a layer-outermost one, the layers
  // of each group lie side by side from byte 0.
  void check_gaps() {
    const bool block_outermost = is_block_outermost(placement_.layout);
    int64_t widest = 0;
    int64_t alignment = 1;
    std::vector<std::vector<Extent>> of_group(worker_.groups.size());
    for (const TensorRuns& t : device_runs()) {
      alignment = std::lcm(std::min<int64_t>(alignment, INT32_MAX), t.stride_alignment);
      if (!block_outermost && t.block_stride - t.run_bytes >= t.stride_alignment && t.blocks > 1) {
        broken(Rule::kNoGaps, tensor_name(t.tensor) + " has pages of " +
                                  std::to_string(t.run_bytes) + " bytes every " +
                                  std::to_string(t.block_stride) + " bytes, aligned to " +
                                  std::to_string(t.stride_alignment));
      }
      auto& extents = of_group[static_cast<size_t>(t.group)];
      for (int64_t l = 0; l < t.layers; ++l) {
        for (int64_t h = 0; h < t.heads; ++h) {
          const int64_t begin = t.offset + l * t.layer_stride + h * t.head_stride;
          const int64_t bytes = block_outermost ? t.run_bytes : t.block_stride * t.blocks;
          extents.push_back({begin, begin + bytes});
        }
      }
    }
    for (size_t g = 0; g < of_group.size(); ++g) {
      auto& extents = of_group[g];
      std::sort(extents.begin(), extents.end(),
                [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
      int64_t end = 0;
      for (const Extent& e : extents) {
        if (e.begin != end) {
          broken(Rule::kNoGaps, "group " + std::to_string(g) + " leaves bytes " +
                                    std::to_string(end) + " to " + std::to_string(e.begin) +
                                    " unused");
          return;
        }
        end = e.end;
      }
      widest = std::max(widest, end);
    }
    // Slices are as wide as all groups together allow, so that the widest group need not fill them.
    const bool sliced = std::any_of(worker_.groups.begin(), worker_.groups.end(),
                                    [](const auto& g) { return g.slices != 1; });
    if (runs_.empty() || sliced) return;
    const int64_t space =
        block_outermost ? worker_.buffer_bytes / worker_.num_blocks : worker_.buffer_bytes;
    const int64_t spare = space - widest;
    if (block_outermost ? spare >= alignment : spare != 0) {
      broken(Rule::kNoGaps, "the widest group fills " + std::to_string(widest) + " of " +
                                std::to_string(space) + " bytes" +
                                (block_outermost ? " of a block" : ""));
    }
  }

  static std::string tensor_name(size_t t) { return "tensor " + std::to_string(t); }

  const CheckedPlacement& placement_;
  const CheckedWorker& worker_;
  size_t index_;
  Violations& violations_;
  LayerIndex layers_;
  std::vector<int32_t> group_of_;
  std::vector<int32_t> tensor_of_;
  std::vector<TensorRuns> runs_;
  bool all_inside_ = true;
  bool positive_strides_ = true;
  bool complete_ = true;
};

bool same_spec(const CheckedWorker::Group& a, const CheckedWorker::Group& b) {
  return a.spec == b.spec && a.block_size == b.block_size && a.slices == b.slices &&
         a.is_eagle_group == b.is_eagle_group && a.host_resident == b.host_resident;
}

void check_agreement(const CheckedPlacement& placement, Violations& violations) {
  for (size_t w = 1; w < placement.workers.size(); ++w) {
    const CheckedWorker& first = placement.workers[0];
    const CheckedWorker& other = placement.workers[w];
    const auto differ = [&](const std::string& what, auto mine, auto theirs) {
      violations.add(
          Rule::kWorkersAgree, w,
          what + ": " + std::to_string(mine) + ", on worker 0 " + std::to_string(theirs));
    };
    if (other.num_blocks != first.num_blocks) {
      differ("num_blocks", other.num_blocks, first.num_blocks);
    }
    if (other.groups.size() != first.groups.size()) {
      differ("number of groups", other.groups.size(), first.groups.size());
      continue;
    }
    for (size_t g = 0; g < first.groups.size(); ++g) {
      if (same_spec(other.groups[g], first.groups[g])) continue;
      violations.add(Rule::kWorkersAgree, w,
                     "group " + std::to_string(g) + " has another spec than on worker 0");
    }
  }
}

}  // namespace
}  // namespace checking

std::string_view to_string(Rule rule) {
  switch (rule) {
    case Rule::kNumbers:
      return "numbers";
    case Rule::kOverflow:
      return "overflow";
    case Rule::kOneGroup:
      return "one_group";
    case Rule::kOneTensor:
      return "one_tensor";
    case Rule::kOneShape:
      return "one_shape";
    case Rule::kInsideBuffer:
      return "inside_buffer";
    case Rule::kPagesDisjoint:
      return "pages_disjoint";
    case Rule::kBlocksDisjoint:
      return "blocks_disjoint";
    case Rule::kAlignedStride:
      return "aligned_stride";
    case Rule::kEqualSizes:
      return "equal_sizes";
    case Rule::kBudget:
      return "budget";
    case Rule::kNoGaps:
      return "no_gaps";
    case Rule::kWorkersAgree:
      return "workers_agree";
  }
  return "unknown";
}

std::vector<Violation> check(const CheckedPlacement& placement, size_t max_violations) {
  checking::Violations violations(placement, max_violations);
  checking::check_agreement(placement, violations);
  for (size_t w = 0; w < placement.workers.size() && !violations.full(); ++w) {
    checking::WorkerCheck(placement, w, violations).run();
  }
  return violations.take();
}

}  // namespace kvplan
