/// The native base of `kvplan.vllm.cache_manager.KVCacheManager`: what vLLM's scheduler calls for
/// each request and step.
#include "kvplan/cache_manager.h"

#include <Python.h>
#include <structmember.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <tuple>
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
  PyObject* blocks = PyUnicode_InternFromString("blocks");
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
        core(make_core()),
        num_groups(core.num_groups()),
        watermark_blocks(core.watermark_blocks()),
        enable_caching(options.enable_caching) {}

  CacheManager make_core() const {
    return pool ? CacheManager(options, pool) : CacheManager(options);
  }

  CacheManagerOptions options;
  std::shared_ptr<BlockPool> pool;  // Python's; none with slices, whose pool is the manager's own
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

}  // namespace

template <>
struct Receiver<ManagerObject> {
  static std::tuple<ManagerObject&, Parts&> parts_of(PyObject* object) {
    ManagerObject* self = as_self(object);
    if (self->parts == nullptr) {
      throw PythonError(PyErr_Format(PyExc_RuntimeError, "KVCacheManager.__init__ was not called"));
    }
    return {*self, *self->parts};
  }
};

namespace {

/// A request's attributes: of vLLM's own requests, whose type defines none of these names, from the
/// object's dict, which takes half the time.
class RequestReader {
 public:
  RequestReader(const ManagerObject& self, PyObject* request) : request_(request) {
    if (reinterpret_cast<PyObject*>(Py_TYPE(request)) == self.request_type) {
      dict_ = owned(PyObject_GenericGetDict(request, nullptr));
    }
  }
  Ref get(PyObject* name) const {
    if (!dict_) return attribute(request_, name);
    PyObject* value = PyDict_GetItemWithError(dict_.get(), name);
    if (value == nullptr && !PyErr_Occurred()) PyErr_SetObject(PyExc_AttributeError, name);
    return Ref(Py_NewRef(checked(value)));
  }
  int64_t get_int(PyObject* name) const { return to_int(get(name).get()); }
  RequestTokens tokens() const {
    return {.num_tokens = num_tokens(),
            .num_prompt_tokens = get_int(names().num_prompt_tokens),
            .num_computed_tokens = get_int(names().num_computed_tokens),
            .num_in_flight_tokens = get_int(names().num_in_flight_tokens),
            .shared_prefix_boundary = get_int(names().shared_prefix_boundary)};
  }

 private:
  /// vLLM's property counts its list.
  int64_t num_tokens() const {
    if (!dict_) return get_int(names().num_tokens);
    return checked_size(PyObject_Size(get(names().all_token_ids).get()));
  }
  static int64_t checked_size(Py_ssize_t size) {
    if (size < 0) throw PythonError();
    return size;
  }

