# Windows, by mingw-w64 (scripts/windows.sh): libtern with all formats, tern-mini, and tern without pull and most formats of documents: see
# docs/reference/architecture.md (Other systems). The libraries are static, from TERN_WINDOWS_LIBRARIES.
set(FLOORS base base/windows kernels sched text text/grammar text/jinja formats npu model package attention prefill draft quant params media engine session)
set(SOURCES)
foreach(f ${FLOORS})
  file(GLOB s CONFIGURE_DEPENDS src/${f}/*.c)
  list(APPEND SOURCES ${s})
endforeach()
set(LEFT_OUT base/file_map base/page_cache base/background base/child base/process base/windows/start engine/minimal session/minimal attention/no_baselines package/no_on_demand text/no_pieces text/grammar/no_ending text/grammar/no_later)
list(TRANSFORM LEFT_OUT REPLACE "(.+)" "${CMAKE_SOURCE_DIR}/src/\\1.c")
list(REMOVE_ITEM SOURCES ${LEFT_OUT})
include(cmake/isa.cmake)
add_compile_definitions(_FILE_OFFSET_BITS=64 __USE_MINGW_ANSI_STDIO=1 PCRE2_STATIC UTF8PROC_STATIC)
# Formats are for the build on Linux to check: GCC takes them for those of Microsoft's printf here, and isfinite for a function of floats.
add_compile_options(-Wno-format -Wno-format-extra-args -Wno-float-conversion)
# Every file sees POSIX first. The stack is aligned to 16 bytes there, whatever GCC believes (its bug 54412), so vectors are moved as if they
# were not aligned.
add_compile_options(-include ${CMAKE_SOURCE_DIR}/src/base/windows/posix.h -Wa,-muse-unaligned-vector-move)
include_directories(BEFORE src/base/windows/include)
include_directories(SYSTEM ${TERN_WINDOWS_LIBRARIES}/include)
foreach(l jansson pcre2-8 utf8proc microhttpd sqlite3)
  find_library(STATIC_${l} lib${l}.a REQUIRED)
endforeach()
set(STATIC_LIBRARIES ${STATIC_jansson} ${STATIC_pcre2-8} ${STATIC_utf8proc})
add_library(tern_objects OBJECT ${SOURCES} tools/mini/libraries.c)
target_include_directories(tern_objects PUBLIC src include)
target_link_libraries(tern_objects PUBLIC ${STATIC_LIBRARIES} Threads::Threads m bcrypt ws2_32 ssp)
add_library(tern SHARED)
target_link_libraries(tern PRIVATE tern_objects)
target_link_options(tern PRIVATE -static)
# Threads have as much stack as the program's first one.
add_link_options(-static -Wl,--stack,8388608)
add_executable(tern-mini tools/mini/mini.c src/base/windows/start.c src/base/windows/posix.c src/base/windows/sockets.c)
target_include_directories(tern-mini PRIVATE src include)
set_source_files_properties(tools/mini/mini.c PROPERTIES COMPILE_DEFINITIONS main=tn_win_main)
target_link_libraries(tern-mini PRIVATE tern shell32 bcrypt ws2_32 ssp Threads::Threads)

# The commands. What tools/windows/absent.c stands for is left out.
file(GLOB MEASURE_SOURCES CONFIGURE_DEPENDS src/measure/*.c)
file(GLOB CLI_SOURCES CONFIGURE_DEPENDS src/cli/*.c)
file(GLOB PICTURE_SOURCES CONFIGURE_DEPENDS src/pictures/*.c) # without the formats' libraries, which errors name
list(REMOVE_ITEM PICTURE_SOURCES ${CMAKE_SOURCE_DIR}/src/pictures/sealed.c)
set(LEFT_OUT lab pull pull_file pull_http pull_hub pull_ollama pull_sum bench_cold bench_limits)
list(TRANSFORM LEFT_OUT REPLACE "(.+)" "${CMAKE_SOURCE_DIR}/src/cli/\\1.c")
list(REMOVE_ITEM CLI_SOURCES ${LEFT_OUT})
file(GLOB SERVER_SOURCES CONFIGURE_DEPENDS src/server/*.c src/store/*.c)
list(REMOVE_ITEM SERVER_SOURCES ${CMAKE_SOURCE_DIR}/src/server/peer.c)
include(cmake/page.cmake)
# The readers of documents' formats are left out but for text and HTML (tools/windows/reader.c).
set(DOCUMENT_SOURCES doc_text documents embed extract passages rag rag_search rerank vectors)
list(TRANSFORM DOCUMENT_SOURCES REPLACE "(.+)" "${CMAKE_SOURCE_DIR}/src/documents/\\1.c")
add_executable(tern_cli ${CLI_SOURCES} ${MEASURE_SOURCES} ${PICTURE_SOURCES} ${SERVER_SOURCES} ${CMAKE_BINARY_DIR}/page_files.c ${DOCUMENT_SOURCES}
  tools/windows/absent.c tools/windows/reader.c src/libraries/linked.c src/base/windows/start.c)
set_target_properties(tern_cli PROPERTIES OUTPUT_NAME tern ARCHIVE_OUTPUT_NAME tern-cli)
set_source_files_properties(src/cli/main.c PROPERTIES COMPILE_DEFINITIONS main=tn_win_main)
target_link_libraries(tern_cli PRIVATE tern_objects ${STATIC_microhttpd} ${STATIC_sqlite3} shell32 ws2_32)
