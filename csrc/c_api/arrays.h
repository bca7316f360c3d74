#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "c_api/guard.h"
#include "kvplan/block_pool.h"

/// What C passes as a pointer and a count.
namespace kvplan::c_api {

/// A pool has no more blocks, so a larger count is a mistake, e.g. a negative number.
inline constexpr size_t kMostElements = INT32_MAX;

template <class T>
std::span<T> span_of(T* pointer, size_t count, const char* what = "blocks") {
  if (count > kMostElements) {
    throw InvalidArgument(std::to_string(count) + " " + what + "; at most " +
                          std::to_string(kMostElements) + " are possible");
  }
  if (count > 0) deref(pointer, what);
  return {pointer, count};
}

/// The element of something that has `size()`.
template <class Range>
auto& at(Range& range, size_t index, const char* what) {
  if (index >= range.size()) {
    throw InvalidArgument(std::string(what) + " " + std::to_string(index) +
                          " does not exist; there are " + std::to_string(range.size()));
  }
  return range[index];
}

/// Hands out memory that a handle keeps.
template <class T>
void lend(std::span<const T> from, const T** out, size_t* count) {
  deref(out, "out") = from.data();
  deref(count, "count") = from.size();
}

inline std::string_view bytes_of(const void* hash, size_t bytes) {
  return {&deref(static_cast<const char*>(hash), "hash"), bytes};
}

/// `count` hashes, one after the other.
inline std::vector<std::string_view> hashes_of(const void* hashes, size_t count,
                                               size_t hash_bytes) {
  if (hash_bytes > kMaxBlockHashBytes) {
    throw InvalidArgument("a hash has " + std::to_string(hash_bytes) + " bytes; at most " +
                          std::to_string(kMaxBlockHashBytes) + " are allowed");
  }
  const auto* bytes = static_cast<const char*>(hashes);
  std::vector<std::string_view> views;
  // Of which no product wraps.
  for (size_t i = 0; i < span_of(bytes, count, "hashes").size(); ++i) {
    views.emplace_back(bytes + i * hash_bytes, hash_bytes);
  }
  return views;
}

inline std::span<const PoolGroupId> groups_of(const uint16_t* groups, size_t count) {
  static_assert(sizeof(PoolGroupId) == sizeof(uint16_t));
  return {reinterpret_cast<const PoolGroupId*>(span_of(groups, count, "groups").data()), count};
}

}  // namespace kvplan::c_api
