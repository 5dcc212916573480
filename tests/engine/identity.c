/* Identity as a class: a session saved with one model is refused by every other: each number of the file's metadata
 * that the program reads, and weights from the first to the last, changed one at a time. */
#include "engine/engine.h"
#include "model/model.h"
#include "model/properties.h"
#include "quant/cache.h"
#include "tern.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fixture/fixture.h"

static char gguf[FIXTURE_PATH], other[FIXTURE_PATH], saved[FIXTURE_PATH];

static uint8_t *bytes;
static size_t n_bytes;
static int n_refused, n_unread;

static void read_model(void) { bytes = fixture_read(gguf, &n_bytes); }

/* Opens the changed model: it refuses the state of the one before, and has another identity. */
static void state_is_refused(const char *what, bool must_open) {
    tern_engine *e;
    tern_error err;
    fixture_write(other, bytes, n_bytes);
    tern_status st = tern_engine_open(other, NULL, &e, &err);
    if (st != TERN_OK) { /* no model any more */
        if (must_open) fail_msg("%s: %s", what, err.message);
        n_unread++;
        return;
    }
    tern_session *s = fixture_session(e, 64, "none");
    st = tern_session_load(s, saved, &err);
    if (st != TERN_E_INVALID && st != TERN_E_FORMAT && st != TERN_E_UNSUPPORTED)
        fail_msg("%s: the state of another model is taken (%d)", what, (int)st);
    n_refused++;
    tern_session_close(&s);
    tern_engine_close(&e);
}

/* A float of the metadata, by the end of its key. */
static void number(const char *key, float by) {
    uint8_t *at = memmem(bytes, n_bytes, key, strlen(key));
    if (!at) fail_msg("the file has no %s", key);
    at += strlen(key) + 4;
    float was, is;
    memcpy(&was, at, sizeof was);
    is = was * by;
    memcpy(at, &is, sizeof is);
    state_is_refused(key, true);
    memcpy(at, &was, sizeof was);
}

static void every_part(void **state) {
    (void)state;
    tern_error err;
    tern_engine *e = fixture_engine(gguf, NULL), *again;
    tern_session *s = fixture_session(e, 64, "none");
    int32_t prompt[16];
    fixture_prompt(prompt, 16);
    assert_int_equal(tern_session_prefill(s, prompt, 16, &err), TERN_OK);
    assert_int_equal(tern_session_save(s, saved, &err), TERN_OK);
    again = fixture_engine(gguf, NULL);
    assert_true(tn_model_fingerprint(again->model) == tn_model_fingerprint(e->model));
    tern_session *t = fixture_session(again, 64, "none");
    assert_int_equal(tern_session_load(t, saved, &err), TERN_OK);
    tern_session_close(&t);
    tern_session_close(&s);
    tern_engine_close(&again);
    tern_engine_close(&e);

    read_model();
    number("rope.freq_base", 2);
    number("layer_norm_rms_epsilon", 2);
    for (int i = 1; i <= 24; i++) { /* the last bits of weights: the data is the file's greater part */
        size_t at = (n_bytes - 4 - (n_bytes / 2) * (size_t)(i - 1) / 24) & ~(size_t)3;
        bytes[at] ^= 1;
        char what[64];
        snprintf(what, sizeof what, "byte %zu of %zu", at, n_bytes);
        state_is_refused(what, false);
        bytes[at] ^= 1;
    }
    assert_true(n_refused >= 20); /* none of them for another reason */
    free(bytes);
}

/* What is changed in the file, before it is packed: a number, a token, weights of its first and of its last layer. */
enum { SAME, NUMBER, TOKEN, FIRST, LAST, CHANGES };
static const char *const changes[] = {"nothing", "a number", "a token", "weights at the beginning",
                                      "weights at the end"};

static void change(int what) {
    static const char key[] = "rope.freq_base", token[] = "[unused300]";
    uint8_t *at =
        memmem(bytes, n_bytes, what == NUMBER ? key : token, what == NUMBER ? strlen(key) : strlen(token));
    assert_non_null(at);
    if (what == NUMBER) at[strlen(key) + 4 + 2] ^= 1; /* a bit of the mantissa */
    if (what == TOKEN) at[1] = 'x';
    for (size_t i = 0; i < 64 && (what == FIRST || what == LAST); i++) /* signs of floats */
        bytes[((what == FIRST ? n_bytes / 2 : n_bytes - 4096) & ~(size_t)3) + 4 * i + 3] ^= 0x80;
}