  PyObject* request_;
  Ref dict_;  // null: asked by `getattr`
};

// Requests.

/// Borrowed: the request of an id, or null.
PyObject* request_of(ManagerObject& self, PyObject* request_id) {
  PyObject* request = PyDict_GetItemWithError(self.by_id, request_id);
  if (request == nullptr && PyErr_Occurred()) throw PythonError();
  return request;
}

Known* find(ManagerObject& self, PyObject* request) { return self.parts->requests.find(request); }

/// The known request of an id, or null.
Known* find_by_id(ManagerObject& self, PyObject* request_id) {
  PyObject* request = request_of(self, request_id);
  return request == nullptr ? nullptr : find(self, request);
}

/// Drops the request; its blocks are freed.
void forget(ManagerObject& self, PyObject* request, PyObject* request_id) {
  Parts& parts = *self.parts;
  const Known* known = find(self, request);
  if (known == nullptr) return;
  const RequestHandle handle = known->handle;
  parts.core.remove_request(handle);
  if (parts.looked_up == request) parts.looked_up = nullptr;
  parts.ids.erase(static_cast<int32_t>(handle));
  parts.requests.erase(request);
  checked(PyDict_DelItem(self.by_id, request_id));  // may end the request
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
  parts.core = parts.make_core();
}

/// The request, known from now on.
Known& find_or_add(ManagerObject& self, PyObject* request) {
  Parts& parts = *self.parts;
  if (Known* known = find(self, request)) return *known;
  const Ref id = attribute(request, names().request_id);
  if (PyObject* other = request_of(self, id.get())) {
    // Another object for the same request: vLLM goes by the id.
    const Ref held(Py_NewRef(other));
    checked(PyDict_SetItem(self.by_id, id.get(), request));
    if (parts.looked_up == other) parts.looked_up = request;
    return parts.requests.insert(request, parts.requests.erase(other));
  }
  settle_hash_size(self, parts);
  const RequestHandle handle = parts.core.add_request();
  try {
    if (parts.has_states) parts.ids[static_cast<int32_t>(handle)] = Ref(Py_NewRef(id.get()));
    checked(PyDict_SetItem(self.by_id, id.get(), request));
    return parts.requests.insert(request, {.handle = handle, .num_hashes = 0, .last_hash = {}});
  } catch (...) {
    parts.core.remove_request(handle);
    parts.ids.erase(static_cast<int32_t>(handle));
    throw;
  }
}

/// Of the requests that hold no blocks, only the one asked for last is kept: vLLM asks for the
/// prefix of a waiting request again and again, and may never allocate it.
void keep_as_looked_up(ManagerObject& self, PyObject* request) {
  PyObject* before = std::exchange(self.parts->looked_up, request);
  if (before == nullptr || before == request) return;
  forget(self, before, attribute(before, names().request_id).get());
}

/// Gives the native manager the hashes that the request got since.
void sync_hashes(Parts& parts, const RequestReader& request, Known& known) {
  if (!parts.enable_caching) return;
  const Ref list = request.get(names().block_hashes);
  if (!PyList_Check(list.get())) {
    throw PythonError(PyErr_Format(PyExc_TypeError, "block_hashes must be a list, not %.200s",
                                   Py_TYPE(list.get())->tp_name));
  }
  const auto size = static_cast<int64_t>(PyList_GET_SIZE(list.get()));
  const auto item = [&](int64_t i) { return PyList_GET_ITEM(list.get(), i); };
  if (known.num_hashes > size ||
      (known.num_hashes > 0 && item(known.num_hashes - 1) != known.last_hash.get())) {
    parts.core.truncate_hashes(known.handle, 0);
    known.num_hashes = 0;
  }
  if (known.num_hashes == size) return;
  parts.hashes.clear();
  for (int64_t i = known.num_hashes; i < size; ++i) {
    if (!PyBytes_Check(item(i))) {
      throw PythonError(PyErr_Format(PyExc_TypeError, "a block hash must be bytes, not %.200s",
                                     Py_TYPE(item(i))->tp_name));
    }
    if (static_cast<size_t>(PyBytes_GET_SIZE(item(i))) != parts.core.hash_bytes()) {
      throw PythonError(PyErr_Format(
          PyExc_ValueError, "block hash %lld has %zd bytes, the others have %zu",
          static_cast<long long>(i), PyBytes_GET_SIZE(item(i)), parts.core.hash_bytes()));
    }
    const auto* bytes = reinterpret_cast<const std::byte*>(PyBytes_AS_STRING(item(i)));
    parts.hashes.insert(parts.hashes.end(), bytes, bytes + PyBytes_GET_SIZE(item(i)));
  }
  parts.core.append_hashes(known.handle, parts.hashes);
  known.num_hashes = size;
  known.last_hash = Ref(Py_NewRef(item(size - 1)));
}

// Results.

/// `ids_of(group)`: what can be indexed and has a size. The shared empty result if all are empty.
template <typename IdsOfGroup>
Ref make_blocks(ManagerObject& self, IdsOfGroup&& ids_of) {
  const size_t num_groups = self.parts->num_groups;
  std::vector<BlockId> data(num_groups);
  for (size_t group = 0; group < num_groups; ++group) {
    const auto ids = ids_of(group);
    if (group == 0) data.reserve(num_groups * (ids.size() + 1));  // as a rule all have as many
    for (size_t i = 0; i < ids.size(); ++i) data.push_back(ids[i]);
    data[group] = static_cast<BlockId>(data.size());
  }
  if (data.size() == num_groups) return Ref(Py_NewRef(self.empty));
  return owned(reinterpret_cast<PyObject*>(make_cache_blocks(
      reinterpret_cast<PyTypeObject*>(self.blocks_type), self.pool, num_groups, std::move(data))));
}

/// Files what happened to a pool that Python has, too.
void note(ManagerObject& self, PyObject* request) {
  if (self.parts->pool) note_changes(self.pool, request);
}

/// The block object of an id.
PyObject* block_object(ManagerObject& self, BlockId id) {
  return Py_NewRef(shared_pool_of(self.pool).block(id).as_object());
}

Ref block_objects(ManagerObject& self, std::span<const BlockId> ids) {
  return make_list(ids.size(), [&](size_t i) { return block_object(self, ids[i]); });
}

// Prefix cache.

/// Where a request asks for it, what it found is reported as stored.
void report_hit(ManagerObject& self, PyObject* request, const Known& known) {
  const Ref mode(PyObject_GetAttr(request, names().kv_cache_report_mode));
  if (!mode) {
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) throw PythonError();
    PyErr_Clear();
    return;
  }
  if (checked(PyObject_RichCompareBool(mode.get(), names().full, Py_EQ)) == 0) return;
  self.parts->core.emit_cached_block_events(known.handle, self.parts->hit);
  note(self, request);
}

