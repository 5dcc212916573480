/* Does the layer that guesses one token further guess what the float64 reference says, from a folder and from GGUF,
 * however it came to know the text: in one prompt, token by token, after rejected drafts, after a shorter text? And are
 * files refused whose layer is not what their keys say? */
#include "session/session.h"
#include "lab/synth.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fixture/fixture.h"
#include "fixture/guesses.h"

#define FIXTURES TN_SOURCE_DIR "/tests/oracle/fixtures/"
#define CASE FIXTURES "qwen35-mtp"
#define OF_EXPERTS FIXTURES "qwen35moe-mtp"

static guesses vectors;

static int setup(void **state) {
    (void)state;
    guesses_read(&vectors, CASE);
    return 0;
}

static tern_session *open_session(const char *path, const char *scheme, tern_engine **e) {
    tern_options o;
    tern_error err = {0};
    tn_options_defaults(&o);
    o.n_threads = 2;
    o.scheme = scheme;
    must(tern_engine_open(path, &o, e, &err), &err);
    return fixture_session(*e, 80, "mtp");
}

static void as_the_reference(void **state) {
    (void)state;
    static const char *const files[] = {OF_EXPERTS, OF_EXPERTS ".gguf", CASE, CASE ".gguf"};
    for (int f = 0; f < 4; f++) {
        tern_engine *e;
        guesses_read(&vectors, f < 2 ? OF_EXPERTS : CASE);
        tern_session *s = open_session(files[f], "float", &e);
        guesses_compare_all(&vectors, s, s->drafting.mtp, strrchr(files[f], '/') + 1);
        tern_session_close(&s);
        tern_engine_close(&e);
    }
}

/* After a text that became shorter one state is not known, and nothing is guessed before the next token. */
static void behind_less(void **state) {
    (void)state;
    tern_engine *e;
    tern_error err = {0};
    char path[FIXTURE_PATH];
    fixture_model(path, "m.gguf", "tiny-qwen2+mtp", 3, TN_Q8_0);
    tern_session *s = open_session(path, NULL, &e);
    must(tern_session_prefill(s, vectors.ids, 40, &err), &err);
    must(tern_session_truncate(s, 20, &err), &err);
    must(tern_session_step(s, 7, &err), &err);
    assert_non_null(tn_mtp_logits(s->drafting.mtp, 9, 0));
    must(tern_session_prefill(s, vectors.ids, 60, &err), &err);
    assert_non_null(tn_mtp_logits(s->drafting.mtp, 9, 0));
    tern_session *other = fixture_session(e, 80, "mtp");
    must(tn_session_copy(other, s, 30, &err), &err);
    assert_null(tn_mtp_logits(other->drafting.mtp, 9, 0));
    must(tern_session_step(other, 7, &err), &err);
    assert_non_null(tn_mtp_logits(other->drafting.mtp, 9, 0));
    tern_session_close(&other);
    tern_session_close(&s);
    tern_engine_close(&e);
}

/* Guessing ends where others have proposed the same, and what follows. */
static void meets_others(void **state) {
    (void)state;
    enum { N = 40, DEPTH = 8 };
    tern_engine *e;
    tern_error err = {0};
    char path[FIXTURE_PATH];
    int32_t text[N + 1], first = -1;
    fixture_model(path, "m.gguf", "tiny-qwen2+mtp", 3, TN_Q8_0);
    tern_session *s = open_session(path, NULL, &e);
    tn_mtp *m = s->drafting.mtp;
    memcpy(text, vectors.ids, N * sizeof *text);
    text[N] = 7;
    must(tern_session_prefill(s, text, N, &err), &err);
    static const uint64_t want[] = {DEPTH, DEPTH,
                                    1}; /* others proposed nothing; that alone; and what follows */
    for (int i = 0; i < 3; i++) {
        static tn_proposals p;
        memset(&p, 0, sizeof p);
        p.cost_given = true;
        for (int c = 0; c < TN_PROP_CLASSES; c++) tn_prop_guess(&p, c, 0.1f);
        tn_prop_begin(&p, text[N]);
        int32_t same = i ? tn_prop_add(&p, 0, first, 0) : -1;
        if (i == 2) assert_true(tn_prop_add(&p, same, 3, 0) > 0);
        uint64_t before = tn_mtp_n_guesses(m);
        tn_mtp_propose(m, &p, text, N + 1);
        assert_int_equal(tn_mtp_n_guesses(m) - before, want[i]);
        first = p.node[1].token;
    }
    tern_session_close(&s);
    tern_engine_close(&e);
}