/* Whatever calibration makes of them: the numbers themselves count, each that the table of properties has. */
static void numbers_of_package(const tern_engine *e) {
    size_t n;
    const tn_property *p = tn_properties(&n);
    for (size_t i = 0; i < n; i++) {
        tn_hparams h = e->model->h;
        if (p[i].type == TN_PROPERTY_KINDS) h.layer_kind[TN_MAX_LAYERS - 1] ^= 1;
        else if (!tn_property_single(&p[i])) tn_property_numbers(&p[i], &h)[TN_MAX_LAYERS - 1] += 1;
        else tn_property_set(&p[i], &h, tn_property_get(&p[i], &h) == p[i].max ? p[i].min : p[i].max);
        if (tn_package_fingerprint(e->npu->pkg, &h) == tn_model_fingerprint(e->model))
            fail_msg("%s is no part of a package's identity", p[i].key);
    }
}

/* What was measured of one model is nothing to another, also under one name. */
static void profile_is_its_own(tern_engine *e, int what) {
    static char keys[CHANGES][sizeof((tn_profile_file *)NULL)->key];
    tn_profile_file f;
    tn_engine_profile(e, &f);
    memcpy(keys[what], f.key, sizeof f.key);
    for (int i = SAME; i < what; i++)
        if (!strcmp(keys[i], keys[what])) fail_msg("%s was changed: its profile is taken", changes[what]);
}

/* So is a package that tern made by itself, or began to. */
static void automatic_is_its_own(tn_ctx *c, int what) {
    static char keys[CHANGES][TN_CACHE_KEY];
    tern_error err;
    must(tn_cache_key(c, NULL, other, TN_CONTENT_KNOWN, keys[what], &err), &err);
    assert_int_equal(strlen(keys[what]), TN_CACHE_KEY - 1);
    for (int i = SAME; i < what; i++)
        if (!strcmp(keys[i], keys[what])) fail_msg("%s was changed: its package is taken", changes[what]);
}

/* The same of files and of the packages that are made of them: state of the one is refused by every other. */
static void every_change(void **state) {
    (void)state;
    char package[FIXTURE_PATH];
    int32_t prompt[16];
    fixture_prompt(prompt, 16);
    fixture_file(package, "identity-other.tern");
    for (int packed = 0; packed < 2; packed++) {
        for (int what = SAME; what < CHANGES; what++) {
            tern_error err = {0};
            tn_pack_options o;
            tn_ctx ctx;
            read_model();
            if (what != SAME) change(what);
            fixture_write(other, bytes, n_bytes);
            free(bytes);
            tn_ctx_init(&ctx, NULL);
            tn_pack_defaults(&o);
            o.calib_tokens = 64;
            unlink(package);
            if (packed && tn_pack(&ctx, other, package, &o, NULL, &err) != TERN_OK)
                fail_msg("%s: %s", changes[what], err.message);
            tern_engine *e = fixture_engine(packed ? package : other, NULL);
            tern_session *s = fixture_session(e, 64, "none");
            if (what == SAME) {
                assert_int_equal(tern_session_prefill(s, prompt, 16, &err), TERN_OK);
                assert_int_equal(tern_session_save(s, saved, &err), TERN_OK);
            }
            if (packed) {
                numbers_of_package(e);
                profile_is_its_own(e, what);
            } else {
                automatic_is_its_own(&ctx, what);
            }
            tern_status st = tern_session_load(s, saved, &err);
            if ((st == TERN_OK) != (what == SAME))
                fail_msg("%s was changed%s: %s", changes[what], packed ? " and packed" : "",
                         st == TERN_OK ? "its state is taken" : err.message);
            tern_session_close(&s);
            tern_engine_close(&e);
        }
    }
    unlink(package);
}

/* Every byte of the hyperparameters counts, but for the two fields that change nothing. */
static void every_field(void **state) {
    (void)state;
    tn_hparams h;
    memset(&h, 0, sizeof h);
    uint64_t none = tn_hparams_identity(&h);
    for (size_t i = 0; i < sizeof h; i++) {
        bool counts =
            (i < offsetof(tn_hparams, name) || i >= offsetof(tn_hparams, name) + sizeof h.name) &&
            (i < offsetof(tn_hparams, n_next) || i >= offsetof(tn_hparams, n_next) + sizeof h.n_next);
        ((uint8_t *)&h)[i] = 1;
        assert_true((tn_hparams_identity(&h) != none) == counts);
        ((uint8_t *)&h)[i] = 0;
    }
}

int main(void) {
    fixture_llama(gguf, "identity.gguf", 5);
    fixture_file(other, "identity-other.gguf");
    fixture_file(saved, "identity.state");
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_field), cmocka_unit_test(every_part),
                                       cmocka_unit_test(every_change)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
