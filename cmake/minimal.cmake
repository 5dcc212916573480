# TERN_MINIMAL: libtern for packages alone and tern-mini, a program that answers a prompt. Both need the C library only:
# jansson, PCRE2 and utf8proc are linked into them from their static libraries, and xxHash is compiled from its header.
set(FLOORS base kernels sched text formats npu model package attention prefill draft params engine session)
set(SOURCES)
foreach(f ${FLOORS})
  file(GLOB s CONFIGURE_DEPENDS src/${f}/*.c)
  list(APPEND SOURCES ${s})
endforeach()
file(GLOB s CONFIGURE_DEPENDS src/text/grammar/*.c src/text/jinja/*.c)
list(APPEND SOURCES ${s})
# Other formats than packages, what makes packages, and what PCRE2 and SQLite are for.
set(LEFT_OUT text/grammar/ending text/grammar/schema_later text/hf text/hf_draft text/spm text/pieces formats/gguf formats/gguf_write formats/safetensors formats/dequant formats/tensor formats/code_books formats/ik_types formats/packed model/source model/packed model/arch
             model/next model/assistant model/dflash model/arch_head model/arch_assistant model/arch_dflash model/head_tensors engine/head engine/beside model/streamed model/file_experts session/mtp session/mtp_block session/mtp_common model/gguf_vocab model/catalogue engine/adapters engine/imports session/lora session/storing model/lora model/lora_read model/lora_tasks model/tower model/tower_read model/tower_config model/tower_open model/tower_resample model/tower_folder model/wrapped model/tower_tensors model/tower_attend model/tower_judge engine/sight engine/sight_encoder engine/sight_find engine/sight_place engine/sight_kept session/pictures session/look
             model/place model/ternary base/machine package/smoothing package/tokens package/on_demand package/next attention/sparse_baselines attention/sparse_own kernels/attn_sparse)
list(TRANSFORM LEFT_OUT REPLACE "(.+)" "${CMAKE_SOURCE_DIR}/src/\\1.c")
list(REMOVE_ITEM SOURCES ${LEFT_OUT})
include(cmake/isa.cmake)
# AVX-512, and AVX2's products of packed weights, are for machines that have room for all of tern; these kernels are as
# large as everything else that computes.
list(FILTER SOURCES EXCLUDE REGEX "_(avx512|amx)[a-z0-9]*\\.c$|(gemm_packed|rans)_avx2\\.c$|/peak_|kernels/limits\\.c$")

foreach(l jansson pcre2-8 utf8proc)
  find_library(STATIC_${l} lib${l}.a REQUIRED)
  list(APPEND STATIC_LIBRARIES ${STATIC_${l}})
endforeach()
add_compile_definitions(TERN_MINIMAL TERN_NO_AVX512)
add_compile_options(-ffunction-sections -fdata-sections -fno-asynchronous-unwind-tables)
include(CheckIPOSupported)
check_ipo_supported(RESULT TERN_LTO OUTPUT TERN_LTO_REFUSED LANGUAGES C)
set(CMAKE_INTERPROCEDURAL_OPTIMIZATION ${TERN_LTO}) # a twentieth smaller
add_link_options(-Wl,--gc-sections -Wl,--as-needed -Wl,--no-undefined)
add_link_options(-Wl,-z,noseparate-code) # code shares pages with constants: two pages less
# 1,250 tables' pointers in 200 bytes instead of 30,000. The GNU C library reads them from 2.36 on and says so where it is older; others may
# read them wrongly in silence.
include(CheckSymbolExists)
include(CheckLinkerFlag)
check_symbol_exists(__GLIBC__ features.h TERN_GLIBC)
check_linker_flag(C -Wl,-z,pack-relative-relocs TERN_PACKED_RELOCATIONS)
if(TERN_GLIBC AND TERN_PACKED_RELOCATIONS)
  add_link_options(-Wl,-z,pack-relative-relocs)
endif()
add_library(tern_objects OBJECT ${SOURCES} tools/mini/libraries.c)
target_include_directories(tern_objects PUBLIC src include)
target_link_libraries(tern_objects PUBLIC ${STATIC_LIBRARIES} Threads::Threads m)
add_library(tern SHARED)
target_link_libraries(tern PRIVATE tern_objects)
target_link_options(tern PRIVATE -Wl,--wrap=stdin)
set_target_properties(tern PROPERTIES VERSION 1.0.0 SOVERSION 1)
target_link_options(tern PRIVATE -Wl,--version-script=${CMAKE_SOURCE_DIR}/cmake/tern.map)
add_executable(tern-mini tools/mini/mini.c)
target_link_libraries(tern-mini PRIVATE tern_objects)
target_include_directories(tern-mini PRIVATE include)
add_custom_command(TARGET tern-mini POST_BUILD VERBATIM
  COMMAND bash ${CMAKE_SOURCE_DIR}/scripts/needs.sh $<TARGET_FILE:tern> $<TARGET_FILE:tern-mini>)
add_dependencies(tern-mini tern)
option(TERN_STATIC "link tern-mini with the C library's archive (scripts/static.sh)" OFF)
if(TERN_STATIC)
  set_property(TARGET tern-mini PROPERTY POSITION_INDEPENDENT_CODE) # else CMake's -pie follows, and asks for the dynamic loader
  target_compile_options(tern-mini PRIVATE -fPIE)
  target_link_options(tern-mini PRIVATE -static-pie)
endif()

include(GNUInstallDirs)
install(TARGETS tern LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS tern-mini RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(FILES include/tern.h include/tern_shadow.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
