/* One suite for every backend: random graphs give the scalar backend's bits, and what breaks a rule is
 * refused. */
#include "base/cpu.h"
#include "base/rng.h"
#include "kernels/kernels.h"
#include "npu/npu.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fixture/scarce.h"
#include "fixture/fixture.h"

static uint64_t seed_of(void) {
    const char *s = getenv("TERN_SEED");
    return s ? strtoull(s, NULL, 0) : 20240817;
}

static int32_t range(tn_rng *r, int32_t lo, int32_t hi) {
    return lo + (int32_t)tn_rng_below(r, (uint64_t)(hi - lo + 1));
}

/* Sizes straddle the edges of tiles and register blocks. */
static int32_t size(tn_rng *r, int32_t most) {
    static const int32_t edges[] = {1,  2,  3,  4,  5,  15, 16, 17,  31,  32,
                                    33, 47, 48, 63, 64, 65, 80, 127, 128, 129};
    int32_t n =
        tn_rng_below(r, 2) ? edges[tn_rng_below(r, sizeof edges / sizeof edges[0])] : range(r, 1, most);
    return n < most ? n : most;
}

static void *grab(size_t n) {
    void *p = NULL;
    assert_int_equal(posix_memalign(&p, 64, n ? (n + 63) / 64 * 64 : 64), 0);
    return p;
}

/* ---- one random case: a description and its data, in no device's layout ------------------------------ */

typedef struct sample {
    tn_npu_graph_desc desc;
    int32_t n_rows, n_pos[TN_NPU_MAX_OPS];
    int8_t *w[TN_NPU_MAX_OPS]; /* [n][k], or K */
    float *scale[TN_NPU_MAX_OPS], *bias[TN_NPU_MAX_OPS];
    uint8_t *in[TN_NPU_MAX_OPS];
    uint8_t *want[TN_NPU_MAX_OPS];
} sample;

static const float scales[] = {1.0f, 0.03f, 1e-4f, 7.3e-3f, 2.0f, 1e-20f};
static float a_scale(tn_rng *r) { return scales[tn_rng_below(r, 6)] * (float)(0.5 + tn_rng_f64(r)); }

static size_t element(const tn_npu_op *op) {
    return op->out == TN_NPU_OUT_U8 || op->out == TN_NPU_OUT_S8 ? 1 : 4;
}
static size_t out_bytes(const sample *s, int i) {
    return (size_t)s->desc.m * (size_t)s->desc.ops[i].out_stride * element(&s->desc.ops[i]);
}

static void make_sample(sample *s, tn_rng *r, int32_t most) {
    memset(s, 0, sizeof *s);
    tn_npu_graph_desc *g = &s->desc;
    g->kind = tn_rng_below(r, 3) ? TN_NPU_LINEARS : TN_NPU_QK;
    g->m = size(r, most < 48 ? most : 48);
    g->k = size(r, most);
    g->n_ops = tn_rng_below(r, 2) ? 1 : range(r, 1, 4);
    g->in_stride = (g->k + 3) / 4 * 4 + range(r, 0, 9);
    g->rows_per_run = range(r, 1, g->m);
    s->n_rows = range(r, 1, g->m);
    bool extreme = !tn_rng_below(r, 4);
    for (int i = 0; i < g->n_ops; i++) {
        tn_npu_op *op = &g->ops[i];
        op->n = size(r, most);
        op->out = (tn_npu_out)tn_rng_below(r, TN_NPU_N_OUTS);
        op->act_scale = a_scale(r);
        if (g->kind == TN_NPU_QK) op->k_scale = a_scale(r);
        op->has_bias = g->kind == TN_NPU_LINEARS && tn_rng_below(r, 2);
        if (element(op) == 1) op->out_scale = a_scale(r) * (float)range(r, 1, 3000);
        op->out_stride = op->n + range(r, 0, 5);
        s->n_pos[i] = range(r, 1, op->n);
        size_t n_w = (size_t)op->n * (size_t)g->k;
        s->w[i] = malloc(n_w);
        for (size_t k = 0; k < n_w; k++)
            s->w[i][k] = (int8_t)(extreme ? (tn_rng_below(r, 2) ? 127 : -127) : range(r, -127, 127));
        s->scale[i] = malloc((size_t)op->n * 4);
        s->bias[i] = malloc((size_t)op->n * 4);
        for (int32_t n = 0; n < op->n; n++) {
            s->scale[i][n] = tn_rng_below(r, 20) ? a_scale(r) : 0;
            s->bias[i][n] = (float)(tn_rng_f64(r) - 0.5) * 10;
        }
        size_t n_in = (size_t)g->m * (size_t)g->in_stride;
        s->in[i] = grab(n_in);
        for (size_t k = 0; k < n_in; k++)
            s->in[i][k] = (uint8_t)(extreme ? (tn_rng_below(r, 8) ? 255 : 0) : range(r, 0, 255));
        s->want[i] = grab(out_bytes(s, i));
    }
}

static void drop_sample(sample *s) {
    for (int i = 0; i < s->desc.n_ops; i++) {
        free(s->w[i]), free(s->scale[i]), free(s->bias[i]), free(s->in[i]), free(s->want[i]);
    }
}

/* ---- a case on a device ------------------------------------------------------------------------------ */

typedef struct bound {
    tn_npu_device *dev;
    tn_npu_graph *graph;
    tn_npu_weights *weights[TN_NPU_MAX_OPS];
    void *k_tiles[TN_NPU_MAX_OPS], *k_sum[TN_NPU_MAX_OPS];
} bound;

static tn_npu_weights *make_weights(tn_npu_device *d, const sample *s, int i) {
    const tn_npu_layout *l = &tn_npu_device_caps(d)->layout;
    tern_error err;
    tn_npu_weights *w;
    must(tn_npu_weights_open(d, s->desc.ops[i].n, s->desc.k, s->desc.ops[i].has_bias, &w, &err), &err);
    tn_npu_weights_data data = tn_npu_weights_get(w);
    int64_t n = s->desc.ops[i].n, padded = (n + l->tile_n - 1) / l->tile_n * l->tile_n,
            half = n / 2 / l->tile_n * l->tile_n;
    /* in two goes, as an unpacker would */
    if (half) tn_npu_tiles_pack(l, data.tiles, data.col_sum, s->w[i], 0, half, s->desc.k);
    tn_npu_tiles_pack(l, data.tiles, data.col_sum, s->w[i] + half * s->desc.k, half, n, s->desc.k);
    for (int64_t j = 0; j < padded; j++) {
        data.scale[j] = j < n ? s->scale[i][j] : 0;
        if (data.bias) data.bias[j] = j < n ? s->bias[i][j] : 0;
    }
    return w;
}

/* Field by field: a copied struct need not copy its padding. */
static void same_desc(const tn_npu_graph_desc *a, const tn_npu_graph_desc *b) {
    assert_true(a->kind == b->kind && a->m == b->m && a->k == b->k && a->in_stride == b->in_stride &&
                a->rows_per_run == b->rows_per_run && a->n_ops == b->n_ops);
    for (int i = 0; i < a->n_ops; i++) {
        const tn_npu_op *x = &a->ops[i], *y = &b->ops[i];
        assert_true(x->n == y->n && x->act_quant == y->act_quant && x->weight_quant == y->weight_quant &&
                    x->has_bias == y->has_bias && x->out == y->out);
        assert_true(x->act_scale == y->act_scale && x->k_scale == y->k_scale &&
                    x->out_scale == y->out_scale && x->out_stride == y->out_stride);
    }
}

/* With through_bytes the graph makes the journey through its serialised form. */
static bound bind(tn_npu_device *d, const sample *s, bool through_bytes) {
    bound b = {.dev = d};
    tern_error err;
    must(tn_npu_compile(d, &s->desc, &b.graph, &err), &err);
    if (through_bytes) {
        size_t n = tn_npu_serialise(b.graph, NULL, 0);
        void *blob = malloc(n); /* exact: ASan sees reads beyond */
        assert_int_equal(tn_npu_serialise(b.graph, blob, n), n);
        tn_npu_graph_close(&b.graph);
        must(tn_npu_deserialise(d, blob, n, &b.graph, &err), &err);
        same_desc(tn_npu_graph_get(b.graph), &s->desc);
        free(blob);
    }
    const tn_npu_layout *l = &tn_npu_device_caps(d)->layout;
    for (int i = 0; i < s->desc.n_ops; i++) {
        if (s->desc.kind == TN_NPU_LINEARS) {
            b.weights[i] = make_weights(d, s, i);
            continue;
        }
        int64_t n = s->desc.ops[i].n, k = s->desc.k;
        must(tn_npu_mem_alloc(d, tn_npu_tiles_bytes(l, n, k), &b.k_tiles[i], &err), &err);
        must(tn_npu_mem_alloc(d, (uint64_t)(n + l->tile_n) * 4, &b.k_sum[i], &err), &err);
        tn_npu_tiles_pack(l, b.k_tiles[i], b.k_sum[i], s->w[i], 0, n, k);
    }
    must(tn_npu_load(b.graph, s->desc.kind == TN_NPU_LINEARS ? b.weights : NULL, &err), &err);
    return b;
}

