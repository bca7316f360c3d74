#include "kvplan/sliced_block_pool.h"

#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/native/block_arrays.h"
#include "bindings/native/prefix_cache_calls.h"
#include "bindings/native/short_repr.h"

namespace kvplan::bindings {
namespace {

py::array get_new_slices(SlicedBlockPool& pool, int64_t num_blocks, PoolGroupId group) {
  // A request that is refused is refused before an array is made for it.
  if (num_blocks < 0 || num_blocks > pool.num_free_blocks(group)) {
    pool.get_new_blocks(group, num_blocks);
  }
  IdArray ids(num_blocks);
  pool.get_new_blocks(group, std::span(ids.mutable_data(), static_cast<size_t>(num_blocks)));
  return ids;
}

/// One demand per group, and the arrays that they refer to.
struct Demands {
  Demands(const SlicedBlockPool& pool, const std::vector<int64_t>& num_new,
          const std::optional<std::vector<py::object>>& found) {
    const auto num_groups = static_cast<size_t>(pool.num_groups());
    if (num_new.size() != num_groups || (found && found->size() != num_groups)) {
      throw InvalidArgument(
          "the pool has " + std::to_string(num_groups) + " groups, but there are " +
          std::to_string(num_new.size()) + " numbers of new blocks" +
          (found ? " and " + std::to_string(found->size()) + " lists of found ones"
                 : std::string()));
    }
    for (size_t g = 0; g < num_groups; ++g) {
      if (found) arrays.push_back(to_ids((*found)[g]));
      list.push_back({.group_id = to_group(static_cast<int64_t>(g)),
                      .found = found ? span_of(arrays.back()) : std::span<const BlockId>(),
                      .num_new = num_new[g]});
    }
  }

  std::vector<IdArray> arrays;
  std::vector<SliceDemand> list;
};

bool can_allocate(const SlicedBlockPool& pool, const std::vector<int64_t>& num_new,
                  const std::optional<std::vector<py::object>>& found) {
  return pool.can_allocate(Demands(pool, num_new, found).list);
}

int64_t num_large_blocks_needed(const SlicedBlockPool& pool, const std::vector<int64_t>& num_new,
                                const std::optional<std::vector<py::object>>& found) {
  return pool.num_large_blocks_needed(Demands(pool, num_new, found).list);
}

py::list allocate(SlicedBlockPool& pool, const std::vector<int64_t>& num_new,
                  const std::optional<std::vector<py::object>>& found, bool frugal) {
  const Demands demands(pool, num_new, found);
  // What is refused is refused before memory is reserved for it.
  if (!pool.can_allocate(demands.list)) pool.allocate(demands.list, {});
  size_t total = 0;
  for (const SliceDemand& demand : demands.list) total += static_cast<size_t>(demand.num_new);
  std::vector<BlockId> ids(total);
  pool.allocate(demands.list, ids, frugal);
  py::list result;
  std::span<const BlockId> rest = ids;
  for (const SliceDemand& demand : demands.list) {
    result.append(to_array(rest.first(static_cast<size_t>(demand.num_new))));
    rest = rest.subspan(static_cast<size_t>(demand.num_new));
  }
  return result;
}

/// What must stay, one list a group.
struct Pinned {
  Pinned(const SlicedBlockPool& pool, const std::optional<std::vector<py::object>>& pinned) {
    if (!pinned) return;
    if (std::cmp_not_equal(pinned->size(), pool.num_groups())) {
      throw InvalidArgument("the pool has " + std::to_string(pool.num_groups()) +
                            " groups, but there are " + std::to_string(pinned->size()) +
                            " lists of pinned blocks");
    }
    for (size_t g = 0; g < pinned->size(); ++g) {
      arrays.push_back(to_ids((*pinned)[g]));
      list.push_back({to_group(static_cast<int64_t>(g)), span_of(arrays.back())});
    }
  }

  MoveOptions options(std::optional<int64_t> max_moves) const {
    MoveOptions result{.pinned = list};
    if (max_moves) result.max_moves = *max_moves;
    return result;
  }

