#include "kvplan/block_pool.h"

#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/native/block_arrays.h"
#include "bindings/native/named_int.h"
#include "bindings/native/prefix_cache_calls.h"
#include "bindings/native/short_repr.h"

namespace py = pybind11;

namespace kvplan::bindings {
namespace {

py::array get_new_blocks(BlockPool& pool, int64_t num_blocks) {
  if (num_blocks < 0) {
    throw InvalidArgument("cannot get " + std::to_string(num_blocks) + " blocks");
  }
  // A request that is too large is refused before an array is made for it.
  if (num_blocks > pool.num_free_blocks()) pool.get_new_blocks(num_blocks);
  IdArray ids(num_blocks);
  pool.get_new_blocks(std::span(ids.mutable_data(), static_cast<size_t>(num_blocks)));
  return ids;
}

py::object block_hash(const BlockPool& pool, BlockId block_id) {
  const std::optional<PoolGroupId> group = pool.block_hash_group(block_id);
  if (!group) return py::none();
  return py::make_tuple(py::bytes(pool.block_hash(block_id)), *group);
}

py::array ref_counts(const BlockPool& pool, std::span<const BlockId> ids) {
  return ref_count_array(ids, [&](BlockId id) { return pool.ref_count(id); });
}

void set_eviction_hook(BlockPool& pool, const std::optional<py::function>& on_eviction) {
  if (!on_eviction) return pool.set_eviction_hook(nullptr);
  pool.set_eviction_hook(
      [hook = *on_eviction](std::span<const BlockId> ids) { hook(to_array(ids)); });
}

/// (block, group, tokens or None, hash)
py::list saved_tuples(const BlockPool& pool) {
  py::list result;
  for (const SavedHash& saved : save_prefix_cache(pool)) {
    result.append(py::make_tuple(saved.block, static_cast<uint16_t>(saved.group_id),
                                 saved.num_tokens, py::bytes(saved.hash)));
  }
  return result;
}

using SavedTuple =
    std::tuple<Int<"block">, Int<"group">, std::optional<Int<"num_tokens">>, py::bytes>;

void restore(BlockPool& pool, const std::vector<SavedTuple>& tuples) {
  std::vector<SavedHash> saved;
  for (const auto& [block, group, num_tokens, hash] : tuples) {
    if (block < 0 || block >= pool.num_blocks()) {
      throw BlockPoolError("restore_prefix_cache: block " + std::to_string(block) +
                           " of a pool of " + std::to_string(pool.num_blocks()) + " blocks");
    }
    saved.push_back({.block = static_cast<BlockId>(block),
                     .group_id = to_group(group),
                     .num_tokens = num_tokens,
                     .hash = std::string(Hashes::bytes_view(hash))});
  }
  restore_prefix_cache(pool, saved);
}

const char* kind_name(const BlockPoolEvent& event) {
  switch (event.kind) {
    case BlockPoolEvent::Kind::kStored:
      return "stored";
    case BlockPoolEvent::Kind::kRemoved:
      return "removed";
    case BlockPoolEvent::Kind::kLost:
      return "lost";
    default:
      return "cleared";
  }
}

py::list event_hashes(const BlockPoolEvent& event) {
  py::list hashes;
  for (const std::string& hash : event.hashes) hashes.append(py::bytes(hash));
  return hashes;
}

py::object event_parent(const BlockPoolEvent& event) {
  if (!event.parent_hash) return py::none();
  return py::bytes(*event.parent_hash);
}

py::str event_repr(const BlockPoolEvent& event) {
  return py::str(
             "BlockPoolEvent(kind={!r}, group_id={}, block_size={}, hashes={!r}, "
             "parent_hash={!r}, block_ids={}, positions={}, still_cached={}, num_lost={})")
      .format(kind_name(event), static_cast<uint16_t>(event.group_id), event.block_size,
              event_hashes(event), event_parent(event), event.blocks, event.positions,
              event.still_cached, event.num_lost);
}

void bind_event(py::module_& m) {
  py::class_<BlockPoolEvent>(m, "BlockPoolEvent", "A change of the prefix cache.")
      .def_property_readonly("kind", &kind_name, "'stored', 'removed', 'cleared' or 'lost'.")
      .def_readonly("group_id", &BlockPoolEvent::group_id)
      .def_readonly("block_size", &BlockPoolEvent::block_size,
                    "Tokens per hash; of a removed one, as its group's were stored last.")
      .def_property_readonly("hashes", &event_hashes, "Hashes without the group id.")
      .def_property_readonly("parent_hash", &event_parent, "Hash before the first of `hashes`.")
      .def_readonly("block_ids", &BlockPoolEvent::blocks, "The block of each hash.")
      .def_readonly("positions", &BlockPoolEvent::positions,
                    "Of each stored hash, in units of block_size from the request's start.")
      .def_readonly("still_cached", &BlockPoolEvent::still_cached,
                    "Whether the removed hash leads to another block now.")
      .def_readonly("num_lost", &BlockPoolEvent::num_lost,
                    "Events dropped here, since nobody had taken them ('lost').")
      .def("__eq__", [](const BlockPoolEvent& a, const BlockPoolEvent& b) { return a == b; })
      .def("__repr__", &event_repr);
}

std::string pool_repr(const BlockPool& pool) {
  return ShortRepr("BlockPool")
      .add("num_blocks", pool.num_blocks())
      .add("num_free_blocks", pool.num_free_blocks())
      .add("num_cached_hashes", pool.num_cached_hashes())
      .str();
}

}  // namespace

void bind_block_pool(py::module_& m) {
  bind_event(m);
  m.attr("MAX_BLOCK_HASH_BYTES") = kMaxBlockHashBytes;
  py::class_<BlockPool> pool(m, "BlockPool", R"(Hands out KV cache blocks and finds them by hash.

Block ids are int32 numpy arrays, one call a request; block 0 is the null block, is never handed
out, and is skipped wherever ids are taken. Order of allocation, eviction and events as in
vllm/v1/core/block_pool.py::BlockPool (0.33). Every call completes, or raises BlockPoolError (a
ValueError) and changes nothing. Hashes are 1 to 32 bytes, group ids 0 to 65535. One writer:
calls must not overlap.

num_blocks: blocks of the pool, the null block included.
enable_caching: off, freed blocks are reused last in, first out, hashed or not.
enable_events: queue changes of the prefix cache for take_events().
max_events: events that wait at most; one more drops them all for one 'lost' event.)");
  bind_prefix_cache(pool, py::arg("group_id") = PoolGroupId{0});
  pool.def(py::init(
               [](int64_t num_blocks, bool enable_caching, bool enable_events, int64_t max_events) {
                 return BlockPool(num_blocks, {.enable_caching = enable_caching,
                                               .enable_events = enable_events,
                                               .max_events = max_events});
               }),
           py::arg("num_blocks"), py::kw_only(), py::arg("enable_caching") = true,
           py::arg("enable_events") = false, py::arg("max_events") = BlockPoolOptions{}.max_events)
      .def_property_readonly("num_blocks", &BlockPool::num_blocks)
      .def_property_readonly("num_free_blocks", &BlockPool::num_free_blocks)
      .def_property_readonly("usage", &BlockPool::usage,
                             "Share of num_blocks - 1 in use; 0 for a pool of one block.")
      .def("get_new_blocks", &get_new_blocks, py::arg("num_blocks"),
           "The next free blocks, as int32 array of shape (num_blocks,); all or none.")
      .def("touch", &BlockPool::touch, py::arg("block_ids"), "One more holder for each block.")
      .def("free_blocks", &BlockPool::free_blocks, py::arg("block_ids"),
           "One holder less for each block. Released blocks become free in the order given:\n"
           "without a hash at the front of the free list, with a hash at its back.")
      .def(
          "unpin_blocks",
          [](BlockPool& p, std::span<const BlockId> ids, const py::function& on_reuse) {
            p.unpin_blocks(ids, [on_reuse](BlockId id) { on_reuse(id); });
          },
          py::arg("block_ids"), py::arg("on_reuse"),
          "Like free_blocks, but always to the back; on_reuse(block_id) is called when a block is\n"
          "handed out again or the prefix cache is reset.")
      .def("evict_blocks", &BlockPool::evict_blocks, py::arg("block_ids"),
           "Drops the hashes of the blocks.")
      .def("cache_full_blocks", &cache_full_blocks<BlockPool>, py::arg("block_ids"),
           py::arg("hashes"), py::arg("block_size"), py::kw_only(), py::arg("first_block") = 0,
           py::arg("group_id") = PoolGroupId{0}, py::arg("parent_hash") = py::none(),
           py::arg("mask") = py::none(),
           "Makes full blocks reachable by their hashes, one per block.\n\n"
           "block_size: tokens. first_block: index of block_ids[0] within the request.\n"
           "parent_hash: hash of the block before. mask: one bool per block, False leaves it out.")
      .def("move_block_hashes", &BlockPool::move_block_hashes, py::arg("src"), py::arg("dst"),
           "Re-points all hashes of src to dst, which must have none.")
      .def(
          "set_eviction_hook", &set_eviction_hook, py::arg("on_eviction").none(true),
          "on_eviction(block_ids) is called with cached blocks that are about to be handed out,\n"
          "while they still have their hashes: int32, the one that goes first at the front. It\n"
          "reads the pool and changes nothing; what it raises is passed on, and nothing is taken.\n"
          "None: nobody is told.")
      .def("save_prefix_cache", &saved_tuples,
           "(block id, group id, tokens or None, hash) of each cached hash, what is evicted first\n"
           "at the front, blocks in use at the end: for a restart during which the memory stays.")
      .def("restore_prefix_cache", &restore, py::arg("saved"),
           "Puts what save_prefix_cache returned into a pool without blocks in use or cached.")
      .def("ref_counts", &ref_counts, py::arg("block_ids"), "Holders of each block, int32.")
      .def("block_hash", &block_hash, py::arg("block_id"), "(hash, group_id), or None.")
      .def(
          "free_block_ids", [](const BlockPool& p) { return to_array(p.free_block_ids()); },
          "Free blocks in the order in which they will be handed out, int32.")
      .def("__repr__", &pool_repr)
      .def("__len__", &BlockPool::num_blocks);
}

}  // namespace kvplan::bindings
