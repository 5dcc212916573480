/* Are the evaluation tasks' figures those computed from another engine's tokens and logits
 * (tests/oracle/eval)? */
#include "measure/eval.h"
#include "quant/pack.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define FOLDER TN_SOURCE_DIR "/tests/oracle/eval/"

static double number(const json_t *o, const char *key) { return json_number_value(json_object_get(o, key)); }

static void close_to(const char *what, size_t i, double got, double want) {
    if (!(fabs(got - want) <= 1e-4 * fabs(want) + 1e-9))
        fail_msg("result %zu: %s is %.7g, want %.7g", i, what, got, want);
}

static char source[1024];

/* The model of the figures; a test that needs it is skipped without it. */
static tern_engine *open_source(void) {
    const char *data = getenv("TERN_DATA");
    snprintf(source, sizeof source, "%s/models/stories260K.gguf",
             data ? data : TN_SOURCE_DIR "/../shared/data");
    struct stat st;
    if (stat(source, &st)) {
        print_message("no %s; skipped\n", source);
        skip();
    }
    tern_error err = {0};
    tern_engine *e = NULL;
    if (tern_engine_open(source, NULL, &e, &err) != TERN_OK) fail_msg("%s", err.message);
    return e;
}

static void expected_figures(void **state) {
    (void)state;
    tern_engine *e = open_source();
    tern_error err = {0};
    json_error_t je;
    json_t *j = json_load_file(FOLDER "expected.json", 0, &je), *list = json_object_get(j, "results"), *want;
    if (!j) fail_msg("%s:%d: %s", je.source, je.line, je.text);
    size_t i;
    assert_int_equal(json_array_size(list), 6);
    json_array_foreach(list, i, want) {
        char file[1024];
        snprintf(file, sizeof file, FOLDER "%s", json_string_value(json_object_get(want, "file")));
        tn_eval_options o = {.task = json_string_value(json_object_get(want, "task")),
                             .data = file,
                             .n_ctx = (int32_t)number(want, "n_ctx")};
        tn_eval_result r;
        if (tn_eval(e, &o, &r, &err) != TERN_OK) fail_msg("result %zu: %s", i, err.message);
        assert_int_equal(r.n_items, (int64_t)number(want, "items"));
        assert_int_equal(r.n_skipped, 0);
        close_to("perplexity", i, r.perplexity, number(want, "perplexity"));
        close_to("standard error", i, r.stderr_, number(want, "stderr"));
        if (!r.is_ppl) close_to("accuracy", i, r.value, number(want, "accuracy"));
    }
    json_decref(j);
    tern_engine_close(&e);
}

/* llama-perplexity -m stories260K.gguf -f story.txt -c 64 of llama.cpp b7099 (10e978015) prints
 * "PPL = 3.5935 +/- 0.42562" over 5 windows. */
static void protocol_of_llama_cpp(void **state) {
    (void)state;
    tern_engine *e = open_source();
    tern_error err = {0};
    tn_eval_options o = {.task = "ppl", .data = FOLDER "story.txt", .n_ctx = 64, .protocol = "llama.cpp"};
    tn_eval_result r;
    if (tn_eval(e, &o, &r, &err) != TERN_OK) fail_msg("%s", err.message);
    assert_int_equal(r.n_items, 5 * 31);
    assert_true(fabs(r.value - 3.5935) < 4e-4);
    assert_true(fabs(r.stderr_ - 0.42562) < 4e-4);
    o.protocol = "dance";
    assert_int_equal(tn_eval(e, &o, &r, &err), TERN_E_INVALID);
    o.protocol = "llama.cpp";
    o.n_ctx = 512; /* the story has fewer than 1024 tokens */
    assert_int_equal(tn_eval(e, &o, &r, &err), TERN_E_FORMAT);
    tern_engine_close(&e);
}

enum { WINDOW = 64, VOCAB = 512 };

typedef struct logits {
    float row[WINDOW][VOCAB];
} logits;

static bool keep_logits(void *user, size_t i, const float *x) {
    memcpy(((logits *)user)->row[i], x, sizeof((logits *)user)->row[i]);
    return true;
}

