/* Sparse attention as a pipeline of heads: the bits of the form in place for every shape of heads, device,
 * plan and schedule; stages that really overlap; launches that fusion saves; one clear error when the device
 * fails. */
#include "session/session.h"
#include "attention/sparse_impl.h"
#include "base/cpu.h"
#include "base/rng.h"
#include "lab/synth.h"
#include "model/head_ratio.h"
#include "npu/backend.h"
#include "quant/pack.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fixture/scarce.h"

/* ---- one layer, without an engine -------------------------------------------------------------------- */

enum { N_TEXT = 700, CAP = 768 };

typedef struct layer {
    tn_ctx ctx;
    tn_kernels kern;
    tn_hparams h;
    tn_npu_model m;
    tn_npu_backend backend; /* of the device, where a test changes it */
    tn_kv kv;
    tn_attn_options o;
    float scale_q, scale_k, *weight, *q;
    int32_t pos[N_TEXT];
} layer;

static layer *layer_open(const char *device, bool apart, int32_t n_heads, int32_t n_kv_heads, int32_t d,
                         int32_t window) {
    layer *l = calloc(1, sizeof *l);
    tern_error err = {0};
    tn_ctx_init(&l->ctx, NULL);
    tn_kernels_init(&l->kern, tn_cpu_flags(NULL));
    l->h = (tn_hparams){.n_layers = 1,
                        .n_heads = n_heads,
                        .n_kv_heads = n_kv_heads,
                        .d_head = d,
                        .window = window,
                        .attn_scale = 1 / sqrtf((float)d)};
    l->o = (tn_attn_options){
        .mode = TN_ATTN_SHADOW, .ratio = 0.2f, .n_buckets = 9, .pool_heads = 2, .threshold = 1};
    l->scale_q = 0.02f;
    l->scale_k = 0.02f;
    l->weight = malloc((size_t)n_heads * sizeof *l->weight);
    l->q = malloc((size_t)(N_TEXT * n_heads * d) * sizeof *l->q);
    tn_npu_options no = {.n_threads = 1, .apart = apart};
    if (tn_npu_open(&l->ctx, device, &no, &l->m.dev, &err) != TERN_OK ||
        tn_kv_open(&l->ctx, &l->h, CAP, TN_KV_F32, &l->kv, &err) != TERN_OK)
        fail_msg("%s", err.message);
    l->m.ctx = &l->ctx;
    l->m.kern = &l->kern;
    l->m.attn_scale_q = &l->scale_q;
    l->m.attn_scale_k = &l->scale_k;
    l->m.attn_head_weight = l->weight;
    tn_rng rng = {(uint64_t)(n_heads * 31 + n_kv_heads)};
    for (int32_t i = 0; i < n_heads; i++) l->weight[i] = (float)(0.3 + tn_rng_f64(&rng));
    float k[2][256];
    for (int32_t p = 0; p < N_TEXT; p++) {
        l->pos[p] = p;
        for (int32_t a = 0; a < n_kv_heads; a++) {
            for (int32_t j = 0; j < 2 * d; j++)
                k[j / d][j % d] = (float)(tn_rng_f64(&rng) - 0.5) * (float)(1 << a % 3);
            tn_kv_put(&l->kv, 0, a, p, k[0], k[1]);
        }
        for (int32_t j = 0; j < n_heads * d; j++)
            l->q[p * n_heads * d + j] =
                (float)(tn_rng_f64(&rng) - 0.5) * (float)(1 << j / d % 4); /* several buckets */
    }
    return l;
}

static void layer_close(layer *l) {
    tn_kv_close(&l->kv);
    tn_npu_close(&l->m.dev);
    free(l->weight);
    free(l->q);
    free(l);
}

/* Attention of the whole text in chunks of so many rows, tasks in the graph's order; out [N_TEXT][n_heads *
 * d]. */
