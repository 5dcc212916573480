/* Sparse attention where layers differ in their heads, share keys and values or work on one of several streams (Gemma 4
 * and 3n): layers that see all attend sparsely, those with a window in full. At ratio 1 it is full attention bit for
 * bit; as many positions are seen as those layers' rows have; estimates find what matters; schedules, drafts and what
 * was taken back change no bit; the memory is that of the estimate. */
#include "base/json.h"
#include "engine/engine.h"
#include "formats/package.h"
#include "quant/pack.h"
#include "session/session.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "fixture/fixture.h"

enum { N_MODELS = 4, N_PROMPT = 700, N_CTX = 1024, N_VOCAB = 512 };

/* Layers that see all, counted from the shapes by hand: every third, or every fifth. */
static const struct {
    const char *name;
    int n_layers, n_sparse, n_heads;
} models[N_MODELS] = {{"tiny-gemma4", 9, 3, 4},       /* the last of them reads an earlier one's keys */
                      {"tiny-gemma4+dense", 6, 2, 4}, /* values are keys; KV heads differ */
                      {"tiny-gemma4moe", 6, 2, 4},
                      {"tiny-gemma3n", 25, 5, 4}};
static char packages[N_MODELS][FIXTURE_PATH];
static int32_t prompt[N_PROMPT];

static int some(void) { return getenv("TERN_TEST_QUICK") ? 2 : 1; } /* under sanitizers every second model */

static int setup(void **state) {
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        tn_pack_options o;
        tn_pack_defaults(&o);
        o.quick = true;
        o.calib_tokens = 256;
        o.head_importance = true;
        fixture_both(NULL, packages[i], i, models[i].name, 7, TN_F16, &o);
    }
    fixture_prompt(prompt, N_PROMPT);
    return 0;
}

static tern_options options(const char *mode, float ratio) {
    tern_options o;
    tn_options_defaults(&o);
    o.n_threads = 2;
    o.kv = "f32";
    o.attention = mode;
    o.attention_ratio = ratio;
    o.attention_threshold = 1;
    return o;
}

static void logits_of(int model, const tern_options *o, float out[N_VOCAB], tn_stats *stats) {
    tern_error err;
    tern_engine *e = fixture_engine(packages[model], o);
    tern_session *s = fixture_session(e, N_CTX, "none");
    must(tern_session_prefill(s, prompt, N_PROMPT, &err), &err);
    memcpy(out, tern_session_logits(s), N_VOCAB * sizeof *out);
    if (stats) tn_session_stats(s, stats);
    tern_session_close(&s);
    tern_engine_close(&e);
}

static void everything_is_full(void **state) {
    (void)state;
    static const char *const modes[] = {"shadow", "float-sparse", "block-sparse", "npu-full"};
    for (int m = 0; m < N_MODELS; m += some()) {
        float want[N_VOCAB], got[N_VOCAB];
        tern_options o = options("full", 0);
        logits_of(m, &o, want, NULL);
        for (int i = 0; i < 4; i += some()) {
            o = options(modes[i], 1);
            logits_of(m, &o, got, NULL);
            assert_memory_equal(got, want, sizeof got);
        }
        /* nearly everything: the sparse way is taken, and selects all positions but a few */
        o = options("shadow", 0.9999f);
        o.no_head_ratios = true;
        tn_stats t;
        logits_of(m, &o, got, &t);
        assert_true(t.attn_rows > 0 && t.attn_selected == t.attn_seen);
        assert_memory_equal(got, want, sizeof got);
        o = options("shadow", 0.1f);
        logits_of(m, &o, got, NULL);
        assert_memory_not_equal(got, want, sizeof got); /* or this test tests nothing */
    }
}

/* What rows of layers that see all could see, by the sum of the positions; and what is found of the largest. */
static void as_many_as_there_are(void **state) {
    (void)state;
    for (int m = 0; m < N_MODELS; m += some()) {
        float got[N_VOCAB];
        tn_stats t, exact;
        tern_options o = options("shadow", 0.25f);
        o.attention_check = true;
        logits_of(m, &o, got, &t);
        const uint64_t n = (uint64_t)(models[m].n_sparse * models[m].n_heads);
        double recall = (double)t.attn_found / (double)t.attn_true,
               share = (double)t.attn_selected / (double)t.attn_seen;
        print_message("%s: recall %.3f, share %.3f, %.3f of the weights\n", models[m].name, recall, share,
                      t.attn_mass);
        assert_int_equal(t.attn_rows, n * N_PROMPT);
        assert_int_equal(t.attn_seen, n * N_PROMPT * (N_PROMPT + 1) / 2);
        assert_true(recall > 0.9);
        assert_true(share > 0.24 && share < 0.30); /* each row has 16 positions at least */
        o.attention = "float-sparse";
        logits_of(m, &o, got, &exact);
        assert_true(exact.attn_true > 0 && exact.attn_found == exact.attn_true);
    }
}

