#include <algorithm>
#include <string>

#include "kvplan/errors.h"
#include "kvplan/plan.h"

namespace kvplan {
namespace {

size_t hash_layers(const LayerSpecs& layers) {
  size_t h = layers.size();
  for (const LayerSpec& l : layers) {
    const auto key = static_cast<uint64_t>(static_cast<uint32_t>(l.layer.value)) << 32 |
                     static_cast<uint32_t>(l.spec.value);
    h = (h ^ key) * 0x9e3779b97f4a7c15ULL;
    h ^= h >> 29;
  }
  return h;
}

}  // namespace

SpecId PlanRequest::add_spec(KVCacheSpec spec) {
  finalize(spec);
  return specs_.intern(spec);
}

LayerId PlanRequest::add_layer_name(std::string_view name) {
  const LayerId known = names()->find(name);
  return known.valid() ? known : own_names().add_new(name);
}

void PlanRequest::require_list(size_t layers_index, const std::string& whose) const {
  if (layers_index < layer_lists_.size()) return;
  throw InvalidArgument(whose + ": layer list " + std::to_string(layers_index) +
                        " does not exist; there are " + std::to_string(layer_lists_.size()));
}

size_t PlanRequest::add_layers(LayerSpecs layers) {
  const size_t hash = hash_layers(layers);
  const size_t known =
      lists_by_hash_.find(hash, [&](size_t i) { return layer_lists_[i] == layers; });
  if (known != lists_by_hash_.kNone) return known;
  std::vector<char> seen(names()->size());
  for (const LayerSpec& l : layers) {
    if (!l.layer.valid() || l.layer.pos() >= names()->size() || !l.spec.valid() ||
        l.spec.pos() >= specs_.size()) {
      throw InvalidArgument("a layer list names layer " + std::to_string(l.layer.value) +
                            " with spec " + std::to_string(l.spec.value) + "; the request has " +
                            std::to_string(names()->size()) + " layers and " +
                            std::to_string(specs_.size()) + " specs");
    }
    if (seen[l.layer.pos()]) {
      throw InvalidArgument("layer " + std::string((*names())[l.layer]) +
                            " is listed twice for one worker");
    }
    seen[l.layer.pos()] = true;
  }
  lists_by_hash_.add(hash, layer_lists_.size());
  layer_lists_.push_back(std::move(layers));
  return layer_lists_.size() - 1;
}

void PlanRequest::add_worker(size_t layers_index, int64_t available_bytes) {
  require_list(layers_index, "worker " + std::to_string(workers_.size()));
  workers_.push_back({layers_index, available_bytes});
}

void PlanRequest::set_bytes_per_block(size_t layers_index, int64_t bytes_per_block) {
  require_list(layers_index, "bytes per block");
  if (bytes_per_block < 1) {
    throw InvalidArgument("bytes per block must be positive, got " +
                          std::to_string(bytes_per_block));
  }
  bytes_per_block_[layers_index] = bytes_per_block;
}

std::optional<int64_t> PlanRequest::bytes_per_block(size_t layers_index) const {
  const auto it = bytes_per_block_.find(layers_index);
  return it == bytes_per_block_.end() ? std::nullopt : std::optional(it->second);
}

std::optional<int64_t> smallest_memory(const PlanRequest& request) {
  std::optional<int64_t> smallest;
  for (const PlanRequest::Worker& w : request.workers()) {
    if (request.layer_lists()[w.layers_index].empty() || w.available_bytes <= 0) continue;
    smallest = std::min(smallest.value_or(w.available_bytes), w.available_bytes);
  }
  return smallest;
}

}  // namespace kvplan
