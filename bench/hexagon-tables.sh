#!/usr/bin/env bash
# Packets that HVX executes for 128 weights of few bits: unpacked to INT8, and multiplied by one row, by tern's kernels, by arithmetic in a layout of whole
# vectors, and by look-up in tables (docs/record/beyond.md). qemu-hexagon counts (bench/arm/count.c): what two runs execute less what one does. Every
# form's result is compared with scalar code; a wrong one ends the script.
set -euo pipefail
cd "$(dirname "$0")/.."
for tool in clang-16 qemu-hexagon gcc; do command -v $tool >/dev/null || { echo "skipped: no $tool"; exit 77; }; done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
build() { # FORM BITS TIMES
    clang-16 --target=hexagon-unknown-linux-musl -mv67 -mhvx -mhvx-length=128b -O2 -G0 -ffreestanding -fno-pic -nostdlib -static -fuse-ld=lld \
        --ld-path=/usr/lib/llvm-16/bin/ld.lld -DFORM=$1 -DBITS=$2 -DTIMES=$3 -Isrc src/npu/hexagon/dsp/kernels.c bench/hexagon/tables.c -o "$work/program"
}
build SUMS 4 1
for version in 1 2 3 4 5; do # of the interface for plugins: as this QEMU has it
    gcc -O2 -fPIC -shared -DAPI_VERSION=$version bench/arm/count.c -o "$work/count.so"
    qemu-hexagon -plugin "$work/count.so" "$work/program" >/dev/null 2>"$work/log" && break
    [ $version != 5 ] || { echo "qemu-hexagon takes no plugin:" >&2; tail "$work/log" >&2; exit 1; }
done
row() { # title FORM BITS
    local n=()
    for times in 1 2; do
        build "$2" "$3" $times
        n+=("$(qemu-hexagon -plugin "$work/count.so" "$work/program" | tail -1)") || { echo "$1 of $3 bits is wrong" >&2; exit 1; }
    done
    awk -v t="$1" -v b="$3" -v n=$((n[1] - n[0])) 'BEGIN { printf "| %s | %s | %.2f |\n", t, b, n / 1536 }'
}
echo "| | bits | packets for 128 weights |"
echo "|---|---|---|"
for bits in 4 3; do
    row "unpacked, tern's stripes" UNPACK_TERN $bits
    row "unpacked, whole vectors, arithmetic" UNPACK_SHIFT $bits
    row "unpacked, whole vectors, tables" UNPACK_TABLE $bits
done
row "one row, INT8 tiles (tern)" DECODE_TILES 4
for bits in 4 2; do
    row "one row, packed, arithmetic and vrmpy" DECODE_SHIFT $bits
    row "one row, packed, tables and vrmpy" DECODE_TABLE $bits
    row "one row, tables of sums of activations" DECODE_SUMS $bits
done
row "making these sums, for each 128 weights of 128 channels" SUMS 4
