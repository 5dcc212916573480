#!/usr/bin/env bash
# Instructions of one product on Arm (256 outputs; INPUTS inputs, 512 where it is not set), tern's kernels beside llama.cpp's and KleidiAI's, all counted the same way:
# every instruction that qemu-aarch64 executes for two products less those for one (bench/arm/count.c). Rows are quantised before and not counted. No times: an
# instruction of one kernel may take longer than one of another.
#
#   scripts/aarch64.sh; bench/arm-counts.sh [LLAMA_BUILD [KLEIDIAI]]
#
# LLAMA_BUILD: a build folder of llama.cpp for AArch64 with static libraries, -DGGML_CPU_ARM_ARCH=armv8.6-a+dotprod+i8mm and without OpenMP;
# KLEIDIAI: its sources.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${BUILD_AARCH64:-build-aarch64}
llama=${1:-} kai=${2:-} inputs=${INPUTS:-512}
for tool in qemu-aarch64 aarch64-linux-gnu-gcc; do command -v $tool >/dev/null || { echo "needs $tool (scripts/setup.sh --aarch64)" >&2; exit 1; }; done
[ -f "$build/libtern_static.a" ] || { echo "$build has no library: run scripts/aarch64.sh" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
arm_gcc="aarch64-linux-gnu-gcc -O2 -static"
$arm_gcc -Isrc -Iinclude bench/arm/tern.c "$build/libtern_static.a" -lpthread -lm -o "$work/tern" 2>"$work/log" || { tail "$work/log" >&2; exit 1; }
[ -z "$llama" ] || aarch64-linux-gnu-gcc -O2 -c bench/arm/ggml.c -o "$work/ggml.o"
[ -z "$llama" ] || aarch64-linux-gnu-g++ -static "$work/ggml.o" -Wl,--start-group $(find "$llama" -name 'libggml*.a') -Wl,--end-group -lpthread -ldl -o "$work/ggml" 2>"$work/log" || { tail "$work/log" >&2; exit 1; }
[ -z "$kai" ] || $arm_gcc -march=armv8.6-a+dotprod+i8mm -I"$kai" bench/arm/kleidiai.c \
    "$kai"/kai/ukernels/matmul/matmul_clamp_f32_qai8dxp_qsi4cxp/kai_matmul_clamp_f32_{qai8dxp1x8_qsi4cxp8x8_1x8x32_neon_dotprod,qai8dxp4x4_qsi4cxp8x4_8x8x32_neon_dotprod,qai8dxp4x8_qsi4cxp8x8_8x8x32_neon_i8mm}.c "$kai"/kai/ukernels/matmul/matmul_clamp_f32_qai8dxp_qsi4cxp/kai_matmul_clamp_f32_qai8dxp4x8_qsi4cxp8x8_8x8x32_neon_i8mm_asm.S \
    -o "$work/kleidiai" 2>"$work/log" || { tail "$work/log" >&2; exit 1; }

for version in 1 2 3 4 5; do # of the interface for plugins: as this QEMU has it
    gcc -O2 -fPIC -shared -DAPI_VERSION=$version bench/arm/count.c -o "$work/count.so"
    qemu-aarch64 -plugin "$work/count.so" "$work/tern" tiles 1 0 "$inputs" >/dev/null 2>"$work/log" && break
    [ $version != 5 ] || { echo "qemu-aarch64 takes no plugin:" >&2; tail "$work/log" >&2; exit 1; }
done
executed() { QEMU_CPU=$1 qemu-aarch64 -plugin "$work/count.so" "${@:2}" | tail -1; }
row() { # title, processor, program, kind
    [ -x "$work/$3" ] || return 0
    local m n line="| $1 |"
    for m in 1 2 4 16 32; do
        n=$(($(executed "$2" "$work/$3" "$4" $m 2 "$inputs") - $(executed "$2" "$work/$3" "$4" $m 1 "$inputs")))
        line+=" $(((n + 500) / 1000)) |"
    done
    echo "$line"
}
echo "thousands of instructions"
echo "| $inputs inputs, rows | 1 | 2 | 4 | 16 | 32 |"
echo "|---|---|---|---|---|---|"
row "tern, INT8 tiles, SDOT" cortex-a76 tern tiles
row "tern, INT8 tiles, SMMLA" max tern tiles
row "llama.cpp, Q8_0, SDOT" cortex-a76 ggml q8_0
row "tern, 5 bits packed, SDOT" cortex-a76 tern packed5
row "tern, 5 bits packed, SMMLA" max tern packed5
row "tern, 4 bits packed, SDOT" cortex-a76 tern packed4
row "tern, 4 bits packed, SMMLA" max tern packed4
row "tern, 2 to 6 bits packed, SDOT" cortex-a76 tern mixed
row "tern, 2 to 6 bits packed, SMMLA" max tern mixed
row "tern, Q4_0 blocks, SDOT" cortex-a76 tern blocks
row "tern, Q4_0 blocks, SMMLA" max tern blocks
row "llama.cpp, Q4_0 4x4, SDOT" cortex-a76 ggml q4_0_4x4
row "llama.cpp, Q4_0 4x8, SMMLA" max ggml q4_0_4x8
row "KleidiAI, INT4 channels, SDOT" cortex-a76 kleidiai dotprod
row "KleidiAI, INT4 channels, SMMLA" max kleidiai i8mm
