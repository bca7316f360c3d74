#pragma once

#include <new>
#include <utility>

#include "kvplan/c_api.h"
#include "kvplan/errors.h"

namespace kvplan::c_api {

/// The status of the exception in flight, whose message becomes the thread's last error.
kvplan_status status_of_exception() noexcept;

/// Runs `body` and turns what it throws into a status.
template <class Body>
kvplan_status guarded(Body&& body) noexcept {
  try {
    std::forward<Body>(body)();
    return KVPLAN_OK;
  } catch (...) {
    return status_of_exception();
  }
}

template <class T>
T& deref(T* pointer, const char* what) {
  if (pointer == nullptr) throw InvalidArgument(std::string(what) + " is null");
  return *pointer;
}

}  // namespace kvplan::c_api
