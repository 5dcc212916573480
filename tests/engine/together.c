/* Several sessions in one forward: whatever is decoded beside a text, its tokens, log-probabilities and
 * logits are the bits that it gets alone. Models of every kind of layer, from the file and as packages;
 * with drafts, grammars, temperatures, contexts and prompts of their own; sessions come and go in between. */
#include "base/rng.h"
#include "session/session.h"
#include "quant/pack.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixture/fixture.h"

enum { N_TALKS = 14, N_CTX = 768, MAX_NEW = 40, MAX_TEXT = 2000, MAX_VOCAB = 1024 };

typedef struct talk {
    int32_t prompt[N_CTX], n_prompt, n_ctx;
    const char *draft, *grammar;
    float temperature;
    uint64_t seed;
    int32_t max_tokens;
} talk;

typedef struct heard {
    int32_t ids[MAX_NEW + 8], n;
    float logprobs[MAX_NEW + 8];
    char text[MAX_TEXT];
    size_t n_text;
    float logits[MAX_VOCAB];
    tern_stop_reason reason;
} heard;

static char gguf[FIXTURE_PATH], package[FIXTURE_PATH];
static uint64_t n_sparse; /* rows that attended sparsely */

static bool on_token(void *user, int32_t token, const char *text, size_t n, float logprob) {
    heard *h = user;
    if (token >= 0) {
        assert_true(h->n < MAX_NEW);
        h->logprobs[h->n] = logprob;
        h->ids[h->n++] = token;
    }
    assert_true(h->n_text + n <= MAX_TEXT);
    memcpy(h->text + h->n_text, text, n);
    h->n_text += n;
    return true;
}

static talk make_talk(int i, tn_rng *rng, bool drafts) {
    static const char *const drafters[] = {"none", "lookup", "sam,extend", "all"};
    talk t = {.n_ctx = i % 3 ? N_CTX : N_CTX - 96,
              .n_prompt = 1 + (int32_t)tn_rng_below(rng, i % 4 ? 60 : 560),
              .draft = drafters[drafts ? tn_rng_below(rng, 4) : 0],
              .grammar = i % 5 == 2 ? "root ::= [a-z ]+" : NULL,
              .temperature = i % 2 ? 0.0f : 1.1f,
              .seed = tn_rng_u64(rng),
              .max_tokens = 1 + (int32_t)tn_rng_below(rng, MAX_NEW)};
    for (int32_t k = 0; k < t.n_prompt; k++)
        t.prompt[k] = k % 9 < 5 ? 60 + k % 7 : (int32_t)tn_rng_below(rng, 250); /* parts come again */
    return t;
}

static tern_session *begin(tern_engine *e, const talk *t, heard *h, tern_generate_options *o) {
    tern_session *s = fixture_session(e, t->n_ctx, t->draft);
    tern_error err = {0};
    must(tern_session_prefill(s, t->prompt, (size_t)t->n_prompt, &err), &err);
    memset(h, 0, sizeof *h);
    tern_generate_options_defaults(o);
    o->max_tokens = t->max_tokens;
    o->ignore_end = !t->grammar;
    o->sampling.temperature = t->temperature;
    o->sampling.seed = t->seed;
    o->grammar = t->grammar;
    o->draft_eager = true; /* drafts always, whatever is measured */
    o->on_token = on_token;
    o->user = h;
    return s;
}

/* What it was in the end; the session goes. */
static void end(tern_session **s, const tern_generate_result *r, heard *h) {
    size_t n_vocab = (size_t)(*s)->e->model->h.n_vocab;
    assert_true(n_vocab <= MAX_VOCAB);
    memcpy(h->logits, tern_session_logits(*s), n_vocab * sizeof(float));
    h->reason = r->reason;
    tn_stats stats;
    tn_session_stats(*s, &stats);
    n_sparse += stats.attn_rows;
    tern_session_close(s);
}

static void alone(tern_engine *e, const talk *t, heard *h) {
    tern_generate_options o;
    tern_generate_result r;
    tern_error err = {0};
    tern_session *s = begin(e, t, h, &o);
    must(tern_session_generate(s, &o, &r, &err), &err);
    end(&s, &r, h);
}

typedef struct seat {
    int i_talk; /* -1: free */
    tern_session *s;
    tern_answer *d;
    tern_generate_options o;
} seat;

