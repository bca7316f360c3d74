#pragma once

#include <Python.h>

#include <cstddef>
#include <string_view>

#include "bindings/vllm/fast_call.h"
#include "block_pool/zeroed_array.h"
#include "kvplan/block_pool.h"

/// The block object of the vLLM face, `kvplan.vllm.block_pool.KVCacheBlock`.
namespace kvplan::bindings {

struct SharedPool;

/// A block of a pool, made when it is first asked for, in memory of the pool: zeros are a block
/// that was not. All it knows besides its id is asked of the pool, which a native manager may
/// change.
///
/// `block_id` and `is_null` are object members rather than integers because CPython's interpreter
/// has a fast path for reading exactly those (LOAD_ATTR_SLOT).
struct BlockObject {
  PyObject ob_base;
  PyObject* block_id;  // owned by the pool
  PyObject* is_null;   // True or False, not owned
  SharedPool* shared;
  BlockId id;

  PyObject* as_object() { return &ob_base; }
};

extern PyTypeObject block_type;

/// The native pool and its block objects. Lives as long as the Python pool or a block.
struct SharedPool {
  SharedPool(int64_t num_blocks, BlockPoolOptions options, PyObject* owner_)
      : pool(num_blocks, options), objects(static_cast<size_t>(num_blocks)), owner(owner_) {}
  ~SharedPool();
  SharedPool(const SharedPool&) = delete;
  SharedPool& operator=(const SharedPool&) = delete;

  /// One reference is held here.
  BlockObject& block(BlockId id) {
    BlockObject& object = objects[static_cast<size_t>(id)];
    return Py_REFCNT(object.as_object()) != 0 ? object : make_block(id);
  }
  /// Called when the Python pool is gone: the blocks that nobody holds go too.
  void abandon();
  void release() {
    if (--users == 0) delete this;
  }

  BlockPool pool;
  // By id. Together, so that a hit waits for one block's memory and no pointer to it.
  detail::ZeroedArray<BlockObject> objects;
  PyObject* owner;   // the Python pool, borrowed; null once it is gone
  size_t users = 1;  // the Python pool, block objects, a cache manager

 private:
  BlockObject& make_block(BlockId id);
};

/// What a Python pool shares with its blocks; a TypeError if it is no pool.
SharedPool& shared_pool_of(PyObject* pool);

/// After a call into the native pool of a Python pool: files the events that it queued, about
/// `request` or nobody, until Python asks for them, and tells the metrics collector which blocks
/// were used.
void note_changes(PyObject* pool, PyObject* request);

/// A key as vLLM writes it: the hash, then the group id in 4 bytes, big-endian.
struct HashAndGroup {
  std::string_view hash;
  PoolGroupId group_id{};
};
HashAndGroup parse_key(PyObject* key);
PyObject* make_key(std::string_view hash, PoolGroupId group_id);

/// Readies a type object that started as zeros.
bool ready_static_type(PyTypeObject& type);
bool ready_block_type();

}  // namespace kvplan::bindings
