#!/usr/bin/env bash
# Builds and runs the tests under sanitizers. Without an argument: the quick part that `make check` includes;
# with "all": every test.
set -euo pipefail
cd "$(dirname "$0")/.."
# The programs of these folders' tests, and tern, which some of them start.
programs() {
    local f t
    echo tern_cli
    for f in "$@"; do
        for t in tests/"$f"/*.c; do
            t=$(basename "$t" .c)
            if [ "$f" != fuzz ]; then echo "test_${f}_$t"; elif [ "$t" != replay ]; then echo "$t"; fi
        done
    done
}
# Line tables and -O1: with -O2 and all of -g the compiler takes five times as long for the kernels, and the tests no less.
build() { # name, sanitizers, folders of tests or "all"
    local targets=all
    [ "$3" = all ] || targets=$(programs $3)
    cmake -S . -B "build-$1" -G Ninja -DTERN_SANITIZE="$2" -DTERN_BENCH=OFF -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_C_FLAGS_RELWITHDEBINFO="-O1 -g1 -DNDEBUG" >/dev/null
    cmake --build "build-$1" --target $targets >"build-$1/build.log" 2>&1 || { tail -40 "build-$1/build.log"; exit 1; }
}
tests() { # name, folders of tests or "all", tests to leave out
    local only=.
    [ "$2" = all ] || only="^(${2// /|})/"
    ctest --test-dir "build-$1" --output-on-failure -j $(($(getconf _NPROCESSORS_ONLN) + 1)) -R "$only" -E "$3"
}
quick_asan="base libraries text formats kernels npu model package attention prefill quant draft store engine documents lab server fuzz"
quick_tsan="base libraries sched npu package attention prefill store engine server" # documents: readers are processes, which the server's tests run
skipped="^server/(serve|clients|frameworks|edges|page|rag)$" # whole programs of clients take minutes; server/crowd has the threads
alone="$skipped|^(server/(zod|look|edits|scores|forged|odd|usual|door|lora|pieces|embedding|depth)|engine/(scarce|grammar|layers|lora|estimate|pictures_whole|dflash|assistants|heads|hostile_blocks)|attention/sparse_decode)$" # no threads that others do not have
if [ "${1:-}" = all ]; then quick_asan=all quick_tsan=all skipped="^$" alone="^$"; fi
export TERN_TEST_QUICK=1 # tests that repeat random cases do fewer under a sanitizer
failed=0
build asan address,undefined "$quick_asan"
(build tsan thread "$quick_tsan") & # compiled beside ASan's tests, which often wait for a server
building=$!
echo "tests under address,undefined:"
tests asan "$quick_asan" "$skipped" || failed=1
wait $building
echo "tests under thread:"
tests tsan "$quick_tsan" "$alone" || failed=1
exit $failed
