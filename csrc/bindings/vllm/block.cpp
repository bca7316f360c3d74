#include "bindings/vllm/block.h"

#include <structmember.h>

#include <array>
#include <string>
#include <utility>

#include "bindings/bindings.h"
#include "bindings/vllm/fast_call.h"

namespace kvplan::bindings {

PyTypeObject block_type{};
PyTypeObject block_sequence_type{};

PyObject* small_int(long value) {
  // CPython shares the objects of -5 to 256, but looks them up on each call.
  static const auto shared = [] {
    std::array<PyObject*, 257> objects{};
    for (size_t i = 0; i < objects.size(); ++i) objects[i] = PyLong_FromSize_t(i);
    return objects;
  }();
  if (value >= 0 && value < static_cast<long>(shared.size())) {
    PyObject* object = shared[static_cast<size_t>(value)];
    Py_INCREF(object);
    return object;
  }
  return PyLong_FromLong(value);
}

bool parse_key(PyObject* key, HashAndGroup& result) {
  if (!PyBytes_Check(key) || PyBytes_GET_SIZE(key) < 4) {
    PyErr_Format(PyExc_TypeError, "a hash key is bytes that end in a 4-byte group id, not %R", key);
    return false;
  }
  const auto size = static_cast<size_t>(PyBytes_GET_SIZE(key)) - 4;
  const char* data = PyBytes_AS_STRING(key);
  const auto* tail = reinterpret_cast<const unsigned char*>(data + size);
  if (tail[0] != 0 || tail[1] != 0) {
    PyErr_SetString(PyExc_ValueError, "a hash key's group id is above 65535");
    return false;
  }
  result.hash = {data, size};
  result.group_id = static_cast<PoolGroupId>(tail[2] << 8 | tail[3]);
  return true;
}

PyObject* make_key(std::string_view hash, PoolGroupId group_id) {
  PyObject* key = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(hash.size()) + 4);
  if (key == nullptr) return nullptr;
  char* data = PyBytes_AS_STRING(key);
  std::copy(hash.begin(), hash.end(), data);
  const auto group = static_cast<uint16_t>(group_id);
  data += hash.size();
  data[0] = data[1] = 0;
  data[2] = static_cast<char>(group >> 8);
  data[3] = static_cast<char>(group & 0xff);
  return key;
}

BlockObject* BlockArena::make_block(BlockId id) {
  auto* object = reinterpret_cast<BlockObject*>(slots[static_cast<size_t>(id)].bytes);
  PyObject* number = id_object(id);
  if (number == nullptr) return nullptr;
  object->block_id = Py_NewRef(number);
  object->is_null = Py_NewRef(id == kNullBlock ? Py_True : Py_False);
  object->arena = this;
  object->id = id;
  PyObject_Init(object->as_object(), &block_type);
  ++users;
  return object;
}

BlockArena::~BlockArena() {
  for (size_t i = 0; i < id_objects.size(); ++i) Py_XDECREF(id_objects[i]);
}

void BlockArena::abandon() {
  owner = nullptr;
  for (size_t i = 0; i < slots.size(); ++i) {
    auto* object = reinterpret_cast<PyObject*>(slots[i].bytes);
    if (object->ob_type != nullptr) Py_DECREF(object);
  }
  release();
}

namespace {

BlockObject* as_block(PyObject* self) { return reinterpret_cast<BlockObject*>(self); }

PyObject* none_if_null(PyObject* object) { return Py_NewRef(object == nullptr ? Py_None : object); }

int refuse(const char* attribute) {
  PyErr_Format(PyExc_AttributeError, "%s of a pooled block is the pool's to change", attribute);
  return -1;
}

PyObject* block_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"block_id",
                                "ref_cnt",
                                "_block_hash",
                                "_block_hash_num_tokens",
                                "prev_free_block",
                                "next_free_block",
                                "is_null",
                                "pool",
                                nullptr};
  PyObject* id = nullptr;
  PyObject* ref_cnt = nullptr;
  PyObject* block_hash = Py_None;
  PyObject* num_tokens = Py_None;
  PyObject* prev = Py_None;
  PyObject* next = Py_None;
  PyObject* is_null = Py_False;
  PyObject* pool = Py_None;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|OOOOOO$O", const_cast<char**>(names), &id,
                                   &ref_cnt, &block_hash, &num_tokens, &prev, &next, &is_null,
                                   &pool)) {
    return nullptr;
  }
  auto* self = as_block(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  self->block_id = Py_NewRef(id);
  self->ref_cnt = ref_cnt == nullptr ? small_int(0) : Py_NewRef(ref_cnt);
  self->is_null = Py_NewRef(is_null);
  self->pool = Py_NewRef(pool);
  self->block_hash = Py_NewRef(block_hash);
  self->num_tokens = Py_NewRef(num_tokens);
  self->prev_free_block = Py_NewRef(prev);
  self->next_free_block = Py_NewRef(next);
  return self->as_object();
}

