/* Generating with drafts gives what generating without gives: tokens, text, log-probabilities, the reason to stop and the session left
 * behind, for every drafter, prompt, sampling, stop rule, thread count and policy. Thousands of random cases; the seed is printed. */
#include "base/rng.h"
#include "engine/engine.h"
#include "model/sampler.h"
#include "model/synth.h"
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

enum { N_CTX = 160, MAX_TOKENS = 200 };
static char gguf[256], small[256], package[256];

static int setup(void **state) {
    (void)state;
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tn_pool *pool;
    tern_error err = {0};
    snprintf(gguf, sizeof gguf, TN_BINARY_DIR "/drafts-%ld.gguf", (long)getpid());
    snprintf(small, sizeof small, TN_BINARY_DIR "/drafts-small-%ld.gguf", (long)getpid());
    snprintf(package, sizeof package, TN_BINARY_DIR "/drafts-%ld.tern", (long)getpid());
    if (tn_pool_open(&ctx, 2, &pool, &err) != TERN_OK || tn_synth(&ctx, pool, "tiny-qwen2", gguf, 3, TN_F32, &err) != TERN_OK ||
        tn_synth(&ctx, pool, "tiny-qwen2", small, 4, TN_F32, &err) != TERN_OK) {
        return -1;
    }
    tn_pool_close(&pool);
    tn_pack_options o;
    tn_pack_defaults(&o);
    o.scheme = TN_SCHEME_LLM_NPU;
    o.calib_tokens = 256;
    return tn_pack(&ctx, gguf, package, &o, NULL, &err) == TERN_OK ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    char profile[800];
    snprintf(profile, sizeof profile, "%s.profile", package);
    unlink(profile);
    unlink(package);
    unlink(gguf);
    unlink(small);
    return 0;
}

static void must(tern_status st, const tern_error *err) {
    if (st != TERN_OK) fail_msg("%s", err->message);
}

typedef struct heard { /* all a caller of generate sees */
    int32_t ids[MAX_TOKENS + 1], n, stop_after;
    float logprob[MAX_TOKENS + 1];
    char text[8192];
    size_t n_text;
    tern_status st;
    tern_generate_result res;
    tern_session *cancel;
} heard;

static bool on_token(void *user, int32_t token, const char *text, size_t n, float logprob) {
    heard *h = user;
    assert_true(h->n <= MAX_TOKENS && h->n_text + n < sizeof h->text);
    h->ids[h->n] = token;
    h->logprob[h->n++] = logprob;
    memcpy(h->text + h->n_text, text, n);
    h->n_text += n;
    if (h->cancel && h->n == h->stop_after) tern_session_cancel(h->cancel);
    return h->cancel || h->n != h->stop_after;
}

static tern_session *session_of(tern_engine *e, const char *draft) {
    tern_session_options so;
    tern_session_options_defaults(&so);
    so.n_ctx = N_CTX;
    so.draft = draft;
    tern_session *s;
    tern_error err;
    must(tern_session_open(e, &so, &s, &err), &err);
    return s;
}

/* A prompt that repeats itself, as texts do. */
static int32_t random_prompt(tn_rng *rng, int32_t n_vocab, int32_t *out, int32_t max) {
    int32_t n = 2 + (int32_t)tn_rng_below(rng, (uint64_t)max - 2), few = tn_rng_below(rng, 2) ? 12 : n_vocab;
    for (int32_t i = 0; i < n; i++) {
        bool copy = i > 4 && tn_rng_below(rng, 4);
        out[i] = copy ? out[i - 1 - (int32_t)tn_rng_below(rng, 4)] : (int32_t)tn_rng_below(rng, (uint64_t)few);
    }
    return n;
}

