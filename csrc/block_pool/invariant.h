#pragma once

#include <cstdint>
#include <string>

#include "kvplan/errors.h"

namespace kvplan::detail {

/// Throws `BlockPoolError` if something that is always true of a pool is not.
inline void require(bool condition, const char* what, uint32_t id) {
  if (condition) return;
  throw BlockPoolError(std::string("block pool invariant broken: ") + what + " (block or node " +
                       std::to_string(id) + ")");
}

}  // namespace kvplan::detail
