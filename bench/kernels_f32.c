/* bench/kernels_f32.c - speed of the float kernels on one thread beside what the machine can do
 * (kernels/limits.h).
 *
 *   bench_kernels_f32 [--json] [--isa WORD] [--only gemm|attn|elem] [--quick]
 *
 * gemm: linears of Qwen2.5 0.5B and 1.5B. For M <= 8 the weights come from memory, as in decoding (a run
 * walks over more copies than the cache holds), and the limit is the measured read bandwidth or, if lower,
 * what the fma units can use up; above it is the fp32 peak. attn: query rows at the end of a context, causal;
 * 2 * d_head multiply-adds per row and position seen. elem: values per second, without a limit. Figures are
 * medians of 7 runs. */
#include "base/clock.h"
#include "base/cpu.h"
#include "base/ctx.h"
#include "base/order.h"
#include "base/rng.h"
#include "kernels/kernels.h"
#include "kernels/limits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RUNS = 7, LINE_N = 4096 };
static const double run_s = 0.02;
static const size_t cold_bytes = (size_t)256 << 20;

typedef struct bench {
    tn_ctx ctx;
    tn_kernels k;
    double peak, bandwidth;
    int json, quick, n_lines;
    tn_rng rng;
} bench;

static float *floats(bench *b, size_t n) {
    float *x = tn_alloc(&b->ctx, TN_MEM_OTHER, n, sizeof *x);
    if (!x) exit(1);
    for (size_t i = 0; i < n; i++) x[i] = (float)(tn_rng_f64(&b->rng) * 2 - 1);
    return x;
}

/* Median seconds of one call of fn(arg, i_call). */
static double median_s(void (*fn)(void *arg, size_t i_call), void *arg) {
    double t[RUNS];
    size_t i_call = 0;
    fn(arg, i_call++);
    for (int r = 0; r < RUNS; r++) {
        double t0 = tn_now_s(), t1;
        size_t n = 0;
        do {
            fn(arg, i_call++);
            n++;
            t1 = tn_now_s();
        } while (t1 - t0 < run_s);
        t[r] = (t1 - t0) / (double)n;
    }
    qsort(t, RUNS, sizeof *t, tn_by_double);
    return t[RUNS / 2];
}

/* rate and limit in the same unit; limit 0 = none */
static void report(bench *b, const char *name, double rate, double limit, const char *unit) {
    if (b->json) {
        printf("%s\n  {\"name\": \"%s\", \"rate\": %.3f, \"unit\": \"%s\"", b->n_lines++ ? "," : "", name,
               rate, unit);
        if (limit > 0) printf(", \"limit\": %.3f, \"fraction\": %.4f", limit, rate / limit);
        printf("}");
    } else if (limit > 0) {
        printf("%-44s %9.2f %-8s %6.1f %%\n", name, rate, unit, 100 * rate / limit);
    } else {
        printf("%-44s %9.2f %-8s\n", name, rate, unit);
    }
    fflush(stdout);
}

typedef struct gemm_run {
    tn_gemm_f32_fn fn;
    const float *a;
    const uint8_t *panels;
    float *out;
    size_t m, n, k, copy_bytes, n_copies;
} gemm_run;

static void run_gemm(void *arg, size_t i_call) {
    gemm_run *g = arg;
    g->fn(g->a, g->k, g->panels + i_call % g->n_copies * g->copy_bytes, NULL, g->out, g->n, g->m, 0, g->n,
          g->k);
}

static void bench_gemm(bench *b) {
    static const char *const names[] = {"f32", "f16", "bf16"};
    static const size_t shapes[][2] = {{896, 896},   {4864, 896},  {896, 4864},
                                       {1536, 1536}, {8960, 1536}, {1536, 8960}};
    static const size_t ms[] = {1, 2, 4, 8, 16, 64, 256};
    uint8_t *panels = (uint8_t *)floats(b, cold_bytes / 4);
    for (int dtype = 0; dtype < TN_PANEL_N_DTYPES; dtype++) {
        if (dtype) { /* halves whose values are ordinary numbers in both narrow formats */
            for (size_t i = 0; i < cold_bytes / 2; i++)
                ((uint16_t *)panels)[i] = (uint16_t)(0x3000 + tn_rng_below(&b->rng, 0x800));
        }
        for (size_t s = 0; s < (b->quick ? 3 : 6); s++) {
            size_t n = shapes[s][0], k = shapes[s][1], bytes = tn_panels_bytes((tn_panel_dtype)dtype, n, k);
            float *a = floats(b, 256 * k), *out = floats(b, 256 * n);
            for (size_t i = 0; i < sizeof ms / sizeof *ms; i++) {
                size_t m = ms[i];
                gemm_run g = {b->k.gemm_f32[dtype],           a, panels, out, m, n, k, bytes,
                              m <= 8 ? cold_bytes / bytes : 1};
                double t = median_s(run_gemm, &g);
                char name[96];
                snprintf(name, sizeof name, "gemm_%s m=%zu n=%zu k=%zu", names[dtype], m, n, k);
                double flops = 2.0 * (double)(m * n * k),
                       fed = b->peak / flops * (double)bytes; /* bytes/s the fma units can use up */
                if (m <= 8)
                    report(b, name, (double)bytes / t * 1e-9,
                           (fed < b->bandwidth ? fed : b->bandwidth) * 1e-9, "GB/s");
                else report(b, name, flops / t * 1e-9, b->peak * 1e-9, "GFLOPS");
            }
            tn_free(&b->ctx, a);
            tn_free(&b->ctx, out);
        }
    }
    tn_free(&b->ctx, panels);
}

typedef struct attn_run {
    tn_attn_f32_fn fn;
    tn_attn_f32_args args;
} attn_run;

