/* Generating with drafts gives what generating without gives: tokens, text, log-probabilities, the reason to
 * stop and the session left behind, for every drafter, prompt, sampling, stop rule, thread count and policy.
 * Thousands of random cases; the seed is printed. */
#include "base/rng.h"
#include "session/session.h"
#include "model/sampler.h"
#include "quant/pack.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixture/fixture.h"
#include "fixture/scarce.h"

enum { N_CTX = 160, MAX_TOKENS = 200 };
static char gguf[FIXTURE_PATH], hybrid[FIXTURE_PATH], small[FIXTURE_PATH], package[FIXTURE_PATH],
    packed_hybrid[FIXTURE_PATH], packed_experts[FIXTURE_PATH], packed_chain[FIXTURE_PATH];
/* A head lies beside it, which knows it; of the package it is named. */
#define HEADS TN_SOURCE_DIR "/tests/oracle/fixtures/heads/"
static const char chain[] = HEADS "chain.gguf", chain_head[] = HEADS "chain-eagle3.gguf";
/* Of these a drafter of blocks is named, and an assistant. */
static const char blocks[] = HEADS "chain.gguf", chain_dflash[] = HEADS "chain-dflash.gguf";
static const char gemma[] = HEADS "chain-gemma4.gguf", assistant[] = HEADS "chain-gemma4-it-assistant.gguf";