static void unbind(bound *b) {
    for (int i = 0; i < TN_NPU_MAX_OPS; i++)
        tn_npu_weights_close(&b->weights[i]); /* the graph still has its references */
    tn_npu_graph_close(&b->graph);
    for (int i = 0; i < TN_NPU_MAX_OPS; i++)
        tn_npu_mem_free(b->dev, b->k_tiles[i]), tn_npu_mem_free(b->dev, b->k_sum[i]);
}

static tn_npu_job make_job(const bound *b, const sample *s, void *const *out) {
    tn_npu_job j = {.graph = b->graph, .n_rows = s->n_rows};
    for (int i = 0; i < s->desc.n_ops; i++) {
        if (!i || s->desc.kind == TN_NPU_QK) j.in[i] = s->in[i];
        j.out[i] = out[i];
        j.k[i].tiles = b->k_tiles[i];
        j.k[i].col_sum = b->k_sum[i];
        j.k[i].n_pos = s->n_pos[i];
    }
    return j;
}

enum { POISON = 0xa5 };

static void alloc_out(const sample *s, void **out) {
    for (int i = 0; i < s->desc.n_ops; i++) {
        out[i] = malloc(out_bytes(s, i));
        memset(out[i], POISON, out_bytes(s, i));
    }
}

static void compare(const sample *s, void *const *out, uint64_t seed, const char *what) {
    for (int i = 0; i < s->desc.n_ops; i++) {
        const tn_npu_op *op = &s->desc.ops[i];
        size_t e = element(op), row = (size_t)op->out_stride * e, gap = (size_t)(op->out_stride - op->n) * e;
        size_t used = (size_t)(s->desc.kind == TN_NPU_QK ? s->n_pos[i] : op->n) * e;
        for (int32_t m = 0; m < s->n_rows; m++) {
            const uint8_t *p = (uint8_t *)out[i] + m * row, *q = s->want[i] + m * row;
            if (memcmp(p, q, used)) {
                fail_msg("%s: seed %llu, op %d of %d, row %d of %d, N %d, K %d, out %d differ from scalar",
                         what, (unsigned long long)seed, i, s->desc.n_ops, m, s->desc.m, op->n, s->desc.k,
                         (int)op->out);
            }
            for (size_t c = 0; c < gap; c++) assert_int_equal(p[row - gap + c], POISON);
        }
    }
}

static void free_out(const sample *s, void **out) {
    for (int i = 0; i < s->desc.n_ops; i++) free(out[i]);
}

static void run_scalar(tn_npu_device *scalar, sample *s) {
    bound b = bind(scalar, s, false);
    void *out[TN_NPU_MAX_OPS];
    for (int i = 0; i < s->desc.n_ops; i++) out[i] = s->want[i];
    tn_npu_job j = make_job(&b, s, out);
    tern_error err;
    must(tn_npu_submit(&j, &err), &err);
    assert_int_equal(tn_npu_wait(&j), TERN_OK);
    unbind(&b);
}

static void run_whole(bound *b, sample *s, uint64_t seed, const char *what) {
    void *out[TN_NPU_MAX_OPS];
    alloc_out(s, out);
    tn_npu_job j = make_job(b, s, out);
    tern_error err;
    must(tn_npu_submit(&j, &err), &err);
    assert_int_equal(tn_npu_wait(&j), TERN_OK);
    assert_true(tn_npu_done(&j));
    compare(s, out, seed, what);
    free_out(s, out);
}

/* The same with rows in the device's memory (some of them: it may mix), and K elsewhere. */
static void run_placed(bound *b, sample *s, uint64_t seed, const char *what) {
    void *out[TN_NPU_MAX_OPS] = {0}, *in[TN_NPU_MAX_OPS], *k[TN_NPU_MAX_OPS] = {0};
    tern_error err;
    tn_npu_job j = make_job(b, s, out);
    for (int i = 0; i < s->desc.n_ops; i++) {
        must(tn_npu_mem_alloc(b->dev, out_bytes(s, i), &out[i], &err), &err);
        memset(out[i], POISON, out_bytes(s, i));
        j.out[i] = out[i];
        must(tn_npu_mem_alloc(b->dev, (uint64_t)s->desc.m * (uint64_t)s->desc.in_stride, &in[i], &err), &err);
        memcpy(in[i], s->in[i], (size_t)s->desc.m * (size_t)s->desc.in_stride);
        if (seed % 3 && j.in[i]) j.in[i] = in[i];
        if (!j.k[i].tiles) continue;
        uint64_t n = tn_npu_tiles_bytes(&tn_npu_device_caps(b->dev)->layout, s->desc.ops[i].n, s->desc.k);
        k[i] = grab(n);
        memcpy(k[i], j.k[i].tiles, n);
        j.k[i].tiles = k[i];
    }
    must(tn_npu_submit(&j, &err), &err);
    assert_int_equal(tn_npu_wait(&j), TERN_OK);
    compare(s, out, seed, what);
    for (int i = 0; i < s->desc.n_ops; i++)
        tn_npu_mem_free(b->dev, out[i]), tn_npu_mem_free(b->dev, in[i]), free(k[i]);
}

static void run_parts(bound *b, sample *s, tn_rng *r, uint64_t seed, const char *what) {
    void *out[TN_NPU_MAX_OPS];
    alloc_out(s, out);
    tn_npu_job j = make_job(b, s, out);
    tern_error err;
    int32_t n = tn_rng_below(r, 2) ? range(r, 1, 9) : tn_npu_n_parts(&j), first = range(r, 0, n - 1);
    for (int32_t i = 0; i < n; i++) must(tn_npu_run_part(&j, (first + i) % n, n, &err), &err);
    compare(s, out, seed, what);
    free_out(s, out);
}

/* What the CPU takes from the device has the device's bits; the device has no part in it. */
static void run_here(bound *b, sample *s, uint64_t seed, const char *what) {
    void *out[TN_NPU_MAX_OPS];
    alloc_out(s, out);
    tn_npu_job j = make_job(b, s, out);
    tn_kernels k;
    tern_error err;
    tn_kernels_init(&k, tn_cpu_flags(NULL));
    must(tn_npu_compute_here(&j, &k, &err), &err);
    assert_int_equal(atomic_load(&j.state), TN_NPU_JOB_IDLE);
    compare(s, out, seed, what);
    free_out(s, out);
}

/* ---- devices under test ------------------------------------------------------------------------------ */

typedef struct fixture {
    tn_ctx ctx;
    tn_npu_device *scalar;
    int n_warnings;
} fixture;

static fixture *fix;

/* A device that is lost warns and leaves its work to the host's kernels: right, but not what is tested here.
 */
static void on_log(void *user, tern_log_level level, const char *line) {
    (void)user;
    if (level > TERN_LOG_WARN) return;
    print_message("%s\n", line);
    fix->n_warnings++;
}

static int setup(void **state) {
    (void)state;
    fix = calloc(1, sizeof *fix);
    tern_hooks hooks;
    tern_hooks_defaults(&hooks);
    hooks.log = on_log;
    tn_ctx_init(&fix->ctx, &hooks);
    return tn_npu_open(&fix->ctx, "scalar", NULL, &fix->scalar, NULL) != TERN_OK;
}

static int teardown(void **state) {
    (void)state;
    tn_npu_close(&fix->scalar);
    assert_int_equal(fix->n_warnings, 0);
    for (int i = 0; i < TN_MEM_N_CATS; i++) assert_int_equal(fix->ctx.live_bytes[i], 0);
    free(fix);
    return 0;
}

static tn_npu_device *open_dev(const char *backend, const tn_npu_options *opt) {
    tn_npu_device *d;
    tern_error err;
    must(tn_npu_open(&fix->ctx, backend, opt, &d, &err), &err);
    return d;
}

