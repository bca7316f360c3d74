#include "c_api/guard.h"

#include <exception>
#include <string>
#include <string_view>

#include "c_api/sized_struct.h"

#define KVPLAN_TEXT_OF(number) #number
#define KVPLAN_DOTTED(major, minor, patch) \
  KVPLAN_TEXT_OF(major) "." KVPLAN_TEXT_OF(minor) "." KVPLAN_TEXT_OF(patch)
static_assert(std::string_view(KVPLAN_DOTTED(KVPLAN_VERSION_MAJOR, KVPLAN_VERSION_MINOR,
                                             KVPLAN_VERSION_PATCH)) == KVPLAN_VERSION,
              "c_api.h and CMakeLists.txt have the same version");

namespace kvplan::c_api {
namespace {

thread_local std::string last_error;
thread_local kvplan_shortage last_shortage = {};

kvplan_status fail(kvplan_status status, const char* message) noexcept {
  try {
    last_error = message;
  } catch (...) {
    last_error.clear();
  }
  return status;
}

}  // namespace

kvplan_status status_of_exception() noexcept {
  try {
    throw;
  } catch (const NotEnoughMemory& e) {
    const NotEnoughMemory::Numbers& n = e.numbers();
    last_shortage = {sizeof(last_shortage), n.worker,        n.needed_bytes,
                     n.available_bytes,     n.max_model_len, n.estimated_max_len,
                     n.max_in_flight_tokens};
    return fail(KVPLAN_NOT_ENOUGH_MEMORY, e.what());
  } catch (const Overflow& e) {
    return fail(KVPLAN_OVERFLOW, e.what());
  } catch (const NotBuilt& e) {
    return fail(KVPLAN_NOT_BUILT, e.what());
  } catch (const Unsupported& e) {
    return fail(KVPLAN_UNSUPPORTED, e.what());
  } catch (const LayoutError& e) {
    return fail(KVPLAN_LAYOUT, e.what());
  } catch (const BlockPoolError& e) {
    return fail(KVPLAN_BLOCK_POOL, e.what());
  } catch (const Error& e) {
    return fail(KVPLAN_INVALID_ARGUMENT, e.what());
  } catch (const std::bad_alloc& e) {
    return fail(KVPLAN_OUT_OF_MEMORY, e.what());
  } catch (const std::exception& e) {
    return fail(KVPLAN_INTERNAL, e.what());
  } catch (...) {
    return fail(KVPLAN_INTERNAL, "unknown exception");
  }
}

}  // namespace kvplan::c_api

extern "C" {

const char* kvplan_version(void) { return KVPLAN_VERSION; }

const char* kvplan_last_error(void) { return kvplan::c_api::last_error.c_str(); }

int32_t kvplan_abi_version(void) { return KVPLAN_ABI_VERSION; }

kvplan_status kvplan_last_shortage(kvplan_shortage* out) {
  return kvplan::c_api::guarded(
      [&] { kvplan::c_api::write_struct(out, kvplan::c_api::last_shortage); });
}
}