static tern_status attend(layer *l, int32_t chunk, float *out, tn_attn_stats *stats, tern_error *err) {
    tn_sparse_attn *s = NULL;
    size_t row = (size_t)(l->h.n_heads * l->h.d_head);
    if (tn_sparse_attn_open(&l->ctx, &l->m, &l->h, &l->kern, &l->kv, &l->o, 2, 2, chunk, &s, err) != TERN_OK)
        fail_msg("%s", err->message);
    tn_attn_shape shape = tn_sparse_attn_shape(s);
    tern_status st = TERN_OK;
    for (int32_t p = 0, c = 0; p < N_TEXT && st == TERN_OK; p += chunk, c = !c) {
        tn_rows r = {.h = &l->h,
                     .kern = &l->kern,
                     .kv = &l->kv,
                     .n_rows = N_TEXT - p < chunk ? N_TEXT - p : chunk,
                     .pos = l->pos + p,
                     .slot = l->pos + p,
                     .tree_base = -1};
        const float *q = l->q + (size_t)p * row;
        float *to = out + (size_t)p * row;
        for (int32_t a = 0; a < l->h.n_kv_heads && st == TERN_OK; a++)
            st = tn_sparse_attn_plan(s, &r, c, 0, a, q, err);
        for (int32_t i = 0; i < r.n_rows && !shape.n_slots && st == TERN_OK; i += TN_ATTN_ROWS) {
            st = tn_sparse_attn_rows(s, &r, c, 0, q, to, i,
                                     i + TN_ATTN_ROWS < r.n_rows ? i + TN_ATTN_ROWS : r.n_rows, 0, err);
        }
        for (int32_t b = 0; b < shape.n_blocks; b++) {
            for (int step = TN_STEP_ESTIMATE; step <= TN_STEP_ATTEND; step++) {
                for (int32_t i = 0; i < shape.n_slots; i++) {
                    for (int32_t part = 0;
                         part < tn_sparse_attn_parts(s, (tn_step_kind)step) && st == TERN_OK; part++)
                        st = tn_sparse_attn_slot(s, &r, c, 0, (tn_step_kind)step, b, i, part, q, to, part % 2,
                                                 err);
                }
            }
        }
    }
    if (stats) tn_sparse_attn_stats_get(s, stats);
    tn_sparse_attn_close(&s);
    return st;
}

static void shapes_devices_and_plans(void **state) {
    (void)state;
    static const struct {
        int32_t n_heads, n_kv_heads, d, window;
    } shapes[] = {{7, 7, 16, 0}, {14, 2, 16, 0}, {5, 1, 32, 0}, {9, 3, 8, 100}, {13, 13, 4, 0}};
    static const char *const plans[] = {
        "paper", "in-order", "no-fusion", "no-overlap", "in-order,no-fusion,no-overlap", "as-printed"};
    static const struct {
        const char *name;
        bool apart;
    } devices[] = {{"host", false}, {"host", true}, {"scalar", false}};
    tern_error err = {0};
    bool quick = getenv("TERN_TEST_QUICK") != NULL; /* then each shape sees one share and two of the plans */
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (int32_t share = -1, n_share = 0; share <= 4; share += share < 0 ? 1 : 2, n_share++) {
            for (int dev = 0; dev < 3; dev++) {
                if (quick && n_share != (int32_t)i % 4) continue;
                layer *l = layer_open(devices[dev].name, devices[dev].apart, shapes[i].n_heads,
                                      shapes[i].n_kv_heads, shapes[i].d, shapes[i].window);
                size_t n = (size_t)(N_TEXT * l->h.n_heads * l->h.d_head);
                float *want = calloc(n, sizeof *want), *got = calloc(n, sizeof *got);
                tn_attn_stats a, b;
                l->o.share_rows = share;
                l->o.pool_heads = 1 + share % 3 / 2;
                for (int plan = 0; plan < (dev ? 1 : 6); plan++) {
                    if (quick && plan && plan != 1 + (int)i % 4) continue;
                    int32_t chunk = plan % 2 ? 224 : 96;
                    l->o.pipeline = TN_ATTN_PIPELINE_OFF;
                    if (attend(l, chunk, want, &a, &err) != TERN_OK) fail_msg("%s", err.message);
                    assert_true(tn_attn_plan_parse(plans[plan], &l->o.plan));
                    l->o.pipeline = dev ? TN_ATTN_PIPELINE_AUTO : TN_ATTN_PIPELINE_ON;
                    memset(got, 0, n * sizeof *got);
                    if (attend(l, chunk, got, &b, &err) != TERN_OK) fail_msg("%s", err.message);
                    if (memcmp(got, want, n * sizeof *got))
                        fail_msg("%d/%d heads, share %d, device %s, plan %s", l->h.n_heads, l->h.n_kv_heads,
                                 share, devices[dev].name, plans[plan]);
                    assert_int_equal(a.n_selected, b.n_selected);
                    assert_true(b.n_fused > 0 && b.n_plans > 0 && a.n_fused == 0);
                }
                free(want);
                free(got);
                layer_close(l);
            }
        }
    }
}

