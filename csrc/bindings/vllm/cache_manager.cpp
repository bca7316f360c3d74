/// The native base of `kvplan.vllm.cache_manager.KVCacheManager`: what vLLM's scheduler calls for
/// each request and step.
#include "kvplan/cache_manager.h"

#include <Python.h>
#include <structmember.h>

#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "bindings/vllm/block.h"
#include "bindings/vllm/cache_blocks.h"
#include "bindings/vllm/fast_call.h"
#include "bindings/vllm/native_types.h"
#include "bindings/vllm/request_map.h"

namespace kvplan::bindings {
namespace {

struct Names {
  PyObject* all_token_ids = PyUnicode_InternFromString("_all_token_ids");
  PyObject* block_hashes = PyUnicode_InternFromString("block_hashes");
  PyObject* full = PyUnicode_InternFromString("full");
  PyObject* kv_cache_report_mode = PyUnicode_InternFromString("kv_cache_report_mode");
  PyObject* none_hash = PyUnicode_InternFromString("NONE_HASH");
  PyObject* num_computed_tokens = PyUnicode_InternFromString("num_computed_tokens");
  PyObject* num_in_flight_tokens = PyUnicode_InternFromString("num_in_flight_tokens");
  PyObject* num_lookahead_tokens = PyUnicode_InternFromString("num_lookahead_tokens");
  PyObject* num_prompt_tokens = PyUnicode_InternFromString("num_prompt_tokens");
  PyObject* num_tokens = PyUnicode_InternFromString("num_tokens");
  PyObject* request_id = PyUnicode_InternFromString("request_id");
  PyObject* shared_prefix_boundary = PyUnicode_InternFromString("shared_prefix_boundary");
  PyObject* skip_reading_prefix_cache = PyUnicode_InternFromString("skip_reading_prefix_cache");
  PyObject* status = PyUnicode_InternFromString("status");
};

const Names& names() {
  static const Names interned;
  return interned;
}

/// A request object of vLLM that the native manager knows.
struct Known {
  RequestHandle handle{};
  int64_t num_hashes = 0;  // that the native manager has
  Ref last_hash;           // the object that was the last of these: another means other hashes
};

struct Parts {
  Parts(CacheManagerOptions options_, std::shared_ptr<BlockPool> pool_)
      : options(std::move(options_)),
        pool(std::move(pool_)),
        core(options, pool),
        num_groups(core.num_groups()),
        watermark_blocks(core.watermark_blocks()),
        enable_caching(options.enable_caching) {}

  CacheManagerOptions options;
  std::shared_ptr<BlockPool> pool;
  CacheManager core;
  size_t num_groups;
  int64_t watermark_blocks;
  bool enable_caching;
  bool knows_hash_size = false;
  bool has_states = false;      // groups whose states connectors store
  bool reports_events = false;  // also hits, of requests that ask for it
  bool caches_only_full_blocks = true;
  RequestMap<Known> requests;
  PyObject* looked_up = nullptr;  // known, without blocks: forgotten with the next such request
  std::unordered_map<int32_t, Ref> ids;  // request id of a handle, where there are states
  // Reused by every call.
  PrefixHit hit;
  std::vector<std::byte> hashes;
  std::vector<BlockId> blocks;
  std::vector<uint16_t> groups;
};

struct ManagerObject {
  PyObject_HEAD Parts* parts;
  PyObject* pool;                // kvplan.vllm.block_pool.BlockPool
  PyObject* by_id;               // request id -> request, which it keeps alive
  PyObject* blocks_type;         // Python's KVCacheBlocks
  PyObject* empty;               // the shared result without blocks
  PyObject* watermark_statuses;  // of requests that are being admitted
  PyObject* boundary_states;     // of requests that are gone: (request id, group, block id, tokens)
  PyObject* module_dict;         // of vLLM's kv_cache_utils, where NONE_HASH is
  PyObject* request_type;        // vLLM's own
  unsigned long long num_allocations;
  unsigned long long num_quiet;
};

ManagerObject* as_self(PyObject* object) { return reinterpret_cast<ManagerObject*>(object); }

template <typename Body>
PyObject* guarded(PyObject* object, Body&& body) {
  ManagerObject* self = as_self(object);
  if (self->parts == nullptr) {
    PyErr_SetString(PyExc_RuntimeError, "KVCacheManager.__init__ was not called");
    return nullptr;
  }
  return without_exceptions([&] { return body(*self, *self->parts); });
}

bool to_int(PyObject* object, int64_t& result) {
  result = PyLong_AsLongLong(object);
  return !(result == -1 && PyErr_Occurred());
}

/// An int attribute of a request.
bool get_int(PyObject* request, PyObject* name, int64_t& result) {
  const Ref value(PyObject_GetAttr(request, name));
  return value && to_int(value.get(), result);
}

/// A request's attributes: of vLLM's own requests, whose type defines none of these names, from the
/// object's dict, which takes half the time.
class RequestReader {
 public:
  RequestReader(const ManagerObject& self, PyObject* request) : request_(request) {
    if (reinterpret_cast<PyObject*>(Py_TYPE(request)) == self.request_type) {
      dict_ = Ref(PyObject_GenericGetDict(request, nullptr));
    }
  }
  /// Null with a Python error.
  Ref get(PyObject* name) const {
    if (!dict_) return Ref(PyErr_Occurred() ? nullptr : PyObject_GetAttr(request_, name));
    PyObject* value = PyDict_GetItemWithError(dict_.get(), name);
    if (value == nullptr && !PyErr_Occurred()) PyErr_SetObject(PyExc_AttributeError, name);
    return Ref(Py_XNewRef(value));
  }
  bool get(PyObject* name, int64_t& result) const {
    const Ref value = get(name);
    return value && to_int(value.get(), result);
  }
  bool get(RequestTokens& tokens) const {
    return get_num_tokens(tokens.num_tokens) &&
           get(names().num_prompt_tokens, tokens.num_prompt_tokens) &&
           get(names().num_computed_tokens, tokens.num_computed_tokens) &&
           get(names().num_in_flight_tokens, tokens.num_in_flight_tokens) &&
           get(names().shared_prefix_boundary, tokens.shared_prefix_boundary);
  }

