# Warnings and sanitizers, for kvplan's own targets only: nothing here reaches a consumer.
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES AND KVPLAN_IS_TOP_LEVEL)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

function(kvplan_compiler_options target)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic
                                           -Wconversion -Wno-sign-conversion -Wshadow>
                         # GCC 12 sees overlaps in std::string operator+ and overflows that are not there (PR105651).
                         $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict -Wno-stringop-overflow>)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF CXX_VISIBILITY_PRESET hidden
                                             VISIBILITY_INLINES_HIDDEN ON)
  target_link_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-stringop-overflow>)
  if(KVPLAN_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${KVPLAN_SANITIZE} -fno-omit-frame-pointer
                                             -fno-sanitize-recover=all)
    target_link_options(${target} PUBLIC -fsanitize=${KVPLAN_SANITIZE})
  endif()
endfunction()
