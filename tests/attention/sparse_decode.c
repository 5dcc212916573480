/* Sparse attention of decode forwards: the selection that the estimates call for, written out again; the same
 * bits in every draft, tree, schedule and history as token by token; full where it should be. */
#include "base/cpu.h"
#include "base/rng.h"
#include "session/session.h"
#include "model/head_ratio.h"
#include "lab/synth.h"
#include "npu/backend.h"
#include "quant/pack.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fixture/scarce.h"
#include "fixture/fixture.h"

/* ---- one layer of nothing but attention, against brute force ------------------------------------------- */

enum { CAP = 1536, MAX_D = 64, MAX_HEADS = 80 };

typedef struct rig {
    tn_ctx ctx;
    tn_kernels kern;
    tn_hparams h;
    tn_kv kv;
    tn_npu_model m;
    tn_attn_options o;
    tn_sparse_attn *s;
    float scale_q, scale_k, weight[MAX_HEADS], ratio[MAX_HEADS];
    float *scratch;
    tn_rng rng;
    float loud; /* keys are this much larger after position `loud_from` */
    int32_t loud_from;
} rig;

static float noise(rig *g) {
    return (float)(tn_rng_f64(&g->rng) + tn_rng_f64(&g->rng) + tn_rng_f64(&g->rng) - 1.5);
}

static void put_position(rig *g, int32_t slot, int32_t pos) {
    float k[MAX_D], v[MAX_D];
    for (int a = 0; a < g->h.n_kv_heads; a++) {
        for (int i = 0; i < g->h.d_head; i++) {
            k[i] = noise(g) * (pos >= g->loud_from ? g->loud : 1);
            v[i] = noise(g);
        }
        tn_kv_put(&g->kv, 0, a, slot, k, v);
    }
}

static void rig_open(rig *g, int32_t n_kv, int32_t n_group, int32_t d, int32_t window,
                     const tn_attn_options *o, uint64_t seed) {
    tern_error err = {0};
    *g = (rig){.rng = {seed}, .loud = 1, .o = *o, .scale_q = 1.2f / 127, .scale_k = 1.3f / 127};
    tn_ctx_init(&g->ctx, NULL);
    tn_kernels_init(&g->kern, tn_cpu_flags(NULL));
    g->h = (tn_hparams){.n_layers = 1,
                        .n_heads = n_kv * n_group,
                        .n_kv_heads = n_kv,
                        .d_head = d,
                        .window = window,
                        .attn_scale = 2 / sqrtf((float)d)};
    must(tn_kv_open(&g->ctx, &g->h, CAP, TN_KV_F32, &g->kv, &err), &err);
    for (int i = 0; i < g->h.n_heads; i++) g->weight[i] = 0.5f + (float)tn_rng_f64(&g->rng);
    tn_head_ratios(g->weight, (size_t)g->h.n_heads, o->decode_ratio, g->ratio);
    g->m = (tn_npu_model){.ctx = &g->ctx,
                          .kern = &g->kern,
                          .attn_scale_q = &g->scale_q,
                          .attn_scale_k = &g->scale_k,
                          .attn_head_weight = g->weight};
    tn_npu_options device = {.n_threads = 1};
    must(tn_npu_open(&g->ctx, "host", &device, &g->m.dev, &err), &err);
    must(tn_sparse_attn_open(&g->ctx, &g->m, &g->h, &g->kern, &g->kv, o, 1, 1, CAP, &g->s, &err), &err);
    g->scratch = tn_alloc(&g->ctx, TN_MEM_ACTIVATIONS, tn_rows_scratch(&g->h, g->kv.cap_tok), sizeof(float));
}

static void rig_close(rig *g) {
    tn_sparse_attn_close(&g->s);
    tn_npu_close(&g->m.dev);
    tn_kv_close(&g->kv);
    tn_free(&g->ctx, g->scratch);
}

static float key_at(const rig *g, int a, int32_t slot, int i) {
    return ((const float *)tn_kv_k(&g->kv, 0,
                                   a))[(size_t)(slot / TN_KV_PANEL) * (size_t)g->h.d_head * TN_KV_PANEL +
                                       (size_t)i * TN_KV_PANEL + (size_t)(slot % TN_KV_PANEL)];
}

