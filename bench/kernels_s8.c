/* bench/kernels_s8.c - speed of the int8 product on the linears of Qwen2.5 0.5B and 1.5B, one thread, beside
 * the measured peak of the integer unit, the memory bandwidth and, where it is installed, oneDNN with its own
 * pre-packed weights.
 *
 *   bench_kernels_s8 [--json] [--m 1,16,256] [--isa NAME] [--quick] [--threads N]
 *
 * Every run of a shape walks over enough copies of the weights (> 64 MiB for M <= 32) that they come from
 * memory, as in decoding; for larger M over 8 copies. Ours and oneDNN's runs alternate; figures are medians.
 * With --threads N the shape's columns are split over N threads, peak and bandwidth being measured on N
 * threads too. Give oneDNN the same number (OMP_NUM_THREADS=N), and OMP_WAIT_POLICY=passive so that its idle
 * threads do not spin on our cores; one thread: taskset -c 1. */
#include "must_alloc.h"
#include "base/clock.h"
#include "base/cpu.h"
#include "base/ctx.h"
#include "base/order.h"
#include "base/rng.h"
#include "kernels/gemm_s8.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef TN_HAVE_DNNL
#include <dnnl.h>
#endif

enum { MAX_THREADS = 16, MAX_COPIES = 512 };

typedef struct team {
    int n_threads;
    void (*fn)(void *arg, int i_thread, int n_threads);
    void *arg;
} team;

typedef struct member {
    team *t;
    int i;
} member;

static void *run_member(void *p) {
    member *m = p;
    m->t->fn(m->t->arg, m->i, m->t->n_threads);
    return NULL;
}

static void team_run(team *t, void (*fn)(void *, int, int), void *arg) {
    pthread_t th[MAX_THREADS];
    member m[MAX_THREADS];
    t->fn = fn;
    t->arg = arg;
    for (int i = 1; i < t->n_threads; i++) {
        m[i] = (member){t, i};
        if (pthread_create(&th[i], NULL, run_member, &m[i])) abort();
    }
    fn(arg, 0, t->n_threads);
    for (int i = 1; i < t->n_threads; i++) pthread_join(th[i], NULL);
}

static double median(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, tn_by_double);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

/* --- the machine's limits -------------------------------------------------------------------------- */

enum { PEAK_ITERATIONS = 2000000 };

#if defined(__x86_64__)
/* 24 independent accumulators, nothing but products: the compiler cannot spill what it does not own. */
#define DP512(i) "vpdpbusd %%zmm30, %%zmm31, %%zmm" #i "\n\t"
__attribute__((target("avx512f"))) static void peak_avx512vnni(void *arg, int i_thread, int n_threads) {
    (void)arg, (void)i_thread, (void)n_threads;
    long n = PEAK_ITERATIONS;
    __asm__ volatile("vpxord %%zmm30, %%zmm30, %%zmm30\n\tvpxord %%zmm31, %%zmm31, %%zmm31\n\t1:\n\t" DP512(0)
                         DP512(1) DP512(2) DP512(3) DP512(4) DP512(5) DP512(6) DP512(7) DP512(8) DP512(9)
                             DP512(10) DP512(11) DP512(12) DP512(13) DP512(14) DP512(15) DP512(16) DP512(17)
                                 DP512(18) DP512(19) DP512(20) DP512(21) DP512(22)
                                     DP512(23) "dec %0\n\tjnz 1b\n\tvzeroupper"
                     : "+r"(n)::"cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",
                       "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17",
                       "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm30", "xmm31");
}
#endif

/* Operations per second of the unrolled product loop; 0 where no such loop is written. */
static double measure_peak(team *t) {
#if defined(__x86_64__)
    if (tn_cpu_detect() & TN_CPU_AVX512VNNI) {
        double best = 0;
        for (int i = 0; i < 5; i++) {
            double t0 = tn_now_s();
            team_run(t, peak_avx512vnni, NULL);
            double ops = 24.0 * 128 * PEAK_ITERATIONS * t->n_threads / (tn_now_s() - t0);
            if (ops > best) best = ops;
        }
        return best;
    }
#endif
    (void)t;
    return 0;
}

