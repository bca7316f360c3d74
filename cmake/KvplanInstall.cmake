include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(installed_targets kvplan)
if(KVPLAN_HAVE_CUDA)
  list(APPEND installed_targets kvplan_cuda)
endif()
install(
  TARGETS ${installed_targets}
  EXPORT kvplanTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT kvplan_devel
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT kvplan_devel
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT kvplan_devel)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/csrc/include/" DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        COMPONENT kvplan_devel)
install(EXPORT kvplanTargets NAMESPACE kvplan:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kvplan
        COMPONENT kvplan_devel)

write_basic_package_version_file(kvplanConfigVersion.cmake COMPATIBILITY SameMinorVersion)
configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/kvplanConfig.cmake.in"
  "${CMAKE_CURRENT_BINARY_DIR}/kvplanConfig.cmake"
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kvplan)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/kvplanConfig.cmake"
              "${CMAKE_CURRENT_BINARY_DIR}/kvplanConfigVersion.cmake"
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kvplan COMPONENT kvplan_devel)

# The prefix as seen from the file, so that an installed tree can be moved.
file(RELATIVE_PATH KVPLAN_PC_PREFIX "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
configure_file("${PROJECT_SOURCE_DIR}/cmake/kvplan.pc.in" kvplan.pc @ONLY)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/kvplan.pc"
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT kvplan_devel)