int block_is_gc(PyObject* self) { return as_block(self)->arena == nullptr; }

int block_traverse(PyObject* self, visitproc visit, void* arg) {
  BlockObject* block = as_block(self);
  if (block->arena != nullptr) return 0;
  Py_VISIT(block->block_id);
  Py_VISIT(block->is_null);
  Py_VISIT(block->ref_cnt);
  Py_VISIT(block->pool);
  Py_VISIT(block->block_hash);
  Py_VISIT(block->num_tokens);
  Py_VISIT(block->prev_free_block);
  Py_VISIT(block->next_free_block);
  return 0;
}

int block_clear(PyObject* self) {
  BlockObject* block = as_block(self);
  if (block->arena != nullptr) return 0;
  Py_CLEAR(block->ref_cnt);
  Py_CLEAR(block->pool);
  Py_CLEAR(block->block_hash);
  Py_CLEAR(block->num_tokens);
  Py_CLEAR(block->prev_free_block);
  Py_CLEAR(block->next_free_block);
  return 0;
}

void block_dealloc(PyObject* self) {
  BlockObject* block = as_block(self);
  BlockArena* arena = block->arena;
  if (arena == nullptr) PyObject_GC_UnTrack(self);
  block_clear(self);
  Py_CLEAR(block->block_id);
  Py_CLEAR(block->is_null);
  if (arena == nullptr) {
    Py_TYPE(self)->tp_free(self);
  } else {
    self->ob_type = nullptr;
    arena->release();
  }
}

/// `block_id` and `is_null` are read-only to CPython, so that a pooled block cannot be changed
/// behind its pool's back.
int block_setattro(PyObject* self, PyObject* name, PyObject* value) {
  BlockObject* block = as_block(self);
  const char* attribute = PyUnicode_AsUTF8(name);
  if (attribute == nullptr) return -1;
  const std::string_view key = attribute;
  PyObject** member = key == "block_id"  ? &block->block_id
                      : key == "is_null" ? &block->is_null
                                         : nullptr;
  if (member == nullptr || value == nullptr) return PyObject_GenericSetAttr(self, name, value);
  if (block->arena != nullptr) return refuse(attribute);
  PyObject* old = std::exchange(*member, Py_NewRef(value));
  Py_XDECREF(old);
  return 0;
}

PyObject* get_ref_count(PyObject* self, void*) {
  BlockObject* block = as_block(self);
  if (block->arena == nullptr) return none_if_null(block->ref_cnt);
  return small_int(block->arena->pool.ref_count(block->id));
}

/// What vLLM's managers do write (`ref_cnt += 1`) is passed on to the pool.
int set_ref_count(PyObject* self, PyObject* value, void*) {
  BlockObject* block = as_block(self);
  if (value == nullptr) return refuse("ref_cnt");
  if (block->arena == nullptr) {
    Py_XSETREF(block->ref_cnt, Py_NewRef(value));
    return 0;
  }
  const long long count = PyLong_AsLongLong(value);
  if (count == -1 && PyErr_Occurred()) return -1;
  try {
    block->arena->pool.set_ref_count(block->id, count);
  } catch (...) {
    set_python_error();
    return -1;
  }
  return 0;
}

PyObject* get_pool(PyObject* self, void*) {
  BlockObject* block = as_block(self);
  return none_if_null(block->arena != nullptr ? block->arena->owner : block->pool);
}

PyObject* get_block_hash(PyObject* self, void*) {
  BlockObject* block = as_block(self);
  if (block->arena == nullptr) return none_if_null(block->block_hash);
  const BlockPool& pool = block->arena->pool;
  const std::optional<PoolGroupId> group_id = pool.block_hash_group(block->id);
  if (!group_id) Py_RETURN_NONE;
  return make_key(pool.block_hash(block->id), *group_id);
}

PyObject* get_num_tokens(PyObject* self, void*) {
  BlockObject* block = as_block(self);
  if (block->arena == nullptr) return none_if_null(block->num_tokens);
  const std::optional<int64_t> tokens = block->arena->pool.block_hash_num_tokens(block->id);
  if (!tokens) Py_RETURN_NONE;
  return PyLong_FromLongLong(*tokens);
}

PyObject* neighbour(BlockArena* arena, std::optional<BlockId> id) {
  if (!id) Py_RETURN_NONE;
  BlockObject* block = arena->block(*id);
  return block == nullptr ? nullptr : Py_NewRef(block->as_object());
}

PyObject* get_prev(PyObject* self, void*) {
  BlockObject* block = as_block(self);
  if (block->arena == nullptr) return none_if_null(block->prev_free_block);
  return neighbour(block->arena, block->arena->pool.prev_free(block->id));
}