/// (blocks, tokens, shared prefix boundary), with `diverged` behind for connectors.
template <bool kForConnector>
PyObject* look_up(ManagerObject& self, Parts& parts, const Arguments<2>& in) {
  const bool skips = to_bool(attribute(in[0], names().skip_reading_prefix_cache).get());
  PrefixHit& hit = parts.hit;
  hit.num_tokens = hit.shared_prefix_boundary = 0;
  hit.diverged = false;
  for (auto& ids : hit.blocks) ids.clear();
  hit.blocks.resize(parts.num_groups);
  if (parts.enable_caching && !skips) {
    const bool is_new = find(self, in[0]) == nullptr;
    find_or_add(self, in[0]);
    if (is_new) keep_as_looked_up(self, in[0]);
    Known& known = *find(self, in[0]);
    const int64_t asked =
        is_given(in[1]) ? to_int(in[1]) : to_int(attribute(in[0], names().num_tokens).get()) - 1;
    // vLLM finds nothing where there is no room for a hit.
    const auto max_tokens = std::clamp<int64_t>(asked, 0, INT32_MAX);
    sync_hashes(parts, RequestReader(self, in[0]), known);
    if (kForConnector) {
      parts.core.find_prefix_for_connector(known.handle, max_tokens, hit);
    } else {
      parts.core.find_prefix(known.handle, max_tokens, hit);
    }
    if (hit.num_tokens > 0 && !hit.diverged && parts.reports_events) {
      report_hit(self, in[0], known);
    }
  }
  Ref blocks = make_blocks(self, [&](size_t group) { return std::span(hit.blocks[group]); });
  const auto num_tokens = static_cast<long long>(hit.num_tokens);
  const auto boundary = static_cast<long long>(hit.shared_prefix_boundary);
  return kForConnector ? Py_BuildValue("(NLLO)", blocks.release(), num_tokens, boundary,
                                       hit.diverged ? Py_True : Py_False)
                       : Py_BuildValue("(NLL)", blocks.release(), num_tokens, boundary);
}

// Allocation.

/// The block ids of each group of a sequence, into the hit.
void read_groups_of_blocks(Parts& parts, PyObject* groups, PrefixHit& hit) {
  const Ref list = sequence(groups, "blocks must be a sequence");
  if (static_cast<size_t>(PySequence_Fast_GET_SIZE(list.get())) != parts.num_groups) {
    throw PythonError(PyErr_Format(PyExc_ValueError, "blocks of %zd groups, but there are %zu",
                                   PySequence_Fast_GET_SIZE(list.get()), parts.num_groups));
  }
  hit.blocks.resize(parts.num_groups);
  for (size_t group = 0; group < parts.num_groups; ++group) {
    hit.blocks[group].clear();
    read_block_ids(PySequence_Fast_GET_ITEM(list.get(), static_cast<Py_ssize_t>(group)),
                   hit.blocks[group]);
  }
}

/// `new_computed_blocks`, read into the manager's hit; null for none.
PrefixHit* read_hit(ManagerObject& self, Parts& parts, PyObject* argument) {
  if (!is_given(argument) || argument == self.empty) return nullptr;
  PrefixHit& hit = parts.hit;
  CacheBlocks* blocks = as_cache_blocks(argument);
  if (blocks != nullptr && blocks->blocks == nullptr && blocks->num_groups == parts.num_groups) {
    hit.blocks.resize(parts.num_groups);
    for (size_t group = 0; group < blocks->num_groups; ++group) {
      const std::span<const BlockId> ids = blocks->ids(group);
      hit.blocks[group].assign(ids.begin(), ids.end());
    }
    return &hit;
  }
  const Ref groups = attribute(argument, names().blocks);
  read_groups_of_blocks(parts, groups.get(), hit);
  return groups.get() == attribute(self.empty, names().blocks).get() ? nullptr : &hit;
}

