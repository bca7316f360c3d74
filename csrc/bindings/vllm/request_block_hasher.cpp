/// The callable with which vLLM hashes a request's blocks, each time the request gets a token.
#include <Python.h>
#include <structmember.h>

#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "bindings/vllm/fast_call.h"
#include "bindings/vllm/native_types.h"
#include "kvplan/token_hash.h"

namespace kvplan::bindings {
namespace {

struct Names {
  PyObject* all_token_ids = PyUnicode_InternFromString("_all_token_ids");
  PyObject* block_hashes = PyUnicode_InternFromString("block_hashes");
  PyObject* cache_salt = PyUnicode_InternFromString("cache_salt");
  PyObject* length = PyUnicode_InternFromString("length");
  PyObject* lora_request = PyUnicode_InternFromString("lora_request");
  PyObject* mm_features = PyUnicode_InternFromString("mm_features");
  PyObject* mm_position = PyUnicode_InternFromString("mm_position");
  PyObject* none_hash = PyUnicode_InternFromString("NONE_HASH");
  PyObject* offset = PyUnicode_InternFromString("offset");
  PyObject* prompt_embeds = PyUnicode_InternFromString("prompt_embeds");
};

const Names& names() {
  static const Names interned;
  return interned;
}

struct HasherState {
  TokenHasher hasher;
  std::vector<int32_t> tokens;
  std::vector<TokenHash> hashes;
};

struct HasherObject {
  PyObject_HEAD vectorcallfunc vectorcall;
  HasherState* state;
  PyObject* request_type;   // whose attributes are known
  PyObject* module_dict;    // of vLLM's kv_cache_utils, where NONE_HASH is
  PyObject* hash_function;  // vLLM's, for blocks with extra keys
  PyObject* extra_keys;     // vLLM's generate_block_hash_extra_keys
  PyObject* vllm_hasher;    // vLLM's own callable, for requests that are not hashed here
  unsigned long long num_native;
  unsigned long long num_by_vllm;
};

/// Sum of two int attributes of an object; nothing if one of them is no int that fits.
std::optional<Py_ssize_t> sum_of(PyObject* object, PyObject* first, PyObject* second) {
  Py_ssize_t sum = 0;
  for (PyObject* name : {first, second}) {
    const Ref value(PyObject_GetAttr(object, name));
    const Py_ssize_t number = value ? PyNumber_AsSsize_t(value.get(), nullptr) : -1;
    if (PyErr_Occurred()) {
      PyErr_Clear();
      return std::nullopt;
    }
    sum += number;
  }
  return sum;
}

/// Whether no block from token `start` on has extra keys besides the salt's.
bool is_plain(PyObject* request, Py_ssize_t start) {
  if (to_bool(attribute(request, names().lora_request).get())) return false;
  if (attribute(request, names().prompt_embeds).get() != Py_None) return false;
  const Ref features = attribute(request, names().mm_features);
  if (!PyList_CheckExact(features.get())) return false;
  const Py_ssize_t count = PyList_GET_SIZE(features.get());
  if (count == 0) return true;
  const Ref position = attribute(PyList_GET_ITEM(features.get(), count - 1), names().mm_position);
  const auto end = sum_of(position.get(), names().offset, names().length);
  return end && *end <= start;
}

/// Token ids as numbers; false if one is not an int of 0..2^31-1, whose encoding is another.
bool read_tokens(PyObject* list, Py_ssize_t start, std::vector<int32_t>& tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    PyObject* item = PyList_GET_ITEM(list, start + static_cast<Py_ssize_t>(i));
    if (!PyLong_CheckExact(item)) return false;
    int overflow = 0;
    const long value = PyLong_AsLongAndOverflow(item, &overflow);
    if (overflow != 0 || value < 0 || value > INT32_MAX) return false;
    tokens[i] = static_cast<int32_t>(value);
  }
  return true;
}

bool read_hash(PyObject* object, TokenHash& hash) {
  if (!PyBytes_CheckExact(object)) return false;
  if (static_cast<size_t>(PyBytes_GET_SIZE(object)) != hash.size()) return false;
  std::memcpy(hash.data(), PyBytes_AS_STRING(object), hash.size());
  return true;
}

/// The hash of a salted request's first block, by vLLM's functions.
Ref hash_by_vllm(HasherObject* self, PyObject* request, PyObject* none_hash, PyObject* tokens) {
  const auto size = static_cast<Py_ssize_t>(self->state->hasher.block_size());
  const Ref keys_and_index = owned(
      PyObject_CallFunction(self->extra_keys, "Onnn", request, Py_ssize_t{0}, size, Py_ssize_t{0}));
  PyObject* keys = checked(PyTuple_GetItem(keys_and_index.get(), 0));
  const Ref slice = owned(PyList_GetSlice(tokens, 0, size));
  const Ref block = owned(PyList_AsTuple(slice.get()));
  const Ref content = owned(PyTuple_Pack(3, none_hash, block.get(), keys));
  return owned(PyObject_CallOneArg(self->hash_function, content.get()));
}

/// The new hashes of a request's full blocks from token `start` on, or null if vLLM's own hasher is
/// to make them.
Ref hash_natively(HasherObject* self, PyObject* request, PyObject* hashes, PyObject* tokens,
                  Py_ssize_t start) {
  HasherState& state = *self->state;
  if (!is_plain(request, start)) return {};
  PyObject* parent_object = start == 0
                                ? PyDict_GetItemWithError(self->module_dict, names().none_hash)
                                : PyList_GET_ITEM(hashes, PyList_GET_SIZE(hashes) - 1);
  TokenHash parent;
  if (parent_object == nullptr || !read_hash(parent_object, parent)) return {};

  const auto size = static_cast<Py_ssize_t>(state.hasher.block_size());
  const Py_ssize_t count = (PyList_GET_SIZE(tokens) - start) / size;
  Ref first;  // made by vLLM, if it is salted
  if (start == 0 && to_bool(attribute(request, names().cache_salt).get())) {
    first = hash_by_vllm(self, request, parent_object, tokens);
    if (!read_hash(first.get(), parent)) return {};
  }
  const Py_ssize_t done = first ? 1 : 0;
  state.tokens.resize(static_cast<size_t>((count - done) * size));
  if (!read_tokens(tokens, start + done * size, state.tokens)) return {};
  state.hashes.resize(static_cast<size_t>(count - done));
  state.hasher.hash_blocks(parent, state.tokens, state.hashes);
  return make_list(static_cast<size_t>(count), [&](size_t i) {
    if (first && i == 0) return first.release();
    const TokenHash& hash = state.hashes[i - static_cast<size_t>(done)];
    return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(hash.data()),
                                     static_cast<Py_ssize_t>(hash.size()));
  });
}

