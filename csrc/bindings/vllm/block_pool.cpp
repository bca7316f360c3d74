#include <Python.h>
#include <structmember.h>

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/vllm/block.h"
#include "bindings/vllm/fast_call.h"

// The native base of `kvplan.vllm.block_pool.BlockPool`. Written against CPython's own interface:
// a call through pybind11 and a wrapper made per block would cost more than the pool does.

namespace kvplan::bindings {
namespace {

/// An event that Python has not asked for yet, and the request whose tokens it is about.
struct FiledEvent {
  BlockPoolEvent event;
  Ref request;  // null: nobody's
};

/// What a pool needs besides its Python object's memory, which CPython moves as bytes.
struct PoolParts {
  std::vector<FiledEvent> filed;
  // Reused by every call: no allocation in the steady state.
  std::vector<BlockId> ids;
  std::vector<std::string_view> hashes;
  std::vector<uint8_t> mask;
};

struct PoolObject {
  PyObject ob_base;
  SharedPool* shared;
  PoolParts* parts;
  Py_ssize_t hash_block_size;
  PyObject* metrics_collector;
  char enable_caching;
  char enable_events;
  char log_uses;  // for the metrics collector
};

PoolObject* as_pool(PyObject* self) { return reinterpret_cast<PoolObject*>(self); }
BlockPool& native(PyObject* self) { return as_pool(self)->shared->pool; }

/// Method names that the Python class defines, interned once.
struct Names {
  PyObject* convert_events;
  PyObject* on_block_reused;
  PyObject* free_blocks;
  PyObject* is_null;
  PyObject* pool;
  PyObject* ref_cnt;
  PyObject* block_hashes;
  PyObject* scale_factor;
  PyObject* on_block_allocated;
  PyObject* on_block_accessed;
  PyObject* on_block_evicted;
};
Names names;

template <typename Body>
PyObject* guarded(PyObject* self, Body&& body) {
  if (as_pool(self)->shared == nullptr) {
    PyErr_SetString(PyExc_RuntimeError, "BlockPool.__init__ was not called");
    return nullptr;
  }
  return without_exceptions(body);
}

bool to_size(PyObject* object, Py_ssize_t& result) {
  result = PyNumber_AsSsize_t(object, PyExc_OverflowError);
  return !(result == -1 && PyErr_Occurred());
}

bool to_group(PyObject* object, PoolGroupId& result) {
  Py_ssize_t value;
  if (!to_size(object, value)) return false;
  if (value < 0 || value > UINT16_MAX) {
    PyErr_Format(PyExc_ValueError, "a group id is 0 to 65535, not %zd", value);
    return false;
  }
  result = static_cast<PoolGroupId>(value);
  return true;
}

bool to_hash(PyObject* object, std::string_view& result) {
  if (!PyBytes_Check(object)) {
    PyErr_Format(PyExc_TypeError, "a block hash must be bytes, not %.200s",
                 Py_TYPE(object)->tp_name);
    return false;
  }
  result = {PyBytes_AS_STRING(object), static_cast<size_t>(PyBytes_GET_SIZE(object))};
  return true;
}

/// The block as one of this pool's, or null without an error.
BlockObject* own_block(PyObject* self, PyObject* object) {
  if (!PyObject_TypeCheck(object, &block_type)) return nullptr;
  auto* block = reinterpret_cast<BlockObject*>(object);
  return block->shared == as_pool(self)->shared ? block : nullptr;
}

BlockObject* required_block(PyObject* self, PyObject* object) {
  BlockObject* block = own_block(self, object);
  if (block == nullptr) PyErr_Format(PyExc_ValueError, "%R is not a block of this pool", object);
  return block;
}

/// Ids of blocks that must all be this pool's. The span lives until the next call on the pool.
bool collect_ids(PyObject* self, PyObject* blocks, std::span<const BlockId>& result) {
  const Ref sequence(PySequence_Fast(blocks, "blocks must be iterable"));
  if (!sequence) return false;
  std::vector<BlockId>& ids = as_pool(self)->parts->ids;
  ids.clear();
  const Py_ssize_t n = PySequence_Fast_GET_SIZE(sequence.get());
  PyObject** items = PySequence_Fast_ITEMS(sequence.get());
  for (Py_ssize_t i = 0; i < n; ++i) {
    BlockObject* block = required_block(self, items[i]);
    if (block == nullptr) return false;
    ids.push_back(block->id);
  }
  result = ids;
  return true;
}

/// Tells vLLM's collector what it follows: every block that was handed out, found or evicted.
bool tell_metrics(PyObject* self) {
  PoolObject* pool = as_pool(self);
  const auto tell = [&](PyObject* method, PyObject* block) {
    return static_cast<bool>(
        Ref(PyObject_CallMethodOneArg(pool->metrics_collector, method, block)));
  };
  for (const BlockUse& use : native(self).take_uses()) {
    BlockObject* block = pool->shared->block(use.block);
    if (block == nullptr) return false;
    const bool taken = use.kind == BlockUse::Kind::kTaken;
    if (use.kind == BlockUse::Kind::kTouched) {
      if (!tell(names.on_block_accessed, block->as_object())) return false;
    } else if (!taken || pool->enable_caching) {
      if (!tell(names.on_block_evicted, block->as_object())) return false;
    }
    if (taken && !tell(names.on_block_allocated, block->as_object())) return false;
  }
  return true;
}

/// `note_changes` of a call on the pool itself: Python gets the events at once, since a pool can
/// share its queue with another.
bool forward_changes(PyObject* self, PyObject* request = nullptr) {
  return note_changes(self, request) &&
         (as_pool(self)->parts->filed.empty() ||
          Ref(PyObject_CallMethodNoArgs(self, names.convert_events)));
}

PyObject* to_bytes(std::string_view text) {
  return PyBytes_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
}

/// (hash, group) of a key that a block lost; or (request, group, block size, first, end, parent,
/// hashes, positions) of what was stored, with positions in blocks.
PyObject* filed_event(const FiledEvent& filed) {
  const BlockPoolEvent& event = filed.event;
  const auto group = static_cast<int>(event.group_id);
  if (event.kind == BlockPoolEvent::Kind::kRemoved) {
    return Py_BuildValue("(Ni)", to_bytes(event.hashes.front()), group);
  }
  const auto count = static_cast<Py_ssize_t>(event.hashes.size());
  Ref hashes(PyList_New(count));
  Ref positions(PyList_New(count));
  for (Py_ssize_t i = 0; hashes && positions && i < count; ++i) {
    PyObject* hash = to_bytes(event.hashes[static_cast<size_t>(i)]);
    PyObject* position = PyLong_FromLongLong(event.positions[static_cast<size_t>(i)]);
    if (hash != nullptr) PyList_SET_ITEM(hashes.get(), i, hash);
    if (position != nullptr) PyList_SET_ITEM(positions.get(), i, position);
    if (hash == nullptr || position == nullptr) return nullptr;
  }
  if (!hashes || !positions) return nullptr;
  PyObject* parent = event.parent_hash ? to_bytes(*event.parent_hash) : Py_NewRef(Py_None);
  return Py_BuildValue("(OiLLLNNN)", filed.request ? filed.request.get() : Py_None, group,
                       static_cast<long long>(event.block_size),
                       static_cast<long long>(event.first), static_cast<long long>(event.end),
                       parent, hashes.release(), positions.release());
}

PyObject* take_filed_events(PyObject* self, PyObject*) {
  return guarded(self, [&]() -> PyObject* {
    const std::vector<FiledEvent> filed = std::exchange(as_pool(self)->parts->filed, {});
    Ref list(PyList_New(static_cast<Py_ssize_t>(filed.size())));
    for (size_t i = 0; list && i < filed.size(); ++i) {
      PyObject* event = filed_event(filed[i]);
      if (event == nullptr) return nullptr;
      PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i), event);
    }
    return list.release();
  });
}