 private:
  /// vLLM's property counts its list.
  bool get_num_tokens(int64_t& result) const {
    if (!dict_) return get_int(request_, names().num_tokens, result);
    const Ref list = get(names().all_token_ids);
    if (!list) return false;
    result = PyObject_Size(list.get());
    return result >= 0;
  }

  PyObject* request_;
  Ref dict_;  // null: asked by `getattr`
};

// Requests.

/// Borrowed: the request of an id, or null without an error.
PyObject* request_of(ManagerObject& self, PyObject* request_id) {
  return PyDict_GetItemWithError(self.by_id, request_id);
}

Known* find(ManagerObject& self, PyObject* request) { return self.parts->requests.find(request); }

/// The known request of an id, or null: with a Python error, or because there is none.
Known* find_by_id(ManagerObject& self, PyObject* request_id) {
  PyObject* request = request_of(self, request_id);
  return request == nullptr ? nullptr : find(self, request);
}

/// Drops the request; its blocks are freed.
bool forget(ManagerObject& self, PyObject* request, PyObject* request_id) {
  Parts& parts = *self.parts;
  const Known* known = find(self, request);
  if (known == nullptr) return true;
  const RequestHandle handle = known->handle;
  parts.core.remove_request(handle);
  if (parts.looked_up == request) parts.looked_up = nullptr;
  parts.ids.erase(static_cast<int32_t>(handle));
  parts.requests.erase(request);
  return PyDict_DelItem(self.by_id, request_id) == 0;  // may end the request
}

/// vLLM chooses its hash function after it has made the manager, and before the first request.
void settle_hash_size(ManagerObject& self, Parts& parts) {
  if (parts.knows_hash_size) return;
  parts.knows_hash_size = true;
  PyObject* none_hash = PyDict_GetItemWithError(self.module_dict, names().none_hash);
  if (none_hash == nullptr || !PyBytes_Check(none_hash)) return;
  const auto size = static_cast<int64_t>(PyBytes_GET_SIZE(none_hash));
  if (size == parts.options.hash_bytes) return;
  parts.options.hash_bytes = size;
  parts.core = CacheManager(parts.options, parts.pool);
}

/// The request, known from now on; null with a Python error.
Known* find_or_add(ManagerObject& self, PyObject* request) {
  Parts& parts = *self.parts;
  if (Known* known = find(self, request)) return known;
  const Ref id(PyObject_GetAttr(request, names().request_id));
  if (!id) return nullptr;
  if (PyObject* other = request_of(self, id.get())) {
    // Another object for the same request: vLLM goes by the id.
    const Ref held(Py_NewRef(other));
    if (PyDict_SetItem(self.by_id, id.get(), request) != 0) return nullptr;
    if (parts.looked_up == other) parts.looked_up = request;
    return &parts.requests.insert(request, parts.requests.erase(other));
  }
  if (PyErr_Occurred()) return nullptr;
  settle_hash_size(self, parts);
  Known known;
  known.handle = parts.core.add_request();
  try {
    if (parts.has_states) {
      parts.ids[static_cast<int32_t>(known.handle)] = Ref(Py_NewRef(id.get()));
    }
    if (PyDict_SetItem(self.by_id, id.get(), request) == 0) {
      return &parts.requests.insert(request, std::move(known));
    }
  } catch (...) {
    set_python_error();
  }
  parts.core.remove_request(known.handle);
  parts.ids.erase(static_cast<int32_t>(known.handle));
  return nullptr;
}

/// Of the requests that hold no blocks, only the one asked for last is kept: vLLM asks for the
/// prefix of a waiting request again and again, and may never allocate it.
bool keep_as_looked_up(ManagerObject& self, PyObject* request) {
  PyObject* before = self.parts->looked_up;
  self.parts->looked_up = request;
  if (before == nullptr || before == request) return true;
  const Ref id(PyObject_GetAttr(before, names().request_id));
  return id && forget(self, before, id.get());
}

/// Gives the native manager the hashes that the request got since.
bool sync_hashes(Parts& parts, const RequestReader& request, Known& known) {
  if (!parts.enable_caching) return true;
  const Ref list = request.get(names().block_hashes);
  if (!list) return false;
  if (!PyList_Check(list.get())) {
    PyErr_Format(PyExc_TypeError, "block_hashes must be a list, not %.200s",
                 Py_TYPE(list.get())->tp_name);
    return false;
  }
  const auto size = static_cast<int64_t>(PyList_GET_SIZE(list.get()));
  const auto item = [&](int64_t i) { return PyList_GET_ITEM(list.get(), i); };
  if (known.num_hashes > size ||
      (known.num_hashes > 0 && item(known.num_hashes - 1) != known.last_hash.get())) {
    parts.core.truncate_hashes(known.handle, 0);
    known.num_hashes = 0;
  }
  if (known.num_hashes == size) return true;
  parts.hashes.clear();
  for (int64_t i = known.num_hashes; i < size; ++i) {
    if (!PyBytes_Check(item(i))) {
      PyErr_Format(PyExc_TypeError, "a block hash must be bytes, not %.200s",
                   Py_TYPE(item(i))->tp_name);
      return false;
    }
    const auto* bytes = reinterpret_cast<const std::byte*>(PyBytes_AS_STRING(item(i)));
    parts.hashes.insert(parts.hashes.end(), bytes, bytes + PyBytes_GET_SIZE(item(i)));
  }
  parts.core.append_hashes(known.handle, parts.hashes);
  known.num_hashes = size;
  known.last_hash = Ref(Py_NewRef(item(size - 1)));
  return true;
}

// Results.

/// `ids_of(group)`: what can be indexed and has a size. The shared empty result if all are empty.
template <typename IdsOfGroup>
PyObject* make_blocks(ManagerObject& self, IdsOfGroup&& ids_of) {
  const size_t num_groups = self.parts->num_groups;
  std::vector<BlockId> data(num_groups);
  for (size_t group = 0; group < num_groups; ++group) {
    const auto ids = ids_of(group);
    if (group == 0) data.reserve(num_groups * (ids.size() + 1));  // as a rule all have as many
    for (size_t i = 0; i < ids.size(); ++i) data.push_back(ids[i]);
    data[group] = static_cast<BlockId>(data.size());
  }
  if (data.size() == num_groups) return Py_NewRef(self.empty);
  return reinterpret_cast<PyObject*>(make_cache_blocks(
      reinterpret_cast<PyTypeObject*>(self.blocks_type), self.pool, num_groups, std::move(data)));
}

/// The block object of an id.
PyObject* block_object(ManagerObject& self, BlockId id) {
  SharedPool* shared = shared_pool_of(self.pool);
  BlockObject* block = shared == nullptr ? nullptr : shared->block(id);
  return block == nullptr ? nullptr : Py_NewRef(block->as_object());
}

PyObject* block_objects(ManagerObject& self, std::span<const BlockId> ids) {
  Ref list(PyList_New(static_cast<Py_ssize_t>(ids.size())));
  for (size_t i = 0; list && i < ids.size(); ++i) {
    PyObject* block = block_object(self, ids[i]);
    if (block == nullptr) return nullptr;
    PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i), block);
  }
  return list.release();
}

