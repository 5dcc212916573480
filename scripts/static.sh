#!/usr/bin/env bash
# A static tern-mini for any Linux of an architecture:  scripts/static.sh x86_64|aarch64 FOLDER
# It is built in FOLDER/build-ARCH and written to FOLDER/tern-mini-ARCH. For x86-64 with musl where musl-gcc is there (Debian: musl-tools), for
# AArch64 with Debian's cross compiler. Paths of the build do not get into the bytes. Exit 77: no compiler for it.
set -euo pipefail
root=$(realpath "$(dirname "$0")/..")
arch=$1 out=$(realpath -m "$2")
case $arch in
x86_64) if command -v musl-gcc >/dev/null; then cc=musl-gcc; else cc=gcc; fi; strip=strip; more=() ;;
aarch64) cc=aarch64-linux-gnu-gcc; strip=aarch64-linux-gnu-strip; more=(-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64) ;;
*) echo "static.sh: $arch is neither x86_64 nor aarch64" >&2 && exit 2 ;;
esac
[ "$arch" = aarch64 ] || [ "$(uname -m)" = "$arch" ] || { echo "skipped: no compiler for $arch"; exit 77; }
command -v $cc >/dev/null || { echo "skipped: no $cc"; exit 77; }
build=$out/build-$arch
mkdir -p "$build"
STRIP=$strip cmake -S "$root" -B "$build" -G Ninja -DTERN_MINIMAL=ON -DCMAKE_BUILD_TYPE=MinSizeRel -DCMAKE_C_COMPILER=$cc "${more[@]}" \
    -DCMAKE_C_FLAGS="-ffile-prefix-map=$root=. -ffile-prefix-map=$build=." -DCMAKE_EXE_LINKER_FLAGS="-static -Wl,--build-id=none" >"$build/log" || { cat "$build/log"; exit 1; }
STRIP=$strip cmake --build "$build" --target tern-mini -j 2 >"$build/log" 2>&1 || { tail -30 "$build/log"; exit 1; }
$strip -o "$out/tern-mini-$arch" "$build/tern-mini"
echo "tern-mini-$arch: $(stat -c %s "$out/tern-mini-$arch") bytes, $cc, $(sha256sum "$out/tern-mini-$arch" | cut -c1-16)"
