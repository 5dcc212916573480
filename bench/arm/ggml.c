/* One product of llama.cpp's Arm kernels, so often as the third argument says, for bench/arm-counts.sh: 256
 * outputs, as many inputs as the fourth says. Rows are quantised beforehand, as all here are. What the bytes are does not matter to
 * a count. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 256, Q8_0 = 34 /* bytes of a block */ };

typedef void repacked(int n, float *s, size_t bs, const void *vx, const void *vy, int nr, int nc);
repacked ggml_gemv_q4_0_4x4_q8_0, ggml_gemm_q4_0_4x4_q8_0, ggml_gemv_q4_0_4x8_q8_0, ggml_gemm_q4_0_4x8_q8_0;
void ggml_vec_dot_q8_0_q8_0(int n, float *s, size_t bs, const void *vx, size_t bx, const void *vy, size_t by,
                            int nrc);

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    int m = atoi(argv[2]), times = atoi(argv[3]), k = atoi(argv[4]), blocks = k / 32;
    char *w = calloc((size_t)N * (size_t)blocks, Q8_0), *a = calloc((size_t)(m * blocks), Q8_0);
    float *y = calloc((size_t)m * N, sizeof *y);
    int wide = !strcmp(argv[1], "q4_0_4x8");
    for (int t = 0; t < times; t++) {
        if (!strcmp(argv[1], "q8_0")) {
            for (int i = 0; i < m; i++)
                for (int j = 0; j < N; j++)
                    ggml_vec_dot_q8_0_q8_0(k, y + i * N + j, 0, w + (size_t)(j * blocks) * Q8_0, 0,
                                           a + (size_t)(i * blocks) * Q8_0, 0, 1);
        } else if (m == 1) {
            (wide ? ggml_gemv_q4_0_4x8_q8_0 : ggml_gemv_q4_0_4x4_q8_0)(k, y, N, w, a, 1, N);
        } else {
            (wide ? ggml_gemm_q4_0_4x8_q8_0 : ggml_gemm_q4_0_4x4_q8_0)(k, y, N, w, a, m, N);
        }
    }
    return 0;
}