static void conform(tn_npu_device *d, int n_samples, int32_t most, const char *what) {
    for (int i = 0; i < n_samples; i++) {
        uint64_t seed = seed_of() + (uint64_t)i;
        tn_rng r = {seed};
        sample s;
        make_sample(&s, &r, most);
        run_scalar(fix->scalar, &s);
        bound b = bind(d, &s, i & 1);
        run_whole(&b, &s, seed, what);
        if (i & 1) run_placed(&b, &s, seed, what);
        if (tn_npu_device_caps(d)->has_parts) run_parts(&b, &s, &r, seed, what);
        if (tn_npu_device_caps(d)->cpu_computes) run_here(&b, &s, seed, what);
        unbind(&b);
        drop_sample(&s);
        assert_int_equal(tn_npu_used_bytes(d), 0);
        assert_int_equal(fix->n_warnings, 0);
    }
}

static void test_random_graphs(void **state) {
    (void)state;
    printf("seed %llu (TERN_SEED)\n", (unsigned long long)seed_of());
    for (size_t i = 0; tn_npu_backend_name(i); i++) {
        tn_npu_options opt;
        tn_npu_options_defaults(&opt);
        opt.n_threads = 1 + (int32_t)(i & 1);
        tn_npu_device *d = open_dev(tn_npu_backend_name(i), &opt);
        conform(d, 120, 200, tn_npu_backend_name(i));
        tn_npu_close(&d);
    }
}

/* The host backend over every instruction set this machine has. */
static void test_host_instruction_sets(void **state) {
    (void)state;
    uint32_t have = tn_cpu_detect(), seen = UINT32_MAX;
    for (size_t i = 0; tn_cpu_word(i); i++) {
        uint32_t flags = tn_cpu_limit(tn_cpu_word(i), have);
        if (flags == seen) continue;
        seen = flags;
        tn_kernels k;
        tn_kernels_init(&k, flags);
        tn_npu_options opt;
        tn_npu_options_defaults(&opt);
        opt.kernels = &k;
        tn_npu_device *d = open_dev("host", &opt);
        conform(d, 40, 300, tn_cpu_word(i));
        tn_npu_close(&d);
    }
}

/* The Hexagon's weights and rows pass through VTCM: so little of it that k comes in blocks and rows in
 * groups, with targets of transfers poisoned when they begin. */
static void test_staging(void **state) {
    (void)state;
    static const uint64_t sizes[] = {16 << 10, 20000, 48 << 10, 200 << 10, 8 << 20};
    tn_npu_options opt;
    tn_npu_options_defaults(&opt);
    setenv("TERN_HEXAGON_POISON", "1", 1);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        opt.scratch_bytes = sizes[i];
        tn_npu_device *d;
        tern_error err;
        tern_status st = tn_npu_open(&fix->ctx, "hexagon", &opt, &d, &err);
        if (st == TERN_E_UNSUPPORTED) break; /* not in this build */
        must(st, &err);
        bool quick = getenv("TERN_TEST_QUICK") != NULL;
        conform(d, quick ? 4 : 12, 200, "small VTCM");
        for (int n = 0; n < (quick ? 2 : 3); n++) { /* many rounds */
            uint64_t seed = seed_of() + 1000 * i + (uint64_t)n;
            tn_rng r = {seed};
            sample s;
            do {
                make_sample(&s, &r, n ? 700 : 3000);
            } while ((uint64_t)s.desc.k * (uint64_t)s.desc.ops[0].n < 200000 && (drop_sample(&s), true));
            run_scalar(fix->scalar, &s);
            bound b = bind(d, &s, false);
            run_whole(&b, &s, seed, "many rounds");
            run_placed(&b, &s, seed, "many rounds");
            unbind(&b);
            drop_sample(&s);
            assert_int_equal(fix->n_warnings, 0);
        }
        tn_npu_close(&d);
    }
    unsetenv("TERN_HEXAGON_POISON");
    for (int i = 0; i < 2; i++) {
        opt.scratch_bytes = i ? (8 << 20) + 1 : (16 << 10) - 1;
        tn_npu_device *d;
        tern_error err;
        tern_status st = tn_npu_open(&fix->ctx, "hexagon", &opt, &d, &err);
        assert_true(st == TERN_E_INVALID || st == TERN_E_UNSUPPORTED);
    }
}

/* Rows and columns that do not fit the Hexagon's window at once: the job comes in pieces. */
static void test_large(void **state) {
    (void)state;
    static const int32_t shapes[][4] = {
        {TN_NPU_LINEARS, 200, 16, 30000}, {TN_NPU_LINEARS, 140, 65536, 8}, {TN_NPU_QK, 3, 8000, 1100}};
    for (size_t i = 0; tn_npu_backend_name(i); i++) {
        if (strcmp(tn_npu_backend_name(i), "hexagon")) continue;
        tn_npu_device *d = open_dev(tn_npu_backend_name(i), NULL), *host = open_dev("host", NULL);
        for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k++) {
            tn_npu_graph_desc g = {.kind = (tn_npu_kind)shapes[k][0],
                                   .m = shapes[k][1],
                                   .k = shapes[k][2],
                                   .in_stride = shapes[k][2],
                                   .rows_per_run = 3,
                                   .n_ops = 2};
            sample s = {.n_rows = g.m};
            for (int o = 0; o < 2; o++) {
                g.ops[o] = (tn_npu_op){.n = shapes[k][3] - o * 5,
                                       .act_scale = 0.5f,
                                       .k_scale = g.kind == TN_NPU_QK ? 0.25f : 0,
                                       .out = o ? TN_NPU_OUT_S32 : TN_NPU_OUT_F32,
                                       .out_stride = shapes[k][3]};
                size_t n_w = (size_t)g.ops[o].n * (size_t)g.k, n_in = (size_t)g.m * (size_t)g.in_stride;
                s.n_pos[o] = g.ops[o].n - o;
                s.w[o] = malloc(n_w);
                for (size_t x = 0; x < n_w; x++) s.w[o][x] = (int8_t)((int32_t)(x * 2654435761u >> 8) % 128);
                s.scale[o] = calloc((size_t)g.ops[o].n, 4), s.bias[o] = calloc((size_t)g.ops[o].n, 4);
                for (int32_t x = 0; x < g.ops[o].n; x++) s.scale[o][x] = (float)(x + 1);
                s.in[o] = grab(n_in);
                for (size_t x = 0; x < n_in; x++) s.in[o][x] = (uint8_t)(x * 2246822519u >> 13);
            }
            s.desc = g;
            for (int o = 0; o < 2; o++) s.want[o] = grab(out_bytes(&s, o));
            run_scalar(host, &s);
            bound b = bind(d, &s, false);
            run_whole(&b, &s, k, "in pieces");
            run_placed(&b, &s, k, "in pieces");
            unbind(&b);
            drop_sample(&s);
            assert_int_equal(fix->n_warnings, 0);
        }
        tn_npu_close(&d);
        tn_npu_close(&host);
    }
}

/* K at its largest with extreme values: the accumulators come as close to overflow as they can. */
static void test_longest_sum(void **state) {
    (void)state;
    sample s = {
        .desc =
            {.kind = TN_NPU_LINEARS, .m = 3, .k = 65536, .in_stride = 65536, .rows_per_run = 2, .n_ops = 1},
        .n_rows = 3};
    s.desc.ops[0] = (tn_npu_op){.n = 17, .act_scale = 1, .out = TN_NPU_OUT_S32, .out_stride = 17};
    s.w[0] = malloc(17 * 65536);
    for (int n = 0; n < 17; n++) memset(s.w[0] + n * 65536, n & 1 ? 127 : -127, 65536);
    s.scale[0] = calloc(17, 4);
    s.bias[0] = calloc(17, 4);
    s.in[0] = grab(3 * 65536);
    for (int m = 0; m < 3; m++) memset(s.in[0] + m * 65536, m == 0 ? 255 : m == 1 ? 0 : 128, 65536);
    s.want[0] = grab(out_bytes(&s, 0));
    run_scalar(fix->scalar, &s);
    assert_int_equal(((int32_t *)s.want[0])[1], 127 * 127 * 65536);
    for (size_t i = 0; tn_npu_backend_name(i); i++) {
        tn_npu_device *d = open_dev(tn_npu_backend_name(i), NULL);
        bound b = bind(d, &s, false);
        run_whole(&b, &s, 0, tn_npu_backend_name(i));
        unbind(&b);
        tn_npu_close(&d);
    }
    drop_sample(&s);
}

/* Sparse attention loads hundreds of such graphs: where nobody applies factors, they take none for each
 * position. */