/* Heads of one bucket need fewer launches; every part of the plan that is left out makes it longer, or as
 * long. */
static void what_the_plan_saves(void **state) {
    (void)state;
    layer *l = layer_open("host", false, 8, 8, 16, 0);
    static const char *const plans[] = {"paper", "in-order", "no-fusion", "no-overlap"};
    tn_attn_stats st[4];
    tern_error err = {0};
    float *out = calloc((size_t)(N_TEXT * 8 * 16), sizeof *out);
    l->o.pipeline = TN_ATTN_PIPELINE_ON;
    l->o.share_rows = -1;
    /* a device where a launch costs more than what it does, and a CPU that is not in the way */
    l->m.attn_times = (tn_attn_times){.share = 0,
                                      .pools = 1,
                                      .n_widths = 4,
                                      .launch_us = {100, 105, 110, 115},
                                      .score_us = {1, 2, 3, 4},
                                      .select_us = 0.1,
                                      .attend_us = 0.2};
    for (int i = 0; i < 4; i++) {
        assert_true(tn_attn_plan_parse(plans[i], &l->o.plan));
        if (attend(l, 96, out, &st[i], &err) != TERN_OK) fail_msg("%s", err.message);
        assert_true(st[i].plan_max_ns > 0 && st[i].took_us > 0);
        if (i) assert_true(st[i].planned_us >= st[0].planned_us * (1 - 1e-9));
    }
    assert_int_equal(st[2].n_launches, st[2].n_fused);
    assert_int_equal(st[0].n_fused, st[2].n_fused);
    assert_true(st[0].n_launches < st[2].n_launches);
    assert_true(st[2].planned_us > 1.2 * st[0].planned_us && st[3].planned_us > st[0].planned_us);
    /* eight chunks: the plan of one serves until buckets change or the text has grown by half */
    assert_true(st[0].n_plans < 8);
    free(out);
    layer_close(l);
}

/* The planner gets the times of this device and a head's own share of the positions: what it says the text
 * takes is what planning with these costs gives. */
static void plan_with(const tn_attn_times *t) {
    layer *l = layer_open("host", false, 6, 6, 16, 0);
    float ratio[6], *out = calloc((size_t)(N_TEXT * 6 * 16), sizeof *out);
    tn_attn_stats st;
    tern_error err = {0};
    l->m.attn_times = *t;
    l->o.pipeline = TN_ATTN_PIPELINE_ON;
    l->o.share_rows = -1;
    l->o.n_buckets = 1;
    tn_head_ratios(l->weight, 6, l->o.ratio, ratio);
    enum { CHUNK = 96 };
    double want = 0, total = 0;
    for (int32_t from = 0, planned_for = 0; from < N_TEXT; from += CHUNK) {
        int32_t n = N_TEXT - from < CHUNK ? N_TEXT - from : CHUNK, end = from + n,
                rows = n < TN_ATTN_ROWS ? n : TN_ATTN_ROWS;
        if (!planned_for || end > planned_for * 1.5) {
            tn_headplan_costs c = {.n_heads = 6, .n_widths = t->n_widths};
            for (int i = 0; i < 6; i++) {
                c.topk_us[i] = rows * (t->select_us + t->select_kpos_us * end / 1e3);
                c.attend_us[i] = rows * (t->attend_us + t->attend_kpos_us * end * (double)ratio[i] / 1e3);
            }
            for (int i = 0; i < t->n_widths; i++) {
                c.width[i] = 1 << i;
                c.launch_us[i] = t->launch_us[i] + t->score_us[i] * rows * end / 1e6;
            }
            tn_headplan p;
            assert_int_equal(tn_headplan_make(&c, (tn_headplan_switches){0}, &p, &err), TERN_OK);
            total = p.total_us;
            planned_for = end;
        }
        want += total * n / rows;
    }
    if (attend(l, CHUNK, out, &st, &err) != TERN_OK) fail_msg("%s", err.message);
    assert_true(fabs(st.planned_us - want) < 1e-3 * want);
    free(out);
    layer_close(l);
}