// Prefix cache.

/// Where a request asks for it, what it found is reported as stored.
bool report_hit(ManagerObject& self, PyObject* request, const Known& known) {
  const Ref mode(PyObject_GetAttr(request, names().kv_cache_report_mode));
  if (!mode) {
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) return false;
    PyErr_Clear();
    return true;
  }
  const int is_full = PyObject_RichCompareBool(mode.get(), names().full, Py_EQ);
  if (is_full <= 0) return is_full == 0;
  self.parts->core.emit_cached_block_events(known.handle, self.parts->hit);
  return note_changes(self.pool, request);
}

/// (blocks, tokens, shared prefix boundary), with `diverged` behind for connectors.
PyObject* look_up(PyObject* object, PyObject* const* args, Py_ssize_t num_args, PyObject* keywords,
                  bool for_connector) {
  static constexpr std::array<const char*, 2> kParameters{"request", "max_cache_hit_length"};
  std::array<PyObject*, 2> in;
  if (!parse_arguments("get_computed_blocks", kParameters, 1, args, num_args, keywords, in)) {
    return nullptr;
  }
  return guarded(object, [&](ManagerObject& self, Parts& parts) -> PyObject* {
    const Ref skip(PyObject_GetAttr(in[0], names().skip_reading_prefix_cache));
    const int skips = skip ? PyObject_IsTrue(skip.get()) : -1;
    if (skips < 0) return nullptr;
    PrefixHit& hit = parts.hit;
    hit.num_tokens = hit.shared_prefix_boundary = 0;
    hit.diverged = false;
    for (auto& ids : hit.blocks) ids.clear();
    hit.blocks.resize(parts.num_groups);
    if (parts.enable_caching && skips == 0) {
      const bool is_new = find(self, in[0]) == nullptr;
      if (find_or_add(self, in[0]) == nullptr) return nullptr;
      if (is_new && !keep_as_looked_up(self, in[0])) return nullptr;
      Known* known = find(self, in[0]);
      int64_t max_tokens;
      if (in[1] != nullptr && in[1] != Py_None) {
        if (!to_int(in[1], max_tokens)) return nullptr;
      } else {
        if (!get_int(in[0], names().num_tokens, max_tokens)) return nullptr;
        --max_tokens;
      }
      if (!sync_hashes(parts, RequestReader(self, in[0]), *known)) return nullptr;
      if (for_connector) {
        parts.core.find_prefix_for_connector(known->handle, max_tokens, hit);
      } else {
        parts.core.find_prefix(known->handle, max_tokens, hit);
      }
      if (hit.num_tokens > 0 && !hit.diverged && parts.reports_events &&
          !report_hit(self, in[0], *known)) {
        return nullptr;
      }
    }
    Ref blocks(make_blocks(self, [&](size_t group) { return std::span(hit.blocks[group]); }));
    if (!blocks) return nullptr;
    const auto num_tokens = static_cast<long long>(hit.num_tokens);
    const auto boundary = static_cast<long long>(hit.shared_prefix_boundary);
    return for_connector ? Py_BuildValue("(NLLO)", blocks.release(), num_tokens, boundary,
                                         hit.diverged ? Py_True : Py_False)
                         : Py_BuildValue("(NLL)", blocks.release(), num_tokens, boundary);
  });
}

PyObject* get_computed_blocks(PyObject* object, PyObject* const* args, Py_ssize_t num_args,
                              PyObject* keywords) {
  return look_up(object, args, num_args, keywords, false);
}

PyObject* get_computed_blocks_for_connector(PyObject* object, PyObject* const* args,
                                            Py_ssize_t num_args, PyObject* keywords) {
  return look_up(object, args, num_args, keywords, true);
}

// Allocation.

/// The ids of `new_computed_blocks`; false with a Python error. `given` is false for none.
bool read_hit(ManagerObject& self, PyObject* argument, PrefixHit& hit, bool& given) {
  given = argument != nullptr && argument != Py_None && argument != self.empty;
  if (!given) return true;
  hit.blocks.resize(self.parts->num_groups);
  for (auto& ids : hit.blocks) ids.clear();
  CacheBlocks* blocks = as_cache_blocks(argument);
  if (blocks != nullptr && blocks->blocks == nullptr &&
      blocks->num_groups == self.parts->num_groups) {
    for (size_t group = 0; group < blocks->num_groups; ++group) {
      const std::span<const BlockId> ids = blocks->ids(group);
      hit.blocks[group].assign(ids.begin(), ids.end());
    }
    return true;
  }
  const Ref groups(PyObject_GetAttrString(argument, "blocks"));
  const Ref empty_groups(PyObject_GetAttrString(self.empty, "blocks"));
  if (!groups || !empty_groups) return false;
  given = groups.get() != empty_groups.get();
  const Ref sequence(PySequence_Fast(groups.get(), "blocks must be a sequence"));
  if (!sequence) return false;
  if (static_cast<size_t>(PySequence_Fast_GET_SIZE(sequence.get())) != self.parts->num_groups) {
    PyErr_Format(PyExc_ValueError, "blocks of %zd groups, but there are %zu",
                 PySequence_Fast_GET_SIZE(sequence.get()), self.parts->num_groups);
    return false;
  }
  for (size_t group = 0; group < self.parts->num_groups; ++group) {
    if (!read_block_ids(PySequence_Fast_GET_ITEM(sequence.get(), static_cast<Py_ssize_t>(group)),
                        hit.blocks[group])) {
      return false;
    }
  }
  return true;
}

