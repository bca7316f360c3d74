#pragma once

#include <Python.h>

namespace kvplan::bindings {

/// Puts off Python's cyclic garbage collection while many objects are made at once, none of which
/// can be garbage yet. Counting goes on, so that a collection that is due comes right afterwards.
///
/// Only for code that runs no Python code in between: then nobody sees the switch, or moves it.
class GcPause {
 public:
  GcPause() : was_enabled_(PyGC_Disable() == 1) {}
  ~GcPause() {
    if (was_enabled_) PyGC_Enable();
  }
  GcPause(const GcPause&) = delete;
  GcPause& operator=(const GcPause&) = delete;

 private:
  bool was_enabled_;
};

}  // namespace kvplan::bindings