/* Where the CPU is what takes long, and where it is the device, so that the last head's own time counts. */
static void plans_are_made_of_the_times(void **state) {
    (void)state;
    plan_with(&(tn_attn_times){.share = 0,
                               .pools = 1,
                               .n_widths = 3,
                               .launch_us = {30, 50, 70},
                               .score_us = {100, 180, 300},
                               .select_us = 0.5,
                               .select_kpos_us = 3,
                               .attend_us = 0.25,
                               .attend_kpos_us = 40});
    plan_with(&(tn_attn_times){.share = 0,
                               .pools = 1,
                               .n_widths = 1,
                               .launch_us = {4000},
                               .score_us = {100},
                               .select_us = 0.5,
                               .select_kpos_us = 3,
                               .attend_us = 0.25,
                               .attend_kpos_us = 300});
}

/* The packed mean scale is the middle bucket's, the others are half and twice as wide; a chunk takes the
 * bucket of its own largest query, and its codes fill their range. */
static void buckets_are_those_of_the_package(void **state) {
    (void)state;
    static const float times[] = {0.5f, 1, 2};
    for (int bucket = 0; bucket < 3; bucket++) {
        layer *l = layer_open("host", false, 4, 4, 16, 0);
        tern_error err = {0};
        tn_sparse_attn *s = NULL;
        l->o.share_rows = -1;
        for (int32_t j = 0; j < 64 * 4 * 16; j++)
            l->q[j] = l->scale_q * 127 * times[bucket] * (j % 5 ? 0.3f : j % 2 ? 1 : -1);
        l->o.pipeline = TN_ATTN_PIPELINE_ON;
        if (tn_sparse_attn_open(&l->ctx, &l->m, &l->h, &l->kern, &l->kv, &l->o, 1, 1, 64, &s, &err) !=
            TERN_OK)
            fail_msg("%s", err.message);
        for (int i = 0; i < 3; i++) {
            assert_true(s->scale_q[i] == l->scale_q * times[i] && s->scale_k[i] == l->scale_k * times[i]);
            const tn_npu_op *op = &tn_npu_graph_get(s->graphs[i * 3 + 2])->ops[0];
            assert_true(op->act_scale == s->scale_q[i] && op->k_scale == s->scale_k[2]);
        }
        tn_rows r = {.h = &l->h,
                     .kern = &l->kern,
                     .kv = &l->kv,
                     .n_rows = 64,
                     .pos = l->pos,
                     .slot = l->pos,
                     .tree_base = -1};
        for (int32_t a = 0; a < 4; a++)
            assert_int_equal(tn_sparse_attn_plan(s, &r, 0, 0, a, l->q, &err), TERN_OK);
        for (int32_t u = 0; u < 4; u++) assert_int_equal(s->plans[0].q_bucket[u], bucket);
        tn_sparse_attn_close(&s);
        layer_close(l);
    }
}

/* What a row may not see does not touch it: a value of a later position that is no number leaves every
 * earlier row as it was, also of the rows that share its list. */
static void nobody_sees_the_future(void **state) {
    (void)state;
    for (int32_t share = -1; share <= 4; share += share < 0 ? 3 : 2) {
        for (int on = 0; on < 2; on++) {
            layer *l = layer_open("host", false, 4, 2, 16, 0);
            tern_error err = {0};
            size_t row = 4 * 16;
            float *want = calloc(N_TEXT * row, sizeof *want), *got = calloc(N_TEXT * row, sizeof *got), k[16],
                  v[16];
            l->o.share_rows = share;
            l->o.pipeline = on ? TN_ATTN_PIPELINE_ON : TN_ATTN_PIPELINE_OFF;
            assert_int_equal(attend(l, 96, want, NULL, &err), TERN_OK);
            enum { AT = 499 }; /* in the middle of tiles of two and of four rows */
            for (int32_t a = 0; a < 2; a++) {
                for (int32_t j = 0; j < 16; j++) {
                    k[j] =
                        ((const float *)tn_kv_k(&l->kv, 0, a))[(size_t)(AT / TN_KV_PANEL) * 16 * TN_KV_PANEL +
                                                               (size_t)j * TN_KV_PANEL + AT % TN_KV_PANEL];
                    v[j] = NAN;
                }
                tn_kv_put(&l->kv, 0, a, AT, k, v);
            }
            assert_int_equal(attend(l, 96, got, NULL, &err), TERN_OK);
            assert_memory_equal(got, want, AT * row * sizeof *got);
            /* who is there sees it, where rows keep their own positions */
            for (size_t j = AT * row; share >= 0 && j < (AT + 1) * row; j++) assert_true(isnan(got[j]));
            free(want);
            free(got);
            layer_close(l);
        }
    }
}

