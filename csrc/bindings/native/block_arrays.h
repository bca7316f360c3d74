#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kvplan/block_pool.h"

/// What the array faces of the pools take and return.
namespace kvplan::bindings {

namespace py = pybind11;

using IdArray = py::array_t<BlockId, py::array::c_style>;

/// Block ids from any integer sequence. Nothing is copied for a contiguous int32 array.
IdArray to_ids(const py::handle& object);

inline std::span<const BlockId> span_of(const IdArray& ids) {
  return {ids.data(), static_cast<size_t>(ids.size())};
}

inline py::array to_array(std::span<const BlockId> ids) {
  return IdArray(static_cast<py::ssize_t>(ids.size()), ids.data());
}

/// Throws `InvalidArgument` for what no group id can be.
PoolGroupId to_group(int64_t group_id);

/// Views of hashes, given as a sequence of bytes or as rows of a uint8 array. Keeps them alive.
class Hashes {
 public:
  explicit Hashes(const py::object& object);

  std::span<const std::string_view> views() const { return views_; }

  /// The bytes of one hash; throws `TypeError` for anything but `bytes`.
  static std::string_view bytes_view(const py::handle& item);

 private:
  py::object owner_;
  std::vector<std::string_view> views_;
};

/// The bytes of a hash; empty for none.
inline std::string_view optional_view(const std::optional<py::bytes>& hash) {
  return hash ? Hashes::bytes_view(*hash) : std::string_view();
}

}  // namespace kvplan::bindings

namespace pybind11::detail {

/// As `to_ids` reads them; the array lives as long as the call.
template <>
class type_caster<std::span<const kvplan::BlockId>> {
 public:
  PYBIND11_TYPE_CASTER(std::span<const kvplan::BlockId>, const_name("object"));
  bool load(handle source, bool) {
    array_.emplace(kvplan::bindings::to_ids(source));
    value = kvplan::bindings::span_of(*array_);
    return true;
  }

 private:
  std::optional<kvplan::bindings::IdArray> array_;  // numpy makes an empty one otherwise
};

template <>
class type_caster<kvplan::PoolGroupId> {
 public:
  PYBIND11_TYPE_CASTER(kvplan::PoolGroupId, const_name("int"));
  bool load(handle source, bool convert) {
    type_caster<int64_t> number;
    if (!number.load(source, convert)) return false;
    value = kvplan::bindings::to_group(static_cast<int64_t>(number));
    return true;
  }
  static handle cast(kvplan::PoolGroupId group, return_value_policy, handle) {
    return PyLong_FromLong(static_cast<long>(group));
  }
};

}  // namespace pybind11::detail