  std::vector<IdArray> arrays;
  std::vector<GroupBlocks> list;
};

bool can_make_room(const SlicedBlockPool& pool, const std::vector<int64_t>& num_new,
                   const std::optional<std::vector<py::object>>& found,
                   std::optional<int64_t> max_moves,
                   const std::optional<std::vector<py::object>>& pinned) {
  return pool.can_make_room(Demands(pool, num_new, found).list,
                            Pinned(pool, pinned).options(max_moves));
}

py::object make_room(SlicedBlockPool& pool, const std::vector<int64_t>& num_new,
                     const std::optional<std::vector<py::object>>& found,
                     std::optional<int64_t> max_moves,
                     const std::optional<std::vector<py::object>>& pinned) {
  const Demands demands(pool, num_new, found);
  const Pinned fixed(pool, pinned);
  const auto moves = pool.make_room(demands.list, fixed.options(max_moves));
  if (!moves) return py::none();
  py::list result;
  auto at = moves->begin();
  for (int64_t g = 0; g < pool.num_groups(); ++g) {
    std::vector<BlockId> sources;
    std::vector<BlockId> destinations;
    for (; at != moves->end() && at->group_id == to_group(g); ++at) {
      sources.push_back(at->source);
      destinations.push_back(at->destination);
    }
    result.append(py::make_tuple(to_array(sources), to_array(destinations)));
  }
  return result;
}

py::array slice_ref_counts(const SlicedBlockPool& pool, std::span<const BlockId> ids,
                           PoolGroupId group) {
  return ref_count_array(ids, [&](BlockId id) { return pool.ref_count(group, id); });
}

py::object slice_hash(const SlicedBlockPool& pool, BlockId block_id, PoolGroupId group) {
  const std::string_view hash = pool.block_hash(group, block_id);
  if (hash.empty()) return py::none();
  return py::bytes(hash.data(), hash.size());
}

/// Blocks come before their group in Python.
auto with_blocks_first(void (SlicedBlockPool::*method)(PoolGroupId, std::span<const BlockId>)) {
  return [method](SlicedBlockPool& pool, std::span<const BlockId> ids, PoolGroupId group) {
    (pool.*method)(group, ids);
  };
}

std::vector<int64_t> slices(const SlicedBlockPool& pool) {
  std::vector<int64_t> result;
  for (int64_t g = 0; g < pool.num_groups(); ++g) result.push_back(pool.slices(to_group(g)));
  return result;
}

std::string sliced_pool_repr(const SlicedBlockPool& pool) {
  return ShortRepr("SlicedBlockPool")
      .add("num_large_blocks", pool.num_large_blocks())
      .add("slices", slices(pool))
      .add("num_free_large_blocks", pool.num_free_large_blocks())
      .add("num_cached_hashes", pool.num_cached_hashes())
      .str();
}

}  // namespace

void bind_sliced_block_pool(py::module_& m) {
  py::class_<SlicedBlockPool> cls(
      m, "SlicedBlockPool",
      R"(Hands out the blocks of a plan with grouping="sliced" and finds them by hash.

Group g cuts each of the pool's large blocks into slices[g] slices, which are its blocks: block
large_id * slices[g] + slice. A large block belongs to one group at a time. Large block 0 is the
null block of every group, so block 0 is null and blocks 1 to slices[g] - 1 do not exist.

Block ids are int32 numpy arrays, one call a request; null blocks are skipped wherever ids are
taken. Every call completes, or raises BlockPoolError (a ValueError) and changes nothing. Hashes
are 1 to 32 bytes. One writer: calls must not overlap.

num_large_blocks: large blocks of the pool, the null block included; a plan's num_blocks.
slices: slices of a large block, for each group.
enable_caching: off, a block that nobody holds any more loses its hash.
enable_events: queue changes of the prefix cache for take_events().
max_events: events that wait at most; one more drops them all for one 'lost' event.
own_first_above: share of the pool, 0 to 1. When no large block is empty, a group with more bytes
than that free in its partly used large blocks reuses what is cached there before it empties
another large block. The smaller, the fuller the pool gets; the larger, the longer the prefix
cache remembers.)");
  bind_prefix_cache(cls, py::arg("group_id"));
  cls.def(py::init([](int64_t num_large_blocks, const std::vector<int64_t>& slices,
                      bool enable_caching, bool enable_events, int64_t max_events,
                      double own_first_above) {
            return SlicedBlockPool(num_large_blocks, slices,
                                   {.enable_caching = enable_caching,
                                    .enable_events = enable_events,
                                    .max_events = max_events,
                                    .own_first_above = own_first_above});
          }),
          py::arg("num_large_blocks"), py::arg("slices"), py::kw_only(),
          py::arg("enable_caching") = true, py::arg("enable_events") = false,
          py::arg("max_events") = SlicedBlockPoolOptions{}.max_events,
          py::arg("own_first_above") = SlicedBlockPoolOptions{}.own_first_above)
      .def_property_readonly("num_large_blocks", &SlicedBlockPool::num_large_blocks)
      .def_property_readonly("num_groups", &SlicedBlockPool::num_groups)
      .def_property_readonly("slices", &slices, "Slices of a large block, for each group.")
      .def_property_readonly("num_free_large_blocks", &SlicedBlockPool::num_free_large_blocks,
                             "Large blocks without a slice in use.")
      .def_property_readonly(
          "num_empty_large_blocks", &SlicedBlockPool::num_empty_large_blocks,
          "Large blocks that hold nothing. While there are some, nothing cached\n"
          "is evicted for new blocks.")
      .def_property_readonly(
          "num_free_large_blocks_after_moves", &SlicedBlockPool::num_free_large_blocks_after_moves,
          "Large blocks that would be free if each group's blocks were moved together.")
      .def_property_readonly("usage", &SlicedBlockPool::usage,
                             "Share of num_large_blocks - 1 with a slice in use.")
      .def_property_readonly("slice_usage", &SlicedBlockPool::slice_usage,
                             "Share of the bytes of num_large_blocks - 1 in slices in use.")
      .def("num_blocks", &SlicedBlockPool::num_blocks, py::arg("group_id"),
           "Ids of the group: num_large_blocks * slices, the null block's among them.")
      .def("num_free_blocks", &SlicedBlockPool::num_free_blocks, py::arg("group_id"),
           "Blocks that the group could get if no other group took any.")
      .def("num_used_blocks", &SlicedBlockPool::num_used_blocks, py::arg("group_id"))
      .def("owner", &SlicedBlockPool::owner, py::arg("large_id"),
           "The group that a large block belongs to; None in the reserve and for large block 0.")
      .def("can_allocate", &can_allocate, py::arg("num_new"), py::arg("found") = py::none(),
           "Whether allocate() would succeed; exact, in O(groups + blocks found).")
      .def("num_large_blocks_needed", &num_large_blocks_needed, py::arg("num_new"),
           py::arg("found") = py::none(),
           "Large blocks that allocate() would take off num_free_large_blocks, also if it would\n"
           "fail. Exact.")
      .def("allocate", &allocate, py::arg("num_new"), py::arg("found") = py::none(), py::kw_only(),
           py::arg("frugal") = false,
           "Holds the blocks found in the prefix cache and takes new ones, all or nothing.\n\n"
           "num_new: new blocks of each group. found: block ids of each group.\n"
           "frugal: takes no large block beyond num_large_blocks_needed().\n"
           "Returns the new ids of each group, as int32 arrays of shape (num_new[g],).")
      .def("can_make_room", &can_make_room, py::arg("num_new"), py::arg("found") = py::none(),
           py::kw_only(), py::arg("max_moves") = py::none(), py::arg("pinned") = py::none(),
           "Whether make_room() would succeed. Exact; O(groups + blocks found) without max_moves\n"
           "and pinned.")
      .def(
          "make_room", &make_room, py::arg("num_new"), py::arg("found") = py::none(), py::kw_only(),
          py::arg("max_moves") = py::none(), py::arg("pinned") = py::none(),
          R"(Makes allocate(num_new, found) possible by moving blocks, so that large blocks come free.

num_new, found: as for allocate(). max_moves: do nothing if more would be needed.
pinned: for each group, ids that must not move, since a transfer reads or writes them, say; the
whole large blocks that they lie in stay.

Returns for each group a pair of int32 arrays, sources and destinations, empty where the blocks
fit already; None, and nothing happens, if moving does not help. From here on the pool knows the
new ids only, holders and hashes included. The caller rewrites its block tables and found, and
copies the contents after everything that was launched with the old ids and before anything that
writes blocks handed out from now on. The copies of one call may run in any order or at once:
every source and destination occurs once, and none is both. Those of two calls keep their order.)")
      .def("get_new_blocks", &get_new_slices, py::arg("num_blocks"), py::arg("group_id"),
           "New blocks of the group, as int32 array of shape (num_blocks,); all or none.")
      .def("touch", with_blocks_first(&SlicedBlockPool::touch), py::arg("block_ids"),
           py::arg("group_id"),
           "One more holder for each block, which must have a holder or a hash, or be unpinned.")
      .def("free_blocks", with_blocks_first(&SlicedBlockPool::free_blocks), py::arg("block_ids"),
           py::arg("group_id"),
           "One holder less for each block. Within a large block, cached slices that become free\n"
           "are evicted in the order given.")
      .def(
          "unpin_blocks",
          [](SlicedBlockPool& p, std::span<const BlockId> ids, const py::function& on_reuse,
             PoolGroupId group) {
            p.unpin_blocks(group, ids,
                           [on_reuse](PoolGroupId of, BlockId id) { on_reuse(id, of); });
          },
          py::arg("block_ids"), py::arg("on_reuse"), py::arg("group_id"),
          "Like free_blocks, but the contents stay as long as those of cached blocks do.\n"
          "on_reuse(block_id, group_id) is called when they are given up: for another block, for\n"
          "moves, or as the prefix cache is reset.")
      .def("evict_blocks", with_blocks_first(&SlicedBlockPool::evict_blocks), py::arg("block_ids"),
           py::arg("group_id"), "Drops the hashes of the blocks.")
      .def(
          "cache_full_blocks",
          [](SlicedBlockPool& p, std::span<const BlockId> ids, const py::object& hashes,
             int64_t block_size, PoolGroupId group, int64_t first_block,
             const std::optional<py::bytes>& parent_hash,
             const std::optional<std::vector<bool>>& mask) {
            cache_full_blocks(p, ids, hashes, block_size, first_block, group, parent_hash, mask);
          },
          py::arg("block_ids"), py::arg("hashes"), py::arg("block_size"), py::arg("group_id"),
          py::kw_only(), py::arg("first_block") = 0, py::arg("parent_hash") = py::none(),
          py::arg("mask") = py::none(),
          "Makes full blocks in use reachable by their hashes, one per block.\n\n"
          "block_size: tokens. first_block: index of block_ids[0] within the request.\n"
          "parent_hash: hash of the block before. mask: one bool per block, False leaves it out.")
      .def(
          "move_block_hashes",
          [](SlicedBlockPool& p, BlockId src, BlockId dst, PoolGroupId group) {
            p.move_block_hashes(group, src, dst);
          },
          py::arg("src"), py::arg("dst"), py::arg("group_id"),
          "Re-points all hashes of src to dst, which must be in use and have none.")
      .def("ref_counts", &slice_ref_counts, py::arg("block_ids"), py::arg("group_id"),
           "Holders of each block, int32.")
      .def("block_hash", &slice_hash, py::arg("block_id"), py::arg("group_id"),
           "The hash of a block, or None.")
      .def("__repr__", &sliced_pool_repr)
      .def("__len__", &SlicedBlockPool::num_large_blocks);
}

}  // namespace kvplan::bindings
