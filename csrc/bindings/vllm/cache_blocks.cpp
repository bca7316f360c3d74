#include "bindings/vllm/cache_blocks.h"

#include <structmember.h>

#include <array>
#include <memory>

#include "bindings/vllm/fast_call.h"
#include "bindings/vllm/native_types.h"

namespace kvplan::bindings {
namespace {

PyTypeObject* base_type = nullptr;

struct Names {
  PyObject* allow_none = PyUnicode_InternFromString("allow_none");
  PyObject* block_id = PyUnicode_InternFromString("block_id");
  PyObject* blocks = PyUnicode_InternFromString("blocks");
};

const Names& names() {
  static const Names interned;
  return interned;
}

CacheBlocks* as_self(PyObject* object) { return reinterpret_cast<CacheBlocks*>(object); }

}  // namespace

template <>
struct Receiver<CacheBlocks> {
  static std::tuple<CacheBlocks&> parts_of(PyObject* object) { return {*as_self(object)}; }
};

namespace {

/// Borrowed: the tuple of block objects, made at the first call.
PyObject* materialize(CacheBlocks& self) {
  if (self.blocks != nullptr) return self.blocks;
  const Ref all = attribute(self.pool, names().blocks);
  Ref groups = make_tuple(self.num_groups, [&](size_t group) {
    const std::span<const BlockId> ids = self.ids(group);
    return make_list(ids.size(), [&](size_t i) { return PySequence_GetItem(all.get(), ids[i]); })
        .release();
  });
  self.blocks = groups.release();
  return self.blocks;
}

PyObject* get_blocks(PyObject* object, void*) {
  return without_exceptions([&] { return Py_NewRef(materialize(*as_self(object))); });
}

int set_blocks(PyObject* object, PyObject* value, void*) {
  if (value == nullptr || !PyTuple_Check(value)) {
    PyErr_SetString(PyExc_TypeError, "blocks must be a tuple with a sequence of blocks per group");
    return -1;
  }
  CacheBlocks* self = as_self(object);
  Py_XSETREF(self->blocks, Py_NewRef(value));
  self->is_shared_empty = 0;
  return 0;
}

Py_ssize_t num_groups_of(const CacheBlocks& self) {
  return self.blocks != nullptr ? PyTuple_GET_SIZE(self.blocks)
                                : static_cast<Py_ssize_t>(self.num_groups);
}

/// Of new ints: those that a pool would keep lie apart in memory, and take longer to reach.
Ref id_list(std::span<const BlockId> ids) {
  return make_list(ids.size(), [&](size_t i) { return PyLong_FromLong(ids[i]); });
}

/// Ids of one group.
Ref group_ids_list(CacheBlocks& self, Py_ssize_t group) {
  const Py_ssize_t num_groups = num_groups_of(self);
  if (group < 0) group += num_groups;
  if (group < 0 || group >= num_groups) {
    throw PythonError(PyErr_Format(PyExc_IndexError, "group %zd of %zd", group, num_groups));
  }
  if (self.blocks == nullptr) return id_list(self.ids(static_cast<size_t>(group)));
  std::vector<BlockId> ids;
  read_block_ids(PyTuple_GET_ITEM(self.blocks, group), ids);
  return id_list(ids);
}

Ref block_ids(CacheBlocks& self, const Arguments<2>& in) {
  const bool allow_none = in[0] != nullptr && to_bool(in[0]);
  Ref groups;
  if (is_given(in[1])) groups = sequence(in[1], "group_ids must be a sequence");
  const Py_ssize_t num_groups =
      groups ? PySequence_Fast_GET_SIZE(groups.get()) : num_groups_of(self);
  bool empty = true;
  Ref lists = make_tuple(static_cast<size_t>(num_groups), [&](size_t i) {
    auto group = static_cast<Py_ssize_t>(i);
    if (groups) {
      group = PyNumber_AsSsize_t(PySequence_Fast_GET_ITEM(groups.get(), group), PyExc_IndexError);
      if (group == -1 && PyErr_Occurred()) throw PythonError();
    }
    Ref ids = group_ids_list(self, group);
    empty = empty && PyList_GET_SIZE(ids.get()) == 0;
    return ids.release();
  });
  return allow_none && empty ? Ref(Py_NewRef(Py_None)) : std::move(lists);
}

PyObject* get_block_ids(PyObject* object, PyObject* const* args, Py_ssize_t num_args,
                        PyObject* keywords) {
  // The scheduler asks so for every request and step, and there is seldom a block.
  if (as_self(object)->is_shared_empty && num_args == 0 && keywords != nullptr &&
      PyTuple_GET_SIZE(keywords) == 1 && PyTuple_GET_ITEM(keywords, 0) == names().allow_none &&
      args[0] == Py_True) {
    Py_RETURN_NONE;
  }
  if (num_args > 1) {
    return PyErr_Format(PyExc_TypeError,
                        "get_block_ids() takes at most 1 positional argument (%zd given)",
                        num_args);
  }
  return fast_call<block_ids, "get_block_ids", 0, "allow_none", "group_ids">(object, args, num_args,
                                                                             keywords);
}

PyObject* make(PyTypeObject* type, PyObject*, PyObject*) {
  return reinterpret_cast<PyObject*>(make_cache_blocks(type, Py_None, 0, {}));
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(as_self(object)->pool);
  Py_VISIT(as_self(object)->blocks);
  Py_VISIT(Py_TYPE(object));
  return 0;
}

int clear(PyObject* object) {
  Py_CLEAR(as_self(object)->blocks);
  return 0;
}

void dealloc(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  CacheBlocks* self = as_self(object);
  PyObject_GC_UnTrack(object);
  clear(object);
  Py_CLEAR(self->pool);
  std::destroy_at(&self->data);
  type->tp_free(object);
  Py_DECREF(type);
}

PyMethodDef methods[] = {{"get_block_ids", as_method(get_block_ids), kFast,
                          "Block ids, a list a group. Mirrors KVCacheBlocks.get_block_ids (0.33)."},
                         {nullptr, nullptr, 0, nullptr}};

PyGetSetDef getset[] = {
    {"blocks", get_blocks, set_blocks, "A tuple with a list of block objects per group.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyType_Slot slots[] = {
    {Py_tp_doc, const_cast<char*>("Native base of kvplan.vllm.cache_manager.KVCacheBlocks.")},
    {Py_tp_new, reinterpret_cast<void*>(make)},
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(clear)},
    {Py_tp_methods, methods},
    {Py_tp_getset, getset},
    {0, nullptr}};

PyType_Spec spec = {"kvplan._core.CacheBlocks", sizeof(CacheBlocks), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots};

}  // namespace

CacheBlocks* make_cache_blocks(PyTypeObject* type, PyObject* pool, size_t num_groups,
                               std::vector<BlockId> data) {
  auto* self = reinterpret_cast<CacheBlocks*>(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  std::construct_at(&self->data, std::move(data));
  self->num_groups = num_groups;
  self->pool = Py_NewRef(pool);
  return self;
}

CacheBlocks* as_cache_blocks(PyObject* object) {
  return PyObject_TypeCheck(object, base_type) ? as_self(object) : nullptr;
}

void read_block_ids(PyObject* blocks, std::vector<BlockId>& ids) {
  const Ref list = sequence(blocks, "blocks must be a sequence");
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(list.get()); ++i) {
    const Ref id = attribute(PySequence_Fast_GET_ITEM(list.get(), i), names().block_id);
    ids.push_back(static_cast<BlockId>(to_int(id.get())));
  }
}

bool add_cache_blocks(PyObject* module) {
  base_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  return base_type != nullptr &&
         PyModule_AddObjectRef(module, "CacheBlocks", reinterpret_cast<PyObject*>(base_type)) == 0;
}

}  // namespace kvplan::bindings
