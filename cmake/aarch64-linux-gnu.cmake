# Cross build for 64-bit Arm with Debian's packages: scripts/setup.sh --aarch64, then
#   cmake -B build-aarch64 -G Ninja --toolchain cmake/aarch64-linux-gnu.cmake && ninja -C build-aarch64 && ctest --test-dir build-aarch64
# Tests run under qemu-aarch64; QEMU_CPU=cortex-a53 (no dotprod), cortex-a76 (dotprod), max (i8mm too) choose the processor.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(ENV{PKG_CONFIG_LIBDIR} /usr/lib/aarch64-linux-gnu/pkgconfig:/usr/share/pkgconfig)
set(PKG_CONFIG_EXECUTABLE /usr/bin/pkg-config CACHE FILEPATH "")
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L / CACHE STRING "")