static void one_case(tern_session *plain, tern_session *drafted, tn_rng *rng, const char *const *drafts, int n_drafts, const char *what) {
    size_t v = (size_t)plain->e->model->h.n_vocab;
    int32_t prompt[N_CTX];
    int32_t n = random_prompt(rng, (int32_t)v, prompt, tn_rng_below(rng, 8) ? 60 : N_CTX);
    tern_generate_options o;
    tern_generate_options_defaults(&o);
    static heard a, b;
    memset(&a, 0, sizeof a);
    memset(&b, 0, sizeof b);
    o.max_tokens = tn_rng_below(rng, 6) ? (int32_t)tn_rng_below(rng, 60) : -1;
    o.ignore_end = tn_rng_below(rng, 2);
    o.sampling.temperature = tn_rng_below(rng, 2) ? 0 : 0.2f + (float)tn_rng_f64(rng);
    o.sampling.top_k = tn_rng_below(rng, 2) ? 4 : 0;
    o.sampling.repeat_penalty = tn_rng_below(rng, 4) ? 1 : 1.3f;
    o.sampling.repeat_last_n = tn_rng_below(rng, 2) ? -1 : 16;
    o.sampling.seed = tn_rng_u64(rng);
    if (!tn_rng_below(rng, 5)) a.stop_after = b.stop_after = 1 + (int32_t)tn_rng_below(rng, 40);
    if (a.stop_after && tn_rng_below(rng, 2)) {
        a.cancel = plain;
        b.cancel = drafted;
    }
    char stop0[3] = {(char)('a' + tn_rng_below(rng, 26)), (char)('a' + tn_rng_below(rng, 26)), 0}, stop1[2] = {(char)('a' + tn_rng_below(rng, 26)), 0};
    const char *stops[] = {stop0, stop1, NULL};
    if (!tn_rng_below(rng, 3)) o.stop = stops;
    o.on_token = on_token;
    tern_error err = {0};
    must(tern_session_prefill(plain, prompt, (size_t)n, &err), &err);
    must(tern_session_prefill(drafted, prompt, (size_t)n, &err), &err);
    o.user = &a;
    a.st = tern_session_generate(plain, &o, &a.res, &err);
    o.user = &b;
    o.draft = drafts[tn_rng_below(rng, (uint64_t)n_drafts)];
    o.draft_nodes = (int32_t)tn_rng_below(rng, 33);
    o.draft_eager = tn_rng_below(rng, 4);
    b.st = tern_session_generate(drafted, &o, &b.res, &err);
    bool same = a.n == b.n && !memcmp(a.ids, b.ids, (size_t)a.n * sizeof *a.ids) && !memcmp(a.logprob, b.logprob, (size_t)a.n * sizeof *a.logprob) &&
                a.n_text == b.n_text && !memcmp(a.text, b.text, a.n_text) && a.st == b.st && a.res.n_tokens == b.res.n_tokens &&
                a.res.reason == b.res.reason;
    if (!same) fail_msg("%s, drafts %s: %d tokens (reason %d, status %d) instead of %d (%d, %d)", what, o.draft ? o.draft : "of the session", b.n, b.res.reason, b.st, a.n, a.res.reason, a.st);
    assert_int_equal(tern_session_length(plain), tern_session_length(drafted));
    assert_memory_equal(plain->tokens, drafted->tokens, (size_t)plain->n_tok * sizeof *plain->tokens);
    assert_int_equal(atomic_exchange(&plain->cancel, false), atomic_exchange(&drafted->cancel, false)); /* came with the last token */
    assert_int_equal(plain->has_logits, drafted->has_logits);
    if (!plain->has_logits) return; /* cancelled */
    assert_memory_equal(tern_session_logits(plain), tern_session_logits(drafted), v * sizeof(float));
    if (plain->n_tok < N_CTX) {
        must(tern_session_step(plain, 5, &err), &err);
        must(tern_session_step(drafted, 5, &err), &err);
        assert_memory_equal(tern_session_logits(plain), tern_session_logits(drafted), v * sizeof(float));
    }
}

static void cases(const char *path, int n_threads, const char *policy, const char *session_draft, int n_cases, uint64_t seed) {
    tern_options o;
    tern_options_defaults(&o);
    o.n_threads = n_threads;
    o.policy = policy;
    o.chunk = 32;
    tern_engine *e;
    tern_error err;
    must(tern_engine_open(path, &o, &e, &err), &err);
    tern_session *plain = session_of(e, NULL), *drafted = session_of(e, session_draft);
    char model[300];
    snprintf(model, sizeof model, "sam,model:%s", seed & 1 ? small : gguf);
    const char *const drafts[] = {NULL, "none", "lookup", "sam", "sam,calibrated", "sam,extend", "all", "auto", "calibrated", "extend,lookup", model};
    tn_rng rng = {seed};
    for (int i = 0; i < n_cases; i++) {
        char what[200];
        snprintf(what, sizeof what, "%s, %d threads, %s, seed %llu, case %d", strrchr(path, '/'), n_threads, policy ? policy : "default", (unsigned long long)seed, i);
        one_case(plain, drafted, &rng, drafts, sizeof drafts / sizeof *drafts, what);
        if (i % 100 == 50) must(tern_session_learn(drafted, plain->tokens, (size_t)plain->n_tok, &err), &err);
    }
    tern_draft_stats t = {.size_bytes = sizeof t};
    tern_session_draft_stats(drafted, &t);
    assert_true(t.n_accepted > (uint64_t)n_cases); /* the test is of drafts that are taken, and of drafts that are not */
    assert_true(t.n_rows - t.n_steps - t.n_accepted > (uint64_t)n_cases);
    tern_session_close(&plain);
    tern_session_close(&drafted);
    tern_engine_close(&e);
}

static int scaled(int n) { return getenv("TERN_TEST_QUICK") ? n / 10 + 1 : n; }
static uint64_t seed_of(uint64_t i) {
    const char *t = getenv("TERN_SEED");
    return (t ? strtoull(t, NULL, 0) : 1) * 1000 + i;
}

static void float_model(void **state) {
    (void)state;
    cases(gguf, 1, NULL, "all", scaled(1200), seed_of(1));
    cases(gguf, 2, NULL, "lookup", scaled(400), seed_of(2));
}

static void a_package(void **state) {
    (void)state;
    cases(package, 1, NULL, "all", scaled(600), seed_of(3));
    cases(package, 2, "synergy", "all", scaled(400), seed_of(4));
    cases(package, 2, "in-order", NULL, scaled(400), seed_of(5));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(float_model), cmocka_unit_test(a_package)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
