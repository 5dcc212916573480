/* bench/kv.c - decoding after long texts, by the form of keys and values.
 *
 *   bench_kv MODEL [DEPTH] [STEPS]      defaults 8192 and 16
 *
 * A session of every form is filled with values made up, because to read so long a text takes minutes and
 * decoding costs the same whatever it was. Then the sessions take STEPS steps by turns; figures are
 * medians. Without a model, one thread: attention of the query rows of a KV head over DEPTH positions, as
 * in decoding (7 rows, heads of 64) and in a block of a prompt (24 rows), by processor time. */
#include "base/clock.h"
#include "base/cpu.h"
#include "base/order.h"
#include "base/rng.h"
#include "session/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { MOST_STEPS = 256, HEADS = 24, ROUNDS = 7, D = 64 };

static double median(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, tn_by_double);
    return x[n / 2];
}

static double cpu_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static void must(tern_status st, const tern_error *err) {
    if (st == TERN_OK) return;
    fprintf(stderr, "bench_kv: %s\n", err->message);
    exit(1);
}

static void fill(const tn_kv *kv, int32_t n_layers, int32_t depth) {
    float k[512], v[512];
    tn_rng rng = {1};
    for (int32_t d = 0; d < kv->layers[0].d_head; d++) k[d] = v[d] = (float)(tn_rng_f64(&rng) - 0.5);
    for (int l = 0; l < n_layers; l++) {
        for (int h = 0; kv->index[l] >= 0 && h < kv->layers[0].n_kv_heads; h++) {
            for (int32_t p = 0; p < depth; p++) {
                k[p % kv->layers[0].d_head] = v[p % kv->layers[0].d_head] = (float)(tn_rng_f64(&rng) - 0.5);
                tn_kv_put(kv, l, h, p, k, v);
            }
        }
    }
}

static tern_session *behind(const char *path, tn_kv_type type, int32_t depth, int32_t steps,
                            tern_engine **e) {
    tern_error err = {0};
    tern_options *o;
    tern_session_options so;
    tern_session *s;
    tern_session_options_defaults(&so);
    so.n_ctx = depth + steps + 2;
    must(tern_options_new(&o, &err), &err);
    must(tern_options_set(o, "kv", tn_kv_type_name(type), &err), &err);
    must(tern_engine_open(path, o, e, &err), &err);
    tern_options_free(&o);
    must(tern_session_open(*e, &so, &s, &err), &err);
    fill(&s->state.kv, (*e)->model->h.n_layers, depth);
    for (int32_t p = 0; p < depth; p++) s->tokens[p] = p % 100;
    s->n_tok = s->state.n_tok = depth;
    must(tern_session_step(s, 1, &err), &err);
    return s;
}

static void decoding(const char *path, int32_t depth, int32_t steps) {
    tern_engine *e[TN_N_KV_TYPES];
    tern_session *s[TN_N_KV_TYPES];
    static double ms[TN_N_KV_TYPES][MOST_STEPS];
    tern_error err = {0};
    for (int t = 0; t < TN_N_KV_TYPES; t++) s[t] = behind(path, (tn_kv_type)t, depth, steps, &e[t]);
    for (int32_t i = 0; i < steps; i++) {
        for (int t = 0; t < TN_N_KV_TYPES; t++) {
            int64_t start = tn_now_ns();
            must(tern_session_step(s[t], i % 100, &err), &err);
            ms[t][i] = (double)(tn_now_ns() - start) * 1e-6;
        }
    }
    for (int t = 0; t < TN_N_KV_TYPES; t++) {
        double m = median(ms[t], steps);
        printf("%-5s behind %d tokens: %.1f ms a token, %.2f tokens/s; keys and values %.1f MiB\n",
               tn_kv_type_name((tn_kv_type)t), depth, m, 1e3 / m,
               (double)tn_state_bytes(&s[t]->state) / 1048576);
        tern_session_close(&s[t]);
        tern_engine_close(&e[t]);
    }
}

static void *room(size_t n) {
    void *p = aligned_alloc(64, (n + 63) / 64 * 64);
    if (!p) exit(1);
    return p;
}

static void kernel(const tn_kernels *kern, size_t rows, size_t depth) {
    float *q = room(rows * D * 4), *out = room(rows * D * 4),
          *scratch = room(tn_attn_f32_scratch(D, depth) * 4), x[D];
    int32_t *first = room(rows * 4), *end = room(rows * 4);
    tn_rng rng = {1};
    for (size_t i = 0; i < rows * D; i++) q[i] = (float)(tn_rng_f64(&rng) - 0.5);
    for (size_t i = 0; i < rows; i++) first[i] = 0, end[i] = (int32_t)depth;
    for (int t = 0; t < TN_N_KV_TYPES; t++) {
        size_t bytes = depth / TN_KV_PANEL * tn_kv_panel_bytes((tn_kv_type)t, D);
        uint8_t *k = room(HEADS * bytes), *v = room(HEADS * bytes);
        for (size_t p = 0; p < HEADS * depth; p++) {
            for (int d = 0; d < D; d++) x[d] = (float)(tn_rng_u64(&rng) % 1024) / 1024 - 0.5f;
            tn_kv_put_key((tn_kv_type)t, D, k, p, x);
            tn_kv_put_value((tn_kv_type)t, D, v, p, x);
        }
        double us[ROUNDS];
        for (int i = 0; i < ROUNDS; i++) {
            double start = cpu_us();
            for (size_t h = 0; h < HEADS; h++)
                kern->attn_f32(&(tn_attn_f32_args){.q = q,
                                                   .q_stride = D,
                                                   .out = out,
                                                   .out_stride = D,
                                                   .k_panels = k + h * bytes,
                                                   .v = v + h * bytes,
                                                   .kv = (tn_kv_type)t,
                                                   .n_rows = rows,
                                                   .d_head = D,
                                                   .scale = 0.125f,
                                                   .first_pos = first,
                                                   .end_pos = end,
                                                   .scratch = scratch});
            us[i] = (cpu_us() - start) / HEADS;
        }
        double m = median(us, ROUNDS);
        printf("%-5s %2zu rows of %d, %zu positions: %.0f us, %.1f GB/s, %.1f G multiply-adds/s\n",
               tn_kv_type_name((tn_kv_type)t), rows, D, depth, m, 2 * (double)bytes / m * 1e-3,
               2 * (double)(rows * D * depth) / m * 1e-3);
        free(k);
        free(v);
    }
    free(q);
    free(out);
    free(scratch);
    free(first);
    free(end);
}

int main(int argc, char **argv) {
    int32_t depth = argc > 2 ? atoi(argv[2]) : 8192, steps = argc > 3 ? atoi(argv[3]) : 16;
    if (depth < TN_KV_PANEL || steps < 1 || steps > MOST_STEPS) {
        fprintf(stderr, "usage: bench_kv [MODEL [DEPTH [STEPS]]]\n");
        return 2;
    }
    if (argc > 1) {
        decoding(argv[1], depth, steps);
        return 0;
    }
    tn_kernels kern;
    tn_kernels_init(&kern, tn_cpu_flags(NULL));
    kernel(&kern, 7, (size_t)depth);
    kernel(&kern, 24, 2048);
    return 0;
}