static int bucket_of(float scale, float want) {
    int best = 0;
    for (int i = 1; i < 3; i++) {
        float a = scale * (i == 1 ? 1.0f : 2.0f), b = scale * (best == 0 ? 0.5f : best == 1 ? 1.0f : 2.0f);
        if (fabsf(a - want) < fabsf(b - want)) best = i;
    }
    return best;
}

static int int8_of(float x, float scale, int bucket) {
    float y = nearbyintf(x * (1 / (scale * (bucket == 0 ? 0.5f : bucket == 1 ? 1.0f : 2.0f))));
    return (int)(y > 127 ? 127 : y < -127 ? -127 : y);
}

static const int64_t *sort_by;
static int by_score(const void *x, const void *y) {
    int32_t a = *(const int32_t *)x, b = *(const int32_t *)y;
    return sort_by[a] != sort_by[b] ? sort_by[a] < sort_by[b] ? 1 : -1 : a < b ? -1 : 1;
}

static int ascending(const void *x, const void *y) { return *(const int32_t *)x - *(const int32_t *)y; }

/* The row's text is slot[0..n): what its query heads of KV head a (q [group][d]) should give. */
static void brute_force(const rig *g, int a, const int32_t *slot, int32_t n_text, const float *q,
                        float *out) {
    int d = g->h.d_head, group = g->h.n_heads / g->h.n_kv_heads;
    int32_t first = g->h.window && n_text > g->h.window ? n_text - g->h.window : 0,
            border = n_text < 32 ? 0 : (n_text - 32) / 32 * 32, n = n_text - first;
    static int32_t list[CAP];
    static int64_t merged[CAP];
    int32_t n_list = 0;
    float share = 0;
    for (int i = 0; i < group; i++) share += g->ratio[a * group + i];
    int32_t k = (int32_t)ceilf(share / (float)group * (float)n);
    if (k < TN_ATTN_DECODE_LEAST) k = TN_ATTN_DECODE_LEAST;
    if (n < g->o.threshold || border <= first || k >= n || g->o.decode_ratio >= 1) {
        for (int32_t p = first; p < n_text; p++) list[n_list++] = p;
    } else {
        float max = 0;
        for (int32_t p = 0; p < border; p++) {
            for (int i = 0; i < d; i++)
                max = fabsf(key_at(g, a, slot[p], i)) > max ? fabsf(key_at(g, a, slot[p], i)) : max;
        }
        int kb = bucket_of(g->scale_k, max / 127), pool = (group + 31) / 32;
        for (int32_t p = first; p < border; p++) merged[p] = INT64_MIN;
        static float x[MAX_HEADS][MAX_D];
        float most = 0;
        int n_in = 0;
        for (int h = 0; h < group; h += pool, n_in++) {
            int m = group - h < pool ? group - h : pool;
            for (int i = 0; i < d; i++) {
                float sum = q[h * d + i];
                for (int j = 1; j < m; j++) sum += q[(h + j) * d + i];
                x[n_in][i] = m > 1 ? sum * (1 / sqrtf((float)m)) : sum;
                most = fabsf(x[n_in][i]) > most ? fabsf(x[n_in][i]) : most;
            }
        }
        int qb = bucket_of(g->scale_q, most / 127);
        for (int h = 0; h < n_in; h++) {
            static int64_t score[CAP];
            int64_t top = INT64_MIN;
            for (int32_t p = first; p < border; p++) {
                score[p] = 0;
                for (int i = 0; i < d; i++)
                    score[p] +=
                        int8_of(x[h][i], g->scale_q, qb) * int8_of(key_at(g, a, slot[p], i), g->scale_k, kb);
                if ((p >= border - 256 || p < first + 64) && score[p] > top) top = score[p];
            }
            for (int32_t p = first; p < border; p++)
                merged[p] = score[p] - top > merged[p] ? score[p] - top : merged[p];
        }
        for (int32_t p = first; p < border; p++) list[n_list++] = p;
        sort_by = merged;
        qsort(list, (size_t)n_list, sizeof *list, by_score);
        n_list = k - (n_text - border);
        qsort(list, (size_t)n_list, sizeof *list, ascending);
        for (int32_t p = border; p < n_text; p++) list[n_list++] = p;
    }
    static float kp[CAP * MAX_D], v[CAP * MAX_D], scratch[24 * (CAP + 100)];
    for (int32_t j = 0; j < n_list; j++) {
        for (int i = 0; i < d; i++) kp[j / 32 * d * 32 + i * 32 + j % 32] = key_at(g, a, slot[list[j]], i);
        memcpy(v + j * d, (const float *)tn_kv_v(&g->kv, 0, a) + (size_t)slot[list[j]] * (size_t)d,
               (size_t)d * sizeof *v);
    }
    int32_t zero = 0;
    for (int i = 0; i < group; i++) {
        tn_attn_f32_ref(&(tn_attn_f32_args){.q = q + i * d,
                                            .q_stride = (size_t)d,
                                            .out = out + i * d,
                                            .out_stride = (size_t)d,
                                            .k_panels = kp,
                                            .v = v,
                                            .n_rows = 1,
                                            .d_head = (size_t)d,
                                            .scale = g->h.attn_scale,
                                            .first_pos = &zero,
                                            .end_pos = &n_list,
                                            .scratch = scratch});
    }
}