/* All talks over TN_MAX_TEXTS seats, some of them in every step. Returns the most that were in one. */
static int32_t together(tern_engine *e, const talk *t, heard *h, tn_rng *rng) {
    seat seats[TN_MAX_TEXTS];
    int next = 0, n_open = 0;
    int32_t most = 0;
    for (int i = 0; i < TN_MAX_TEXTS; i++) seats[i].i_talk = -1;
    while (next < N_TALKS || n_open) {
        tern_error err = {0};
        tern_answer *go[TN_MAX_TEXTS];
        int32_t n = 0;
        for (int i = 0; i < TN_MAX_TEXTS; i++) {
            seat *k = &seats[i];
            if (k->i_talk < 0 && next < N_TALKS && tn_rng_below(rng, 2)) {
                k->i_talk = next++;
                n_open++;
                k->s = begin(e, &t[k->i_talk], &h[k->i_talk], &k->o);
                must(tern_answer_open(k->s, &k->o, &k->d, &err), &err);
            }
            if (k->i_talk >= 0 && !tern_answer_more(k->d)) {
                tern_generate_result r;
                must(tern_answer_close(&k->d, &r, &err), &err);
                end(&k->s, &r, &h[k->i_talk]);
                k->i_talk = -1;
                n_open--;
            }
            if (k->i_talk >= 0 && tn_rng_below(rng, 8)) go[n++] = k->d;
        }
        if (n) must(tern_answers_step(go, n, &err), &err);
        most = n > most ? n : most;
    }
    return most;
}

static void compare(tern_engine *e, const char *what, bool drafts) {
    static talk t[N_TALKS];
    static heard want[N_TALKS], got[N_TALKS];
    tn_rng rng = {.s = 11};
    for (int i = 0; i < N_TALKS; i++) {
        t[i] = make_talk(i, &rng, drafts);
        alone(e, &t[i], &want[i]);
    }
    int32_t most = together(e, t, got, &rng);
    assert_true(most >= 5);
    for (int i = 0; i < N_TALKS; i++) {
        if (memcmp(&want[i], &got[i], sizeof want[i]))
            fail_msg("%s: talk %d of %d tokens (drafts %s, context %d) became another: %d and %d tokens, "
                     "'%.40s' and "
                     "'%.40s'",
                     what, i, t[i].n_prompt, t[i].draft, t[i].n_ctx, want[i].n, got[i].n, want[i].text,
                     got[i].text);
    }
}

/* ---- models ------------------------------------------------------------------------------------------ */

static void synthesise(const char *name, tn_dtype dtype) { fixture_model(gguf, "m.gguf", name, 5, dtype); }

static void from_files(void **state) {
    (void)state;
    static const struct {
        const char *name;
        tn_dtype dtype;
    } models[] = {{"tiny-lfm2", TN_F16},      {"tiny-qwen35", TN_F16},    {"tiny-gemma3", TN_Q8_0},
                  {"tiny-gpt-oss", TN_F16},   {"tiny-qwen3moe", TN_Q4_0}, {"tiny-granite4", TN_F16},
                  {"tiny-falcon-h1", TN_F16}, {"tiny-deepseek2", TN_Q8_0}};
    int n = getenv("TERN_TEST_QUICK") ? 3 : 7;
    for (int i = 0; i < n; i++) {
        tern_options o;
        synthesise(models[i].name, models[i].dtype);
        tn_options_defaults(&o);
        o.n_threads = 2;
        tern_engine *e = fixture_engine(gguf, &o);
        compare(e, models[i].name, true);
        tern_engine_close(&e);
    }
}

static void packages(void **state) {
    (void)state;
    static const char *const names[] = {"tiny-gemma3", "tiny-qwen35moe", "tiny-qwen35", "tiny-smollm3"};
    for (int i = 0; i < (getenv("TERN_TEST_QUICK") ? 2 : 4); i++) {
        tn_pack_options po;
        synthesise(names[i], TN_F16);
        tn_pack_defaults(&po);
        po.calib_tokens = 256;
        po.scheme = TN_SCHEME_EDGEFLOW;
        po.outliers = TN_OUTLIERS_ON;
        fixture_package(package, "m.tern", gguf, &po);
        bool experts = strstr(names[i], "moe") != NULL; /* on devices that keep both forms only */
        for (int way = 0; way < 3 - experts; way++) {
            tern_options o;
            tn_options_defaults(&o);
            o.n_threads = 2;
            o.attention_decode = way == 1; /* rows that attend sparsely beside rows that do not */
            o.attention_threshold = way == 1 ? 300 : 0;
            o.npu_separate_weights = way == 2; /* forms that are exchanged between prompts and decoding */
            tern_engine *e = fixture_engine(package, &o);
            n_sparse = 0;
            compare(e, way == 0 ? "package" : way == 1 ? "sparse decoding" : "separate weights", true);
            assert_int_equal(n_sparse > 0, way == 1);
            tern_engine_close(&e);
        }
    }
}

