#pragma once

#include <string>

#include "kvplan/plan.h"

namespace kvplan::testing {

/// A plan in a few lines, for the message of a failed test.
inline std::string describe(const Plan& p) {
  std::string text = "layout " + std::string(to_string(p.config.kv_cache_layout)) + ", " +
                     std::to_string(p.num_blocks) + " blocks, length " +
                     std::to_string(p.config.max_model_len) + "\n";
  for (size_t s = 0; s < p.stages.size(); ++s) {
    const StagePlan& stage = p.stages[s];
    text += "stage " + std::to_string(s) + ": " + std::to_string(stage.bytes_per_block) +
            " bytes a block\n";
    for (const KVCacheGroup& g : stage.groups) {
      text += "  group of " + std::to_string(g.layers.size()) + ": " +
              to_string((*p.specs)[g.spec]) + (g.is_uniform_type() ? " (uniform type)\n" : "\n");
    }
    for (const KVCacheTensor& t : stage.tensors) {
      text += "  tensor of " + std::to_string(t.layers.size()) + " from layer " +
              std::to_string(t.layers[0].value) + ": size " + std::to_string(t.size) + " offset " +
              std::to_string(t.offset) + " layer " + std::to_string(t.layer_stride) + " block " +
              std::to_string(t.block_stride) + "\n";
    }
  }
  return text;
}

}  // namespace kvplan::testing
