/* Sparse attention without the rest of tern: the attention of one layer over a random text, in full and
 * sparsely. cc shadow.c $(pkg-config --cflags --libs tern) -lm && ./a.out [tokens] */
#include <tern_shadow.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { HEADS = 14, KV_HEADS = 2, D = 64, CHUNK = 256 };

static float noise(void) { return (float)(rand() + (double)rand() + rand()) / (float)RAND_MAX - 1.5f; }

static double run(float ratio, int n, const float *q, const float *k, const float *v, float *out) {
    tern_error err;
    tern_shadow_options o;
    tern_shadow *s;
    tern_shadow_options_defaults(&o);
    o.n_heads = HEADS;
    o.n_kv_heads = KV_HEADS;
    o.d_head = D;
    o.max_tokens = n;
    o.ratio = ratio;
    if (tern_shadow_open(&o, &s, &err)) {
        fprintf(stderr, "%s\n", err.message);
        exit(1);
    }
    clock_t t0 = clock();
    for (int i = 0, m; i < n; i += m) {
        m = n - i < CHUNK ? n - i : CHUNK;
        size_t at = (size_t)i * KV_HEADS * D, row = (size_t)i * HEADS * D;
        if (tern_shadow_append(s, k + at, v + at, m, &err) ||
            tern_shadow_attend(s, q + row, m, out + row, &err)) {
            fprintf(stderr, "%s\n", err.message);
            exit(1);
        }
    }
    double ms = (double)(clock() - t0) * 1e3 / CLOCKS_PER_SEC;
    printf("ratio %.2f: %.0f ms, %.1f %% of the positions\n", (double)ratio, ms,
           100 * tern_shadow_selected(s));
    tern_shadow_close(&s);
    return ms;
}

int main(int argc, char **argv) {
    int n = argc > 1 ? atoi(argv[1]) : 2048;
    if (n < 1) return 2;
    size_t nq = (size_t)n * HEADS * D, nk = (size_t)n * KV_HEADS * D;
    float *q = malloc(nq * 4), *k = malloc(nk * 4), *v = malloc(nk * 4), *full = malloc(nq * 4),
          *sparse = malloc(nq * 4);
    if (!q || !k || !v || !full || !sparse) return 1;
    for (size_t i = 0; i < nk; i++) k[i] = noise(), v[i] = noise();
    for (size_t i = 0; i < nq; i++) { /* every query looks for some key before it */
        size_t row = i / (HEADS * D), head = i / D % HEADS, pos = row * (head + 1) / (HEADS + 1);
        q[i] = 8 * k[(pos * KV_HEADS + head / (HEADS / KV_HEADS)) * D + i % D] + noise();
    }
    double t = run(1, n, q, k, v, full) / run(0.2f, n, q, k, v, sparse), error = 0, size = 0;
    for (size_t i = 0; i < nq; i++) error += pow(full[i] - sparse[i], 2), size += pow(full[i], 2);
    printf("%.2f times as fast; relative difference %.3f\n", t, sqrt(error / size));
    free(q), free(k), free(v), free(full), free(sparse);
    return 0;
}
