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
  PyObject_HEAD std::vector<BlockId>* ids;  // of all groups, one group after the other
  std::vector<size_t>* ends;                // of each group, in `ids`
  PyObject* pool;                           // whose `blocks` are handed out
  PyObject* blocks;      // tuple of a sequence a group, once asked for; else null
  char is_shared_empty;  // the manager's result without blocks
};

/// The C++ type is a base of Python's: `type` is the Python class to make.
CacheBlocks* make_cache_blocks(PyTypeObject* type, PyObject* pool);
/// The object as one of `type`, or null without an error.
CacheBlocks* as_cache_blocks(PyObject* object);

inline void append_group(CacheBlocks& blocks, std::span<const BlockId> ids) {
  blocks.ids->insert(blocks.ids->end(), ids.begin(), ids.end());
  blocks.ends->push_back(blocks.ids->size());
}

/// Block ids of any sequence of block objects; false with a Python error.
bool read_block_ids(PyObject* blocks, std::vector<BlockId>& ids);

}  // namespace kvplan::bindings