/// Whether a flag is set; `result` stays what it is if it was not given.
bool read_flag(PyObject* argument, bool& result) {
  if (argument == nullptr) return true;
  const int value = PyObject_IsTrue(argument);
  result = value > 0;
  return value >= 0;
}

bool read_number(PyObject* argument, int64_t& result) {
  return argument == nullptr || to_int(argument, result);
}

bool read_groups(PyObject* argument, std::vector<uint16_t>& groups) {
  groups.clear();
  if (argument == nullptr) return true;
  const Ref sequence(PySequence_Fast(argument, "skip_zeroing_group_ids must be a sequence"));
  if (!sequence) return false;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(sequence.get()); ++i) {
    int64_t group;
    if (!to_int(PySequence_Fast_GET_ITEM(sequence.get(), i), group)) return false;
    groups.push_back(static_cast<uint16_t>(group));
  }
  return true;
}

/// Whether the request waits for its admission: 1 or 0, or -1 with a Python error.
int is_admitted(ManagerObject& self, PyObject* request) {
  const Ref status(PyObject_GetAttr(request, names().status));
  return status ? PySequence_Contains(self.watermark_statuses, status.get()) : -1;
}

/// The shared empty result, if a decode step surely needs no blocks. Null without a Python error:
/// look closer.
PyObject* quiet_result(ManagerObject& self, PyObject* const* args, Py_ssize_t num_args,
                       PyObject* keywords) {
  int64_t num_lookahead = 0;
  if (num_args != 2) return nullptr;
  if (keywords != nullptr && PyTuple_GET_SIZE(keywords) != 0) {
    if (PyTuple_GET_SIZE(keywords) != 1 ||
        PyTuple_GET_ITEM(keywords, 0) != names().num_lookahead_tokens) {
      return nullptr;
    }
    if (!to_int(args[2], num_lookahead) || num_lookahead < 0) return nullptr;
  }
  const Known* known = find(self, args[0]);
  const int64_t quiet_until = known == nullptr ? 0 : self.parts->core.quiet_until(known->handle);
  if (quiet_until == 0) return nullptr;
  // A request that is being admitted may have to leave the watermark's blocks free.
  if (self.parts->watermark_blocks > 0 && is_admitted(self, args[0]) != 0) return nullptr;
  int64_t num_new;
  int64_t num_computed;
  if (!to_int(args[1], num_new) || num_new <= 0) return nullptr;
  if (!RequestReader(self, args[0]).get(names().num_computed_tokens, num_computed)) return nullptr;
  if (num_computed + num_new + num_lookahead >= quiet_until) return nullptr;
  ++self.num_quiet;
  return Py_NewRef(self.empty);
}

PyObject* allocate_slots(PyObject* object, PyObject* const* args, Py_ssize_t num_args,
                         PyObject* keywords) {
  if (as_self(object)->parts != nullptr) {
    PyObject* result = quiet_result(*as_self(object), args, num_args, keywords);
    if (result != nullptr || PyErr_Occurred()) return result;
  }
  static constexpr std::array<const char*, 12> kParameters{"request",
                                                           "num_new_tokens",
                                                           "num_new_computed_tokens",
                                                           "new_computed_blocks",
                                                           "num_lookahead_tokens",
                                                           "num_external_computed_tokens",
                                                           "delay_cache_blocks",
                                                           "num_encoder_tokens",
                                                           "full_sequence_must_fit",
                                                           "reserved_blocks",
                                                           "has_scheduled_reqs",
                                                           "skip_zeroing_group_ids"};
  std::array<PyObject*, 12> in;
  if (!parse_arguments("allocate_slots", kParameters, 2, args, num_args, keywords, in)) {
    return nullptr;
  }
  return guarded(object, [&](ManagerObject& self, Parts& parts) -> PyObject* {
    Allocation allocation;
    bool has_scheduled = true;
    bool has_hit = false;
    if (!to_int(in[1], allocation.num_new_tokens) ||
        !read_number(in[2], allocation.num_new_computed_tokens) ||
        !read_number(in[4], allocation.num_lookahead_tokens) ||
        !read_number(in[5], allocation.num_external_computed_tokens) ||
        !read_flag(in[6], allocation.delay_cache_blocks) ||
        !read_number(in[7], allocation.num_encoder_tokens) ||
        !read_flag(in[8], allocation.full_sequence_must_fit) ||
        !read_number(in[9], allocation.reserved_blocks) || !read_flag(in[10], has_scheduled) ||
        !read_groups(in[11], parts.groups) || !read_hit(self, in[3], parts.hit, has_hit)) {
      return nullptr;
    }
    if (allocation.num_new_tokens == 0 && allocation.num_new_computed_tokens == 0 &&
        allocation.num_external_computed_tokens == 0) {
      PyErr_SetString(PyExc_ValueError,
                      "num_new_tokens must be greater than 0 when there are no computed tokens to "
                      "adopt");
      return nullptr;
    }
    allocation.skip_zeroing_groups = parts.groups;
    RequestTokens tokens;
    const RequestReader request(self, in[0]);
    if (!request.get(tokens)) return nullptr;
    if (has_scheduled && parts.watermark_blocks > 0) {
      const int admitted = is_admitted(self, in[0]);
      if (admitted < 0) return nullptr;
      allocation.apply_watermark = admitted == 1;
    }
    const bool is_new = find(self, in[0]) == nullptr;
    Known* known = find_or_add(self, in[0]);
    if (known == nullptr || !sync_hashes(parts, request, *known)) return nullptr;
    ++self.num_allocations;
    parts.hit.num_tokens = allocation.num_new_computed_tokens;
    if (!parts.core.allocate(known->handle, tokens, allocation, has_hit ? &parts.hit : nullptr)) {
      if (is_new && !keep_as_looked_up(self, in[0])) return nullptr;
      Py_RETURN_NONE;
    }
    if (!note_changes(self.pool, in[0])) return nullptr;
    if (parts.looked_up == in[0]) parts.looked_up = nullptr;
    if (!parts.core.has_new_blocks()) return Py_NewRef(self.empty);
    return make_blocks(self, [&](size_t group) { return parts.core.new_blocks(group); });
  });
}