// What was not given stays what it is.
void read_argument(PyObject* argument, bool& result) {
  if (argument != nullptr) result = to_bool(argument);
}
void read_argument(PyObject* argument, int64_t& result) {
  if (argument != nullptr) result = to_int(argument);
}
void read_argument(PyObject* argument, double& result) {
  if (argument == nullptr) return;
  result = PyFloat_AsDouble(argument);
  if (PyErr_Occurred()) throw PythonError();
}
void read_argument(PyObject* argument, std::optional<int64_t>& result) {
  if (argument != nullptr) result = to_int(argument);
}

void read_groups(PyObject* argument, std::vector<uint16_t>& groups) {
  groups.clear();
  if (argument == nullptr) return;
  const Ref list = sequence(argument, "skip_zeroing_group_ids must be a sequence");
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(list.get()); ++i) {
    groups.push_back(static_cast<uint16_t>(to_int(PySequence_Fast_GET_ITEM(list.get(), i))));
  }
}

/// Whether the request waits for its admission.
bool is_admitted(ManagerObject& self, PyObject* request) {
  const Ref status = attribute(request, names().status);
  return checked(PySequence_Contains(self.watermark_statuses, status.get())) == 1;
}

/// Whether a decode step surely needs no blocks; if not, look closer.
bool is_quiet(ManagerObject& self, PyObject* const* args, Py_ssize_t num_args, PyObject* keywords) {
  int64_t num_lookahead = 0;
  if (num_args != 2) return false;
  if (keywords != nullptr && PyTuple_GET_SIZE(keywords) != 0) {
    if (PyTuple_GET_SIZE(keywords) != 1 ||
        PyTuple_GET_ITEM(keywords, 0) != names().num_lookahead_tokens) {
      return false;
    }
    num_lookahead = to_int(args[2]);
    if (num_lookahead < 0) return false;
  }
  const Known* known = find(self, args[0]);
  const int64_t quiet_until = known == nullptr ? 0 : self.parts->core.quiet_until(known->handle);
  if (quiet_until == 0) return false;
  // A request that is being admitted may have to leave the watermark's blocks free.
  if (self.parts->watermark_blocks > 0 && is_admitted(self, args[0])) return false;
  const int64_t num_new = to_int(args[1]);
  if (num_new <= 0) return false;
  const int64_t num_computed = RequestReader(self, args[0]).get_int(names().num_computed_tokens);
  return num_computed + num_new + num_lookahead < quiet_until;
}

PyObject* allocate_slots(ManagerObject& self, Parts& parts, const Arguments<12>& in) {
  Allocation allocation;
  bool has_scheduled = true;
  read_argument(in[1], allocation.num_new_tokens);
  read_argument(in[2], allocation.num_new_computed_tokens);
  read_argument(in[4], allocation.num_lookahead_tokens);
  read_argument(in[5], allocation.num_external_computed_tokens);
  read_argument(in[6], allocation.delay_cache_blocks);
  read_argument(in[7], allocation.num_encoder_tokens);
  read_argument(in[8], allocation.full_sequence_must_fit);
  read_argument(in[9], allocation.reserved_blocks);
  read_argument(in[10], has_scheduled);
  read_groups(in[11], parts.groups);
  PrefixHit* hit = read_hit(self, parts, in[3]);
  if (allocation.num_new_tokens == 0 && allocation.num_new_computed_tokens == 0 &&
      allocation.num_external_computed_tokens == 0) {
    throw PythonError(PyErr_Format(
        PyExc_ValueError,
        "num_new_tokens must be greater than 0 when there are no computed tokens to adopt"));
  }
  allocation.skip_zeroing_groups = parts.groups;
  const RequestReader request(self, in[0]);
  const RequestTokens tokens = request.tokens();
  allocation.apply_watermark =
      has_scheduled && parts.watermark_blocks > 0 && is_admitted(self, in[0]);
  const bool is_new = find(self, in[0]) == nullptr;
  Known& known = find_or_add(self, in[0]);
  sync_hashes(parts, request, known);
  ++self.num_allocations;
  if (hit != nullptr) hit->num_tokens = allocation.num_new_computed_tokens;
  if (!parts.core.allocate(known.handle, tokens, allocation, hit)) {
    if (is_new) keep_as_looked_up(self, in[0]);
    return Py_NewRef(Py_None);
  }
  note(self, in[0]);
  if (parts.looked_up == in[0]) parts.looked_up = nullptr;
  if (!parts.core.has_new_blocks()) return Py_NewRef(self.empty);
  return make_blocks(self, [&](size_t group) { return parts.core.new_blocks(group); }).release();
}

