#include "kvplan/errors.h"

#include "kvplan/checked.h"

namespace kvplan::checked {

void throw_overflow(std::string_view what, int64_t a, char op, int64_t b) {
  throw Overflow(std::string(what) + " leaves the 64-bit range: " + std::to_string(a) + " " + op +
                 " " + std::to_string(b));
}

}  // namespace kvplan::checked
