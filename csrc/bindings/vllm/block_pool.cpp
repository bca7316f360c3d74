#include <Python.h>
#include <structmember.h>

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

}  // namespace

template <>
struct Receiver<PoolObject> {
  static std::tuple<PoolObject&> parts_of(PyObject* self) {
    if (as_pool(self)->shared == nullptr) {
      throw PythonError(PyErr_Format(PyExc_RuntimeError, "BlockPool.__init__ was not called"));
    }
    return {*as_pool(self)};
  }
};

namespace {

BlockPool& native(PoolObject& self) { return self.shared->pool; }

/// Interned once.
struct Names {
  PyObject* convert_events = PyUnicode_InternFromString("_convert_events");
  PyObject* on_block_reused = PyUnicode_InternFromString("_on_block_reused");
  PyObject* free_blocks = PyUnicode_InternFromString("free_blocks");
  PyObject* is_null = PyUnicode_InternFromString("is_null");
  PyObject* pool = PyUnicode_InternFromString("pool");
  PyObject* ref_cnt = PyUnicode_InternFromString("ref_cnt");
  PyObject* block_hashes = PyUnicode_InternFromString("block_hashes");
  PyObject* scale_factor = PyUnicode_InternFromString("scale_factor");
  PyObject* on_block_allocated = PyUnicode_InternFromString("on_block_allocated");
  PyObject* on_block_accessed = PyUnicode_InternFromString("on_block_accessed");
  PyObject* on_block_evicted = PyUnicode_InternFromString("on_block_evicted");
};

const Names& names() {
  static const Names interned;
  return interned;
}

Py_ssize_t to_size(PyObject* object) {
  const Py_ssize_t value = PyNumber_AsSsize_t(object, PyExc_OverflowError);
  if (value == -1 && PyErr_Occurred()) throw PythonError();
  return value;
}

PoolGroupId to_group(PyObject* object) {
  const Py_ssize_t value = to_size(object);
  if (value < 0 || value > UINT16_MAX) {
    throw PythonError(PyErr_Format(PyExc_ValueError, "a group id is 0 to 65535, not %zd", value));
  }
  return static_cast<PoolGroupId>(value);
}

std::string_view to_hash(PyObject* object) {
  if (!PyBytes_Check(object)) {
    throw PythonError(PyErr_Format(PyExc_TypeError, "a block hash must be bytes, not %.200s",
                                   Py_TYPE(object)->tp_name));
  }
  return {PyBytes_AS_STRING(object), static_cast<size_t>(PyBytes_GET_SIZE(object))};
}

/// The block as one of this pool's, or null.
BlockObject* own_block(const PoolObject& self, PyObject* object) {
  if (!PyObject_TypeCheck(object, &block_type)) return nullptr;
  auto* block = reinterpret_cast<BlockObject*>(object);
  return block->shared == self.shared ? block : nullptr;
}

/// The id of a block, which must be this pool's.
BlockId required_id(const PoolObject& self, PyObject* object) {
  const BlockObject* block = own_block(self, object);
  if (block != nullptr) return block->id;
  throw PythonError(PyErr_Format(PyExc_ValueError, "%R is not a block of this pool", object));
}

/// Ids of blocks that must all be this pool's. The span lives until the next call on the pool.
std::span<const BlockId> collect_ids(PoolObject& self, PyObject* blocks) {
  const Ref list = sequence(blocks, "blocks must be iterable");
  std::vector<BlockId>& ids = self.parts->ids;
  ids.clear();
  const Py_ssize_t n = PySequence_Fast_GET_SIZE(list.get());
  PyObject** items = PySequence_Fast_ITEMS(list.get());
  for (Py_ssize_t i = 0; i < n; ++i) ids.push_back(required_id(self, items[i]));
  return ids;
}

PyObject* new_block_reference(PoolObject& self, BlockId id) {
  return Py_NewRef(self.shared->block(id).as_object());
}
/// None for none.
PyObject* new_block_reference(PoolObject& self, std::optional<BlockId> id) {
  return id ? new_block_reference(self, *id) : Py_NewRef(Py_None);
}

/// Tells vLLM's collector what it follows: every block that was handed out, found or evicted.
void tell_metrics(PoolObject& self) {
  for (const BlockUse& use : native(self).take_uses()) {
    PyObject* block = self.shared->block(use.block).as_object();
    const auto tell = [&](PyObject* method) {
      owned(PyObject_CallMethodOneArg(self.metrics_collector, method, block));
    };
    const bool taken = use.kind == BlockUse::Kind::kTaken;
    if (use.kind == BlockUse::Kind::kTouched) {
      tell(names().on_block_accessed);
    } else if (!taken || self.enable_caching) {
      tell(names().on_block_evicted);
    }
    if (taken) tell(names().on_block_allocated);
  }
}

/// `note_changes` of a call on the pool itself: Python gets the events at once, since a pool can
/// share its queue with another.
void forward_changes(PoolObject& self, PyObject* request = nullptr) {
  note_changes(&self.ob_base, request);
  if (self.parts->filed.empty()) return;
  owned(PyObject_CallMethodNoArgs(&self.ob_base, names().convert_events));
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
  Ref hashes = make_list(event.hashes.size(), [&](size_t i) { return to_bytes(event.hashes[i]); });
  Ref positions = make_list(event.hashes.size(),
                            [&](size_t i) { return PyLong_FromLongLong(event.positions[i]); });
  PyObject* parent = event.parent_hash ? to_bytes(*event.parent_hash) : Py_NewRef(Py_None);
  return Py_BuildValue("(OiLLLNNN)", filed.request ? filed.request.get() : Py_None, group,
                       static_cast<long long>(event.block_size),
                       static_cast<long long>(event.first), static_cast<long long>(event.end),
                       parent, hashes.release(), positions.release());
}

Ref take_filed_events(PoolObject& self) {
  const std::vector<FiledEvent> filed = std::exchange(self.parts->filed, {});
  return make_list(filed.size(), [&](size_t i) { return filed_event(filed[i]); });
}

// Allocation.

Ref get_new_blocks(PoolObject& self, const Arguments<1>& in) {
  const Py_ssize_t n = to_size(in[0]);
  // The native call refuses what is too much, before memory is reserved for it.
  if (n < 0 || n > native(self).num_free_blocks()) native(self).get_new_blocks(n);
  // A reuse callback may call the pool again, so the ids get memory of their own then.
  std::vector<BlockId> ids = std::move(self.parts->ids);
  ids.resize(static_cast<size_t>(n));
  native(self).get_new_blocks(std::span(ids));
  Ref list = make_list(ids.size(), [&](size_t i) { return new_block_reference(self, ids[i]); });
  self.parts->ids = std::move(ids);
  forward_changes(self);
  return list;
}

void touch(PoolObject& self, PyObject* blocks) {
  native(self).touch(collect_ids(self, blocks));
  forward_changes(self);
}

/// A block that was made by itself, which is nobody's: as in vLLM it only loses a holder. An error
/// if it would become free.
void release_standalone(PyObject* block) {
  const Py_ssize_t count = to_size(attribute(block, names().ref_cnt).get());
  if (count == 1) {
    throw PythonError(PyErr_Format(
        PyExc_ValueError, "free_blocks: %R is not a block of this pool, nor of another", block));
  }
  const Ref left = owned(PyLong_FromSsize_t(count - 1));
  checked(PyObject_SetAttr(block, names().ref_cnt, left.get()));
}

/// Files a block of another pool under that pool. Null blocks are dropped.
void file_foreign_block(PoolObject& self, PyObject* block, Ref& by_pool) {
  if (to_bool(attribute(block, names().is_null).get())) return;
  const Ref pool = attribute(block, names().pool);
  if (pool.get() == Py_None || pool.get() == &self.ob_base) return release_standalone(block);
  if (!by_pool) by_pool = owned(PyDict_New());
  PyObject* filed = PyDict_GetItemWithError(by_pool.get(), pool.get());
  if (filed == nullptr) {
    if (PyErr_Occurred()) throw PythonError();
    const Ref list = owned(PyList_New(0));
    checked(PyDict_SetItem(by_pool.get(), pool.get(), list.get()));
    filed = list.get();
  }
  checked(PyList_Append(filed, block));
}

void free_blocks(PoolObject& self, PyObject* blocks) {
  const Ref list = sequence(blocks, "blocks must be iterable");
  std::vector<BlockId>& ids = self.parts->ids;
  ids.clear();
  Ref by_pool;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(list.get()); ++i) {
    PyObject* item = PySequence_Fast_GET_ITEM(list.get(), i);
    if (const BlockObject* block = own_block(self, item)) {
      ids.push_back(block->id);
    } else {
      file_foreign_block(self, item, by_pool);
    }
  }
  native(self).free_blocks(ids);
  if (!by_pool) return;
  Py_ssize_t position = 0;
  PyObject* pool;
  PyObject* foreign;
  while (PyDict_Next(by_pool.get(), &position, &pool, &foreign)) {
    owned(PyObject_CallMethodOneArg(pool, names().free_blocks, foreign));
  }
}

