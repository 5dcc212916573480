/* Embeddings beside an independent way to the same vectors: lm_head's rows times the vector are the
 * logits. */
#include "session/session.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "fixture/fixture.h"

enum { N = 300 }; /* more than a chunk of the float forward */

static void last_token(void **state) {
    (void)state;
    static const char *const archs[] = {"tiny-llama", "tiny-qwen2"};
    for (int k = 0; k < 2; k++) {
        char path[FIXTURE_PATH];
        tern_error err;
        fixture_model(path, "m.gguf", archs[k], 1, TN_F16);
        tern_engine *e = fixture_engine(path, NULL);
        tern_session *s = fixture_session(e, 512, NULL), *t = fixture_session(e, 512, NULL);
        const tn_model *m = e->model;
        size_t n_embd = (size_t)m->h.n_embd;
        int32_t ids[N];
        for (int i = 0; i < N; i++) ids[i] = (i * 37 + 5) % m->h.n_vocab;
        float *v = malloc(n_embd * sizeof *v), *mean = malloc(n_embd * sizeof *v),
              *row = malloc(n_embd * sizeof *v);
        assert_true(v && mean && row);
        assert_int_equal(tern_session_embed(s, ids, N, false, v, n_embd, &err), TERN_OK);
        assert_int_equal(tern_session_prefill(t, ids, N, &err), TERN_OK);
        const float *logits = tern_session_logits(t);
        /* all logits are one factor times the products: the length that was divided out */
        double dot = 0, square = 0, ll = 0;
        const tn_linear *head = tn_model_linear(m, -1, m->h.tied ? TN_W_EMBD : TN_W_OUT);
        for (int32_t j = 0; j < m->h.n_vocab; j++) {
            double p = 0;
            tn_linear_row(head, (size_t)j, row);
            for (size_t i = 0; i < n_embd; i++) p += (double)row[i] * (double)v[i];
            dot += p * (double)logits[j];
            square += p * p;
            ll += (double)logits[j] * (double)logits[j];
        }
        assert_true(dot / sqrt(square * ll) > 1 - 1e-6);
        /* the mean of one token is the token; of many it is another vector of length 1, each time the same */
        assert_int_equal(tern_session_embed(s, ids, 1, false, v, n_embd, &err), TERN_OK);
        assert_int_equal(tern_session_embed(s, ids, 1, true, mean, n_embd, &err), TERN_OK);
        assert_memory_equal(v, mean, n_embd * sizeof *v);
        assert_int_equal(tern_session_embed(s, ids, N, true, mean, n_embd, &err), TERN_OK);
        double length = 0;
        for (size_t i = 0; i < n_embd; i++) length += (double)mean[i] * (double)mean[i];
        assert_true(fabs(length - 1) < 1e-5);
        assert_int_equal(tern_session_embed(s, ids, 0, true, mean, n_embd, &err), TERN_E_INVALID);
        assert_int_equal(tern_session_embed(s, ids, N, true, mean, n_embd - 1, &err), TERN_E_LIMIT);
        assert_int_equal(tern_session_length(t), N);
        assert_memory_equal(tern_session_tokens(t), ids, sizeof ids);
        free(v);
        free(mean);
        free(row);
        tern_session_close(&s);
        tern_session_close(&t);
        tern_engine_close(&e);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(last_token)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
