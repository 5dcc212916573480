#!/usr/bin/env bash
# Builds tern as other machines do, and runs nothing:  scripts/compilers.sh bare|clang|musl ...
# bare: everything, where only what README names is installed (no Hexagon, no emulator, no git, no optional tool in sight).
# clang: everything with Debian's clang. musl: the library's code with musl's headers, as Alpine compiles it; nothing is linked.
# What the machine has no compiler for is left out with a message (scripts/setup.sh --compilers).
set -euo pipefail
cd "$(dirname "$0")/.."
# -O1 where ccache has nothing to give: this is about what compiles and links; the suite has the rest.
common=(-G Ninja -DTERN_WERROR=ON -DCMAKE_BUILD_TYPE=Debug "-DCMAKE_C_FLAGS_DEBUG=-O1")
built() { # folder, target: builds it, and shows what went wrong
    cmake --build "$1" --target "$2" >"$1/build.log" 2>&1 || { grep -E -B2 -A8 'FAILED|error:' "$1/build.log" | head -60; echo "compilers.sh: $1 does not build"; exit 1; }
    echo "compilers: $1 builds"
}
bare() {
    local few from
    few=$PWD/build-bare/tools # the same each time: CMake keeps the compiler's path
    rm -rf "$few"
    mkdir -p "$few"
    # The tools of a machine where scripts/setup.sh ran without an argument.
    for from in $(dpkg -L coreutils bash sed grep gawk mawk findutils diffutils 2>/dev/null | grep -E '^/(usr/)?s?bin/') \
        $(command -v gcc cc ld as ar ranlib nm objcopy strip cmake ctest ninja pkg-config pkgconf python3 sh awk ccache); do
        ln -sf "$from" "$few/${from##*/}"
    done
    # If build/ was compiled with ccache, its compiler and flags are used, so that only what differs here is compiled again.
    local how=("${common[@]}")
    if [ -n "${CMAKE_C_COMPILER_LAUNCHER:-}" ] && grep -q '^CMAKE_C_COMPILER_LAUNCHER:[A-Z]*=.' build/CMakeCache.txt 2>/dev/null; then how=(-G Ninja -DTERN_WERROR=ON); fi
    PATH=$few cmake -S . -B build-bare "${how[@]}" -DCMAKE_C_COMPILER=cc -DTERN_HEXAGON=OFF -DTERN_CURL=OFF >/dev/null
    PATH=$few built build-bare all
}
clang() {
    command -v clang >/dev/null || { echo "skipped: no clang"; return; }
    cmake -S . -B build-clang "${common[@]}" -DCMAKE_C_COMPILER="$(command -v clang)" >/dev/null
    built build-clang all
}
musl() {
    command -v musl-gcc >/dev/null || { echo "skipped: no musl-gcc"; return; }
    local headers=$PWD/build-musl/headers h
    mkdir -p "$headers"
    # The headers of other libraries and of the kernel, without glibc's, which lie in the same folder.
    for h in jansson.h pcre2.h utf8proc.h xxhash.h xxh3.h linux asm-generic jansson_config.h "$(gcc -print-multiarch)/asm" "$(gcc -print-multiarch)/jansson_config.h"; do
        [ ! -e "/usr/include/$h" ] || cp -rL "/usr/include/$h" "$headers/"
    done
    cmake -S . -B build-musl "${common[@]}" -DCMAKE_C_COMPILER=musl-gcc -DCMAKE_C_FLAGS="-isystem $headers" -DTERN_HEXAGON=OFF -DTERN_TESTS=OFF -DTERN_BENCH=OFF >/dev/null
    built build-musl tern_objects
}
for what in "$@"; do
    case $what in
    bare | clang | musl) $what ;;
    *) echo "compilers.sh: bare, clang or musl" >&2 && exit 2 ;;
    esac
done
