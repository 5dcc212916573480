#!/usr/bin/env bash
# Runs every libFuzzer target for the given seconds, or those that are named: fuzz.sh [SECONDS [TARGET...]]. A finding stops with its
# input saved. fuzz.sh --minimise [TARGET...] takes what was found since into tests/fuzz/corpus: the fewest and shortest inputs that reach
# code which the named seeds do not, as found-HASH in place of those that were there.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-600}
command -v clang >/dev/null || { echo "fuzzing needs clang and libclang-rt-14-dev: apt-get install clang libclang-rt-14-dev" >&2; exit 1; }
CC=clang cmake -S . -B build-fuzz -G Ninja -DTERN_FUZZ=ON -DTERN_BENCH=OFF -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_C_FLAGS_RELWITHDEBINFO="-O1 -g1" >/dev/null
targets=$(basename -s .c tests/fuzz/fuzz_*.c)
[ $# -lt 2 ] || targets=${*:2}
cmake --build build-fuzz --target $targets >/dev/null
[ -n "${TMPDIR:-}" ] || [ ! -w /dev/shm ] || export TMPDIR=/dev/shm # targets that sync what they write wait for no disk

# Only edges count, or hundreds would stay for how often they take one, and only inputs of at most 16 KiB (a longer one
# that is worth it gets a name by hand). An input that fails would be left out without a word: it is a finding and ends it. The time is
# wide, because a loaded machine is none.
minimise() {
    local short=${1#fuzz_} kept=build-fuzz/kept/seeds found=build-fuzz/kept/found n
    local seeds=tests/fuzz/corpus/$short log=build-fuzz/$1.log
    rm -rf build-fuzz/kept
    mkdir -p "$kept" "$found" "build-fuzz/corpus/$short"
    find "$seeds" -type f ! -name 'found-*' -exec cp -t "$kept" {} +
    find "$seeds" "build-fuzz/corpus/$short" -type f -size -16385c -exec cp -t "$found" {} +
    ./build-fuzz/"$1" -merge=1 -use_counters=0 -timeout=120 -rss_limit_mb=2048 -artifact_prefix=build-fuzz/ "$kept" "$found" >"$log" 2>&1 &&
        ! grep -q "Test unit written" "$log" || { grep -E "Test unit written|SUMMARY" "$log" || tail -30 "$log"; exit 1; }
    rm -f "$seeds"/found-*
    for f in "$kept"/*; do
        n=${f##*/}
        [ -e "$seeds/$n" ] || cp "$f" "$seeds/found-${n:0:10}"
    done
    rm -rf build-fuzz/kept
    echo "$1: $(find "$seeds" -type f | wc -l) inputs, $(cat "$seeds"/* | wc -c) bytes"
}

for t in $targets; do
    [ "$seconds" != --minimise ] || { minimise "$t"; continue; }
    short=${t#fuzz_}
    mkdir -p "build-fuzz/corpus/$short"
    dict=()
    [ ! -f "tests/fuzz/dict/$short" ] || dict=("-dict=tests/fuzz/dict/$short")
    echo "== $t for $seconds s"
    ./build-fuzz/"$t" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 "${dict[@]}" \
        "build-fuzz/corpus/$short" "tests/fuzz/corpus/$short" >"build-fuzz/$t.log" 2>&1 || { tail -30 "build-fuzz/$t.log"; exit 1; }
    grep "stat::number_of_executed_units" "build-fuzz/$t.log"
done
if [ "$seconds" = --minimise ]; then
    bytes=$(cat tests/fuzz/corpus/*/* | wc -c)
    echo "all: $bytes bytes"
    [ "$bytes" -le 2000000 ] || { echo "tests/fuzz/corpus has more than 2 MB: leave out what is long" >&2; exit 1; }
fi
