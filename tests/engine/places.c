/* Saved sessions of hybrids: files hold nothing but the session, and snapshots are of the places they are named for. */
#include "engine/engine.h"
#include "session/session.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "fixture/fixture.h"

enum { N_PROMPT = 300, N_CTX = 600, CAP = 8 << 20 };

static const char *const archs[] = {"tiny-lfm2", "tiny-qwen35", "tiny-rwkv7"};
static int32_t prompt[N_PROMPT];
static int fill;

static void *filled(void *user, size_t n_bytes, size_t align) {
    (void)user;
    align = align < 64 ? 64 : align;
    void *p = aligned_alloc(align, (n_bytes + align - 1) / align * align);
    return p ? memset(p, fill, n_bytes) : NULL;
}

static void release(void *user, void *p) {
    (void)user;
    free(p);
}

typedef struct saved {
    uint8_t *bytes;
    size_t n;
} saved;

static bool keep(void *user, const void *bytes, size_t n) {
    saved *s = user;
    assert_true(s->n + n <= CAP);
    memcpy(s->bytes + s->n, bytes, n);
    s->n += n;
    return true;
}

static tern_engine *open_filled(const char *path) {
    tern_hooks hooks;
    tern_options o;
    tern_hooks_defaults(&hooks);
    hooks.alloc = filled;
    hooks.release = release;
    tn_options_defaults(&o);
    o.hooks = &hooks;
    return fixture_engine(path, &o);
}

static void save(const char *path, saved *out) {
    tern_error err;
    tern_engine *e = open_filled(path);
    tern_session *s = fixture_session(e, N_CTX, "none");
    out->n = 0;
    must(tern_session_prefill(s, prompt, N_PROMPT, &err), &err);
    must(tern_session_save_to(s, keep, out, &err), &err);
    tern_session_close(&s);
    tern_engine_close(&e);
}

static void files_hold_nothing_else(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
        char path[FIXTURE_PATH];
        saved a = {malloc(CAP), 0}, b = {malloc(CAP), 0};
        fixture_model(path, "places.gguf", archs[i], 5, TN_F16);
        fill = 0xa5;
        save(path, &a);
        fill = 0x5a;
        save(path, &b);
        assert_int_equal(a.n, b.n);
        if (memcmp(a.bytes, b.bytes, a.n)) fail_msg("%s: memory of others is in the file", archs[i]);
        free(a.bytes);
        free(b.bytes);
    }
}

static void snapshots_of_their_places(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
        char path[FIXTURE_PATH];
        saved a = {malloc(CAP), 0};
        const int32_t head[4] = {256, 0, 0, 0};
        tern_error err;
        fixture_model(path, "places.gguf", archs[i], 5, TN_F16);
        save(path, &a);
        uint8_t *at = memmem(a.bytes, a.n, head, sizeof head);
        assert_non_null(at);
        tern_engine *e = open_filled(path);
        tern_session *s = fixture_session(e, N_CTX, "none");
        must(tern_session_load_from(s, a.bytes, a.n, &err), &err);
        assert_int_equal(tern_session_length(s), N_PROMPT);
        at[0] = 99;
        const uint64_t sum = XXH64(a.bytes, a.n - 8, 0);
        memcpy(a.bytes + a.n - 8, &sum, 8);
        assert_int_equal(tern_session_load_from(s, a.bytes, a.n, &err), TERN_E_FORMAT);
        assert_non_null(strstr(err.message, "position 256"));
        assert_int_equal(tern_session_length(s), 0);
        must(tern_session_prefill(s, prompt, N_PROMPT, &err), &err);
        tern_session_close(&s);
        tern_engine_close(&e);
        free(a.bytes);
    }
}

static int setup(void **state) {
    (void)state;
    fixture_prompt(prompt, N_PROMPT);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(files_hold_nothing_else),
                                       cmocka_unit_test(snapshots_of_their_places)};
    return cmocka_run_group_tests(tests, setup, NULL);
}