// Allocation.

PyObject* get_new_blocks(PyObject* self, PyObject* const* args, Py_ssize_t num_args,
                         PyObject* keywords) {
  static constexpr std::array<const char*, 1> kParameters{"num_blocks"};
  std::array<PyObject*, 1> in;
  Py_ssize_t n;
  if (!parse_arguments("get_new_blocks", kParameters, 1, args, num_args, keywords, in) ||
      !to_size(in[0], n)) {
    return nullptr;
  }
  return guarded(self, [&]() -> PyObject* {
    PoolObject* pool = as_pool(self);
    SharedPool& shared = *pool->shared;
    // The native call refuses what is too much, before memory is reserved for it.
    if (n < 0 || n > shared.pool.num_free_blocks()) shared.pool.get_new_blocks(n);
    // A reuse callback may call the pool again, so the ids get memory of their own then.
    std::vector<BlockId> ids = std::move(pool->parts->ids);
    ids.resize(static_cast<size_t>(n));
    Ref list(PyList_New(n));
    if (!list) return nullptr;
    shared.pool.get_new_blocks(std::span(ids));
    for (Py_ssize_t i = 0; i < n; ++i) {
      const BlockId id = ids[static_cast<size_t>(i)];
      BlockObject* block = shared.block(id);
      if (block == nullptr) return nullptr;
      PyList_SET_ITEM(list.get(), i, Py_NewRef(block->as_object()));
    }
    pool->parts->ids = std::move(ids);
    if (!forward_changes(self)) return nullptr;
    return list.release();
  });
}