static void test_accumulators_without_factors(void **state) {
    (void)state;
    tn_npu_graph_desc g = {.kind = TN_NPU_QK, .m = 32, .k = 64, .n_ops = 1};
    g.ops[0] =
        (tn_npu_op){.n = 8192, .act_scale = 1, .k_scale = 1, .out = TN_NPU_OUT_S32, .out_stride = 8192};
    static const char *const backends[] = {"host", "scalar"};
    for (int i = 0; i < 2; i++) {
        tn_npu_device *d = open_dev(backends[i], NULL);
        tn_npu_graph *graph;
        tern_error err;
        must(tn_npu_compile(d, &g, &graph, &err), &err);
        assert_true(tn_npu_load_bytes(graph) <= 64);
        tn_npu_graph_close(&graph);
        tn_npu_close(&d);
    }
}

/* Rounding and saturation by hand, on every backend. */
static void test_definition(void **state) {
    (void)state;
    for (size_t i = 0; tn_npu_backend_name(i); i++) {
        tn_npu_device *d = open_dev(tn_npu_backend_name(i), NULL);
        /* one input, weight 1: acc = in - 128; x = acc / 2 */
        sample s = {
            .desc = {.kind = TN_NPU_LINEARS, .m = 6, .k = 1, .in_stride = 4, .rows_per_run = 6, .n_ops = 2},
            .n_rows = 6};
        float half = 0.5f;
        int8_t one = 1;
        uint8_t in[24] = {0};
        static const uint8_t x[6] = {129, 131, 133, 255, 0, 128}; /* acc 1 3 5 127 -128 0 */
        static const uint8_t want[2][6] = {{128, 130, 130, 192, 64, 128},
                                           {130, 134, 138, 255, 1, 128}}; /* 63.5 -> 64 */
        for (int m = 0; m < 6; m++) in[4 * m] = x[m];
        for (int o = 0; o < 2; o++) {
            s.desc.ops[o] = (tn_npu_op){.n = 1,
                                        .act_scale = 1,
                                        .out = o ? TN_NPU_OUT_S8 : TN_NPU_OUT_U8,
                                        .out_scale = o ? 0.25f : 1,
                                        .out_stride = 1};
            s.w[o] = &one;
            s.scale[o] = &half;
            s.in[o] = in;
        }
        bound b = bind(d, &s, true);
        uint8_t out[2][6];
        tn_npu_job j = make_job(&b, &s, (void *[]){out[0], out[1]});
        assert_int_equal(tn_npu_submit(&j, NULL), TERN_OK);
        assert_int_equal(tn_npu_wait(&j), TERN_OK);
        for (int m = 0; m < 6; m++) {
            assert_int_equal(out[0][m], want[0][m]);
            assert_int_equal(out[1][m], (uint8_t)(want[1][m] - 128));
        }
        unbind(&b);
        tn_npu_close(&d);
    }
}

/* Every layout gives back what was packed, with zeros around it; 16x4 is what the kernels read. */
static void test_layouts(void **state) {
    (void)state;
    static const tn_npu_layout layouts[] = {
        {TN_NPU_LAYOUT_ROWS, 1, 1}, {TN_NPU_LAYOUT_16X4, 16, 4}, {TN_NPU_LAYOUT_32X4, 32, 4}};
    tn_rng r = {seed_of()};
    for (int i = 0; i < 60; i++) {
        const tn_npu_layout *l = &layouts[i % 3];
        int32_t n = size(&r, 100), k = size(&r, 100), padded = (n + l->tile_n - 1) / l->tile_n * l->tile_n;
        size_t n_bytes = tn_npu_tiles_bytes(l, n, k);
        int8_t *w = malloc((size_t)n * k), *tiles = malloc(n_bytes), *row = malloc((size_t)k);
        int32_t *sums = malloc((size_t)padded * 4);
        int64_t total = 0, total_tiles = 0, total_sums = 0;
        for (int j = 0; j < n * k; j++) total += w[j] = (int8_t)range(&r, -127, 127);
        memset(tiles, POISON, n_bytes);
        tn_npu_tiles_pack(l, tiles, sums, w, 0, n, k);
        for (size_t j = 0; j < n_bytes; j++) total_tiles += tiles[j]; /* padding adds nothing */
        for (int j = 0; j < padded; j++) total_sums += sums[j];
        assert_int_equal(total_tiles, total);
        assert_int_equal(total_sums, total);
        for (int j = 0; j < n; j++) {
            tn_npu_tiles_row(l, tiles, j, k, row);
            assert_memory_equal(row, w + (size_t)j * k, k);
        }
        int8_t *column = malloc((size_t)n);
        for (int j = 0; j < k; j++) {
            tn_npu_tiles_column(l, tiles, n, k, j, column);
            for (int c = 0; c < n; c++) assert_int_equal(column[c], w[(size_t)c * k + j]);
        }
        free(column);
        if (l->id == TN_NPU_LAYOUT_16X4) {
            int8_t *same = malloc(n_bytes);
            int32_t *same_sums = malloc((size_t)padded * 4);
            assert_int_equal(tn_tiles_s8_bytes((size_t)n, (size_t)k), n_bytes);
            tn_tiles_s8_pack(same, same_sums, w, 0, (size_t)n, (size_t)k);
            assert_memory_equal(same, tiles, n_bytes);
            assert_memory_equal(same_sums, sums, (size_t)padded * 4);
            free(same), free(same_sums);
        }
        free(w), free(tiles), free(row), free(sums);
    }
}

/* ---- rules ------------------------------------------------------------------------------------------- */

static tn_npu_graph_desc plain(void) {
    tn_npu_graph_desc g = {.kind = TN_NPU_LINEARS, .m = 32, .k = 64, .n_ops = 1};
    g.ops[0] = (tn_npu_op){.n = 48, .act_scale = 0.1f};
    return g;
}

static void refused(tn_npu_device *d, const tn_npu_graph_desc *g, tern_status code, const char *word) {
    tn_npu_graph *graph = (tn_npu_graph *)1;
    tern_error err = {0};
    assert_int_equal(tn_npu_compile(d, g, &graph, &err), code);
    assert_null(graph);
    if (!strstr(err.message, word)) fail_msg("'%s' does not speak of '%s'", err.message, word);
}

static void test_rules(void **state) {
    (void)state;
    for (size_t i = 0; tn_npu_backend_name(i); i++) {
        tn_npu_device *d = open_dev(tn_npu_backend_name(i), NULL);
        const tn_npu_caps *c = tn_npu_device_caps(d);
#define REFUSED(change, code, word)                                                                          \
    do {                                                                                                     \
        tn_npu_graph_desc g = plain();                                                                       \
        change;                                                                                              \
        refused(d, &g, code, word);                                                                          \
    } while (0)
        REFUSED(g.m = TN_NPU_DYNAMIC, TERN_E_UNSUPPORTED, "dynamic shape M");
        REFUSED(g.k = TN_NPU_DYNAMIC, TERN_E_UNSUPPORTED, "dynamic shape K");
        REFUSED(g.ops[0].n = TN_NPU_DYNAMIC, TERN_E_UNSUPPORTED, "dynamic shape N");
        REFUSED(g.ops[0].act_quant = TN_NPU_ACT_PER_TOKEN, TERN_E_UNSUPPORTED, "per-token");
        REFUSED(g.ops[0].act_quant = TN_NPU_ACT_DYNAMIC, TERN_E_UNSUPPORTED, "frozen");
        REFUSED(g.ops[0].weight_quant = TN_NPU_WEIGHT_PER_GROUP, TERN_E_UNSUPPORTED, "group");
        REFUSED(g.ops[0].weight_quant = TN_NPU_WEIGHT_ASYMMETRIC, TERN_E_UNSUPPORTED, "asymmetric");
        REFUSED(g.ops[0].act_scale = 0, TERN_E_INVALID, "activation scale");
        REFUSED(g.ops[0].act_scale = 0.0f / 0.0f, TERN_E_INVALID, "activation scale");
        REFUSED(g.ops[0].act_scale = 1e-44f, TERN_E_INVALID, "activation scale");
        REFUSED(g.ops[0].out = TN_NPU_OUT_U8, TERN_E_INVALID, "output scale");
        REFUSED(g.ops[0].out = (tn_npu_out)9, TERN_E_INVALID, "output form");
        REFUSED(g.kind = (tn_npu_kind)7, TERN_E_INVALID, "kind");
        REFUSED(g.kind = TN_NPU_QK, TERN_E_INVALID, "scales");
        REFUSED((g.kind = TN_NPU_QK, g.ops[0].k_scale = 1, g.ops[0].has_bias = true), TERN_E_UNSUPPORTED,
                "bias");
        REFUSED(g.m = 0, TERN_E_INVALID, "M = 0");
        REFUSED(g.m = c->max_m + 1, TERN_E_LIMIT, "M = ");
        REFUSED(g.k = c->max_k + 1, TERN_E_LIMIT, "K = ");
        REFUSED(g.ops[0].n = c->max_n + 1, TERN_E_LIMIT, "N = ");
        REFUSED(g.n_ops = 0, TERN_E_LIMIT, "ops");
        REFUSED(g.n_ops = TN_NPU_MAX_OPS + 1, TERN_E_LIMIT, "ops");
        REFUSED(g.in_stride = 63, TERN_E_INVALID, "apart");
        REFUSED(g.ops[0].out_stride = 47, TERN_E_INVALID, "apart");
        REFUSED(g.rows_per_run = 33, TERN_E_INVALID, "rows per run");
        assert_int_equal(tn_npu_used_bytes(d), 0);
        tn_npu_close(&d);
    }
    tn_npu_device *d = (tn_npu_device *)1;
    tern_error err;
    assert_int_equal(tn_npu_open(&fix->ctx, "abacus", NULL, &d, &err), TERN_E_UNSUPPORTED);
    assert_null(d);
}

