#!/usr/bin/env bash
# Builds and runs the tests under sanitizers. Without an argument: the quick part that `make test` includes;
# with "all": every test.
set -euo pipefail
cd "$(dirname "$0")/.."
run() { # name, sanitizers, tests to run (ctest regex)
    cmake -S . -B "build-$1" -G Ninja -DTERN_SANITIZE="$2" -DTERN_BENCH=OFF -DCMAKE_BUILD_TYPE=RelWithDebInfo >/dev/null
    cmake --build "build-$1" >"build-$1/build.log" 2>&1 || { tail -40 "build-$1/build.log"; exit 1; }
    echo "tests under $2:"
    ctest --test-dir "build-$1" --output-on-failure -j 2 -R "$3"
}
quick_asan='^(base|text|formats|kernels|npu|model|quant|draft|engine|fuzz)/'
quick_tsan='^(base|sched|npu|engine)/'
if [ "${1:-}" = all ]; then quick_asan=. quick_tsan=.; fi
export TERN_TEST_QUICK=1 # tests that repeat random cases do fewer under a sanitizer
run asan address,undefined "$quick_asan"
run tsan thread "$quick_tsan"
