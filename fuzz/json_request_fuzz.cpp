#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "kvplan/kvplan.h"

// Any text is refused with a reason or read as a request, and what is read can be planned or is
// refused in its turn. Any other exception ends the run.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvplan;
  try {
    const JsonRequest read = read_json_request({reinterpret_cast<const char*>(data), size});
    const Plan made = plan(read.request, read.config);
    explain(made);
    capacity(made);
    safe_block_ids(made);
  } catch (const Error&) {
    // Refused with a reason.
  }
  return 0;
}
