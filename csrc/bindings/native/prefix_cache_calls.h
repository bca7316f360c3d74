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

/// Calls on a pool and its prefix cache, alike for plain and sliced pools.
namespace kvplan::bindings {

template <class RefCount>
py::array ref_count_array(std::span<const BlockId> ids, RefCount&& ref_count) {
  py::array_t<int32_t> counts(static_cast<py::ssize_t>(ids.size()));
  for (size_t i = 0; i < ids.size(); ++i) counts.mutable_data()[i] = ref_count(ids[i]);
  return counts;
}

template <class Pool>
py::object get_cached_block(const Pool& pool, const py::bytes& hash,
                            const std::vector<PoolGroupId>& groups) {
  IdArray ids(static_cast<py::ssize_t>(groups.size()));
  if (!pool.find_in_groups(Hashes::bytes_view(hash), groups,
                           std::span(ids.mutable_data(), groups.size()))) {
    return py::none();
  }
  return ids;
}

template <class Pool>
py::array get_cached_prefix(const Pool& pool, const py::object& hashes, PoolGroupId group) {
  const Hashes wanted(hashes);
  std::vector<BlockId> found(wanted.views().size());
  const int64_t n = pool.find_prefix(wanted.views(), group, found);
  return to_array(std::span(found).first(static_cast<size_t>(n)));
}

template <class Pool>
void cache_full_blocks(Pool& pool, std::span<const BlockId> ids, const py::object& hashes,
                       int64_t block_size, int64_t first_block, PoolGroupId group,
                       const std::optional<py::bytes>& parent_hash,
                       const std::optional<std::vector<bool>>& mask) {
  const Hashes hash_list(hashes);
  std::vector<uint8_t> mask_bytes;
  if (mask) mask_bytes.assign(mask->begin(), mask->end());
  if (mask && mask_bytes.empty() && ids.size() != 0) {
    throw InvalidArgument("cache_full_blocks: the mask is empty");
  }
  pool.cache_full_blocks({.blocks = ids,
                          .hashes = hash_list.views(),
                          .first_block = first_block,
                          .block_size = block_size,
                          .group_id = group,
                          .parent_hash = optional_view(parent_hash),
                          .mask = mask_bytes});
}

template <class Pool>
bool cache_partial_block(Pool& pool, BlockId block_id, const py::bytes& hash, int64_t num_tokens,
                         int64_t hash_block_size, PoolGroupId group,
                         const std::optional<py::bytes>& parent_hash, bool replace_existing) {
  return pool.cache_partial_block({.block = block_id,
                                   .hash = Hashes::bytes_view(hash),
                                   .num_tokens = num_tokens,
                                   .hash_block_size = hash_block_size,
                                   .group_id = group,
                                   .parent_hash = optional_view(parent_hash),
                                   .replace_existing = replace_existing});
}

/// What both pools have; `group`: the argument that names a group.
template <class Pool, class GroupArgument>
void bind_prefix_cache(py::class_<Pool>& pool, const GroupArgument& group) {
  pool.def_property_readonly("enable_caching", &Pool::enable_caching)
      .def_property_readonly("memory_bytes", &Pool::memory_bytes,
                             "Bytes reserved for block records and hash index.")
      .def_property_readonly("num_cached_hashes", &Pool::num_cached_hashes)
      .def("get_cached_block", &get_cached_block<Pool>, py::arg("block_hash"), py::arg("group_ids"),
           "One block per group, as int32 array, or None if a group has none.")
      .def("get_cached_prefix", &get_cached_prefix<Pool>, py::arg("hashes"), group,
           "Blocks of the longest cached prefix of hashes, as int32 array. hashes: list of bytes,\n"
           "or uint8 array of shape (n, bytes).")
      .def("cache_partial_block", &cache_partial_block<Pool>, py::arg("block_id"),
           py::arg("block_hash"), py::arg("num_tokens"), py::kw_only(), py::arg("hash_block_size"),
           group, py::arg("parent_hash") = py::none(), py::arg("replace_existing") = false,
           "Makes the boundary after num_tokens tokens of the prefix, inside a block, reachable.\n"
           "False for the null block and for a boundary that a later one has replaced.")
      .def("reset_prefix_cache", &Pool::reset_prefix_cache,
           "Forgets everything cached; False, and nothing happens, while a block is in use.")
      .def("take_events", &Pool::take_events, "Queued events, oldest first.")
      .def("check_invariants", &Pool::check_invariants,
           "Raises BlockPoolError if the pool contradicts itself. O(blocks).");
}

}  // namespace kvplan::bindings
