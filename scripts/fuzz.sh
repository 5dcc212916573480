#!/usr/bin/env bash
# Runs every libFuzzer target for the given seconds, or those that are named: fuzz.sh [SECONDS [TARGET...]]. A finding stops with its
# input saved.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-600}
command -v clang >/dev/null || { echo "fuzzing needs clang and libclang-rt-14-dev: apt-get install clang libclang-rt-14-dev" >&2; exit 1; }
CC=clang cmake -S . -B build-fuzz -G Ninja -DTERN_FUZZ=ON -DTERN_BENCH=OFF -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_C_FLAGS_RELWITHDEBINFO="-O1 -g1" >/dev/null
targets=$(basename -s .c tests/fuzz/fuzz_*.c)
[ $# -lt 2 ] || targets=${*:2}
cmake --build build-fuzz --target $targets >/dev/null
[ -n "${TMPDIR:-}" ] || [ ! -w /dev/shm ] || export TMPDIR=/dev/shm # targets that sync what they write wait for no disk
for t in $targets; do
    short=${t#fuzz_}
    mkdir -p "build-fuzz/corpus/$short"
    dict=()
    [ ! -f "tests/fuzz/dict/$short" ] || dict=("-dict=tests/fuzz/dict/$short")
    echo "== $t for $seconds s"
    ./build-fuzz/"$t" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 "${dict[@]}" \
        "build-fuzz/corpus/$short" "tests/fuzz/corpus/$short" >"build-fuzz/$t.log" 2>&1 || { tail -30 "build-fuzz/$t.log"; exit 1; }
    grep "stat::number_of_executed_units" "build-fuzz/$t.log"
done
