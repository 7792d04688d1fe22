# Man pages: docs/man/NAME.SECTION.scd becomes build/man/NAME.SECTION and is installed into its section.
find_program(SCDOC scdoc)
if(NOT SCDOC)
  message(STATUS "scdoc is not installed: the man pages are not built")
  return()
endif()

file(GLOB pages CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/docs/man/*.scd)
set(outputs "")
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/man)
foreach(source ${pages})
  get_filename_component(page ${source} NAME_WLE)
  string(REGEX MATCH "[0-9]$" section ${page})
  set(output ${CMAKE_BINARY_DIR}/man/${page})
  # Through a temporary file: a page that fails to build must not look up to date.
  add_custom_command(OUTPUT ${output}
    COMMAND ${SCDOC} < ${source} > ${output}.tmp && ${CMAKE_COMMAND} -E rename ${output}.tmp ${output}
    DEPENDS ${source} COMMENT "Man page ${page}" VERBATIM)
  list(APPEND outputs ${output})
  install(FILES ${output} DESTINATION ${CMAKE_INSTALL_MANDIR}/man${section})
endforeach()
add_custom_target(man ALL DEPENDS ${outputs})
add_dependencies(programs man)
