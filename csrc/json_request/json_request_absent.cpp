#include "kvplan/errors.h"
#include "kvplan/json_request.h"

namespace kvplan {

bool can_read_json_requests() noexcept { return false; }

JsonRequest read_json_request(std::string_view) {
  throw NotBuilt(
      "this kvplan was built without a JSON library and reads no JSON requests; build it where "
      "CMake "
      "finds nlohmann_json, with -DKVPLAN_JSON=ON");
}

}  // namespace kvplan
