/* One product of KleidiAI's Arm kernels (INT8 rows, INT4 channels), so often as the third argument says, for
 * bench/arm-counts.sh: 512 inputs, 256 outputs. Rows are quantised beforehand, as all here are. What the bytes
 * are does not matter to a count. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 256 };

typedef void product(size_t m, size_t n, size_t k, const void *lhs, const void *rhs, float *out, size_t row,
                     size_t column, float least, float most);
product kai_run_matmul_clamp_f32_qai8dxp1x8_qsi4cxp8x8_1x8x32_neon_dotprod,
    kai_run_matmul_clamp_f32_qai8dxp4x4_qsi4cxp8x4_8x8x32_neon_dotprod,
    kai_run_matmul_clamp_f32_qai8dxp4x8_qsi4cxp8x8_8x8x32_neon_i8mm;

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    size_t m = (size_t)atoi(argv[2]), k = (size_t)atoi(argv[4]);
    int times = atoi(argv[3]);
    char *lhs = calloc(m + 8, k + 64), *rhs = calloc(N, k + 64);
    float *out = calloc(m * N, sizeof *out);
    product *f = m == 1 ? kai_run_matmul_clamp_f32_qai8dxp1x8_qsi4cxp8x8_1x8x32_neon_dotprod
                 : !strcmp(argv[1], "dotprod")
                     ? kai_run_matmul_clamp_f32_qai8dxp4x4_qsi4cxp8x4_8x8x32_neon_dotprod
                     : kai_run_matmul_clamp_f32_qai8dxp4x8_qsi4cxp8x8_8x8x32_neon_i8mm;
    for (int t = 0; t < times; t++) f(m, N, k, lhs, rhs, out, N * sizeof *out, sizeof *out, -1e30f, 1e30f);
    return 0;
}