static void run_attn(void *arg, size_t i_call) {
    (void)i_call;
    attn_run *r = arg;
    r->fn(&r->args);
}

static void bench_attn(bench *b) {
    static const size_t ds[] = {64, 128}, ns[] = {512, 1024, 2048, 4096}, rows[] = {1, 7, 64, 256};
    for (size_t i = 0; i < 2; i++) {
        for (size_t j = 0; j < 4; j++) {
            size_t d = ds[i], n = ns[j];
            float *k = floats(b, n * d), *v = floats(b, n * d), *q = floats(b, 256 * d),
                  *out = floats(b, 256 * d);
            float *scratch = floats(b, tn_attn_f32_scratch(d, n));
            for (size_t r = 0; r < 4; r++) {
                int32_t first[256] = {0}, end[256];
                double seen = 0;
                for (size_t x = 0; x < rows[r]; x++) {
                    end[x] = (int32_t)(n - rows[r] + x + 1);
                    seen += end[x];
                }
                attn_run run = {b->k.attn_f32,
                                {.q = q,
                                 .q_stride = d,
                                 .out = out,
                                 .out_stride = d,
                                 .k_panels = k,
                                 .v = v,
                                 .n_rows = rows[r],
                                 .d_head = d,
                                 .scale = 0.125f,
                                 .first_pos = first,
                                 .end_pos = end,
                                 .scratch = scratch}};
                double t = median_s(run_attn, &run);
                char name[96];
                snprintf(name, sizeof name, "attn_f32 d=%zu positions=%zu rows=%zu", d, n, rows[r]);
                report(b, name, 4.0 * (double)d * seen / t * 1e-9, b->peak * 1e-9, "GFLOPS");
            }
            tn_free(&b->ctx, k);
            tn_free(&b->ctx, v);
            tn_free(&b->ctx, q);
            tn_free(&b->ctx, out);
            tn_free(&b->ctx, scratch);
        }
    }
}

typedef struct elem_run {
    const tn_kernels *k;
    int op;
    float *x, *y, *out;
} elem_run;

static const char *const elem_names[] = {"rmsnorm",       "layernorm",    "rope",      "glu silu",
                                         "glu gelu_tanh", "glu gelu_erf", "glu relu2", "add"};

static void run_elem(void *arg, size_t i_call) {
    (void)i_call;
    elem_run *e = arg;
    switch (e->op) {
    case 0: e->k->rmsnorm_f32(e->x, e->y, 1e-6f, e->out, LINE_N); break;
    case 1: e->k->layernorm_f32(e->x, e->y, e->y, 1e-6f, e->out, LINE_N); break;
    case 2: e->k->rope_f32(e->out, e->y, LINE_N); break;
    case 3: e->k->glu_f32(TN_ACT_SILU, e->x, e->y, e->out, LINE_N); break;
    case 4: e->k->glu_f32(TN_ACT_GELU_TANH, e->x, e->y, e->out, LINE_N); break;
    case 5: e->k->glu_f32(TN_ACT_GELU_ERF, e->x, e->y, e->out, LINE_N); break;
    case 6: e->k->glu_f32(TN_ACT_RELU2, e->x, e->y, e->out, LINE_N); break;
    case 7: e->k->add_f32(e->out, e->y, 1e-3f, LINE_N); break;
    }
}

static void bench_elem(bench *b) {
    elem_run e = {&b->k, 0, floats(b, LINE_N), floats(b, LINE_N), floats(b, LINE_N)};
    for (; e.op < 8; e.op++) {
        double t = median_s(run_elem, &e);
        report(b, elem_names[e.op], LINE_N / t * 1e-9, 0, "Gvalue/s");
    }
    tn_free(&b->ctx, e.x);
    tn_free(&b->ctx, e.y);
    tn_free(&b->ctx, e.out);
}

int main(int argc, char **argv) {
    static bench b = {.rng = {1}};
    uint32_t cpu = tn_cpu_flags(NULL);
    const char *only = "";
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--json")) b.json = 1;
        else if (!strcmp(argv[i], "--quick")) b.quick = 1;
        else if (!strcmp(argv[i], "--only") && i + 1 < argc) only = argv[++i];
        else if (!strcmp(argv[i], "--isa") && i + 1 < argc) cpu = tn_cpu_limit(argv[++i], tn_cpu_detect());
        else cpu = UINT32_MAX;
        if (cpu == UINT32_MAX) {
            fprintf(stderr,
                    "usage: bench_kernels_f32 [--json] [--isa WORD] [--only gemm|attn|elem] [--quick]\n");
            return 2;
        }
    }
    tn_ctx_init(&b.ctx, NULL);
    tn_kernels_init(&b.k, cpu);
    tn_pool *pool = NULL;
    tn_limits limits;
    tern_error err;
    if (tn_pool_open(&b.ctx, 1, &pool, &err) != TERN_OK ||
        tn_limits_measure(&b.ctx, pool, cpu, &limits, &err) != TERN_OK) {
        fprintf(stderr, "bench_kernels_f32: %s\n", err.message);
        return 1;
    }
    b.peak = limits.thread_fp32_flops;
    b.bandwidth = limits.thread_read_bytes_per_s;
    tn_pool_close(&pool);
    if (b.json) printf("[");
    report(&b, "limit fp32", b.peak * 1e-9, 0, "GFLOPS");
    report(&b, "limit memory read", b.bandwidth * 1e-9, 0, "GB/s");
    if (!*only || !strcmp(only, "gemm")) bench_gemm(&b);
    if (!*only || !strcmp(only, "attn")) bench_attn(&b);
    if (!*only || !strcmp(only, "elem")) bench_elem(&b);
    if (b.json) printf("\n]\n");
    return 0;
}