PyObject* touch(PyObject* self, PyObject* blocks) {
  return guarded(self, [&]() -> PyObject* {
    std::span<const BlockId> ids;
    if (!collect_ids(self, blocks, ids)) return nullptr;
    native(self).touch(ids);
    if (!forward_changes(self)) return nullptr;
    Py_RETURN_NONE;
  });
}

/// A block that was made by itself, which is nobody's: as in vLLM it only loses a holder. False
/// with a Python error if it would become free.
bool release_standalone(PyObject* block) {
  const Ref held(PyObject_GetAttr(block, names.ref_cnt));
  Py_ssize_t count;
  if (!held || !to_size(held.get(), count)) return false;
  if (count == 1) {
    PyErr_Format(PyExc_ValueError, "free_blocks: %R is not a block of this pool, nor of another",
                 block);
    return false;
  }
  const Ref left(PyLong_FromSsize_t(count - 1));
  return left && PyObject_SetAttr(block, names.ref_cnt, left.get()) == 0;
}

/// Files a block of another pool under that pool. Null blocks are dropped.
bool file_foreign_block(PyObject* self, PyObject* block, Ref& by_pool) {
  const Ref is_null(PyObject_GetAttr(block, names.is_null));
  if (!is_null) return false;
  const int null = PyObject_IsTrue(is_null.get());
  if (null != 0) return null > 0;
  const Ref pool(PyObject_GetAttr(block, names.pool));
  if (!pool) return false;
  if (pool.get() == Py_None || pool.get() == self) return release_standalone(block);
  if (!by_pool) by_pool = Ref(PyDict_New());
  if (!by_pool) return false;
  PyObject* filed = PyDict_GetItemWithError(by_pool.get(), pool.get());
  if (filed == nullptr) {
    if (PyErr_Occurred()) return false;
    const Ref list(PyList_New(0));
    if (!list || PyDict_SetItem(by_pool.get(), pool.get(), list.get()) < 0) return false;
    filed = list.get();
  }
  return PyList_Append(filed, block) == 0;
}

PyObject* free_blocks(PyObject* self, PyObject* blocks) {
  return guarded(self, [&]() -> PyObject* {
    const Ref sequence(PySequence_Fast(blocks, "blocks must be iterable"));
    if (!sequence) return nullptr;
    std::vector<BlockId>& ids = as_pool(self)->parts->ids;
    ids.clear();
    Ref by_pool;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(sequence.get()); ++i) {
      PyObject* item = PySequence_Fast_GET_ITEM(sequence.get(), i);
      if (const BlockObject* block = own_block(self, item)) {
        ids.push_back(block->id);
      } else if (!file_foreign_block(self, item, by_pool)) {
        return nullptr;
      }
    }
    native(self).free_blocks(ids);
    if (by_pool) {
      Py_ssize_t position = 0;
      PyObject* pool;
      PyObject* list;
      while (PyDict_Next(by_pool.get(), &position, &pool, &list)) {
        if (!Ref(PyObject_CallMethodOneArg(pool, names.free_blocks, list))) return nullptr;
      }
    }
    Py_RETURN_NONE;
  });
}

PyObject* unpin(PyObject* self, PyObject* blocks) {
  return guarded(self, [&]() -> PyObject* {
    std::span<const BlockId> ids;
    if (!collect_ids(self, blocks, ids)) return nullptr;
    SharedPool* shared = as_pool(self)->shared;
    native(self).unpin_blocks(ids, [shared](BlockId id) {
      if (!Ref(PyObject_CallMethodOneArg(shared->owner, names.on_block_reused,
                                         shared->block(id)->as_object()))) {
        throw pybind11::error_already_set();
      }
    });
    Py_RETURN_NONE;
  });
}

// Prefix cache.