/* A forward after n0 positions: n rows, one after another or (parent given) a tree. */
static void check_forward(rig *g, int32_t n0, int32_t n, bool is_tree, const char *what) {
    tern_error err = {0};
    int32_t pos[32], slot[32];
    tn_tree t = {0};
    for (int32_t i = 0; i < n; i++) {
        int32_t back = tn_rng_below(&g->rng, 4) ? 1 : i;
        tn_tree_add(&t,
                    !i        ? -1
                    : is_tree ? i - 1 - (int32_t)tn_rng_below(&g->rng, (uint64_t)(back < i ? back : i))
                              : i - 1,
                    0);
        pos[i] = n0 + t.depth[i];
        slot[i] = n0 + i;
        put_position(g, slot[i], pos[i]);
    }
    tn_rows r = {.h = &g->h,
                 .kern = &g->kern,
                 .kv = &g->kv,
                 .n_rows = n,
                 .pos = pos,
                 .slot = slot,
                 .tree_base = is_tree ? n0 : -1,
                 .tree_mask = is_tree ? t.mask : NULL,
                 .n_tree_words = is_tree};
    static float q[32 * MAX_HEADS * MAX_D], out[32 * MAX_HEADS * MAX_D], want[MAX_HEADS * MAX_D];
    size_t row = (size_t)g->h.n_heads * (size_t)g->h.d_head, part = row / (size_t)g->h.n_kv_heads;
    for (size_t i = 0; i < (size_t)n * row; i++) q[i] = noise(g) * (i / part % 3 == 1 ? 3 : 1);
    for (size_t i = 0; i < (size_t)n * row; i++) out[i] = NAN;
    tn_sparse_attn_rewind(g->s, n0);
    int32_t n_rounds = tn_sparse_decode_rounds(g->s, &r, 0);
    for (int32_t round = 0; round < n_rounds; round++) {
        for (int a = 0; a < g->h.n_kv_heads; a++) {
            tn_sparse_decode_plan(g->s, &r, 0, a, round);
            for (int32_t i = 0; i < n; i++)
                must(tn_sparse_decode_row(g->s, &r, 0, a, i, round, q, out, g->scratch, 0, &err), &err);
        }
    }
    for (int32_t i = 0; i < n && n_rounds; i++) {
        static int32_t text[CAP];
        for (int32_t p = 0; p < n0; p++) text[p] = p;
        for (int32_t j = i; j >= 0; j = t.parent[j]) text[n0 + t.depth[j]] = slot[j];
        for (int a = 0; a < g->h.n_kv_heads; a++) {
            brute_force(g, a, text, pos[i] + 1, q + (size_t)i * row + (size_t)a * part, want);
            if (memcmp(want, out + (size_t)i * row + (size_t)a * part, part * sizeof(float)))
                fail_msg("%s: %d rows behind %d, row %d (position %d), KV head %d", what, n, n0, i, pos[i],
                         a);
        }
    }
    /* as decoding would: a path is kept, its keys and values move to where they belong */
    int32_t leaf = (int32_t)tn_rng_below(&g->rng, (uint64_t)n), path[32];
    for (int32_t j = leaf; j >= 0; j = t.parent[j]) path[t.depth[j]] = j;
    for (int32_t i = 0; i <= t.depth[leaf]; i++) tn_kv_move(&g->kv, slot[path[i]], n0 + i);
}