PyObject* call(PyObject* callable, PyObject* const* args, size_t flagged_count,
               PyObject* keywords) {
  auto* self = reinterpret_cast<HasherObject*>(callable);
  if (PyVectorcall_NARGS(flagged_count) == 1 && keywords == nullptr &&
      reinterpret_cast<PyObject*>(Py_TYPE(args[0])) == self->request_type) {
    const Ref hashes(PyObject_GetAttr(args[0], names().block_hashes));
    if (!hashes) return nullptr;
    const Ref tokens(PyObject_GetAttr(args[0], names().all_token_ids));
    if (!tokens) return nullptr;
    if (PyList_CheckExact(hashes.get()) && PyList_CheckExact(tokens.get())) {
      const auto size = static_cast<Py_ssize_t>(self->state->hasher.block_size());
      const Py_ssize_t start = PyList_GET_SIZE(hashes.get()) * size;
      if (start + size > PyList_GET_SIZE(tokens.get())) return PyList_New(0);
      PyObject* result = without_exceptions([&] {
        return hash_natively(self, args[0], hashes.get(), tokens.get(), start).release();
      });
      if (result != nullptr) ++self->num_native;
      if (result != nullptr || PyErr_Occurred()) return result;
    }
  }
  ++self->num_by_vllm;
  return PyObject_Vectorcall(self->vllm_hasher, args, flagged_count, keywords);
}

