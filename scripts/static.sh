#!/usr/bin/env bash
# A static program for any Linux of an architecture:  scripts/static.sh x86_64|aarch64 FOLDER [tern-mini|tern]
# It is built in FOLDER/build-PROGRAM-ARCH and written, stripped, to FOLDER/PROGRAM-ARCH. For AArch64 Debian's cross compiler is used.
# Both are linked with glibc and Debian's static libraries.
# Paths of the build do not get into the bytes. Exit 77: no compiler or no static libraries for it (scripts/setup.sh --static --aarch64).
set -euo pipefail
root=$(realpath "$(dirname "$0")/..")
arch=$1 out=$(realpath -m "$2") program=${3:-tern-mini}
case $arch-$program in
x86_64-tern-mini | x86_64-tern) cc=gcc ;;
aarch64-tern-mini | aarch64-tern) cc=aarch64-linux-gnu-gcc ;;
*) echo "static.sh: $program for $arch: tern-mini or tern, for x86_64 or aarch64" >&2 && exit 2 ;;
esac
strip=strip
[ $arch = x86_64 ] || strip=aarch64-linux-gnu-strip
[ "$arch" = aarch64 ] || [ "$(uname -m)" = "$arch" ] || { echo "skipped: no compiler for $arch"; exit 77; }
command -v $cc >/dev/null || { echo "skipped: no $cc"; exit 77; }
build=$out/build-$program-$arch target=$program
# CMake forgets all that it was told when its compiler becomes another one.
! grep -q "^CMAKE_C_COMPILER:" "$build/CMakeCache.txt" 2>/dev/null || grep -qE "^CMAKE_C_COMPILER:.*[/=]$cc\$" "$build/CMakeCache.txt" || rm -rf "$build"
mkdir -p "$build"
# Of what archives which members went into it: scripts/sbom.py reads that.
map="-Wl,-Map=$out/$program-$arch.map"
flags="-ffile-prefix-map=$root=. -ffile-prefix-map=$build=."
libraries="libpcre2-8 libutf8proc libjansson libxxhash"
[ $program = tern-mini ] || libraries="$libraries libsqlite3 libarchive libxml2 libmicrohttpd libedit libtinfo libbsd libmd libz liblzma libzstd libbz2 libnettle"
for library in $libraries; do
    [ -f "/usr/lib/$arch-linux-gnu/$library.a" ] || { echo "skipped: no $library.a for $arch"; exit 77; }
done
if [ $program = tern ]; then
    target=tern_cli
    more=(-DTERN_STATIC=ON -DTERN_TESTS=OFF -DTERN_BENCH=OFF -DTERN_HEXAGON=OFF -DCMAKE_BUILD_TYPE=RelWithDebInfo "-DCMAKE_C_FLAGS_RELWITHDEBINFO=-O2 -DNDEBUG" "-DCMAKE_EXE_LINKER_FLAGS=-Wl,--build-id=none $map")
else
    more=(-DTERN_MINIMAL=ON -DTERN_STATIC=ON -DCMAKE_BUILD_TYPE=MinSizeRel "-DCMAKE_EXE_LINKER_FLAGS=-Wl,--build-id=none $map")
fi
if [ $arch = aarch64 ] && [ "$(uname -m)" != aarch64 ]; then more+=(--toolchain "$root/cmake/aarch64-linux-gnu.cmake"); else more+=(-DCMAKE_C_COMPILER=$cc); fi
STRIP=$strip cmake -S "$root" -B "$build" -G Ninja "${more[@]}" -DCMAKE_C_FLAGS="$flags" >"$build/log" 2>&1 || { cat "$build/log"; exit 1; }
STRIP=$strip cmake --build "$build" --target $target -j "$(nproc)" >"$build/log" 2>&1 || { tail -30 "$build/log"; exit 1; }
$strip -o "$out/$program-$arch" "$build/$program"
[ $program != tern ] || $strip -o "$out/tern-lab-$arch" "$build/tern-lab"
! readelf -d "$out/$program-$arch" 2>/dev/null | grep NEEDED || { echo "FAILED: $program-$arch is not static"; exit 1; }
made=("$out/$program-$arch")
[ $program != tern ] || made+=("$out/tern-lab-$arch")
bash "$root/scripts/hardened.sh" --not "$root" --not "$build" "${made[@]}"
echo "$program-$arch: $(stat -c %s "$out/$program-$arch") bytes, $cc, $(sha256sum "$out/$program-$arch" | cut -c1-16)"
