# The Hexagon backend for a device: FastRPC stubs by the SDK's qaic, the DSP's library by its hexagon-clang, the host side with libcdsprpc.
# NEVER RUN: written after the SDK's published layout (5.x), without an SDK at hand. What is missing is named and refused.
set(TERN_HEXAGON_ARCH v73 CACHE STRING "DSP version the library is built for")
option(TERN_HEXAGON_QURT_THREADS "HVX threads on the DSP, made by QuRT; off: one computes" OFF)
find_path(HEX_SDK_INC remote.h PATHS ${TERN_HEXAGON_SDK}/incs NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH)
find_path(HEX_SDK_DSPQUEUE dspqueue.h PATHS ${TERN_HEXAGON_SDK}/incs NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH)
find_path(HEX_SDK_STDDEF AEEStdDef.h PATHS ${TERN_HEXAGON_SDK}/incs/stddef NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH)
find_path(HEX_SDK_RPCMEM rpcmem.h PATHS ${TERN_HEXAGON_SDK}/ipc/fastrpc/rpcmem/inc NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH)
find_path(HEX_SDK_QURT qurt.h PATHS ${TERN_HEXAGON_SDK}/rtos/qurt/compute${TERN_HEXAGON_ARCH}/include/qurt NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH)
find_library(HEX_SDK_CDSPRPC cdsprpc PATHS ${TERN_HEXAGON_SDK}/ipc/fastrpc/remote/ship/android_aarch64 ${TERN_HEXAGON_SDK}/ipc/fastrpc/remote/ship/linux_aarch64
  NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH)
find_program(HEX_SDK_QAIC qaic PATHS ${TERN_HEXAGON_SDK}/ipc/fastrpc/qaic PATH_SUFFIXES bin Ubuntu Ubuntu18 Ubuntu20 NO_DEFAULT_PATH)
file(GLOB HEX_SDK_CLANG ${TERN_HEXAGON_SDK}/tools/HEXAGON_Tools/*/Tools/bin/hexagon-clang)
foreach(part HEX_SDK_INC HEX_SDK_DSPQUEUE HEX_SDK_STDDEF HEX_SDK_RPCMEM HEX_SDK_QURT HEX_SDK_CDSPRPC HEX_SDK_QAIC HEX_SDK_CLANG)
  if(NOT ${part})
    list(APPEND HEX_SDK_MISSING ${part})
  endif()
endforeach()
if(HEX_SDK_MISSING)
  message(FATAL_ERROR "TERN_HEXAGON_SDK=${TERN_HEXAGON_SDK} is no Hexagon SDK that tern knows: not found are ${HEX_SDK_MISSING} (cmake/hexagon-sdk.cmake says where they are looked for)")
endif()
list(GET HEX_SDK_CLANG -1 HEX_SDK_CLANG)
set(stubs ${CMAKE_BINARY_DIR}/fastrpc)
file(MAKE_DIRECTORY ${stubs})
add_custom_command(OUTPUT ${stubs}/tern_dsp.h ${stubs}/tern_dsp_stub.c ${stubs}/tern_dsp_skel.c
  COMMAND ${HEX_SDK_QAIC} -mdll -o ${stubs} -I ${HEX_SDK_INC} -I ${HEX_SDK_STDDEF} ${CMAKE_SOURCE_DIR}/src/npu/hexagon/tern_dsp.idl
  DEPENDS src/npu/hexagon/tern_dsp.idl VERBATIM)
add_custom_command(OUTPUT libtern_dsp_skel.so
  COMMAND ${HEX_SDK_CLANG} -m${TERN_HEXAGON_ARCH} -mhvx -mhvx-length=128B -O2 -G0 -fPIC -shared -ffp-contract=off $<$<BOOL:${TERN_HEXAGON_QURT_THREADS}>:-DTERN_HEXAGON_QURT_THREADS>
    -I${HEX_SDK_INC} -I${HEX_SDK_STDDEF} -I${HEX_SDK_QURT} -I${stubs} ${HEX_SOURCES} ${CMAKE_SOURCE_DIR}/src/npu/hexagon/dsp/main_fastrpc.c
    ${stubs}/tern_dsp_skel.c -o ${CMAKE_BINARY_DIR}/libtern_dsp_skel.so
  DEPENDS ${HEX_SOURCES} ${HEX_HEADERS} src/npu/hexagon/dsp/main_fastrpc.c src/npu/hexagon/message.h ${stubs}/tern_dsp_skel.c VERBATIM COMMAND_EXPAND_LISTS)
add_custom_target(hexagon_dsp ALL DEPENDS libtern_dsp_skel.so)
set_source_files_properties(${stubs}/tern_dsp_stub.c PROPERTIES COMPILE_OPTIONS "-w")
target_sources(tern_objects PRIVATE src/npu/hexagon/fastrpc.c ${stubs}/tern_dsp_stub.c)
target_include_directories(tern_objects PRIVATE ${HEX_SDK_INC} ${HEX_SDK_STDDEF} ${HEX_SDK_RPCMEM} ${stubs})
target_link_libraries(tern_objects PUBLIC ${HEX_SDK_CDSPRPC})
