# The page's files become a C file, so that the program needs none beside it.
set(PAGE_DIR ${CMAKE_SOURCE_DIR}/src/server/page)
file(GLOB PAGE_FILES RELATIVE ${PAGE_DIR} CONFIGURE_DEPENDS ${PAGE_DIR}/*)
set(PAGE_DEPENDS ${PAGE_FILES})
list(TRANSFORM PAGE_DEPENDS PREPEND ${PAGE_DIR}/)
string(REPLACE ";" "," PAGE_LIST "${PAGE_FILES}")
add_custom_command(OUTPUT page_files.c DEPENDS ${PAGE_DEPENDS} cmake/embed.cmake VERBATIM
  COMMAND ${CMAKE_COMMAND} -DOUT=page_files.c -DDIR=${PAGE_DIR} -DFILES=${PAGE_LIST} -P ${CMAKE_SOURCE_DIR}/cmake/embed.cmake)
