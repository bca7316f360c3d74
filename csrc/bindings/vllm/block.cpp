#include "bindings/vllm/block.h"

#include <structmember.h>

#include <algorithm>
#include <string>

#include "bindings/bindings.h"

namespace kvplan::bindings {

PyTypeObject block_type{};

HashAndGroup parse_key(PyObject* key) {
  if (!PyBytes_Check(key) || PyBytes_GET_SIZE(key) < 4) {
    throw PythonError(PyErr_Format(
        PyExc_TypeError, "a hash key is bytes that end in a 4-byte group id, not %R", key));
  }
  const auto size = static_cast<size_t>(PyBytes_GET_SIZE(key)) - 4;
  const char* data = PyBytes_AS_STRING(key);
  const auto* tail = reinterpret_cast<const unsigned char*>(data + size);
  if (tail[0] != 0 || tail[1] != 0) {
    throw PythonError(PyErr_Format(PyExc_ValueError, "a hash key's group id is above 65535"));
  }
  return {{data, size}, static_cast<PoolGroupId>(tail[2] << 8 | tail[3])};
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

BlockObject& SharedPool::make_block(BlockId id) {
  BlockObject& block = objects[static_cast<size_t>(id)];
  // Kept when the block goes, which may come again.
  if (block.block_id == nullptr) block.block_id = checked(PyLong_FromLong(id));
  PyObject_Init(block.as_object(), &block_type);
  block.is_null = id == kNullBlock ? Py_True : Py_False;
  block.shared = this;
  block.id = id;
  ++users;
  return block;
}

SharedPool::~SharedPool() {
  for (size_t i = 0; i < objects.size(); ++i) Py_XDECREF(objects[i].block_id);
}

void SharedPool::abandon() {
  owner = nullptr;
  for (size_t i = 0; i < objects.size(); ++i) {
    if (Py_REFCNT(objects[i].as_object()) != 0) Py_DECREF(objects[i].as_object());
  }
  release();
}

namespace {

BlockObject* as_block(PyObject* self) { return reinterpret_cast<BlockObject*>(self); }
BlockPool& pool_of(PyObject* self) { return as_block(self)->shared->pool; }

void block_dealloc(PyObject* self) { as_block(self)->shared->release(); }

PyObject* get_ref_count(PyObject* self, void*) {
  return PyLong_FromLong(pool_of(self).ref_count(as_block(self)->id));
}

/// What vLLM's managers do write (`ref_cnt += 1`) is passed on to the pool.
int set_ref_count(PyObject* self, PyObject* value, void*) {
  return without_exceptions([&] {
    if (value == nullptr) {
      throw PythonError(PyErr_Format(PyExc_AttributeError, "ref_cnt cannot be deleted"));
    }
    pool_of(self).set_ref_count(as_block(self)->id, to_int(value));
    return 0;
  });
}

PyObject* get_pool(PyObject* self, void*) {
  PyObject* owner = as_block(self)->shared->owner;
  return Py_NewRef(owner == nullptr ? Py_None : owner);
}

PyObject* get_block_hash(PyObject* self, void*) {
  const BlockPool& pool = pool_of(self);
  const BlockId id = as_block(self)->id;
  const std::optional<PoolGroupId> group_id = pool.block_hash_group(id);
  if (!group_id) Py_RETURN_NONE;
  return make_key(pool.block_hash(id), *group_id);
}

PyObject* get_num_tokens(PyObject* self, void*) {
  const std::optional<int64_t> tokens = pool_of(self).block_hash_num_tokens(as_block(self)->id);
  if (!tokens) Py_RETURN_NONE;
  return PyLong_FromLongLong(*tokens);
}

/// None, too, where the pool is gone.
PyObject* neighbour(SharedPool* shared, std::optional<BlockId> id) {
  if (!id || shared->owner == nullptr) Py_RETURN_NONE;
  return without_exceptions([&] { return Py_NewRef(shared->block(*id).as_object()); });
}

PyObject* get_prev(PyObject* self, void*) {
  return neighbour(as_block(self)->shared, pool_of(self).prev_free(as_block(self)->id));
}

PyObject* get_next(PyObject* self, void*) {
  return neighbour(as_block(self)->shared, pool_of(self).next_free(as_block(self)->id));
}

}  // namespace

template <>
struct Receiver<BlockObject> {
  static std::tuple<BlockObject&> parts_of(PyObject* self) { return {*as_block(self)}; }
};

namespace {

void set_block_hash(BlockObject& self, const Arguments<2>& in) {
  BlockPool& pool = self.shared->pool;
  if (pool.has_hash(self.id)) {
    throw PythonError(
        PyErr_Format(PyExc_AssertionError, "block %S already has a hash", self.block_id));
  }
  const HashAndGroup key = parse_key(in[0]);
  std::optional<int64_t> num_tokens;
  if (is_given(in[1])) num_tokens = to_int(in[1]);
  pool.insert_hash(self.id, key.hash, key.group_id, num_tokens);
}

void reset_hash(BlockObject& self) { self.shared->pool.remove_hashes(self.id); }

PyObject* block_repr(PyObject* self) {
  const Ref hash(get_block_hash(self, nullptr));
  const Ref tokens(get_num_tokens(self, nullptr));
  const Ref ref_count(get_ref_count(self, nullptr));
  if (!hash || !tokens || !ref_count) return nullptr;
  return PyUnicode_FromFormat(
      "KVCacheBlock(block_id=%S, ref_cnt=%S, _block_hash=%R, _block_hash_num_tokens=%S)",
      as_block(self)->block_id, ref_count.get(), hash.get(), tokens.get());
}

PyGetSetDef block_getset[] = {
    {"ref_cnt", get_ref_count, set_ref_count, "Number of holders.", nullptr},
    {"pool", get_pool, nullptr, "The pool of the block, or None once it is gone.", nullptr},
    {"block_hash", get_block_hash, nullptr, "Primary key (hash and group id), or None.", nullptr},
    {"_block_hash", get_block_hash, nullptr, nullptr, nullptr},
    {"block_hash_num_tokens", get_num_tokens, nullptr,
     "Tokens of the prefix that block_hash covers, or None.", nullptr},
    {"_block_hash_num_tokens", get_num_tokens, nullptr, nullptr, nullptr},
    {"prev_free_block", get_prev, nullptr, "Neighbour in the free list, or None.", nullptr},
    {"next_free_block", get_next, nullptr, "Neighbour in the free list, or None.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMemberDef block_members[] = {
    {"block_id", T_OBJECT_EX, offsetof(BlockObject, block_id), READONLY, nullptr},
    {"is_null", T_OBJECT_EX, offsetof(BlockObject, is_null), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyMethodDef block_methods[] = {
    method<set_block_hash, "set_block_hash", 1, "block_hash", "num_tokens">(
        "Gives the block its primary key; it must have none."),
    method_without_arguments<reset_hash, "reset_hash">("Drops the keys of the block."),
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

bool ready_static_type(PyTypeObject& type) {
  Py_SET_REFCNT(reinterpret_cast<PyObject*>(&type), 1);
  return PyType_Ready(&type) == 0;
}

bool ready_block_type() {
  block_type.tp_name = "kvplan.vllm.block_pool.KVCacheBlock";
  block_type.tp_doc =
      "Metadata of one KV cache block of a pool. Mirrors "
      "vllm/v1/core/kv_cache_utils.py::KVCacheBlock (0.33).";
  block_type.tp_basicsize = sizeof(BlockObject);
  block_type.tp_flags = Py_TPFLAGS_DEFAULT;
  block_type.tp_dealloc = block_dealloc;
  block_type.tp_repr = block_repr;
  block_type.tp_getset = block_getset;
  block_type.tp_members = block_members;
  block_type.tp_methods = block_methods;
  return ready_static_type(block_type);
}

}  // namespace kvplan::bindings