/* Steps of which each gave so many tokens at the cost of one row: returns how many guesses are made in them. */
static uint64_t guesses_in(tn_mtp *m, const int32_t *text, int32_t n, int n_steps, float tokens,
                           tn_proposals *p) {
    uint64_t before = tn_mtp_n_guesses(m);
    for (int i = 0; i < n_steps; i++) {
        memset(p, 0, sizeof *p);
        for (int c = 0; c < TN_PROP_CLASSES; c++) tn_prop_guess(p, c, 0.8f);
        tn_prop_begin(p, text[n - 1]);
        p->last_cost = 1;
        p->last_tokens = tokens;
        tn_mtp_propose(m, p, text, n);
    }
    return tn_mtp_n_guesses(m) - before;
}

/* A guess is worth the time of what it brings: less where steps give many tokens without it, more where right guesses bring
 * others that are copied after them. */
static void worth_what_it_saves(void **state) {
    (void)state;
    enum { N = 40, DEPTH = 8, STEPS = 60, COPIED = 7 };
    tern_engine *e;
    tern_error err = {0};
    char path[FIXTURE_PATH];
    int32_t text[N + 1 + DEPTH + COPIED];
    static tn_proposals p;
    fixture_model(path, "m.gguf", "tiny-qwen2+mtp", 3, TN_Q8_0);
    tern_session *s = open_session(path, NULL, &e);
    tn_mtp *m = s->drafting.mtp;
    for (int i = 0; i < N + 1 + DEPTH + COPIED; i++) text[i] = vectors.ids[i % (int)vectors.n];
    must(tern_session_prefill(s, text, N, &err), &err);
    tn_mtp_give_cost(m, 0.3f);
    assert_true(guesses_in(m, text, N + 1, STEPS, 1, &p) >= STEPS);
    (void)guesses_in(m, text, N + 1, STEPS, 12, &p);
    assert_in_range(guesses_in(m, text, N + 1, STEPS, 12, &p), 0, 2); /* but for a try now and then */
    (void)guesses_in(m, text, N + 1, STEPS, 1, &p);
    for (int i = 0; i < STEPS; i++) {
        int32_t n = N + 1 + (int32_t)guesses_in(m, text, N + 1, 1, 1, &p);
        assert_true(n > N + 1);
        for (int32_t k = N + 1; k < n; k++) text[k] = p.node[k - N].token;
        (void)guesses_in(m, text, n + COPIED, 1, (float)(n - N - 1 + COPIED), &p); /* all were right */
    }
    (void)guesses_in(m, text, N + 1, STEPS, 12, &p);
    assert_true(guesses_in(m, text, N + 1, STEPS, 12, &p) >= STEPS);
    tern_session_close(&s);
    tern_engine_close(&e);
}

/* ---- files ------------------------------------------------------------------------------------------ */

static void changed(const char *path, const char *from, const char *to, size_t n, char out[FIXTURE_PATH]) {
    fixture_file(out, "changed.gguf");
    fixture_changed(path, out, from, to, n);
}

static void refused(const char *path, const char *with) {
    tern_engine *e = NULL;
    tern_error err = {0};
    assert_int_not_equal(tern_engine_open(path, NULL, &e, &err), TERN_OK);
    if (!strstr(err.message, with)) fail_msg("'%s' does not say '%s'", err.message, with);
}

#define KEY "qwen2.nextn_predict_layers\4\0\0\0" /* and its type, u32 */

