#include "kvplan/device/block_ops.h"

#include <dlfcn.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/native/spec_object.h"
#include "kvplan/device/block_regions.h"
#include "kvplan/errors.h"

namespace py = pybind11;

// Pointers cross as integers: kvplan.device has checked the tensors they come from.
namespace kvplan::bindings {
namespace {

using Address = uintptr_t;

template <class T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

/// An implementation; a library, once loaded, stays.
struct BlockOpsObject {
  const cuda::BlockOps* ops;
};

BlockOpsObject load_block_ops(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw DeviceError(dlerror());
  void* symbol = dlsym(library, "kvplan_cuda_block_ops");
  if (symbol == nullptr) throw DeviceError(path + " has no kvplan_cuda_block_ops");
  const auto* ops = reinterpret_cast<const cuda::BlockOps* (*)()>(symbol)();
  if (ops->version != cuda::kBlockOpsVersion) {
    throw DeviceError(path + " has version " + std::to_string(ops->version) +
                      " of the block operations, this kvplan needs " +
                      std::to_string(cuda::kBlockOpsVersion));
  }
  return {ops};
}

struct TableSet {
  std::vector<cuda::GroupTable> groups;
  int32_t num_rows;
  cuda::ContextParallel cp;
  int32_t* row_claims;

  template <class Args>
  void fill(Args& args) const {
    args.num_groups = static_cast<int32_t>(groups.size());
    args.num_rows = num_rows;
    std::copy(groups.begin(), groups.end(), args.groups);
    if constexpr (requires { args.row_claims; }) args.row_claims = row_claims;
  }
};

/// (table, num_entries, row_stride, width, block_size, window kind, window tokens, extra entries,
/// dcp_sharded, slot_mapping) for each group.
TableSet make_tables(const py::iterable& groups, int32_t num_rows, int32_t cp_size, int32_t cp_rank,
                     int32_t cp_interleave, Address row_claims) {
  TableSet tables{{}, num_rows, {cp_size, cp_rank, cp_interleave}, at<int32_t>(row_claims)};
  for (py::handle item : groups) {
    const auto [table, num_entries, row_stride, width, block_size, kind, tokens, extra, sharded,
                slots] = py::cast<std::tuple<Address, Address, int64_t, int32_t, int32_t, int32_t,
                                             int32_t, int32_t, bool, bool>>(item);
    tables.groups.push_back({.table = at<int32_t>(table),
                             .num_entries = at<int32_t>(num_entries),
                             .row_stride = row_stride,
                             .width = width,
                             .block_size = block_size,
                             .window = {static_cast<cuda::WindowKind>(kind), tokens},
                             .extra_entries = extra,
                             .dcp_sharded = sharded,
                             .slot_mapping = slots});
  }
  if (tables.groups.empty() || tables.groups.size() > cuda::kMaxGroups) {
    throw InvalidArgument("groups: 1 to " + std::to_string(cuda::kMaxGroups) +
                          " tables are supported, got " + std::to_string(tables.groups.size()));
  }
  return tables;
}

/// `options`: lookahead tokens, row lengths, lengths after the step, new ids, their stride and
/// numbers, mirror.
template <class PoolType>
void append(
    const BlockOpsObject& self, const PoolType& pool, const TableSet& tables, int32_t max_requests,
    int64_t max_tokens, Address num_requests, Address rows, Address context_lens,
    Address new_tokens, Address status, Address slots, int64_t slots_stride, Address query_starts,
    Address positions, Address workspace,
    const std::tuple<int32_t, Address, Address, Address, int64_t, Address, Address>& options,
    Address stream) {
  cuda::AppendSlotsTo<PoolType> a;
  a.pool = pool;
  a.max_requests = max_requests;
  a.max_tokens = max_tokens;
  a.cp = tables.cp;
  a.num_requests = at<int32_t>(num_requests);
  a.rows = at<int32_t>(rows);
  a.context_lens = at<int32_t>(context_lens);
  a.new_tokens = at<int32_t>(new_tokens);
  a.status = at<int32_t>(status);
  a.slots = at<int64_t>(slots);
  a.slots_stride = slots_stride;
  a.query_starts = at<int32_t>(query_starts);
  a.positions = at<int64_t>(positions);
  a.workspace = at<int64_t>(workspace);
  const auto& [lookahead, row_lens, seq_lens, new_ids, stride, num_new_ids, mirror] = options;
  a.options = {.lookahead_tokens = lookahead,
               .row_lens = at<int32_t>(row_lens),
               .seq_lens = at<int32_t>(seq_lens),
               .new_ids = at<int32_t>(new_ids),
               .new_ids_stride = stride,
               .num_new_ids = at<int32_t>(num_new_ids),
               .mirror = at<int32_t>(mirror)};
  tables.fill(a);
  cuda::append_slots(*self.ops, a, at<void>(stream));
}

template <class PoolType>
void release_rows(const BlockOpsObject& self, const PoolType& pool, const TableSet& tables,
                  int32_t max_requests, Address rows, Address workspace, Address stream) {
  cuda::ReleaseRowsTo<PoolType> a;
  a.pool = pool;
  a.max_requests = max_requests;
  a.rows = at<int32_t>(rows);
  a.workspace = at<int64_t>(workspace);
  tables.fill(a);
  cuda::release_rows(*self.ops, a, at<void>(stream));
}

void gather(const BlockOpsObject& self, const TableSet& tables, int32_t max_requests, Address rows,
            Address context_lens, const std::vector<std::pair<Address, int64_t>>& out,
            Address stream) {
  cuda::GatherTables a;
  a.max_requests = max_requests;
  a.cp = tables.cp;
  a.rows = at<int32_t>(rows);
  a.context_lens = at<int32_t>(context_lens);
  tables.fill(a);
  if (out.size() != tables.groups.size()) {
    throw InvalidArgument("out: one table a group is needed, got " + std::to_string(out.size()) +
                          " for " + std::to_string(tables.groups.size()) + " groups");
  }
  for (size_t g = 0; g < out.size(); ++g) {
    a.out[g] = at<int32_t>(out[g].first);
    a.out_stride[g] = out[g].second;
  }
  cuda::gather_tables(*self.ops, a, at<void>(stream));
}

void remap(const BlockOpsObject& self, const TableSet& tables, int32_t group, int64_t num_moves,
           Address sources, Address targets, Address stream) {
  if (group < 0 || std::cmp_greater_equal(group, tables.groups.size())) {
    throw InvalidArgument("group: " + std::to_string(group) + " of " +
                          std::to_string(tables.groups.size()));
  }
  cuda::remap_blocks(*self.ops,
                     {tables.groups[group], tables.num_rows, num_moves, at<int32_t>(sources),
                      at<int32_t>(targets)},
                     at<void>(stream));
}

/// Where a sliced pool's arrays are; `slices`: for each group.
cuda::SlicedPool make_sliced_pool(int32_t num_large_blocks, const std::vector<int32_t>& slices,
                                  Address free_large, Address listed, Address state, Address large,
                                  Address used_slices, Address ref_counts) {
  if (slices.empty() || slices.size() > cuda::kMaxGroups) {
    throw InvalidArgument("slices: 1 to " + std::to_string(cuda::kMaxGroups) +
                          " groups are supported, got " + std::to_string(slices.size()));
  }
  cuda::SlicedPool pool;
  pool.num_large_blocks = num_large_blocks;
  pool.num_groups = static_cast<int32_t>(slices.size());
  pool.max_slices = *std::max_element(slices.begin(), slices.end());
  pool.free_large = at<int32_t>(free_large);
  pool.listed = at<int32_t>(listed);
  pool.state = at<int32_t>(state);
  pool.large = at<cuda::LargeBlock>(large);
  pool.used_slices = at<int32_t>(used_slices);
  pool.ref_counts = at<int32_t>(ref_counts);
  std::copy(slices.begin(), slices.end(), pool.slices);
  return pool;
}

/// (offset, block stride, size) for each region of a KVCacheConfig's layers.
py::list regions_of(const py::iterable& placed_layers, const std::string& layout,
                    int64_t buffer_bytes) {
  std::vector<cuda::PlacedLayers> placed;
  for (py::handle item : placed_layers) {
    const auto [spec, num_layers, layer_stride, block_stride, offset, num_blocks] =
        py::cast<std::tuple<py::object, int64_t, int64_t, int64_t, int64_t, int64_t>>(item);
    placed.push_back(
        {&spec_value(spec), num_layers, layer_stride, block_stride, offset, num_blocks});
  }
  py::list list;
  for (const auto& r : cuda::block_regions(placed, parse_layout(layout), buffer_bytes)) {
    list.append(py::make_tuple(r.offset, r.block_stride, r.size));
  }
  return list;
}

/// The widest access that fits all buffers and regions.
int32_t vector_bytes_of(const std::vector<Address>& buffers,
                        const std::vector<std::tuple<int64_t, int64_t, int64_t>>& tuples) {
  std::vector<cuda::BlockRegion> regions;
  for (const auto& [offset, stride, size] : tuples) regions.push_back({offset, stride, size});
  int32_t bytes = 16;
  for (Address buffer : buffers) {
    bytes = std::min(bytes, cuda::vector_bytes(at<void>(buffer), regions));
  }
  return bytes;
}

}  // namespace

void bind_block_ops(py::module_& m) {
  m.attr("MAX_TABLE_GROUPS") = cuda::kMaxGroups;
  m.attr("POOL_STATE_SIZE") = static_cast<int>(cuda::kPoolStateSize);
  m.def("slice_words", &cuda::slice_words, py::arg("max_slices"),
        "int32 elements for a bit a slice.");
  m.def("allocate_slices_workspace", &cuda::allocate_slices_workspace, py::arg("num_requests"),
        py::arg("num_groups"), "int64 elements.");
  m.def("append_slots_workspace", &cuda::append_slots_workspace, py::arg("max_requests"),
        py::arg("num_groups"), "int64 elements.");
  m.def("vector_bytes", &vector_bytes_of, py::arg("buffers"), py::arg("regions"));
  m.def("compute_block_regions", &regions_of, py::arg("placed_layers"), py::arg("layout"),
        py::arg("buffer_bytes"));

  py::class_<cuda::Pool>(m, "DevicePool", "Where a pool's arrays are.")
      .def(py::init([](int32_t num_blocks, Address free_ids, Address state, Address ref_counts,
                       Address last_use) {
             return cuda::Pool{num_blocks, at<int32_t>(free_ids), at<int32_t>(state),
                               at<int32_t>(ref_counts), at<int32_t>(last_use)};
           }),
           py::arg("num_blocks"), py::arg("free_ids"), py::arg("state"), py::arg("ref_counts") = 0,
           py::arg("last_use") = 0);
  py::class_<cuda::SlicedPool>(m, "SlicedDevicePool", "Where a sliced pool's arrays are.")
      .def(py::init(&make_sliced_pool), py::arg("num_large_blocks"), py::arg("slices"),
           py::arg("free_large"), py::arg("listed"), py::arg("state"), py::arg("large"),
           py::arg("used_slices"), py::arg("ref_counts") = 0);
  py::class_<TableSet>(m, "DeviceTables", "Where the block tables of all groups are.")
      .def(py::init(&make_tables), py::arg("groups"), py::arg("num_rows"), py::arg("cp_size") = 1,
           py::arg("cp_rank") = 0, py::arg("cp_interleave") = 1, py::arg("row_claims") = 0);

  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  py::class_<BlockOpsObject>(m, "BlockOps", "The block operations on one kind of device.")
      .def_property_readonly("name", [](const BlockOpsObject& self) { return self.ops->name; })
      .def(
          "reset_pool",
          [](const BlockOpsObject& self, const cuda::Pool& pool, Address stream) {
            cuda::reset_pool(*self.ops, pool, at<void>(stream));
          },
          no_gil)
      .def(
          "allocate",
          [](const BlockOpsObject& self, const cuda::Pool& pool, int32_t num_requests,
             Address counts, int64_t ids_capacity, Address ids, Address starts, Address status,
             Address stream) {
            cuda::allocate(*self.ops, pool,
                           {num_requests, at<int32_t>(counts), ids_capacity, at<int32_t>(ids),
                            at<int64_t>(starts), at<int32_t>(status)},
                           at<void>(stream));
          },
          no_gil)
      .def(
          "release",
          [](const BlockOpsObject& self, const cuda::Pool& pool, Address ids, int64_t num_ids,
             Address stream) {
            cuda::release(*self.ops, pool, at<int32_t>(ids), num_ids, at<void>(stream));
          },
          no_gil)
      .def(
          "touch",
          [](const BlockOpsObject& self, const cuda::Pool& pool, Address ids, int64_t num_ids,
             Address stream) {
            cuda::touch(*self.ops, pool, at<int32_t>(ids), num_ids, at<void>(stream));
          },
          no_gil)
      .def(
          "reset_pool",
          [](const BlockOpsObject& self, const cuda::SlicedPool& pool, Address stream) {
            cuda::reset_pool(*self.ops, pool, at<void>(stream));
          },
          no_gil)
      .def(
          "allocate",
          [](const BlockOpsObject& self, const cuda::SlicedPool& pool, int32_t num_requests,
             Address counts, int64_t ids_capacity, Address ids, Address starts, Address status,
             Address workspace, Address stream) {
            cuda::allocate(*self.ops, pool,
                           {num_requests, at<int32_t>(counts), ids_capacity, at<int32_t>(ids),
                            at<int64_t>(starts), at<int32_t>(status), at<int64_t>(workspace)},
                           at<void>(stream));
          },
          no_gil)
      .def(
          "release",
          [](const BlockOpsObject& self, const cuda::SlicedPool& pool, int32_t group, Address ids,
             int64_t num_ids, Address stream) {
            cuda::release(*self.ops, pool, group, at<int32_t>(ids), num_ids, at<void>(stream));
          },
          no_gil)
      .def(
          "touch",
          [](const BlockOpsObject& self, const cuda::SlicedPool& pool, int32_t group, Address ids,
             int64_t num_ids, Address stream) {
            cuda::touch(*self.ops, pool, group, at<int32_t>(ids), num_ids, at<void>(stream));
          },
          no_gil)
      .def("append_slots", &append<cuda::Pool>, no_gil)
      .def("append_slots", &append<cuda::SlicedPool>, no_gil)
      .def("release_rows", &release_rows<cuda::Pool>, no_gil)
      .def("release_rows", &release_rows<cuda::SlicedPool>, no_gil)
      .def("remap_blocks", &remap, no_gil)
      .def("gather_tables", &gather, no_gil)
      .def(
          "zero_blocks",
          [](const BlockOpsObject& self, Address buffer, Address regions, int32_t num_regions,
             int64_t max_region_bytes, int32_t vector_bytes, int32_t num_blocks, int64_t num_ids,
             Address ids, Address ids_used, Address errors, Address stream) {
            cuda::zero_blocks(*self.ops,
                              {at<void>(buffer), at<cuda::BlockRegion>(regions), num_regions,
                               max_region_bytes, vector_bytes, num_blocks, num_ids,
                               at<int32_t>(ids), at<int32_t>(ids_used), at<int32_t>(errors)},
                              at<void>(stream));
          },
          no_gil)
      .def(
          "copy_blocks",
          [](const BlockOpsObject& self, Address source, Address target, Address regions,
             int32_t num_regions, int64_t max_region_bytes, int32_t vector_bytes,
             int32_t num_blocks, int64_t num_pairs, Address sources, Address targets,
             Address pairs_used, Address errors, Address stream) {
            cuda::copy_blocks(
                *self.ops,
                {at<void>(source), at<void>(target), at<cuda::BlockRegion>(regions), num_regions,
                 max_region_bytes, vector_bytes, num_blocks, num_pairs, at<int32_t>(sources),
                 at<int32_t>(targets), at<int32_t>(pairs_used), at<int32_t>(errors)},
                at<void>(stream));
          },
          no_gil);
  m.def("load_block_ops", &load_block_ops, py::arg("path"),
        "The block operations of a CUDA library.");
  m.def("cpu_block_ops", [] { return BlockOpsObject{&cuda::cpu_block_ops()}; });
}

}  // namespace kvplan::bindings