static void test_job_misuse(void **state) {
    (void)state;
    for (size_t i = 0; tn_npu_backend_name(i); i++) {
        tn_npu_device *d = open_dev(tn_npu_backend_name(i), NULL);
        tn_rng r = {seed_of()};
        sample s;
        do {
            make_sample(&s, &r, 40);
        } while (s.desc.kind != TN_NPU_QK && (drop_sample(&s), true));
        run_scalar(fix->scalar, &s);
        bound b = bind(d, &s, false);
        void *out[TN_NPU_MAX_OPS];
        alloc_out(&s, out);
        tern_error err;
        tn_npu_job j = make_job(&b, &s, out);
#define MISUSED(change)                                                                                      \
    do {                                                                                                     \
        tn_npu_job bad = j;                                                                                  \
        change;                                                                                              \
        assert_int_equal(tn_npu_submit(&bad, &err), TERN_E_INVALID);                                         \
        assert_false(tn_npu_done(&bad));                                                                     \
    } while (0)
        MISUSED(bad.graph = NULL);
        MISUSED(bad.n_rows = 0);
        MISUSED(bad.n_rows = s.desc.m + 1);
        MISUSED(bad.in[0] = NULL);
        MISUSED(bad.out[0] = NULL);
        MISUSED(bad.k[0].tiles = NULL);
        MISUSED(bad.k[0].tiles += 1);
        MISUSED(bad.k[0].col_sum = NULL);
        MISUSED(bad.k[0].n_pos = 0);
        MISUSED(bad.k[0].n_pos = s.desc.ops[0].n + 1);
        if (tn_npu_device_caps(d)->has_parts) {
            assert_int_equal(tn_npu_run_part(&j, 3, 3, &err), TERN_E_INVALID);
            assert_int_equal(tn_npu_run_part(&j, -1, 3, &err), TERN_E_INVALID);
        } else {
            assert_int_equal(tn_npu_run_part(&j, 0, 1, &err), TERN_E_UNSUPPORTED);
            assert_false(tn_npu_help(d));
        }
        assert_int_equal(tn_npu_load(b.graph, NULL, &err), TERN_E_INVALID); /* loaded already */
        tn_npu_unload(b.graph);
        MISUSED((void)bad);
        must(tn_npu_load(b.graph, NULL, &err), &err); /* and works again afterwards */
        run_whole(&b, &s, 0, "reloaded");
        free_out(&s, out);
        unbind(&b);
        drop_sample(&s);
        tn_npu_close(&d);
    }
}

static void test_binding(void **state) {
    (void)state;
    for (size_t i = 0; tn_npu_backend_name(i); i++) {
        tn_npu_device *d = open_dev(tn_npu_backend_name(i), NULL), *other = open_dev("scalar", NULL);
        tn_npu_graph_desc g = plain();
        g.ops[0].has_bias = true;
        tn_npu_graph *graph;
        tern_error err;
        must(tn_npu_compile(d, &g, &graph, &err), &err);
        tn_npu_weights *w = NULL;
        assert_int_equal(tn_npu_load(graph, NULL, &err), TERN_E_INVALID);
        assert_int_equal(tn_npu_load(graph, &w, &err), TERN_E_INVALID);
#define WRONG(dev, n, k, bias)                                                                               \
    do {                                                                                                     \
        must(tn_npu_weights_open(dev, n, k, bias, &w, &err), &err);                                          \
        assert_int_equal(tn_npu_load(graph, &w, &err), TERN_E_INVALID);                                      \
        tn_npu_weights_close(&w);                                                                            \
    } while (0)
        WRONG(other, 48, 64, true);
        WRONG(d, 47, 64, true);
        WRONG(d, 48, 65, true);
        WRONG(d, 48, 64, false);
        /* a scale or bias that is no number came from a damaged file */
        must(tn_npu_weights_open(d, 48, 64, true, &w, &err), &err);
        tn_npu_weights_data data = tn_npu_weights_get(w);
        for (int n = 0; n < 48; n++) data.scale[n] = data.bias[n] = 1;
        data.scale[17] = 1.0f / 0.0f;
        assert_int_equal(tn_npu_load(graph, &w, &err), TERN_E_FORMAT);
        assert_non_null(strstr(err.message, "17"));
        data.scale[17] = 1;
        data.bias[47] = 0.0f / 0.0f;
        assert_int_equal(tn_npu_load(graph, &w, &err), TERN_E_FORMAT);
        data.bias[47] = 0;
        must(tn_npu_load(graph, &w, &err), &err);
        tn_npu_weights_close(&w);
        assert_int_equal(tn_npu_weights_open(d, 1 << 30, 1 << 30, true, &w, &err), TERN_E_LIMIT);
        assert_null(w);
        tn_npu_graph_close(&graph);
        assert_int_equal(tn_npu_used_bytes(d), 0);
        tn_npu_close(&d);
        tn_npu_close(&other);
    }
}

/* ---- memory ------------------------------------------------------------------------------------------ */

static void test_memory_cap(void **state) {
    (void)state;
    for (size_t i = 0; tn_npu_backend_name(i); i++) {
        tn_npu_options opt;
        tn_npu_options_defaults(&opt);
        opt.memory_cap_bytes = 10000; /* two matrices [48][64] of about 3.5 KB, not three */
        tn_npu_device *d = open_dev(tn_npu_backend_name(i), &opt);
        assert_int_equal(tn_npu_device_caps(d)->memory_cap_bytes, 10000);
        tern_error err;
        tn_npu_weights *w[3] = {0};
        must(tn_npu_weights_open(d, 48, 64, false, &w[0], &err), &err);
        must(tn_npu_weights_open(d, 48, 64, false, &w[1], &err), &err);
        assert_int_equal(tn_npu_used_bytes(d), tn_npu_weights_bytes(w[0]) + tn_npu_weights_bytes(w[1]));
        assert_int_equal(tn_npu_weights_open(d, 48, 64, false, &w[2], &err), TERN_E_LIMIT);
        assert_non_null(strstr(err.message, "10000"));
        void *p = NULL;
        assert_int_equal(tn_npu_mem_alloc(d, 4096, &p, &err), TERN_E_LIMIT);
        assert_int_equal(tn_npu_mem_alloc(d, UINT64_MAX, &p, &err), TERN_E_MEMORY);
        assert_int_equal(tn_npu_mem_alloc(d, UINT64_MAX - 64, &p, &err), TERN_E_LIMIT);
        assert_null(p);

        /* Loaded graphs cost their constants; with the memory full, a further one is refused and nothing is
         * lost. */
        tn_npu_graph_desc g = plain();
        tn_npu_graph *graph[2];
        for (int j = 0; j < 48; j++)
            tn_npu_weights_get(w[0]).scale[j] = tn_npu_weights_get(w[1]).scale[j] = 1;
        must(tn_npu_compile(d, &g, &graph[0], &err), &err);
        must(tn_npu_compile(d, &g, &graph[1], &err), &err);
        must(tn_npu_load(graph[0], &w[0], &err), &err);
        assert_int_equal(tn_npu_used_bytes(d), 2 * tn_npu_weights_bytes(w[0]) + tn_npu_load_bytes(graph[0]));
        must(tn_npu_mem_alloc(d, 10000 - tn_npu_used_bytes(d) - 100, &p, &err), &err);
        uint64_t used = tn_npu_used_bytes(d);
        assert_int_equal(tn_npu_load(graph[1], &w[1], &err), TERN_E_LIMIT);
        assert_int_equal(tn_npu_used_bytes(d), used);
        tn_npu_mem_free(d, p);
        must(tn_npu_load(graph[1], &w[1], &err), &err);

        /* A closed handle frees nothing while a graph uses the weights. */
        used = tn_npu_used_bytes(d);
        tn_npu_weights_close(&w[0]);
        assert_int_equal(tn_npu_used_bytes(d), used);
        tn_npu_graph_close(&graph[0]);
        assert_true(tn_npu_used_bytes(d) < used);
        tn_npu_weights_close(&w[1]);
        tn_npu_graph_close(&graph[1]);
        assert_int_equal(tn_npu_used_bytes(d), 0);

        g.ops[0].n = 200; /* alone beyond the cap: already compiling says so */
        refused(d, &g, TERN_E_LIMIT, "10000");
        tn_npu_close(&d);
    }
}