/// Mirrors KVCacheCoordinator.get_num_blocks_to_allocate (0.33), with the same arguments.
PyObject* get_num_blocks_to_allocate(PyObject* object, PyObject* const* args, Py_ssize_t num_args,
                                     PyObject* keywords) {
  static constexpr std::array<const char*, 9> kParameters{"request_id",
                                                          "num_tokens",
                                                          "new_computed_blocks",
                                                          "num_encoder_tokens",
                                                          "total_computed_tokens",
                                                          "num_local_computed_tokens",
                                                          "num_tokens_main_model",
                                                          "apply_admission_cap",
                                                          "prefill_end"};
  std::array<PyObject*, 9> in;
  if (!parse_arguments("get_num_blocks_to_allocate", kParameters, 7, args, num_args, keywords,
                       in)) {
    return nullptr;
  }
  return guarded(object, [&](ManagerObject& self, Parts& parts) -> PyObject* {
    CacheManager::Demand demand;
    if (!to_int(in[1], demand.num_tokens) || !to_int(in[3], demand.num_encoder_tokens) ||
        !to_int(in[4], demand.total_computed_tokens) ||
        !to_int(in[5], demand.num_local_computed_tokens) ||
        !to_int(in[6], demand.num_tokens_main_model) ||
        !read_flag(in[7], demand.apply_admission_cap) || !read_number(in[8], demand.prefill_end)) {
      return nullptr;
    }
    const Ref groups(PySequence_Fast(in[2], "new_computed_blocks must be a sequence"));
    if (!groups) return nullptr;
    parts.hit.blocks.resize(parts.num_groups);
    bool has_hit = false;
    for (size_t group = 0; group < parts.num_groups; ++group) {
      parts.hit.blocks[group].clear();
      PyObject* blocks = PySequence_Fast_GET_ITEM(groups.get(), static_cast<Py_ssize_t>(group));
      if (!read_block_ids(blocks, parts.hit.blocks[group])) return nullptr;
      has_hit = has_hit || !parts.hit.blocks[group].empty();
    }
    const PrefixHit* hit = has_hit ? &parts.hit : nullptr;
    if (const Known* known = find_by_id(self, in[0])) {
      return PyLong_FromLongLong(parts.core.num_blocks_to_allocate(known->handle, demand, hit));
    }
    if (PyErr_Occurred()) return nullptr;
    const RequestHandle handle = parts.core.add_request();
    const int64_t count = parts.core.num_blocks_to_allocate(handle, demand, hit);
    parts.core.remove_request(handle);
    return PyLong_FromLongLong(count);
  });
}

PyObject* cache_blocks(PyObject* object, PyObject* const* args, Py_ssize_t num_args,
                       PyObject* keywords) {
  static constexpr std::array<const char*, 2> kParameters{"request", "num_computed_tokens"};
  std::array<PyObject*, 2> in;
  if (!parse_arguments("cache_blocks", kParameters, 2, args, num_args, keywords, in)) {
    return nullptr;
  }
  return guarded(object, [&](ManagerObject& self, Parts& parts) -> PyObject* {
    RequestTokens tokens;
    int64_t num_computed;
    if (!parts.enable_caching) Py_RETURN_NONE;
    if (!to_int(in[1], num_computed)) return nullptr;
    // With asynchronous scheduling, every step asks for every request. What is cached inside a
    // block can be cached anew.
    if (const Known* quiet = find(self, in[0]);
        quiet != nullptr && parts.caches_only_full_blocks &&
        num_computed < parts.core.quiet_until(quiet->handle)) {
      Py_RETURN_NONE;
    }
    const RequestReader request(self, in[0]);
    if (!request.get(tokens)) return nullptr;
    Known* known = find_or_add(self, in[0]);
    if (known == nullptr || !sync_hashes(parts, request, *known)) return nullptr;
    parts.core.commit(known->handle, tokens, num_computed);
    if (!note_changes(self.pool, in[0])) return nullptr;
    Py_RETURN_NONE;
  });
}

// Release.

/// Keeps the states of a request that is about to be forgotten, by its id.
bool keep_boundary_states(ManagerObject& self, Parts& parts) {
  if (!parts.has_states) return true;
  for (const BoundaryState& state : parts.core.take_boundary_states()) {
    const auto id = parts.ids.find(static_cast<int32_t>(state.request));
    const Ref entry(Py_BuildValue("(OHiL)", id == parts.ids.end() ? Py_None : id->second.get(),
                                  state.group, static_cast<int>(state.block),
                                  static_cast<long long>(state.num_tokens)));
    if (!entry || PyList_Append(self.boundary_states, entry.get()) != 0) return false;
  }
  return true;
}

PyObject* free_request(PyObject* object, PyObject* request) {
  return guarded(object, [&](ManagerObject& self, Parts& parts) -> PyObject* {
    const Ref id(PyObject_GetAttr(request, names().request_id));
    if (!id) return nullptr;
    PyObject* held = request_of(self, id.get());
    if (held == nullptr) {
      if (PyErr_Occurred()) return nullptr;
      Py_RETURN_NONE;
    }
    if (parts.has_states) {
      parts.core.free(find(self, held)->handle);
      if (!keep_boundary_states(self, parts)) return nullptr;
    }
    if (!forget(self, held, id.get())) return nullptr;
    Py_RETURN_NONE;
  });
}

PyObject* pop_blocks_for_free(PyObject* object, PyObject* request) {
  return guarded(object, [&](ManagerObject& self, Parts& parts) -> PyObject* {
    const Ref id(PyObject_GetAttr(request, names().request_id));
    if (!id) return nullptr;
    PyObject* held = request_of(self, id.get());
    if (held == nullptr) return PyErr_Occurred() ? nullptr : PyList_New(0);
    parts.blocks.clear();
    parts.core.pop_blocks_for_free(find(self, held)->handle, parts.blocks);
    if (!keep_boundary_states(self, parts) || !forget(self, held, id.get())) return nullptr;
    return block_objects(self, parts.blocks);
  });
}

