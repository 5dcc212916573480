/* Does the layer that guesses one token further guess what the float64 reference says, from a folder and from GGUF,
 * however it came to know the text: in one prompt, token by token, behind rejected drafts, behind a shorter text? And are
 * files refused whose layer is not what their keys say? */
#include "session/session.h"
#include "lab/synth.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fixture/fixture.h"

#define CASE TN_SOURCE_DIR "/tests/oracle/fixtures/qwen35-mtp"

enum { MAX_TOK = 128, MAX_VOCAB = 64 };
static const double tolerance = 1e-5; /* of the largest logit, as tests/model/oracle.c has it */

typedef struct oracle {
    int32_t ids[MAX_TOK];
    size_t n, n_pos, n_vocab;
    int32_t pos[MAX_TOK];
    double want[MAX_TOK][2][MAX_VOCAB];
} oracle;

static oracle vectors;

static int setup(void **state) {
    (void)state;
    json_t *j = json_load_file(CASE "/vectors.json", 0, NULL), *ids = json_object_get(j, "tokens"),
           *all = json_object_get(j, "further"), *x;
    size_t i, k;
    vectors.n = json_array_size(ids);
    vectors.n_pos = json_array_size(all);
    if (!vectors.n_pos || vectors.n > MAX_TOK) return -1;
    json_array_foreach(ids, i, x) vectors.ids[i] = (int32_t)json_integer_value(x);
    for (i = 0; i < vectors.n_pos; i++) {
        vectors.pos[i] = (int32_t)json_integer_value(json_array_get(json_object_get(j, "positions"), i));
        for (size_t d = 0; d < 2; d++) {
            const json_t *row = json_array_get(json_array_get(all, i), d);
            vectors.n_vocab = json_array_size(row);
            if (vectors.n_vocab > MAX_VOCAB) return -1;
            json_array_foreach((json_t *)(uintptr_t)row, k, x) vectors.want[i][d][k] = json_number_value(x);
        }
    }
    json_decref(j);
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

/* The session's text is ids[0..pos]. Leaves the layer with guesses that are not text. */
static void compare(tern_session *s, size_t i, const char *how) {
    for (int32_t d = 0; d < 2; d++) {
        const float *got = tn_mtp_logits(s->drafting.mtp, vectors.ids[vectors.pos[i] + 1 + d], d);
        double diff = 0, size = 0;
        assert_non_null(got);
        for (size_t k = 0; k < vectors.n_vocab; k++) {
            diff = fmax(diff, fabs((double)got[k] - vectors.want[i][d][k]));
            size = fmax(size, fabs(vectors.want[i][d][k]));
        }
        if (!(diff / size < tolerance))
            fail_msg("%s: guess %d behind position %d is %.2e off", how, d, vectors.pos[i], diff / size);
    }
}

static void as_the_reference(void **state) {
    (void)state;
    static const char *const files[] = {CASE, CASE ".gguf"};
    for (int f = 0; f < 2; f++) {
        tern_engine *e;
        tern_error err = {0};
        tern_session *s = open_session(files[f], "float", &e);
        for (size_t i = 0; i < vectors.n_pos;
             i++) { /* every prompt anew; the second is longer than what waits */
            tern_session_truncate(s, 0, NULL);
            must(tern_session_prefill(s, vectors.ids, (size_t)vectors.pos[i] + 1, &err), &err);
            compare(s, i, "a prompt");
        }
        tern_session_truncate(s, 0, NULL);
        for (size_t n = 0, i = 0; n < vectors.n && i < vectors.n_pos;
             n++) { /* token by token, over wrong guesses */
            must(tern_session_step(s, vectors.ids[n], &err), &err);
            if ((int32_t)n != vectors.pos[i]) continue;
            compare(s, i++, "token by token");
            assert_non_null(tn_mtp_logits(s->drafting.mtp, 1, 0));
            assert_non_null(tn_mtp_logits(s->drafting.mtp, 2, 1));
        }
        tern_session_close(&s);
        tern_engine_close(&e);
    }
}

/* Rows of a tree: those kept are text, whatever lay between them. */
static void behind_drafts(void **state) {
    (void)state;
    tern_engine *e;
    tern_error err = {0};
    tern_session *s = open_session(CASE, "float", &e);
    for (size_t i = 0; i < vectors.n_pos; i++) {
        int32_t n = vectors.pos[i] + 1;
        if (n < 4) continue;
        tern_session_truncate(s, 0, NULL);
        must(tern_session_prefill(s, vectors.ids, (size_t)n - 3, &err), &err);
        tn_tree t = {0};
        (void)tn_tree_add(&t, -1, vectors.ids[n - 3]);
        (void)tn_tree_add(&t, 0, 1);
        int32_t second = tn_tree_add(&t, 0, vectors.ids[n - 2]);
        (void)tn_tree_add(&t, second, 2);
        int32_t third = tn_tree_add(&t, second, vectors.ids[n - 1]);
        must(tn_session_verify(s, &t, &err), &err);
        tn_session_keep(s, &t, 0);
        tn_session_keep(s, &t, second);
        tn_session_keep(s, &t, third);
        tn_session_settle(s, third);
        compare(s, i, "behind drafts");
    }
    tern_session_close(&s);
    tern_engine_close(&e);
}

/* Behind a text that became shorter one state is not known, and nothing is guessed before the next token. */
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

/* ---- files ------------------------------------------------------------------------------------------ */

/* A copy of the file in which every `from` is `to`, which is as long. */
static void changed(const char *path, const char *from, const char *to, size_t n, char out[FIXTURE_PATH]) {
    static char bytes[1 << 22];
    FILE *f = fopen(path, "rb");
    size_t size = fread(bytes, 1, sizeof bytes, f);
    bool any = false;
    fclose(f);
    for (size_t i = 0; i + n <= size; i++) {
        if (memcmp(bytes + i, from, n)) continue;
        memcpy(bytes + i, to, n);
        any = true;
    }
    assert_true(any);
    fixture_file(out, "changed.gguf");
    f = fopen(out, "wb");
    assert_int_equal(fwrite(bytes, 1, size, f), size);
    fclose(f);
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
    refused(odd, "blk.1.nextn.enorm.weight is missing");
    changed(path, KEY "\1\0\0\0", KEY "\0\0\0\0", sizeof KEY + 3, odd);
    refused(odd, "nextn");
    changed(path, "blk.2.nextn.hnorm.weight", "blk.2.nextn.xnorm.weight", 24, odd);
    refused(odd, "blk.2.nextn.hnorm.weight is missing");
    changed(path, "blk.2.attn_output.weight", "blk.1.attn_xxxxxx.weight", 24, odd);
    refused(odd, "blk.2.attn_output.weight is missing");
    /* its dimensions behind the name: two of 128 and 64 */
    changed(path, "nextn.eh_proj.weight\2\0\0\0\x80", "nextn.eh_proj.weight\2\0\0\0\x40", 25, odd);
    refused(odd, "nextn.eh_proj.weight");
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_the_reference), cmocka_unit_test(behind_drafts),
                                       cmocka_unit_test(behind_less), cmocka_unit_test(odd_files),
                                       cmocka_unit_test(none)};
    return cmocka_run_group_tests(tests, setup, NULL);
}
