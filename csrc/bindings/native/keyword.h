#pragma once

namespace kvplan::bindings {

/// A struct's member as a keyword argument of Python. Its default is the struct's own.
template <class Struct, class Value>
struct Keyword {
  const char* name;
  Value Struct::*member;
};
/// One that must be given.
template <class Struct, class Value>
struct RequiredKeyword {
  const char* name;
  Value Struct::*member;
};

}  // namespace kvplan::bindings