void unpin(PoolObject& self, PyObject* blocks) {
  SharedPool* shared = self.shared;
  native(self).unpin_blocks(collect_ids(self, blocks), [shared](BlockId id) {
    // Fetched, since the pool may run Python again before it gives the error back.
    if (!Ref(PyObject_CallMethodOneArg(shared->owner, names().on_block_reused,
                                       shared->block(id).as_object()))) {
      throw pybind11::error_already_set();
    }
  });
}

// Prefix cache.

Ref get_cached_block(PoolObject& self, const Arguments<2>& in) {
  const std::string_view hash = to_hash(in[0]);
  const Ref groups = sequence(in[1], "kv_cache_group_ids must be iterable");
  const auto n = static_cast<size_t>(PySequence_Fast_GET_SIZE(groups.get()));
  std::vector<BlockId>& ids = self.parts->ids;
  ids.clear();
  for (size_t i = 0; i < n; ++i) {
    PyObject* group = PySequence_Fast_GET_ITEM(groups.get(), static_cast<Py_ssize_t>(i));
    const std::optional<BlockId> id = native(self).find(hash, to_group(group));
    if (!id) return Ref(Py_NewRef(Py_None));
    ids.push_back(*id);
  }
  return make_list(n, [&](size_t i) { return new_block_reference(self, ids[i]); });
}

