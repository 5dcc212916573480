/* Sparse attention on a file's own weights, in its blocks and in floats: everything selected is full attention bit by bit, what is
 * selected is what the estimates find largest, and no bit depends on threads, pieces, other texts or drafts. */
#include "attention/sparse_impl.h"
#include "params/options.h"
#include "session/session.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fixture/fixture.h"

enum { N_PROMPT = 520, N_VOCAB = 512, N_CTX = 700, N_MODELS = 3, LONG = 5120 };

static const struct {
    const char *name;
    int dtype;
} models[N_MODELS] = {{"tiny-llama", TN_Q4_0}, {"tiny-qwen3", TN_Q8_0}, {"tiny-gemma3", TN_F16}};
static char files[N_MODELS][FIXTURE_PATH];
static int32_t prompt[N_PROMPT];

static int setup(void **state) {
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        char name[16];
        snprintf(name, sizeof name, "m%d.gguf", i);
        fixture_model(files[i], name, models[i].name, 7, models[i].dtype);
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

typedef struct answer {
    float logits[N_VOCAB];
    fixture_heard said;
} answer;

static void generate(tern_session *s, const char *draft, answer *a) {
    tern_error err;
    tern_generate_options g;
    fixture_hear(&g, 24, &a->said);
    g.draft = draft;
    g.draft_eager = true;
    must(tern_session_generate(s, &g, NULL, &err), &err);
}

/* The prompt in pieces of `piece` tokens, then an answer with these drafters. */
static void ask(int model, const tern_options *o, int32_t piece, const char *draft, answer *a,
                tn_stats *stats) {
    tern_error err;
    tern_engine *e = fixture_engine(files[model], o);
    tern_session *s = fixture_session(e, N_CTX, draft);
    for (int32_t n = piece; n < N_PROMPT; n += piece)
        must(tern_session_prefill(s, prompt, (size_t)n, &err), &err);
    must(tern_session_prefill(s, prompt, N_PROMPT, &err), &err);
    memcpy(a->logits, tern_session_logits(s), sizeof a->logits);
    if (stats) tn_session_stats(s, stats);
    generate(s, draft, a);
    tern_session_close(&s);
    tern_engine_close(&e);
}

static void same(const answer *a, const answer *b) {
    assert_memory_equal(a->logits, b->logits, sizeof a->logits);
    assert_memory_equal(&a->said, &b->said, sizeof a->said);
}

static void everything_is_full(void **state) {
    (void)state;
    static const char *const modes[] = {"shadow", "float-sparse", "block-sparse", "npu-full"};
    for (int m = 0; m < N_MODELS; m++) {
        answer want, got;
        tn_stats t;
        tern_options o = options("full", 0);
        ask(m, &o, N_PROMPT, "none", &want, &t);
        assert_int_equal(t.attn_rows, 0);
        for (int i = 0; i < 4; i++) {
            o = options(modes[i], 1);
            ask(m, &o, N_PROMPT, "none", &got, NULL);
            same(&got, &want);
        }
        o = options("shadow", 0.9999f); /* the sparse way is taken, and selects all positions */
        ask(m, &o, N_PROMPT, "none", &got, &t);
        assert_true(t.attn_rows > 0 && t.attn_selected == t.attn_seen);
        same(&got, &want);
        o = options("shadow", 0.1f);
        ask(m, &o, N_PROMPT, "none", &got, &t);
        assert_true(t.attn_selected < t.attn_seen);
        assert_memory_not_equal(got.logits, want.logits, sizeof got.logits); /* or this test tests nothing */
        o.exact = true;
        o.attention = NULL;
        o.attention_ratio = 0;
        ask(m, &o, N_PROMPT, "none", &got, &t);
        assert_int_equal(t.attn_rows, 0);
        same(&got, &want);
    }
}

/* Scales that follow the text find what scales of a calibration find. */
static void the_largest_are_found(void **state) {
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        answer a;
        tn_stats t;
        tern_options o = options("shadow", 0.25f);
        o.attention_check = true;
        ask(m, &o, N_PROMPT, "none", &a, &t);
        double recall = (double)t.attn_found / (double)t.attn_true,
               share = (double)t.attn_selected / (double)t.attn_seen;
        print_message("%s: recall %.3f, share %.3f, %.3f of the weights\n", models[m].name, recall, share,
                      t.attn_mass);
        assert_true(recall > 0.97 && share > 0.2 && share < 0.35);
    }
}

static void no_bit_depends(void **state) {
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        answer want, got;
        tern_options o = options("shadow", 0.25f);
        ask(m, &o, 256, "none", &want, NULL); /* chunks of a prompt are of 256 */
        for (int threads = 1; threads <= 3; threads += 2) {
            o.n_threads = threads;
            ask(m, &o, N_PROMPT, "none", &got, NULL);
            same(&got, &want);
            ask(m, &o, N_PROMPT, "lookup", &got, NULL);
            same(&got, &want);
        }
        o = options("full", 0); /* sparse decoding, with drafts and without */
        o.attention_decode = true;
        ask(m, &o, N_PROMPT, "none", &want, NULL);
        ask(m, &o, N_PROMPT, "lookup", &got, NULL);
        same(&got, &want);
    }
}