static tn_attn_options unit_options(float ratio) {
    return (tn_attn_options){.mode = TN_ATTN_FULL,
                             .decode = true,
                             .ratio = 0.2f,
                             .decode_ratio = ratio,
                             .n_buckets = 9,
                             .threshold = 1,
                             .pool_heads = TN_ATTN_POOL};
}

static void against_brute_force(void **state) {
    (void)state;
    static const struct {
        int32_t n_kv, n_group, d, window;
        float ratio;
        int32_t threshold, share;
        bool parts;
    } cases[] = {
        {2, 3, 32, 0, 0.3f, 1, 0, true},    {1, 1, 64, 0, 0.3f, 1, -1, true},
        {2, 7, 32, 700, 0.5f, 1, 0, true},  {1, 40, 16, 0, 0.2f, 1, 0, true},
        {1, 2, 36, 300, 0.01f, 1, 0, true}, {2, 2, 32, 0, 0.4f, 900, 0, true},
        {1, 3, 32, 0, 0.3f, 1, 0, false},
    };
    const bool quick =
        getenv("TERN_TEST_QUICK") != NULL; /* then every second case, each either quiet or loud */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i += quick ? 2 : 1) {
        const bool louder = i / 2 % 2;
        for (int loud = quick && louder; loud < (quick && !louder ? 1 : 2); loud++) {
            rig g;
            char what[32];
            snprintf(what, sizeof what, "case %d%s", (int)i, loud ? ", loud" : "");
            tn_attn_options o = unit_options(cases[i].ratio);
            o.threshold = cases[i].threshold;
            o.share_rows = cases[i].share;
            rig_open(&g, cases[i].n_kv, cases[i].n_group, cases[i].d, cases[i].window, &o, 7 + i);
            g.m.dev->caps.has_parts = cases[i].parts;
            if (loud) { /* the keys' scale changes while texts are being taken back */
                g.loud = 3;
                g.loud_from = 864;
            }
            int32_t n = 0;
            for (; n < 850; n++) put_position(&g, n, n);
            for (int step = 0; step < 14; step++) {
                check_forward(&g, n, step % 3 == 2 ? 1 : 1 + (int32_t)tn_rng_below(&g.rng, 32), step % 2,
                              what);
                n += 12 + (int32_t)tn_rng_below(&g.rng, 30);
                if (step % 5 == 4) n -= 40;
                if (loud && step == 8) n = 860; /* to where keys are quiet again */
                for (int32_t p = n - 60; p < n; p++)
                    put_position(&g, p, p); /* what was not kept; a text that was taken back */
                tn_sparse_attn_rewind(g.s, n - 60);
            }
            tn_attn_stats t;
            tn_sparse_attn_stats_get(g.s, &t);
            assert_true(t.n_rows > 0 && t.n_selected < t.n_seen && t.n_launches > 0);
            if (loud) assert_true(t.n_requantised > 0);
            rig_close(&g);
        }
    }
}

static void estimates_find_what_matters(void **state) {
    (void)state;
    rig g;
    tn_attn_options o = unit_options(0.4f);
    o.check = true;
    rig_open(&g, 2, 3, 32, 0, &o, 3);
    int32_t n = 0;
    for (; n < 1000; n++) put_position(&g, n, n);
    for (int step = 0; step < 6; step++) check_forward(&g, n, 9, step % 2, "check");
    tn_attn_stats t;
    tn_sparse_attn_stats_get(g.s, &t);
    double recall = (double)t.n_found / (double)t.n_true, mass = t.mass / (double)t.n_rows;
    print_message("recall %.4f, softmax %.4f of %.3f\n", recall, mass,
                  (double)t.n_selected / (double)t.n_seen);
    assert_true(recall > 0.95 && mass > 0.5 && mass < 1);
    rig_close(&g);
}