/// Hash of block `i` of a request, whose hashes are one per `scale` hash blocks. Borrowed from
/// the list, or kept alive in `keep`.
std::string_view hash_of_block(PyObject* block_hashes, Py_ssize_t i, Py_ssize_t scale,
                               std::vector<Ref>& keep) {
  const Py_ssize_t at = (i + 1) * scale - 1;
  if (PyList_CheckExact(block_hashes)) {
    if (at < PyList_GET_SIZE(block_hashes)) return to_hash(PyList_GET_ITEM(block_hashes, at));
    throw PythonError(PyErr_Format(PyExc_IndexError,
                                   "block %zd is full but the request has %zd block hashes", i,
                                   PyList_GET_SIZE(block_hashes)));
  }
  const Ref index = owned(PyLong_FromSsize_t(at));
  keep.push_back(owned(PyObject_GetItem(block_hashes, index.get())));
  return to_hash(keep.back().get());
}

/// Hash blocks per block.
Py_ssize_t hash_scale(const PoolObject& self, PyObject* block_hashes, Py_ssize_t block_size) {
  if (block_size == self.hash_block_size) return 1;
  if (block_size <= 0 || block_size % self.hash_block_size != 0) {
    throw PythonError(PyErr_Format(PyExc_AssertionError,
                                   "block size %zd is no multiple of the hash block size %zd",
                                   block_size, self.hash_block_size));
  }
  // A view at the block's granularity, which scales by itself.
  if (!PyList_CheckExact(block_hashes) && PyObject_HasAttr(block_hashes, names().scale_factor)) {
    return 1;
  }
  return block_size / self.hash_block_size;
}