/// A decode step seldom needs a block, and answers before its arguments are sorted.
PyObject* allocate_slots_or_nothing(PyObject* object, PyObject* const* args, Py_ssize_t num_args,
                                    PyObject* keywords) {
  ManagerObject& self = *as_self(object);
  if (self.parts != nullptr) {
    PyObject* result = without_exceptions([&]() -> PyObject* {
      return is_quiet(self, args, num_args, keywords) ? Py_NewRef(self.empty) : nullptr;
    });
    if (result != nullptr) ++self.num_quiet;
    if (result != nullptr || PyErr_Occurred()) return result;
  }
  return fast_call<allocate_slots, "allocate_slots", 2, "request", "num_new_tokens",
                   "num_new_computed_tokens", "new_computed_blocks", "num_lookahead_tokens",
                   "num_external_computed_tokens", "delay_cache_blocks", "num_encoder_tokens",
                   "full_sequence_must_fit", "reserved_blocks", "has_scheduled_reqs",
                   "skip_zeroing_group_ids">(object, args, num_args, keywords);
}

/// Mirrors KVCacheCoordinator.get_num_blocks_to_allocate (0.33), with the same arguments.
int64_t get_num_blocks_to_allocate(ManagerObject& self, Parts& parts, const Arguments<9>& in) {
  CacheManager::Demand demand;
  read_argument(in[1], demand.num_tokens);
  read_argument(in[3], demand.num_encoder_tokens);
  read_argument(in[4], demand.total_computed_tokens);
  read_argument(in[5], demand.num_local_computed_tokens);
  read_argument(in[6], demand.num_tokens_main_model);
  read_argument(in[7], demand.apply_admission_cap);
  read_argument(in[8], demand.prefill_end);
  read_groups_of_blocks(parts, in[2], parts.hit);
  const PrefixHit* hit = parts.hit.empty() ? nullptr : &parts.hit;
  if (const Known* known = find_by_id(self, in[0])) {
    return parts.core.num_blocks_to_allocate(known->handle, demand, hit);
  }
  const RequestHandle handle = parts.core.add_request();
  const int64_t count = parts.core.num_blocks_to_allocate(handle, demand, hit);
  parts.core.remove_request(handle);
  return count;
}

void cache_blocks(ManagerObject& self, Parts& parts, const Arguments<2>& in) {
  if (!parts.enable_caching) return;
  const int64_t num_computed = to_int(in[1]);
  // With asynchronous scheduling, every step asks for every request. What is cached inside a block
  // can be cached anew.
  if (const Known* quiet = find(self, in[0]);
      quiet != nullptr && parts.caches_only_full_blocks &&
      num_computed < parts.core.quiet_until(quiet->handle)) {
    return;
  }
  const RequestReader request(self, in[0]);
  const RequestTokens tokens = request.tokens();
  Known& known = find_or_add(self, in[0]);
  sync_hashes(parts, request, known);
  parts.core.commit(known.handle, tokens, num_computed);
  note(self, in[0]);
}

// Release.

/// Keeps the states of a request that is about to be forgotten, by its id.
void keep_boundary_states(ManagerObject& self, Parts& parts) {
  if (!parts.has_states) return;
  for (const BoundaryState& state : parts.core.take_boundary_states()) {
    const auto id = parts.ids.find(static_cast<int32_t>(state.request));
    const Ref entry = owned(
        Py_BuildValue("(OHiL)", id == parts.ids.end() ? Py_None : id->second.get(), state.group,
                      static_cast<int>(state.block), static_cast<long long>(state.num_tokens)));
    checked(PyList_Append(self.boundary_states, entry.get()));
  }
}

void free_request(ManagerObject& self, Parts& parts, PyObject* request) {
  const Ref id = attribute(request, names().request_id);
  PyObject* held = request_of(self, id.get());
  if (held == nullptr) return;
  const RequestHandle handle = find(self, held)->handle;
  // By this handle it is known when it comes back.
  if (parts.core.starts_again(handle)) return parts.core.free(handle);
  if (parts.has_states) {
    parts.core.free(handle);
    keep_boundary_states(self, parts);
  }
  forget(self, held, id.get());
}

Ref pop_blocks_for_free(ManagerObject& self, Parts& parts, PyObject* request) {
  const Ref id = attribute(request, names().request_id);
  parts.blocks.clear();
  if (PyObject* held = request_of(self, id.get())) {
    parts.core.pop_blocks_for_free(find(self, held)->handle, parts.blocks);
    keep_boundary_states(self, parts);
    forget(self, held, id.get());
  }
  return block_objects(self, parts.blocks);
}