PyObject* make(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* keywords[] = {"algorithm",     "block_size", "request_type", "module_dict",
                                   "hash_function", "extra_keys", "vllm_hasher",  nullptr};
  const char* algorithm = nullptr;
  Py_ssize_t block_size = 0;
  PyObject *request_type, *module_dict, *hash_function, *extra_keys, *vllm_hasher;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "snO!O!OOO", const_cast<char**>(keywords),
                                   &algorithm, &block_size, &PyType_Type, &request_type,
                                   &PyDict_Type, &module_dict, &hash_function, &extra_keys,
                                   &vllm_hasher)) {
    return nullptr;
  }
  const bool cbor = std::strcmp(algorithm, "sha256_cbor") == 0;
  if (!cbor && std::strcmp(algorithm, "sha256") != 0) {
    return PyErr_Format(PyExc_ValueError, "'%s' is not a token hash: sha256 and sha256_cbor are",
                        algorithm);
  }
  const auto kind = cbor ? TokenHashAlgorithm::kSha256Cbor : TokenHashAlgorithm::kSha256;
  std::unique_ptr<HasherState> state(without_exceptions([&] {
    return new HasherState{TokenHasher(kind, block_size), {}, {}};
  }));
  if (!state) return nullptr;
  auto* self = reinterpret_cast<HasherObject*>(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  self->vectorcall = call;
  self->state = state.release();
  self->request_type = Py_NewRef(request_type);
  self->module_dict = Py_NewRef(module_dict);
  self->hash_function = Py_NewRef(hash_function);
  self->extra_keys = Py_NewRef(extra_keys);
  self->vllm_hasher = Py_NewRef(vllm_hasher);
  return reinterpret_cast<PyObject*>(self);
}

constexpr PyObject* HasherObject::*kHeld[] = {
    &HasherObject::request_type, &HasherObject::module_dict, &HasherObject::hash_function,
    &HasherObject::extra_keys, &HasherObject::vllm_hasher};

int traverse(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(object));
  for (const auto member : kHeld) Py_VISIT(reinterpret_cast<HasherObject*>(object)->*member);
  return 0;
}

// No tp_clear: a hasher is callable until it goes, and the functions it holds do not hold it.
void dealloc(PyObject* object) {
  auto* self = reinterpret_cast<HasherObject*>(object);
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  delete self->state;
  for (const auto member : kHeld) Py_XDECREF(self->*member);
  type->tp_free(object);
  Py_DECREF(type);
}

PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(HasherObject, vectorcall), READONLY, nullptr},
    {"num_native", T_ULONGLONG, offsetof(HasherObject, num_native), READONLY,
     "Calls whose hashes were made here."},
    {"num_by_vllm", T_ULONGLONG, offsetof(HasherObject, num_by_vllm), READONLY,
     "Calls that vLLM's own hasher answered."},
    {nullptr, 0, 0, 0, nullptr}};

PyType_Slot slots[] = {
    {Py_tp_doc,
     const_cast<char*>(
         "What vLLM's get_request_block_hasher returns, for sha256 and sha256_cbor.\n\n"
         "Called with a request: the list of the hashes of its full blocks that have none yet. A\n"
         "request with a LoRA adapter, prompt embeddings or multimodal items ahead, of another\n"
         "type, or with tokens that are no plain ints goes to `vllm_hasher`.")},
    {Py_tp_new, reinterpret_cast<void*>(make)},
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_members, members},
    {0, nullptr}};

PyType_Spec spec = {"kvplan._core.RequestBlockHasher", sizeof(HasherObject), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, slots};

}  // namespace

bool add_request_block_hasher(PyObject* module) {
  const Ref type(PyType_FromSpec(&spec));
  return type && PyModule_AddObjectRef(module, "RequestBlockHasher", type.get()) == 0;
}

}  // namespace kvplan::bindings