PyObject* get_cached_block(PyObject* self, PyObject* const* args, Py_ssize_t num_args,
                           PyObject* keywords) {
  static constexpr std::array<const char*, 2> kParameters{"block_hash", "kv_cache_group_ids"};
  std::array<PyObject*, 2> in;
  std::string_view hash;
  if (!parse_arguments("get_cached_block", kParameters, 2, args, num_args, keywords, in) ||
      !to_hash(in[0], hash)) {
    return nullptr;
  }
  return guarded(self, [&]() -> PyObject* {
    const Ref groups(PySequence_Fast(in[1], "kv_cache_group_ids must be iterable"));
    if (!groups) return nullptr;
    const Py_ssize_t n = PySequence_Fast_GET_SIZE(groups.get());
    Ref list;
    for (Py_ssize_t i = 0; i < n; ++i) {
      PoolGroupId group_id;
      if (!to_group(PySequence_Fast_GET_ITEM(groups.get(), i), group_id)) return nullptr;
      const std::optional<BlockId> id = native(self).find(hash, group_id);
      if (!id) Py_RETURN_NONE;
      BlockObject* block = as_pool(self)->shared->block(*id);
      if (!list) list = Ref(PyList_New(n));
      if (!list || block == nullptr) return nullptr;
      PyList_SET_ITEM(list.get(), i, Py_NewRef(block->as_object()));
    }
    return list ? list.release() : PyList_New(0);
  });
}

/// Hash of block `i` of a request, whose hashes are one per `scale` hash blocks. Borrowed from
/// the list, or kept alive in `keep`.
bool hash_of_block(PyObject* block_hashes, Py_ssize_t i, Py_ssize_t scale, std::string_view& result,
                   std::vector<Ref>& keep) {
  const Py_ssize_t at = (i + 1) * scale - 1;
  if (PyList_CheckExact(block_hashes)) {
    if (at >= PyList_GET_SIZE(block_hashes)) {
      PyErr_Format(PyExc_IndexError, "block %zd is full but the request has %zd block hashes", i,
                   PyList_GET_SIZE(block_hashes));
      return false;
    }
    return to_hash(PyList_GET_ITEM(block_hashes, at), result);
  }
  const Ref index(PyLong_FromSsize_t(at));
  PyObject* item = index ? PyObject_GetItem(block_hashes, index.get()) : nullptr;
  if (item == nullptr) return false;
  keep.emplace_back(item);
  return to_hash(item, result);
}

/// Hash blocks per block, or 0 with a Python error.
Py_ssize_t hash_scale(PyObject* self, PyObject* block_hashes, Py_ssize_t block_size) {
  const Py_ssize_t hash_block_size = as_pool(self)->hash_block_size;
  if (block_size == hash_block_size) return 1;
  if (block_size <= 0 || block_size % hash_block_size != 0) {
    PyErr_Format(PyExc_AssertionError, "block size %zd is no multiple of the hash block size %zd",
                 block_size, hash_block_size);
    return 0;
  }
  // A view at the block's granularity, which scales by itself.
  if (!PyList_CheckExact(block_hashes) && PyObject_HasAttr(block_hashes, names.scale_factor)) {
    return 1;
  }
  return block_size / hash_block_size;
}

PyObject* cache_full_blocks(PyObject* self, PyObject* const* args, Py_ssize_t num_args,
                            PyObject* keywords) {
  static constexpr std::array<const char*, 7> kParameters{
      "request",           "blocks",    "num_cached_blocks", "num_full_blocks", "block_size",
      "kv_cache_group_id", "block_mask"};
  std::array<PyObject*, 7> in;
  Py_ssize_t first, last, block_size;
  PoolGroupId group_id;
  if (!parse_arguments("cache_full_blocks", kParameters, 6, args, num_args, keywords, in) ||
      !to_size(in[2], first) || !to_size(in[3], last) || !to_size(in[4], block_size) ||
      !to_group(in[5], group_id)) {
    return nullptr;
  }
  if (first >= last) Py_RETURN_NONE;
  return guarded(self, [&]() -> PyObject* {
    const Ref blocks(PySequence_Fast(in[1], "blocks must be a sequence"));
    if (!blocks) return nullptr;
    const Py_ssize_t end = std::min(last, PySequence_Fast_GET_SIZE(blocks.get()));
    PyObject* mask = in[6] == nullptr || in[6] == Py_None ? nullptr : in[6];
    const Ref mask_items(mask == nullptr ? nullptr
                                         : PySequence_Fast(mask, "block_mask must be a sequence"));
    if (mask != nullptr && !mask_items) return nullptr;
    if (mask != nullptr && PySequence_Fast_GET_SIZE(mask_items.get()) != end - first) {
      PyErr_Format(PyExc_AssertionError, "%zd blocks but a mask of %zd", end - first,
                   PySequence_Fast_GET_SIZE(mask_items.get()));
      return nullptr;
    }
    const Ref block_hashes(PyObject_GetAttr(in[0], names.block_hashes));
    if (!block_hashes) return nullptr;
    const Py_ssize_t scale = hash_scale(self, block_hashes.get(), block_size);
    if (scale == 0) return nullptr;

    PoolParts& parts = *as_pool(self)->parts;
    parts.ids.clear();
    parts.hashes.clear();
    parts.mask.clear();
    std::vector<Ref> keep;
    std::string_view parent;
    if (first > 0 && !hash_of_block(block_hashes.get(), first - 1, scale, parent, keep)) {
      return nullptr;
    }
    for (Py_ssize_t i = first; i < end; ++i) {
      BlockObject* block = required_block(self, PySequence_Fast_GET_ITEM(blocks.get(), i));
      if (block == nullptr) return nullptr;
      int wanted = block->id != kNullBlock;
      if (mask != nullptr && wanted) {
        wanted = PyObject_IsTrue(PySequence_Fast_GET_ITEM(mask_items.get(), i - first));
        if (wanted < 0) return nullptr;
      }
      std::string_view hash;
      if (wanted && !hash_of_block(block_hashes.get(), i, scale, hash, keep)) return nullptr;
      parts.ids.push_back(block->id);
      parts.hashes.push_back(hash);
      parts.mask.push_back(static_cast<uint8_t>(wanted));
    }
    native(self).cache_full_blocks({.blocks = parts.ids,
                                    .hashes = parts.hashes,
                                    .first_block = first,
                                    .block_size = block_size,
                                    .group_id = group_id,
                                    .parent_hash = parent,
                                    .mask = parts.mask});
    if (!forward_changes(self, in[0])) return nullptr;
    Py_RETURN_NONE;
  });
}