typedef struct read_job {
    const uint64_t *p;
    size_t n;
    uint64_t sink[MAX_THREADS * 8];
} read_job;

#if defined(__x86_64__)
__attribute__((target_clones("default", "avx2", "avx512f")))
#endif
static void
read_all(void *arg, int i, int n) {
    read_job *j = arg;
    typedef uint64_t v8 __attribute__((vector_size(64)));
    const v8 *p = (const v8 *)j->p;
    size_t n_vec = j->n / 8, a = n_vec * (size_t)i / (size_t)n, b = n_vec * (size_t)(i + 1) / (size_t)n;
    v8 s[4] = {{0}};
    for (size_t k = a; k + 4 <= b; k += 4) {
        for (size_t l = 0; l < 4; l++) s[l] ^= p[k + l];
    }
    s[0] ^= s[1] ^ s[2] ^ s[3];
    j->sink[i * 8] = s[0][0] ^ s[0][3] ^ s[0][7];
}

static double measure_bandwidth(team *t, const void *p, size_t n_bytes) {
    read_job j = {.p = p, .n = n_bytes / 8};
    double v[7];
    for (int i = 0; i < 7; i++) {
        double t0 = tn_now_s();
        team_run(t, read_all, &j);
        v[i] = (double)n_bytes / (tn_now_s() - t0);
    }
    return median(v, 7);
}

/* --- ours -------------------------------------------------------------------------------------------- */

typedef struct variant {
    const char *name;
    uint32_t needs;
    tn_gemm_s8_fn gemm;
} variant;

static const variant variants[] = {
#if defined(__x86_64__)
    {"amxint8", TN_CPU_AMXINT8, tn_gemm_s8_amxint8},
    {"avx512vnni", TN_CPU_AVX512VNNI, tn_gemm_s8_avx512vnni},
    {"avxvnni", TN_CPU_AVXVNNI, tn_gemm_s8_avxvnni},
    {"avx2", TN_CPU_AVX2, tn_gemm_s8_avx2},
#elif defined(__aarch64__)
    {"i8mm", TN_CPU_I8MM, tn_gemm_s8_i8mm},
    {"dotprod", TN_CPU_DOTPROD, tn_gemm_s8_dotprod},
    {"neon", TN_CPU_NEON, tn_gemm_s8_neon},
#endif
    {"scalar", 0, tn_gemm_s8_ref},
};

typedef struct job {
    tn_gemm_s8_fn gemm;
    tn_gemm_s8_args g;
    const int8_t *weights; /* n_copies matrices one after another */
    size_t copy_bytes, n_copies;
} job;

static void run_job(void *arg, int i, int n) {
    const job *j = arg;
    tn_gemm_s8_args g = j->g;
    size_t n_tiles = (g.n + 15) / 16;
    g.n0 = n_tiles * (size_t)i / (size_t)n * 16;
    g.n1 = n_tiles * (size_t)(i + 1) / (size_t)n * 16;
    if (g.n1 > g.n) g.n1 = g.n;
    for (size_t c = 0; c < j->n_copies; c++) {
        g.tiles = j->weights + c * j->copy_bytes;
        j->gemm(&g);
    }
}

/* --- oneDNN ------------------------------------------------------------------------------------------ */