void cache_full_blocks(PoolObject& self, const Arguments<7>& in) {
  const Py_ssize_t first = to_size(in[2]);
  const Py_ssize_t last = to_size(in[3]);
  const Py_ssize_t block_size = to_size(in[4]);
  const PoolGroupId group_id = to_group(in[5]);
  if (first >= last) return;
  const Ref blocks = sequence(in[1], "blocks must be a sequence");
  const Py_ssize_t end = std::min(last, PySequence_Fast_GET_SIZE(blocks.get()));
  Ref mask;
  if (is_given(in[6])) {
    mask = sequence(in[6], "block_mask must be a sequence");
    if (PySequence_Fast_GET_SIZE(mask.get()) != end - first) {
      throw PythonError(PyErr_Format(PyExc_AssertionError, "%zd blocks but a mask of %zd",
                                     end - first, PySequence_Fast_GET_SIZE(mask.get())));
    }
  }
  const Ref block_hashes = attribute(in[0], names().block_hashes);
  const Py_ssize_t scale = hash_scale(self, block_hashes.get(), block_size);

  PoolParts& parts = *self.parts;
  parts.ids.clear();
  parts.hashes.clear();
  parts.mask.clear();
  std::vector<Ref> keep;
  std::string_view parent;
  if (first > 0) parent = hash_of_block(block_hashes.get(), first - 1, scale, keep);
  for (Py_ssize_t i = first; i < end; ++i) {
    const BlockId id = required_id(self, PySequence_Fast_GET_ITEM(blocks.get(), i));
    const bool wanted =
        id != kNullBlock && (!mask || to_bool(PySequence_Fast_GET_ITEM(mask.get(), i - first)));
    parts.ids.push_back(id);
    parts.hashes.push_back(wanted ? hash_of_block(block_hashes.get(), i, scale, keep)
                                  : std::string_view());
    parts.mask.push_back(wanted);
  }
  native(self).cache_full_blocks({.blocks = parts.ids,
                                  .hashes = parts.hashes,
                                  .first_block = first,
                                  .block_size = block_size,
                                  .group_id = group_id,
                                  .parent_hash = parent,
                                  .mask = parts.mask});
  forward_changes(self, in[0]);
}

/// (request, block, hash, parent hash or None, num_tokens, group_id, replace)
void cache_partial(PoolObject& self, const Arguments<7>& in) {
  native(self).cache_partial_block(
      {.block = required_id(self, in[1]),
       .hash = to_hash(in[2]),
       .num_tokens = to_int(in[4]),
       .hash_block_size = self.hash_block_size,
       .group_id = to_group(in[5]),
       .parent_hash = is_given(in[3]) ? to_hash(in[3]) : std::string_view(),
       .replace_existing = to_bool(in[6])});
  forward_changes(self, in[0]);
}

void move_block_hashes(PoolObject& self, const Arguments<2>& in) {
  native(self).move_block_hashes(required_id(self, in[0]), required_id(self, in[1]));
}

bool maybe_evict_cached_block(PoolObject& self, PyObject* block) {
  const int64_t count = native(self).evict_block(required_id(self, block));
  forward_changes(self);
  return count > 0;
}

/// (key, block, num_tokens)
void insert_block_hash(PoolObject& self, const Arguments<3>& in) {
  const HashAndGroup key = parse_key(in[0]);
  std::optional<int64_t> num_tokens;
  if (is_given(in[2])) num_tokens = to_int(in[2]);
  native(self).insert_hash(required_id(self, in[1]), key.hash, key.group_id, num_tokens);
}