/// (request, block, hash, parent hash or None, num_tokens, group_id, replace)
PyObject* cache_partial(PyObject* self, PyObject* args) {
  PyObject* request;
  PyObject* object;
  PyObject* parent_object;
  PyObject* hash_object;
  PyObject* group_object;
  long long num_tokens;
  int replace;
  std::string_view hash;
  std::string_view parent;
  PoolGroupId group_id;
  if (!PyArg_ParseTuple(args, "OOOOLOp", &request, &object, &hash_object, &parent_object,
                        &num_tokens, &group_object, &replace) ||
      !to_hash(hash_object, hash) || !to_group(group_object, group_id) ||
      (parent_object != Py_None && !to_hash(parent_object, parent))) {
    return nullptr;
  }
  return guarded(self, [&]() -> PyObject* {
    const BlockObject* block = required_block(self, object);
    if (block == nullptr) return nullptr;
    native(self).cache_partial_block({.block = block->id,
                                      .hash = hash,
                                      .num_tokens = num_tokens,
                                      .hash_block_size = as_pool(self)->hash_block_size,
                                      .group_id = group_id,
                                      .parent_hash = parent,
                                      .replace_existing = replace != 0});
    if (!forward_changes(self, request)) return nullptr;
    Py_RETURN_NONE;
  });
}

PyObject* move_block_hashes(PyObject* self, PyObject* const* args, Py_ssize_t num_args,
                            PyObject* keywords) {
  static constexpr std::array<const char*, 2> kParameters{"src_block", "dst_block"};
  std::array<PyObject*, 2> in;
  if (!parse_arguments("move_block_hashes", kParameters, 2, args, num_args, keywords, in)) {
    return nullptr;
  }
  return guarded(self, [&]() -> PyObject* {
    const BlockObject* src = required_block(self, in[0]);
    const BlockObject* dst = src == nullptr ? nullptr : required_block(self, in[1]);
    if (dst == nullptr) return nullptr;
    native(self).move_block_hashes(src->id, dst->id);
    Py_RETURN_NONE;
  });
}

PyObject* maybe_evict_cached_block(PyObject* self, PyObject* object) {
  return guarded(self, [&]() -> PyObject* {
    BlockObject* block = required_block(self, object);
    if (block == nullptr) return nullptr;
    const int64_t count = native(self).evict_block(block->id);
    if (!forward_changes(self)) return nullptr;
    return PyBool_FromLong(count > 0);
  });
}

/// (key, block, num_tokens)
PyObject* insert_block_hash(PyObject* self, PyObject* const* args, Py_ssize_t num_args,
                            PyObject* keywords) {
  static constexpr std::array<const char*, 3> kParameters{"block_hash_with_group_id", "block",
                                                          "num_tokens"};
  std::array<PyObject*, 3> in;
  HashAndGroup key;
  if (!parse_arguments("_insert_block_hash", kParameters, 3, args, num_args, keywords, in) ||
      !parse_key(in[0], key)) {
    return nullptr;
  }
  return guarded(self, [&]() -> PyObject* {
    const BlockObject* block = required_block(self, in[1]);
    if (block == nullptr) return nullptr;
    std::optional<int64_t> num_tokens;
    if (in[2] != Py_None) {
      num_tokens = PyLong_AsLongLong(in[2]);
      if (*num_tokens == -1 && PyErr_Occurred()) return nullptr;
    }
    native(self).insert_hash(block->id, key.hash, key.group_id, num_tokens);
    Py_RETURN_NONE;
  });
}