void remove_skipped_blocks(ManagerObject& self, Parts& parts, const Arguments<3>& in) {
  const int64_t num_processed = to_int(in[1]);
  std::optional<int64_t> num_prompt;
  if (is_given(in[2])) num_prompt = to_int(in[2]);
  if (const Known* known = find_by_id(self, in[0])) {
    parts.core.remove_skipped_blocks(known->handle, num_processed, num_prompt);
  }
}

/// The pool's keys of blocks have gone, perhaps of blocks in use: no request is quiet any more.
void blocks_were_evicted(ManagerObject&, Parts& parts) { parts.core.evict_blocks(0, {}); }

bool forget_prefix_cache(ManagerObject&, Parts& parts) {
  const bool done = parts.core.reset_prefix_cache();
  parts.core.take_events();  // the pool has told Python of its reset itself
  return done;
}

// State.

Ref get_blocks(ManagerObject& self, Parts& parts, const Arguments<1>& in) {
  const Known* known = find_by_id(self, in[0]);
  if (known == nullptr) return Ref(Py_NewRef(self.empty));
  return make_blocks(self,
                     [&](size_t group) { return parts.core.block_table(known->handle, group); });
}

/// Block objects of a group, or None where there are none.
Ref block_list(ManagerObject& self, Parts& parts, const Arguments<2>& in) {
  const Known* known = find_by_id(self, in[0]);
  parts.blocks.clear();
  if (known != nullptr) {
    const BlockTableView table =
        parts.core.block_table(known->handle, static_cast<size_t>(to_int(in[1])));
    for (size_t i = 0; i < table.size(); ++i) parts.blocks.push_back(table[i]);
  }
  return parts.blocks.empty() ? Ref(Py_NewRef(Py_None)) : block_objects(self, parts.blocks);
}

int64_t estimate_cached_tokens(ManagerObject& self, Parts& parts, PyObject* request) {
  const Known* known = find_by_id(self, attribute(request, names().request_id).get());
  return known == nullptr ? 0 : parts.core.estimate_cached_tokens(known->handle);
}

int64_t num_free_blocks(ManagerObject&, Parts& parts) { return parts.core.num_free_blocks(); }
double usage(ManagerObject&, Parts& parts) { return parts.core.usage(); }

PyObject* request_ids(ManagerObject& self, Parts&) { return PyDict_Keys(self.by_id); }

/// What the native manager made of the options, to be compared with what vLLM made of them.
PyObject* settings(ManagerObject&, Parts& parts) {
  Ref sizes = make_tuple(parts.num_groups, [&](size_t group) {
    return PyLong_FromLongLong(parts.core.block_size(group));
  });
  return Py_BuildValue("{sNsOsOsL}", "block_sizes", sizes.release(), "enable_partial_hits",
                       parts.core.enable_partial_hits() ? Py_True : Py_False,
                       "mamba_shared_prefix_checkpoint",
                       parts.core.mamba_shared_prefix_checkpoint() ? Py_True : Py_False,
                       "watermark_blocks", static_cast<long long>(parts.core.watermark_blocks()));
}

void check_invariants(ManagerObject& self, Parts& parts) {
  parts.core.check_invariants();
  if (parts.core.num_requests() != parts.requests.size() ||
      parts.requests.size() != static_cast<size_t>(PyDict_GET_SIZE(self.by_id))) {
    throw PythonError(
        PyErr_Format(PyExc_RuntimeError, "requests and their ids contradict each other"));
  }
}

// What a step has left to do.

void new_step_starts(ManagerObject&, Parts& parts) { parts.core.new_step_starts(); }

Ref take_new_block_ids(ManagerObject&, Parts& parts) {
  const std::vector<BlockId> ids = parts.core.take_new_block_ids();
  return make_list(ids.size(), [&](size_t i) { return PyLong_FromLong(ids[i]); });
}

void record_blocks_for_zeroing(ManagerObject& self, Parts& parts, const Arguments<2>& in) {
  const int64_t start = to_int(in[1]);
  if (const Known* known = find_by_id(self, in[0])) {
    parts.core.record_blocks_for_zeroing(known->handle, start);
  }
}

/// [(source block, destination block)]
Ref take_copies(ManagerObject& self, Parts& parts) {
  const std::vector<BlockCopy> copies = parts.core.take_copies();
  return make_list(copies.size(), [&](size_t i) {
    return Py_BuildValue("(NN)", block_object(self, copies[i].source),
                         block_object(self, copies[i].destination));
  });
}

/// [(request id, group, block id, tokens)]
Ref take_boundary_states(ManagerObject& self, Parts& parts) {
  keep_boundary_states(self, parts);
  return Ref(std::exchange(self.boundary_states, checked(PyList_New(0))));
}

