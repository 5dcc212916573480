#!/usr/bin/env bash
# A minimal build (TERN_MINIMAL) links the C library alone, stays small, and writes what the full one writes.
set -euo pipefail
tern=$1
build=$(dirname "$tern")
skip() { echo "skipped: $*"; exit 77; }
[ -z "${TERN_EMULATED:-}" ] || skip "the host's compiler builds no programs for this processor"
! grep -q "TERN_SANITIZE:STRING=." "$build/CMakeCache.txt" || skip "sizes are those of a plain build"
[ -n "${TERN_TEST_FULL:-}" ] || skip "it compiles the library once more: \`make check\` does, or TERN_TEST_FULL=1"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
launcher=$(sed -n 's/^CMAKE_C_COMPILER_LAUNCHER:[A-Z]*=//p' "$build/CMakeCache.txt")
compiler=$(sed -n 's/^CMAKE_C_COMPILER:[A-Z]*=//p' "$build/CMakeCache.txt")
# The build stays, so that the next run of the test compiles only what has changed.
mini=$build/minimal
cmake -S . -B "$mini" -DTERN_MINIMAL=ON -DCMAKE_BUILD_TYPE=MinSizeRel -DTERN_WERROR=ON -DCMAKE_C_COMPILER="$compiler" ${launcher:+-DCMAKE_C_COMPILER_LAUNCHER="$launcher"} >"$tmp/log" || { cat "$tmp/log"; exit 1; }
cmake --build "$mini" -j 2 >"$tmp/log" 2>&1 || { tail -30 "$tmp/log"; exit 1; }
bash scripts/needs.sh "$mini/libtern.so" "$mini/tern-mini" | tee "$tmp/needs"

foreign=$(readelf -d "$mini/libtern.so" "$mini/tern-mini" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort -u | grep -vE '^(libc|libm|libpthread|ld-linux.*)\.so' || true)
[ -z "$foreign" ] || { echo "FAILED: it needs $foreign"; exit 1; }
! grep -v "symbols of other libraries: none" "$tmp/needs" || { echo "FAILED: it needs other libraries"; exit 1; }
while read -r name size _; do
    [ "$size" -le 1572864 ] || { echo "FAILED: ${name%:} has $size bytes, at most 1.5 MiB"; exit 1; }
done <"$tmp/needs"

# The same interface: every function of the full library is there.
names() { nm -D --defined-only "$1" | awk '{print $3}' | grep '^tern_' | sort; }
if [ -f "$build/libtern.so" ]; then
    missing=$(comm -23 <(names "$build/libtern.so") <(names "$mini/libtern.so"))
    [ -z "$missing" ] || { echo "FAILED: its library lacks $missing"; exit 1; }
fi

"$tern" pack models/tern-tiny -o "$tmp/m.tern" --quick >"$tmp/log" 2>&1 || { cat "$tmp/log"; exit 1; }
# The full one computes with the same instructions as a minimal one, which has no AVX-512.
[ "$(uname -m)" != x86_64 ] || export TERN_CPU=avx2
same() { # text, options of tern, those of tern-mini
    "$tern" run "$tmp/m.tern" "$1" -n 60 --temp 0 $2 >"$tmp/full" 2>"$tmp/err" || { cat "$tmp/err"; exit 1; }
    "$mini/tern-mini" "$tmp/m.tern" "$1" n-predict=60 temp=0 $3 >"$tmp/mini" 2>"$tmp/err" || { cat "$tmp/err"; exit 1; }
    cmp "$tmp/full" "$tmp/mini" || { cat "$tmp/full" "$tmp/mini"; echo "FAILED: another text for: $1"; exit 1; }
}
same "What did Lily find in the garden? Don't say 1234 or café." "" ""
same "Tell me a story about a dog, a cat
and   a bird — with “quotes” and 日本語." "" "threads=1"
same "Once upon a time" "--raw" "raw=yes"
same "Once upon a time there was" "--raw --draft all" "raw=yes draft=all"


# A layer that guesses further stays in the package, and the text is the same.
mv "$tmp/m.tern" "$tmp/tiny.tern"
"$tern" synth --arch tiny-qwen2+mtp -o "$tmp/next.gguf" --seed 1 >"$tmp/log" 2>&1 && "$tern" pack "$tmp/next.gguf" -o "$tmp/m.tern" --quick >"$tmp/log" 2>&1 || { cat "$tmp/log"; exit 1; }
same "Once upon a time" "--raw --draft mtp" "raw=yes"
mv "$tmp/tiny.tern" "$tmp/m.tern"

# Memory: the whole of tern-mini with the bundled model, in KiB.
kib=$(python3 -c 'import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)' "$mini/tern-mini" "$tmp/m.tern" "Once upon a time" n-predict=60 temp=0 threads=1)
echo "tern-mini, models/tern-tiny: $kib KiB of memory"
[ "$kib" -le 40960 ] || { echo "FAILED: more than 40 MiB"; exit 1; }

# One clear error for what is left out.
refused() { # words, command
    local words=$1
    shift
    if "$@" >"$tmp/out" 2>"$tmp/err"; then echo "FAILED: $* is not refused"; exit 1; fi
    grep -q "$words" "$tmp/err" && [ "$(wc -l <"$tmp/err")" = 1 ] || { cat "$tmp/err"; echo "FAILED: another error for $*"; exit 1; }
}
refused "runs packages alone" "$mini/tern-mini" models/tern-tiny "hello"
echo "minimal: fine"
