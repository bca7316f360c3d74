# Sets KVPLAN_READS_JSON: whether there is nlohmann/json to read JSON requests with.
if(NOT KVPLAN_JSON STREQUAL "OFF" AND NOT TARGET nlohmann_json::nlohmann_json)
  find_package(nlohmann_json 3.10 QUIET)
  if(KVPLAN_JSON STREQUAL "ON" AND NOT nlohmann_json_FOUND)
    message(FATAL_ERROR "KVPLAN_JSON=ON needs nlohmann/json 3.10 or later where CMake finds it, e.g. "
                        "Debian's nlohmann-json3-dev; KVPLAN_JSON=OFF builds without JSON requests")
  endif()
endif()
if(NOT KVPLAN_JSON STREQUAL "OFF" AND TARGET nlohmann_json::nlohmann_json)
  set(KVPLAN_READS_JSON ON)
else()
  set(KVPLAN_READS_JSON OFF)
endif()
