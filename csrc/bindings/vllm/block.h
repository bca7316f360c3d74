#pragma once

#include <Python.h>

#include <cstddef>
#include <string_view>

#include "block_pool/zeroed_array.h"
#include "kvplan/block_pool.h"

/// The block object of the vLLM face, `kvplan.vllm.block_pool.KVCacheBlock`.
namespace kvplan::bindings {

struct BlockArena;

/// A new reference to a small integer object.
PyObject* small_int(long value);

/// Two kinds of object share one Python type. A pooled block lies in a slot of its pool's arena
/// and ends before `ref_cnt`; all it knows besides its id is asked of the pool, which a native
/// manager may change. A
/// standalone block, made by calling the type, owns the remaining fields.
///
/// `block_id` and `is_null` are object members rather than integers because CPython's interpreter
/// has a fast path for reading exactly those (LOAD_ATTR_SLOT).
struct BlockObject {
  PyObject ob_base;
  PyObject* block_id;
  PyObject* is_null;
  BlockArena* arena;  // null: standalone
  BlockId id;
  PyObject* ref_cnt;
  PyObject* pool;
  PyObject* block_hash;
  PyObject* num_tokens;
  PyObject* prev_free_block;
  PyObject* next_free_block;

  PyObject* as_object() { return &ob_base; }
};

extern PyTypeObject block_type;
/// `pool.blocks`: a sequence of all blocks that makes the objects when they are asked for.
extern PyTypeObject block_sequence_type;

/// The native pool and its block objects. Lives as long as the Python pool, a block or a sequence.
struct BlockArena {
  struct alignas(64) Slot {
    unsigned char bytes[64];
  };
  static_assert(offsetof(BlockObject, ref_cnt) <= sizeof(Slot));

  BlockArena(int64_t num_blocks, BlockPoolOptions options, PyObject* owner_)
      : pool(num_blocks, options),
        slots(static_cast<size_t>(num_blocks)),
        id_objects(static_cast<size_t>(num_blocks)),
        owner(owner_) {}
  ~BlockArena();

  /// Borrowed; the arena itself holds one reference. Null with a Python error if out of memory.
  BlockObject* block(BlockId id) {
    auto* object = reinterpret_cast<BlockObject*>(slots[static_cast<size_t>(id)].bytes);
    return object->ob_base.ob_type != nullptr ? object : make_block(id);
  }
  /// The int object of an id, borrowed, made once: block tables are lists of them. Null with a
  /// Python error if out of memory.
  PyObject* id_object(BlockId id) {
    PyObject*& object = id_objects[static_cast<size_t>(id)];
    if (object == nullptr) object = small_int(id);
    return object;
  }
  /// Called when the Python pool is gone: the blocks that nobody holds go too.
  void abandon();
  void release() {
    if (--users == 0) delete this;
  }

  BlockPool pool;
  detail::ZeroedArray<Slot> slots;
  detail::ZeroedArray<PyObject*> id_objects;
  PyObject* owner;   // the Python pool, borrowed; null once it is gone
  size_t users = 1;  // the Python pool, block objects, sequences

 private:
  BlockObject* make_block(BlockId id);
};

/// The arena of a Python pool, borrowed; null with a Python error if it is none.
BlockArena* arena_of_pool(PyObject* pool);

/// After a call into the native pool of a Python pool: files the events that it queued, about
/// `request` or nobody, until Python asks for them, and tells the metrics collector which blocks
/// were used. False with a Python error.
bool note_changes(PyObject* pool, PyObject* request);

/// A key as vLLM writes it: the hash, then the group id in 4 bytes, big-endian.
struct HashAndGroup {
  std::string_view hash;
  PoolGroupId group_id{};
};
/// False with a Python error if it is none.
bool parse_key(PyObject* key, HashAndGroup& result);
PyObject* make_key(std::string_view hash, PoolGroupId group_id);

/// A new reference to a `pool.blocks`.
PyObject* make_block_sequence(BlockArena* arena);

/// Readies a type object that started as zeros.
bool ready_static_type(PyTypeObject& type);
bool ready_block_types();

}  // namespace kvplan::bindings
