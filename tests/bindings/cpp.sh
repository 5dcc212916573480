#!/usr/bin/env bash
# tern.hpp as C++17 with the library of this build.
set -euo pipefail
tern=$(realpath "$1")
build=$(dirname "$tern")
skip() { echo "skipped: $*"; exit 77; }
[ -z "${TERN_EMULATED:-}" ] || skip "the host's compiler builds no programs for this processor"
! grep -q "TERN_SANITIZE:STRING=." "$build/CMakeCache.txt" || skip "a sanitized library needs its sanitizer"
command -v c++ >/dev/null || skip "no C++ compiler (Debian: g++)"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
c++ -std=c++17 -Wall -Wextra -Wpedantic -Werror -Iinclude tests/bindings/wrapper.cpp -o "$tmp/wrapper" -L"$build" -ltern -Wl,-rpath,"$build"
# In two files of one program, too.
for i in 1 2; do echo '#include <tern.hpp>' >"$tmp/$i.cpp"; done
c++ -std=c++17 -Iinclude -shared -fPIC "$tmp/1.cpp" "$tmp/2.cpp" -o "$tmp/two.so"
"$tern" synth --arch tiny-qwen2 -o "$tmp/m.gguf"
chat=$("$tern" run models/tern-tiny "What is a dog?" --temp 0 -n 12 -t 2)
completion=$("$tern" run models/tern-tiny "Once upon a time" --raw --temp 0 -n 12 -t 2)
"$tmp/wrapper" models/tern-tiny "$tmp" "$chat" "$completion"
