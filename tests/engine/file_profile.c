/* What is measured on this machine for a quantised file lies in the user's cache: named by the file's shape, believed
 * where it is this machine's, and never needed. */
#include "base/json.h"
#include "engine/engine.h"
#include "fixture/fixture.h"
#include "formats/tensor.h"
#include "measure/tune.h"
#include "params/options.h"
#include "prefill/profile.h"
#include "session/session.h"
#include "tern.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char cache[FIXTURE_PATH];

static void in_a_cache_of_its_own(const char *name) {
    fixture_file(cache, name);
    assert_int_equal(setenv("XDG_CACHE_HOME", cache, 1), 0);
}

static tern_engine *open_file(const char *path) {
    tern_options o;
    tn_options_defaults(&o);
    return fixture_engine(path, &o);
}

static void profile_of(const char *path, char out[FIXTURE_PATH]) {
    tern_engine *e = open_file(path);
    assert_non_null(e->profile_path);
    snprintf(out, FIXTURE_PATH, "%s", e->profile_path);
    tern_engine_close(&e);
}

static void is_named_by_the_shape(void **state) {
    (void)state;
    char path[FIXTURE_PATH], one[FIXTURE_PATH], other[FIXTURE_PATH];
    in_a_cache_of_its_own("shape");
    fixture_model(path, "a.gguf", "tiny-llama", 1, TN_Q4_0);
    profile_of(path, one);
    assert_non_null(strstr(one, "/shape/tern/profiles/"));
    fixture_model(path, "b.gguf", "tiny-llama", 2, TN_Q4_0);
    profile_of(path, other); /* other weights take as long */
    assert_string_equal(one, other);
    fixture_model(path, "c.gguf", "tiny-llama", 1, TN_Q8_0);
    profile_of(path, other);
    assert_string_not_equal(one, other);
    fixture_model(path, "d.gguf", "tiny-qwen2", 1, TN_Q4_0);
    profile_of(path, other);
    assert_string_not_equal(one, other);
    assert_int_not_equal(access(cache, F_OK), 0); /* opening makes no folder */
}

static void nowhere_to_keep_it(void **state) {
    (void)state;
    char path[FIXTURE_PATH], home[FIXTURE_PATH] = "";
    if (getenv("HOME")) snprintf(home, sizeof home, "%s", getenv("HOME"));
    fixture_model(path, "a.gguf", "tiny-llama", 1, TN_Q4_0);
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    tern_engine *e = open_file(path);
    assert_null(e->profile_path);
    assert_false(tn_tune_wanted(e, path));
    tern_session *s = fixture_session(e, 64, "all");
    tern_session_close(&s);
    tern_engine_close(&e);
    if (*home) setenv("HOME", home, 1);
}

/* Reads the profile, changes it, writes it. */
static void change(const char *profile, const char *section, const char *key, json_t *value) {
    json_t *j = json_load_file(profile, 0, NULL), *of = section ? json_object_get(j, section) : j;
    assert_non_null(of);
    assert_int_equal(json_object_set_new(of, key, value), 0);
    assert_int_equal(json_dump_file(j, profile, 0), 0);
    json_decref(j);
}

static int32_t begins(const char *path) {
    tern_engine *e = open_file(path);
    assert_non_null(e->estimator);
    int32_t from = tn_sparse_attn_from(e->estimator, &e->attention);
    tern_engine_close(&e);
    return from;
}

static void is_measured_once_and_believed(void **state) {
    (void)state;
    char path[FIXTURE_PATH], profile[FIXTURE_PATH];
    tern_error err = {0};
    tern_options o;
    bool busy;
    struct stat before, after;
    in_a_cache_of_its_own("once");
    fixture_model(path, "a.gguf", "tiny-llama", 1, TN_Q4_0);
    profile_of(path, profile);
    const int32_t usual = begins(path);
    tern_engine *e = open_file(path);
    assert_true(tn_tune_wanted(e, path));
    tern_engine_close(&e);
    tn_options_defaults(&o);
    must(tn_tune_by_itself(path, &o, &busy, &err), &err);
    assert_false(busy);
    assert_int_equal(stat(profile, &before), 0);
    assert_int_equal(before.st_mode & 077, 0);
    e = open_file(path);
    assert_false(tn_tune_wanted(e, path));
    tern_engine_close(&e);
    must(tn_tune_by_itself(path, &o, &busy, &err), &err);
    assert_int_equal(stat(profile, &after), 0);
    assert_int_equal(before.st_ino, after.st_ino); /* it was not written anew */

    change(profile, "tuned", "attention_from", json_integer(256));
    assert_int_equal(begins(path), 256);
    change(profile, "tuned", "key", json_string("of another machine"));
    assert_int_equal(begins(path), usual);
    FILE *f = fopen(profile, "w");
    fputs("{\"tuned\": [", f);
    fclose(f);
    assert_int_equal(begins(path), usual);
}

static void forwards_are_measured_once(void **state) {
    (void)state;
    char path[FIXTURE_PATH], profile[FIXTURE_PATH], folder[FIXTURE_PATH + 32];
    tn_profile_file kept;
    in_a_cache_of_its_own("forwards");
    fixture_model(path, "a.gguf", "tiny-llama", 1, TN_Q4_0);
    profile_of(path, profile);
    tern_engine *e = open_file(path);
    tern_session *s = fixture_session(e, 64, "all");
    assert_int_equal(s->profile.n_forwards, 0);
    s->profile.n_forwards = 2; /* as a text with drafts leaves them */
    s->profile.forward_rows[0] = 1, s->profile.forward_rows[1] = 4;
    s->profile.forward_relative[0] = 1, s->profile.forward_relative[1] = 1.5f;
    const tn_step_profile measured = s->profile;
    tern_session_close(&s);
    assert_int_not_equal(access(profile, F_OK), 0); /* nobody has made the folder yet */
    snprintf(folder, sizeof folder, "%s/tern/profiles", cache);
    assert_int_equal(mkdir(cache, 0700), 0);
    *strrchr(folder, '/') = 0;
    assert_int_equal(mkdir(folder, 0700), 0);
    folder[strlen(folder)] = '/';
    assert_int_equal(mkdir(folder, 0700), 0);
    s = fixture_session(e, 64, "all");
    s->profile = measured;
    tern_session_close(&s);
    s = fixture_session(e, 64, "all");
    assert_int_equal(s->profile.n_forwards, 2);
    assert_true(s->profile.forward_relative[1] > 1.4f && s->profile.forward_relative[1] < 1.6f);
    tern_session_close(&s);
    tn_engine_profile(e, &kept);
    change(profile, NULL, "key", json_string("file-of-another-machine"));
    s = fixture_session(e, 64, "all");
    assert_int_equal(s->profile.n_forwards, 0);
    tern_session_close(&s);
    tern_engine_close(&e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_named_by_the_shape),
        cmocka_unit_test(nowhere_to_keep_it),
        cmocka_unit_test(is_measured_once_and_believed),
        cmocka_unit_test(forwards_are_measured_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