static long double logp_of(const float *x, size_t id) {
    long double sum = 0;
    for (size_t v = 0; v < VOCAB; v++) sum += expl((long double)x[v]);
    return (long double)x[id] - logl(sum);
}

/* The divergence of a package from its source, against sums over the same logits written out plainly. */
static void divergence(void **state) {
    (void)state;
    tern_engine *e = open_source(), *q = NULL;
    tern_error err = {0};
    char package[1024];
    snprintf(package, sizeof package, TN_BINARY_DIR "/eval_oracle.%d.tern", (int)getpid());
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tn_pack_options po;
    tn_pack_defaults(&po);
    po.bits = 4;
    if (tn_pack(&ctx, source, package, &po, NULL, &err) != TERN_OK) fail_msg("%s", err.message);
    if (tern_engine_open(package, NULL, &q, &err) != TERN_OK) fail_msg("%s", err.message);
    tn_eval_options o = {
        .task = "ppl", .data = FOLDER "story.txt", .n_ctx = WINDOW, .limit = 1, .source = e, .against = e};
    tn_eval_result r;
    if (tn_eval(q, &o, &r, &err) != TERN_OK) fail_msg("%s", err.message);

    char text[4096];
    FILE *f = fopen(FOLDER "story.txt", "r");
    size_t n = fread(text, 1, sizeof text, f), n_ids = 0;
    fclose(f);
    int32_t ids[4096];
    assert_int_equal(tern_tokenize(e, text, n, false, false, ids, 4096, &n_ids, &err), TERN_OK);
    int32_t bos;
    assert_int_equal(tern_tokenize(e, "", 0, true, false, &bos, 1, &n, &err), TERN_OK);
    ids[0] = bos;
    logits *p = malloc(2 * sizeof *p);
    tern_engine *both[2] = {e, q};
    for (int m = 0; m < 2; m++) {
        tern_session *s = NULL;
        assert_int_equal(tern_session_open(both[m], NULL, &s, &err), TERN_OK);
        assert_int_equal(tern_session_score(s, ids, WINDOW, 0, keep_logits, &p[m], &err), TERN_OK);
        tern_session_close(&s);
    }
    long double kl = 0, most = 0, nll = 0;
    int same = 0;
    for (int i = 0; i + 1 < WINDOW; i++) {
        long double one = 0;
        size_t top[2] = {0, 0};
        for (size_t v = 0; v < VOCAB; v++) {
            long double a = logp_of(p[0].row[i], v);
            one += expl(a) * (a - logp_of(p[1].row[i], v));
            for (int m = 0; m < 2; m++) top[m] = p[m].row[i][v] > p[m].row[i][top[m]] ? v : top[m];
        }
        kl += one;
        most = one > most ? one : most;
        same += top[0] == top[1];
        nll += logp_of(p[0].row[i], (size_t)ids[i + 1]) - logp_of(p[1].row[i], (size_t)ids[i + 1]);
    }
    assert_int_equal(r.n_items, WINDOW - 1);
    assert_true(r.loss.kl.value > 1e-4);
    close_to("KL", 0, r.loss.kl.value, (double)kl / (WINDOW - 1));
    close_to("largest KL", 0, r.loss.kl_max, (double)most);
    close_to("same top", 0, r.loss.same_top.value, (double)same / (WINDOW - 1));
    close_to("difference", 0, r.loss.nll_diff.value, (double)nll / (WINDOW - 1));
    /* The second model is the source itself; its kept predictions are floats, good to 1e-6. */
    assert_true(fabs(r.against_loss.kl.value) < 1e-6 && r.against_loss.same_top.value == 1);
    assert_true(r.against_loss.nll_diff.value == 0 && r.against_loss.nll_diff.stderr_ == 0);
    close_to("paired", 0, r.paired.value, r.loss.nll_diff.value);
    close_to("paired error", 0, r.paired.stderr_, r.loss.nll_diff.stderr_);
    close_to("paired KL", 0, r.paired_kl.value, r.loss.kl.value);
    free(p);
    tern_engine_close(&q);
    tern_engine_close(&e);
    remove(package);
}