/* Several graphs of different M over one copy of the weights, or refused where the device cannot. */
static void test_sharing(void **state) {
    (void)state;
    for (size_t i = 0; tn_npu_backend_name(i); i++) {
        for (int separate = 0; separate < 2; separate++) {
            tn_npu_options opt;
            tn_npu_options_defaults(&opt);
            opt.separate_weights = separate;
            tn_npu_device *d = open_dev(tn_npu_backend_name(i), &opt);
            tn_rng r = {seed_of()};
            sample s;
            do {
                make_sample(&s, &r, 100);
            } while (s.desc.kind != TN_NPU_LINEARS && (drop_sample(&s), true));
            run_scalar(fix->scalar, &s);
            bound b = bind(d, &s, false), one = b;
            uint64_t used = tn_npu_used_bytes(d);
            tn_npu_graph_desc g = s.desc;
            g.m = g.rows_per_run = 1;
            tern_error err;
            must(tn_npu_compile(d, &g, &one.graph, &err), &err);
            tern_status st = tn_npu_load(one.graph, b.weights, &err);
            if (!tn_npu_device_caps(d)->shares_weights) {
                assert_int_equal(st, TERN_E_UNSUPPORTED);
                assert_int_equal(tn_npu_used_bytes(d), used);
                tn_npu_unload(b.graph); /* switching: the other graph out, this one in */
                must(tn_npu_load(one.graph, b.weights, &err), &err);
            } else {
                assert_int_equal(st, TERN_OK);
                assert_int_equal(tn_npu_used_bytes(d) - used,
                                 tn_npu_load_bytes(one.graph)); /* constants only */
            }
            sample s1 = s; /* row 0 alone gives the bits it had in company */
            s1.desc = g;
            s1.n_rows = 1;
            run_whole(&one, &s1, seed_of(), "M = 1");
            tn_npu_graph_close(&one.graph);
            unbind(&b);
            drop_sample(&s);
            tn_npu_close(&d);
        }
    }
}

/* Two graphs over weights of the caller, with a bias; the memory account counts them once. */
static void test_borrowed_weights(void **state) {
    (void)state;
    for (size_t i = 0; tn_npu_backend_name(i); i++) {
        tn_npu_options opt;
        tn_npu_options_defaults(&opt);
        opt.memory_cap_bytes = 6000; /* not twice 3 KB of tiles, and constants */
        tn_npu_device *d = open_dev(tn_npu_backend_name(i), &opt);
        tn_npu_weights_data data = {
            .tiles = grab(48 * 64), .col_sum = grab(48 * 4), .scale = grab(48 * 4), .bias = grab(48 * 4)};
        memset(data.tiles, 1, 48 * 64); /* in any layout */
        for (int n = 0; n < 48; n++) data.col_sum[n] = 64, data.scale[n] = (float)n, data.bias[n] = 3;
        tn_npu_weights *w;
        tern_error err;
        tn_npu_weights_data off = data;
        off.tiles++;
        assert_int_equal(tn_npu_weights_borrow(d, 48, 64, &off, &w, &err), TERN_E_INVALID);
        must(tn_npu_weights_borrow(d, 48, 64, &data, &w, &err), &err);
        assert_ptr_equal(tn_npu_weights_get(w).tiles, data.tiles);
        assert_true(tn_npu_used_bytes(d) >= 48 * 64);
        tn_npu_graph_desc g = plain();
        tn_npu_graph *graph[2];
        for (int k = 0; k < 2; k++) {
            g.ops[0].has_bias = k;
            must(tn_npu_compile(d, &g, &graph[k], &err), &err);
            must(tn_npu_load(graph[k], &w, &err), &err);
        }
        uint8_t in[64];
        float out[48];
        memset(in, 129, sizeof in);
        for (int k = 0; k < 2; k++) {
            tn_npu_job j = {.graph = graph[k], .n_rows = 1, .in = {in}, .out = {out}};
            must(tn_npu_submit(&j, &err), &err);
            assert_int_equal(tn_npu_wait(&j), TERN_OK);
            for (int n = 0; n < 48; n++) assert_true(out[n] == 64 * (0.1f * (float)n) + (k ? 3 : 0));
            tn_npu_graph_close(&graph[k]);
        }
        tn_npu_weights_close(&w);
        assert_int_equal(tn_npu_used_bytes(d), 0);
        tn_npu_close(&d);
        free(data.tiles), free(data.col_sum), free(data.scale), free(data.bias);
    }
}

/* Weights that stay packed give what their tiles give, few rows and many, on one thread and in parts; what is
 * wrong with them is refused. */
static void test_packed_weights(void **state) {
    (void)state;
    enum { N = 200, K = 300, M = 40 };
    tn_rng r = {3};
    int8_t *w = malloc(N * K);
    uint8_t bits[(N * 3 + 7) / 8 + 1] = {0}, *in = malloc(M * 320);
    for (int n = 0; n < N; n++) {
        unsigned b = 1 + (unsigned)tn_rng_below(&r, 7);
        tn_channel_bits_put(bits, (size_t)n, b);
        for (int k = 0; k < K; k++)
            w[n * K + k] = (int8_t)(2 * (int)tn_rng_below(&r, 1u << b) - ((1 << b) - 1));
    }
    for (int i = 0; i < M * 320; i++) in[i] = (uint8_t)tn_rng_below(&r, 256);
    size_t n_packed = tn_weightlets_bytes(bits, 0, N, K);
    uint8_t *packed = malloc(n_packed);
    tn_weightlets_pack(packed, bits, w, 0, N, K);
    const tn_npu_layout l = {TN_NPU_LAYOUT_16X4, 16, 4};
    tn_npu_weights_data tiles = {.tiles = grab(tn_npu_tiles_bytes(&l, N, K)),
                                 .col_sum = grab(4 * 208),
                                 .scale = grab(4 * 208),
                                 .bias = grab(4 * 208)};
    tn_npu_tiles_pack(&l, tiles.tiles, tiles.col_sum, w, 0, N, K);
    for (int n = 0; n < 208; n++) tiles.scale[n] = 0.01f * (float)(n + 1), tiles.bias[n] = (float)n;
    tn_npu_weights_data data = tiles;
    data.tiles = NULL;
    data.packed = packed;
    data.bits = bits;
    data.packed_bytes = n_packed;
    tern_error err;
    tn_npu_weights *weights;
    tn_npu_device *d = open_dev("scalar", NULL);
    assert_int_equal(tn_npu_weights_borrow(d, N, K, &data, &weights, &err), TERN_E_UNSUPPORTED);
    tn_npu_close(&d);
    tn_npu_options opt;
    tn_npu_options_defaults(&opt);
    opt.n_threads = 2;
    d = open_dev("host", &opt);
    for (int rows = 0; rows < 2; rows++) {
        tn_npu_graph_desc g = {
            .kind = TN_NPU_LINEARS,
            .m = M,
            .k = K,
            .in_stride = 320,
            .rows_per_run = rows ? 7 : 0,
            .n_ops = 1,
            .ops = {{.n = N, .act_scale = 0.5f, .has_bias = true, .out = TN_NPU_OUT_S8, .out_scale = 3}}};
        static int8_t out[2][M * N];
        for (int n_rows = 1; n_rows <= M; n_rows += n_rows < 10 ? 1 : 15) {
            for (int form = 0; form < 2; form++) {
                tn_npu_graph *graph;
                must(tn_npu_weights_borrow(d, N, K, form ? &data : &tiles, &weights, &err), &err);
                must(tn_npu_compile(d, &g, &graph, &err), &err);
                must(tn_npu_load(graph, &weights, &err), &err);
                memset(out[form], 99, sizeof out[form]);
                tn_npu_job j = {.graph = graph, .n_rows = n_rows, .in = {in}, .out = {out[form]}};
                must(tn_npu_submit(&j, &err), &err);
                assert_int_equal(tn_npu_wait(&j), TERN_OK);
                if (form) {
                    memset(out[form], 99, sizeof out[form]);
                    for (int32_t i = 0; i < 3; i++) must(tn_npu_run_part(&j, i, 3, &err), &err);
                }
                tn_npu_graph_close(&graph);
                tn_npu_weights_close(&weights);
            }
            assert_memory_equal(out[0], out[1], sizeof out[0]);
        }
        tn_npu_graph *graph;
        data.packed_bytes++;
        must(tn_npu_weights_borrow(d, N, K, &data, &weights, &err), &err);
        must(tn_npu_compile(d, &g, &graph, &err), &err);
        assert_int_equal(tn_npu_load(graph, &weights, &err), TERN_E_FORMAT);
        tn_npu_graph_close(&graph);
        tn_npu_weights_close(&weights);
        data.packed_bytes--;
    }
    assert_int_equal(tn_npu_used_bytes(d), 0);
    tn_npu_close(&d);
    free(tiles.tiles), free(tiles.col_sum), free(tiles.scale), free(tiles.bias), free(packed), free(in),
        free(w);
}

