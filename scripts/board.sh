#!/usr/bin/env bash
# tern-mini as on a small board: static, for x86-64 and for AArch64 under QEMU as a Cortex-A53, one thread, the model of the repository.
#   scripts/board.sh TERN [FOLDER]        (make board; default folder: build/static)
# Both must write the text of the full program within 40 MiB. The size of the library is the business of tests/cli/minimal.sh.
set -euo pipefail
tern=$(realpath "$1") out=$(realpath -m "${2:-build/static}")
cd "$(dirname "$0")/.."
mkdir -p "$out"
peak() { # command: its output to the file out, its peak memory in KiB
    python3 -c 'import resource, subprocess, sys
subprocess.run(sys.argv[2:], stdout=open(sys.argv[1], "w"), stderr=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)' "$out/text" "$@"
}
TERN_PACK=never "$tern" pack models/tern-tiny -o "$out/m.tern" --calib-tokens 512 >/dev/null 2>&1
ask=("$out/m.tern" "Once upon a time" n-predict=40 temp=0 threads=1 raw=yes)
TERN_CPU=avx2 "$tern" run "$out/m.tern" "Once upon a time" --raw -n 40 --temp 0 >"$out/want"
tried=0
for arch in x86_64 aarch64; do
    rc=0
    bash scripts/static.sh $arch "$out" || rc=$?
    [ $rc = 77 ] && continue
    [ $rc = 0 ] || exit $rc
    run=()
    if [ "$(uname -m)" != $arch ]; then
        command -v qemu-$arch >/dev/null || { echo "skipped: no qemu-$arch (Debian: qemu-user)"; continue; }
        run=(qemu-$arch -cpu cortex-a53)
    fi
    ! readelf -d "$out/tern-mini-$arch" | grep NEEDED || { echo "FAILED: it is not static"; exit 1; }
    nothing=$(peak "${run[@]}" "$out/tern-mini-$arch") # what the emulator itself takes
    [ ${#run[@]} -gt 0 ] || nothing=0
    all=$(peak "${run[@]}" "$out/tern-mini-$arch" "${ask[@]}")
    cmp "$out/text" "$out/want" || { cat "$out/text"; echo "FAILED: another text on $arch"; exit 1; }
    echo "$arch: $all KiB of memory${run[*]:+, $nothing of them the emulator with a program that does nothing}"
    [ $((all - nothing)) -le 40960 ] || { echo "FAILED: more than 40 MiB"; exit 1; }
    tried=$((tried + 1))
done
[ $tried -gt 0 ] || exit 77
