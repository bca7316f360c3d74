#include "check/page_runs.h"

namespace kvplan::checking {
namespace {

/// Arithmetic that remembers whether it ever left the range.
class Checked {
 public:
  int64_t mul(int64_t a, int64_t b) {
    int64_t r = 0;
    overflow_ = __builtin_mul_overflow(a, b, &r) || overflow_;
    return r;
  }
  int64_t add(int64_t a, int64_t b) {
    int64_t r = 0;
    overflow_ = __builtin_add_overflow(a, b, &r) || overflow_;
    return r;
  }
  bool overflow() const { return overflow_; }

 private:
  bool overflow_ = false;
};

}  // namespace

std::optional<TensorRuns> tensor_runs(KVCacheLayout layout, const CheckedWorker::Tensor& tensor,
                                      const PageShape& page, int64_t blocks) {
  Checked math;
  TensorRuns runs;
  runs.layers = static_cast<int64_t>(tensor.layers.size());
  runs.blocks = blocks;
  runs.offset = tensor.offset;
  runs.layer_stride = tensor.layer_stride;
  runs.block_stride = tensor.block_stride;
  runs.stride_alignment = page.stride_alignment;
  const bool heads_apart = layout == KVCacheLayout::kLHBNC || layout == KVCacheLayout::kBHLNC;
  if (heads_apart && page.heads > 1) {
    runs.heads = page.heads;
    runs.run_bytes = math.mul(page.states, page.content_bytes);
    runs.head_stride = layout == KVCacheLayout::kLHBNC ? math.mul(tensor.block_stride, blocks)
                                                       : math.mul(tensor.layer_stride, runs.layers);
  } else {
    runs.run_bytes = page.page_bytes;
  }
  runs.end = runs.offset;
  runs.end = math.add(runs.end, math.mul(runs.layers - 1, runs.layer_stride));
  runs.end = math.add(runs.end, math.mul(runs.blocks - 1, runs.block_stride));
  runs.end = math.add(runs.end, math.mul(runs.heads - 1, runs.head_stride));
  runs.end = math.add(runs.end, runs.run_bytes);
  if (math.overflow()) return std::nullopt;
  return runs;
}

}  // namespace kvplan::checking
