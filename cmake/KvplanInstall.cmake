include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(
  TARGETS kvplan
  EXPORT kvplanTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT kvplan_devel
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT kvplan_devel
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT kvplan_devel)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/csrc/include/" DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        COMPONENT kvplan_devel)
install(EXPORT kvplanTargets NAMESPACE kvplan:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kvplan
        COMPONENT kvplan_devel)
write_basic_package_version_file(kvplanConfigVersion.cmake COMPATIBILITY SameMinorVersion)
file(WRITE "${CMAKE_CURRENT_BINARY_DIR}/kvplanConfig.cmake"
     "include(\"\${CMAKE_CURRENT_LIST_DIR}/kvplanTargets.cmake\")\n")
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/kvplanConfig.cmake"
              "${CMAKE_CURRENT_BINARY_DIR}/kvplanConfigVersion.cmake"
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kvplan COMPONENT kvplan_devel)
