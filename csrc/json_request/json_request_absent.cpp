#include "kvplan/errors.h"
#include "kvplan/json_plan.h"
#include "kvplan/json_request.h"

namespace kvplan {
namespace {

[[noreturn]] void refuse() {
  throw NotBuilt(
      "this kvplan was built without a JSON library and reads and writes no JSON; build it where "
      "CMake finds nlohmann_json, with -DKVPLAN_JSON=ON");
}

}  // namespace

bool can_read_json_requests() noexcept { return false; }
JsonRequest read_json_request(std::string_view) { refuse(); }
std::string write_json_plan(const Plan&) { refuse(); }
Plan read_json_plan(std::string_view) { refuse(); }

}  // namespace kvplan
