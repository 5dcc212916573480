#!/usr/bin/env bash
# Cross-builds tern for 64-bit Arm and runs its tests under qemu-aarch64 on three processors: without dotprod, with it, with i8mm.
# Without an argument the part that `make check` includes (base, kernels, formats, device, and a generated text); with "all" every test.
set -euo pipefail
cd "$(dirname "$0")/.."
for tool in qemu-aarch64 aarch64-linux-gnu-gcc; do
    command -v $tool >/dev/null || { echo "skipped: no $tool, so nothing is run on AArch64 (scripts/setup.sh --aarch64)"; exit 0; }
done
build=${BUILD_AARCH64:-build-aarch64}
jobs=$(($(getconf _NPROCESSORS_ONLN) + 1))
cmake -S . -B "$build" -G Ninja --toolchain cmake/aarch64-linux-gnu.cmake -DTERN_WERROR=ON -DTERN_HEXAGON=OFF -DTERN_BENCH=OFF >/dev/null
targets=all
if [ "${1:-}" != all ]; then
    targets=tern_cli
    for t in tests/{base,kernels,formats,npu,sched}/*.c; do
        f=${t%/*}
        targets+=" test_${f##*/}_$(basename "$t" .c)"
    done
fi
cmake --build "$build" --target $targets >"$build/build.log" 2>&1 || { tail -40 "$build/build.log"; exit 1; }
if [ "${1:-}" = all ]; then
    echo "tests on AArch64, under QEMU:"
    exec ctest --test-dir "$build" --output-on-failure -j "$jobs"
fi
export TERN_TEST_QUICK=1 # tests that repeat random cases do fewer under an emulator
for cpu in cortex-a53 cortex-a76 max; do
    echo "tests on AArch64, under QEMU as $cpu:"
    only='^kernels/'
    [ $cpu = max ] && only='^(base|kernels|formats|npu|sched|cli/greedy)'
    QEMU_CPU=$cpu ctest --test-dir "$build" --output-on-failure -j "$jobs" -R "$only"
done