Ref to_key_list(const std::vector<BlockPool::CachedHash>& hashes) {
  return make_list(hashes.size(),
                   [&](size_t i) { return make_key(hashes[i].hash, hashes[i].group_id); });
}

Ref remove_cached_block_hashes(PoolObject& self, PyObject* block) {
  return to_key_list(native(self).remove_hashes(required_id(self, block)));
}

/// block id -> keys besides the primary one
Ref secondary_keys(PoolObject& self, PyObject* id) {
  return to_key_list(native(self).secondary_hashes(static_cast<BlockId>(to_int(id))));
}

/// key -> the block first cached under it, or None
PyObject* get_one_block(PoolObject& self, PyObject* object) {
  const HashAndGroup key = parse_key(object);
  return new_block_reference(self, native(self).find(key.hash, key.group_id));
}

/// (key, block id) -> whether the key leads (also) to the block
bool has_key(PoolObject& self, const Arguments<2>& in) {
  const HashAndGroup key = parse_key(in[0]);
  return native(self).has_key(static_cast<BlockId>(to_int(in[1])), key.hash, key.group_id);
}

int64_t num_cached_hashes(PoolObject& self) { return native(self).num_cached_hashes(); }

bool reset_cache(PoolObject& self) {
  const bool done = native(self).reset_prefix_cache();
  native(self).take_events();
  return done;
}

// State.

int64_t get_num_free_blocks(PoolObject& self) { return native(self).num_free_blocks(); }

double get_usage(PoolObject& self) { return native(self).usage(); }

bool is_block_writable(PoolObject& self, PyObject* block) {
  const BlockId id = required_id(self, block);
  return id != kNullBlock && native(self).ref_count(id) == 1 && !native(self).has_hash(id);
}

PyObject* first_free(PoolObject& self) {
  return new_block_reference(self, native(self).first_free());
}

void detach_free(PoolObject& self, PyObject* block) {
  native(self).detach_free(required_id(self, block));
}

void attach_free_front(PoolObject& self, PyObject* blocks) {
  native(self).attach_free_front(collect_ids(self, blocks));
}

void attach_free_back(PoolObject& self, PyObject* blocks) {
  native(self).attach_free_back(collect_ids(self, blocks));
}

void check_invariants(PoolObject& self) { native(self).check_invariants(); }

int64_t memory_bytes(PoolObject& self) {
  const size_t bytes = self.shared->objects.size() * sizeof(BlockObject);
  return native(self).memory_bytes() + static_cast<int64_t>(bytes);
}