static void schedules(void **state) {
    (void)state;
    static const char *const policies[] = {"in-order", "overlap", "ooe", "synergy"};
    for (int m = 0; m < N_MODELS; m += some()) {
        for (int share = -1; share <= 0; share += some()) {
            float want[N_VOCAB], got[N_VOCAB];
            tern_options o = options("shadow", 0.25f);
            o.attention_share = share;
            o.chunk = 64; /* many in flight */
            logits_of(m, &o, want, NULL);
            for (int i = 0; i < 4; i++) {
                o.policy = policies[i];
                o.attention_pipeline = i % 2 ? "on" : "off";
                o.npu_apart = i >= 2;
                o.n_threads = 1 + i % 3;
                logits_of(m, &o, got, NULL);
                if (memcmp(got, want, sizeof got))
                    fail_msg("%s, share %d, policy %s", models[m].name, share, policies[i]);
            }
        }
    }
}

/* Decoding: with drafts as without, in full where all is asked for. */
static void decoding(void **state) {
    (void)state;
    for (int m = 0; m < N_MODELS; m += some()) {
        fixture_heard h[4];
        for (int i = 0; i < 4; i++) { /* full; everything; sparse, and with drafts */
            tern_options o = options("full", i == 1 ? 1 : 0.3f);
            o.attention_decode = i > 0;
            o.attention_threshold = 300;
            tern_error err;
            tern_engine *e = fixture_engine(packages[m], &o);
            tern_session *s = fixture_session(e, N_CTX, NULL);
            int32_t text[N_PROMPT];
            for (int j = 0; j < N_PROMPT; j++) text[j] = prompt[j % 37 + j / 200];
            must(tern_session_prefill(s, text, N_PROMPT, &err), &err);
            tern_generate_options g;
            fixture_hear(&g, 60, &h[i]);
            g.draft = i == 3 ? "all" : "none";
            g.draft_eager = true;
            tern_generate_result res;
            must(tern_session_generate(s, &g, &res, &err), &err);
            tn_stats t;
            tn_session_stats(s, &t);
            if (i > 1) {
                assert_true(t.attn_rows > 0 && t.attn_selected < t.attn_seen);
                assert_int_equal(t.attn_rows % (uint64_t)(models[m].n_sparse * models[m].n_heads), 0);
            }
            tern_session_close(&s);
            tern_engine_close(&e);
            assert_int_equal(h[i].n, 60);
        }
        assert_memory_equal(h[0].ids, h[1].ids, sizeof h[0].ids);
        assert_memory_equal(h[2].ids, h[3].ids, sizeof h[0].ids);
    }
}

/* A text taken back leaves nothing behind, in layers that copy another's keys neither. */
static void taken_back(void **state) {
    (void)state;
    for (int m = 0; m < N_MODELS; m += some()) {
        float want[N_VOCAB];
        tern_error err;
        tern_options o = options("shadow", 0.25f);
        logits_of(m, &o, want, NULL);
        tern_engine *e = fixture_engine(packages[m], &o);
        tern_session *s = fixture_session(e, N_CTX, "none");
        int32_t other[N_PROMPT];
        for (int i = 0; i < N_PROMPT; i++) other[i] = i < 96 ? prompt[i] : (prompt[i] * 7 + 3) % 500;
        must(tern_session_prefill(s, other, N_PROMPT, &err), &err);
        tern_session_truncate(s, 0, NULL);
        must(tern_session_prefill(s, prompt, N_PROMPT, &err), &err);
        assert_memory_equal(tern_session_logits(s), want, sizeof want);
        tern_session_close(&s);
        tern_engine_close(&e);
    }
}

/* Heads' weights are those of the layers that see all: their mean is 1. Scales are positive, and those of keys that are an
 * earlier layer's are that layer's. */
static void what_packages_know(void **state) {
    (void)state;
    int n_unlike = 0;
    for (int m = 0; m < N_MODELS; m += some()) {
        tern_engine *e = fixture_engine(packages[m], NULL);
        const tn_hparams *h = &e->model->h;
        const tn_npu_model *p = e->npu;
        double sum = 0;
        bool unlike = false;
        assert_int_equal(h->n_layers, models[m].n_layers);
        assert_non_null(p->attn_scale_q);
        for (int32_t l = 0; l < h->n_layers; l++) {
            assert_true(p->attn_scale_q[l] > 0 && p->attn_scale_k[l] > 0);
            if (tn_layer_window(h, l)) continue;
            assert_true(p->attn_scale_k[l] == p->attn_scale_k[tn_layer_kv(h, l)]);
            assert_true(p->attn_scale_k[l] != 1);
            for (int32_t i = 0; i < h->n_heads; i++) {
                float w = p->attn_head_weight[l * h->n_heads + i];
                sum += (double)w;
                unlike = unlike || fabsf(w - 1) > 0.01f;
            }
        }
        assert_true(fabs(sum / (models[m].n_sparse * models[m].n_heads) - 1) < 1e-4);
        print_message("%s: %s\n", models[m].name, unlike ? "heads differ" : "no head matters");
        n_unlike += unlike;
        tern_engine_close(&e);
    }
    assert_true(n_unlike > 1); /* of random models some do not need their heads */
}

