/* A caller compiled against an earlier header, and one compiled against a later one: nothing is read or
 * written after the struct that the caller has, and sizes that no version had are refused. Uses
 * old_header.h, not tern.h. */
#include "engine/old_header.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixture/fixture.h"

enum { OK = 0, INVALID = 1, UNSUPPORTED = 5, GUARD = 512 };
static char model[FIXTURE_PATH];

static int setup(void **state) {
    (void)state;
    fixture_llama(model, "m.gguf", 1);
    return 0;
}

/* A struct with bytes after it that nobody may touch, as a caller's next variables would be. */
#define GUARDED(type)                                                                                        \
    struct {                                                                                                 \
        type s;                                                                                              \
        unsigned char guard[GUARD];                                                                          \
    }

static void arm(unsigned char *guard) { memset(guard, 0xA5, GUARD); }

static void untouched(const unsigned char *guard) {
    for (int i = 0; i < GUARD; i++)
        if (guard[i] != 0xA5) fail_msg("byte %d behind the struct was written", i);
}

static void nothing_is_written_behind(void **state) {
    (void)state;
    GUARDED(tern_session_options) so;
    GUARDED(tern_generate_options) g;
    GUARDED(tern_generate_result) r;
    GUARDED(tern_model_info) info;
    GUARDED(tern_hooks) hooks;
    GUARDED(tern_sampling) sampling;
    arm(so.guard), arm(g.guard), arm(r.guard), arm(info.guard), arm(hooks.guard), arm(sampling.guard);
    tern_engine *e;
    tern_session *s;
    tern_options *o;
    tern_error err = {0};
    const int32_t ids[] = {1, 2, 3};
    assert_int_equal(tern_hooks_init(&hooks.s, sizeof hooks.s), OK);
    assert_int_equal(tern_options_new(&o, &err), OK);
    assert_int_equal(tern_options_set_hooks(o, &hooks.s, &err), OK);
    assert_int_equal(tern_engine_open(model, o, &e, &err), OK);
    tern_options_free(&o);
    assert_int_equal(tern_engine_info_sized(e, &info.s, sizeof info.s), OK);
    assert_string_equal(info.s.arch, "llama");
    assert_int_equal(tern_session_options_init(&so.s, sizeof so.s), OK);
    assert_int_equal(so.s.size_bytes, sizeof so.s);
    so.s.n_ctx = 33; /* what follows in memory is a guard, and a draft list in this library's struct */
    assert_int_equal(tern_session_open(e, &so.s, &s, &err), OK);
    assert_int_equal(tern_session_capacity(s), 33);
    assert_int_equal(tern_session_prefill(s, ids, 3, &err), OK);
    assert_int_equal(tern_sampling_init(&sampling.s, sizeof sampling.s), OK);
    assert_int_equal(tern_generate_options_init(&g.s, sizeof g.s), OK);
    assert_memory_equal(&g.s.sampling, &sampling.s, sizeof sampling.s);
    g.s.max_tokens = 3;
    g.s.ignore_end = true;
    assert_int_equal(tern_session_generate(s, &g.s, &r.s, &err), OK);
    assert_int_equal(r.s.n_tokens, 3);
    untouched(so.guard), untouched(g.guard), untouched(r.guard), untouched(info.guard),
        untouched(hooks.guard), untouched(sampling.guard);
    tern_session_close(&s);
    tern_engine_close(&e);
}

static void sizes_no_version_had_are_refused(void **state) {
    (void)state;
    static unsigned char room[4096];
    tern_engine *e;
    tern_session *s;
    tern_error err = {0};
    assert_int_equal(tern_engine_open(model, NULL, &e, &err), OK);
    assert_int_equal(tern_session_open(e, NULL, &s, &err), OK);
    const int32_t ids[] = {1, 2, 3};
    assert_int_equal(tern_session_prefill(s, ids, 3, &err), OK);
    arm(room);
    for (size_t n = 0; n < sizeof(tern_model_info); n += n < 2 ? 1 : 7)
        assert_int_equal(tern_engine_info_sized(e, (tern_model_info *)room, n), INVALID);
    for (size_t n = 0; n < sizeof(tern_generate_options); n += 9)
        assert_int_equal(tern_generate_options_init((tern_generate_options *)room, n), INVALID);
    assert_int_equal(tern_session_options_init((tern_session_options *)room, 4), INVALID);
    assert_int_equal(tern_hooks_init((tern_hooks *)room, 8), INVALID);
    assert_int_equal(tern_sampling_init((tern_sampling *)room, sizeof(tern_sampling) - 8), INVALID);
    untouched(room);
    tern_session *other = NULL;
    tern_session_options so = {.size_bytes = 0};
    assert_int_equal(tern_session_open(e, &so, &other, &err), INVALID); /* never filled */
    so.size_bytes = 1 << 30;
    assert_int_equal(tern_session_open(e, &so, &other, &err), INVALID); /* nor with garbage */
    tern_generate_options g = {.size_bytes = 8};
    assert_int_equal(tern_session_generate(s, &g, NULL, &err), INVALID);
    assert_null(other);
    tern_session_close(&s);
    tern_engine_close(&e);
}

/* A struct longer than this library's: fine as long as the caller wants nothing of what is after. */
static void a_later_caller(void **state) {
    (void)state;
    struct {
        tern_generate_options s;
        uint64_t later[64];
    } g;
    static unsigned char info[8192];
    tern_engine *e;
    tern_session *s;
    tern_error err = {0};
    const int32_t ids[] = {1, 2, 3};
    assert_int_equal(tern_engine_open(model, NULL, &e, &err), OK);
    assert_int_equal(tern_session_open(e, NULL, &s, &err), OK);
    assert_int_equal(tern_session_prefill(s, ids, 3, &err), OK);
    memset(&g, 0xff, sizeof g);
    assert_int_equal(tern_generate_options_init(&g.s, sizeof g), OK);
    for (int i = 48; i < 64; i++) assert_int_equal(g.later[i], 0);
    g.s.max_tokens = 2;
    assert_int_equal(tern_session_generate(s, &g.s, NULL, &err), OK);
    g.later[63] = 1;
    assert_int_equal(tern_session_generate(s, &g.s, NULL, &err), UNSUPPORTED);
    assert_non_null(strstr(err.message, "does not know"));
    memset(info, 0xff, sizeof info);
    assert_int_equal(tern_engine_info_sized(e, (tern_model_info *)info, sizeof info), OK);
    for (size_t i = 4096; i < sizeof info; i++) assert_int_equal(info[i], 0);
    tern_session_close(&s);
    tern_engine_close(&e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_written_behind),
        cmocka_unit_test(sizes_no_version_had_are_refused),
        cmocka_unit_test(a_later_caller),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
