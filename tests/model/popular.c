/* Is a popular model, in the shape it is published in, the same whether it comes as a folder or as the GGUF file that llama.cpp's converter
 * makes of it, and does it answer as the float64 model does? tests/oracle/popular.py makes both, with random weights. */
#include "model/same_model.h"
#include "session/session.h"
#include "text/tokenizer_impl.h"

#include <dirent.h>
#include <jansson.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fixture/fixture.h"

enum { MAX_MODELS = 100, MAX_IDS = 128, MAX_POS = 16 };

static char folder[200]; /* where the models are */

typedef struct vectors {
    int32_t n_ctx, ids[MAX_IDS];
    size_t n_tok, n_pos, pos[MAX_POS];
    json_t *json;
} vectors;

static void load_vectors(const char *path, vectors *v) {
    json_error_t e;
    json_t *x;
    size_t i;
    v->json = json_load_file(path, 0, &e);
    if (!v->json) fail_msg("%s:%d: %s", path, e.line, e.text);
    v->n_ctx = (int32_t)json_integer_value(json_object_get(v->json, "n_ctx"));
    v->n_tok = json_array_size(json_object_get(v->json, "tokens"));
    v->n_pos = json_array_size(json_object_get(v->json, "positions"));
    assert_in_range(v->n_tok, 2, MAX_IDS);
    assert_in_range(v->n_pos, 1, MAX_POS);
    json_array_foreach(json_object_get(v->json, "tokens"), i, x) v->ids[i] = (int32_t)json_integer_value(x);
    json_array_foreach(json_object_get(v->json, "positions"), i, x) v->pos[i] = (size_t)json_integer_value(x);
}

typedef struct against {
    const vectors *v;
    size_t next, n_vocab;
    double worst;
} against;

static bool compare(void *user, size_t at, const float *logits) {
    against *a = user;
    if (a->next == a->v->n_pos || a->v->pos[a->next] != at) return true;
    const json_t *want = json_array_get(json_object_get(a->v->json, "logits"), a->next++);
    assert_int_equal(json_array_size(want), a->n_vocab);
    double diff = 0, size = 0;
    for (size_t k = 0; k < a->n_vocab; k++) {
        const double x = json_number_value(json_array_get(want, k));
        if (!isfinite(logits[k])) fail_msg("logit %zu after position %zu is no number", k, at);
        diff = fmax(diff, fabs((double)logits[k] - x));
        size = fmax(size, fabs(x));
    }
    a->worst = fmax(a->worst, diff / size);
    return true;
}

/* The largest difference of a logit from the float64 model's, as a share of the largest of its position. */
static double answers(const char *path, const vectors *v) {
    tern_options o;
    tern_model_info info;
    tern_error err = {0};
    tern_engine *e = NULL;
    tn_options_defaults(&o);
    o.n_threads = 1;
    o.scheme = "float";
    if (tern_engine_open(path, &o, &e, &err) != TERN_OK) fail_msg("%s", err.message);
    tern_engine_info(e, &info);
    tern_session *s = fixture_session(e, v->n_ctx, NULL);
    against a = {.v = v, .n_vocab = (size_t)info.n_vocab};
    if (tern_session_score(s, v->ids, v->n_tok, 0, compare, &a, &err) != TERN_OK) fail_msg("%s", err.message);
    assert_int_equal(a.next, v->n_pos);
    tern_session_close(&s);
    tern_engine_close(&e);
    return a.worst;
}

static void same_tokens(const char *name, const tn_tokenizer *a, const tn_tokenizer *b, const char *text,
                        bool special) {
    int32_t x[256], y[256];
    size_t n, m;
    tern_error err = {0};
    if (tn_tokenize(a, text, strlen(text), special, special, x, 256, &n, &err) != TERN_OK ||
        tn_tokenize(b, text, strlen(text), special, special, y, 256, &m, &err) != TERN_OK)
        fail_msg("%s: %s", name, err.message);
    for (size_t i = 0; i < n || i < m; i++)
        if (i >= n || i >= m || x[i] != y[i])
            fail_msg("%s: token %zu of '%s'%s is %d in the folder (of %zu), %d in the file (of %zu)", name, i,
                     text, special ? " with special ones" : "", i < n ? x[i] : -1, n, i < m ? y[i] : -1, m);
}

/* Does the folder list the token as an end of an answer that the converter's file has no word for? */
static bool not_in_file(const vectors *v, size_t id) {
    size_t i;
    json_t *x;
    json_array_foreach(json_object_get(v->json, "ends_not_in_file"), i,
                       x) if (json_integer_value(x) == (json_int_t)id) return true;
    return false;
}