PyObject* remove_skipped_blocks(PyObject* object, PyObject* const* args, Py_ssize_t num_args,
                                PyObject* keywords) {
  static constexpr std::array<const char*, 3> kParameters{"request_id", "processed_computed_tokens",
                                                          "num_prompt_tokens"};
  std::array<PyObject*, 3> in;
  if (!parse_arguments("remove_skipped_blocks", kParameters, 2, args, num_args, keywords, in)) {
    return nullptr;
  }
  return guarded(object, [&](ManagerObject& self, Parts& parts) -> PyObject* {
    int64_t num_processed;
    std::optional<int64_t> num_prompt;
    if (!to_int(in[1], num_processed)) return nullptr;
    if (in[2] != nullptr && in[2] != Py_None && !to_int(in[2], num_prompt.emplace())) {
      return nullptr;
    }
    if (Known* known = find_by_id(self, in[0])) {
      parts.core.remove_skipped_blocks(known->handle, num_processed, num_prompt);
    }
    if (PyErr_Occurred()) return nullptr;
    Py_RETURN_NONE;
  });
}

PyObject* forget_prefix_cache(PyObject* object, PyObject*) {
  return guarded(object, [&](ManagerObject&, Parts& parts) {
    const bool done = parts.core.reset_prefix_cache();
    parts.pool->take_events();  // the pool has told Python of its reset itself
    return PyBool_FromLong(done);
  });
}

// State.

PyObject* get_blocks(PyObject* object, PyObject* const* args, Py_ssize_t num_args,
                     PyObject* keywords) {
  static constexpr std::array<const char*, 1> kParameters{"request_id"};
  std::array<PyObject*, 1> in;
  if (!parse_arguments("get_blocks", kParameters, 1, args, num_args, keywords, in)) return nullptr;
  return guarded(object, [&](ManagerObject& self, Parts& parts) -> PyObject* {
    const Known* known = find_by_id(self, in[0]);
    if (known == nullptr && PyErr_Occurred()) return nullptr;
    if (known == nullptr) return Py_NewRef(self.empty);
    return make_blocks(self,
                       [&](size_t group) { return parts.core.block_table(known->handle, group); });
  });
}

/// (request id, group) -> block objects, or None where there are none
PyObject* block_list(PyObject* object, PyObject* args) {
  PyObject* request_id;
  Py_ssize_t group;
  if (!PyArg_ParseTuple(args, "On", &request_id, &group)) return nullptr;
  return guarded(object, [&](ManagerObject& self, Parts& parts) -> PyObject* {
    const Known* known = find_by_id(self, request_id);
    if (known == nullptr && PyErr_Occurred()) return nullptr;
    parts.blocks.clear();
    if (known != nullptr) {
      const BlockTableView table =
          parts.core.block_table(known->handle, static_cast<size_t>(group));
      for (size_t i = 0; i < table.size(); ++i) parts.blocks.push_back(table[i]);
    }
    if (parts.blocks.empty()) Py_RETURN_NONE;
    return block_objects(self, parts.blocks);
  });
}

PyObject* request_ids(PyObject* object, PyObject*) {
  return guarded(object, [](ManagerObject& self, Parts&) { return PyDict_Keys(self.by_id); });
}

/// What the native manager made of the options, to be compared with what vLLM made of them.
PyObject* settings(PyObject* object, PyObject*) {
  return guarded(object, [](ManagerObject&, Parts& parts) -> PyObject* {
    Ref sizes(PyTuple_New(static_cast<Py_ssize_t>(parts.num_groups)));
    for (size_t group = 0; sizes && group < parts.num_groups; ++group) {
      PyObject* size = PyLong_FromLongLong(parts.core.block_size(group));
      if (size == nullptr) return nullptr;
      PyTuple_SET_ITEM(sizes.get(), static_cast<Py_ssize_t>(group), size);
    }
    if (!sizes) return nullptr;
    return Py_BuildValue("{sNsOsOsL}", "block_sizes", sizes.release(), "enable_partial_hits",
                         parts.core.enable_partial_hits() ? Py_True : Py_False,
                         "mamba_shared_prefix_checkpoint",
                         parts.core.mamba_shared_prefix_checkpoint() ? Py_True : Py_False,
                         "watermark_blocks", static_cast<long long>(parts.core.watermark_blocks()));
  });
}

PyObject* check_invariants(PyObject* object, PyObject*) {
  return guarded(object, [](ManagerObject& self, Parts& parts) -> PyObject* {
    parts.core.check_invariants();
    if (parts.core.num_requests() != parts.requests.size() ||
        parts.requests.size() != static_cast<size_t>(PyDict_GET_SIZE(self.by_id))) {
      PyErr_SetString(PyExc_RuntimeError, "requests and their ids contradict each other");
      return nullptr;
    }
    Py_RETURN_NONE;
  });
}

// What a step has left to do.

PyObject* new_step_starts(PyObject* object, PyObject*) {
  return guarded(object, [](ManagerObject&, Parts& parts) -> PyObject* {
    parts.core.new_step_starts();
    Py_RETURN_NONE;
  });
}

PyObject* take_new_block_ids(PyObject* object, PyObject*) {
  return guarded(object, [](ManagerObject&, Parts& parts) -> PyObject* {
    const std::vector<BlockId> ids = parts.core.take_new_block_ids();
    Ref list(PyList_New(static_cast<Py_ssize_t>(ids.size())));
    for (size_t i = 0; list && i < ids.size(); ++i) {
      PyObject* id = PyLong_FromLong(ids[i]);
      if (id == nullptr) return nullptr;
      PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i), id);
    }
    return list.release();
  });
}

PyObject* record_blocks_for_zeroing(PyObject* object, PyObject* const* args, Py_ssize_t num_args,
                                    PyObject* keywords) {
  static constexpr std::array<const char*, 2> kParameters{"request_id", "start_token"};
  std::array<PyObject*, 2> in;
  if (!parse_arguments("record_blocks_for_zeroing", kParameters, 2, args, num_args, keywords, in)) {
    return nullptr;
  }
  return guarded(object, [&](ManagerObject& self, Parts& parts) -> PyObject* {
    int64_t start;
    if (!to_int(in[1], start)) return nullptr;
    if (const Known* known = find_by_id(self, in[0])) {
      parts.core.record_blocks_for_zeroing(known->handle, start);
    }
    if (PyErr_Occurred()) return nullptr;
    Py_RETURN_NONE;
  });
}