PyObject* to_key_list(const std::vector<BlockPool::CachedHash>& hashes) {
  Ref list(PyList_New(static_cast<Py_ssize_t>(hashes.size())));
  for (size_t i = 0; list && i < hashes.size(); ++i) {
    PyObject* key = make_key(hashes[i].hash, hashes[i].group_id);
    if (key == nullptr) return nullptr;
    PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i), key);
  }
  return list.release();
}

PyObject* remove_cached_block_hashes(PyObject* self, PyObject* object) {
  return guarded(self, [&]() -> PyObject* {
    const BlockObject* block = required_block(self, object);
    if (block == nullptr) return nullptr;
    return to_key_list(native(self).remove_hashes(block->id));
  });
}

/// block id -> keys besides the primary one
PyObject* secondary_keys(PyObject* self, PyObject* id) {
  return guarded(self, [&]() -> PyObject* {
    const long value = PyLong_AsLong(id);
    if (value == -1 && PyErr_Occurred()) return nullptr;
    return to_key_list(native(self).secondary_hashes(static_cast<BlockId>(value)));
  });
}

/// key -> the block first cached under it, or None
PyObject* get_one_block(PyObject* self, PyObject* object) {
  HashAndGroup key;
  if (!parse_key(object, key)) return nullptr;
  return guarded(self, [&]() -> PyObject* {
    const std::optional<BlockId> id = native(self).find(key.hash, key.group_id);
    if (!id) Py_RETURN_NONE;
    BlockObject* block = as_pool(self)->shared->block(*id);
    return block == nullptr ? nullptr : Py_NewRef(block->as_object());
  });
}

/// (key, block id) -> whether the key leads (also) to the block
PyObject* has_key(PyObject* self, PyObject* args) {
  PyObject* object;
  int id;
  HashAndGroup key;
  if (!PyArg_ParseTuple(args, "Oi", &object, &id) || !parse_key(object, key)) return nullptr;
  return guarded(self, [&]() -> PyObject* {
    return PyBool_FromLong(native(self).has_key(id, key.hash, key.group_id));
  });
}

PyObject* num_cached_hashes(PyObject* self, PyObject*) {
  return guarded(self, [&] { return PyLong_FromLongLong(native(self).num_cached_hashes()); });
}

PyObject* reset_cache(PyObject* self, PyObject*) {
  return guarded(self, [&] {
    const bool done = native(self).reset_prefix_cache();
    native(self).take_events();
    return PyBool_FromLong(done);
  });
}

// State.

PyObject* get_num_free_blocks(PyObject* self, PyObject*) {
  return guarded(self, [&] { return PyLong_FromLongLong(native(self).num_free_blocks()); });
}

PyObject* get_usage(PyObject* self, PyObject*) {
  return guarded(self, [&] { return PyFloat_FromDouble(native(self).usage()); });
}

PyObject* is_block_writable(PyObject* self, PyObject* object) {
  return guarded(self, [&]() -> PyObject* {
    const BlockObject* block = required_block(self, object);
    if (block == nullptr) return nullptr;
    return PyBool_FromLong(block->id != kNullBlock && native(self).ref_count(block->id) == 1 &&
                           !native(self).has_hash(block->id));
  });
}

PyObject* first_free(PyObject* self, PyObject*) {
  return guarded(self, [&]() -> PyObject* {
    const std::optional<BlockId> id = native(self).first_free();
    if (!id) Py_RETURN_NONE;
    BlockObject* block = as_pool(self)->shared->block(*id);
    return block == nullptr ? nullptr : Py_NewRef(block->as_object());
  });
}

PyObject* detach_free(PyObject* self, PyObject* object) {
  return guarded(self, [&]() -> PyObject* {
    const BlockObject* block = required_block(self, object);
    if (block == nullptr) return nullptr;
    native(self).detach_free(block->id);
    Py_RETURN_NONE;
  });
}

PyObject* attach_free(PyObject* self, PyObject* blocks, bool front) {
  return guarded(self, [&]() -> PyObject* {
    std::span<const BlockId> ids;
    if (!collect_ids(self, blocks, ids)) return nullptr;
    if (front) {
      native(self).attach_free_front(ids);
    } else {
      native(self).attach_free_back(ids);
    }
    Py_RETURN_NONE;
  });
}

PyObject* attach_free_front(PyObject* self, PyObject* blocks) {
  return attach_free(self, blocks, true);
}