static void odd_files(void **state) {
    (void)state;
    char path[FIXTURE_PATH], odd[FIXTURE_PATH];
    fixture_model(path, "m.gguf", "tiny-qwen2+mtp", 3, TN_F16);
    changed(path, KEY "\1\0\0\0", KEY "\xff\xff\xff\x7f", sizeof KEY + 3, odd);
    refused(odd, "layers that guess one token further, want 0 to 8");
    changed(path, KEY "\1\0\0\0", KEY "\2\0\0\0", sizeof KEY + 3,
            odd); /* the model has two layers, then one */
    refused(odd, "layer 1 has no tensor of one that guesses one token further");
    changed(path, KEY "\1\0\0\0", KEY "\0\0\0\0", sizeof KEY + 3, odd);
    refused(odd, "nextn");
    changed(path, "blk.2.attn_output.weight", "blk.1.attn_xxxxxx.weight", 24, odd);
    refused(odd, "blk.1.attn_xxxxxx.weight is none");
    /* its dimensions after the name: two of 128 and 64 */
    changed(path, "nextn.eh_proj.weight\2\0\0\0\x80", "nextn.eh_proj.weight\2\0\0\0\x40", 25, odd);
    refused(odd, "nextn.eh_proj.weight");
}

static char logged[4][1000];
static int n_logged;
static void on_log(void *user, tern_log_level level, const char *line) {
    (void)user;
    if (level <= TERN_LOG_WARN) snprintf(logged[n_logged++ % 4], sizeof *logged, "%s", line);
}

/* What the model says after a prompt does not depend on a layer that is not whole; nobody drafts with that, and one line
 * says which tensor it is about. */
static void opens_without(const char *path, const char *with, const float *want) {
    tern_hooks hooks;
    tern_hooks_defaults(&hooks);
    hooks.log = on_log;
    n_logged = 0;
    tern_engine *e;
    tern_session *s;
    tern_error err = {0};
    tern_options o;
    tn_options_defaults(&o);
    o.hooks = &hooks;
    must(tern_engine_open(path, &o, &e, &err), &err);
    assert_null(e->model->next);
    assert_int_equal(e->model->h.n_next, 0);
    assert_int_equal(n_logged, 1);
    if (!strstr(*logged, with)) fail_msg("'%s' does not say '%s'", *logged, with);
    s = fixture_session(e, 80, "auto");
    assert_null(s->drafting.mtp);
    must(tern_session_prefill(s, vectors.ids, 20, &err), &err);
    assert_memory_equal(tern_session_logits(s), want, (size_t)e->model->h.n_vocab * sizeof *want);
    tern_session_close(&s);
    tern_session_options so;
    tern_session_options_defaults(&so);
    so.draft = "mtp";
    assert_int_equal(tern_session_open(e, &so, &s, &err), TERN_E_INVALID);
    assert_non_null(strstr(err.message, "which this one has not"));
    tern_engine_close(&e);
}

static void not_whole(void **state) {
    (void)state;
    char path[FIXTURE_PATH], less[FIXTURE_PATH];
    static const struct {
        const char *from, *to, *says;
    } of[] = {
        {"blk.2.ffn_gate.weight", "blk.2.ffn_xxxx.weight", "lacks tensor blk.2.ffn_gate.weight"},
        {"blk.2.ffn_down.weight", "blk.3.ffn_down.weight", "lacks tensor blk.2.ffn_down.weight"},
        {"blk.2.attn_q.weight", "blk.3.attn_q.weight", "lacks tensor blk.2.attn_q.weight"},
        {"blk.2.nextn.hnorm.weight", "blk.2.nextn.xnorm.weight", "lacks tensor blk.2.nextn.hnorm.weight"},
    };
    fixture_model(path, "m.gguf", "tiny-qwen2+mtp", 3, TN_F16);
    tern_engine *e;
    tern_error err = {0};
    must(tern_engine_open(path, NULL, &e, &err), &err);
    assert_non_null(e->model->next);
    tern_session *s = fixture_session(e, 80, "auto");
    assert_non_null(s->drafting.mtp);
    must(tern_session_prefill(s, vectors.ids, 20, &err), &err);
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        changed(path, of[i].from, of[i].to, strlen(of[i].from), less);
        opens_without(less, of[i].says, tern_session_logits(s));
    }
    tern_session_close(&s);
    tern_engine_close(&e);
}