/// [(group, block id, tokens)]
Ref finalize_partial_tails(ManagerObject& self, Parts& parts, const Arguments<3>& in) {
  const int64_t num_computed = to_int(in[1]);
  const int64_t num_in_flight = to_int(in[2]);
  std::vector<BoundaryState> states;
  if (const Known* known = find_by_id(self, in[0])) {
    states = parts.core.finalize_partial_tails(known->handle, num_computed, num_in_flight);
  }
  return make_list(states.size(), [&](size_t i) {
    return Py_BuildValue("(HiL)", states[i].group, static_cast<int>(states[i].block),
                         static_cast<long long>(states[i].num_tokens));
  });
}

// The type.

/// vLLM's names of its arguments; absent ones and None leave an option as it is.
CacheManagerOptions read_options(PyObject* in) {
  CacheManagerOptions options;
  const auto read = [&](const char* name, auto& option) {
    PyObject* value = PyDict_GetItemString(in, name);
    if (is_given(value)) read_argument(value, option);
  };
  read("num_blocks", options.num_blocks);
  read("max_model_len", options.max_model_len);
  read("scheduler_block_size", options.scheduler_block_size);
  read("hash_block_size", options.hash_block_size);
  read("max_in_flight_tokens", options.max_in_flight_tokens);
  read("enable_caching", options.enable_caching);
  read("use_eagle", options.use_eagle);
  read("num_hash_lookahead_tokens", options.num_hash_lookahead_tokens);
  read("num_prefill_lookahead", options.num_prefill_lookahead);
  read("enable_events", options.enable_events);
  read("dcp_world_size", options.dcp_world_size);
  read("pcp_world_size", options.pcp_world_size);
  read("watermark", options.watermark);
  read("enable_mamba_shared_prefix_checkpoint", options.enable_mamba_shared_prefix_checkpoint);
  read("retention_interval", options.retention_interval);
  read("needs_zeroing", options.needs_zeroing);
  read("hash_bytes", options.hash_bytes);
  read("enable_kv_cache_events", options.enable_events);
  return options;
}

/// The result without blocks that all callers share.
Ref make_shared_empty(PyObject* blocks_type, PyObject* pool, size_t num_groups) {
  Ref empty = owned(reinterpret_cast<PyObject*>(
      make_cache_blocks(reinterpret_cast<PyTypeObject*>(blocks_type), pool, 0, {})));
  const Ref nothing = owned(PyTuple_New(0));
  Ref groups = make_tuple(num_groups, [&](size_t) { return Py_NewRef(nothing.get()); });
  auto& blocks = *reinterpret_cast<CacheBlocks*>(empty.get());
  blocks.blocks = groups.release();
  blocks.is_shared_empty = 1;
  return empty;
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
  return without_exceptions([&]() -> PyObject* {
    ManagerObject* self = as_self(object);
    if (self->parts != nullptr) {
      throw PythonError(PyErr_Format(PyExc_RuntimeError, "a cache manager is started once"));
    }
    CacheManagerOptions options = read_options(options_dict);
    options.groups = *static_cast<const std::vector<CacheGroup>*>(
        checked(PyCapsule_GetPointer(capsule, kCacheGroupsCapsule)));
    Ref by_id = owned(PyDict_New());
    Ref states = owned(PyList_New(0));
    Ref empty = make_shared_empty(blocks_type, pool, options.groups.size());
    std::shared_ptr<BlockPool> native;
    if (std::all_of(options.groups.begin(), options.groups.end(),
                    [](const CacheGroup& group) { return group.slices == 1; })) {
      SharedPool* shared = &shared_pool_of(pool);
      ++shared->users;
      native = {&shared->pool, [shared](BlockPool*) { shared->release(); }};
    }
    auto parts = std::make_unique<Parts>(options, std::move(native));
    parts->reports_events = options.enable_events;
    for (size_t i = 0; i < options.groups.size(); ++i) {
      const CacheGroup& group = options.groups[i];
      parts->caches_only_full_blocks = parts->caches_only_full_blocks && !group.mamba_align &&
                                       parts->core.block_size(i) == parts->core.hash_block_size();
      parts->has_states = parts->has_states || group.kind == CacheKind::kMamba;
    }
    self->parts = parts.release();
    self->pool = Py_NewRef(pool);
    self->module_dict = Py_NewRef(module_dict);
    self->request_type = Py_NewRef(request_type);
    self->by_id = by_id.release();
    self->boundary_states = states.release();
    self->blocks_type = Py_NewRef(blocks_type);
    self->watermark_statuses = Py_NewRef(statuses);
    self->empty = empty.release();
    return Py_NewRef(Py_None);
  });
}