static void same_tokenizer(const char *name, const vectors *v, const tn_tokenizer *a, const tn_tokenizer *b) {
    static const char *const texts[] = {"the world and the others, 123 of them",
                                        " two  spaces\n\n\tand lines\r\n  1234567 don't WON'T it's",
                                        "na\xc3\xafve \xe4\xb8\x96\xe7\x95\x8c \xf0\x9f\xa6\x99 "
                                        "e\xcc\x81t\xc3\xa9 \xe0\xa4\x95\xe0\xa5\x8d\xe0\xa4\xb7",
                                        "Hello,World!x=1;/path//to #C++ snake_case camelCase HTTPServer", ""};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        same_tokens(name, a, b, texts[i], false);
        same_tokens(name, a, b, texts[i], true);
    }
    const size_t n = tn_tokenizer_n_vocab(a), m = tn_tokenizer_n_vocab(b);
    if (tn_tokenizer_bos(a) >= 0) assert_int_equal(tn_tokenizer_bos(a), tn_tokenizer_bos(b));
    for (size_t id = 0; id < n || id < m; id++) {
        char x[256], y[256], both[700];
        const bool in_a = id < n, in_b = id < m;
        if (in_a != in_b || !in_a) { /* rows of the embedding without a text: GGUF files name them */
            assert_false(in_a);
            assert_false(tn_tokenizer_is_end(b, (int32_t)id));
            continue;
        }
        for (int special = 0; special < 2; special++) {
            const size_t k = tn_token_bytes(a, (int32_t)id, special, x, sizeof x),
                         l = tn_token_bytes(b, (int32_t)id, special, y, sizeof y);
            /* the converter hides tokens that look like marks of turns, whatever the folder says */
            if (!special && !l && tn_tok_type(a, (uint32_t)id) == TN_TOKEN_USER &&
                tn_tok_type(b, (uint32_t)id) == TN_TOKEN_CONTROL)
                continue;
            if (k != l || memcmp(x, y, k))
                fail_msg("%s: token %zu is '%.*s' in the folder, '%.*s' in the file", name, id, (int)k, x,
                         (int)l, y);
            if (!special || !k || a->kind == TN_TOK_BPE_SPM) continue;
            snprintf(both, sizeof both, "a %.*s b%.*s", (int)k, x, (int)k, x);
            if (strlen(both) == 4 + 2 * k) same_tokens(name, a, b, both, true);
        }
        if (tn_tokenizer_is_end(a, (int32_t)id) != tn_tokenizer_is_end(b, (int32_t)id) + not_in_file(v, id))
            fail_msg("%s: token %zu ends an answer %s", name, id,
                     tn_tokenizer_is_end(a, (int32_t)id) ? "of the folder, not of the file"
                                                         : "of the file, not of the folder");
    }
    assert_int_equal(a->chat_template != NULL, b->chat_template != NULL);
    if (a->chat_template) assert_string_equal(a->chat_template, b->chat_template);
}

static void both_forms(void **state) {
    const char *name = *state;
    char dir[600], file[700], path[700];
    struct stat sb;
    snprintf(dir, sizeof dir, "%s/%s", folder, name);
    snprintf(file, sizeof file, "%s.gguf", dir);
    snprintf(path, sizeof path, "%s/vectors.json", dir);
    vectors v = {0};
    load_vectors(path, &v);
    if (!stat(file, &sb)) {
        tn_ctx ctx;
        tn_source *a, *b;
        tern_error err = {0};
        tn_ctx_init(&ctx, NULL);
        if (tn_source_open(&ctx, dir, &a, &err) != TERN_OK) fail_msg("%s", err.message);
        if (tn_source_open(&ctx, file, &b, &err) != TERN_OK) fail_msg("%s", err.message);
        same_hparams(name, tn_source_hparams(a), tn_source_hparams(b));
        same_weights(name, a, b, 1e-6f);
        assert_non_null(tn_source_tokenizer(a));
        assert_non_null(tn_source_tokenizer(b));
        same_tokenizer(name, &v, tn_source_tokenizer(a), tn_source_tokenizer(b));
        tn_source_close(&a);
        tn_source_close(&b);
    }
    const double off[2] = {answers(dir, &v), stat(file, &sb) ? 0 : answers(file, &v)};
    print_message("%s: off by %.1e as a folder, %.1e as a file\n", name, off[0], off[1]);
    for (int i = 0; i < 2; i++)
        if (!(off[i] < 1e-4)) fail_msg("%s: off by %.1e", i ? file : dir, off[i]);
    json_decref(v.json);
}

static int make_models(void) {
    snprintf(folder, sizeof folder, "/tmp/tern-popular-XXXXXX");
    if (!mkdtemp(folder)) return 1;
    char command[700];
    snprintf(command, sizeof command,
             "python=${PYTHON:-/usr/bin/python3}; \"$python\" -c 'import numpy' 2>/dev/null || exit 77; "
             "PYTHONDONTWRITEBYTECODE=1 \"$python\" " TN_SOURCE_DIR "/tests/oracle/popular.py %s",
             folder);
    const int st = system(command);
    return WIFEXITED(st) ? WEXITSTATUS(st) : 1;
}

/* TERN_POPULAR=DIR: models that are there, and stay. */
int main(int argc, char **argv) {
    static char names[MAX_MODELS][256];
    static struct CMUnitTest tests[MAX_MODELS];
    size_t n = 0;
    const char *kept = getenv("TERN_POPULAR");
    if (kept) snprintf(folder, sizeof folder, "%s", kept);
    const int made = kept ? 0 : make_models();
    if (made == 77) puts("python3 with NumPy is not installed; skipped");
    DIR *d = made ? NULL : opendir(folder);
    for (struct dirent *x; d && n < MAX_MODELS && (x = readdir(d));) {
        const size_t len = strlen(x->d_name);
        if (*x->d_name == '.' || (len > 5 && !strcmp(x->d_name + len - 5, ".gguf"))) continue;
        if (argc > 1 && strcmp(argv[1], x->d_name)) continue;
        snprintf(names[n], sizeof names[n], "%s", x->d_name);
        tests[n] = (struct CMUnitTest){names[n], both_forms, NULL, NULL, names[n]};
        n++;
    }
    if (d) closedir(d);
    int failed = made ? made : n ? _cmocka_run_group_tests("popular", tests, n, NULL, NULL) : 1;
    char command[400];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (!kept && system(command) && !failed) failed = 1;
    return failed;
}