#ifdef TN_HAVE_DNNL
#define DNNL_OK(x)                                                                                           \
    do {                                                                                                     \
        if ((x) != dnnl_success) {                                                                           \
            fprintf(stderr, "oneDNN: %s failed\n", #x);                                                      \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

/* u8 x s8 -> f32 product with per-channel scale and bias, weights in the library's own layout (oneDNN 2). */
typedef struct dnnl_job {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_t prim;
    dnnl_memory_t src, dst, *weights, bias;
    size_t n_copies;
} dnnl_job;

static dnnl_memory_t dnnl_mem(dnnl_engine_t e, const dnnl_memory_desc_t *md, void *p) {
    dnnl_memory_t m;
    DNNL_OK(dnnl_memory_create(&m, md, e, p));
    return m;
}

static void dnnl_open(dnnl_job *d, const tn_gemm_s8_args *g, size_t n_copies) {
    dnnl_dims_t a_dims = {(int64_t)g->m, (int64_t)g->k}, w_dims = {(int64_t)g->k, (int64_t)g->n},
                o_dims = {(int64_t)g->m, (int64_t)g->n};
    dnnl_dims_t b_dims = {1, (int64_t)g->n};
    dnnl_memory_desc_t a, w, o, b;
    d->n_copies = n_copies;
    DNNL_OK(dnnl_engine_create(&d->engine, dnnl_cpu, 0));
    DNNL_OK(dnnl_stream_create(&d->stream, d->engine, dnnl_stream_default_flags));
    DNNL_OK(dnnl_memory_desc_init_by_tag(&a, 2, a_dims, dnnl_u8, dnnl_ab));
    DNNL_OK(dnnl_memory_desc_init_by_tag(&w, 2, w_dims, dnnl_s8, dnnl_format_tag_any));
    DNNL_OK(dnnl_memory_desc_init_by_tag(&o, 2, o_dims, dnnl_f32, dnnl_ab));
    DNNL_OK(dnnl_memory_desc_init_by_tag(&b, 2, b_dims, dnnl_f32, dnnl_ab));
    dnnl_primitive_attr_t attr;
    DNNL_OK(dnnl_primitive_attr_create(&attr));
    DNNL_OK(dnnl_primitive_attr_set_output_scales(attr, (int64_t)g->n, 1 << 1, g->scale));
    dnnl_matmul_desc_t md;
    DNNL_OK(dnnl_matmul_desc_init(&md, &a, &w, &b, &o));
    dnnl_primitive_desc_t pd;
    DNNL_OK(dnnl_primitive_desc_create(&pd, &md, attr, d->engine, NULL));
    DNNL_OK(dnnl_primitive_create(&d->prim, pd));
    const dnnl_memory_desc_t *w_native = dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0);
    d->weights = malloc(n_copies * sizeof *d->weights);
    if (!d->weights) abort();
    for (size_t c = 0; c < n_copies; c++) {
        d->weights[c] = dnnl_mem(d->engine, w_native, DNNL_MEMORY_ALLOCATE);
        void *p;
        DNNL_OK(dnnl_memory_get_data_handle(d->weights[c], &p));
        memset(p, (int)(c % 100) + 1, dnnl_memory_desc_get_size(w_native));
    }
    d->src = dnnl_mem(d->engine, &a, (void *)(uintptr_t)g->a);
    d->dst = dnnl_mem(d->engine, &o, g->out_f32);
    d->bias = dnnl_mem(d->engine, &b, (void *)(uintptr_t)g->bias);
    dnnl_primitive_attr_destroy(attr);
    dnnl_primitive_desc_destroy(pd);
}

static void dnnl_run(dnnl_job *d) {
    for (size_t c = 0; c < d->n_copies; c++) {
        dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, d->src},
                                  {DNNL_ARG_WEIGHTS, d->weights[c]},
                                  {DNNL_ARG_BIAS, d->bias},
                                  {DNNL_ARG_DST, d->dst}};
        DNNL_OK(dnnl_primitive_execute(d->prim, d->stream, sizeof args / sizeof args[0], args));
    }
    DNNL_OK(dnnl_stream_wait(d->stream));
}

static void dnnl_close(dnnl_job *d) {
    for (size_t c = 0; c < d->n_copies; c++) dnnl_memory_destroy(d->weights[c]);
    free(d->weights);
    dnnl_memory_destroy(d->src);
    dnnl_memory_destroy(d->dst);
    dnnl_memory_destroy(d->bias);
    dnnl_primitive_destroy(d->prim);
    dnnl_stream_destroy(d->stream);
    dnnl_engine_destroy(d->engine);
}
#endif

