#!/usr/bin/env bash
# What can be checked of the build for a phone without its SDK: the DSP's runtime and kernels compile for every version from v67 to v73, and a
# folder that is no SDK is refused with a list of what is missing, each with the place where it is looked for.
set -euo pipefail
clang=$(command -v clang-16) || { echo "skipped: no clang-16"; exit 77; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
for version in 67 68 69 71 73; do
    for file in dma kernels ops runtime; do
        "$clang" --target=hexagon-unknown-linux-musl -mv$version -mhvx -mhvx-length=128b -O1 -G0 -ffreestanding -ffp-contract=off -Wall -Wextra -Werror \
            -c src/npu/hexagon/dsp/$file.c -o "$tmp/$file.o" || { echo "$file.c does not compile for v$version"; exit 1; }
    done
done
mkdir -p "$tmp/sdk/incs/stddef"
touch "$tmp/sdk/incs/remote.h" "$tmp/sdk/incs/stddef/AEEStdDef.h"
! cmake -S . -B "$tmp/build" -DTERN_HEXAGON=ON -DTERN_HEXAGON_SDK="$tmp/sdk" >"$tmp/said" 2>&1 || { echo "half an SDK was accepted"; exit 1; }
for part in DSPQUEUE RPCMEM QURT CDSPRPC QAIC CLANG; do
    tr -d '\n ' <"$tmp/said" | grep -q "notfoundare.*HEX_SDK_$part" || { echo "nobody is told that $part is missing: $(cat "$tmp/said")"; exit 1; }
done
! tr -d '\n ' <"$tmp/said" | grep -q "HEX_SDK_INC;" || { echo "what is there is called missing"; exit 1; }