static void memory(void **state) {
    (void)state;
    for (int m = 0; m < N_MODELS; m += some()) {
        float got[N_VOCAB];
        tern_error err;
        tern_estimate with, without;
        tn_stats t;
        tern_options o = options("shadow", 0.25f);
        o.session.n_ctx = N_CTX;
        must(tern_engine_estimate(packages[m], &o, &with, &err), &err);
        logits_of(m, &o, got, &t);
        o.attention = "full";
        must(tern_engine_estimate(packages[m], &o, &without, &err), &err);
        uint64_t said = with.work_bytes - without.work_bytes;
        if (said < t.attn_bytes / 2 || said > t.attn_bytes)
            fail_msg("%s: said %llu, keys and graphs take %llu", models[m].name, (unsigned long long)said,
                     (unsigned long long)t.attn_bytes);
    }
}

static void leave_out_scales(tn_pkg_writer *w, const tn_pkg *p, const tn_pkg_section *s, const void *user) {
    (void)user;
    tern_error err;
    size_t n;
    const tn_pkg_record *r = tn_pkg_records(p, s, &n);
    char *bytes = calloc(1, s->size_bytes + 1);
    must(tn_pkg_read(p, s, bytes, &err), &err);
    if (s->kind == TN_PKG_META) {
        json_t *j = json_loads(bytes, 0, NULL);
        assert_int_equal(json_object_del(j, "attention"), 0);
        char *text = json_dumps(j, JSON_REAL_PRECISION(17));
        must(tn_pkg_put_section(w, TN_PKG_META, -1, text, strlen(text), &err), &err);
        free(text);
        json_decref(j);
    } else if (!n) {
        must(tn_pkg_put_section(w, (tn_pkg_kind)s->kind, s->layer, bytes, s->size_bytes, &err), &err);
    } else {
        must(tn_pkg_begin(w, (tn_pkg_kind)s->kind, s->layer, &err), &err);
        for (size_t k = 0; k < n; k++)
            must(tn_pkg_add(w, &r[k], bytes + r[k].off_bytes, r[k].size_bytes, &err), &err);
        must(tn_pkg_end(w, &err), &err);
    }
    free(bytes);
}

/* Who asks for sparse attention where it cannot be is told why; by itself it is left off. */
static void refused_or_full(const char *path, bool none_sees_all, const char *told) {
    static const char *const modes[] = {"full", "auto", "shadow"};
    float got[2][N_VOCAB];
    for (int i = 0; i < 3; i++) {
        tern_options o = options(modes[i], 0.25f);
        tern_error err;
        tern_engine *e = fixture_engine(path, &o);
        if (none_sees_all) ((tn_model *)e->model)->h.window_pattern = 1;
        tern_session *s = NULL;
        tern_session_options so;
        tern_session_options_defaults(&so);
        so.n_ctx = N_CTX;
        tern_status st = tern_session_open(e, &so, &s, &err);
        if (i == 2) {
            assert_int_equal(st, TERN_E_UNSUPPORTED);
            if (!strstr(err.message, told)) fail_msg("%s", err.message);
        } else {
            must(st, &err);
            if (!none_sees_all) {
                must(tern_session_prefill(s, prompt, N_PROMPT, &err), &err);
                memcpy(got[i], tern_session_logits(s), sizeof got[i]);
            }
        }
        tern_session_close(&s);
        tern_engine_close(&e);
    }
    if (!none_sees_all) assert_memory_equal(got[0], got[1], sizeof got[0]);
}

/* A package of before, which has no scales; and one whose layers all have windows. */
static void where_it_cannot_be(void **state) {
    (void)state;
    char older[FIXTURE_PATH];
    fixture_file(older, "older.tern");
    for (int m = 0; m < N_MODELS; m += 3) {
        unlink(older);
        fixture_rewrite(packages[m], older, leave_out_scales, NULL);
        refused_or_full(older, false, "pack the model again");
        refused_or_full(packages[m], true, "sees more than a window");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(everything_is_full),
                                       cmocka_unit_test(as_many_as_there_are),
                                       cmocka_unit_test(schedules),
                                       cmocka_unit_test(decoding),
                                       cmocka_unit_test(taken_back),
                                       cmocka_unit_test(what_packages_know),
                                       cmocka_unit_test(memory),
                                       cmocka_unit_test(where_it_cannot_be)};
    return cmocka_run_group_tests(tests, setup, NULL);
}
