#!/usr/bin/env bash
# What cmake --install gives: a program, a library with only tern_* symbols, a header and a pkg-config file that build the example.
set -euo pipefail
tern=$1
build=$(dirname "$tern")
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
if grep -q "TERN_SANITIZE:STRING=." "$build/CMakeCache.txt"; then
    echo "skipped: a sanitized library needs its sanitizer"
    exit 77
fi
if [ -n "${TERN_EMULATED:-}" ]; then
    echo "skipped: the host's compiler builds no programs for this processor"
    exit 77
fi
cmake --install "$build" --prefix "$tmp/usr" >/dev/null
lib=$(dirname "$(find "$tmp/usr" -name libtern.so | head -1)")
export PKG_CONFIG_PATH=$lib/pkgconfig LD_LIBRARY_PATH=$lib
[ "$(wc -l <examples/generate.c)" -lt 60 ]
cc -std=c17 -Wall -Wextra -Werror examples/generate.c -o "$tmp/generate" $(pkg-config --cflags --libs tern)
"$tmp/usr/bin/tern" synth --arch tiny-qwen2 -o "$tmp/m.gguf"
"$tmp/generate" "$tmp/m.gguf" "the inn" >"$tmp/out"
[ -s "$tmp/out" ]
cc -std=c17 -Wall -Wextra -Werror examples/shadow.c -o "$tmp/shadow" $(pkg-config --cflags --libs tern) -lm
"$tmp/shadow" 300 | grep -q "times as fast"
! "$tmp/generate" "$tmp/none.gguf" "the inn" 2>"$tmp/err"
grep -q "none.gguf" "$tmp/err"
foreign=$(nm -D --defined-only "$lib/libtern.so" | awk '{print $3}' | grep -v '^tern_' | grep -v '^TERN_1' || true)
[ -z "$foreign" ] || { echo "libtern.so exports $foreign"; exit 1; }
nm -D --defined-only "$lib/libtern.so" | grep -q 'tern_engine_open@@TERN_1'
# A store of conversations: libtern.so has no SQLite, and loads libtern-store where a session names a file.
! readelf -d "$lib/libtern.so" | grep NEEDED | grep -E "png|jpeg|webp|sqlite|archive|xml2|microhttpd|curl|edit" || { echo "libtern.so brings more than it needs"; exit 1; }
foreign=$(nm -D --defined-only "$lib/libtern-store.so.1" | awk '{print $3}' | grep -v '^tn_store_plugin$' || true)
[ -z "$foreign" ] || { echo "libtern-store.so exports $foreign"; exit 1; }
foreign=$(nm -D --defined-only "$lib/libtern-pictures.so.1" | awk '{print $3}' | grep -v '^tn_decoder_plugin$' || true)
[ -z "$foreign" ] || { echo "libtern-pictures.so exports $foreign"; exit 1; }
sed -e 's/tern_session_open(engine, NULL/tern_session_open(engine, \&options/' \
    -e 's/^    int rc = 1;/    int rc = 1; tern_session_options options; tern_session_options_defaults(\&options); options.store = getenv("STORE"); options.draft = "sam";/' \
    -e 's/^    rc = 0;/    const char *name; double value; for (size_t i = 0; (name = tern_session_counter(session, i, \&value)); i++) if (!__builtin_strcmp(name, "draft_learned")) printf("learned %.0f\\n", value); rc = 0;/' \
    examples/generate.c >"$tmp/keep.c"
cc -std=c17 -Wall -Wextra -Werror "$tmp/keep.c" -o "$tmp/keep" $(pkg-config --cflags --libs tern)
STORE=$tmp/store.db "$tmp/keep" "$tmp/m.gguf" "the inn" | grep -qx "learned 0"
STORE=$tmp/store.db "$tmp/keep" "$tmp/m.gguf" "the inn" | grep -qx "learned [1-9][0-9]*"
mkdir "$tmp/alone"
cp "$lib/libtern.so.1" "$tmp/alone/"
LD_LIBRARY_PATH=$tmp/alone "$tmp/generate" "$tmp/m.gguf" "the inn" >/dev/null
! STORE=$tmp/store.db LD_LIBRARY_PATH=$tmp/alone "$tmp/keep" "$tmp/m.gguf" "the inn" 2>"$tmp/err"
grep -q "a store needs libtern-store.so.1 beside libtern" "$tmp/err"
# The same through CMake's find_package.
mkdir "$tmp/app"
cp examples/generate.c "$tmp/app/"
cat >"$tmp/app/CMakeLists.txt" <<'EOF'
cmake_minimum_required(VERSION 3.20)
project(app LANGUAGES C)
find_package(tern 0.1 REQUIRED)
add_executable(generate generate.c)
target_link_libraries(generate PRIVATE tern::tern)
EOF
cmake -S "$tmp/app" -B "$tmp/app/build" -DCMAKE_PREFIX_PATH="$tmp/usr" >"$tmp/cmake.log" || { cat "$tmp/cmake.log"; exit 1; }
cmake --build "$tmp/app/build" >"$tmp/cmake.log" || { cat "$tmp/cmake.log"; exit 1; }
"$tmp/app/build/generate" "$tmp/m.gguf" "the inn" >"$tmp/out2"
[ -s "$tmp/out2" ]
for page in man/tern.1 man/tern-run.1 man/tern-serve.1; do [ -s "$tmp/usr/share/man/man1/$(basename "$page")" ]; done
for file in bash-completion/completions/tern zsh/vendor-completions/_tern fish/vendor_completions.d/tern.fish; do [ -s "$tmp/usr/share/$file" ]; done
echo "install and example: fine"