/// [(source block, destination block)]
PyObject* take_copies(PyObject* object, PyObject*) {
  return guarded(object, [](ManagerObject& self, Parts& parts) -> PyObject* {
    Ref list(PyList_New(0));
    if (!list || !parts.core.has_copies()) return list.release();
    for (const BlockCopy& copy : parts.core.take_copies()) {
      Ref source(block_object(self, copy.source));
      Ref destination(block_object(self, copy.destination));
      if (!source || !destination) return nullptr;
      const Ref pair(PyTuple_Pack(2, source.get(), destination.get()));
      if (!pair || PyList_Append(list.get(), pair.get()) != 0) return nullptr;
    }
    return list.release();
  });
}

/// [(request id, group, block id, tokens)]
PyObject* take_boundary_states(PyObject* object, PyObject*) {
  return guarded(object, [](ManagerObject& self, Parts& parts) -> PyObject* {
    if (!keep_boundary_states(self, parts)) return nullptr;
    PyObject* states = self.boundary_states;
    PyObject* next = PyList_New(0);
    if (next == nullptr) return nullptr;
    self.boundary_states = next;
    return states;
  });
}

/// (request id, computed tokens, tokens in flight) -> [(group, block id, tokens)]
PyObject* finalize_partial_tails(PyObject* object, PyObject* args) {
  PyObject* request_id;
  long long num_computed;
  long long num_in_flight;
  if (!PyArg_ParseTuple(args, "OLL", &request_id, &num_computed, &num_in_flight)) return nullptr;
  return guarded(object, [&](ManagerObject& self, Parts& parts) -> PyObject* {
    Ref list(PyList_New(0));
    const Known* known = find_by_id(self, request_id);
    if (!list || (known == nullptr && PyErr_Occurred())) return nullptr;
    if (known == nullptr) return list.release();
    for (const BoundaryState& state :
         parts.core.finalize_partial_tails(known->handle, num_computed, num_in_flight)) {
      const Ref entry(Py_BuildValue("(HiL)", state.group, static_cast<int>(state.block),
                                    static_cast<long long>(state.num_tokens)));
      if (!entry || PyList_Append(list.get(), entry.get()) != 0) return nullptr;
    }
    return list.release();
  });
}

// The type.

/// Reads an entry of the options; absent ones and None stay as they are. False with an error.
template <typename T>
bool read_option(PyObject* options, const char* name, T& result) {
  PyObject* value = PyDict_GetItemString(options, name);
  if (value == nullptr || value == Py_None) return true;
  if constexpr (std::is_same_v<T, bool>) {
    return read_flag(value, result);
  } else if constexpr (std::is_same_v<T, double>) {
    result = PyFloat_AsDouble(value);
    return !PyErr_Occurred();
  } else if constexpr (std::is_same_v<T, std::optional<int64_t>>) {
    return to_int(value, result.emplace());
  } else {
    return to_int(value, result);
  }
}

bool read_options(PyObject* in, CacheManagerOptions& out) {
  return read_option(in, "num_blocks", out.num_blocks) &&
         read_option(in, "max_model_len", out.max_model_len) &&
         read_option(in, "scheduler_block_size", out.scheduler_block_size) &&
         read_option(in, "hash_block_size", out.hash_block_size) &&
         read_option(in, "max_in_flight_tokens", out.max_in_flight_tokens) &&
         read_option(in, "enable_caching", out.enable_caching) &&
         read_option(in, "use_eagle", out.use_eagle) &&
         read_option(in, "num_hash_lookahead_tokens", out.num_hash_lookahead_tokens) &&
         read_option(in, "num_prefill_lookahead", out.num_prefill_lookahead) &&
         read_option(in, "dcp_world_size", out.dcp_world_size) &&
         read_option(in, "pcp_world_size", out.pcp_world_size) &&
         read_option(in, "watermark", out.watermark) &&
         read_option(in, "enable_mamba_shared_prefix_checkpoint",
                     out.enable_mamba_shared_prefix_checkpoint) &&
         read_option(in, "retention_interval", out.retention_interval) &&
         read_option(in, "needs_zeroing", out.needs_zeroing) &&
         read_option(in, "enable_kv_cache_events", out.enable_events);
}

/// (pool, groups, options, blocks_type, watermark_statuses, module_dict, request_type); see
/// `kvplan.vllm.cache_manager`.
PyObject* start(PyObject* object, PyObject* args) {
  PyObject *pool, *capsule, *options_dict, *blocks_type, *statuses, *module_dict, *request_type;
  if (!PyArg_ParseTuple(args, "OOO!O!OO!O", &pool, &capsule, &PyDict_Type, &options_dict,
                        &PyType_Type, &blocks_type, &statuses, &PyDict_Type, &module_dict,
                        &request_type)) {
    return nullptr;
  }
  ManagerObject* self = as_self(object);
  if (self->parts != nullptr) {
    PyErr_SetString(PyExc_RuntimeError, "a cache manager is started once");
    return nullptr;
  }
  SharedPool* shared = shared_pool_of(pool);
  const auto* groups = static_cast<const std::vector<CacheGroup>*>(
      PyCapsule_GetPointer(capsule, kCacheGroupsCapsule));
  if (shared == nullptr || groups == nullptr) return nullptr;
  CacheManagerOptions options;
  options.groups = *groups;
  if (!read_options(options_dict, options)) return nullptr;
  Ref by_id(PyDict_New());
  Ref states(PyList_New(0));
  Ref empty(reinterpret_cast<PyObject*>(
      make_cache_blocks(reinterpret_cast<PyTypeObject*>(blocks_type), pool, 0, {})));
  const Ref nothing(PyTuple_New(0));
  Ref no_blocks(PyTuple_New(static_cast<Py_ssize_t>(options.groups.size())));
  if (!by_id || !states || !empty || !nothing || !no_blocks) return nullptr;
  for (size_t group = 0; group < options.groups.size(); ++group) {
    PyTuple_SET_ITEM(no_blocks.get(), static_cast<Py_ssize_t>(group), Py_NewRef(nothing.get()));
  }
  auto& shared_empty = *reinterpret_cast<CacheBlocks*>(empty.get());
  shared_empty.blocks = no_blocks.release();
  shared_empty.is_shared_empty = 1;
  try {
    ++shared->users;
    auto parts = std::make_unique<Parts>(
        options,
        std::shared_ptr<BlockPool>(&shared->pool, [shared](BlockPool*) { shared->release(); }));
    parts->reports_events = options.enable_events;
    for (size_t i = 0; i < options.groups.size(); ++i) {
      const CacheGroup& group = options.groups[i];
      parts->caches_only_full_blocks = parts->caches_only_full_blocks && !group.mamba_align &&
                                       parts->core.block_size(i) == parts->core.hash_block_size();
      parts->has_states = parts->has_states || group.kind == CacheKind::kMamba;
    }
    self->parts = parts.release();
  } catch (...) {
    set_python_error();
    return nullptr;
  }
  self->pool = Py_NewRef(pool);
  self->module_dict = Py_NewRef(module_dict);
  self->request_type = Py_NewRef(request_type);
  self->by_id = by_id.release();
  self->boundary_states = states.release();
  self->blocks_type = Py_NewRef(blocks_type);
  self->watermark_statuses = Py_NewRef(statuses);
  self->empty = empty.release();
  Py_RETURN_NONE;
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  ManagerObject* self = as_self(object);
  Py_VISIT(self->pool);
  Py_VISIT(self->by_id);
  Py_VISIT(self->blocks_type);
  Py_VISIT(self->empty);
  Py_VISIT(self->watermark_statuses);
  Py_VISIT(self->boundary_states);
  Py_VISIT(self->module_dict);
  Py_VISIT(self->request_type);
  Py_VISIT(Py_TYPE(object));
  return 0;
}

