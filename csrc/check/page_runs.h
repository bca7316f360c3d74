#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kvplan/check.h"

namespace kvplan::checking {

/// The bytes of one tensor. A page is `heads` runs of `run_bytes`: one run where the layout keeps
/// H and N inside L and B, one run a head where blocks or layers lie between the heads.
/// Run h of layer l, block b starts at
/// `offset + l * layer_stride + b * block_stride + h * head_stride`.
struct TensorRuns {
  size_t tensor = 0;
  int32_t group = 0;
  int64_t layers = 0;
  int64_t blocks = 0;  ///< block ids of the group
  int64_t slices = 1;  ///< of these, in one block of the pool
  int64_t heads = 1;
  int64_t run_bytes = 0;
  int64_t offset = 0;
  int64_t layer_stride = 0;
  int64_t block_stride = 0;
  int64_t head_stride = 0;
  int64_t stride_alignment = 1;
  int64_t end = 0;  ///< one past the last byte
};

/// Strides of the axes that a tensor does not name follow from the layout, innermost first: N over
/// C, H over what lies inside it. No value where an address leaves the 64-bit range.
std::optional<TensorRuns> tensor_runs(KVCacheLayout layout, const CheckedWorker::Tensor& tensor,
                                      const PageShape& page, int64_t blocks);

}  // namespace kvplan::checking