static int setup(void **state) {
    (void)state;
    tn_pack_options o;
    tn_pack_defaults(&o);
    o.scheme = TN_SCHEME_LLM_NPU;
    o.calib_tokens = 256;
    fixture_model(gguf, "m.gguf", "tiny-qwen2+mtp", 3, TN_F32);
    fixture_model(hybrid, "hybrid.gguf", "tiny-qwen35+mtp", 5, TN_Q8_0);
    fixture_model(small, "small.gguf", "tiny-qwen2", 4, TN_F32);
    fixture_package(package, "m.tern", gguf, &o);
    fixture_package(packed_hybrid, "hybrid.tern", hybrid, &o);
    char experts[FIXTURE_PATH];
    fixture_model(experts, "experts.gguf", "tiny-qwen35moe+mtp", 5, TN_Q8_0);
    fixture_package(packed_experts, "experts.tern", experts, &o);
    fixture_package(packed_chain, "chain.tern", chain, NULL); /* layers of zeros have no static scales */
    return 0;
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

/* A prompt that repeats itself, as texts do. */
static int32_t random_prompt(tn_rng *rng, int32_t n_vocab, int32_t *out, int32_t max) {
    int32_t n = 2 + (int32_t)tn_rng_below(rng, (uint64_t)max - 2), few = tn_rng_below(rng, 2) ? 12 : n_vocab;
    for (int32_t i = 0; i < n; i++) {
        bool copy = i > 4 && tn_rng_below(rng, 4);
        out[i] =
            copy ? out[i - 1 - (int32_t)tn_rng_below(rng, 4)] : (int32_t)tn_rng_below(rng, (uint64_t)few);
    }
    return n;
}

static void one_case(tern_session *plain, tern_session *drafted, tn_rng *rng, const char *const *drafts,
                     int n_drafts, const char *what) {
    size_t v = (size_t)plain->e->model->h.n_vocab;
    int32_t prompt[N_CTX];
    int32_t n = random_prompt(rng, (int32_t)v, prompt, tn_rng_below(rng, 8) ? 60 : N_CTX);
    if (plain->n_tok && plain->n_tok + n < N_CTX &&
        !tn_rng_below(rng, 3)) { /* the next turn of a conversation */
        memmove(prompt + plain->n_tok, prompt, (size_t)n * sizeof *prompt);
        memcpy(prompt, plain->tokens, (size_t)plain->n_tok * sizeof *prompt);
        n += plain->n_tok;
    }
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
    char stop0[3] = {(char)('a' + tn_rng_below(rng, 26)), (char)('a' + tn_rng_below(rng, 26)), 0},
         stop1[2] = {(char)('a' + tn_rng_below(rng, 26)), 0};
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
    bool same = a.n == b.n && !memcmp(a.ids, b.ids, (size_t)a.n * sizeof *a.ids) &&
                !memcmp(a.logprob, b.logprob, (size_t)a.n * sizeof *a.logprob) && a.n_text == b.n_text &&
                !memcmp(a.text, b.text, a.n_text) && a.st == b.st && a.res.n_tokens == b.res.n_tokens &&
                a.res.reason == b.res.reason;
    if (!same)
        fail_msg("%s, drafts %s: %d tokens (reason %d, status %d) instead of %d (%d, %d)", what,
                 o.draft ? o.draft : "of the session", b.n, b.res.reason, b.st, a.n, a.res.reason, a.st);
    assert_int_equal(tern_session_length(plain), tern_session_length(drafted));
    assert_memory_equal(plain->tokens, drafted->tokens, (size_t)plain->n_tok * sizeof *plain->tokens);
    assert_int_equal(atomic_exchange(&plain->cancel, false),
                     atomic_exchange(&drafted->cancel, false)); /* came with the last token */
    assert_int_equal(plain->has_logits, drafted->has_logits);
    if (!plain->has_logits) return; /* cancelled */
    assert_memory_equal(tern_session_logits(plain), tern_session_logits(drafted), v * sizeof(float));
    if (plain->n_tok < N_CTX) {
        must(tern_session_step(plain, 5, &err), &err);
        must(tern_session_step(drafted, 5, &err), &err);
        assert_memory_equal(tern_session_logits(plain), tern_session_logits(drafted), v * sizeof(float));
    }
}

static void cases(const char *path, int n_threads, const char *policy, const char *session_draft, int n_cases,
                  uint64_t seed) {
    tern_options o;
    tn_options_defaults(&o);
    o.n_threads = n_threads;
    o.policy = policy;
    o.chunk = 32;
    o.draft_head = path == packed_chain ? chain_head
                   : path == blocks     ? chain_dflash
                   : path == gemma      ? assistant
                                        : NULL;
    tern_engine *e;
    tern_error err;
    must(tern_engine_open(path, &o, &e, &err), &err);
    tern_session *plain = fixture_session(e, N_CTX, NULL),
                 *drafted = fixture_session(e, N_CTX, session_draft);
    const float rows = 8, cheap = 1.05f;
    const bool packed = path == packed_hybrid || path == packed_experts, is_hybrid = path == hybrid || packed;
    const bool is_chain = path == chain || path == packed_chain || path == blocks || path == gemma;
    char model[FIXTURE_PATH + 16];
    snprintf(model, sizeof model, "sam,model:%s", seed & 1 ? small : gguf);
    const char *const drafts[] = {NULL,         "none", "lookup", "sam",        "sam,calibrated",
                                  "sam,extend", "all",  "auto",   "calibrated", "extend,lookup",
                                  model,        "mtp",  "sam,mtp"};
    const int n_all = sizeof drafts / sizeof *drafts, first = packed ? n_all - 2 : 0;
    const int n_drafts = n_all - first - (e->model->next ? 0 : 2);
    static const char *const with_head[] = {"head", "sam,head", "auto", NULL};
    if (is_chain) tn_mtp_give_cost(drafted->drafting.head, 0.01f);
    tn_rng rng = {seed};
    for (int i = 0; i < n_cases; i++) {
        char what[200];
        snprintf(what, sizeof what, "%s, %d threads, %s, seed %llu, case %d", strrchr(path, '/'), n_threads,
                 policy ? policy : "default", (unsigned long long)seed, i);
        /* Layers and heads guess whatever it costs. Of the rest, every second case measures its costs and the others
         * are given them: the counts below must not depend on how busy the machine is. */
        const bool is_given = is_hybrid || is_chain || i % 2;
        if (drafted->drafting.draft) /* opened with the first drafts */
            tn_draft_give_costs(drafted->drafting.draft, &rows, &cheap, is_given ? 1 : 0, is_given);
        one_case(plain, drafted, &rng, is_chain ? with_head : drafts + first, is_chain ? 4 : n_drafts, what);
        if (i % 100 == 50) must(tern_session_learn(drafted, plain->tokens, (size_t)plain->n_tok, &err), &err);
    }
    tn_draft_stats t;
    tn_session_draft_stats(drafted, &t);
    assert_true(is_hybrid || /* its text does not repeat itself */
                t.n_accepted >
                    (uint64_t)n_cases); /* the test is of drafts that are taken, and of drafts that are not */
    assert_true(is_chain || t.n_rows - t.n_steps - t.n_accepted > (uint64_t)n_cases);
    assert_true(!is_chain || t.by_head_right > (uint64_t)n_cases);
    assert_true(path != chain || t.by_head > t.by_head_right);
    assert_true(path != hybrid || t.by_mtp > (uint64_t)n_cases);
    /* a package's step is quick, and a guess beside it may take too long: then it is tried now and then */
    assert_true(!packed || tn_mtp_n_guesses(drafted->drafting.mtp));
    tern_session_close(&plain);
    tern_session_close(&drafted);
    tern_engine_close(&e);
}

/* TERN_TEST_ROUNDS: so many times as many (the target draft-test). */
static int scaled(int n) {
    const char *rounds = getenv("TERN_TEST_ROUNDS");
    return rounds ? n * atoi(rounds) : fixture_level(n / 10 + 1, n / 3 + 1, n);
}
static uint64_t seed_of(uint64_t i) {
    const char *t = getenv("TERN_SEED");
    return (t ? strtoull(t, NULL, 0) : 1) * 1000 + i;
}

static void float_model(void **state) {
    (void)state;
    cases(gguf, 1, NULL, "all", scaled(1200), seed_of(1));
    cases(gguf, 2, NULL, "lookup", scaled(400), seed_of(2));
    cases(hybrid, 2, NULL, "all", scaled(60), seed_of(6));
    cases(chain, 2, NULL, "all", scaled(200), seed_of(9));
    cases(gemma, 2, NULL, "all", scaled(100), seed_of(11));
    cases(blocks, 2, NULL, "all", scaled(100), seed_of(12));
}

static void a_package(void **state) {
    (void)state;
    cases(package, 1, NULL, "all", scaled(600), seed_of(3));
    cases(package, 2, "synergy", "all", scaled(400), seed_of(4));
    cases(package, 2, "in-order", NULL, scaled(400), seed_of(5));
    cases(packed_hybrid, 2, NULL, "all", scaled(60), seed_of(7));
    cases(packed_experts, 2, NULL, "all", scaled(20), seed_of(8));
    cases(packed_chain, 2, NULL, "all", scaled(60), seed_of(10));
}

/* With a temperature, drafted text follows the distribution of exact sampling: sequences of three tokens out
 * of the three likeliest each, against their exact probabilities. 26 degrees of freedom: 69 is exceeded by
 * chance once in 100 000 runs. */
static void distribution(void **state) {
    (void)state;
    enum { K = 3, LEN = 3, N_SEQ = 27, N_RUNS = 4000 };
    tern_engine *e;
    tern_error err;
    tern_options eo;
    tn_options_defaults(&eo);
    eo.n_threads = 1;
    must(tern_engine_open(gguf, &eo, &e, &err), &err);
    tern_session *s = fixture_session(e, N_CTX, "all");
    tern_generate_options o;
    tern_generate_options_defaults(&o);
    o.sampling.temperature = 1.3f;
    o.sampling.top_k = K;
    o.sampling.top_p = 1;
    o.sampling.min_p = 0;
    o.max_tokens = LEN;
    o.ignore_end = true;
    int32_t prompt[] = {5, 6, 7, 5, 6, 9, 5, 6}, text[16], seq[N_SEQ][LEN];
    enum { N_PROMPT = sizeof prompt / sizeof *prompt };
    double exact[N_SEQ];
    tn_sampler sampler;
    must(tn_sampler_open(&e->ctx, &o.sampling, (size_t)e->model->h.n_vocab, &sampler, &err), &err);
    for (int i = 0; i < N_SEQ; i++) {
        memcpy(text, prompt, sizeof prompt);
        exact[i] = 1;
        for (int j = 0, c = i; j < LEN; j++, c /= K) {
            must(tern_session_prefill(s, text, (size_t)(N_PROMPT + j), &err), &err);
            assert_int_equal(
                tn_sampler_distribution(&sampler, tern_session_logits(s), text, (size_t)(N_PROMPT + j)), K);
            exact[i] *= sampler.cand[c % K].p;
            seq[i][j] = text[N_PROMPT + j] = sampler.cand[c % K].id;
        }
    }
    tn_sampler_close(&sampler);
    for (int i = 0; i < N_SEQ; i += 2) { /* so that drafts are right now and then */
        int32_t past[] = {5, 6, seq[i][0], seq[i][1], seq[i][2]};
        must(tern_session_learn(s, past, 5, &err), &err);
    }
    int32_t seen[N_SEQ] = {0};
    static heard h;
    o.on_token = on_token;
    o.user = &h;
    o.draft_eager = true;
    for (int run = 0; run < N_RUNS; run++) {
        memset(&h, 0, sizeof h);
        o.sampling.seed = (uint64_t)run * 7919 + seed_of(0);
        must(tern_session_prefill(s, prompt, N_PROMPT, &err), &err);
        must(tern_session_generate(s, &o, NULL, &err), &err);
        int i = 0;
        while (i < N_SEQ && memcmp(seq[i], h.ids, sizeof seq[i])) i++;
        assert_true(i < N_SEQ);
        seen[i]++;
    }
    double chi2 = 0;
    for (int i = 0; i < N_SEQ; i++) {
        double want = exact[i] * N_RUNS, d = seen[i] - want;
        assert_true(want > 5);
        chi2 += d * d / want;
    }
    if (chi2 > 69) fail_msg("chi-square %.1f", chi2);
    tn_draft_stats t;
    tn_session_draft_stats(s, &t);
    assert_true(t.n_accepted > N_RUNS / 10 && t.n_rows - t.n_steps - t.n_accepted > N_RUNS);
    tern_session_close(&s);
    tern_engine_close(&e);
}

/* Allocation number i fails: one error of memory or of nothing, and what the session then says is what it
 * would have said. */
static void allocation_failures(void **state) {
    (void)state;
    tern_hooks k;
    scarce memory = {.left = -1};
    scarce_hooks(&k, &memory);
    tern_options o;
    tn_options_defaults(&o);
    o.hooks = &k;
    o.n_threads = 1;
    tern_engine *e;
    tern_error err;
    must(tern_engine_open(gguf, &o, &e, &err), &err);
    int32_t prompt[40];
    tn_rng rng = {9};
    int32_t n = random_prompt(&rng, e->model->h.n_vocab, prompt, 40);
    for (long i = 0;; i++) {
        tern_session_options so;
        tern_session_options_defaults(&so);
        so.n_ctx = N_CTX;
        so.draft = "all";
        tern_session *s = NULL;
        tern_generate_options g;
        tern_generate_options_defaults(&g);
        g.max_tokens = 8;
        g.draft_eager = true;
        memory.left = i;
        tern_status st = tern_session_open(e, &so, &s, &err);
        if (st == TERN_OK) st = tern_session_learn(s, prompt, (size_t)n, &err);
        if (st == TERN_OK) st = tern_session_prefill(s, prompt, (size_t)n, &err);
        if (st == TERN_OK) st = tern_session_generate(s, &g, NULL, &err);
        bool done = atomic_exchange(&memory.left, -1) >= 0;
        if (st == TERN_E_MEMORY && s) { /* enough memory now */
            must(tern_session_prefill(s, prompt, (size_t)n, &err), &err);
            must(tern_session_generate(s, &g, NULL, &err), &err);
        } else if (st != TERN_OK) {
            assert_int_equal(st, TERN_E_MEMORY);
        }
        tern_session_close(&s);
        if (done) break;
    }
    tern_engine_close(&e);
}

typedef struct counted {
    scarce *memory;
    long before, made; /* allocations when the call began, and of the call until its last token */
} counted;

static bool any_token(void *user, int32_t token, const char *text, size_t n, float logprob) {
    (void)token;
    (void)text;
    (void)n;
    (void)logprob;
    counted *c = user;
    c->made = c->memory->made - c->before;
    return true;
}

/* A decode step with drafts allocates nothing. */
static void steps_do_not_allocate(void **state) {
    (void)state;
    tern_hooks k;
    scarce memory = {.left = -1};
    scarce_hooks(&k, &memory);
    tern_options o;
    tn_options_defaults(&o);
    o.hooks = &k;
    o.n_threads = 1;
    tern_engine *e;
    tern_error err;
    must(tern_engine_open(package, &o, &e, &err), &err);
    tern_session *s = fixture_session(e, N_CTX, "all");
    int32_t prompt[40];
    tn_rng rng = {9};
    int32_t n = random_prompt(&rng, e->model->h.n_vocab, prompt, 40);
    counted first = {.memory = &memory}, last = {.memory = &memory};
    tern_generate_options g;
    tern_generate_options_defaults(&g);
    g.draft_eager = true;
    g.on_token = any_token;
    g.ignore_end = true;
    g.max_tokens = 10;
    must(tern_session_prefill(s, prompt, (size_t)n, &err), &err);
    first.before = memory.made;
    g.user = &first;
    must(tern_session_generate(s, &g, NULL, &err), &err);
    last.before = memory.made;
    g.max_tokens = 100;
    g.user = &last;
    must(tern_session_generate(s, &g, NULL, &err), &err);
    assert_true(last.made <= 6); /* the sampler's and the text's buffers, once a call */
    tn_draft_stats t;
    tn_session_draft_stats(s, &t);
    assert_true(t.n_accepted > 0 && first.made >= last.made);
    tern_session_close(&s);
    tern_engine_close(&e);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(float_model), cmocka_unit_test(a_package),
                                       cmocka_unit_test(distribution), cmocka_unit_test(allocation_failures),
                                       cmocka_unit_test(steps_do_not_allocate)};
    return cmocka_run_group_tests(tests, setup, NULL);
}