/* Two models over the items of a task. */
static void paired_items(void **state) {
    (void)state;
    tern_engine *e = open_source();
    tern_error err = {0};
    tn_eval_options o = {.task = "choice", .data = FOLDER "choice.jsonl", .against = e};
    tn_eval_result r;
    if (tn_eval(e, &o, &r, &err) != TERN_OK) fail_msg("%s", err.message);
    assert_true(r.has_against && r.against_value == r.value && r.paired.value == 0);
    assert_true(tn_eval_p(r.paired) == 1);
    o.source = e;
    assert_int_equal(tn_eval(e, &o, &r, &err), TERN_E_INVALID);
    /* 1.96 standard errors are 5 % by chance, two-sided */
    close_to("p", 0, tn_eval_p((tn_estimate){1.959964, 1}), 0.05);
    double x[4] = {1, 2, 3, 6}; /* mean 3, variance 14/3 */
    close_to("mean", 0, tn_eval_estimate(x, 4).value, 3);
    close_to("its error", 0, tn_eval_estimate(x, 4).stderr_, sqrt(14.0 / 3 / 4));
    tern_engine_close(&e);
}

/* Returns the log-probability of ending's tokens after query's. */
static long double ending_logp(tern_engine *e, const char *query, const char *ending, logits *p) {
    char text[512];
    int32_t ids[WINDOW];
    size_t n_query = 0, n = 0;
    tern_error err = {0};
    tern_session *s = NULL;
    snprintf(text, sizeof text, "%s%s", query, ending);
    assert_int_equal(tern_tokenize(e, query, strlen(query), true, true, ids, WINDOW, &n_query, &err),
                     TERN_OK);
    assert_int_equal(tern_tokenize(e, text, strlen(text), true, true, ids, WINDOW, &n, &err), TERN_OK);
    assert_int_equal(tern_session_open(e, NULL, &s, &err), TERN_OK);
    assert_int_equal(tern_session_score(s, ids, n, 0, keep_logits, p, &err), TERN_OK);
    tern_session_close(&s);
    long double sum = 0;
    for (size_t i = n_query; i < n; i++) sum += logp_of(p->row[i - 1], (size_t)ids[i]);
    return sum;
}

static void note_item(void *user, bool right, bool by_sum) {
    bool *seen = user;
    seen[0] = right;
    seen[1] = by_sum;
}

/* A long ending that is probable byte by byte loses to a short one when whole endings are compared. */
static void whole_endings(void **state) {
    (void)state;
    tern_engine *e = open_source();
    tern_error err = {0};
    const char *query = "The dog",
               *ending[2] = {" was very happy. He wanted to play with the ball in the park every day.",
                             " ran"};
    logits *p = malloc(sizeof *p);
    long double logp[2] = {ending_logp(e, query, ending[0], p), ending_logp(e, query, ending[1], p)};
    free(p);
    assert_true(logp[0] < logp[1]);
    assert_true(logp[0] / (long double)strlen(ending[0]) > logp[1] / (long double)strlen(ending[1]));
    char file[1024];
    snprintf(file, sizeof file, TN_BINARY_DIR "/endings.%d.jsonl", (int)getpid());
    for (int gold = 0; gold < 2; gold++) {
        FILE *f = fopen(file, "w");
        assert_non_null(f);
        fprintf(f, "{\"query\": \"%s\", \"choices\": [\"%s\", \"%s\"], \"gold\": %d}\n", query, ending[0],
                ending[1], gold);
        fclose(f);
        bool seen[2] = {false, false};
        tn_eval_options o = {.task = "choice", .data = file, .on_item = note_item, .user = seen};
        tn_eval_result r;
        if (tn_eval(e, &o, &r, &err) != TERN_OK) fail_msg("%s", err.message);
        assert_true(r.value == (gold == 0) && r.by_sum == (gold == 1));
        assert_true(seen[0] == (gold == 0) && seen[1] == (gold == 1));
    }
    remove(file);
    tern_engine_close(&e);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(expected_figures),
                                       cmocka_unit_test(protocol_of_llama_cpp), cmocka_unit_test(divergence),
                                       cmocka_unit_test(paired_items), cmocka_unit_test(whole_endings)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