PyObject* get_next(PyObject* self, void*) {
  BlockObject* block = as_block(self);
  if (block->arena == nullptr) return none_if_null(block->next_free_block);
  return neighbour(block->arena, block->arena->pool.next_free(block->id));
}

/// `closure` is the offset of the standalone field.
int set_standalone(PyObject* self, PyObject* value, void* closure) {
  if (as_block(self)->arena != nullptr) return refuse("This field");
  auto** member = reinterpret_cast<PyObject**>(reinterpret_cast<char*>(self) +
                                               reinterpret_cast<uintptr_t>(closure));
  Py_XSETREF(*member, Py_NewRef(value == nullptr ? Py_None : value));
  return 0;
}

bool insert_hash(BlockObject* block, PyObject* key, PyObject* num_tokens) {
  HashAndGroup parsed;
  if (!parse_key(key, parsed)) return false;
  std::optional<int64_t> tokens;
  if (num_tokens != Py_None) {
    tokens = PyLong_AsLongLong(num_tokens);
    if (*tokens == -1 && PyErr_Occurred()) return false;
  }
  try {
    block->arena->pool.insert_hash(block->id, parsed.hash, parsed.group_id, tokens);
  } catch (...) {
    set_python_error();
    return false;
  }
  return true;
}

PyObject* set_block_hash(PyObject* self, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"block_hash", "num_tokens", nullptr};
  PyObject* key = nullptr;
  PyObject* num_tokens = Py_None;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O", const_cast<char**>(names), &key,
                                   &num_tokens)) {
    return nullptr;
  }
  BlockObject* block = as_block(self);
  const bool has_hash = block->arena != nullptr
                            ? block->arena->pool.has_hash(block->id)
                            : block->block_hash != nullptr && block->block_hash != Py_None;
  if (has_hash) {
    PyErr_Format(PyExc_AssertionError, "block %S already has a hash", block->block_id);
    return nullptr;
  }
  if (block->arena != nullptr) {
    if (!insert_hash(block, key, num_tokens)) return nullptr;
  } else {
    Py_XSETREF(block->block_hash, Py_NewRef(key));
    Py_XSETREF(block->num_tokens, Py_NewRef(num_tokens));
  }
  Py_RETURN_NONE;
}

PyObject* reset_hash(PyObject* self, PyObject*) {
  BlockObject* block = as_block(self);
  if (block->arena != nullptr) {
    block->arena->pool.remove_hashes(block->id);
  } else {
    Py_XSETREF(block->block_hash, Py_NewRef(Py_None));
    Py_XSETREF(block->num_tokens, Py_NewRef(Py_None));
  }
  Py_RETURN_NONE;
}

PyObject* block_repr(PyObject* self) {
  BlockObject* block = as_block(self);
  PyObject* hash = get_block_hash(self, nullptr);
  PyObject* tokens = get_num_tokens(self, nullptr);
  PyObject* ref_count = get_ref_count(self, nullptr);
  PyObject* text = nullptr;
  if (hash != nullptr && tokens != nullptr && ref_count != nullptr) {
    text = PyUnicode_FromFormat(
        "KVCacheBlock(block_id=%S, ref_cnt=%S, _block_hash=%R, _block_hash_num_tokens=%S)",
        block->block_id, ref_count, hash, tokens);
  }
  Py_XDECREF(hash);
  Py_XDECREF(tokens);
  Py_XDECREF(ref_count);
  return text;
}