constexpr PyObject* ManagerObject::*kHeld[] = {
    &ManagerObject::by_id,           &ManagerObject::pool,
    &ManagerObject::blocks_type,     &ManagerObject::empty,
    &ManagerObject::boundary_states, &ManagerObject::watermark_statuses,
    &ManagerObject::module_dict,     &ManagerObject::request_type};

int traverse(PyObject* object, visitproc visit, void* arg) {
  for (const auto member : kHeld) Py_VISIT(as_self(object)->*member);
  Py_VISIT(Py_TYPE(object));
  return 0;
}

int clear(PyObject* object) {
  delete std::exchange(as_self(object)->parts, nullptr);
  for (const auto member : kHeld) Py_CLEAR(as_self(object)->*member);
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
  return without_exceptions(
      [&] { return Py_NewRef(std::get<0>(Receiver<ManagerObject>::parts_of(object)).empty); });
}

/// vLLM's constructor sets its own.
int set_empty(PyObject*, PyObject*, void*) { return 0; }

PyMethodDef methods[] = {
    {"_start", start, METH_VARARGS, nullptr},
    method<look_up<false>, "get_computed_blocks", 1, "request", "max_cache_hit_length">(
        "Mirrors KVCacheManager.get_computed_blocks (0.33)."),
    method<look_up<true>, "get_computed_blocks_for_connector", 1, "request",
           "max_cache_hit_length">(
        "Mirrors KVCacheManager.get_computed_blocks_for_connector (0.33)."),
    {"allocate_slots", as_method(allocate_slots_or_nothing), kFast,
     "Mirrors KVCacheManager.allocate_slots (0.33)."},
    method<cache_blocks, "cache_blocks", 2, "request", "num_computed_tokens">(
        "Mirrors KVCacheManager.cache_blocks (0.33)."),
    method_of_one<free_request, "free">("Mirrors KVCacheManager.free (0.33)."),
    method_of_one<pop_blocks_for_free, "pop_blocks_for_free">(
        "Mirrors KVCacheManager.pop_blocks_for_free (0.33)."),
    method<remove_skipped_blocks, "remove_skipped_blocks", 2, "request_id",
           "processed_computed_tokens", "num_prompt_tokens">(
        "Mirrors KVCacheManager.remove_skipped_blocks (0.33)."),
    method<get_blocks, "get_blocks", 1, "request_id">(
        "The request's blocks as they are now. Mirrors KVCacheManager.get_blocks (0.33)."),
    method_without_arguments<take_new_block_ids, "take_new_block_ids">(
        "Mirrors KVCacheManager.take_new_block_ids (0.33)."),
    method<record_blocks_for_zeroing, "record_blocks_for_zeroing", 2, "request_id", "start_token">(
        "Mirrors KVCacheManager.record_blocks_for_zeroing (0.33)."),
    method_without_arguments<new_step_starts, "new_step_starts">(
        "Mirrors KVCacheManager.new_step_starts (0.33)."),
    method_without_arguments<check_invariants, "check_invariants">(
        "Raises BlockPoolError if tables and pool contradict each other."),
    method<get_num_blocks_to_allocate, "_get_num_blocks_to_allocate", 7, "request_id", "num_tokens",
           "new_computed_blocks", "num_encoder_tokens", "total_computed_tokens",
           "num_local_computed_tokens", "num_tokens_main_model", "apply_admission_cap",
           "prefill_end">(nullptr),
    method<block_list, "_block_list", 2, "request_id", "group">(nullptr),
    method_of_one<estimate_cached_tokens, "estimate_cached_tokens">(
        "Mirrors KVCacheManager.estimate_cached_tokens (0.33)."),
    method_without_arguments<num_free_blocks, "_num_free_blocks">(nullptr),
    method_without_arguments<usage, "_usage">(nullptr),
    method_without_arguments<settings, "_settings">(nullptr),
    method_without_arguments<request_ids, "_request_ids">(nullptr),
    method_without_arguments<take_copies, "_take_copies">(nullptr),
    method_without_arguments<take_boundary_states, "_take_boundary_states">(nullptr),
    method<finalize_partial_tails, "_finalize_partial_tails", 3, "request_id",
           "num_computed_tokens", "num_in_flight_tokens">(nullptr),
    method_without_arguments<blocks_were_evicted, "_blocks_were_evicted">(nullptr),
    method_without_arguments<forget_prefix_cache, "_forget_prefix_cache">(nullptr),
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