PyObject* attach_free_back(PyObject* self, PyObject* blocks) {
  return attach_free(self, blocks, false);
}

PyObject* check_invariants(PyObject* self, PyObject*) {
  return guarded(self, [&]() -> PyObject* {
    native(self).check_invariants();
    Py_RETURN_NONE;
  });
}

PyObject* memory_bytes(PyObject* self, PyObject*) {
  return guarded(self, [&] {
    const size_t bytes = as_pool(self)->shared->objects.size() * sizeof(BlockObject);
    return PyLong_FromLongLong(native(self).memory_bytes() + static_cast<int64_t>(bytes));
  });
}

/// A block by its id, which must be one of the pool's.
PyObject* block_of_id(PyObject* self, PyObject* id) {
  return guarded(self, [&]() -> PyObject* {
    const long value = PyLong_AsLong(id);
    if (value == -1 && PyErr_Occurred()) return nullptr;
    native(self).ref_count(static_cast<BlockId>(value));  // throws for another
    BlockObject* block = as_pool(self)->shared->block(static_cast<BlockId>(value));
    return block == nullptr ? nullptr : Py_NewRef(block->as_object());
  });
}

// The type.

PyObject* pool_new(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* self = type->tp_alloc(type, 0);
  if (self != nullptr) as_pool(self)->metrics_collector = Py_NewRef(Py_None);
  return self;
}

int pool_init(PyObject* self, PyObject* args, PyObject* kwargs) {
  static const char* keywords[] = {"num_gpu_blocks",         "enable_caching", "hash_block_size",
                                   "enable_kv_cache_events", "log_uses",       nullptr};
  Py_ssize_t num_blocks;
  int enable_caching;
  Py_ssize_t hash_block_size;
  int enable_events;
  int log_uses;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "npnpp", const_cast<char**>(keywords), &num_blocks,
                                   &enable_caching, &hash_block_size, &enable_events, &log_uses)) {
    return -1;
  }
  PoolObject* pool = as_pool(self);
  if (pool->shared != nullptr) {
    PyErr_SetString(PyExc_RuntimeError, "a block pool is initialised once");
    return -1;
  }
  try {
    auto parts = std::make_unique<PoolParts>();
    pool->shared = new SharedPool(num_blocks,
                                  {.enable_caching = enable_caching != 0,
                                   .enable_events = enable_events != 0,
                                   .max_events = INT64_MAX,
                                   .log_uses = log_uses != 0},
                                  self);
    pool->parts = parts.release();
  } catch (...) {
    set_python_error();
    return -1;
  }
  pool->hash_block_size = hash_block_size;
  pool->enable_caching = static_cast<char>(enable_caching);
  pool->enable_events = static_cast<char>(enable_events);
  pool->log_uses = static_cast<char>(log_uses);
  return 0;
}

int pool_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(as_pool(self)->metrics_collector);
  if (const PoolParts* parts = as_pool(self)->parts) {
    for (const FiledEvent& filed : parts->filed) Py_VISIT(filed.request.get());
  }
  return 0;
}

int pool_clear(PyObject* self) {
  Py_XSETREF(as_pool(self)->metrics_collector, Py_NewRef(Py_None));
  if (PoolParts* parts = as_pool(self)->parts) std::exchange(parts->filed, {}).clear();
  return 0;
}

void pool_dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  PoolObject* pool = as_pool(self);
  if (pool->shared != nullptr) pool->shared->abandon();
  delete pool->parts;
  Py_CLEAR(pool->metrics_collector);
  Py_TYPE(self)->tp_free(self);
}