/* ---- what goes wrong ----------------------------------------------------------------------------------- */

/* One that is cancelled ends within the step; the others go on as if it had not been there. */
static void cancelled(void **state) {
    (void)state;
    static talk t[3];
    static heard want[3], got[3];
    tern_options o;
    tern_generate_options g[3];
    tern_session *s[3];
    tern_answer *d[3];
    tern_error err = {0};
    tn_rng rng = {.s = 3};
    synthesise("tiny-gemma3", TN_F16);
    tn_options_defaults(&o);
    o.n_threads = 2;
    tern_engine *e = fixture_engine(gguf, &o);
    for (int i = 0; i < 3; i++) {
        t[i] = make_talk(i, &rng, false);
        t[i].max_tokens = 20;
        t[i].grammar = NULL;
        alone(e, &t[i], &want[i]);
        s[i] = begin(e, &t[i], &got[i], &g[i]);
        must(tern_answer_open(s[i], &g[i], &d[i], &err), &err);
    }
    for (int k = 0; k < 5; k++) must(tern_answers_step(d, 3, &err), &err);
    int32_t before = got[1].n;
    tern_session_cancel(s[1]);
    must(tern_answers_step(d, 3, &err), &err);
    assert_false(tern_answer_more(d[1]));
    assert_int_equal(got[1].n, before);
    assert_int_equal(tern_answer_close(&d[1], NULL, &err), TERN_E_CANCELLED);
    tern_session_close(&s[1]);
    tern_answer *rest[2] = {d[0], d[2]};
    while (tern_answer_more(rest[0])) must(tern_answers_step(rest, 2, &err), &err);
    for (int i = 0; i < 3; i += 2) {
        tern_generate_result r;
        must(tern_answer_close(&d[i], &r, &err), &err);
        end(&s[i], &r, &got[i]);
        assert_memory_equal(&got[i], &want[i], sizeof want[i]);
    }
    tern_engine_close(&e);
}

/* One logit of hundreds is not finite from here on, as where a weight of the head is damaged. All say so. */
static void a_logit_that_is_not_finite(void **state) {
    (void)state;
    static heard h[2];
    static float bias[MAX_VOCAB];
    tern_options o;
    tern_generate_options g[2];
    tern_session *s[2];
    tern_answer *d[2];
    tern_error err = {0};
    tn_rng rng = {.s = 3};
    synthesise("tiny-smollm3", TN_F16);
    tn_options_defaults(&o);
    o.n_threads = 2;
    tern_engine *e = fixture_engine(gguf, &o);
    for (int i = 0; i < 2; i++) {
        talk t = make_talk(3, &rng, false);
        t.max_tokens = 20;
        s[i] = begin(e, &t, &h[i], &g[i]);
        must(tern_answer_open(s[i], &g[i], &d[i], &err), &err);
    }
    must(tern_answers_step(d, 2, &err), &err);
    tn_linear *head = &e->model->top.linears[e->model->h.tied ? TN_W_EMBD : TN_W_OUT];
    assert_null(head->bias);
    assert_true(e->model->h.n_vocab <= MAX_VOCAB);
    bias[3] = INFINITY;
    head->bias = bias;
    must(tern_answers_step(d, 2, &err), &err);
    head->bias = NULL;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(h[i].n, 2); /* no token is drawn from it */
        assert_false(tern_answer_more(d[i]));
        assert_int_equal(tern_answer_close(&d[i], NULL, &err), TERN_E_FORMAT);
        assert_non_null(strstr(err.message, "not finite"));
        tern_session_close(&s[i]);
    }
    tern_engine_close(&e);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(from_files), cmocka_unit_test(packages),
                                       cmocka_unit_test(cancelled),
                                       cmocka_unit_test(a_logit_that_is_not_finite)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
