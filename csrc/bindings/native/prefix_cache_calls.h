#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "bindings/native/block_arrays.h"
#include "kvplan/errors.h"

/// Calls on a pool's prefix cache, alike for plain and sliced pools.
namespace kvplan::bindings {

template <class Pool>
py::object get_cached_block(const Pool& pool, const py::bytes& hash,
                            const std::vector<int64_t>& group_ids) {
  std::vector<PoolGroupId> groups;
  for (const int64_t group_id : group_ids) groups.push_back(to_group(group_id));
  IdArray ids(static_cast<py::ssize_t>(groups.size()));
  if (!pool.find_in_groups(Hashes::bytes_view(hash), groups,
                           std::span(ids.mutable_data(), groups.size()))) {
    return py::none();
  }
  return ids;
}

template <class Pool>
py::array get_cached_prefix(const Pool& pool, const py::object& hashes, int64_t group_id) {
  const Hashes wanted(hashes);
  std::vector<BlockId> found(wanted.views().size());
  const int64_t n = pool.find_prefix(wanted.views(), to_group(group_id), found);
  return to_array(std::span(found).first(static_cast<size_t>(n)));
}

template <class Pool>
void cache_full_blocks(Pool& pool, const py::object& block_ids, const py::object& hashes,
                       int64_t block_size, int64_t first_block, int64_t group_id,
                       const std::optional<py::bytes>& parent_hash,
                       const std::optional<std::vector<bool>>& mask) {
  const IdArray ids = to_ids(block_ids);
  const Hashes hash_list(hashes);
  std::vector<uint8_t> mask_bytes;
  if (mask) mask_bytes.assign(mask->begin(), mask->end());
  if (mask && mask_bytes.empty() && ids.size() != 0) {
    throw InvalidArgument("cache_full_blocks: the mask is empty");
  }
  pool.cache_full_blocks({.blocks = span_of(ids),
                          .hashes = hash_list.views(),
                          .first_block = first_block,
                          .block_size = block_size,
                          .group_id = to_group(group_id),
                          .parent_hash = optional_view(parent_hash),
                          .mask = mask_bytes});
}

template <class Pool>
bool cache_partial_block(Pool& pool, BlockId block_id, const py::bytes& hash, int64_t num_tokens,
                         int64_t hash_block_size, int64_t group_id,
                         const std::optional<py::bytes>& parent_hash, bool replace_existing) {
  return pool.cache_partial_block({.block = block_id,
                                   .hash = Hashes::bytes_view(hash),
                                   .num_tokens = num_tokens,
                                   .hash_block_size = hash_block_size,
                                   .group_id = to_group(group_id),
                                   .parent_hash = optional_view(parent_hash),
                                   .replace_existing = replace_existing});
}

}  // namespace kvplan::bindings
