#include "json_request/json_text.h"
#include "kvplan/errors.h"
#include "kvplan/json_request.h"

namespace kvplan {
namespace json_request {
namespace {

[[noreturn]] void refuse() {
  throw NotBuilt(
      "this kvplan was built without a JSON library and reads and writes no JSON; build it where "
      "CMake finds nlohmann_json, with -DKVPLAN_JSON=ON");
}

}  // namespace

Json parse(std::string_view, std::string_view) { refuse(); }
std::string dump(const Json&) { refuse(); }

}  // namespace json_request

bool can_read_json_requests() noexcept { return false; }

}  // namespace kvplan
