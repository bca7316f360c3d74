#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include "kvplan/export.h"

namespace kvplan {

/// Base of every exception that kvplan throws on purpose.
class KVPLAN_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A value that cannot be planned with: out of range, contradictory or unknown.
/// Python: `kvplan.InvalidArgument`, a `ValueError`.
class KVPLAN_API InvalidArgument : public Error {
 public:
  using Error::Error;
};

/// Integer arithmetic left the 64-bit range.
/// Python: `kvplan.Overflow`, a `ValueError` and an `OverflowError`.
class KVPLAN_API Overflow : public Error {
 public:
  using Error::Error;
};

/// The specs given for one group do not belong together.
/// Python: `kvplan.MergeError`, an `AssertionError`, which vLLM's callers catch.
class KVPLAN_API MergeError : public Error {
 public:
  using Error::Error;
};

/// The specs contradict themselves, e.g. a padded page that is smaller than its content. vLLM
/// asserts here. Python: `kvplan.InconsistentSpec`, a `ValueError` and an `AssertionError`.
class KVPLAN_API InconsistentSpec : public Error {
 public:
  using Error::Error;
};

/// Something that neither vLLM nor kvplan does. Python: `kvplan.Unsupported`, a
/// `NotImplementedError`.
class KVPLAN_API Unsupported : public Error {
 public:
  using Error::Error;
};

/// Something that this build of the library left out. C: `KVPLAN_NOT_BUILT`.
class KVPLAN_API NotBuilt : public Unsupported {
 public:
  using Unsupported::Unsupported;
};

/// Pages of different sizes cannot be made equal.
/// Python: `kvplan.PageSizeError`, a `kvplan.Unsupported`.
class KVPLAN_API PageSizeError : public Unsupported {
 public:
  using Unsupported::Unsupported;
};

/// The layout cannot express the model's pages. Python: `kvplan.LayoutError`, a `ValueError`.
class KVPLAN_API LayoutError : public Error {
 public:
  using Error::Error;
};

/// One request of the planned length does not fit into the memory of a worker.
/// Python: `kvplan.NotEnoughMemory`, a `ValueError` with the numbers as attributes.
class KVPLAN_API NotEnoughMemory : public Error {
 public:
  struct Numbers {
    int64_t worker = -1;               ///< index of the worker that set the limit
    int64_t needed_bytes = 0;          ///< what one request of `max_model_len` holds
    int64_t available_bytes = 0;       ///< what the worker has, without the null block
    int64_t max_model_len = 0;         ///< the length that was asked for
    int64_t estimated_max_len = 0;     ///< the longest that fits; 0 if none does
    int64_t max_in_flight_tokens = 0;  ///< the largest in-flight count that fits; 0 if none does
  };

  NotEnoughMemory(const std::string& message, Numbers numbers)
      : Error(message), numbers_(std::move(numbers)) {}

  const Numbers& numbers() const noexcept { return numbers_; }

 private:
  Numbers numbers_;
};

/// A block pool operation that would break the pool; the pool is unchanged.
/// Python: `kvplan.BlockPoolError`, a `ValueError`.
class KVPLAN_API BlockPoolError : public Error {
 public:
  using Error::Error;
};

/// A device refused to run something: no driver, no device, a failed launch.
/// Python: `kvplan.DeviceError`, a `RuntimeError`.
class KVPLAN_API DeviceError : public Error {
 public:
  using Error::Error;
};

}  // namespace kvplan
