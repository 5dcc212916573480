/* The calibration corpus goes layer by layer over windows: is what it leaves after the layers what the whole
 * model computes of each window, where layers share keys and values and read the embedding again? */
#include "base/cpu.h"
#include "model/forward.h"
#include "model/state.h"
#include "quant/calibrate.h"
#include "quant/corpus.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fixture/fixture.h"

enum { N_TOK = 100, WINDOW = 40 };

static void windows(void **state) {
    char path[FIXTURE_PATH];
    tn_ctx ctx;
    tn_pool *pool;
    tn_kernels kern;
    tn_source *src;
    tn_model *whole, *outline;
    tern_error err = {0};
    int32_t ids[N_TOK], pos[WINDOW];
    fixture_model(path, "m.gguf", *state, 3, TN_F32);
    fixture_prompt(ids, N_TOK);
    tn_ctx_init(&ctx, NULL);
    tn_kernels_init(&kern, tn_cpu_flags(NULL));
    must(tn_pool_open(&ctx, 2, &pool, &err), &err);
    must(tn_source_open(&ctx, path, &src, &err), &err);
    must(tn_model_load(&ctx, pool, src, TN_FLOAT, &whole, &err), &err);
    tn_source_close(&src);
    must(tn_source_open(&ctx, path, &src, &err), &err);
    must(tn_model_outline(&ctx, pool, src, &outline, &err), &err);
    tn_corpus c = {
        .kern = &kern, .pool = pool, .src = src, .m = outline, .ids = ids, .n_tok = N_TOK, .window = WINDOW};
    must(tn_corpus_open(&c, &err), &err);
    for (int32_t l = 0; l < outline->h.n_layers; l++) {
        must(tn_corpus_begin_layer(&c, l, &err), &err);
        tn_corpus_pass(&c, l, NULL, false); /* as often as it takes */
        tn_corpus_pass(&c, l, NULL, true);
        tn_corpus_end_layer(&c, l);
    }
    tn_state st;
    tn_acts acts;
    size_t e = (size_t)tn_residual_width(&whole->h);
    for (int32_t i = 0; i < WINDOW; i++) pos[i] = i;
    must(tn_state_open(&ctx, &whole->program, &whole->h, WINDOW, TN_KV_F32, &st, &err), &err);
    must(tn_acts_open(&ctx, whole, WINDOW, st.kv.cap_tok, 2, &acts, &err), &err);
    for (int32_t at = 0; at < N_TOK; at += WINDOW) {
        int32_t n = N_TOK - at < WINDOW ? N_TOK - at : WINDOW;
        tn_rows r = {.h = &whole->h,
                     .kern = &kern,
                     .kv = &st.kv,
                     .n_rows = n,
                     .pos = pos,
                     .slot = pos,
                     .tree_base = -1};
        must(tn_forward_rows(whole, pool, &r, &acts, ids + at, false, NULL, NULL, &err), &err);
        assert_memory_equal(acts.buf[TN_BUF_X], c.x + (size_t)at * e, (size_t)n * e * sizeof(float));
    }
    tn_acts_close(&acts);
    tn_state_close(&st);
    tn_corpus_close(&c);
    tn_model_close(&whole);
    tn_model_close(&outline);
    tn_source_close(&src);
    tn_pool_close(&pool);
}

/* Which values stand out is counted at every site, the output layer's too. What is divided by four has a
 * threshold of a quarter, and the same values above it. */
static void outliers_of_every_site(void **state) {
    (void)state;
    enum { MOST = 64 };
    const double share = 0.01;
    char path[FIXTURE_PATH];
    tn_ctx ctx;
    tn_pool *pool;
    tn_kernels kern;
    tn_source *src;
    tn_model *m;
    tn_calibration cal;
    tern_error err = {0};
    int32_t ids[N_TOK];
    fixture_model(path, "m.gguf", "tiny-qwen2", 3, TN_F32);
    fixture_prompt(ids, N_TOK);
    tn_ctx_init(&ctx, NULL);
    tn_kernels_init(&kern, tn_cpu_flags(NULL));
    must(tn_pool_open(&ctx, 2, &pool, &err), &err);
    must(tn_source_open(&ctx, path, &src, &err), &err);
    must(tn_model_outline(&ctx, pool, src, &m, &err), &err);
    must(tn_calibration_open(&ctx, &m->program, &cal, &err), &err);
    tn_corpus c = {
        .kern = &kern, .pool = pool, .src = src, .m = m, .ids = ids, .n_tok = N_TOK, .window = WINDOW};
    must(tn_corpus_open(&c, &err), &err);
    float *four = malloc((size_t)m->h.n_ff * sizeof *four);
    const float *divide_by[TN_N_SITES];
    for (int32_t i = 0; i < m->h.n_ff; i++) four[i] = 4;
    for (int i = 0; i < TN_N_SITES; i++) divide_by[i] = four;
    for (int32_t l = 0; l < m->h.n_layers; l++) {
        int32_t first, n = tn_program_layer_sites(&m->program, l, &first);
        float threshold[MOST];
        uint64_t n_outliers[MOST];
        must(tn_corpus_begin_layer(&c, l, &err), &err);
        tn_calibrate_layer(&cal, &c, l, share, NULL, NULL, false);
        for (int32_t i = 0; i < n; i++) {
            const tn_site_stats *s = &cal.sites[first + i];
            threshold[i] = s->threshold;
            n_outliers[i] = s->n_outliers;
            assert_true(s->threshold > 0 && s->threshold < s->max);
            assert_true(s->n_outliers > 0 && (double)s->n_outliers <= share * (double)s->n_values);
        }
        tn_calibrate_smoothed(&cal, &c, l, divide_by, share, true);
        for (int32_t i = 0; i < n; i++) {
            assert_true(cal.sites[first + i].threshold == threshold[i] / 4);
            assert_int_equal(cal.sites[first + i].n_outliers, n_outliers[i]);
        }
        tn_corpus_end_layer(&c, l);
    }
    tn_calibrate_lm_head(&cal, &c, share);
    const tn_site_stats *head = tn_calibration_site(&cal, 0, TN_SITE_LM_HEAD);
    uint64_t sum = 0;
    for (int32_t i = 0; i < head->k; i++) sum += head->channel_count[i];
    assert_true(head->n_outliers > 0 && (double)head->n_outliers <= share * (double)head->n_values);
    assert_int_equal(sum, head->n_outliers);
    free(four);
    tn_corpus_close(&c);
    tn_calibration_close(&cal);
    tn_model_close(&m);
    tn_source_close(&src);
    tn_pool_close(&pool);
}

int main(void) {
    static char gemma4[] = "tiny-gemma4", gemma3[] = "tiny-gemma3", gemma3n[] = "tiny-gemma3n";
    const struct CMUnitTest tests[] = {
        {"shared keys and values, embeddings of layers", windows, NULL, NULL, gemma4},
        {"windows", windows, NULL, NULL, gemma3},
        {"several residual streams", windows, NULL, NULL, gemma3n},
        cmocka_unit_test(outliers_of_every_site),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
