/* Do other engines compute the same logits? For small random models of every architecture, written here
 * from a seed, tests/oracle/peers holds what llama.cpp gave (tools/oracle makes it): logits of sampled
 * positions of a long text, and a greedy continuation. $TERN_PEERS may name a folder with the logits of
 * all positions, NAME.f32: then they are compared too. */
#include "session/session.h"
#include "lab/synth.h"

#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "fixture/fixture.h"

#define PEERS TN_SOURCE_DIR "/tests/oracle/peers"

static const double tolerance = 1e-3;

enum { MAX_TOK = 2048, MAX_CASES = 128, N_GREEDY = 64 };

typedef struct peer_case {
    char name[64];
} peer_case;

static tn_ctx ctx;
static int32_t ids[MAX_TOK];
static size_t n_ids;

static json_t *load(const char *name) {
    char path[512];
    json_error_t e;
    snprintf(path, sizeof path, PEERS "/%s.json", name);
    json_t *j = json_load_file(path, 0, &e);
    if (!j) fail_msg("%s:%d: %s", path, e.line, e.text);
    return j;
}

static tern_engine *open_model(const char *name, uint64_t seed) {
    char path[128];
    tern_error err = {0};
    tn_pool *pool;
    tern_engine *e;
    tern_options o;
    snprintf(path, sizeof path, "/tmp/tern-peers-%ld.gguf", (long)getpid());
    assert_int_equal(tn_pool_open(&ctx, 2, &pool, &err), TERN_OK);
    if (tn_synth(&ctx, pool, name, path, seed, TN_F32, &err) != TERN_OK)
        fail_msg("%s: %s", name, err.message);
    tn_pool_close(&pool);
    tn_options_defaults(&o);
    o.n_threads = 2;
    o.scheme = "float";
    if (tern_engine_open(path, &o, &e, &err) != TERN_OK) fail_msg("%s: %s", name, err.message);
    unlink(path);
    return e;
}

typedef struct sink {
    float *all;
    size_t n_vocab;
} sink;

static bool keep(void *user, size_t i, const float *logits) {
    sink *k = user;
    memcpy(k->all + i * k->n_vocab, logits, k->n_vocab * sizeof *logits);
    return true;
}

static void compare_samples(const char *name, const json_t *j, const sink *k) {
    const json_t *positions = json_object_get(j, "positions"), *columns = json_object_get(j, "columns"),
                 *largest = json_object_get(j, "largest"), *rows = json_object_get(j, "logits");
    size_t n_pos = json_array_size(positions), n_col = json_array_size(columns);
    double worst = 0;
    assert_true(n_pos >= 8 && n_col >= 8 && json_array_size(rows) == n_pos &&
                json_array_size(largest) == n_pos);
    for (size_t p = 0; p < n_pos; p++) {
        size_t pos = (size_t)json_integer_value(json_array_get(positions, p));
        double scale = json_number_value(json_array_get(largest, p));
        assert_true(pos < n_ids && scale > 0);
        for (size_t c = 0; c < n_col; c++) {
            size_t col = (size_t)json_integer_value(json_array_get(columns, c));
            assert_true(col < k->n_vocab);
            double want = json_number_value(json_array_get(json_array_get(rows, p), c)),
                   diff = fabs((double)k->all[pos * k->n_vocab + col] - want) / scale;
            if (!(diff <= tolerance))
                fail_msg(
                    "%s: logit %zu behind position %zu is %g, the other engine's %g: %.1e of the largest",
                    name, col, pos, (double)k->all[pos * k->n_vocab + col], want, diff);
            worst = fmax(worst, diff);
        }
    }
    print_message("%s: largest relative difference of samples %.1e\n", name, worst);
}

static void compare_all(const char *name, const sink *k) {
    const char *folder = getenv("TERN_PEERS");
    char path[512];
    if (!folder) return;
    snprintf(path, sizeof path, "%s/%s.f32", folder, name);
    FILE *f = fopen(path, "rb");
    if (!f) return;
    double worst = 0;
    float *row = malloc(k->n_vocab * sizeof *row);
    assert_non_null(row);
    for (size_t p = 0; p < n_ids; p++) {
        double diff = 0, scale = 0;
        assert_int_equal(fread(row, sizeof *row, k->n_vocab, f), k->n_vocab);
        for (size_t c = 0; c < k->n_vocab; c++) {
            diff = fmax(diff, fabs((double)row[c] - (double)k->all[p * k->n_vocab + c]));
            scale = fmax(scale, fabs((double)row[c]));
        }
        if (diff / scale > tolerance)
            print_message("%s: position %zu is off by %.1e\n", name, p, diff / scale);
        worst = fmax(worst, diff / scale);
    }
    print_message("%s: largest relative difference of all %zu positions %.1e\n", name, n_ids, worst);
    assert_true(worst <=
                2 * tolerance); /* llama.cpp looks GELU up in a table of halves: 1.0e-3 at one position */
    free(row);
    fclose(f);
}

