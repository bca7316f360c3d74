#include "kvplan/types.h"

#include <string>

#include "kvplan/errors.h"

namespace kvplan {
namespace {

struct DTypeInfo {
  DType dtype;
  std::string_view name;
  int64_t size;
};

constexpr DTypeInfo kDTypes[] = {
    {DType::kBFloat16, "bfloat16", 2},
    {DType::kFloat16, "float16", 2},
    {DType::kFloat32, "float32", 4},
    {DType::kFloat64, "float64", 8},
    {DType::kUInt8, "uint8", 1},
    {DType::kInt8, "int8", 1},
    {DType::kBool, "bool", 1},
    {DType::kInt16, "int16", 2},
    {DType::kInt32, "int32", 4},
    {DType::kInt64, "int64", 8},
    {DType::kUInt16, "uint16", 2},
    {DType::kUInt32, "uint32", 4},
    {DType::kUInt64, "uint64", 8},
    {DType::kFloat8E4M3Fn, "float8_e4m3fn", 1},
    {DType::kFloat8E4M3Fnuz, "float8_e4m3fnuz", 1},
    {DType::kFloat8E5M2, "float8_e5m2", 1},
    {DType::kFloat8E5M2Fnuz, "float8_e5m2fnuz", 1},
    {DType::kFloat8E8M0Fnu, "float8_e8m0fnu", 1},
    {DType::kFloat4E2M1FnX2, "float4_e2m1fn_x2", 1},
};

const DTypeInfo& info(DType dtype) {
  const auto number = static_cast<size_t>(dtype);
  if (number < std::size(kDTypes)) return kDTypes[number];
  throw InvalidArgument("no dtype has the number " + std::to_string(number));
}

}  // namespace

int64_t dtype_size(DType dtype) { return info(dtype).size; }

std::string_view to_string(DType dtype) { return info(dtype).name; }

DType parse_dtype(std::string_view name) {
  constexpr std::string_view kPrefix = "torch.";
  const std::string_view bare = name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name;
  std::string known;
  for (const DTypeInfo& d : kDTypes) {
    if (d.name == bare) return d.dtype;
    known += known.empty() ? "" : ", ";
    known += d.name;
  }
  throw InvalidArgument("unknown dtype '" + std::string(name) + "'; known: " + known);
}

}  // namespace kvplan