/* ---- sessions ------------------------------------------------------------------------------------------ */

static const char *const names[] = {"tiny-qwen2", "tiny-gemma2"}; /* plain; windows and soft caps */
enum { N_MODELS = sizeof names / sizeof *names, N_PROMPT = 600, CTX = 960 };
static char gguf[N_MODELS][256], package[N_MODELS][256], saved[256];
static int32_t prompt[CTX];

static int setup(void **state) {
    (void)state;
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tn_pool *pool;
    tern_error err;
    if (tn_pool_open(&ctx, 2, &pool, &err) != TERN_OK) return -1;
    snprintf(saved, sizeof saved, TN_BINARY_DIR "/sparse-decode-%ld.state", (long)getpid());
    for (int i = 0; i < N_MODELS; i++) {
        snprintf(gguf[i], sizeof gguf[i], TN_BINARY_DIR "/sparse-decode-%d-%ld.gguf", i, (long)getpid());
        snprintf(package[i], sizeof package[i], TN_BINARY_DIR "/sparse-decode-%d-%ld.tern", i,
                 (long)getpid());
        tn_pack_options o;
        tn_pack_defaults(&o);
        o.calib_tokens = 512;
        o.head_importance = true;
        if (tn_synth(&ctx, pool, names[i], gguf[i], 5, TN_F32, &err) != TERN_OK ||
            tn_pack(&ctx, gguf[i], package[i], &o, NULL, &err) != TERN_OK) {
            print_error("%s\n", err.message);
            return -1;
        }
    }
    tn_pool_close(&pool);
    for (int i = 0; i < CTX; i++) prompt[i] = (int32_t)((uint32_t)i * 2654435761u >> 8) % 500;
    return 0;
}

static int teardown(void **state) {
    (void)state;
    unlink(saved);
    for (int i = 0; i < N_MODELS; i++) {
        char profile[600];
        snprintf(profile, sizeof profile, "%s.profile", package[i]);
        unlink(profile);
        unlink(package[i]);
        unlink(gguf[i]);
    }
    return 0;
}

static tern_options options(const char *mode, bool decode, float ratio) {
    tern_options o;
    tn_options_defaults(&o);
    o.n_threads = 2;
    o.attention = mode;
    o.attention_decode = decode;
    o.attention_ratio = ratio;
    o.attention_threshold = 1;
    return o;
}

typedef struct run {
    tern_engine *e;
    tern_session *s;
} run;

static run open_run(int model, const tern_options *o) {
    tern_engine *e = fixture_engine(package[model], o);
    if (e->model->h.window) e->model->h.window = 400; /* so that windows begin after the text's begin */
    return (run){e, fixture_session(e, CTX, "all")};
}

static void close_run(run *r) {
    tern_session_close(&r->s);
    tern_engine_close(&r->e);
}

static void prefill(run *r, const int32_t *text, size_t n) {
    tern_error err = {0};
    must(tern_session_prefill(r->s, text, n, &err), &err);
}

static void steps(run *r, const int32_t *text, int n) {
    tern_error err = {0};
    for (int i = 0; i < n; i++) must(tern_session_step(r->s, text[i], &err), &err);
}

static void same_logits(const run *a, const run *b) {
    assert_memory_equal(tern_session_logits(a->s), tern_session_logits(b->s),
                        (size_t)a->e->model->h.n_vocab * sizeof(float));
}

static void full_where_it_should_be(void **state) {
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        tern_options o = options("full", false, 0.2f);
        run full = open_run(m, &o);
        prefill(&full, prompt, N_PROMPT);
        steps(&full, prompt, 40);
        for (int i = 0; i < 3; i++) {
            o = options("full", true, i == 1 ? 1.0f : i == 2 ? 0 : 0.2f); /* 0: the default */
            if (i == 0) o.attention_threshold = N_PROMPT + 41;
            run r = open_run(m, &o);
            prefill(&r, prompt, N_PROMPT);
            steps(&r, prompt, 40);
            tn_stats t;
            tn_session_stats(r.s, &t);
            if (i < 2) same_logits(&full, &r);
            else
                assert_memory_not_equal(tern_session_logits(r.s), tern_session_logits(full.s),
                                        64); /* or this test tests nothing */
            assert_int_equal(t.attn_rows > 0, i == 2);
            close_run(&r);
        }
        close_run(&full);
    }
}