/// A block by its id, which must be one of the pool's.
PyObject* block_of_id(PoolObject& self, PyObject* object) {
  const auto id = static_cast<BlockId>(to_int(object));
  native(self).ref_count(id);  // throws for another
  return new_block_reference(self, id);
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
  return without_exceptions([&] {
    PoolObject* pool = as_pool(self);
    if (pool->shared != nullptr) {
      throw PythonError(PyErr_Format(PyExc_RuntimeError, "a block pool is initialised once"));
    }
    auto parts = std::make_unique<PoolParts>();
    pool->shared = new SharedPool(num_blocks,
                                  {.enable_caching = enable_caching != 0,
                                   .enable_events = enable_events != 0,
                                   .max_events = INT64_MAX,
                                   .log_uses = log_uses != 0},
                                  self);
    pool->parts = parts.release();
    pool->hash_block_size = hash_block_size;
    pool->enable_caching = static_cast<char>(enable_caching);
    pool->enable_events = static_cast<char>(enable_events);
    pool->log_uses = static_cast<char>(log_uses);
    return 0;
  });
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
    method<get_new_blocks, "get_new_blocks", 1, "num_blocks">(
        "The next free blocks, all or none; raises BlockPoolError (a ValueError)."),
    method_of_one<touch, "touch">("One more holder for each block; null blocks are skipped."),
    method_of_one<free_blocks, "free_blocks">(
        "One holder less for each block, in order of eviction. Blocks of other pools go to those."),
    method<get_cached_block, "get_cached_block", 2, "block_hash", "kv_cache_group_ids">(
        "One block per group for the hash, or None if a group has none."),
    method<cache_full_blocks, "cache_full_blocks", 6, "request", "blocks", "num_cached_blocks",
           "num_full_blocks", "block_size", "kv_cache_group_id", "block_mask">(
        "Makes blocks[num_cached_blocks:num_full_blocks] reachable by the request's block hashes."),
    method<move_block_hashes, "move_block_hashes", 2, "src_block", "dst_block">(
        "Re-points all keys of src_block to dst_block, which must have none. No events."),
    method_without_arguments<get_num_free_blocks, "get_num_free_blocks">("Number of free blocks."),
    method_without_arguments<get_usage, "get_usage">("Share of num_gpu_blocks - 1 in use, 0 to 1."),
    method_of_one<is_block_writable, "is_block_writable">(
        "Whether its sole holder may change the block."),
    method_without_arguments<check_invariants, "check_invariants">(
        "Raises BlockPoolError if the pool contradicts itself. O(num_gpu_blocks)."),
    method_without_arguments<memory_bytes, "memory_bytes">(
        "Bytes reserved by the pool and its blocks."),
    method_of_one<maybe_evict_cached_block, "_maybe_evict_cached_block">(
        "Drops the keys of the block; whether there were any."),
    method<insert_block_hash, "_insert_block_hash", 3, "block_hash_with_group_id", "block",
           "num_tokens">("Adds a key to a block."),
    method_of_one<remove_cached_block_hashes, "_remove_cached_block_hashes">(
        "Drops the keys of a block without an event and returns them."),
    method<cache_partial, "_cache_partial", 7, "request", "block", "block_hash", "parent_hash",
           "num_tokens", "group_id", "replace">(nullptr),
    method_of_one<unpin, "_unpin">(nullptr),
    method_without_arguments<take_filed_events, "_take_filed_events">(nullptr),
    method_without_arguments<reset_cache, "_reset">(nullptr),
    method_of_one<secondary_keys, "_secondary_keys">(nullptr),
    method_of_one<get_one_block, "_get_one_block">(nullptr),
    method<has_key, "_has_key", 2, "key", "block_id">(nullptr),
    method_without_arguments<num_cached_hashes, "_num_cached_hashes">(nullptr),
    method_of_one<block_of_id, "_block">(nullptr),
    method_without_arguments<first_free, "_first_free">(nullptr),
    method_of_one<detach_free, "_detach_free">(nullptr),
    method_of_one<attach_free_front, "_attach_free_front">(nullptr),
    method_of_one<attach_free_back, "_attach_free_back">(nullptr),
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

}  // namespace

SharedPool& shared_pool_of(PyObject* pool) {
  if (PyObject_TypeCheck(pool, &pool_type) && as_pool(pool)->shared != nullptr) {
    return *as_pool(pool)->shared;
  }
  throw PythonError(PyErr_Format(PyExc_TypeError, "%R is not a block pool of kvplan", pool));
}

void note_changes(PyObject* object, PyObject* request) {
  PoolObject& self = *as_pool(object);
  if (self.enable_events && native(self).has_events()) {
    for (BlockPoolEvent& event : native(self).take_events()) {
      self.parts->filed.push_back({std::move(event), Ref(Py_XNewRef(request))});
    }
  }
  if (self.log_uses != 0 && self.metrics_collector != Py_None) tell_metrics(self);
}

void bind_vllm_block_pool(pybind11::module_& m) {
  if (!ready_block_type() || !ready_pool_type()) {
    throw pybind11::error_already_set();
  }
  m.add_object("VllmBlockPool", pybind11::handle(reinterpret_cast<PyObject*>(&pool_type)));
  m.add_object("KVCacheBlock", pybind11::handle(reinterpret_cast<PyObject*>(&block_type)));
}

}  // namespace kvplan::bindings