int clear(PyObject* object) {
  ManagerObject* self = as_self(object);
  delete std::exchange(self->parts, nullptr);
  Py_CLEAR(self->by_id);
  Py_CLEAR(self->pool);
  Py_CLEAR(self->blocks_type);
  Py_CLEAR(self->empty);
  Py_CLEAR(self->watermark_statuses);
  Py_CLEAR(self->boundary_states);
  Py_CLEAR(self->module_dict);
  Py_CLEAR(self->request_type);
  return 0;
}

void dealloc(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  clear(object);
  type->tp_free(object);
  Py_DECREF(type);
}

PyObject* get_empty(PyObject* object, void*) {
  return guarded(object, [](ManagerObject& self, Parts&) { return Py_NewRef(self.empty); });
}

/// vLLM's constructor sets its own.
int set_empty(PyObject*, PyObject*, void*) { return 0; }

PyMethodDef methods[] = {
    {"_start", start, METH_VARARGS, nullptr},
    {"get_computed_blocks", as_method(get_computed_blocks), kFast,
     "Mirrors KVCacheManager.get_computed_blocks (0.33)."},
    {"get_computed_blocks_for_connector", as_method(get_computed_blocks_for_connector), kFast,
     "Mirrors KVCacheManager.get_computed_blocks_for_connector (0.33)."},
    {"allocate_slots", as_method(allocate_slots), kFast,
     "Mirrors KVCacheManager.allocate_slots (0.33)."},
    {"cache_blocks", as_method(cache_blocks), kFast, "Mirrors KVCacheManager.cache_blocks (0.33)."},
    {"free", free_request, METH_O, "Mirrors KVCacheManager.free (0.33)."},
    {"pop_blocks_for_free", pop_blocks_for_free, METH_O,
     "Mirrors KVCacheManager.pop_blocks_for_free (0.33)."},
    {"remove_skipped_blocks", as_method(remove_skipped_blocks), kFast,
     "Mirrors KVCacheManager.remove_skipped_blocks (0.33)."},
    {"get_blocks", as_method(get_blocks), kFast,
     "The request's blocks as they are now. Mirrors KVCacheManager.get_blocks (0.33)."},
    {"take_new_block_ids", take_new_block_ids, METH_NOARGS,
     "Mirrors KVCacheManager.take_new_block_ids (0.33)."},
    {"record_blocks_for_zeroing", as_method(record_blocks_for_zeroing), kFast,
     "Mirrors KVCacheManager.record_blocks_for_zeroing (0.33)."},
    {"new_step_starts", new_step_starts, METH_NOARGS,
     "Mirrors KVCacheManager.new_step_starts (0.33)."},
    {"check_invariants", check_invariants, METH_NOARGS,
     "Raises BlockPoolError if tables and pool contradict each other."},
    {"_get_num_blocks_to_allocate", as_method(get_num_blocks_to_allocate), kFast, nullptr},
    {"_block_list", block_list, METH_VARARGS, nullptr},
    {"_settings", settings, METH_NOARGS, nullptr},
    {"_request_ids", request_ids, METH_NOARGS, nullptr},
    {"_take_copies", take_copies, METH_NOARGS, nullptr},
    {"_take_boundary_states", take_boundary_states, METH_NOARGS, nullptr},
    {"_finalize_partial_tails", finalize_partial_tails, METH_VARARGS, nullptr},
    {"_forget_prefix_cache", forget_prefix_cache, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyMemberDef members[] = {{"num_allocations", T_ULONGLONG, offsetof(ManagerObject, num_allocations),
                          READONLY, "Calls of allocate_slots that looked at the groups."},
                         {"num_quiet", T_ULONGLONG, offsetof(ManagerObject, num_quiet), READONLY,
                          "Calls of allocate_slots that had nothing to do."},
                         {nullptr, 0, 0, 0, nullptr}};

PyGetSetDef getset[] = {
    {"empty_kv_cache_blocks", get_empty, set_empty, "The shared result without blocks.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyType_Slot slots[] = {
    {Py_tp_doc, const_cast<char*>("Native base of kvplan.vllm.cache_manager.KVCacheManager.")},
    {Py_tp_new, reinterpret_cast<void*>(PyType_GenericNew)},
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(clear)},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {Py_tp_getset, getset},
    {0, nullptr}};

PyType_Spec spec = {"kvplan._core.VllmCacheManager", sizeof(ManagerObject), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots};

}  // namespace

bool add_cache_manager(PyObject* module) {
  const Ref type(PyType_FromSpec(&spec));
  return type && PyModule_AddObjectRef(module, "VllmCacheManager", type.get()) == 0;
}

}  // namespace kvplan::bindings