/* Nobody asks: a long context decodes sparsely from TN_ATTN_DECODE_AUTO positions on, a shorter one and exact options never. */
static void by_itself_where_long(void **state) {
    (void)state;
    enum { FROM = TN_ATTN_DECODE_AUTO, BEFORE = 3 };
    int32_t *text = malloc((FROM + BEFORE) * sizeof *text);
    for (int i = 0; i < FROM + BEFORE; i++) text[i] = prompt[i % N_PROMPT];
    for (int way = 0; way < 3; way++) {
        tern_options o;
        tn_options_defaults(&o);
        o.n_threads = 2;
        o.exact = way == 1;
        tern_error err = {0};
        tern_session_options so;
        tern_session_options_defaults(&so);
        so.n_ctx = way == 2 ? FROM - 1 : FROM + BEFORE;
        run r = {0};
        must(tern_engine_open(package[0], &o, &r.e, &err), &err);
        must(tern_session_open(r.e, &so, &r.s, &err), &err);
        const int n_read = so.n_ctx - 2 * BEFORE;
        prefill(&r, text, (size_t)n_read);
        tn_stats t;
        tn_session_stats(r.s, &t);
        const uint64_t of_prompt = t.attn_rows,
                       n_rows = (uint64_t)r.e->model->h.n_heads * (uint64_t)r.e->model->h.n_layers;
        assert_int_equal(of_prompt > 0, way != 1);
        for (int i = n_read; i < so.n_ctx; i++) {
            steps(&r, text + i, 1);
            tn_session_stats(r.s, &t);
            const uint64_t n_sparse = way == 0 && i + 1 >= FROM ? (uint64_t)(i + 2 - FROM) : 0;
            assert_int_equal(t.attn_rows - of_prompt, n_sparse * n_rows);
        }
        close_run(&r);
    }
    free(text);
}

static void threads_and_instruction_sets(void **state) {
    (void)state;
    static const char *const isas[] = {"scalar", "avx2", "avx512", "neon", "dotprod"};
    for (int m = 0; m < N_MODELS; m++) {
        tern_options o = options("shadow", true, 0.2f);
        run want = open_run(m, &o);
        prefill(&want, prompt, N_PROMPT);
        steps(&want, prompt, 4);
        for (int i = 0; i < 8; i++) {
            if (i > 1 && i < 7) setenv("TERN_CPU", isas[i - 2], 1);
            o.npu_apart = i == 7;
            o.n_threads = i == 0 ? 1 : i == 1 ? 3 : 2;
            run r = open_run(m, &o);
            unsetenv("TERN_CPU");
            prefill(&r, prompt, N_PROMPT);
            steps(&r, prompt, 4);
            same_logits(&want, &r);
            close_run(&r);
        }
        close_run(&want);
    }
}

/* Every row of a tree has the bits of decoding along its ancestors, token by token, and what is kept goes on
 * with the same bits. */
