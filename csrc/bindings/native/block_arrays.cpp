#include "bindings/native/block_arrays.h"

#include <string>
#include <utility>

#include "kvplan/errors.h"

namespace kvplan::bindings {
namespace {

/// Read as T, which is wide enough for the array's own type.
template <class T>
IdArray narrowed(const py::array& array) {
  const auto wide = py::array_t<T, py::array::c_style | py::array::forcecast>(array);
  IdArray ids(wide.size());
  for (py::ssize_t i = 0; i < wide.size(); ++i) {
    if (!std::in_range<BlockId>(wide.data()[i])) {
      throw BlockPoolError("block id " + std::to_string(wide.data()[i]) +
                           " is not in the pool; block ids have 32 bits");
    }
    ids.mutable_data()[i] = static_cast<BlockId>(wide.data()[i]);
  }
  return ids;
}

}  // namespace

IdArray to_ids(const py::handle& object) {
  py::array array = py::array::ensure(object);
  if (!array) throw py::error_already_set();
  if (array.ndim() != 1) {
    throw InvalidArgument("block ids must be one-dimensional, not of " +
                          std::to_string(array.ndim()) + " dimensions");
  }
  const char kind = array.dtype().kind();
  if (array.size() == 0) return IdArray(0);
  if (kind != 'i' && kind != 'u') {
    throw InvalidArgument("block ids must be integers, not of dtype " +
                          std::string(py::str(array.dtype())));
  }
  if (kind == 'u') return narrowed<uint64_t>(array);
  if (array.dtype().itemsize() > static_cast<py::ssize_t>(sizeof(BlockId))) {
    return narrowed<int64_t>(array);
  }
  return py::array_t<BlockId, py::array::c_style | py::array::forcecast>(array);
}

PoolGroupId to_group(int64_t group_id) {
  if (!std::in_range<uint16_t>(group_id)) {
    throw InvalidArgument("a group id is 0 to 65535, not " + std::to_string(group_id));
  }
  return static_cast<PoolGroupId>(group_id);
}

Hashes::Hashes(const py::object& object) {
  if (py::isinstance<py::list>(object) || py::isinstance<py::tuple>(object)) {
    owner_ = py::tuple(object);
    views_.reserve(py::len(owner_));
    for (const py::handle item : owner_) views_.push_back(bytes_view(item));
    return;
  }
  const py::array array = py::array::ensure(object, py::array::c_style);
  if (!array || array.ndim() != 2 || array.itemsize() != 1) {
    PyErr_Clear();
    throw InvalidArgument("hashes must be a list of bytes or a uint8 array of shape (n, bytes)");
  }
  owner_ = array;
  const auto size = static_cast<size_t>(array.shape(1));
  views_.reserve(static_cast<size_t>(array.shape(0)));
  for (py::ssize_t i = 0; i < array.shape(0); ++i) {
    views_.emplace_back(static_cast<const char*>(array.data()) + static_cast<size_t>(i) * size,
                        size);
  }
}

std::string_view Hashes::bytes_view(const py::handle& item) {
  if (!PyBytes_Check(item.ptr())) {
    throw py::type_error("a block hash must be bytes, not " +
                         std::string(py::str(py::type::handle_of(item).attr("__name__"))));
  }
  return {PyBytes_AS_STRING(item.ptr()), static_cast<size_t>(PyBytes_GET_SIZE(item.ptr()))};
}

}  // namespace kvplan::bindings