/* Prompts of all lengths give the logits that scoring gave: inside windows and beyond, over borders of
 * chunks. */
static void prompts(tern_engine *e, const char *name, const sink *k) {
    static const size_t lengths[] = {1, 5, 300};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        tern_error err = {0};
        tern_session *s = fixture_session(e, (int32_t)n_ids + 16, NULL);
        if (tern_session_prefill(s, ids, lengths[i], &err) != TERN_OK) fail_msg("%s: %s", name, err.message);
        if (memcmp(tern_session_logits(s), k->all + (lengths[i] - 1) * k->n_vocab,
                   k->n_vocab * sizeof(float)))
            fail_msg("%s: a prompt of %zu tokens gives other logits than scoring the text", name, lengths[i]);
        tern_session_close(&s);
    }
}

static void greedy(tern_engine *e, const char *name, const json_t *j, size_t n_vocab) {
    const json_t *want = json_object_get(j, "greedy");
    size_t n_prompt = (size_t)json_integer_value(json_object_get(j, "greedy_prompt"));
    tern_error err = {0};
    tern_session *s = fixture_session(e, 256, NULL);
    assert_true(n_prompt > 0 && n_prompt < n_ids && json_array_size(want) == N_GREEDY);
    if (tern_session_prefill(s, ids, n_prompt, &err) != TERN_OK) fail_msg("%s: %s", name, err.message);
    for (size_t i = 0; i < N_GREEDY; i++) {
        const float *l = tern_session_logits(s);
        int32_t best = 0;
        for (size_t c = 1; c < n_vocab; c++)
            if (l[c] > l[best]) best = (int32_t)c;
        if (best != json_integer_value(json_array_get(want, i)))
            fail_msg("%s: greedy token %zu is %d, the other engine's %d", name, i, best,
                     (int)json_integer_value(json_array_get(want, i)));
        if (tern_session_step(s, best, &err) != TERN_OK) fail_msg("%s: %s", name, err.message);
    }
    tern_session_close(&s);
}

static void run_case(void **state) {
    const char *name = ((const peer_case *)*state)->name;
    json_t *j = load(name);
    tern_error err = {0};
    tern_model_info info;
    tern_engine *e = open_model(name, (uint64_t)json_integer_value(json_object_get(j, "seed")));
    tern_engine_info(e, &info);
    sink k = {.n_vocab = (size_t)info.n_vocab};
    k.all = malloc(n_ids * k.n_vocab * sizeof *k.all);
    assert_non_null(k.all);
    tern_session *s = fixture_session(e, (int32_t)n_ids + 16, NULL);
    if (tern_session_score(s, ids, n_ids, 0, keep, &k, &err) != TERN_OK)
        fail_msg("%s: %s", name, err.message);
    tern_session_close(&s);
    compare_all(name, &k);
    compare_samples(name, j, &k);
    prompts(e, name, &k);
    greedy(e, name, j, k.n_vocab);
    free(k.all);
    tern_engine_close(&e);
    json_decref(j);
}

int main(int argc, char **argv) {
    static peer_case cases[MAX_CASES];
    struct CMUnitTest tests[MAX_CASES];
    size_t n = 0;
    DIR *d = opendir(PEERS);
    tn_ctx_init(&ctx, NULL);
    for (struct dirent *f; d && (f = readdir(d)) && n < MAX_CASES;) {
        size_t len = strlen(f->d_name);
        if (strncmp(f->d_name, "tiny-", 5) || len < 6 || len > 60 || strcmp(f->d_name + len - 5, ".json"))
            continue;
        snprintf(cases[n].name, sizeof cases[n].name, "%.*s", (int)len - 5, f->d_name);
        if (argc > 1 && strcmp(argv[1], cases[n].name)) continue;
        if (getenv("TERN_TEST_QUICK") && cases[n].name[len - 6] % 2) continue; /* about half */
        tests[n] =
            (struct CMUnitTest){.name = cases[n].name, .test_func = run_case, .initial_state = &cases[n]};
        n++;
    }
    if (d) closedir(d);
    if (n < (argc > 1 ? 1 : 10)) {
        fprintf(stderr, "%zu cases under " PEERS "\n", n);
        return 1;
    }
    json_t *tokens = load("tokens"), *x;
    size_t i;
    n_ids = json_array_size(tokens);
    assert_in_range(n_ids, 1000, MAX_TOK);
    json_array_foreach(tokens, i, x) ids[i] = (int32_t)json_integer_value(x);
    json_decref(tokens);
    return _cmocka_run_group_tests("peers", tests, n, NULL, NULL);
}