static void trees(void **state) {
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        tern_error err = {0};
        tern_options o = options(m ? "shadow" : "full", true, 0.3f);
        run a = open_run(m, &o), plain = open_run(m, &o);
        size_t v = (size_t)a.e->model->h.n_vocab;
        tn_rng rng = {17 + (uint64_t)m};
        int32_t text[CTX], n = N_PROMPT;
        memcpy(text, prompt, sizeof text);
        prefill(&a, prompt, N_PROMPT);
        prefill(&plain, prompt, N_PROMPT);
        for (int step = 0; step < 8; step++) {
            tn_tree t = {0};
            int32_t n_rows = step == 1 ? TN_TREE_MAX : 1 + (int32_t)tn_rng_below(&rng, TN_TREE_MAX);
            for (int32_t i = 0; i < n_rows; i++) {
                int32_t back = step % 3 == 0 ? 1 : step % 3 == 1 ? 2 : i;
                tn_tree_add(&t,
                            !i ? -1 : i - 1 - (int32_t)tn_rng_below(&rng, (uint64_t)(back < i ? back : i)),
                            (int32_t)tn_rng_below(&rng, v));
            }
            must(tn_session_verify(a.s, &t, &err), &err);
            for (int32_t i = 0; i < n_rows; i++) {
                for (int32_t j = i; j >= 0; j = t.parent[j]) text[n + t.depth[j]] = t.token[j];
                tn_session_truncate(plain.s, n);
                if (step % 2) prefill(&plain, text, (size_t)(n + t.depth[i] + 1)); /* one forward */
                else steps(&plain, text + n, t.depth[i] + 1);
                if (memcmp(tern_session_logits(plain.s), a.s->tree_logits + (size_t)i * v, v * sizeof(float)))
                    fail_msg("%s step %d: row %d of %d at depth %d has other bits", names[m], step, i, n_rows,
                             t.depth[i]);
            }
            int32_t leaf = (int32_t)tn_rng_below(&rng, (uint64_t)n_rows), path[TN_TREE_MAX],
                    n_path = t.depth[leaf] + 1;
            for (int32_t j = leaf, k = n_path; k-- > 0; j = t.parent[j]) {
                path[k] = j;
                text[n + k] = t.token[j];
            }
            for (int32_t k = 0; k < n_path; k++) tn_session_keep(a.s, &t, path[k]);
            tn_session_settle(a.s, leaf);
            tn_session_truncate(plain.s, n);
            steps(&plain, text + n, n_path);
            n += n_path;
            same_logits(&a, &plain);
        }
        close_run(&a);
        close_run(&plain);
    }
}

static void drafts_change_nothing(void **state) {
    (void)state;
    static const char *const drafters[] = {"none", "lookup", "all"};
    for (int m = 0; m < N_MODELS; m++) {
        for (int threads = 1; threads <= 2; threads++) {
            fixture_heard h[3];
            for (int i = 0; i < 3; i++) {
                tern_options o = options("full", true, 0.25f);
                o.n_threads = threads;
                run r = open_run(m, &o);
                int32_t text[N_PROMPT];
                for (int j = 0; j < N_PROMPT; j++) text[j] = prompt[j % 37 + j / 200];
                prefill(&r, text, N_PROMPT);
                tern_generate_options g;
                fixture_hear(&g, 150, &h[i]);
                g.draft = drafters[i];
                g.draft_eager = true;
                tern_generate_result res;
                tern_error err = {0};
                must(tern_session_generate(r.s, &g, &res, &err), &err);
                tn_stats t;
                tn_session_stats(r.s, &t);
                assert_true(t.attn_rows > 0 && t.attn_selected < t.attn_seen);
                tn_draft_stats d;
                tn_session_draft_stats(r.s, &d);
                if (i == 2) assert_true(d.n_rows > d.n_steps); /* drafts were verified */
                close_run(&r);
                assert_int_equal(h[i].n, 150);
                assert_memory_equal(h[i].ids, h[0].ids, sizeof h[0].ids);
            }
        }
    }
}

/* A text taken back, saved, loaded, after a prompt attended in full or sparsely: as if decoded at once. */
static void histories(void **state) {
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        tern_error err = {0};
        tern_options o = options("full", true, 0.2f);
        run a = open_run(m, &o), b = open_run(m, &o);
        prefill(&a, prompt, N_PROMPT);
        prefill(&b, prompt, N_PROMPT);
        steps(&a, prompt + 3, 90);
        tn_session_truncate(a.s, N_PROMPT + 10);
        steps(&a, prompt + 50, 70);
        steps(&b, prompt + 3, 10);
        steps(&b, prompt + 50, 70);
        same_logits(&a, &b);
        must(tern_session_save(b.s, saved, &err), &err);
        prefill(&a, prompt + 100, N_PROMPT); /* another text */
        steps(&a, prompt, 5);
        must(tern_session_load(a.s, saved, &err), &err);
        steps(&a, prompt, 40);
        steps(&b, prompt, 40);
        same_logits(&a, &b);
        close_run(&a);
        close_run(&b);
        /* in full after `shadow`: only decoding differs */
        o = options("shadow", true, 0.2f);
        a = open_run(m, &o);
        prefill(&a, prompt, N_PROMPT);
        must(tern_session_save(a.s, saved, &err), &err);
        steps(&a, prompt, 40);
        o = options("full", true, 0.2f);
        b = open_run(m, &o);
        must(tern_session_load(b.s, saved, &err), &err);
        steps(&b, prompt, 40);
        same_logits(&a, &b);
        close_run(&a);
        close_run(&b);
    }
}