PyGetSetDef block_getset[] = {
    {"ref_cnt", get_ref_count, set_ref_count, "Number of holders.", nullptr},
    {"pool", get_pool, set_standalone, "The pool of the block, or None.",
     reinterpret_cast<void*>(offsetof(BlockObject, pool))},
    {"block_hash", get_block_hash, nullptr, "Primary key (hash and group id), or None.", nullptr},
    {"_block_hash", get_block_hash, set_standalone, nullptr,
     reinterpret_cast<void*>(offsetof(BlockObject, block_hash))},
    {"block_hash_num_tokens", get_num_tokens, nullptr,
     "Tokens of the prefix that block_hash covers, or None.", nullptr},
    {"_block_hash_num_tokens", get_num_tokens, set_standalone, nullptr,
     reinterpret_cast<void*>(offsetof(BlockObject, num_tokens))},
    {"prev_free_block", get_prev, set_standalone, "Neighbour in the free list, or None.",
     reinterpret_cast<void*>(offsetof(BlockObject, prev_free_block))},
    {"next_free_block", get_next, set_standalone, "Neighbour in the free list, or None.",
     reinterpret_cast<void*>(offsetof(BlockObject, next_free_block))},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMemberDef block_members[] = {
    {"block_id", T_OBJECT_EX, offsetof(BlockObject, block_id), READONLY, nullptr},
    {"is_null", T_OBJECT_EX, offsetof(BlockObject, is_null), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyMethodDef block_methods[] = {
    {"set_block_hash", as_method(set_block_hash), METH_VARARGS | METH_KEYWORDS,
     "Gives the block its primary key; it must have none."},
    {"reset_hash", reset_hash, METH_NOARGS, "Drops the keys of the block."},
    {nullptr, nullptr, 0, nullptr}};

struct BlockSequence {
  PyObject ob_base;
  BlockArena* arena;
};

BlockArena* arena_of(PyObject* self) { return reinterpret_cast<BlockSequence*>(self)->arena; }

void sequence_dealloc(PyObject* self) {
  arena_of(self)->release();
  Py_TYPE(self)->tp_free(self);
}

Py_ssize_t sequence_length(PyObject* self) {
  return static_cast<Py_ssize_t>(arena_of(self)->slots.size());
}

PyObject* sequence_item(PyObject* self, Py_ssize_t i) {
  if (i < 0 || i >= sequence_length(self)) {
    PyErr_Format(PyExc_IndexError, "block id %zd is not in the pool, which has ids 0 to %zd", i,
                 sequence_length(self) - 1);
    return nullptr;
  }
  BlockObject* block = arena_of(self)->block(static_cast<BlockId>(i));
  return block == nullptr ? nullptr : Py_NewRef(block->as_object());
}

PyObject* sequence_slice(PyObject* self, PyObject* slice) {
  Py_ssize_t start, stop, step;
  if (PySlice_Unpack(slice, &start, &stop, &step) < 0) return nullptr;
  const Py_ssize_t n = PySlice_AdjustIndices(sequence_length(self), &start, &stop, step);
  PyObject* list = PyList_New(n);
  for (Py_ssize_t i = 0; list != nullptr && i < n; ++i) {
    PyObject* block = sequence_item(self, start + i * step);
    if (block == nullptr) {
      Py_CLEAR(list);
    } else {
      PyList_SET_ITEM(list, i, block);
    }
  }
  return list;
}

PyObject* sequence_subscript(PyObject* self, PyObject* index) {
  if (PySlice_Check(index)) return sequence_slice(self, index);
  Py_ssize_t i = PyNumber_AsSsize_t(index, PyExc_IndexError);
  if (i == -1 && PyErr_Occurred()) return nullptr;
  return sequence_item(self, i < 0 ? i + sequence_length(self) : i);
}

PySequenceMethods sequence_as_sequence = [] {
  PySequenceMethods methods{};
  methods.sq_length = sequence_length;
  methods.sq_item = sequence_item;
  return methods;
}();

PyMappingMethods sequence_as_mapping = [] {
  PyMappingMethods methods{};
  methods.mp_length = sequence_length;
  methods.mp_subscript = sequence_subscript;
  return methods;
}();

}  // namespace

bool ready_static_type(PyTypeObject& type) {
  Py_SET_REFCNT(reinterpret_cast<PyObject*>(&type), 1);
  return PyType_Ready(&type) == 0;
}

bool ready_block_types() {
  block_type.tp_name = "kvplan.vllm.block_pool.KVCacheBlock";
  block_type.tp_doc =
      "Metadata of one KV cache block. Mirrors vllm/v1/core/kv_cache_utils.py::KVCacheBlock "
      "(0.33).";
  block_type.tp_basicsize = sizeof(BlockObject);
  block_type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC;
  block_type.tp_new = block_new;
  block_type.tp_dealloc = block_dealloc;
  block_type.tp_is_gc = block_is_gc;
  block_type.tp_traverse = block_traverse;
  block_type.tp_clear = block_clear;
  block_type.tp_setattro = block_setattro;
  block_type.tp_repr = block_repr;
  block_type.tp_getset = block_getset;
  block_type.tp_members = block_members;
  block_type.tp_methods = block_methods;

  block_sequence_type.tp_name = "kvplan.vllm.block_pool.BlockSequence";
  block_sequence_type.tp_doc = "All blocks of a pool, by block id.";
  block_sequence_type.tp_basicsize = sizeof(BlockSequence);
  block_sequence_type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_SEQUENCE;
  block_sequence_type.tp_dealloc = sequence_dealloc;
  block_sequence_type.tp_as_sequence = &sequence_as_sequence;
  block_sequence_type.tp_as_mapping = &sequence_as_mapping;
  return ready_static_type(block_type) && ready_static_type(block_sequence_type);
}

PyObject* make_block_sequence(BlockArena* arena) {
  auto* sequence = PyObject_New(BlockSequence, &block_sequence_type);
  if (sequence == nullptr) return nullptr;
  sequence->arena = arena;
  ++arena->users;
  return &sequence->ob_base;
}

}  // namespace kvplan::bindings
