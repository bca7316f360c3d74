#pragma once

#include <Python.h>

#include <span>
#include <vector>

#include "kvplan/block_pool.h"

namespace kvplan::bindings {

/// `kvplan._core.CacheBlocks`: block ids by group, as vLLM's KVCacheBlocks. Block objects are made
/// when somebody asks for them; from then on they are what counts, as a caller may change the
/// lists.
struct CacheBlocks {
  PyObject_HEAD PyObject* pool;  // whose `blocks` are handed out
  PyObject* blocks;              // tuple of a sequence a group, once asked for; else null
  size_t num_groups;
  char is_shared_empty;       // the manager's result without blocks
  std::vector<BlockId> data;  // where each group's ids end, then the ids, group after group

  std::span<const BlockId> ids(size_t group) const {
    const size_t begin = group == 0 ? num_groups : static_cast<size_t>(data[group - 1]);
    return std::span(data).subspan(begin, static_cast<size_t>(data[group]) - begin);
  }
};

/// The C++ type is a base of Python's: `type` is the Python class to make.
CacheBlocks* make_cache_blocks(PyTypeObject* type, PyObject* pool, size_t num_groups,
                               std::vector<BlockId> data);
/// The object as one of `type`, or null without an error.
CacheBlocks* as_cache_blocks(PyObject* object);

/// Appends the ids of any sequence of block objects. Throws `PythonError`.
void read_block_ids(PyObject* blocks, std::vector<BlockId>& ids);

}  // namespace kvplan::bindings
