#!/usr/bin/env bash
# A second engine over the fuzz targets: AFL++ runs those that are named for the given seconds each, from the same seeds and with the same
# dictionaries as scripts/fuzz.sh; afl.sh [SECONDS [TARGET...]], by default the files, templates and requests that come from strangers.
# A finding stops it with the input saved.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-600}
[ $# -gt 1 ] && shift && targets=$* || targets="fuzz_gguf fuzz_jinja fuzz_request"
command -v afl-clang-fast >/dev/null || { echo "this needs AFL++: apt-get install afl++ clang" >&2; exit 1; }
export AFL_QUIET=1 AFL_LLVM_INSTRUMENT=NATIVE AFL_NO_UI=1 AFL_SKIP_CPUFREQ=1 AFL_I_DONT_CARE_ABOUT_MISSING_CRASHES=1 AFL_NO_AFFINITY=1
CC=afl-clang-fast cmake -S . -B build-afl -G Ninja -DTERN_FUZZ=ON -DTERN_BENCH=OFF -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_C_FLAGS_RELWITHDEBINFO="-O1 -g1" >/dev/null
# shellcheck disable=SC2086 # several words
cmake --build build-afl --target $targets >/dev/null
for t in $targets; do
    short=${t#fuzz_}
    dict=() out=build-afl/findings/$short
    [ ! -f "tests/fuzz/dict/$short" ] || dict=(-x "tests/fuzz/dict/$short")
    rm -rf "$out"
    mkdir -p build-afl/findings
    echo "== $t for $seconds s"
    afl-fuzz -i "tests/fuzz/corpus/$short" -o "$out" -V "$seconds" -t 5000+ -m none "${dict[@]}" -- "build-afl/$t" >"build-afl/$t.log" 2>&1 ||
        { tail -30 "build-afl/$t.log"; exit 1; }
    awk -F' *: *' '/^(execs_done|corpus_count|saved_crashes|saved_hangs|edges_found) / { printf "   %s %s\n", $1, $2 }' "$out/default/fuzzer_stats"
    found=$(find "$out/default/crashes" "$out/default/hangs" -name 'id:*' | head -5)
    [ -z "$found" ] || { echo "found:"; echo "$found"; exit 1; }
done