PyMethodDef pool_methods[] = {
    {"get_new_blocks", as_method(get_new_blocks), kFast,
     "The next free blocks, all or none; raises BlockPoolError (a ValueError)."},
    {"touch", touch, METH_O, "One more holder for each block; null blocks are skipped."},
    {"free_blocks", free_blocks, METH_O,
     "One holder less for each block, in order of eviction. Blocks of other pools go to those."},
    {"get_cached_block", as_method(get_cached_block), kFast,
     "One block per group for the hash, or None if a group has none."},
    {"cache_full_blocks", as_method(cache_full_blocks), kFast,
     "Makes blocks[num_cached_blocks:num_full_blocks] reachable by the request's block hashes."},
    {"move_block_hashes", as_method(move_block_hashes), kFast,
     "Re-points all keys of src_block to dst_block, which must have none. No events."},
    {"get_num_free_blocks", get_num_free_blocks, METH_NOARGS, "Number of free blocks."},
    {"get_usage", get_usage, METH_NOARGS, "Share of num_gpu_blocks - 1 in use, 0 to 1."},
    {"is_block_writable", is_block_writable, METH_O,
     "Whether its sole holder may change the block."},
    {"check_invariants", check_invariants, METH_NOARGS,
     "Raises BlockPoolError if the pool contradicts itself. O(num_gpu_blocks)."},
    {"memory_bytes", memory_bytes, METH_NOARGS, "Bytes reserved by the pool and its blocks."},
    {"_maybe_evict_cached_block", maybe_evict_cached_block, METH_O,
     "Drops the keys of the block; whether there were any."},
    {"_insert_block_hash", as_method(insert_block_hash), kFast, "Adds a key to a block."},
    {"_remove_cached_block_hashes", remove_cached_block_hashes, METH_O,
     "Drops the keys of a block without an event and returns them."},
    {"_cache_partial", cache_partial, METH_VARARGS, nullptr},
    {"_unpin", unpin, METH_O, nullptr},
    {"_take_filed_events", take_filed_events, METH_NOARGS, nullptr},
    {"_reset", reset_cache, METH_NOARGS, nullptr},
    {"_secondary_keys", secondary_keys, METH_O, nullptr},
    {"_get_one_block", get_one_block, METH_O, nullptr},
    {"_has_key", has_key, METH_VARARGS, nullptr},
    {"_num_cached_hashes", num_cached_hashes, METH_NOARGS, nullptr},
    {"_block", block_of_id, METH_O, nullptr},
    {"_first_free", first_free, METH_NOARGS, nullptr},
    {"_detach_free", detach_free, METH_O, nullptr},
    {"_attach_free_front", attach_free_front, METH_O, nullptr},
    {"_attach_free_back", attach_free_back, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyMemberDef pool_members[] = {
    {"metrics_collector", T_OBJECT, offsetof(PoolObject, metrics_collector), 0, nullptr},
    {"enable_caching", T_BOOL, offsetof(PoolObject, enable_caching), READONLY, nullptr},
    {"enable_kv_cache_events", T_BOOL, offsetof(PoolObject, enable_events), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyTypeObject pool_type{};

bool ready_pool_type() {
  pool_type.tp_name = "kvplan._core.VllmBlockPool";
  pool_type.tp_doc = "Native base of kvplan.vllm.block_pool.BlockPool.";
  pool_type.tp_basicsize = sizeof(PoolObject);
  pool_type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC;
  pool_type.tp_new = pool_new;
  pool_type.tp_init = pool_init;
  pool_type.tp_dealloc = pool_dealloc;
  pool_type.tp_traverse = pool_traverse;
  pool_type.tp_clear = pool_clear;
  pool_type.tp_methods = pool_methods;
  pool_type.tp_members = pool_members;
  return ready_static_type(pool_type);
}

bool intern_names() {
  names = {PyUnicode_InternFromString("_convert_events"),
           PyUnicode_InternFromString("_on_block_reused"),
           PyUnicode_InternFromString("free_blocks"),
           PyUnicode_InternFromString("is_null"),
           PyUnicode_InternFromString("pool"),
           PyUnicode_InternFromString("ref_cnt"),
           PyUnicode_InternFromString("block_hashes"),
           PyUnicode_InternFromString("scale_factor"),
           PyUnicode_InternFromString("on_block_allocated"),
           PyUnicode_InternFromString("on_block_accessed"),
           PyUnicode_InternFromString("on_block_evicted")};
  return !PyErr_Occurred();
}

}  // namespace

SharedPool* shared_pool_of(PyObject* pool) {
  if (!PyObject_TypeCheck(pool, &pool_type) || as_pool(pool)->shared == nullptr) {
    PyErr_Format(PyExc_TypeError, "%R is not a block pool of kvplan", pool);
    return nullptr;
  }
  return as_pool(pool)->shared;
}

bool note_changes(PyObject* self, PyObject* request) {
  PoolObject* pool = as_pool(self);
  if (pool->enable_events && pool->shared->pool.has_events()) {
    for (BlockPoolEvent& event : pool->shared->pool.take_events()) {
      pool->parts->filed.push_back({std::move(event), Ref(Py_XNewRef(request))});
    }
  }
  return pool->log_uses == 0 || pool->metrics_collector == Py_None || tell_metrics(self);
}

void bind_vllm_block_pool(pybind11::module_& m) {
  if (!ready_block_type() || !ready_pool_type() || !intern_names()) {
    throw pybind11::error_already_set();
  }
  m.add_object("VllmBlockPool", pybind11::handle(reinterpret_cast<PyObject*>(&pool_type)));
  m.add_object("KVCacheBlock", pybind11::handle(reinterpret_cast<PyObject*>(&block_type)));
}

}  // namespace kvplan::bindings