static const tn_npu_backend *real;
static atomic_int n_fails; /* estimates that still fail */

static void failing_submit(tn_npu_device *d, tn_npu_job *job) {
    if (job->graph->desc.kind != TN_NPU_QK || atomic_fetch_sub(&n_fails, 1) <= 0) real->submit(d, job);
    else tn_npu_complete(d, job, TERN_E_DEVICE);
}

static void failing_device(void **state) {
    (void)state;
    tern_error err = {0};
    tern_options o = options("full", true, 0.2f);
    run a = open_run(0, &o), b = open_run(0, &o);
    tn_npu_device *d = a.e->npu->dev;
    real = d->be;
    tn_npu_backend faulty = *real;
    faulty.submit = failing_submit;
    d->be = &faulty;
    d->caps.has_parts = false;
    prefill(&a, prompt, N_PROMPT);
    prefill(&b, prompt, N_PROMPT);
    for (int i = 1; i < 10; i += 4) {
        atomic_store(&n_fails, i);
        assert_int_equal(tern_session_step(a.s, 3, &err), TERN_E_DEVICE);
        assert_non_null(strstr(err.message, "estimating"));
        assert_int_equal(tern_session_length(a.s), N_PROMPT);
    }
    atomic_store(&n_fails, 0);
    steps(&a, prompt, 9); /* and goes on where it was */
    steps(&b, prompt, 9);
    same_logits(&a, &b);
    d->be = real;
    close_run(&a);
    close_run(&b);
}

/* Every allocation of a session may fail; once it is open, decoding makes none. */
static void allocations(void **state) {
    (void)state;
    tern_error err = {0};
    tern_hooks k;
    scarce memory = {.left = -1};
    scarce_hooks(&k, &memory);
    tern_options o = options("full", true, 0.2f);
    o.attention_share = -1;
    o.weights = "tiles"; /* packed ones make a buffer for each thread when it needs one first */
    o.hooks = &k;
    tern_engine *e;
    must(tern_engine_open(package[0], &o, &e, &err), &err);
    tern_session_options so;
    tern_session_options_defaults(&so);
    so.n_ctx = CTX;
    run r = {.e = e};
    for (long i = 0; !r.s; i += 1 + i / 16) {
        memory.left = i;
        tern_status st = tern_session_open(e, &so, &r.s, &err);
        memory.left = -1;
        if (st != TERN_OK) assert_int_equal(st, TERN_E_MEMORY);
    }
    prefill(&r, prompt, N_PROMPT);
    long before = memory.made;
    steps(&r, prompt, 70);
    assert_int_equal(memory.made, before);
    tn_stats t;
    tn_session_stats(r.s, &t);
    assert_true(t.attn_rows > 0);
    close_run(&r);
}

static void refusals(void **state) {
    (void)state;
    tern_engine *e = NULL;
    tern_error err = {0};
    tern_options o = options("float-sparse", true, 0.2f);
    assert_int_equal(tern_engine_open(package[0], &o, &e, &err), TERN_E_INVALID);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(against_brute_force),
        cmocka_unit_test(estimates_find_what_matters),
        cmocka_unit_test(full_where_it_should_be),
        cmocka_unit_test(by_itself_where_long),
        cmocka_unit_test(threads_and_instruction_sets),
        cmocka_unit_test(trees),
        cmocka_unit_test(drafts_change_nothing),
        cmocka_unit_test(histories),
        cmocka_unit_test(failing_device),
        cmocka_unit_test(allocations),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