/* The same of a folder, whose names are not the model's layers'. */
static void folder_not_whole(void **state) {
    (void)state;
    char folder[FIXTURE_PATH], file[FIXTURE_PATH + 32], less[FIXTURE_PATH];
    fixture_copy_folder(CASE, folder, "folder");
    tern_engine *e;
    tern_error err = {0};
    must(tern_engine_open(folder, NULL, &e, &err), &err);
    tern_session *s = fixture_session(e, 80, "auto");
    assert_non_null(s->drafting.mtp);
    must(tern_session_prefill(s, vectors.ids, 20, &err), &err);
    snprintf(file, sizeof file, "%s/model.safetensors", folder);
    changed(file, "mtp.layers.0.mlp.up_proj.weight", "mtp.layers.1.mlp.up_proj.weight", 31, less);
    assert_int_equal(rename(less, file), 0);
    opens_without(folder, "lacks tensor mtp.layers.0.mlp.up_proj.weight", tern_session_logits(s));
    tern_session_close(&s);
    tern_engine_close(&e);
}

/* Where guesses are wrong they are soon no longer made: a guess of this model takes more than a tenth of a step, and a text
 * drawn from nearly even chances is guessed one time in hundreds. */
static void skipped_where_wrong(void **state) {
    (void)state;
    enum { N = 1200, STORED = 40 };
    char path[FIXTURE_PATH];
    fixture_model(path, "m.gguf", "tiny-qwen2+mtp", 3, TN_F32);
    tern_engine *e;
    tern_error err = {0};
    must(tern_engine_open(path, NULL, &e, &err), &err);
    tern_session *s = fixture_session(e, 400, "auto");
    uint64_t n_tokens = 0;
    for (int i = 0; i < N / 300; i++) {
        tern_generate_options g;
        tern_generate_options_defaults(&g);
        g.sampling.temperature = 5;
        g.sampling.seed = (uint64_t)i + 1;
        g.max_tokens = 300;
        g.ignore_end = true;
        must(tern_session_truncate(s, 0, &err), &err);
        must(tern_session_prefill(s, vectors.ids, STORED, &err), &err);
        must(tern_session_generate(s, &g, NULL, &err), &err);
        n_tokens += (uint64_t)s->n_tok - STORED;
    }
    tn_draft_stats t;
    tn_session_draft_stats(s, &t);
    uint64_t n_guesses = tn_mtp_n_guesses(s->drafting.mtp);
    print_message("%llu tokens, %llu guesses, %llu verified, %llu right\n", (unsigned long long)n_tokens,
                  (unsigned long long)n_guesses, (unsigned long long)t.by_mtp,
                  (unsigned long long)t.by_mtp_right);
    assert_true(n_tokens > N / 2);
    assert_in_range(n_guesses, 1, n_tokens / 6);
    assert_true(t.by_mtp <= n_guesses);
    tern_session_close(&s);
    tern_engine_close(&e);
}

/* A model whose layer is gone is a model without one. */
static void none(void **state) {
    (void)state;
    tern_engine *e;
    tern_error err = {0};
    tern_options o;
    char path[FIXTURE_PATH];
    tn_options_defaults(&o);
    must(tern_engine_open(TN_SOURCE_DIR "/tests/oracle/fixtures/qwen35", &o, &e, &err), &err);
    assert_null(e->model->next);
    tern_session *s = fixture_session(e, 80, "auto");
    assert_null(s->drafting.mtp);
    tern_session_close(&s);
    tern_session_options so;
    tern_session_options_defaults(&so);
    so.draft = "mtp";
    assert_int_equal(tern_session_open(e, &so, &s, &err), TERN_E_INVALID);
    assert_non_null(strstr(err.message, "which this one has not"));
    tern_engine_close(&e);
    fixture_model(path, "m.gguf", "tiny-qwen2+mtp", 3, TN_F16);
    o.scheme = "llm-int8";
    must(tern_engine_open(path, &o, &e, &err), &err);
    assert_int_equal(tern_session_open(e, &so, &s, &err), TERN_E_INVALID);
    assert_non_null(strstr(err.message, "not under this scheme"));
    tern_engine_close(&e);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_the_reference),
                                       cmocka_unit_test(behind_less),
                                       cmocka_unit_test(meets_others),
                                       cmocka_unit_test(worth_what_it_saves),
                                       cmocka_unit_test(odd_files),
                                       cmocka_unit_test(not_whole),
                                       cmocka_unit_test(folder_not_whole),
                                       cmocka_unit_test(skipped_where_wrong),
                                       cmocka_unit_test(none)};
    return cmocka_run_group_tests(tests, setup, NULL);
}
