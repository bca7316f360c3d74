#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

#include "kvplan/export.h"

namespace kvplan {

/// A typed index: a layer cannot be passed where a group is meant.
template <class Tag>
struct Index {
  int32_t value = -1;

  constexpr Index() = default;
  constexpr explicit Index(int32_t v) : value(v) {}
  constexpr explicit Index(size_t v) : value(static_cast<int32_t>(v)) {}

  constexpr size_t pos() const { return static_cast<size_t>(value); }
  constexpr bool valid() const { return value >= 0; }
  constexpr auto operator<=>(const Index&) const = default;
};

using LayerId = Index<struct LayerTag>;    ///< a layer name in a `NameTable`
using SpecId = Index<struct SpecTag>;      ///< an interned spec in a `SpecTable`
using GroupId = Index<struct GroupTag>;    ///< a KV cache group of a plan
using WorkerId = Index<struct WorkerTag>;  ///< a worker of a request

/// Element types of a cache, named as torch names them.
enum class DType : uint8_t {
  kBFloat16,
  kFloat16,
  kFloat32,
  kFloat64,
  kUInt8,
  kInt8,
  kBool,
  kInt16,
  kInt32,
  kInt64,
  kUInt16,
  kUInt32,
  kUInt64,
  kFloat8E4M3Fn,
  kFloat8E4M3Fnuz,
  kFloat8E5M2,
  kFloat8E5M2Fnuz,
  kFloat8E8M0Fnu,
  kFloat4E2M1FnX2,
};

/// Bytes of one element.
KVPLAN_API int64_t dtype_size(DType dtype);
/// torch's name without the `torch.` prefix.
KVPLAN_API std::string_view to_string(DType dtype);
/// Accepts `bfloat16` and `torch.bfloat16`; throws `InvalidArgument` that lists the known names.
KVPLAN_API DType parse_dtype(std::string_view name);

}  // namespace kvplan

template <class Tag>
struct std::hash<kvplan::Index<Tag>> {
  size_t operator()(kvplan::Index<Tag> i) const noexcept { return std::hash<int32_t>()(i.value); }
};