/* --- the table --------------------------------------------------------------------------------------- */

static const struct {
    const char *model;
    size_t k, n;
} shapes[] = {
    {"0.5B", 896, 896},   {"0.5B", 896, 128},  {"0.5B", 896, 4864},  {"0.5B", 4864, 896},
    {"1.5B", 1536, 1536}, {"1.5B", 1536, 256}, {"1.5B", 1536, 8960}, {"1.5B", 8960, 1536},
};

int main(int argc, char **argv) {
    int json = 0, quick = 0, n_m = 0, first = 1;
    size_t ms[32];
    team team = {.n_threads = 1};
    const variant *v = NULL;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--json")) json = 1;
        else if (!strcmp(argv[i], "--quick")) quick = 1;
        else if (!strcmp(argv[i], "--threads") && i + 1 < argc) team.n_threads = atoi(argv[++i]);
        else if (!strcmp(argv[i], "--m") && i + 1 < argc) {
            for (char *p = argv[++i]; *p && n_m < 32; p += *p == ',') ms[n_m++] = strtoull(p, &p, 10);
        } else if (!strcmp(argv[i], "--isa") && i + 1 < argc) {
            i++;
            for (size_t j = 0; j < sizeof variants / sizeof variants[0]; j++) {
                if (!strcmp(argv[i], variants[j].name)) v = &variants[j];
            }
            if (!v || (tn_cpu_detect() & v->needs) != v->needs) {
                fprintf(stderr, "no such variant here: %s\n", argv[i]);
                return 1;
            }
        } else {
            fprintf(stderr, "usage: %s [--json] [--quick] [--threads N] [--m 1,16,256] [--isa NAME]\n",
                    argv[0]);
            return 1;
        }
    }
    if (team.n_threads < 1 || team.n_threads > MAX_THREADS) team.n_threads = 1;
    for (size_t j = 0; !v; j++) {
        if ((tn_cpu_flags(NULL) & variants[j].needs) == variants[j].needs) v = &variants[j];
    }
    if (!n_m) {
        static const size_t all[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) ms[n_m++] = all[i];
    }

    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    enum { MAX_K = 8960, MAX_N = 8960, MAX_M = 1024 };
    const size_t pool_bytes = (size_t)160 << 20;
    int8_t *pool = must_alloc(&ctx, pool_bytes);
    uint8_t *a = must_alloc(&ctx, (size_t)MAX_M * MAX_K);
    float *out = must_alloc(&ctx, (size_t)MAX_M * MAX_N * sizeof(float));
    float *scale = must_alloc(&ctx, MAX_N * sizeof(float)), *bias = must_alloc(&ctx, MAX_N * sizeof(float));
    int32_t *sum = must_alloc(&ctx, MAX_N * sizeof(int32_t));
    tn_rng r = {1};
    for (size_t i = 0; i < pool_bytes; i++) pool[i] = (int8_t)((int)(tn_rng_u64(&r) >> 57) - 64);
    for (size_t i = 0; i < (size_t)MAX_M * MAX_K; i++) a[i] = (uint8_t)(tn_rng_u64(&r) >> 56);
    for (size_t i = 0; i < MAX_N; i++) scale[i] = 1e-4f, bias[i] = 1;

    double peak = measure_peak(&team), bandwidth = measure_bandwidth(&team, pool, pool_bytes);
    if (json) {
        printf("{\"isa\":\"%s\",\"threads\":%d,\"peak_gops\":%.1f,\"read_gb_s\":%.2f,\"rows\":[", v->name,
               team.n_threads, peak * 1e-9, bandwidth * 1e-9);
    } else {
        printf("%s, %d thread(s); peak %.0f GOPS (unrolled vpdpbusd), read %.1f GB/s\n", v->name,
               team.n_threads, peak * 1e-9, bandwidth * 1e-9);
        printf("%-5s %5s %6s %6s %9s %7s %7s %7s", "model", "M", "K", "N", "us", "GOPS", "% peak", "% limit");
        printf("  weights GB/s  oneDNN us  ratio (oneDNN time / ours)\n");
    }
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        for (int im = 0; im < n_m; im++) {
            size_t m = ms[im], k = shapes[s].k, n = shapes[s].n, bytes = tn_tiles_s8_bytes(n, k);
            if (m < 1 || m > MAX_M) continue;
            job j = {.gemm = v->gemm, .weights = pool, .copy_bytes = bytes};
            j.n_copies = m <= 32 ? ((size_t)96 << 20) / bytes : 8;
            if (j.n_copies > MAX_COPIES) j.n_copies = MAX_COPIES;
            double work = 2.0 * (double)m * (double)k * (double)n;
            j.g = (tn_gemm_s8_args){.a = a,
                                    .lda = k,
                                    .col_sum = sum,
                                    .m = m,
                                    .n = n,
                                    .k = k,
                                    .out_f32 = out,
                                    .ldo = n,
                                    .scale = scale,
                                    .bias = bias};
            enum { MAX_RUNS = 21 };
            double ours[MAX_RUNS];
            int n_runs = 0;
            double spent = 0, budget = quick ? 0.05 : 0.25;
#ifdef TN_HAVE_DNNL
            double theirs[MAX_RUNS];
            dnnl_job d;
            dnnl_open(&d, &j.g, j.n_copies);
            dnnl_run(&d);
#endif
            team_run(&team, run_job, &j);
            while (n_runs < MAX_RUNS && (n_runs < 3 || spent < budget)) {
                double t0 = tn_now_s();
                team_run(&team, run_job, &j);
                double t1 = tn_now_s();
                ours[n_runs] = (t1 - t0) / (double)j.n_copies;
#ifdef TN_HAVE_DNNL
                dnnl_run(&d);
                theirs[n_runs] = (tn_now_s() - t1) / (double)j.n_copies;
#endif
                spent += tn_now_s() - t0;
                n_runs++;
            }
            double t = median(ours, n_runs), t_dnnl = 0;
#ifdef TN_HAVE_DNNL
            dnnl_close(&d);
            t_dnnl = median(theirs, n_runs);
#endif
            /* The least possible time: the products at peak, or the weights from memory (once, where they
             * cannot stay cached). */
            double limit = peak > 0 ? work / peak : 0;
            if (m <= 32 && (double)bytes / bandwidth > limit) limit = (double)bytes / bandwidth;
            double of_peak = peak > 0 ? 100 * work / t / peak : 0;
            if (json) {
                printf("%s{\"model\":\"%s\",\"m\":%zu,\"k\":%zu,\"n\":%zu,\"us\":%.2f,\"gops\":%.1f,"
                       "\"percent_of_peak\":%.1f,"
                       "\"percent_of_limit\":%.1f,\"weights_gb_s\":%.2f,\"onednn_us\":%.2f}",
                       first ? "" : ",", shapes[s].model, m, k, n, t * 1e6, work / t * 1e-9, of_peak,
                       100 * limit / t, (double)bytes / t * 1e-9, t_dnnl * 1e6);
            } else {
                printf("%-5s %5zu %6zu %6zu %9.1f %7.0f %7.1f %7.1f  %12.1f", shapes[s].model, m, k, n,
                       t * 1e6, work / t * 1e-9, of_peak, 100 * limit / t, (double)bytes / t * 1e-9);
                if (t_dnnl > 0) printf("  %9.1f  %5.2f", t_dnnl * 1e6, t_dnnl / t);
                printf("\n");
            }
            first = 0;
            fflush(stdout);
        }
    }
    if (json) printf("]}\n");
    tn_free(&ctx, pool);
    tn_free(&ctx, a);
    tn_free(&ctx, out);
    tn_free(&ctx, scale);
    tn_free(&ctx, bias);
    tn_free(&ctx, sum);
    return 0;
}
