/* Draft trees: every row of a tree has the bits of decoding along its ancestors, and what is kept goes on
 * with the same bits. */
#include "base/rng.h"
#include "session/session.h"
#include "quant/pack.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixture/fixture.h"

static const char *const names[] = {"tiny-qwen2", "tiny-gemma2",
                                    "tiny-phi3"}; /* plain; windows and soft caps; windows */
enum { N_MODELS = sizeof names / sizeof *names };
static char gguf[N_MODELS][FIXTURE_PATH], package[N_MODELS][FIXTURE_PATH];

static int setup(void **state) {
    (void)state;
    tn_pack_options o;
    tn_pack_defaults(&o);
    o.prune_percent = 50;
    o.scheme = TN_SCHEME_LLM_NPU;
    o.calib_tokens = 256;
    o.outlier_share = 0.01f;
    for (int i = 0; i < N_MODELS; i++) fixture_both(gguf[i], package[i], i, names[i], 5, TN_F32, &o);
    return 0;
}

static void check_model(const char *path, uint64_t seed) {
    tern_error err = {0};
    tern_options o;
    tn_options_defaults(&o);
    o.n_threads = 2;
    tern_engine *e = fixture_engine(path, &o);
    if (e->model->h.window) e->model->h.window = 9; /* windows that begin before the tree and within it */
    tern_session *s = fixture_session(e, 256, NULL), *plain = fixture_session(e, 256, NULL);
    size_t v = (size_t)e->model->h.n_vocab;
    tn_rng rng = {seed};
    int32_t prompt[64], text[256];
    for (int round = 0; round < 6; round++) {
        int32_t n = 1 + (int32_t)tn_rng_below(&rng, 60);
        for (int32_t i = 0; i < n; i++) text[i] = prompt[i] = (int32_t)tn_rng_below(&rng, v);
        must(tern_session_prefill(s, prompt, (size_t)n, &err), &err);
        for (int step = 0; step < 3; step++) {
            tn_tree t = {0};
            int32_t n_rows = step == 1 ? TN_TREE_MAX : 1 + (int32_t)tn_rng_below(&rng, TN_TREE_MAX);
            bool deep = tn_rng_below(&rng, 2);
            for (int32_t i = 0; i < n_rows; i++) {
                int32_t back = deep ? 2 : i;
                int32_t parent =
                    !i ? -1 : i - 1 - (int32_t)tn_rng_below(&rng, (uint64_t)(back < i ? back : i));
                tn_tree_add(&t, parent, (int32_t)tn_rng_below(&rng, v));
            }
            must(tn_session_verify(s, &t, &err), &err);
            assert_int_equal(tern_session_length(s), n);
            assert_null(tern_session_logits(s));
            for (int32_t i = 0; i < n_rows; i++) {
                int32_t at = n + t.depth[i] + 1;
                for (int32_t j = i; j >= 0; j = t.parent[j]) text[n + t.depth[j]] = t.token[j];
                must(tern_session_prefill(plain, text, (size_t)at, &err), &err);
                if (memcmp(tern_session_logits(plain), s->tree_logits + (size_t)i * v, v * sizeof(float))) {
                    fail_msg("%s round %d step %d: row %d of %d at depth %d has other bits", path, round,
                             step, i, n_rows, t.depth[i]);
                }
            }
            int32_t leaf = (int32_t)tn_rng_below(&rng, (uint64_t)n_rows), rows[TN_TREE_MAX],
                    n_path = t.depth[leaf] + 1;
            for (int32_t j = leaf, k = n_path; k-- > 0; j = t.parent[j]) {
                rows[k] = j;
                text[n + k] = t.token[j];
            }
            for (int32_t k = 0; k < n_path; k++) tn_session_keep(s, &t, rows[k]);
            tn_session_settle(s, leaf);
            n += n_path;
            assert_int_equal(tern_session_length(s), n);
            must(tern_session_prefill(plain, text, (size_t)n, &err), &err);
            assert_memory_equal(tern_session_logits(plain), tern_session_logits(s), v * sizeof(float));
        }
        must(tern_session_step(s, 7, &err), &err); /* and the cache it left is a plain one */
        must(tern_session_step(plain, 7, &err), &err);
        assert_memory_equal(tern_session_logits(plain), tern_session_logits(s), v * sizeof(float));
    }
    tern_session_close(&s);
    tern_session_close(&plain);
    tern_engine_close(&e);
}

static void float_models(void **state) {
    (void)state;
    for (int i = 0; i < N_MODELS; i++) check_model(gguf[i], 11 + (uint64_t)i);
}

static void packages(void **state) {
    (void)state;
    for (int i = 0; i < N_MODELS; i++) check_model(package[i], 23 + (uint64_t)i);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(float_models), cmocka_unit_test(packages)};
    return cmocka_run_group_tests(tests, setup, NULL);
}
