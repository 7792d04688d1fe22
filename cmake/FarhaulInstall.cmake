# What other programs build against: libfarhaul-sdr.so (the C API and everything below it), its headers, pkg-config and CMake files.
# Programs and man pages install where they are declared.
include(CMakePackageConfigHelpers)

get_target_property(capi_type farhaul_capi TYPE)
if(NOT capi_type STREQUAL STATIC_LIBRARY)
  return()
endif()

# Only sdr_* is exported (packaging/farhaul-sdr.map): C++ below the C API stays private, so that it may change freely.
set(symbol_map ${CMAKE_SOURCE_DIR}/packaging/farhaul-sdr.map)
add_library(farhaul_sdr_shared SHARED ${CMAKE_SOURCE_DIR}/packaging/farhaul-sdr.c)
target_compile_definitions(farhaul_sdr_shared PRIVATE FARHAUL_VERSION="${PROJECT_VERSION}")
target_link_libraries(farhaul_sdr_shared PRIVATE $<LINK_LIBRARY:WHOLE_ARCHIVE,farhaul_capi>)
target_link_options(farhaul_sdr_shared PRIVATE -Wl,--version-script=${symbol_map} -Wl,--no-undefined-version)
if(NOT FARHAUL_SANITIZE)
  target_link_options(farhaul_sdr_shared PRIVATE -Wl,--no-undefined)
endif()
target_include_directories(farhaul_sdr_shared INTERFACE $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include>
                                                        $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
set_target_properties(farhaul_sdr_shared PROPERTIES OUTPUT_NAME farhaul-sdr EXPORT_NAME sdr LINK_DEPENDS ${symbol_map}
  LINKER_LANGUAGE CXX VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR} LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
add_dependencies(programs farhaul_sdr_shared)

install(TARGETS farhaul_sdr_shared EXPORT farhaul LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/farhaul)
install(EXPORT farhaul NAMESPACE farhaul:: FILE farhaulTargets.cmake DESTINATION ${package_dir})
configure_package_config_file(packaging/farhaulConfig.cmake.in ${CMAKE_BINARY_DIR}/package/farhaulConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/package/farhaulConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/package/farhaulConfig.cmake ${CMAKE_BINARY_DIR}/package/farhaulConfigVersion.cmake DESTINATION ${package_dir})

# The prefix in the .pc file is found from the file's own place, so that an installation can be moved and `cmake --install --prefix` works.
file(RELATIVE_PATH prefix_from_pc /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(packaging/farhaul-sdr.pc.in ${CMAKE_BINARY_DIR}/package/farhaul-sdr.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/package/farhaul-sdr.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