/* ---- blobs ------------------------------------------------------------------------------------------- */

static void test_damaged_blobs(void **state) {
    (void)state;
    for (size_t i = 0; tn_npu_backend_name(i); i++) {
        tn_npu_device *d = open_dev(tn_npu_backend_name(i), NULL);
        tn_rng r = {seed_of()};
        sample s;
        make_sample(&s, &r, 100);
        tn_npu_graph *g;
        tern_error err;
        must(tn_npu_compile(d, &s.desc, &g, &err), &err);
        size_t n = tn_npu_serialise(g, NULL, 0);
        uint8_t *blob = malloc(n + 1);
        tn_npu_serialise(g, blob, n);
        tn_npu_graph_close(&g);
        for (size_t len = 0; len <= n + 1; len++) {
            if (len == n) continue;
            uint8_t *cut = malloc(len ? len : 1);
            memcpy(cut, blob, len < n ? len : n);
            if (len > n) cut[n] = 0;
            assert_int_equal(tn_npu_deserialise(d, cut, len, &g, &err), TERN_E_FORMAT);
            assert_null(g);
            free(cut);
        }
        for (size_t bit = 0; bit < 8 * n; bit++) {
            blob[bit / 8] ^= (uint8_t)(1u << bit % 8);
            tern_status st = tn_npu_deserialise(d, blob, n, &g, &err);
            assert_true(st == TERN_E_FORMAT || st == TERN_E_UNSUPPORTED);
            assert_null(g);
            blob[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
        must(tn_npu_deserialise(d, blob, n, &g, &err), &err);
        tn_npu_graph_close(&g);
        for (size_t j = 0; tn_npu_backend_name(j); j++) { /* a blob belongs to one kind of device */
            if (j == i) continue;
            tn_npu_device *e = open_dev(tn_npu_backend_name(j), NULL);
            assert_int_equal(tn_npu_deserialise(e, blob, n, &g, &err), TERN_E_UNSUPPORTED);
            assert_non_null(strstr(err.message, tn_npu_backend_name(i)));
            tn_npu_close(&e);
        }
        free(blob);
        drop_sample(&s);
        tn_npu_close(&d);
    }
}

/* ---- concurrency ------------------------------------------------------------------------------------- */

typedef struct crowd {
    bound b;
    sample s;
    int n_jobs;
    uint64_t seed;
} crowd;

static void *submit_many(void *arg) {
    crowd *c = arg;
    void *out[TN_NPU_MAX_OPS];
    alloc_out(&c->s, out);
    tn_npu_job j = make_job(&c->b, &c->s, out);
    for (int i = 0; i < c->n_jobs; i++) {
        if (tn_npu_submit(&j, NULL) != TERN_OK) abort();
        if (i & 1) { /* help, then poll */
            while (!tn_npu_done(&j)) {
                if (!tn_npu_help(c->b.dev)) sched_yield();
            }
        }
        if (tn_npu_wait(&j) != TERN_OK) abort();
        compare(&c->s, out, c->seed, "two threads");
    }
    free_out(&c->s, out);
    return NULL;
}

static void test_concurrent(void **state) {
    (void)state;
    for (size_t i = 0; tn_npu_backend_name(i); i++) {
        tn_npu_options opt;
        tn_npu_options_defaults(&opt);
        opt.n_threads = 3;
        tn_npu_device *d = open_dev(tn_npu_backend_name(i), &opt);
        crowd a = {.n_jobs = 60, .seed = seed_of()};
        tn_rng r = {a.seed};
        make_sample(&a.s, &r, 150);
        run_scalar(fix->scalar, &a.s);
        a.b = bind(d, &a.s, false);
        crowd b = {.n_jobs = 60, .seed = seed_of() + 1};
        make_sample(&b.s, &r, 150);
        run_scalar(fix->scalar, &b.s);
        b.b = bind(d, &b.s, false);
        crowd *who[4] = {&a, &a, &b, &b}; /* one graph by two threads, and another beside it */
        pthread_t t[4];
        for (int k = 0; k < 4; k++) assert_int_equal(pthread_create(&t[k], NULL, submit_many, who[k]), 0);
        for (int k = 0; k < 4; k++) pthread_join(t[k], NULL);
        unbind(&a.b);
        unbind(&b.b);
        drop_sample(&a.s);
        drop_sample(&b.s);
        tn_npu_close(&d);
    }
}

typedef struct part_of {
    const tn_npu_job *job;
    int32_t i, n;
} part_of;

static void *one_part(void *arg) {
    part_of *p = arg;
    if (tn_npu_run_part(p->job, p->i, p->n, NULL) != TERN_OK) abort();
    return NULL;
}

static void test_parts_on_threads(void **state) {
    (void)state;
    for (size_t i = 0; tn_npu_backend_name(i); i++) {
        tn_npu_device *d = open_dev(tn_npu_backend_name(i), NULL);
        for (uint64_t k = 0; k < 8 && tn_npu_device_caps(d)->has_parts; k++) {
            tn_rng r = {seed_of() + k};
            sample s;
            make_sample(&s, &r, 300);
            run_scalar(fix->scalar, &s);
            bound b = bind(d, &s, false);
            void *out[TN_NPU_MAX_OPS];
            alloc_out(&s, out);
            tn_npu_job j = make_job(&b, &s, out);
            part_of p[3];
            pthread_t t[3];
            for (int m = 0; m < 3; m++)
                p[m] = (part_of){&j, m, 3}, assert_int_equal(pthread_create(&t[m], NULL, one_part, &p[m]), 0);
            for (int m = 0; m < 3; m++) pthread_join(t[m], NULL);
            compare(&s, out, seed_of() + k, "parts on threads");
            free_out(&s, out);
            unbind(&b);
            drop_sample(&s);
        }
        tn_npu_close(&d);
    }
}

/* Succeeds until it is shut. */
typedef struct door {
    atomic_bool shut;
} door;

static void *door_alloc(void *user, size_t n_bytes, size_t align) {
    void *p = NULL;
    return ((door *)user)->shut || posix_memalign(&p, align, n_bytes ? n_bytes : 1) ? NULL : p;
}

static void door_release(void *user, void *p) {
    (void)user;
    free(p);
}

typedef struct packed_part {
    part_of part;
    const float *got, *want; /* [M][N] of the job */
    int m, n, n0, n1;        /* the part's columns */
    bool other;
} packed_part;

static void *many_parts(void *arg) {
    packed_part *p = arg;
    for (int k = 0; k < 200; k++) {
        one_part(&p->part);
        for (int m = 0; m < p->m; m++) {
            size_t at = (size_t)(m * p->n + p->n0);
            p->other |= memcmp(p->got + at, p->want + at, (size_t)(p->n1 - p->n0) * sizeof(float)) != 0;
        }
    }
    return NULL;
}

/* More threads work on packed weights than there are buffers for, of two sizes, and there is no memory for
 * more: they wait for each other, and none computes in the buffer of another. */
static void test_packed_without_memory(void **state) {
    (void)state;
    enum { N = 1024, M = 64, N_THREADS = 8 };
    door way = {false};
    tern_hooks hooks;
    tern_hooks_defaults(&hooks);
    hooks.alloc = door_alloc;
    hooks.release = door_release;
    hooks.user = &way;
    tn_ctx ctx;
    tn_ctx_init(&ctx, &hooks);
    tn_npu_device *d;
    tern_error err;
    must(tn_npu_open(&ctx, "host", NULL, &d, &err), &err);
    tn_rng r = {11};
    static uint8_t bits[N * 3 / 8 + 8], in[M * 640];
    static float scale[N], bias[N], out[2][M * N], alone[2][M * N];
    static int32_t col_sum[N];
    for (int n = 0; n < N; n++) tn_channel_bits_put(bits, (size_t)n, 4), scale[n] = (float)(n % 7 + 1);
    for (int i = 0; i < M * 640; i++) in[i] = (uint8_t)tn_rng_below(&r, 256);
    tn_npu_graph *graph[2];
    tn_npu_weights *weights[2];
    uint8_t *packed[2];
    tn_npu_job job[2];
    packed_part parts[N_THREADS];
    pthread_t t[N_THREADS];
    for (int g = 0; g < 2; g++) {
        const int k = g ? 640 : 128;
        size_t n_packed = tn_weightlets_bytes(bits, 0, N, (size_t)k);
        int8_t *w = malloc((size_t)(N * k));
        packed[g] = malloc(n_packed);
        for (int i = 0; i < N * k; i++) w[i] = (int8_t)(2 * (int)tn_rng_below(&r, 16) - 15);
        tn_weightlets_pack(packed[g], bits, w, 0, N, (size_t)k);
        free(w);
        tn_npu_weights_data data = {.packed = packed[g],
                                    .bits = bits,
                                    .packed_bytes = n_packed,
                                    .col_sum = col_sum,
                                    .scale = scale,
                                    .bias = bias};
        tn_npu_graph_desc desc = {.kind = TN_NPU_LINEARS,
                                  .m = M,
                                  .k = k,
                                  .in_stride = 640,
                                  .n_ops = 1,
                                  .ops = {{.n = N, .act_scale = 0.5f, .out = TN_NPU_OUT_F32}}};
        must(tn_npu_weights_borrow(d, N, k, &data, &weights[g], &err), &err);
        must(tn_npu_compile(d, &desc, &graph[g], &err), &err);
        must(tn_npu_load(graph[g], &weights[g], &err), &err);
        job[g] = (tn_npu_job){.graph = graph[g], .n_rows = M, .in = {in}, .out = {alone[g]}};
        must(tn_npu_run_part(&job[g], 0, 1, &err), &err);
        job[g].out[0] = out[g];
    }
    way.shut = true;
    for (int i = 0; i < N_THREADS; i++) {
        enum { EACH = N / (N_THREADS / 2) };
        parts[i] = (packed_part){{&job[i % 2], i / 2, N_THREADS / 2},
                                 out[i % 2],
                                 alone[i % 2],
                                 M,
                                 N,
                                 i / 2 * EACH,
                                 (i / 2 + 1) * EACH,
                                 false};
        assert_int_equal(pthread_create(&t[i], NULL, many_parts, &parts[i]), 0);
    }
    for (int i = 0; i < N_THREADS; i++) pthread_join(t[i], NULL), assert_false(parts[i].other);
    for (int g = 0; g < 2; g++) {
        tn_npu_graph_close(&graph[g]);
        tn_npu_weights_close(&weights[g]);
        free(packed[g]);
    }
    tn_npu_close(&d);
    assert_int_equal(ctx.live_bytes[TN_MEM_ACTIVATIONS], 0);
}

/* Each completion submits the next job; the last is seen by wait alone. */
typedef struct relay {
    tn_npu_job jobs[6];
    int n_done; /* written in completions, which follow one another */
    bool early; /* some job counted as done while its completion still ran */
} relay;

static void next_leg(void *user, tn_npu_job *job, tern_status st) {
    relay *y = user;
    if (st != TERN_OK || tn_npu_done(job)) y->early = true;
    if (++y->n_done < 6 && tn_npu_submit(&y->jobs[y->n_done], NULL) != TERN_OK) y->early = true;
}

static void test_completion(void **state) {
    (void)state;
    for (size_t i = 0; tn_npu_backend_name(i); i++) {
        tn_npu_options opt;
        tn_npu_options_defaults(&opt);
        opt.n_threads = 2;
        tn_npu_device *d = open_dev(tn_npu_backend_name(i), &opt);
        tn_rng r = {seed_of() + 5};
        sample s;
        make_sample(&s, &r, 100);
        run_scalar(fix->scalar, &s);
        bound b = bind(d, &s, false);
        relay y = {0};
        void *out[6][TN_NPU_MAX_OPS];
        for (int k = 0; k < 6; k++) {
            alloc_out(&s, out[k]);
            y.jobs[k] = make_job(&b, &s, out[k]);
            y.jobs[k].on_done = next_leg;
            y.jobs[k].user = &y;
        }
        assert_int_equal(tn_npu_submit(&y.jobs[0], NULL), TERN_OK);
        for (int k = 0; k < 6; k++) { /* a leg is submitted before the one before it is done */
            assert_int_equal(tn_npu_wait(&y.jobs[k]), TERN_OK);
            compare(&s, out[k], seed_of() + 5, "relay");
        }
        assert_int_equal(y.n_done, 6);
        assert_false(y.early);
        /* closing a graph waits for what runs on it */
        tn_npu_job last = make_job(&b, &s, out[0]);
        assert_int_equal(tn_npu_submit(&last, NULL), TERN_OK);
        unbind(&b);
        assert_true(tn_npu_done(&last));
        for (int k = 0; k < 6; k++) free_out(&s, out[k]);
        drop_sample(&s);
        tn_npu_close(&d);
    }
}

/* ---- allocation -------------------------------------------------------------------------------------- */

/* A life from open to close; the first failure ends it. Returns its status. */
static tern_status short_life(tn_ctx *ctx, const char *backend, scarce *m) {
    tn_npu_device *d = NULL;
    tn_npu_graph *g = NULL;
    tn_npu_weights *w = NULL;
    void *out = NULL;
    uint8_t in[64] = {0};
    tn_npu_graph_desc desc = plain();
    tern_status st = tn_npu_open(ctx, backend, NULL, &d, NULL);
    if (st == TERN_OK) st = tn_npu_compile(d, &desc, &g, NULL);
    if (st == TERN_OK) st = tn_npu_weights_open(d, 48, 64, false, &w, NULL);
    if (st == TERN_OK) {
        memset(tn_npu_weights_get(w).tiles, 0, 48 * 64);
        for (int n = 0; n < 48; n++) tn_npu_weights_get(w).scale[n] = 1, tn_npu_weights_get(w).col_sum[n] = 0;
        st = tn_npu_load(g, &w, NULL);
    }
    if (st == TERN_OK) st = tn_npu_mem_alloc(d, 48 * 4, &out, NULL);
    if (st == TERN_OK) {
        long before = m->made; /* executing allocates nothing */
        tn_npu_job j = {.graph = g, .n_rows = 1, .in = {in}, .out = {out}};
        assert_int_equal(tn_npu_submit(&j, NULL), TERN_OK);
        assert_int_equal(tn_npu_wait(&j), TERN_OK);
        assert_int_equal(m->made, before);
    }
    if (d) tn_npu_mem_free(d, out);
    tn_npu_graph_close(&g);
    tn_npu_weights_close(&w);
    tn_npu_close(&d);
    return st;
}

static void test_allocation_failures(void **state) {
    (void)state;
    for (size_t i = 0; tn_npu_backend_name(i); i++) {
        int n_failures = 0;
        for (int at = 0;; at++) {
            scarce m = {.left = at};
            tern_hooks h;
            scarce_hooks(&h, &m);
            tn_ctx ctx;
            tn_ctx_init(&ctx, &h);
            tern_status st = short_life(&ctx, tn_npu_backend_name(i), &m);
            for (int c = 0; c < TN_MEM_N_CATS; c++) assert_int_equal(ctx.live_bytes[c], 0);
            if (st == TERN_OK) break;
            assert_int_equal(st, TERN_E_MEMORY);
            n_failures++;
        }
        assert_true(n_failures >= 5);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layouts),
        cmocka_unit_test(test_definition),
        cmocka_unit_test(test_random_graphs),
        cmocka_unit_test(test_host_instruction_sets),
        cmocka_unit_test(test_staging),
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_longest_sum),
        cmocka_unit_test(test_rules),
        cmocka_unit_test(test_job_misuse),
        cmocka_unit_test(test_binding),
        cmocka_unit_test(test_memory_cap),
        cmocka_unit_test(test_sharing),
        cmocka_unit_test(test_borrowed_weights),
        cmocka_unit_test(test_packed_weights),
        cmocka_unit_test(test_damaged_blobs),
        cmocka_unit_test(test_concurrent),
        cmocka_unit_test(test_parts_on_threads),
        cmocka_unit_test(test_packed_without_memory),
        cmocka_unit_test(test_completion),
        cmocka_unit_test(test_allocation_failures),
        cmocka_unit_test(test_accumulators_without_factors),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