/* More units than can be planned: in place where nobody insists. */
static void too_many_heads(void **state) {
    (void)state;
    layer *l = layer_open("host", true, 130, 130, 4, 0);
    tn_sparse_attn *s = NULL;
    tern_error err = {0};
    for (int on = 0; on < 2; on++) {
        l->o.share_rows = -1;
        l->o.pipeline = on ? TN_ATTN_PIPELINE_ON : TN_ATTN_PIPELINE_AUTO;
        assert_int_equal(
            tn_sparse_attn_open(&l->ctx, &l->m, &l->h, &l->kern, &l->kv, &l->o, 1, 1, 96, &s, &err),
            on ? TERN_E_UNSUPPORTED : TERN_OK);
        if (s) assert_int_equal(tn_sparse_attn_shape(s).n_slots, 0);
        tn_sparse_attn_close(&s);
    }
    assert_non_null(strstr(err.message, "--attention-pipeline off"));
    layer_close(l);
}

/* Allocation number i fails, for every i: an error of memory, nothing left behind. */
static void memory_fails(void **state) {
    (void)state;
    layer *l = layer_open("host", true, 4, 2, 16, 0);
    for (int share = -1; share < 1; share++) {
        scarce f = {.left = -1};
        l->o.share_rows = share;
        scarce_ctx(&l->ctx, &f); /* the layer itself is made */
        tern_status st = TERN_E_MEMORY;
        for (int i = 0; st != TERN_OK; i++) {
            tn_sparse_attn *s = NULL;
            tern_error err = {0};
            f.left = i;
            st = tn_sparse_attn_open(&l->ctx, &l->m, &l->h, &l->kern, &l->kv, &l->o, 1, 2, 96, &s, &err);
            assert_true(st == TERN_OK ? i > 40 && s : st == TERN_E_MEMORY && !s);
            tn_sparse_attn_close(&s);
            uint64_t live = 0;
            for (int c = 0; c < TN_MEM_N_CATS; c++) live += atomic_load(&l->ctx.live_bytes[c]);
            assert_int_equal(live, 0);
        }
    }
    tn_ctx_init(&l->ctx, NULL);
    layer_close(l);
}

static void failing(tn_npu_device *d, tn_npu_job *job) { tn_npu_complete(d, job, TERN_E_DEVICE); }

static void device_that_fails(void **state) {
    (void)state;
    layer *l = layer_open("host", true, 4, 2, 16, 0);
    const tn_npu_backend *good = l->m.dev->be;
    float *out = calloc((size_t)(N_TEXT * 4 * 16), sizeof *out);
    tern_error err = {0};
    l->backend = *good;
    l->backend.submit = failing;
    l->m.dev->be = &l->backend;
    assert_int_equal(attend(l, 96, out, NULL, &err), TERN_E_DEVICE);
    assert_non_null(strstr(err.message, "estimating attention of layer 0"));
    l->m.dev->be = good;
    assert_int_equal(attend(l, 96, out, NULL, &err), TERN_OK);
    free(out);
    layer_close(l);
}