/* A session that goes back, one that is copied, and one whose answer is made beside another's. */
static void other_ways_there(void **state) {
    (void)state;
    tern_error err;
    tern_options o = options("shadow", 0.25f);
    tern_engine *e = fixture_engine(files[0], &o);
    tern_session *s = fixture_session(e, N_CTX, "none"), *t = fixture_session(e, N_CTX, "none");
    answer want, got;
    ask(0, &o, N_PROMPT, "none", &want, NULL);
    int32_t other[300];
    for (int i = 0; i < 300; i++) other[i] = i < 256 ? prompt[i] : 1 + i % 60;
    must(tern_session_prefill(s, other, 300, &err), &err);
    must(tern_session_prefill(s, prompt, N_PROMPT, &err), &err); /* goes back to 256 */
    assert_memory_equal(tern_session_logits(s), want.logits, sizeof want.logits);
    must(tern_session_copy(t, s, &err), &err);
    got = want;
    generate(t, "none", &got);
    same(&got, &want);
    must(tern_session_prefill(t, other, 300, &err), &err);
    answer beside = want;
    tern_answer *a[2];
    tern_generate_options g;
    fixture_hear(&g, 24, &beside.said);
    must(tern_answer_open(s, &g, &a[0], &err), &err);
    fixture_heard thrown;
    fixture_hear(&g, 24, &thrown);
    must(tern_answer_open(t, &g, &a[1], &err), &err);
    while (tern_answer_more(a[0]) && tern_answer_more(a[1])) must(tern_answers_step(a, 2, &err), &err);
    for (int i = 0; i < 2; i++) must(tern_answer_close(&a[i], NULL, &err), &err);
    same(&beside, &want);
    tern_session_close(&s);
    tern_session_close(&t);
    tern_engine_close(&e);
}

/* Of its own accord: blocks attend sparsely, floats, the reference, in full. */
static void of_its_own_accord(void **state) {
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        answer a;
        tn_stats t;
        tern_options o = options(NULL, 0);
        o.attention_threshold = 300;
        ask(m, &o, N_PROMPT, "none", &a, &t);
        assert_int_equal(t.attn_rows > 0, models[m].dtype != TN_F16);
    }
}

/* The share of a text's positions that its rows attend to, by what was counted. */
static double share_of(float ratio, int32_t n) {
    static int32_t text[LONG];
    tn_stats t;
    tern_error err;
    const tern_options o = options("shadow", ratio);
    tern_engine *e = fixture_engine(files[0], &o);
    tern_session *s = fixture_session(e, LONG, "none");
    fixture_prompt(text, n);
    must(tern_session_prefill(s, text, (size_t)n, &err), &err);
    tn_session_stats(s, &t);
    tern_session_close(&s);
    tern_engine_close(&e);
    return (double)t.attn_selected / (double)t.attn_seen;
}

/* Longer texts select less by default, and what a user asks for where he asks. A row that sees n positions keeps .3 n of up to 2,048,
 * and .3 sqrt(2048 n) of more, .075 n from 32,768 on: the sums over rows 1 to N, as integrals. */
static void longer_texts_select_less(void **state) {
    (void)state;
    const double from = 2048, n = LONG, all = n * n / 2, few = .3 * from * from / 2,
                 more = .3 * sqrt(from) * 2 / 3 * (pow(n, 1.5) - pow(from, 1.5));
    /* .237, and a little more: tiles keep their own rows, too. */
    assert_true(fabs(share_of(0, LONG) - (few + more) / all) < .006);
    assert_true(fabs(share_of(.3f, LONG) - .3) < .006);
    assert_true(share_of(0, 2048) == share_of(.3f, 2048));
    const tn_sparse_attn falls = {.o.falls = true}, stays = {.o.falls = false};
    const float of[][2] = {{1, 1}, {2048, 1}, {8192, .5f}, {32768, .25f}, {131072, .25f}};
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++) {
        assert_true(tn_sparse_fallen(&falls, (size_t)of[i][0]) == of[i][1]);
        assert_true(tn_sparse_fallen(&stays, (size_t)of[i][0]) == 1);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_is_full), cmocka_unit_test(the_largest_are_found),
        cmocka_unit_test(no_bit_depends),     cmocka_unit_test(other_ways_there),
        cmocka_unit_test(of_its_own_accord),  cmocka_unit_test(longer_texts_select_less),
    };
    return cmocka_run_group_tests_name("attention/sparse_files", tests, setup, NULL);
}