static void times_are_measured(void **state) {
    (void)state;
    for (int apart = 0; apart < 2; apart++) {
        layer *l = layer_open("host", apart, 14, 2, 64, 0);
        tn_attn_times t, again;
        tern_error err = {0};
        if (tn_sparse_attn_measure(&l->ctx, &l->kern, l->m.dev, &l->h, &l->o, &t, &err) != TERN_OK)
            fail_msg("%s", err.message);
        assert_int_equal(t.n_widths, 2);
        assert_int_equal(t.share, 2); /* seven query heads a KV head */
        assert_int_equal(t.pools, 4); /* estimated in pairs here */
        assert_true(t.launch_us[1] + t.score_us[1] > 0 && t.attend_us + t.attend_kpos_us > 0 &&
                    t.select_us + t.select_kpos_us > 0);
        json_t *j = tn_attn_times_json(&t);
        assert_true(tn_attn_times_read(j, &again));
        assert_memory_equal(&t, &again, sizeof t);
        json_object_set_new(j, "select_us", json_real(-1));
        assert_false(tn_attn_times_read(j, &again));
        assert_int_equal(again.n_widths, 0);
        json_decref(j);
        layer_close(l);
    }
    tn_headplan_switches sw;
    assert_true(tn_attn_plan_parse("no-overlap,in-order", &sw) && sw.no_overlap && sw.in_order &&
                !sw.no_fusion);
    assert_false(tn_attn_plan_parse("paper,in-order", &sw));
    assert_false(tn_attn_plan_parse("", &sw));
    assert_false(tn_attn_plan_parse("in-order,", &sw));
}

/* ---- in the engine ------------------------------------------------------------------------------------ */

enum { N_PROMPT = 650, N_MODELS = 3 };

static const char *const models[N_MODELS] = {"tiny-qwen2", "tiny-phonelm",
                                             "tiny-gemma2"}; /* grouped; not; windows */
static char package[N_MODELS][256];
static int32_t prompt[N_PROMPT];

static int setup(void **state) {
    (void)state;
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tn_pool *pool;
    tern_error err = {0};
    tn_pack_options o;
    tn_pack_defaults(&o);
    o.calib_tokens = 512;
    if (tn_pool_open(&ctx, 2, &pool, &err) != TERN_OK) return -1;
    for (int m = 0; m < N_MODELS; m++) {
        char gguf[256];
        snprintf(gguf, sizeof gguf, TN_BINARY_DIR "/heads-%ld.gguf", (long)getpid());
        snprintf(package[m], sizeof package[m], TN_BINARY_DIR "/heads-%ld-%d.tern", (long)getpid(), m);
        if (tn_synth(&ctx, pool, models[m], gguf, 7, TN_F32, &err) != TERN_OK ||
            tn_pack(&ctx, gguf, package[m], &o, NULL, &err) != TERN_OK) {
            print_error("%s\n", err.message);
            return -1;
        }
        unlink(gguf);
    }
    tn_pool_close(&pool);
    for (int i = 0; i < N_PROMPT; i++) prompt[i] = (int32_t)((uint32_t)i * 2654435761u >> 8) % 500;
    return 0;
}

static int teardown(void **state) {
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        char profile[800];
        snprintf(profile, sizeof profile, "%s.profile", package[m]);
        unlink(profile);
        unlink(package[m]);
    }
    return 0;
}

static tern_options options(void) {
    tern_options o;
    tn_options_defaults(&o);
    o.n_threads = 2;
    o.attention = "shadow";
    o.attention_ratio = 0.2f;
    o.attention_threshold = 150;
    o.chunk = 96; /* the first is attended in full, the last is short */
    return o;
}

static void open_session(int model, const tern_options *o, tern_engine **e, tern_session **s) {
    tern_error err = {0};
    tern_session_options so;
    tern_session_options_defaults(&so);
    so.n_ctx = N_PROMPT + 8;
    if (tern_engine_open(package[model], o, e, &err) != TERN_OK ||
        tern_session_open(*e, &so, s, &err) != TERN_OK ||
        tern_session_prefill(*s, prompt, N_PROMPT, &err) != TERN_OK)
        fail_msg("%s", err.message);
}

static void logits_of(int model, const tern_options *o, float *out, tn_stats *stats) {
    tern_engine *e = NULL;
    tern_session *s = NULL;
    open_session(model, o, &e, &s);
    memcpy(out, tern_session_logits(s), 512 * sizeof *out);
    tn_session_stats(s, stats);
    tern_session_close(&s);
    tern_engine_close(&e);
}

static void schedules(void **state) {
    (void)state;
    static const char *const policies[] = {"in-order", "overlap", "ooe", "synergy"}, *const plans[] = {
                                                                                         "paper", "in-order",
                                                                                         "no-fusion,in-order",
                                                                                         "no-overlap"};
    for (int m = 0; m < N_MODELS; m += getenv("TERN_TEST_QUICK") ? 2 : 1) {
        for (int share = -1; share <= 0; share++) {
            float want[512], got[512];
            tn_stats a, b;
            tern_options o = options();
            o.attention_share = share;
            logits_of(m, &o, want, &a);
            for (int i = 0; i < 8; i++) {
                o.policy = policies[i % 4];
                o.attention_plan = plans[i % 4];
                o.attention_pipeline = i < 4 ? "on" : NULL;
                o.npu_apart = i >= 4;
                o.steal = i % 2 ? TN_STEAL_NONE : TN_STEAL_SHARE_CORES;
                o.n_threads = 1 + i % 3;
                o.cpu_threads = 1 + i / 2 % 2;
                logits_of(m, &o, got, &b);
                if (memcmp(got, want, sizeof got))
                    fail_msg("%s, share %d, policy %s, plan %s, %s", models[m], share, policies[i % 4],
                             plans[i % 4], i < 4 ? "host" : "apart");
                assert_true(a.attn_fused == 0 && b.attn_fused > 0 && b.attn_plans > 0 &&
                            a.attn_selected == b.attn_selected);
            }
        }
    }
}

/* Counts pairs of an estimate and a selection or attention of the same chunk and layer that ran at the same
 * time. */
static int overlaps(const char *plan) {
    tern_options o = options();
    tern_engine *e = NULL;
    tern_session *s = NULL;
    o.npu_apart = o.trace = true;
    o.steal = TN_STEAL_NONE;
    o.attention_share = -1;
    o.attention_plan = plan;
    open_session(1, &o, &e, &s);
    int n = 0, n_est = 0;
    const tn_timeline *t = s->timeline;
    for (int32_t a = tn_timeline_first_track(t, TN_LANE_NPU); a < tn_timeline_n_workers(t); a++) {
        for (int32_t i = 0; i < tn_timeline_n_events(t, a); i++) {
            const tn_event *x = tn_timeline_event(t, a, i);
            if (strcmp(x->name, "estimate")) continue;
            n_est++;
            for (int32_t b = 0; b < tn_timeline_n_workers(t); b++) {
                for (int32_t k = 0; k < tn_timeline_n_events(t, b); k++) {
                    const tn_event *y = tn_timeline_event(t, b, k);
                    bool head = !strcmp(y->name, "select") || !strcmp(y->name, "attend");
                    n += head && x->run == y->run && x->chunk == y->chunk && x->layer == y->layer &&
                         x->start_ns < y->end_ns && y->start_ns < x->end_ns;
                }
            }
        }
    }
    assert_true(n_est > 0);
    tern_session_close(&s);
    tern_engine_close(&e);
    return n;
}

static void stages_overlap(void **state) {
    (void)state;
    int n = 0;
    for (int i = 0; i < 200 && !n; i++)
        n = overlaps(
            "paper"); /* the plan allows it; whether it happens, the machine's other work decides too */
    assert_true(n > 0);
    assert_int_equal(overlaps("no-overlap"), 0);
}

static void refusals(void **state) {
    (void)state;
    tern_engine *e = NULL;
    tern_error err = {0};
    tern_options o = options();
    o.attention_pipeline = "maybe";
    assert_int_equal(tern_engine_open(package[0], &o, &e, &err), TERN_E_INVALID);
    o = options();
    o.attention_plan = "no-order";
    assert_int_equal(tern_engine_open(package[0], &o, &e, &err), TERN_E_INVALID);
    o = options();
    o.attention = "float-sparse";
    o.attention_pipeline = "on";
    assert_int_equal(tern_engine_open(package[0], &o, &e, &err), TERN_E_INVALID);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_devices_and_plans),
        cmocka_unit_test(what_the_plan_saves),
        cmocka_unit_test(plans_are_made_of_the_times),
        cmocka_unit_test(buckets_are_those_of_the_package),
        cmocka_unit_test(nobody_sees_the_future),
        cmocka_unit_test(too_many_heads),
        cmocka_unit_test(memory_fails),
        cmocka_unit_test(device_that_fails),
        cmocka_unit_test(times_are_measured),
        cmocka_unit_test(schedules),
        cmocka_unit_test(stages_overlap),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
